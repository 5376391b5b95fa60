"""Attention over a sequence that devices share: softmax(q kᵀ / √d) v, keys and values going round a ring."""

from __future__ import annotations

from math import sqrt
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.api.custom import custom_vjp
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.online import add_block, require_attention, start
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, Ring, collective, directions, meet, ring, struct


def ring_attention(q: Any, k: Any, v: Any, axis_name: str, *, causal: bool = False, debug: Any = None) -> Any:
    """Attention over a sequence whose rows the devices share: keys and values go round while they are looked at.

    ``q``, ``k`` and ``v`` are (…, rows, dim), the rows of this device.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda q, v: ops.ring_attention(q, q, v, "x", causal=True)
    >>> g = mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))
    >>> g(mnp.zeros((8, 4)), mnp.arange(32.0).reshape(8, 4))[:, 0]
    Array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14.], dtype=float32)
    """
    require_attention(q, k, v)
    options: dict[str, Any] = {"axis_name": axis_name, "causal": causal, "debug": debug}

    @custom_vjp
    def attention(q: Any, k: Any, v: Any) -> Any:
        return _forward(q, k, v, **options)[0]

    def forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        out, lse = _forward(q, k, v, **options)
        return out, (q, k, v, out, lse)

    attention.defvjp(forward, lambda saved, dout: _backward(saved, dout, **options))
    return attention(q, k, v)


def _allowed(at: Ring, owner: Any, rows: int, keys: int) -> Any:
    """Which scores of this device's rows and another's keys count, where no row looks ahead."""
    row = lax.broadcasted_iota(mnp.int32, (rows, keys), 0) + at.me * rows
    return lax.broadcasted_iota(mnp.int32, (rows, keys), 1) + owner * keys <= row


def _forward(q: Any, k: Any, v: Any, *, axis_name: str, causal: bool, debug: Any) -> Any:
    """The result, and per row the logarithm of the sum of its weights."""
    rows, dim = q.shape[-2:]
    scale = 1 / sqrt(dim)

    def kernel(
        q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, lse_ref: Any, keys: Any, values: Any, local: Any, send: Any,
        receive: Any, room: Any, acc: Any, top: Any, total: Any,
    ) -> None:  # fmt: skip
        at = ring(axis_name)
        (direction,) = directions(at, False)
        target = {axis_name: direction.target}
        own = [pltpu.make_async_copy(k_ref, keys.at[0], local.at[0])]
        own.append(pltpu.make_async_copy(v_ref, values.at[0], local.at[1]))
        for copy in own:
            copy.start()
        meet(axis_name, at.left, at.right)
        start(acc, top, total)
        for copy in own:
            copy.wait()
        for step in range(at.size):
            slot, last = step % 2, step == at.size - 1
            copies = [
                pltpu.make_async_remote_copy(ref.at[slot], ref.at[1 - slot], send.at[n], receive.at[n, slot], target)
                for n, ref in enumerate((keys, values))
            ]
            if not last:
                if step > 0:
                    pltpu.semaphore_wait(room)
                for copy in copies:
                    copy.start()
            owner = direction.owner(at, step)

            @pl.when(owner <= at.me if causal else True)
            def _(owner: Any = owner, slot: int = slot) -> None:
                allowed = _allowed(at, owner, rows, keys.shape[-2]) if causal else None
                add_block(q_ref[...], keys[slot], values[slot], acc, top, total, allowed, scale)

            if not last:
                for copy in copies:
                    copy.wait()
                if step < at.size - 2:
                    pltpu.semaphore_signal(room, device_id={axis_name: direction.source})
        out_ref[...] = (acc[...] / total[...]).astype(out_ref.dtype)
        lse_ref[...] = top[...] + mnp.log(total[...])

    shape, column = (*q.shape[:-1], v.shape[-1]), (*q.shape[:-1], 1)
    return pl.pallas_call(
        kernel, [struct(shape, q.dtype), struct(column, mnp.float32)],
        in_specs=[pl.BlockSpec(), WHOLE, WHOLE], out_specs=[pl.BlockSpec()] * 2,
        scratch_shapes=[
            pltpu.VMEM((2, *k.shape), k.dtype), pltpu.VMEM((2, *v.shape), v.dtype), DMA((2,)), DMA((2,)), DMA((2, 2)),
            REGULAR, pltpu.VMEM(shape, mnp.float32), pltpu.VMEM(column, mnp.float32), pltpu.VMEM(column, mnp.float32),
        ],
        compiler_params=collective(7), debug=debug,
    )(q, k, v)  # fmt: skip


def _backward(saved: Any, dout: Any, *, axis_name: str, causal: bool, debug: Any) -> tuple[Any, Any, Any]:
    """Keys and values go round again, and what their derivatives have come to goes with them, one step behind.

    After as many steps as there are devices, those are where they belong.
    """
    q, k, v, out, lse = saved
    rows, dim = q.shape[-2:]
    scale = 1 / sqrt(dim)
    delta = mnp.sum((out * dout).astype(mnp.float32), axis=-1, keepdims=True)

    def kernel(
        q_ref: Any, k_ref: Any, v_ref: Any, dout_ref: Any, lse_ref: Any, delta_ref: Any, dq_ref: Any, dk_ref: Any,
        dv_ref: Any, keys: Any, values: Any, dkeys: Any, dvalues: Any, local: Any, send: Any, receive: Any, room: Any,
        sums: Any,
    ) -> None:  # fmt: skip
        at = ring(axis_name)
        (direction,) = directions(at, False)
        target, source = {axis_name: direction.target}, {axis_name: direction.source}
        own = [pltpu.make_async_copy(k_ref, keys.at[0], local.at[0])]
        own.append(pltpu.make_async_copy(v_ref, values.at[0], local.at[1]))
        for copy in own:
            copy.start()
        meet(axis_name, at.left, at.right)
        sums[...] = mnp.zeros_like(sums)
        dkeys[0] = mnp.zeros(dkeys.shape[1:], mnp.float32)
        dvalues[0] = mnp.zeros(dvalues.shape[1:], mnp.float32)
        for copy in own:
            copy.wait()
        for step in range(at.size):
            slot, last = step % 2, step == at.size - 1
            copies = [
                pltpu.make_async_remote_copy(ref.at[slot], ref.at[1 - slot], send.at[n], receive.at[n, slot], target)
                for n, ref in enumerate((keys, values, dkeys, dvalues))
            ]
            if not last:
                if step > 0:
                    pltpu.semaphore_wait(room.at[0])
                for copy in copies[:2]:
                    copy.start()
            owner = direction.owner(at, step)

            @pl.when(owner <= at.me if causal else True)
            def _(owner: Any = owner, slot: int = slot) -> None:
                key, value, dresult = keys[slot], values[slot], dout_ref[...].astype(mnp.float32)
                scores = mnp.matmul(q_ref[...], mnp.swapaxes(key, -1, -2), preferred_element_type=mnp.float32)
                weights = mnp.exp(scores * scale - lse_ref[...])
                if causal:
                    allowed = _allowed(at, owner, rows, key.shape[-2])
                    weights = mnp.where(allowed, weights, mnp.zeros_like(weights))
                dweights = mnp.matmul(dresult, mnp.swapaxes(value.astype(mnp.float32), -1, -2))
                dscores = weights * (dweights - delta_ref[...]) * scale
                sums[...] += mnp.matmul(dscores, key.astype(mnp.float32))
                dkeys[slot] += mnp.matmul(mnp.swapaxes(dscores, -1, -2), q_ref[...].astype(mnp.float32))
                dvalues[slot] += mnp.matmul(mnp.swapaxes(weights, -1, -2), dresult)

            if at.size > 1:
                if step > 0:
                    pltpu.semaphore_wait(room.at[1])
                for copy in copies[2:]:
                    copy.start()
                for copy in copies if not last else copies[2:]:
                    copy.wait()
                if step < at.size - 2:
                    pltpu.semaphore_signal(room.at[0], device_id=source)
                if not last:
                    pltpu.semaphore_signal(room.at[1], device_id=source)
        home = at.size % 2 if at.size > 1 else 0
        dq_ref[...] = sums[...].astype(dq_ref.dtype)
        dk_ref[...] = dkeys[home].astype(dk_ref.dtype)
        dv_ref[...] = dvalues[home].astype(dv_ref.dtype)

    here = pl.BlockSpec()
    found = pl.pallas_call(
        kernel, [struct(x.shape, x.dtype) for x in (q, k, v)],
        in_specs=[here, WHOLE, WHOLE, here, here, here], out_specs=[here] * 3,
        scratch_shapes=[
            *(pltpu.VMEM((2, *x.shape), x.dtype) for x in (k, v)),
            *(pltpu.VMEM((2, *x.shape), mnp.float32) for x in (k, v)),
            DMA((2,)), DMA((4,)), DMA((4, 2)), REGULAR((2,)), pltpu.VMEM(q.shape, mnp.float32),
        ],
        compiler_params=collective(9), debug=debug,
    )(q, k, v, dout, lse, delta)  # fmt: skip
    return tuple(found)

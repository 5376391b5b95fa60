"""Attention over a sequence that devices share: softmax(q kᵀ / √d) v, keys and values going round a ring."""

from __future__ import annotations

from math import sqrt
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.online import add_block, require_attention, start
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, collective, directions, meet, ring, struct


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
    rows, dim = q.shape[-2:]
    scale = 1 / sqrt(dim)

    def kernel(
        q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, keys: Any, values: Any, local: Any, send: Any, receive: Any,
        room: Any, acc: Any, top: Any, total: Any,
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
            allowed = None
            if causal:
                shape = (rows, keys.shape[-2])
                place = lax.broadcasted_iota(mnp.int32, shape, 0) + at.me * rows
                allowed = lax.broadcasted_iota(mnp.int32, shape, 1) + owner * keys.shape[-2] <= place
            if not causal or owner <= at.me:
                add_block(q_ref[...], keys[slot], values[slot], acc, top, total, allowed, scale)
            if not last:
                for copy in copies:
                    copy.wait()
                if step < at.size - 2:
                    pltpu.semaphore_signal(room, device_id={axis_name: direction.source})
        out_ref[...] = (acc[...] / total[...]).astype(out_ref.dtype)

    shape = (*q.shape[:-1], v.shape[-1])
    return pl.pallas_call(
        kernel, struct(shape, q.dtype), in_specs=[pl.BlockSpec(), WHOLE, WHOLE], out_specs=pl.BlockSpec(),
        scratch_shapes=[
            pltpu.VMEM((2, *k.shape), k.dtype), pltpu.VMEM((2, *v.shape), v.dtype), DMA((2,)), DMA((2,)), DMA((2, 2)),
            REGULAR, pltpu.VMEM(shape, mnp.float32), pltpu.VMEM((*q.shape[:-1], 1), mnp.float32),
            pltpu.VMEM((*q.shape[:-1], 1), mnp.float32),
        ],
        compiler_params=collective(7), debug=debug,
    )(q, k, v)  # fmt: skip

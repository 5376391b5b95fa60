"""Attention: softmax(q kᵀ / √d) v without the matrix of scores, on one device and on a ring.

Scores come a block of keys at a time. Beside the sum so far, ``acc``, its weights' sum ``total`` and the largest score
``top`` are kept per row; when a larger one comes, what was summed is scaled by exp(old top - new top).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.operands import require
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, collective, directions, meet, ring, struct


def _require_attention(q: Any, k: Any, v: Any) -> None:
    """Refuse operands that do not fit each other."""
    ranks = len({len(a.shape) for a in (q, k, v)}) == 1 and len(q.shape) >= 2
    require(
        ranks
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        and q.shape[-1] == k.shape[-1]
        and k.shape[-2] == v.shape[-2]
        and min(*q.shape, *k.shape, *v.shape) > 0,
        f"Attention of q {list(q.shape)} to k {list(k.shape)} and v {list(v.shape)}.",
        "q and k have one last dim, k and v one number of keys, all three the same dims in front, and none is empty",
        "q of (…, rows, dim), k of (…, keys, dim), v of (…, keys, out)",
    )


def _add_block(q: Any, k: Any, v: Any, acc_ref: Any, top_ref: Any, total_ref: Any, allowed: Any, scale: float) -> None:
    """Add what a block of keys and values contributes; ``allowed`` masks scores, or is None."""
    scores = mnp.matmul(q, mnp.swapaxes(k, -1, -2), preferred_element_type=mnp.float32) * scale
    if allowed is not None:
        scores = mnp.where(allowed, scores, mnp.full_like(scores, -mnp.inf))
    top = mnp.maximum(top_ref[...], mnp.max(scores, axis=-1, keepdims=True))
    # A row that may look at nothing yet has no largest score.
    base = mnp.where(top == -mnp.inf, mnp.zeros_like(top), top)
    weights = mnp.exp(scores - base)
    faded = mnp.exp(top_ref[...] - base)
    total_ref[...] = total_ref[...] * faded + mnp.sum(weights, axis=-1, keepdims=True)
    acc_ref[...] = acc_ref[...] * faded + mnp.matmul(weights, v.astype(mnp.float32))
    top_ref[...] = top


def _start(acc_ref: Any, top_ref: Any, total_ref: Any) -> None:
    acc_ref[...] = mnp.zeros_like(acc_ref)
    total_ref[...] = mnp.zeros_like(total_ref)
    top_ref[...] = mnp.full(top_ref.shape, -mnp.inf, mnp.float32)


def flash_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, blocks: tuple[int, int] = (128, 128), debug: Any = None
) -> Any:
    """Attention of ``q`` (…, rows, dim) to ``k`` and ``v`` (…, keys, dim), by blocks of rows and keys.

    ``causal``: a row looks at keys up to its own place.

    >>> from meshwright.pallas import ops
    >>> q, v = mnp.zeros((2, 3, 4)), mnp.arange(24.0).reshape(2, 3, 4)
    >>> ops.flash_attention(q, q, v, causal=True)[0, :, 0]
    Array([0., 2., 4.], dtype=float32)
    """
    _require_attention(q, k, v)
    *front, rows, dim = q.shape
    keys = k.shape[-2]
    flat = [mnp.reshape(a, (-1, *a.shape[-2:])) for a in (q, k, v)]
    heads, out_dim = flat[0].shape[0], v.shape[-1]
    bq, bk = min(blocks[0], rows), min(blocks[1], keys)
    scale = 1 / sqrt(dim)

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, acc: Any, top: Any, total: Any) -> None:
        row, key = pl.program_id(1), pl.program_id(2)

        @pl.when(key == 0)
        def _() -> None:
            _start(acc, top, total)

        @pl.when(not causal or key * bk <= row * bq + bq - 1)
        def _() -> None:
            places = lax.broadcasted_iota(mnp.int32, (bq, bk), 1) + key * bk
            allowed = places < keys if keys % bk else None
            if causal:
                below = places <= lax.broadcasted_iota(mnp.int32, (bq, bk), 0) + row * bq
                allowed = below if allowed is None else mnp.logical_and(allowed, below)
            values = v_ref[...]
            if keys % bk:
                inside = lax.broadcasted_iota(mnp.int32, values.shape, 0) + key * bk < keys
                values = mnp.where(inside, values, mnp.zeros_like(values))
            _add_block(q_ref[...], k_ref[...], values, acc, top, total, allowed, scale)

        @pl.when(key == pl.num_programs(2) - 1)
        def _() -> None:
            out_ref[...] = (acc[...] / total[...]).astype(out_ref.dtype)

    found = pl.pallas_call(
        kernel, struct((heads, rows, out_dim), q.dtype), grid=(heads, pl.cdiv(rows, bq), pl.cdiv(keys, bk)),
        in_specs=[
            pl.BlockSpec((None, bq, dim), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, bk, dim), lambda h, i, j: (h, j, 0)),
            pl.BlockSpec((None, bk, out_dim), lambda h, i, j: (h, j, 0)),
        ],
        out_specs=pl.BlockSpec((None, bq, out_dim), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[pltpu.VMEM((bq, out_dim), mnp.float32)] + [pltpu.VMEM((bq, 1), mnp.float32)] * 2,
        debug=debug,
    )(*flat)  # fmt: skip
    return found.reshape(*front, rows, out_dim)


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
    _require_attention(q, k, v)
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
        _start(acc, top, total)
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
                _add_block(q_ref[...], keys[slot], values[slot], acc, top, total, allowed, scale)
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

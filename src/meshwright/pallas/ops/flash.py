"""Attention on one device, forward and backward, without the matrix of scores.

Forward, the logarithm of each row's sum of weights is kept, ``lse``; backward, the weights of a block are computed
again from it, exp(scores - lse), and every block of queries and of keys adds up its own derivative.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.api.custom import custom_vjp
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.online import add_block, require_attention, start
from meshwright.pallas.ops.ring import struct


class _Blocks(NamedTuple):
    """How rows and keys are cut, and which scores count."""

    rows: int
    keys: int
    bq: int
    bk: int
    causal: bool
    scale: float

    def skips(self, row: Any, key: Any) -> Any:
        """Whether no score of a block counts."""
        return self.causal and key * self.bk > row * self.bq + self.bq - 1

    def allowed(self, row: Any, key: Any) -> Any:
        """Which scores of a block count; None for all."""
        shape = (self.bq, self.bk)
        places = lax.broadcasted_iota(mnp.int32, shape, 1) + key * self.bk
        found = places < self.keys if self.keys % self.bk else None
        if self.causal:
            below = places <= lax.broadcasted_iota(mnp.int32, shape, 0) + row * self.bq
            found = below if found is None else mnp.logical_and(found, below)
        return found

    def inside(self, values: Any, block: Any, size: int) -> Any:
        """A block, zero beyond the operand's ``size`` rows: what stands there is arbitrary."""
        if size % values.shape[0] == 0:
            return values
        place = lax.broadcasted_iota(mnp.int32, values.shape, 0) + block * values.shape[0]
        return mnp.where(place < size, values, mnp.zeros_like(values))


def flash_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, blocks: tuple[int, int] = (128, 128), debug: Any = None
) -> Any:
    """Attention of ``q`` (…, rows, dim) to ``k`` and ``v`` (…, keys, dim), by blocks of rows and keys; differentiable.

    ``causal``: a row looks at keys up to its own place.

    >>> from meshwright.pallas import ops
    >>> q, v = mnp.zeros((2, 3, 4)), mnp.arange(24.0).reshape(2, 3, 4)
    >>> ops.flash_attention(q, q, v, causal=True)[0, :, 0]
    Array([0., 2., 4.], dtype=float32)
    """
    require_attention(q, k, v)
    *front, rows, dim = q.shape
    keys = k.shape[-2]
    flat = [mnp.reshape(a, (-1, *a.shape[-2:])) for a in (q, k, v)]
    cut = _Blocks(rows, keys, min(blocks[0], rows), min(blocks[1], keys), causal, 1 / sqrt(dim))
    found = _attention(cut, debug)(*flat)
    return found.reshape(*front, rows, v.shape[-1])


def _attention(cut: _Blocks, debug: Any) -> Any:
    """Attention by heads, with its derivative."""

    @custom_vjp
    def attend(q: Any, k: Any, v: Any) -> Any:
        return _forward(cut, debug, q, k, v)[0]

    def forward(q: Any, k: Any, v: Any) -> Any:
        out, lse = _forward(cut, debug, q, k, v)
        return out, (q, k, v, out, lse)

    attend.defvjp(forward, partial(_backward, cut, debug))
    return attend


def _specs(cut: _Blocks, keys_first: bool) -> tuple[Any, Any]:
    """Blocks by rows and by keys, where the last axis of the grid is the one that is summed over."""

    def by_rows(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, cut.bq, width), lambda h, i, j: (h, j if keys_first else i, 0))

    def by_keys(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, cut.bk, width), lambda h, i, j: (h, i if keys_first else j, 0))

    return by_rows, by_keys


def _forward(cut: _Blocks, debug: Any, q: Any, k: Any, v: Any) -> Any:
    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, lse_ref: Any, acc: Any, top: Any, total: Any) -> None:
        row, key = pl.program_id(1), pl.program_id(2)

        @pl.when(key == 0)
        def _() -> None:
            start(acc, top, total)

        @pl.when(mnp.logical_not(cut.skips(row, key)))
        def _() -> None:
            values = cut.inside(v_ref[...], key, cut.keys)
            add_block(q_ref[...], k_ref[...], values, acc, top, total, cut.allowed(row, key), cut.scale)

        @pl.when(key == pl.num_programs(2) - 1)
        def _() -> None:
            out_ref[...] = (acc[...] / total[...]).astype(out_ref.dtype)
            lse_ref[...] = top[...] + mnp.log(total[...])

    heads, width = q.shape[0], v.shape[-1]
    by_rows, by_keys = _specs(cut, False)
    return pl.pallas_call(
        kernel,
        [struct((heads, cut.rows, width), q.dtype), struct((heads, cut.rows, 1), mnp.float32)],
        grid=(heads, pl.cdiv(cut.rows, cut.bq), pl.cdiv(cut.keys, cut.bk)),
        in_specs=[by_rows(q.shape[-1]), by_keys(k.shape[-1]), by_keys(width)],
        out_specs=[by_rows(width), by_rows(1)],
        scratch_shapes=[pltpu.VMEM((cut.bq, width), mnp.float32)] + [pltpu.VMEM((cut.bq, 1), mnp.float32)] * 2,
        debug=debug,
    )(q, k, v)


def _weights(cut: _Blocks, q: Any, k: Any, lse: Any, row: Any, key: Any) -> Any:
    """The weights of a block, from the sums of the forward pass."""
    scores = mnp.matmul(q, k.T, preferred_element_type=mnp.float32) * cut.scale
    weights = mnp.exp(scores - lse)
    allowed = cut.allowed(row, key)
    return weights if allowed is None else mnp.where(allowed, weights, mnp.zeros_like(weights))


def _backward(cut: _Blocks, debug: Any, saved: Any, dout: Any) -> Any:
    q, k, v, out, lse = saved
    delta = mnp.sum((out * dout).astype(mnp.float32), axis=-1, keepdims=True)
    operands = q, k, v, dout, lse, delta
    heads, grid = q.shape[0], (pl.cdiv(cut.rows, cut.bq), pl.cdiv(cut.keys, cut.bk))

    def add(refs: Any, row: Any, key: Any) -> tuple[Any, ...]:
        """Of one block: queries, keys, derivative of the result, weights, and derivative of the scores."""
        q_ref, k_ref, v_ref, dout_ref, lse_ref, delta_ref = refs
        rows = [cut.inside(ref[...], row, cut.rows) for ref in (q_ref, dout_ref, lse_ref, delta_ref)]
        keys = [cut.inside(ref[...], key, cut.keys) for ref in (k_ref, v_ref)]
        weights = _weights(cut, rows[0], keys[0], rows[2], row, key)
        weights = cut.inside(weights, row, cut.rows)
        dscores = weights * (mnp.matmul(rows[1], keys[1].T, preferred_element_type=mnp.float32) - rows[3])
        return rows[0], keys[0], rows[1], weights, dscores * cut.scale

    def queries(*refs: Any) -> None:
        *given, dq_ref, acc = refs
        row, key = pl.program_id(1), pl.program_id(2)

        @pl.when(key == 0)
        def _() -> None:
            acc[...] = mnp.zeros_like(acc)

        @pl.when(mnp.logical_not(cut.skips(row, key)))
        def _() -> None:
            _, keys, _, _, dscores = add(given, row, key)
            acc[...] += mnp.matmul(dscores, keys.astype(mnp.float32))

        @pl.when(key == pl.num_programs(2) - 1)
        def _() -> None:
            dq_ref[...] = acc[...].astype(dq_ref.dtype)

    def keys_and_values(*refs: Any) -> None:
        *given, dk_ref, dv_ref, dk, dv = refs
        key, row = pl.program_id(1), pl.program_id(2)

        @pl.when(row == 0)
        def _() -> None:
            dk[...] = mnp.zeros_like(dk)
            dv[...] = mnp.zeros_like(dv)

        @pl.when(mnp.logical_not(cut.skips(row, key)))
        def _() -> None:
            queries, _, dout, weights, dscores = add(given, row, key)
            dk[...] += mnp.matmul(dscores.T, queries.astype(mnp.float32))
            dv[...] += mnp.matmul(weights.T, dout.astype(mnp.float32))

        @pl.when(row == pl.num_programs(2) - 1)
        def _() -> None:
            dk_ref[...], dv_ref[...] = dk[...].astype(dk_ref.dtype), dv[...].astype(dv_ref.dtype)

    def call(kernel: Any, outs: Any, keys_first: bool) -> Any:
        by_rows, by_keys = _specs(cut, keys_first)
        specs = [by_rows(q.shape[-1]), by_keys(k.shape[-1]), by_keys(v.shape[-1]), by_rows(v.shape[-1])]
        results = [(by_keys if keys_first else by_rows)(x.shape[-1]) for x in outs]
        size = cut.bk if keys_first else cut.bq
        return pl.pallas_call(
            kernel,
            [struct(x.shape, x.dtype) for x in outs],
            grid=(heads, *(grid[::-1] if keys_first else grid)),
            in_specs=[*specs, by_rows(1), by_rows(1)],
            out_specs=results,
            scratch_shapes=[pltpu.VMEM((size, x.shape[-1]), mnp.float32) for x in outs],
            debug=debug,
        )(*operands)

    return (*call(queries, [q], False), *call(keys_and_values, [k, v], True))

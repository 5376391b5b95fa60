"""Attention of queries to keys and values, and products of numbers that are scaled block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, convert, inexact, promote_operands
from meshwright.arrays.operands import value as to_value
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import one_of, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, multiply, subtract
from meshwright.numpy.contraction import einsum
from meshwright.numpy.dtypes import finfo
from meshwright.numpy.logic import either, greater_equal, less, less_equal, logical_and
from meshwright.numpy.mathematics import exp, log
from meshwright.numpy.reductions import max, sum
from meshwright.numpy.shapes import moveaxis
from meshwright.numpy.taking import repeat
from meshwright.ops import basic, elementwise
from meshwright.ops.shape import iota

_NAME = "nn.dot_product_attention"


def dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, bias: ArrayLike | None = None, mask: ArrayLike | None = None, *,
    scale: float | None = None, is_causal: bool = False, query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None, local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None, return_residual: bool = False,
) -> Any:  # fmt: skip
    """Attention of queries ``(…, T, N, H)`` to keys and values ``(…, S, K, H)``; N is a multiple of K.

    Lengths say how many queries, keys and values of each example there are, the rest being padding; a window, how
    many places before and after its own a query looks at. With ``return_residual``, the second result is the
    logarithm of the sum of the exponentials of each query, ``(…, T, N)``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> q, kv = mnp.ones((1, 5, 4, 8)), mnp.ones((1, 5, 2, 8))
    >>> mw.nn.dot_product_attention(q, kv, kv, is_causal=True).shape
    (1, 5, 4, 8)
    """
    is_causal = static_flag(is_causal, f"is_causal of {_NAME}")
    return_residual = static_flag(return_residual, f"return_residual of {_NAME}")
    one_of(implementation, (None, "xla", "cudnn"), f"implementation of {_NAME}")
    q, k, v = (inexact(x) for x in promote_operands((query, key, value)))
    if any(x.ndim < 3 for x in (q, k, v)):
        raise ShapeError(
            f"{_NAME} cannot take {', '.join(x.type.short() for x in (q, k, v))}.",
            where=here(),
            why="queries, keys and values have dims (…, length, heads, depth)",
            fix="x[:, None, :] adds a dim for one head",
        )
    _fit_together((query, key, value), [x.type for x in (q, k, v)])
    heads, groups = q.shape[-2], k.shape[-2]
    if not groups or heads % groups:
        raise ShapeError(
            f"{_NAME} cannot share {groups} keys among {heads} query heads.",
            where=here(),
            why=f"{heads} is not a multiple of {groups}",
            fix="as many query heads as key heads, or a multiple",
        )
    shape, depth = q.shape, q.shape[-1]
    # Query heads that share a key head stand together: N = K * G.
    q = basic.reshape(q, shape=(*shape[:-2], groups, heads // groups, depth))
    wide = dtypes.FLOAT32 if q.type.dtype.itemsize < 4 else None
    logits = einsum("...tkgh,...skh->...kgts", q, k, preferred_element_type=wide)
    logits = multiply(logits, 1 / math.sqrt(depth) if scale is None else scale)
    if bias is not None:
        logits = add(logits, _per_group(bias, heads, groups))
    masks = _masks(logits.shape, is_causal, local_window_size)
    if mask is not None:
        masks.append(_per_group(mask, heads, groups))
    batch = shape[:-3]
    counted = _lengths(query_seq_lengths, batch, shape[-3])
    for there, dim in ((counted, -2), (_lengths(key_value_seq_lengths, batch, k.shape[-3]), -1)):
        if there is not None:
            size = there.shape[-1]
            masks.append(basic.reshape(there, shape=(*batch, 1, 1, *((size, 1) if dim == -2 else (1, size)))))
    lowest = -0.7 * float(finfo(logits.type.dtype).max)
    for one in masks:
        logits = either(one, logits, lowest)
    peak = apply(elementwise.stop_gradient, (max(logits, -1, keepdims=True),), {})
    powers = exp(subtract(logits, peak))
    total = sum(powers, -1, keepdims=True)
    out = einsum("...kgts,...skh->...tkgh", convert(divide(powers, total), v.type.dtype), v)
    out = basic.reshape(out, shape=(*shape[:-1], v.shape[-1]))
    if counted is not None:
        out = either(basic.reshape(counted, shape=(*counted.shape, 1, 1)), out, 0.0)
    if not return_residual:
        return out
    residual = moveaxis(basic.reshape(add(log(total), peak), shape=(*batch, heads, shape[-3])), -1, -2)
    return out, convert(residual, q.type.dtype)


def _masks(shape: Shape, is_causal: bool, window: Any) -> list[Value]:
    """Which keys a query may look at by their places alone."""
    found = []
    rows, columns = (iota(dtype=dtypes.INT32, shape=shape[-2:], dim=d) for d in (0, 1))
    if is_causal:
        found.append(greater_equal(rows, columns))
    if window is not None:
        sides = window if isinstance(window, tuple | list) else (window, window)
        before, after = (static_int(n, f"local_window_size of {_NAME}") for n in sides)
        near = logical_and(greater_equal(columns, subtract(rows, before)), less_equal(columns, add(rows, after)))
        found.append(near)
    return found


def _lengths(given: ArrayLike | None, batch: Shape, size: int) -> Value | None:
    """Which places of each example are no padding."""
    if given is None:
        return None
    lengths = to_value(given)
    if not dtypes.is_integer(lengths.type.dtype) or lengths.shape != (batch or (1,)):
        why = f"there is one integer for each example, {(*batch,)} in all"
        refuse(_NAME, [lengths.type], why, "lengths of shape query.shape[:-3]")
    lengths = basic.reshape(lengths, shape=(*batch, 1))
    return less(iota(dtype=lengths.type.dtype, shape=(*batch, size), dim=len(batch)), lengths)


def _fit_together(given: Sequence[ArrayLike], types: Sequence[TensorType]) -> None:
    """Refuse queries, keys and values of different dtypes or batches, and those whose dims do not meet."""
    kinds = sorted({str(x.dtype) for x in given if hasattr(x, "dtype")})
    if len(kinds) > 1:
        why = f"they have one dtype, and here are {' and '.join(kinds)}"
        refuse(_NAME, types, why, "key.astype(query.dtype)")
    q, k, v = (t.shape for t in types)
    if not q[:-3] == k[:-3] == v[:-3] or q[-1] != k[-1] or k[-3:-1] != v[-3:-1]:
        why = "with queries (…, T, N, H), keys are (…, S, K, H) and values (…, S, K, any)"
        refuse(_NAME, types, why, "mnp.broadcast_to(key, (*query.shape[:-3], *key.shape[-3:]))")


def _per_group(x: ArrayLike, heads: int, groups: int) -> Value:
    """Something per head, (…, N or 1, T, S), with the heads of a group in a dim of their own."""
    x = to_value(x)
    x = basic.reshape(x, shape=(1,) * (3 - x.ndim) + x.shape) if x.ndim < 3 else x
    lead, count, rest = x.shape[:-3], x.shape[-3], x.shape[-2:]
    split_ = (groups, heads // groups) if count == heads else (1, 1)
    return basic.reshape(x, shape=(*lead, *split_, *rest))


def scaled_matmul(
    lhs: ArrayLike, rhs: ArrayLike, lhs_scales: ArrayLike, rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = dtypes.FLOAT32,
) -> Value:  # fmt: skip
    """The products of matrices ``(B, M, K)`` and ``(B, N, K)`` whose rows are scaled block by block.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> a, b = mnp.array([[[1.0, 2.0, 3.0]]]), mnp.array([[[4.0, 5.0, 6.0]]])
    >>> mw.nn.scaled_matmul(a, b, mnp.full((1, 1, 1), 0.5), mnp.full((1, 1, 1), 0.5))
    Array([[[8.]]], dtype=float32)
    """
    a, b, x, y = (to_value(v) for v in (lhs, rhs, lhs_scales, rhs_scales))
    fit = a.ndim == b.ndim == x.ndim == y.ndim == 3 and a.shape[::2] == b.shape[::2]
    for factor, scales in ((a, x), (b, y)):
        blocks = scales.shape[-1] if scales.ndim else 0
        fit = fit and factor.shape[:2] == scales.shape[:2] and bool(blocks) and not factor.shape[-1] % blocks
    fit = fit and x.shape[-1] == y.shape[-1]
    if not fit:
        why = "(B, M, K) and (B, N, K) have the scales (B, M, K / block) and (B, N, K / block)"
        refuse("nn.scaled_matmul", [v.type for v in (a, b, x, y)], why, "scales of shape (B, M, 1)")
    scaled = [
        multiply(convert(v, dtypes.FLOAT32), repeat(convert(s, dtypes.FLOAT32), v.shape[-1] // s.shape[-1], -1))
        for v, s in ((a, x), (b, y))
    ]
    return convert(einsum("bmk,bnk->bmn", *scaled), as_dtype(preferred_element_type))

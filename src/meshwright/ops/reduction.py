"""Reductions over whole dims: extremes, products, bits, positions. The running ones come from ``cumulative``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.op import Linearity, Op, Operand, Sample, Value, define_op
from meshwright.core.types import TensorType
from meshwright.ops.basic import (
    Derivatives,
    broadcast_in_dim,
    convert,
    mul,
    reduce_batch,
    reduce_cost,
    reduce_factors,
    reduce_samples,
    reduce_sum,
    reduce_type,
    reduced_memory,
    reshape,
    transpose,
)
from meshwright.ops.cumulative import (
    NARROW,
    along_axis_batch,
    along_axis_factors,
    check_axis,
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    through_f32,
    with_a_zero,
)
from meshwright.ops.elementwise import div, eq, select
from meshwright.ops.layout import whole_along
from meshwright.ops.rules import bad_operands, check_dtype, not_linear, zero_jvp
from meshwright.ops.shape import pad

__all__ = [
    "argmax",
    "argmin",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "highest",
    "lowest",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
]

_ORDERED = tuple(d for d in dtypes.ALL if not dtypes.is_complex(d))
_BITS = (dtypes.BOOL, *dtypes.INTEGERS)
_LARGEST_F8E4M3FN = 448.0  # which has no infinity


# Extremes


def lowest(dtype: DType) -> Any:
    """The identity of max: minus infinity, or the least value of a dtype that has none."""
    if dtype.kind == "b":
        return False
    if dtypes.is_integer(dtype):
        return np.iinfo(dtype).min
    return -_LARGEST_F8E4M3FN if dtype == dtypes.FLOAT8_E4M3FN else -np.inf


def highest(dtype: DType) -> Any:
    """The identity of min."""
    if dtype.kind == "b":
        return True
    if dtypes.is_integer(dtype):
        return np.iinfo(dtype).max
    return _LARGEST_F8E4M3FN if dtype == dtypes.FLOAT8_E4M3FN else np.inf


def _extreme(name: str, identity: Callable[[DType], Any]) -> Callable[..., Any]:
    def evaluate(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        if not x.size:
            shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
            return xp.full(shape, identity(x.dtype), dtype=x.dtype)
        return through_f32(xp, x, lambda x: getattr(xp, name)(x, axis=axes)) if axes else x

    return evaluate


def _of_chosen(t: Value, out: Value, x: Value, axes: tuple[int, ...]) -> Value:
    """The mean of the tangents at the places where the extreme is taken."""
    kept = tuple(d for d in range(x.ndim) if d not in axes)
    chosen = eq(x, broadcast_in_dim(out, shape=x.shape, dims=kept))
    count = reduce_sum(convert(chosen, dtype=dtypes.INT32, weak=False), axes=axes)
    share = div(1.0, convert(count, dtype=x.dtype, weak=False))
    return mul(reduce_sum(select(chosen, t, 0.0), axes=axes), share)


reduce_max: Op = define_op(
    "reduce_max",
    type=reduce_type("reduce_max", dtypes.ALL),
    factors=reduce_factors("max"),
    linear=Linearity.NONE,
    jvp=Derivatives(_of_chosen),
    transpose=not_linear("reduce_max"),
    batch=reduce_batch,
    memory=reduced_memory,
    evaluate=_extreme("max", lowest),
    cost=reduce_cost,
    samples=reduce_samples,
)

reduce_min: Op = define_op(
    "reduce_min",
    type=reduce_type("reduce_min", dtypes.ALL),
    factors=reduce_factors("min"),
    linear=Linearity.NONE,
    jvp=Derivatives(_of_chosen),
    transpose=not_linear("reduce_min"),
    batch=reduce_batch,
    memory=reduced_memory,
    evaluate=_extreme("min", highest),
    cost=reduce_cost,
    samples=reduce_samples,
)


# Products


def _flatten(x: Value, axes: tuple[int, ...]) -> Value:
    """``x`` with ``axes`` merged into one last dim."""
    kept = tuple(d for d in range(x.ndim) if d not in axes)
    order = kept + axes
    if order != tuple(range(x.ndim)):
        x = transpose(x, permutation=order)
    if len(axes) == 1:
        return x
    shape = x.shape[: len(kept)]
    return reshape(x, shape=(*shape, prod(x.shape[len(kept) :])))


def _shift(x: Value, axis: int, by: int, fill: float) -> Value:
    """``x`` moved ``by`` places along ``axis``, with ``fill`` where nothing came."""
    none = (0,) * x.ndim
    low = tuple(by if d == axis else 0 for d in range(x.ndim))
    return pad(x, fill, low=low, high=tuple(-n for n in low), interior=none)


def _reduce_prod_tangent(t: Value, out: Value, x: Value, axes: tuple[int, ...]) -> Value:
    # d prod = sum_k t_k prod_{j != k} x_j, and the product of the others needs no division: it is that of those
    # before times that of those after.
    x, t = whole_along(x, axes), whole_along(t, axes)
    flat = _flatten(x, axes)
    last = flat.ndim - 1
    before = _shift(cumprod(flat, axis=last, reverse=False), last, 1, 1.0)
    after = _shift(cumprod(flat, axis=last, reverse=True), last, -1, 1.0)
    return reduce_sum(mul(_flatten(t, axes), mul(before, after)), axes=(last,))


reduce_prod: Op = define_op(
    "reduce_prod",
    type=reduce_type("reduce_prod", dtypes.NUMBERS),
    factors=reduce_factors("prod"),
    linear=Linearity.NONE,
    jvp=Derivatives(_reduce_prod_tangent),
    transpose=not_linear("reduce_prod"),
    batch=reduce_batch,
    memory=reduced_memory,
    evaluate=lambda xp, x, axes: through_f32(xp, x, lambda x: xp.prod(x, axis=axes, dtype=x.dtype)),
    cost=reduce_cost,
    dtypes=dtypes.NUMBERS,
    samples=lambda: [*reduce_samples(), Sample((Operand((3, 4)),), {"axes": (1,)}, prepare=with_a_zero)],
)


# Bits


def _of_bits(on_bools: str, on_integers: str) -> Callable[..., Any]:
    def evaluate(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        if x.dtype == dtypes.BOOL:
            return getattr(xp, on_bools)(x, axis=axes)
        return getattr(xp, on_integers).reduce(x, axis=axes) if axes else x

    return evaluate


def _bit_samples() -> list[Sample]:
    return [*reduce_samples(), Sample((Operand((3, 4), None, -100, 100),), {"axes": (0,)})]


reduce_and: Op = define_op(
    "reduce_and",
    type=reduce_type("reduce_and", _BITS),
    factors=reduce_factors("and"),
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("reduce_and"),
    batch=reduce_batch,
    memory=reduced_memory,
    evaluate=_of_bits("all", "bitwise_and"),
    cost=reduce_cost,
    dtypes=_BITS,
    samples=_bit_samples,
)

reduce_or: Op = define_op(
    "reduce_or",
    type=reduce_type("reduce_or", _BITS),
    factors=reduce_factors("or"),
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("reduce_or"),
    batch=reduce_batch,
    memory=reduced_memory,
    evaluate=_of_bits("any", "bitwise_or"),
    cost=reduce_cost,
    dtypes=_BITS,
    samples=_bit_samples,
)


# Positions


def _position_type(op: str) -> Callable[..., TensorType]:
    def rule(x: TensorType, axis: int, dtype: DType) -> TensorType:
        check_dtype(op, [x], x.dtype, _ORDERED)
        check_axis(op, x, axis)
        if not dtypes.is_integer(dtype):
            raise bad_operands(
                op, [x], f"a position is an integer, not {dtypes.short_name(dtype)}", "dtype=np.dtype('int32')"
            )
        if x.shape[axis] == 0:
            raise bad_operands(op, [x], f"dim {axis} is empty and has no position to return", "check x.size first")
        return TensorType(x.shape[:axis] + x.shape[axis + 1 :], dtype)

    return rule


def _position(name: str) -> Callable[..., Any]:
    def evaluate(xp: Any, x: Any, axis: int, dtype: DType) -> Any:
        if x.dtype.itemsize < 4 and x.dtype in NARROW:
            x = xp.astype(x, dtypes.FLOAT32)
        return xp.astype(getattr(xp, name)(x, axis=axis), dtype)

    return evaluate


def _position_samples() -> list[Sample]:
    def with_nan(arrays: list[Any]) -> list[Any]:
        x = arrays[0].copy()
        if dtypes.is_inexact(x.dtype):
            x[0, 1] = x[0, 2] = np.nan
        return [x]

    ties = Operand((4, 5), None, 0, 1)
    return [
        Sample((Operand((3, 4)),), {"axis": 1, "dtype": dtypes.INT32}),
        Sample((Operand((2, 3, 4)),), {"axis": 0, "dtype": dtypes.INT64}),
        Sample((ties,), {"axis": 0, "dtype": dtypes.INT32}, prepare=lambda arrays: [arrays[0].round()]),
        Sample((Operand((3, 4)),), {"axis": 1, "dtype": dtypes.UINT8}, prepare=with_nan),
    ]


argmax: Op = define_op(
    "argmax",
    type=_position_type("argmax"),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("argmax"),
    batch=along_axis_batch,
    split=Split(Across.EXTREME, "max"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_position("argmax"),
    cost=reduce_cost,
    dtypes=_ORDERED,
    samples=_position_samples,
)

argmin: Op = define_op(
    "argmin",
    type=_position_type("argmin"),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("argmin"),
    batch=along_axis_batch,
    split=Split(Across.EXTREME, "min"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_position("argmin"),
    cost=reduce_cost,
    dtypes=_ORDERED,
    samples=_position_samples,
)

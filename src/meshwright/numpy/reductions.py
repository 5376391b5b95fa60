"""Reductions, scans and statistics of ``meshwright.numpy``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    Axis,
    DTypeLike,
    as_bool,
    as_dtype,
    axes_of,
    axis_of,
    broadcast,
    broadcast_shapes,
    convert,
    is_number,
    promote_operands,
    promoted_values,
    strong,
    to_inexact,
    value,
)
from meshwright.arrays.refusals import one_number
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import mask_of, no_out, static_flag, static_size
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL, DType
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, maximum, minimum, multiply, square, subtract
from meshwright.numpy.logic import conjugate, either, greater, not_equal
from meshwright.numpy.mathematics import sqrt
from meshwright.ops import basic, cumulative, elementwise, reduction
from meshwright.ops import shape as shape_ops
from meshwright.ops.shape import slice_

_SMALL_FLOATS = frozenset(d for d in dtypes.FLOATS if d.itemsize < 4)


@lru_cache(maxsize=4096)
def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def _reduce(op: Op, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    out = apply(op, (x,), {"axes": axes})
    return apply(basic.reshape, (out,), {"shape": _kept(x.type.shape, axes)}) if keepdims else out


def _select_where(x: Value, where: ArrayLike | None, neutral: Any) -> Value:
    """``x`` with ``neutral`` at the places that do not count."""
    if where is None:
        return x
    mask = mask_of(where)
    if broadcast_shapes(mask.shape, x.shape) != x.shape:
        raise ShapeError(
            f"where= is {mask.type.short()}, and the array {x.type.short()}.",
            where=here(),
            why="it says of each element whether it counts, so it broadcasts to the shape of the array",
            fix="mnp.broadcast_to(x, where.shape) repeats the array",
        )
    return either(mask, x, convert(value(neutral), x.type.dtype))


@lru_cache(maxsize=256)
def _sum_dtype(dtype: DType, x64: bool) -> DType:
    """Small integers and booleans are summed in the default width."""
    if dtype == BOOL or (dtype in dtypes.SIGNED and dtype.itemsize < dtypes.default_int().itemsize):
        return dtypes.default_int()
    if dtype in dtypes.UNSIGNED and dtype.itemsize < dtypes.default_int().itemsize:
        return dtypes.canonical(dtypes.UINT64)
    return dtype


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum."""
    return _sum_dtype(dtype, dtypes.config._enable_x64)


def _sum_or_product(
    op: Op, a: ArrayLike, axis: Axis, dtype: DTypeLike, keepdims: Any, initial: Any, where: Any, promote: Any
) -> Value:
    name = "mnp.sum" if op is basic.reduce_sum else "mnp.prod"
    keepdims = static_flag(keepdims, f"keepdims of {name}")
    promote = static_flag(promote, f"promote_integers of {name}")
    x = strong(a if a.__class__ in VALUES else value(a))
    have = x.type.dtype
    target = as_dtype(dtype) if dtype is not None else sum_dtype(have) if promote else have
    # Halves are summed in float32: their own sums lose digits.
    computed = dtypes.FLOAT32 if target in _SMALL_FLOATS else target
    if have != computed:
        x = convert(x, computed)
    if where is not None:
        x = _select_where(x, where, 0 if op is basic.reduce_sum else 1)
    out = _reduce(op, x, axes_of(axis, x.type.ndim, name), keepdims)
    if initial is not None:
        combine = add if op is basic.reduce_sum else multiply
        out = combine(out, convert(_start(initial, name), computed, True))
    return out if computed == target else convert(out, target)


@compiled_in_kernels
def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Value:
    """The sum over some dims, or all.

    >>> import meshwright.numpy as mnp
    >>> mnp.sum(mnp.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Array([4., 6.], dtype=float32)
    """
    no_out(out, "mnp.sum")
    return _sum_or_product(basic.reduce_sum, a, axis, dtype, keepdims, initial, where, promote_integers)


@compiled_in_kernels
def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Value:
    """The product over some dims, or all."""
    no_out(out, "mnp.prod")
    return _sum_or_product(reduction.reduce_prod, a, axis, dtype, keepdims, initial, where, promote_integers)


def _start(initial: ArrayLike, name: str) -> Value:
    """What ``initial=`` of a reduction gives: one number."""
    found = value(initial)
    if found.ndim:
        raise ShapeError(
            f"{name} cannot start from {found.type.short()}.",
            where=here(),
            why="initial is one number",
            fix="initial=0",
        )
    return found


def _extreme(largest: bool, a: ArrayLike, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Value:
    x = strong(a if a.__class__ in VALUES else value(a))
    name = "mnp.max" if largest else "mnp.min"
    axes = axes_of(axis, x.type.ndim, name)
    if initial is None and 0 in [x.type.shape[d] for d in axes]:
        raise ShapeError(
            f"{name} of {x.type.short()} over dims {axes} is the extreme of nothing.",
            where=here(),
            why="a dim of size 0 has no largest or smallest element",
            fix=f"give a start: {name}(x, axis, initial=0)",
        )
    if where is not None:
        if initial is None:
            raise ShapeError(
                f"{name} with where= needs initial=.",
                where=here(),
                why="where no element counts there is no result",
                fix=f"{name}(x, where=mask, initial={'-' if largest else ''}mnp.inf)",
            )
        x = _select_where(x, where, initial)
    if x.type.dtype == BOOL:
        op = reduction.reduce_or if largest else reduction.reduce_and
    else:
        op = reduction.reduce_max if largest else reduction.reduce_min
    out = _reduce(op, x, axes, keepdims)
    if initial is not None:
        out = (maximum if largest else minimum)(out, convert(_start(initial, name), out.type.dtype, True))
    return out


@compiled_in_kernels
def max(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Value:
    """The largest element; NaN if there is one."""
    keepdims = static_flag(keepdims, "keepdims of mnp.max")
    no_out(out, "mnp.max")
    return _extreme(True, a, axis, keepdims, initial, where)


@compiled_in_kernels
def min(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Value:
    """The smallest element; NaN if there is one."""
    keepdims = static_flag(keepdims, "keepdims of mnp.min")
    no_out(out, "mnp.min")
    return _extreme(False, a, axis, keepdims, initial, where)


amax, amin = max, min


def ptp(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False) -> Value:
    """The largest element minus the smallest."""
    keepdims = static_flag(keepdims, "keepdims of mnp.ptp")
    no_out(out, "mnp.ptp")
    return subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


@compiled_in_kernels
def all(
    a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
) -> Value:
    """Whether every element is nonzero."""
    keepdims = static_flag(keepdims, "keepdims of mnp.all")
    no_out(out, "mnp.all")
    x = _select_where(as_bool(a), where, True)
    return _reduce(reduction.reduce_and, x, axes_of(axis, x.ndim, "mnp.all"), keepdims)


@compiled_in_kernels
def any(
    a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
) -> Value:
    """Whether some element is nonzero."""
    keepdims = static_flag(keepdims, "keepdims of mnp.any")
    no_out(out, "mnp.any")
    x = _select_where(as_bool(a), where, False)
    return _reduce(reduction.reduce_or, x, axes_of(axis, x.ndim, "mnp.any"), keepdims)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Value:
    """How many elements are nonzero."""
    keepdims = static_flag(keepdims, "keepdims of mnp.count_nonzero")
    return sum(as_bool(a), axis, dtypes.default_int(), keepdims=keepdims)


def _count(x: Value, axes: tuple[int, ...], where: ArrayLike | None, keepdims: bool) -> Any:
    """How many elements a mean is over: a number, or an array where some do not count."""
    if where is None:
        return math.prod(x.type.shape[d] for d in axes)
    return sum(broadcast(mask_of(where), x.shape), axes, dtypes.default_int(), keepdims=keepdims)


@compiled_in_kernels
def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Value:
    """The mean over some dims, or all; of integers, a float."""
    keepdims = static_flag(keepdims, "keepdims of mnp.mean")
    no_out(out, "mnp.mean")
    x = a if a.__class__ in VALUES else value(a)
    target = to_inexact(x.type.dtype) if dtype is None else as_dtype(dtype)
    computed = dtypes.FLOAT32 if target in _SMALL_FLOATS else target
    axes = axes_of(axis, x.type.ndim, "mnp.mean")
    total = sum(convert(x, computed), axes, keepdims=keepdims, where=where)
    return convert(divide(total, _count(x, axes, where, keepdims)), target)


_mean = mean  # where a parameter has its name


def average(
    a: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The mean, weighted by ``weights``."""
    returned = static_flag(returned, "returned of mnp.average")
    keepdims = static_flag(keepdims, "keepdims of mnp.average")
    x = value(a)
    if weights is None:
        found = mean(x, axis, keepdims=keepdims)
        total: Value = convert(value(x.size // (found.size or 1)), found.type.dtype)
    else:
        x, w = (value(v) for v in promote_operands((x, weights), inexact=True))
        if w.shape != x.shape:
            of_one_dim = axis is not None and not isinstance(axis, tuple) and w.ndim == 1
            if not of_one_dim or w.shape[0] != x.shape[axis_of(axis, x.ndim, "mnp.average")]:
                raise ShapeError(
                    f"mnp.average cannot weigh {x.type.short()} by {w.type.short()}.",
                    where=here(),
                    why="weights have the shape of the array, or of its one dim axis=",
                    fix="mnp.average(x, axis=0, weights=w) with one weight per row",
                )
            d = axis_of(axis, x.ndim, "mnp.average")
            w = basic.broadcast_in_dim(w, shape=x.shape, dims=(d,))
        total = sum(w, axis, keepdims=keepdims)
        found = divide(sum(multiply(x, w), axis, keepdims=keepdims), total)
    return (found, broadcast(total, found.shape)) if returned else found


def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Value:
    """The variance: the mean square distance from the mean, over ``n - ddof``."""
    keepdims = static_flag(keepdims, "keepdims of mnp.var")
    no_out(out, "mnp.var")
    x = value(a)
    have = to_inexact(x.type.dtype)
    target = dtypes.real_part(have) if dtype is None else as_dtype(dtype)
    computed = dtypes.FLOAT32 if have in _SMALL_FLOATS else have
    axes = axes_of(axis, x.type.ndim, "mnp.var")
    x = strong(convert(x, computed))
    middle = _mean(x, axes, keepdims=True, where=where) if mean is None else convert(value(mean), computed)
    centered = subtract(x, middle)
    if dtypes.is_complex(computed):
        squares = elementwise.real(multiply(centered, conjugate(centered)))
    else:
        squares = square(centered)
    count = _count(x, axes, where, keepdims)
    if correction is not None and not (is_number(ddof) and ddof == 0):
        raise ShapeError(
            f"mnp.var is given ddof={ddof!r} and correction={correction!r}.",
            where=here(),
            why="both say what is taken from the number of elements",
            fix=f"correction={correction!r} alone",
        )
    offset = one_number(ddof if correction is None else correction, "ddof of mnp.var")
    total = sum(squares, axes, keepdims=keepdims, where=where)
    degrees = subtract(count, offset)
    enough = greater(degrees, 0)  # divided by 1 elsewhere, so that the derivative there is 0 and not 0 / 0
    return convert(either(enough, divide(total, either(enough, degrees, 1)), math.nan), target)


def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Value:
    """The standard deviation: the square root of the variance."""
    keepdims = static_flag(keepdims, "keepdims of mnp.std")
    no_out(out, "mnp.std")
    return sqrt(var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction))


# Positions


def _arg_extreme(op: Op, a: ArrayLike, axis: int | None, keepdims: bool) -> Value:
    x = value(a)
    name = f"mnp.{op.name}"
    rank = x.ndim
    if x.type.dtype == BOOL:
        x = convert(x, dtypes.UINT8)
    if axis is None:
        x, dim = basic.reshape(x, shape=(x.size,)), 0
    else:
        dim = axis_of(axis, rank, name)
    if x.shape[dim] == 0:
        raise ShapeError(
            f"{name} of {x.type.short()} is the place of nothing.",
            where=here(),
            why=f"dim {dim} has size 0",
            fix="check x.size first",
        )
    out = op(x, axis=dim, dtype=dtypes.default_int())
    if keepdims:
        shape = (1,) * rank if axis is None else (*x.shape[:dim], 1, *x.shape[dim + 1 :])
        out = basic.reshape(out, shape=shape)
    return out


def argmax(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Value:
    """The place of the first largest element, in the flattened array or along ``axis``."""
    keepdims = static_flag(keepdims, "keepdims of mnp.argmax")
    no_out(out, "mnp.argmax")
    return _arg_extreme(reduction.argmax, a, axis, keepdims)


def argmin(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Value:
    """The place of the first smallest element, in the flattened array or along ``axis``."""
    keepdims = static_flag(keepdims, "keepdims of mnp.argmin")
    no_out(out, "mnp.argmin")
    return _arg_extreme(reduction.argmin, a, axis, keepdims)


# Scans


def _scan(op: Op, a: ArrayLike, axis: int | None, dtype: DTypeLike, reverse: bool = False) -> Value:
    x = strong(value(a))
    if axis is None:
        x, axis = basic.reshape(x, shape=(x.size,)), 0
    dim = axis_of(axis, x.ndim, f"mnp.{op.name}")
    target = x.type.dtype if dtype is None else as_dtype(dtype)
    if target == BOOL:
        x = convert(x, dtypes.default_int())
        out = op(x, axis=dim, reverse=reverse)
        return out if dtype is None else as_bool(out)
    return op(convert(x, target), axis=dim, reverse=reverse)


def cumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The sums of the elements up to each place.

    >>> import meshwright.numpy as mnp
    >>> mnp.cumsum(mnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    no_out(out, "mnp.cumsum")
    return _scan(cumulative.cumsum, a, axis, dtype)


def cumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The products of the elements up to each place."""
    no_out(out, "mnp.cumprod")
    return _scan(cumulative.cumprod, a, axis, dtype)


def diff(
    a: ArrayLike, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Value:
    """The differences of neighbours, taken ``n`` times, of ``prepend``, ``a`` and ``append`` one after the other."""
    x = value(a)
    d = axis_of(axis, x.ndim, "mnp.diff")
    if prepend is not None or append is not None:
        parts = promoted_values(*(v for v in (prepend, a, append) if v is not None))
        x = parts[0 if prepend is None else 1]
        one = (*x.shape[:d], 1, *x.shape[d + 1 :])
        x = shape_ops.concatenate(*(v if v.ndim else broadcast(v, one) for v in parts), dim=d)
    for _ in range(static_size(n, "n of mnp.diff")):
        zero, size = (0,) * x.ndim, x.shape[d]
        if size == 0:
            return x
        later = slice_(x, starts=(*zero[:d], 1, *zero[d + 1 :]), limits=x.shape, strides=(1,) * x.ndim)
        limits = (*x.shape[:d], size - 1, *x.shape[d + 1 :])
        earlier = slice_(x, starts=zero, limits=limits, strides=(1,) * x.ndim)
        x = not_equal(later, earlier) if x.type.dtype == BOOL else subtract(later, earlier)
    return x

"""Reductions of ``meshwright.numpy`` that leave out NaN."""

from __future__ import annotations

import math

from meshwright.arrays.operands import ArrayLike, Axis, DTypeLike, broadcast, value
from meshwright.arrays.static import mask_of, no_out, static_flag
from meshwright.core import dtypes
from meshwright.core.trace import Value
from meshwright.numpy.logic import either, isnan, logical_and, logical_not
from meshwright.numpy.mathematics import sqrt
from meshwright.numpy.reductions import all, argmax, argmin, cumprod, cumsum, max, mean, min, prod, sum, var
from meshwright.ops import basic


def nansum(
    a: ArrayLike, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False,
    initial: ArrayLike | None = None, where: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The sum of the elements that are not NaN.

    >>> import meshwright.numpy as mnp
    >>> mnp.nansum(mnp.array([1.0, mnp.nan, 2.0]))
    Array(3., dtype=float32)
    """
    no_out(out, "mnp.nansum")
    return sum(_without_nan(value(a), 0), axis, dtype, keepdims=keepdims, initial=initial, where=where)


def nanprod(
    a: ArrayLike, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False,
    initial: ArrayLike | None = None, where: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The product of the elements that are not NaN."""
    no_out(out, "mnp.nanprod")
    return prod(_without_nan(value(a), 1), axis, dtype, keepdims=keepdims, initial=initial, where=where)


def _without_nan(x: Value, replacement: float) -> Value:
    if not dtypes.is_inexact(x.type.dtype):
        return x
    return either(isnan(x), basic.scalar_like(x, replacement), x)


def _counted(x: Value, where: ArrayLike | None) -> Value:
    """Which elements a mean is over: those that are numbers and that ``where`` names."""
    numbers = logical_not(isnan(x))
    return numbers if where is None else logical_and(numbers, broadcast(mask_of(where), x.shape))


def nanmean(
    a: ArrayLike, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The mean of the elements that are not NaN."""
    no_out(out, "mnp.nanmean")
    x = value(a)
    return mean(_without_nan(x, 0), axis, dtype, keepdims=keepdims, where=_counted(x, where))


def nanvar(
    a: ArrayLike, axis: Axis = None, dtype: DTypeLike = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    where: ArrayLike | None = None, mean: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The variance of the elements that are not NaN."""
    no_out(out, "mnp.nanvar")
    x = value(a)
    return var(_without_nan(x, 0), axis, dtype, None, ddof, keepdims, where=_counted(x, where), mean=mean)


def nanstd(
    a: ArrayLike, axis: Axis = None, dtype: DTypeLike = None, out: None = None, ddof: float = 0, keepdims: bool = False,
    where: ArrayLike | None = None, mean: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The standard deviation of the elements that are not NaN."""
    no_out(out, "mnp.nanstd")
    return sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, where, mean))


def nanmax(
    a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False, initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The largest element that is not NaN."""
    no_out(out, "mnp.nanmax")
    return _extreme(True, a, axis, keepdims, initial, where)


def nanmin(
    a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False, initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Value:  # fmt: skip
    """The smallest element that is not NaN."""
    no_out(out, "mnp.nanmin")
    return _extreme(False, a, axis, keepdims, initial, where)


def _extreme(
    largest: bool, a: ArrayLike, axis: Axis, keepdims: bool, initial: ArrayLike | None, where: ArrayLike | None
) -> Value:
    """The extreme of the numbers; NaN where there are none, unless a start is given."""
    x = value(a)
    reduce, end = (max, -math.inf) if largest else (min, math.inf)
    found = reduce(_without_nan(x, end), axis, keepdims=keepdims, initial=initial, where=where)
    if initial is not None or not dtypes.is_inexact(x.dtype):
        return found
    return either(all(isnan(x), axis, keepdims=keepdims), math.nan, found)


def nanargmax(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Value:
    """The place of the largest element that is not NaN; -1 where all are."""
    keepdims = static_flag(keepdims, "keepdims of mnp.nanargmax")
    no_out(out, "mnp.nanargmax")
    x = value(a)
    found = argmax(_without_nan(x, -math.inf), axis, keepdims=keepdims)
    return either(all(isnan(x), axis, keepdims=keepdims), -1, found)


def nanargmin(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Value:
    """The place of the smallest element that is not NaN; -1 where all are."""
    keepdims = static_flag(keepdims, "keepdims of mnp.nanargmin")
    no_out(out, "mnp.nanargmin")
    x = value(a)
    found = argmin(_without_nan(x, math.inf), axis, keepdims=keepdims)
    return either(all(isnan(x), axis, keepdims=keepdims), -1, found)


def nancumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The sums up to each place, NaN counted as zero."""
    no_out(out, "mnp.nancumsum")
    return cumsum(_without_nan(value(a), 0), axis, dtype)


def nancumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The products up to each place, NaN counted as one."""
    no_out(out, "mnp.nancumprod")
    return cumprod(_without_nan(value(a), 1), axis, dtype)

"""Quantiles, medians and interpolation of ``meshwright.numpy``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshwright.arrays.operands import (
    ArrayLike,
    Axis,
    axes_of,
    broadcast,
    convert,
    strong,
    to_inexact,
    value,
)
from meshwright.arrays.refusals import one_number, ordered, refuse
from meshwright.arrays.static import no_out, one_of, placed, static_flag
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, clip, divide, multiply, remainder, subtract
from meshwright.numpy.logic import (
    absolute,
    either,
    equal,
    isnan,
    less,
    less_equal,
    logical_not,
    logical_or,
)
from meshwright.numpy.mathematics import ceil, floor
from meshwright.numpy.order import argsort, searchsorted, sort
from meshwright.numpy.reductions import any as any_
from meshwright.numpy.reductions import cumsum, sum
from meshwright.numpy.shapes import concatenate, moveaxis, ravel
from meshwright.numpy.taking import take, take_along_axis
from meshwright.ops import basic, sorting

# Quantiles


def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Value:
    """The value below which a share ``q`` of the elements lies.

    >>> import meshwright.numpy as mnp
    >>> mnp.quantile(mnp.array([1.0, 2.0, 3.0, 4.0]), 0.5)
    Array(2.5, dtype=float32)
    """
    keepdims = static_flag(keepdims, "keepdims of mnp.quantile")
    no_out(out, "mnp.quantile")
    no_overwriting(overwrite_input, "mnp.quantile")
    return _quantile(a, q, axis, method, keepdims, weights, ignore_nan=False)


def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Value:
    """The quantile of the elements that are not NaN."""
    keepdims = static_flag(keepdims, "keepdims of mnp.nanquantile")
    no_out(out, "mnp.nanquantile")
    no_overwriting(overwrite_input, "mnp.nanquantile")
    return _quantile(a, q, axis, method, keepdims, weights, ignore_nan=True)


def no_overwriting(overwrite_input: Any, name: str) -> None:
    """Refuse to write over an argument: arrays do not change."""
    if static_flag(overwrite_input, f"overwrite_input of {name}"):
        raise ShapeError(
            f"{name} cannot write over its argument.",
            where=here(),
            why="arrays do not change",
            fix=f"{name}(x, …) without overwrite_input",
        )


_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def _quantile(
    a: ArrayLike, q: ArrayLike, axis: Axis, method: str, keepdims: bool, weights: ArrayLike | None, ignore_nan: bool
) -> Value:
    one_of(method, _METHODS, "method of mnp.quantile")
    if weights is not None:
        one_of(method, ("inverted_cdf",), "method of mnp.quantile with weights")
    x, share = value(a), value(q)
    if dtypes.is_complex(x.type.dtype) or dtypes.is_complex(share.type.dtype):
        raise ShapeError(
            f"mnp.quantile cannot take {x.type.short()} and {share.type.short()}.",
            where=here(),
            why="it takes real numbers, which have an order",
            fix="mnp.quantile(x.real, q)",
        )
    dtype = to_inexact(x.type.dtype)
    x, share = strong(convert(x, dtype)), strong(convert(share, dtype))
    if axis is None and not x.ndim:
        x = basic.reshape(x, shape=(1,))
    rank = x.ndim
    axes = axes_of(axis, rank, "mnp.quantile")
    kept = tuple(d for d in range(rank) if d not in axes)
    lead = tuple(x.shape[d] for d in kept)
    if not ignore_nan and any(x.shape[d] == 0 for d in axes):
        raise ShapeError(
            f"mnp.quantile of {x.type.short()} over dims {axes} is a quantile of nothing.",
            where=here(),
            why="a dim of size 0 has no elements to lie between",
            fix="mnp.where(x.size, …), or leave out what is empty",
        )
    if share.ndim > 1:
        raise ShapeError(
            f"mnp.quantile cannot take q={share.type.short()}.",
            where=here(),
            why="it is a number or has one dim",
            fix="q.ravel()",
        )
    flat: Callable[[Value], Value] = lambda v: basic.reshape(
        basic.transpose(v, permutation=(*kept, *axes)) if axes else v,
        shape=(*lead, math.prod(v.shape[d] for d in axes)),
    )
    if weights is not None:
        found = _of_weighted(flat(x), flat(_weights(weights, x, axes)), ravel(share), ignore_nan)
    else:
        found = _of_rows(sort(flat(x)), ravel(share), method, ignore_nan)
    found = basic.reshape(moveaxis(found, -1, 0), shape=(*share.shape, *lead))
    if keepdims:
        shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
        found = basic.reshape(found, shape=(*share.shape, *shape))
    return found


def _of_rows(rows: Value, share: Value, method: str, ignore_nan: bool) -> Value:
    """Quantiles of sorted rows, one column per share."""
    dtype, count = rows.type.dtype, rows.shape[-1]
    missing = isnan(rows)
    valid = sum(logical_not(missing), -1, keepdims=True)
    total = convert(valid, dtype) if ignore_nan else basic.scalar_like(rows, count)
    if method == "inverted_cdf":
        place = subtract(ceil(multiply(share, total)), 1.0)
    else:
        place = multiply(share, subtract(total, 1.0))
    place = broadcast(place, (*rows.shape[:-1], share.size))
    below, above = floor(place), ceil(place)
    kind = dtypes.default_int()
    low, high = (take_along_axis(rows, clip(convert(p, kind), 0, count - 1), -1, mode="clip") for p in (below, above))
    found = _between(low, high, subtract(place, below), method)
    bad = equal(valid, 0) if ignore_nan else any_(missing, -1, keepdims=True)
    return either(bad, math.nan, found)


def _of_weighted(rows: Value, weights: Value, share: Value, ignore_nan: bool) -> Value:
    """The first element up to which a share of the weight lies, one column per share."""
    missing = isnan(rows)
    if ignore_nan:
        weights = either(missing, 0.0, weights)
    rows, weights = sorting.sort(rows, weights, dim=rows.ndim - 1, num_keys=1)
    reached = cumsum(weights, -1)
    total = sum(weights, -1, keepdims=True)
    wanted = multiply(share, total)
    # An element without weight is none of those that are weighed.
    short = logical_or(less(reached[..., None, :], wanted[..., None]), equal(reached, 0)[..., None, :])
    place = clip(sum(short, -1), 0, rows.shape[-1] - 1)
    found = take_along_axis(rows, place, -1, mode="clip")
    bad = equal(total, 0) if ignore_nan else any_(missing, -1, keepdims=True)
    return either(bad, math.nan, found)


def _weights(weights: ArrayLike, x: Value, axes: tuple[int, ...]) -> Value:
    """The weight of every element, given for each or along the one dim that quantiles are taken over."""
    found = strong(convert(value(weights), x.type.dtype))
    if found.shape == x.shape:
        return found
    if len(axes) == 1 and found.shape == (x.shape[axes[0]],):
        return basic.broadcast_in_dim(found, shape=x.shape, dims=axes)
    why = "each element has one weight, or each place of the one dim that quantiles are over"
    refuse("mnp.quantile", [x.type, found.type], why, "weights of the shape of x")


def _between(low: Value, high: Value, fraction: Value, method: str) -> Value:
    match method:
        case "lower" | "inverted_cdf":
            return low
        case "higher":
            return high
        case "midpoint":
            return multiply(add(low, high), 0.5)
        case "nearest":
            return either(less_equal(fraction, 0.5), low, high)
    return add(multiply(low, subtract(1.0, fraction)), multiply(high, fraction))


def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
    out_sharding: Any = None,
) -> Value:
    """The value below which ``q`` percent of the elements lie."""
    keepdims = static_flag(keepdims, "keepdims of mnp.percentile")
    no_out(out, "mnp.percentile")
    no_overwriting(overwrite_input, "mnp.percentile")
    found = quantile(a, divide(q, 100), axis, method=method, keepdims=keepdims, weights=weights)
    return placed(found, None, out_sharding)


def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Value:
    """The percentile of the elements that are not NaN."""
    keepdims = static_flag(keepdims, "keepdims of mnp.nanpercentile")
    no_out(out, "mnp.nanpercentile")
    no_overwriting(overwrite_input, "mnp.nanpercentile")
    return nanquantile(a, divide(q, 100), axis, method=method, keepdims=keepdims, weights=weights)


def median(
    a: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Value:
    """The middle element, or the mean of the two in the middle."""
    keepdims = static_flag(keepdims, "keepdims of mnp.median")
    no_out(out, "mnp.median")
    no_overwriting(overwrite_input, "mnp.median")
    return quantile(a, 0.5, axis, method="midpoint", keepdims=keepdims)


def nanmedian(
    a: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Value:
    """The median of the elements that are not NaN."""
    keepdims = static_flag(keepdims, "keepdims of mnp.nanmedian")
    no_out(out, "mnp.nanmedian")
    no_overwriting(overwrite_input, "mnp.nanmedian")
    return nanquantile(a, 0.5, axis, method="midpoint", keepdims=keepdims)


def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: Any = None, right: Any = None, period: ArrayLike | None = None
) -> Value:
    """The piecewise linear function through the points (``xp``, ``fp``), at ``x``.

    Outside of the points it is ``left`` and ``right``, or goes on in a straight line where these are "extrapolate";
    with a ``period``, it repeats.
    """
    x, places, heights = value(x), value(xp), value(fp)
    if places.ndim != 1 or places.shape != heights.shape or not places.size:
        raise ShapeError(
            f"mnp.interp cannot go through the points {places.type.short()}, {heights.type.short()}.",
            where=here(),
            why="both have one dim of one size, with one point or more",
            fix="mnp.interp(x, xp, fp) with xp.shape == fp.shape == (n,)",
        )
    ordered("mnp.interp", x, places)
    for end in (left, right):
        if isinstance(end, str):
            one_of(end, ("extrapolate",), "left or right of mnp.interp")
    if period is not None:
        turn = absolute(one_number(period, "period of mnp.interp"))
        x, places = remainder(x, turn), remainder(places, turn)
        order = argsort(places)
        places, heights = (take(v, order, mode="clip") for v in (places, heights))
        places = concatenate([subtract(places[-1:], turn), places, add(places[:1], turn)])
        heights = concatenate([heights[-1:], heights, heights[:1]])
        left = right = None
    last = places.shape[0] - 1
    above = clip(searchsorted(places, x, "right"), 1, last)
    below = subtract(above, 1)
    x0, x1, y0, y1 = (take(v, i, mode="clip") for v in (places, heights) for i in (below, above))
    width = subtract(x1, x0)
    flat = width == 0
    slope = divide(subtract(x, x0), either(flat, 1.0, width))
    found = add(y0, either(flat, 0.0, multiply(slope, subtract(y1, y0))))
    if not isinstance(left, str):
        found = either(less(x, places[0]), heights[0] if left is None else left, found)
    if not isinstance(right, str):
        found = either(less(places[-1], x), heights[-1] if right is None else right, found)
    return found

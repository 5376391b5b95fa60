"""Histograms of ``meshwright.numpy``, along one dim and several."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, convert, inexact, promoted_values, strong, value
from meshwright.arrays.refusals import one_number, refuse
from meshwright.arrays.static import items_of, placed, static_flag, static_int
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, multiply, subtract
from meshwright.numpy.creation import linspace
from meshwright.numpy.logic import either, equal
from meshwright.numpy.order import bincount, searchsorted
from meshwright.numpy.reductions import diff, max, min, sum
from meshwright.numpy.shapes import cut, ravel, stack
from meshwright.ops import basic


def histogram_bin_edges(
    a: ArrayLike, bins: ArrayLike = 10, range: Any = None, weights: ArrayLike | None = None
) -> Value:
    """The edges of equal bins from the smallest to the largest element."""
    if isinstance(bins, list | tuple) or np.ndim(bins):
        edges = strong(convert(value(bins), inexact(a).type.dtype))
        if edges.ndim != 1:
            raise ShapeError(
                f"mnp.histogram cannot take edges {edges.type.short()}.",
                where=here(),
                why="they have one dim",
                fix="bins=10",
            )
        return edges
    count = static_int(bins, "bins of mnp.histogram")
    if count < 1 or not (range is None or (isinstance(range, list | tuple) and len(range) == 2)):
        raise ShapeError(
            f"mnp.histogram cannot take {bins=} and {range=}.",
            where=here(),
            why="there is one bin or more, and a range is (low, high)",
            fix="bins=10, range=(0, 1)",
        )
    x = ravel(inexact(value(a)))
    ends = (min(x), max(x)) if range is None else range
    low, high = (inexact(one_number(end, "an end of the range of mnp.histogram")) for end in ends)
    flat = equal(low, high)
    low, high = either(flat, subtract(low, 0.5), low), either(flat, add(high, 0.5), high)
    return linspace(low, high, count + 1, dtype=x.dtype)


def histogram(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: Any = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
    out_sharding: Any = None,
) -> tuple[Value, Value]:
    """How many elements fall into each bin, and the edges of the bins; the last bin holds its right edge.

    >>> import meshwright.numpy as mnp
    >>> mnp.histogram(mnp.array([1.0, 2.0, 2.5, 4.0]), bins=3)[0]
    Array([1., 2., 1.], dtype=float32)
    """
    density = static_flag(density, "density of mnp.histogram")
    if weights is None:
        x = ravel(inexact(value(a)))
        amounts = basic.broadcast_scalar(basic.scalar_like(x, 1), x.shape)
    else:
        x, amounts = promoted_values(a, weights, inexact=True)
        if x.shape != amounts.shape:
            raise ShapeError(
                f"mnp.histogram cannot weigh {x.type.short()} by {amounts.type.short()}.",
                where=here(),
                why="each element has one weight",
                fix="mnp.broadcast_to(weights, x.shape)",
            )
        x, amounts = ravel(x), ravel(amounts)
    edges = histogram_bin_edges(x, bins, range)
    places = searchsorted(edges, x, "right")
    places = either(equal(x, edges[-1]), edges.shape[0] - 1, places)
    # Place 0 is left of the first edge, the last one right of the last.
    counts = bincount(places, amounts, length=edges.shape[0] + 1)
    counts = cut(counts, 0, 1, edges.shape[0])
    if density:
        counts = divide(divide(counts, diff(edges)), sum(counts))
    return placed(counts, None, out_sharding), edges


def histogram2d(
    x: ArrayLike, y: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """How many points (x, y) fall into each bin of a grid, and the edges of the bins along both axes."""
    columns = promoted_values(x, y)
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape:
        refuse("mnp.histogram2d", [c.type for c in columns], "each point has two coordinates", "x.ravel(), y.ravel()")
    # One set of edges for both axes is not one number of bins for each.
    several = isinstance(bins, list | tuple) or np.ndim(bins)
    if several and len(bins) not in (1, 2):
        bins = (bins, bins)
    counts, (first, second) = histogramdd(stack(columns, 1), bins, range, weights, density)
    return counts, first, second


def histogramdd(
    sample: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None, density: bool | None = None
) -> tuple[Value, list[Value]]:
    """How many rows of ``sample`` fall into each bin of a grid, and the edges of the bins along its axes.

    >>> import meshwright.numpy as mnp
    >>> mnp.histogramdd(mnp.array([[0.0, 1.0], [1.0, 3.0], [1.0, 2.0]]), bins=2)[0]
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    density = static_flag(density, "density of mnp.histogramdd")
    points = value(sample)
    if points.ndim != 2:
        refuse("mnp.histogramdd", [points.type], "a row is a point", "x.reshape(-1, 1)")
    points = inexact(points)
    count, rank = points.shape
    several = isinstance(bins, list | tuple) or np.ndim(bins)
    per_axis = items_of(bins, "bins") if several else [bins] * rank
    ranges = [None] * rank if range is None else items_of(range, "range")
    if len(per_axis) != rank or len(ranges) != rank:
        raise ShapeError(
            f"mnp.histogramdd got bins for {len(per_axis)} and ranges for {len(ranges)} axes.", where=here(),
            why=f"the points have {rank} coordinates", fix="bins=10, range=None",
        )  # fmt: skip
    if weights is not None and value(weights).shape != (count,):
        refuse("mnp.histogramdd", [points.type, value(weights).type], "each point has one weight", "weights.ravel()")
    place: Any = 0
    edges = []
    for n, (number, ends) in enumerate(zip(per_axis, ranges, strict=True)):
        column = points[:, n]
        edge = histogram_bin_edges(column, number, ends)
        found = searchsorted(edge, column, "right")
        found = either(equal(column, edge[-1]), subtract(found, 1), found)
        # Place 0 is left of the first edge, the last one right of the last.
        place = add(multiply(place, edge.shape[0] + 1), found)
        edges.append(edge)
    sizes = tuple(edge.shape[0] + 1 for edge in edges)
    counts = basic.reshape(bincount(place, weights, length=int(np.prod(sizes))), shape=sizes)
    for n, size in enumerate(sizes):
        counts = cut(counts, n, 1, size - 1)
    if density:
        counts = divide(convert(counts, edges[0].type.dtype), sum(counts))
        for n, edge in enumerate(edges):
            widths = diff(edge)
            counts = divide(counts, basic.reshape(widths, shape=(widths.size, *(1,) * (rank - 1 - n))))
    return counts, edges

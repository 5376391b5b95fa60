"""Statistics and sequences of ``meshwright.numpy``: covariance, histograms, convolution, polynomials, differences."""

from __future__ import annotations

from builtins import min as builtin_min
from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    as_dtype,
    axis_of,
    convert,
    inexact,
    promote_operands,
    promoted_values,
    strong,
    value,
)
from meshwright.arrays.refusals import one_number, refuse
from meshwright.arrays.static import check_precision, no_out, one_of, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, multiply, subtract
from meshwright.numpy.creation import diagonal, linspace
from meshwright.numpy.logic import conjugate, either, equal, real
from meshwright.numpy.mathematics import sqrt
from meshwright.numpy.order import bincount, builtin_max, searchsorted
from meshwright.numpy.products import matmul
from meshwright.numpy.reductions import cumprod, cumsum, diff, max, mean, min, sum, sum_dtype
from meshwright.numpy.shapes import atleast_2d, concatenate, cut, flip, matrix_transpose, ravel
from meshwright.ops import basic
from meshwright.ops.convolution import conv_general_dilated

# Covariance and histograms


def cov(
    m: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None
) -> Value:
    """The covariances of variables, one per row."""
    rowvar = static_flag(rowvar, "rowvar of mnp.cov")
    bias = static_flag(bias, "bias of mnp.cov")
    for x in (value(v) for v in (m, y) if v is not None):
        if x.ndim > 2:
            why = "a row is a variable, so there are two dims or one"
            refuse("mnp.cov", [x.type], why, "x.reshape(-1, x.shape[-1])")
    given = [atleast_2d(x) for x in promoted_values(*(v for v in (m, y) if v is not None), inexact=True)]
    rows = [x if rowvar or x.shape[0] == 1 else matrix_transpose(x) for x in given]
    x = concatenate(rows, 0)
    offset = (0 if bias else 1) if ddof is None else static_int(ddof, "ddof of mnp.cov")
    centered = subtract(x, mean(x, 1, keepdims=True))
    found = divide(matmul(centered, conjugate(matrix_transpose(centered))), x.shape[1] - offset)
    return basic.reshape(found, shape=()) if found.size == 1 else found


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True) -> Value:
    """The correlations of variables, one per row."""
    rowvar = static_flag(rowvar, "rowvar of mnp.corrcoef")
    found = cov(x, y, rowvar)
    if not found.ndim:
        return divide(found, found)
    spread = sqrt(real(diagonal(found)))
    return divide(divide(found, spread[:, None]), spread[None, :])


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
    return counts, edges


# Convolution


def convolve(
    a: ArrayLike, v: ArrayLike, mode: str = "full", *, precision: Any = None, preferred_element_type: DTypeLike = None
) -> Value:
    """The convolution of two vectors.

    >>> import meshwright.numpy as mnp
    >>> mnp.convolve(mnp.array([1.0, 2.0, 3.0]), mnp.array([1.0, 1.0]))
    Array([1., 3., 5., 3.], dtype=float32)
    """
    check_precision(precision)
    x, kernel = (value(w) for w in promote_operands((a, v), inexact=True))
    if x.ndim == kernel.ndim == 1 and x.shape[0] < kernel.shape[0]:
        x, kernel = kernel, x
    return _slide(x, flip(kernel), mode, "mnp.convolve", preferred_element_type)


def correlate(
    a: ArrayLike, v: ArrayLike, mode: str = "valid", *, precision: Any = None, preferred_element_type: DTypeLike = None
) -> Value:
    """The correlation of two vectors."""
    check_precision(precision)
    x, kernel = (value(w) for w in promote_operands((a, v), inexact=True))
    if x.ndim == kernel.ndim == 1 and x.shape[0] < kernel.shape[0]:
        return flip(_slide(conjugate(kernel), x, mode, "mnp.correlate", preferred_element_type))
    return _slide(x, conjugate(kernel), mode, "mnp.correlate", preferred_element_type)


def _slide(x: Value, kernel: Value, mode: str, name: str, dtype: DTypeLike) -> Value:
    """The sums of products of a kernel with what it lies on, at every place."""
    if x.ndim != 1 or kernel.ndim != 1 or not kernel.shape[0]:
        raise ShapeError(
            f"{name} cannot take {x.type.short()} and {kernel.type.short()}.",
            where=here(),
            why="it takes two vectors that are not empty",
            fix="x.ravel()",
        )
    if dtype is not None:
        x, kernel = (convert(v, as_dtype(dtype)) for v in (x, kernel))
    n = kernel.shape[0]
    widths = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}
    one_of(mode, list(widths), f"mode of {name}")
    out = conv_general_dilated(
        basic.reshape(x, shape=(1, 1, x.shape[0])),
        basic.reshape(kernel, shape=(1, 1, n)),
        strides=(1,),
        padding=(widths[mode],),
        lhs_dilation=(1,),
        rhs_dilation=(1,),
        dims=((0, 1, 2),) * 3,
        feature_groups=1,
        batch_groups=1,
    )
    return basic.reshape(out, shape=(out.size,))


# Sequences


def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Value:
    """The polynomial with coefficients ``p``, highest first, at ``x``."""
    coefficients, points = promoted_values(p, x)
    if coefficients.ndim != 1:
        raise ShapeError(
            f"mnp.polyval cannot take coefficients {coefficients.type.short()}.",
            where=here(),
            why="they have one dim, the highest power first",
            fix="p.ravel()",
        )
    coefficients, points = strong(coefficients), strong(points)
    total: Value = basic.zeros(points.type)
    for n in range(coefficients.shape[0]):
        total = add(multiply(total, points), coefficients[n])
    return total


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Value:
    """The integral of ``y`` by trapezoids."""
    if x is None:
        heights, widths = inexact(value(y)), value(dx)
    else:
        heights, places = promoted_values(y, x, inexact=True)
        widths = diff(places, axis=-1 if places.ndim == 1 else axis)
    dim = axis_of(axis, heights.ndim, "mnp.trapezoid")
    size = heights.shape[dim]
    if x is not None and widths.ndim == 1:
        widths = basic.reshape(widths, shape=(widths.size, *(1,) * (heights.ndim - 1 - dim)))
    middle = add(cut(heights, dim, builtin_min(1, size), size), cut(heights, dim, 0, builtin_max(size - 1, 0)))
    return multiply(sum(multiply(widths, middle), dim - heights.ndim), 0.5)


def ediff1d(ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None) -> Value:
    """The differences of neighbours of the flattened array."""
    parts = [diff(ravel(ary))]
    if to_begin is not None:
        parts.insert(0, convert(ravel(to_begin), parts[0].dtype))
    if to_end is not None:
        parts.append(convert(ravel(to_end), parts[0].dtype))
    return concatenate(parts)


def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Value:
    """The sums up to each place, with a zero first if ``include_initial``; small integers in the default width."""
    include_initial = static_flag(include_initial, "include_initial of mnp.cumulative_sum")
    wide = sum_dtype(value(x).type.dtype) if dtype is None else dtype
    along = _only_axis(x, axis, "mnp.cumulative_sum")
    return _from_start(cumsum(x, along, wide), along, include_initial, 0)


def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Value:
    """The products up to each place, with a one first if ``include_initial``."""
    include_initial = static_flag(include_initial, "include_initial of mnp.cumulative_prod")
    along = _only_axis(x, axis, "mnp.cumulative_prod")
    return _from_start(cumprod(x, along, dtype), along, include_initial, 1)


def _only_axis(x: ArrayLike, axis: int | None, name: str) -> int:
    """The axis that is given, or the one there is."""
    found = value(x)
    if axis is None and found.ndim != 1:
        raise ShapeError(
            f"{name} cannot take {found.type.short()} without axis=.",
            where=here(),
            why="there is not one dim alone to go along",
            fix="axis=0" if found.ndim else "x.reshape(1)",
        )
    return 0 if axis is None else axis


def _from_start(running: Value, axis: int, include: bool, first: int) -> Value:
    if not include:
        return running
    d = axis_of(axis, running.ndim, "mnp.cumulative_sum")
    shape = (*running.shape[:d], 1, *running.shape[d + 1 :])
    return concatenate([basic.broadcast_scalar(basic.scalar_like(running, first), shape), running], d)


def gradient(f: ArrayLike, *varargs: Any, axis: Any = None) -> Any:
    """The slopes of ``f`` along its dims, from differences of neighbours, equally spaced."""
    x, *steps = promoted_values(f, *varargs, inexact=True)
    given = range(x.ndim) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    dims = [axis_of(d, x.ndim, "mnp.gradient") for d in given]
    steps = steps or [basic.scalar_like(x, 1.0)]
    steps = steps * len(dims) if len(steps) == 1 else steps
    out = []
    for d, step in zip(dims, steps, strict=True):
        if np.ndim(step) or x.shape[d] < 2:
            raise ShapeError(
                f"mnp.gradient cannot take dim {d} of {x.type.short()}.",
                where=here(),
                why="it needs two elements or more and one number as their distance",
                fix="mnp.gradient(f, 0.5)",
            )
        n = x.shape[d]
        inner = divide(subtract(cut(x, d, 2, n), cut(x, d, 0, n - 2)), 2.0) if n > 2 else None
        first = subtract(cut(x, d, 1, 2), cut(x, d, 0, 1))
        last = subtract(cut(x, d, n - 1, n), cut(x, d, n - 2, n - 1))
        out.append(divide(concatenate([p for p in (first, inner, last) if p is not None], d), step))
    return out[0] if len(out) == 1 else out


def nancumsum(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The sums up to each place, NaN counted as zero."""
    no_out(out, "mnp.nancumsum")
    return cumsum(_replaced(value(a), 0), axis, dtype)


def nancumprod(a: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Value:
    """The products up to each place, NaN counted as one."""
    no_out(out, "mnp.nancumprod")
    return cumprod(_replaced(value(a), 1), axis, dtype)


def _replaced(x: Value, number: int) -> Value:
    return either(x != x, basic.scalar_like(x, number), x) if dtypes.is_inexact(x.type.dtype) else x

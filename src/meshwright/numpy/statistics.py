"""Statistics and sequences of ``meshwright.numpy``: covariance, convolution, differences."""

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
from meshwright.arrays.refusals import one_number, ordered, refuse
from meshwright.arrays.static import check_precision, one_of, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, floor_divide, multiply, negative, remainder, subtract
from meshwright.numpy.creation import diagonal
from meshwright.numpy.logic import absolute, conjugate, either, equal, greater, less, logical_and, real
from meshwright.numpy.mathematics import sqrt
from meshwright.numpy.order import builtin_max
from meshwright.numpy.products import matmul
from meshwright.numpy.reductions import cumprod, cumsum, diff, mean, sum, sum_dtype
from meshwright.numpy.shapes import atleast_2d, broadcast_to, concatenate, cut, flip, matrix_transpose, ravel
from meshwright.ops import basic
from meshwright.ops.convolution import conv_general_dilated

# Covariance


def cov(
    m: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: ArrayLike | None = None, aweights: ArrayLike | None = None, dtype: DTypeLike = None,
) -> Value:  # fmt: skip
    """The covariances of variables, one per row; an observation counts ``fweights`` times and weighs ``aweights``."""
    rowvar = static_flag(rowvar, "rowvar of mnp.cov")
    bias = static_flag(bias, "bias of mnp.cov")
    variables = [value(m)] if y is None else [value(m), value(y)]
    for x in variables:
        if x.ndim > 2:
            why = "a row is a variable, so there are two dims or one"
            refuse("mnp.cov", [x.type], why, "x.reshape(-1, x.shape[-1])")
    given = [atleast_2d(x) for x in promoted_values(*variables, inexact=True)]
    if dtype is not None:
        given = [convert(x, as_dtype(dtype)) for x in given]
    rows = [x if rowvar or x.shape[0] == 1 else matrix_transpose(x) for x in given]
    x = concatenate(rows, 0)
    offset = (0 if bias else 1) if ddof is None else static_int(ddof, "ddof of mnp.cov")
    if fweights is None and aweights is None:
        centered = subtract(x, mean(x, 1, keepdims=True))
        found = divide(matmul(centered, conjugate(matrix_transpose(centered))), x.shape[1] - offset)
        return basic.reshape(found, shape=()) if found.size == 1 else found
    counts, amounts = (_weights(w, x, whole) for w, whole in ((fweights, True), (aweights, False)))
    weights = amounts if counts is None else counts if amounts is None else multiply(counts, amounts)
    total = sum(weights)
    centered = subtract(x, divide(sum(multiply(x, weights), 1, keepdims=True), total))
    norm = total
    if offset and amounts is None:
        norm = subtract(total, offset)
    elif offset:
        norm = subtract(total, divide(multiply(sum(multiply(weights, amounts)), offset), total))
    found = divide(matmul(multiply(centered, weights), conjugate(matrix_transpose(centered))), norm)
    return basic.reshape(found, shape=()) if found.size == 1 else found


def _weights(given: ArrayLike | None, x: Value, whole: bool) -> Value | None:
    """The weights of observations in the dtype of the sums; how often they count is a whole number."""
    if given is None:
        return None
    found = value(given)
    if found.shape != x.shape[1:] or (whole and not dtypes.is_integer(found.type.dtype)):
        why = f"there is one {'integer' if whole else 'weight'} for each observation, {x.shape[1]} in all"
        refuse(
            "mnp.cov", [x.type, found.type], why, "fweights=mnp.array([1, 2, 1]), of integers" if whole else "aweights"
        )
    return convert(absolute(found), dtypes.real_part(x.type.dtype))


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: DTypeLike = None) -> Value:
    """The correlations of variables, one per row."""
    rowvar = static_flag(rowvar, "rowvar of mnp.corrcoef")
    found = cov(x, y, rowvar, dtype=dtype)
    if not found.ndim:
        return divide(found, found)
    spread = sqrt(real(diagonal(found)))
    return divide(divide(found, spread[:, None]), spread[None, :])


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
    """The polynomial with coefficients ``p``, highest first, at ``x``; more dims of ``p`` are broadcast with ``x``."""
    coefficients, points = promoted_values(p, x)
    if coefficients.ndim == 0:
        raise ShapeError(
            f"mnp.polyval cannot take coefficients {coefficients.type.short()}.",
            where=here(),
            why="they have one dim at least, the highest power first",
            fix="p.ravel()",
        )
    coefficients, points = strong(coefficients), strong(points)
    if coefficients.ndim > 1:
        points = broadcast_to(points, np.broadcast_shapes(coefficients.shape[1:], points.shape))
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


def gradient(f: ArrayLike, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """The slopes of ``f`` along its dims, from differences of neighbours.

    A dim's elements are 1, or a number, apart, or have the coordinates that are given.
    """
    if edge_order is not None:
        raise ShapeError(
            "mnp.gradient cannot take edge_order=.", where=here(), why="at the ends it takes the two elements there",
            fix="mnp.gradient(f)",
        )  # fmt: skip
    x, *steps = promoted_values(f, *varargs, inexact=True)
    given = range(x.ndim) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    dims = [axis_of(d, x.ndim, "mnp.gradient") for d in given]
    steps = steps or [basic.scalar_like(x, 1.0)]
    steps = steps * len(dims) if len(steps) == 1 else steps
    if len(steps) != len(dims):
        raise ShapeError(
            f"mnp.gradient got {len(steps)} distances for {len(dims)} dims.", where=here(),
            why="there is one for each dim, or one for all", fix="mnp.gradient(f, 0.5)",
        )  # fmt: skip
    out = []
    for d, step in zip(dims, steps, strict=True):
        n = x.shape[d]
        if step.ndim > 1 or n < 2 or (step.ndim and step.shape != (n,)):
            raise ShapeError(
                f"mnp.gradient cannot take dim {d} of {x.type.short()}.",
                where=here(),
                why="it needs two elements or more, and one number as their distance or the coordinate of each",
                fix="mnp.gradient(f, 0.5)",
            )
        out.append(_slopes(x, d, step))
    return out[0] if len(out) == 1 else out


def _slopes(x: Value, d: int, step: Value) -> Value:
    """Differences of neighbours over their distance; inside, the slope of the parabola through three of them."""
    n = x.shape[d]
    rises = subtract(cut(x, d, 1, n), cut(x, d, 0, n - 1))
    if not step.ndim:
        inner = divide(subtract(cut(x, d, 2, n), cut(x, d, 0, n - 2)), 2.0) if n > 2 else None
        ends = cut(rises, d, 0, 1), cut(rises, d, n - 2, n - 1)
        return divide(concatenate([p for p in (ends[0], inner, ends[1]) if p is not None], d), step)
    widths = basic.reshape(diff(step), shape=(n - 1, *(1,) * (x.ndim - 1 - d)))
    slopes = divide(rises, widths)
    parts = [cut(slopes, d, 0, 1), cut(slopes, d, n - 2, n - 1)]
    if n > 2:
        left, right = (cut(slopes, d, k, n - 2 + k) for k in (0, 1))
        before, after = (cut(widths, 0, k, n - 2 + k) for k in (0, 1))
        # Each slope counts the more the nearer its middle is.
        inner = divide(add(multiply(left, after), multiply(right, before)), add(before, after))
        parts.insert(1, inner)
    return concatenate(parts, d)


def unwrap(p: ArrayLike, discont: ArrayLike | None = None, axis: int = -1, period: ArrayLike = 2 * np.pi) -> Value:
    """A signal that is known up to periods, without the jumps of ``discont`` or more (half a period) along an axis.

    >>> import meshwright.numpy as mnp
    >>> mnp.unwrap(mnp.array([0.0, 5.0, 10.0, 1.0]), period=6.0)
    Array([ 0., -1., -2., -5.], dtype=float32)
    """
    x = value(p)
    dim = axis_of(axis, x.ndim, "mnp.unwrap")
    ordered("mnp.unwrap", x)
    x, turn = promoted_values(x, one_number(period, "period of mnp.unwrap"))
    if not x.shape[dim]:
        return x
    whole = dtypes.is_integer(x.type.dtype)
    low = negative(floor_divide(turn, 2)) if whole else divide(turn, -2.0)
    rises = diff(x, axis=dim)
    moved = add(remainder(subtract(rises, low), turn), low)
    # A jump by half a period keeps its direction.
    half = logical_and(equal(moved, low), greater(rises, 0))
    if whole:
        half = logical_and(half, equal(remainder(turn, 2), 0))
    moved = either(half, negative(low), moved)
    limit = divide(turn, 2) if discont is None else value(discont)
    fixes = either(less(absolute(rises), limit), 0, subtract(moved, rises))
    first, n = cut(x, dim, 0, 1), x.shape[dim]
    return concatenate([first, add(cut(x, dim, 1, n), cumsum(fixes, dim))], dim)

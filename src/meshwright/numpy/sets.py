"""Sets of ``meshwright.numpy``: different elements, unions, intersections and differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    axis_of,
    broadcast,
    convert,
    known,
    promote_operands,
    promoted_values,
    strong,
    value,
)
from meshwright.arrays.static import one_of, static_flag, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, to_array
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import subtract
from meshwright.numpy.logic import either, equal, greater, isnan, less, logical_and, logical_not, not_equal
from meshwright.numpy.order import argsort, lexsort, nonzero, searchsorted, sort
from meshwright.numpy.reductions import any as any_
from meshwright.numpy.reductions import argmax, cumsum, sum
from meshwright.numpy.shapes import concatenate, cut, moveaxis, ravel
from meshwright.numpy.taking import take
from meshwright.numpy.updates import At
from meshwright.ops import basic
from meshwright.ops.shape import iota


def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The different elements in increasing order. Of a traced array, their number ``size`` must be given.

    >>> import meshwright.numpy as mnp
    >>> mnp.unique(mnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    """
    return_index = static_flag(return_index, "return_index of mnp.unique")
    return_inverse = static_flag(return_inverse, "return_inverse of mnp.unique")
    return_counts = static_flag(return_counts, "return_counts of mnp.unique")
    equal_nan = static_flag(equal_nan, "equal_nan of mnp.unique")
    sorted = static_flag(sorted, "sorted of mnp.unique")
    x = value(ar)
    if size is None:
        fix = "give the number of results: mnp.unique(x, size=…); shorter ones are filled up"
        data = known(x, "mnp.unique", fix)
        unique_of: Any = np.unique
        found = unique_of(data, return_index, return_inverse, return_counts, axis, equal_nan=equal_nan)
        kind = dtypes.default_int()
        if not isinstance(found, tuple):
            return to_array(found)
        return tuple(to_array(part if n == 0 else part.astype(kind)) for n, part in enumerate(found))
    wanted = (return_index, return_inverse, return_counts)
    if axis is None or x.ndim == 1:
        return _unique_of_size(ravel(x), size, fill_value, wanted, x.shape, equal_nan)
    dim = axis_of(axis, x.ndim, "mnp.unique")
    rows = moveaxis(x, dim, 0)
    flat = basic.reshape(rows, shape=(rows.shape[0], rows.size // (rows.shape[0] or 1)))
    found = _unique_of_size(flat, size, fill_value, wanted, (x.shape[dim],), equal_nan)
    parts = found if isinstance(found, tuple) else (found,)
    first = moveaxis(basic.reshape(parts[0], shape=(parts[0].shape[0], *rows.shape[1:])), 0, dim)
    return (first, *parts[1:]) if isinstance(found, tuple) else first


def _unique_of_size(
    x: Value, size: int, fill: Any, wanted: tuple[bool, bool, bool], shape: tuple[int, ...], equal_nan: bool = True
) -> Any:
    """The different elements of a vector, or rows of a matrix, and what else is wanted of them."""
    kind = dtypes.default_int()
    total = x.shape[0]
    size = static_size(size, "size of mnp.unique")
    if not total:
        return _unique_of_nothing(x, size, fill, wanted, shape)
    rows = x.ndim == 2
    order = (
        lexsort([x[:, n] for n in reversed(range(x.shape[1]))]) if rows and x.shape[1] else argsort(ravel(x)[:total])
    )
    ordered = take(x, order, 0, mode="clip")
    later, earlier = cut(ordered, 0, 1, total), cut(ordered, 0, 0, total - 1)
    differs = not_equal(later, earlier)
    if dtypes.is_inexact(x.type.dtype) and equal_nan:
        differs = logical_and(differs, logical_not(logical_and(isnan(later), isnan(earlier))))
    if rows:
        differs = any_(differs, 1)
    first = concatenate([basic.broadcast_in_dim(value(np.True_), shape=(1,), dims=()), differs])
    (places,) = nonzero(first, size=size, fill_value=total)
    count = sum(convert(first, kind))
    real = less(iota(dtype=kind, shape=(size,), dim=0), count)
    found = take(ordered, places, 0, mode="clip")
    filler = ordered[0] if fill is None else convert(value(fill), x.type.dtype)
    shown = basic.reshape(real, shape=(size, 1)) if rows else real
    out: list[Value] = [either(shown, found, filler)]
    if wanted[0]:
        out.append(either(real, take(order, places, mode="clip"), order[0]))
    group = subtract(cumsum(convert(first, kind)), 1)
    if wanted[1]:
        inverse = At(basic.zeros(group.type))[order].set(group)
        out.append(basic.reshape(inverse, shape=shape))
    if wanted[2]:
        out.append(At(basic.zeros(group.type.with_(shape=(size,))))[group].add(1))
    return out[0] if len(out) == 1 else tuple(out)


def _unique_of_nothing(x: Value, size: int, fill: Any, wanted: tuple[bool, bool, bool], shape: tuple[int, ...]) -> Any:
    if size and fill is None:
        raise ShapeError(
            f"mnp.unique cannot find {size} elements in {x.type.short()}.",
            where=here(),
            why="there are none, and no fill_value",
            fix="fill_value=0",
        )
    filler = convert(value(0 if fill is None else fill), x.type.dtype)
    kind = dtypes.default_int()
    shapes = [s for s, want in zip(((size,), shape, (size,)), wanted, strict=True) if want]
    out = [broadcast(filler, (size, *x.shape[1:])), *(basic.zeros(TensorType(s, kind)) for s in shapes)]
    return out[0] if len(out) == 1 else tuple(out)


class UniqueAll(NamedTuple):
    """What ``unique_all`` returns."""

    values: Value
    indices: Value
    inverse_indices: Value
    counts: Value


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` returns."""

    values: Value
    counts: Value


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` returns."""

    values: Value
    inverse_indices: Value


def unique_all(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The different elements, where each is first, which of them each element is, and how often each occurs.

    >>> import meshwright.numpy as mnp
    >>> mnp.unique_all(mnp.array([3, 1, 3])).counts
    Array([1, 2], dtype=int32)
    """
    return UniqueAll(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def unique_counts(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """The different elements, and how often each occurs."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """The different elements, and which of them each element is."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Value:
    """The different elements; each NaN is one."""
    found: Value = unique(x, equal_nan=False, size=size, fill_value=fill_value)
    return found


# Several sets

_METHODS = ("auto", "compare_all", "binary_search", "sort")  # JAX's; the result is the same
_COMPARED = 1 << 16  # comparisons of all with all, up to which a search is not worth its sort


def isin(
    element: ArrayLike, test_elements: ArrayLike, assume_unique: bool = False, invert: bool = False, *,
    method: str = "auto",
) -> Value:  # fmt: skip
    """Whether each element occurs among ``test_elements``."""
    static_flag(assume_unique, "assume_unique of mnp.isin")
    invert = static_flag(invert, "invert of mnp.isin")
    one_of(method, _METHODS, "method of mnp.isin")
    x, tests = (value(v) for v in promote_operands((element, test_elements)))
    tests = ravel(tests)
    small = method == "auto" and x.size * tests.size <= _COMPARED
    if method == "compare_all" or small or not tests.size:
        found = any_(equal(basic.reshape(x, shape=(*x.shape, 1)), tests), -1)
    else:
        tests = sort(tests)
        found = equal(take(tests, searchsorted(tests, x), mode="clip"), x)
    return logical_not(found) if invert else found


def union1d(ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Value:
    """The different elements of two arrays together. Of traced arrays, their number ``size`` must be given.

    >>> import meshwright.numpy as mnp
    >>> mnp.union1d(mnp.array([3, 1]), mnp.array([2, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    x, y = promoted_values(ar1, ar2)
    together = concatenate([ravel(strong(x)), ravel(strong(y))])
    found: Value = unique(together, size=size, fill_value=fill_value)
    return found


def setdiff1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Value:
    """The different elements of ``ar1`` that are not in ``ar2``; of traced arrays, ``size`` of them."""
    x, y = strong(ravel(ar1)), ravel(ar2)
    if static_flag(assume_unique, "assume_unique of mnp.setdiff1d"):
        there = basic.broadcast_scalar(value(np.True_), x.shape)
    else:
        x, there, _ = _different(x)
    kept = logical_and(there, isin(x, y, invert=True))
    found, _, _ = _chosen(x, kept, _number(size, kept, "mnp.setdiff1d"), 0 if fill_value is None else fill_value)
    return found


def setxor1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Value:
    """The different elements that are in one of two arrays alone; of traced arrays, ``size`` of them."""
    static_flag(assume_unique, "assume_unique of mnp.setxor1d")
    given = [strong(ravel(v)) for v in promoted_values(ar1, ar2)]
    values, kept = [], []
    for x, y in (given, reversed(given)):
        x, there, _ = _different(x)
        values.append(x)
        kept.append(logical_and(there, isin(x, y, invert=True)))
    both, mask = concatenate(values), concatenate(kept)
    order = lexsort([both, logical_not(mask)])  # those that are kept first, in order
    both, mask = take(both, order, mode="clip"), take(mask, order, mode="clip")
    return _chosen(both, mask, _number(size, mask, "mnp.setxor1d"), fill_value)[0]


def intersect1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, return_indices: bool = False, *,
    size: int | None = None, fill_value: Any = None,
) -> Any:  # fmt: skip
    """The different elements that two arrays share, and where they are first in each.

    Of traced arrays, their number ``size`` must be given.
    """
    static_flag(assume_unique, "assume_unique of mnp.intersect1d")
    return_indices = static_flag(return_indices, "return_indices of mnp.intersect1d")
    x, y = (strong(ravel(v)) for v in promoted_values(ar1, ar2))
    length = x.shape[0]
    x, there, first = _different(x)
    kept = logical_and(there, isin(x, y))
    found, places, real = _chosen(x, kept, _number(size, kept, "mnp.intersect1d"), fill_value)
    if not return_indices:
        return found
    if not length or not y.size:
        return found, places, places
    second = argmax(equal(basic.reshape(take(x, places, mode="clip"), shape=(*places.shape, 1)), y), -1)
    return found, either(real, take(first, places, mode="clip"), length), either(real, second, y.size)


def _different(x: Value) -> tuple[Value, Value, Value]:
    """The different elements of a vector in order, as many as it has; which of them there are; where each is first."""
    if not x.size:
        return x, basic.zeros(x.type.with_(dtype=dtypes.BOOL)), basic.zeros(x.type.with_(dtype=dtypes.default_int()))
    found, first, counts = unique(x, True, return_counts=True, size=x.size)
    return found, greater(counts, 0), first


def _number(size: Any, x: Value, name: str) -> int:
    """How many elements a set has: as given, or as known of the truth values ``x`` of those in it."""
    if size is not None:
        return static_size(size, f"size of {name}")
    return int(
        np.count_nonzero(known(x, name, f"give the number of results: {name}(x, y, size=…); fewer are filled up"))
    )


def _chosen(x: Value, kept: Value, size: int, fill: Any) -> tuple[Value, Value, Value]:
    """The elements that are kept, their places, and which of them are more than filling."""
    if not x.size:
        places = basic.zeros(TensorType((size,), dtypes.default_int()))
        return broadcast(convert(value(0 if fill is None else fill), x.type.dtype), (size,)), places, less(places, 0)
    (places,) = nonzero(kept, size=size)
    count = sum(convert(kept, places.type.dtype))
    real = less(iota(dtype=places.type.dtype, shape=(size,), dim=0), count)
    found = take(x, places, mode="clip")
    if fill is None:
        fill = either(greater(count, 0), found[0], 0) if size else 0
    return either(real, found, convert(value(fill), x.type.dtype)), places, real

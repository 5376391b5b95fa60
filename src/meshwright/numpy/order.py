"""Sorting, searching and counting of ``meshwright.numpy``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    as_bool,
    as_dtype,
    axis_of,
    convert,
    inexact,
    known,
    promote_operands,
    promoted,
    value,
)
from meshwright.arrays.refusals import one_number
from meshwright.arrays.static import items_of, one_of, placed, static_flag, static_int, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, to_array
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, clip, floor_divide, isclose, remainder, subtract
from meshwright.numpy.logic import (
    either,
    equal,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
)
from meshwright.numpy.reductions import all as all_
from meshwright.numpy.reductions import cumsum
from meshwright.numpy.shapes import concatenate, flip, ravel
from meshwright.numpy.taking import inside, take
from meshwright.numpy.updates import At
from meshwright.ops import basic, sorting
from meshwright.ops.shape import iota

# Sorting


def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Value:
    """The elements in increasing order along ``axis``, NaN last.

    >>> import meshwright.numpy as mnp
    >>> mnp.sort(mnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    static_flag(stable, "stable of mnp.sort")
    one_of(kind, (None,), "kind of mnp.sort")
    descending = static_flag(descending, "descending of mnp.sort")
    x = value(a)
    _no_order(order, "mnp.sort")
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.sort")
    (out,) = sorting.sort(x, dim=dim, num_keys=1)
    return flip(out, dim) if descending else out


def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike = None,
) -> Value:
    """The places of the elements in increasing order along ``axis``; equal ones stay in order."""
    places_dtype = dtypes.default_int() if dtype is None else as_dtype(dtype)
    static_flag(stable, "stable of mnp.argsort")
    one_of(kind, (None,), "kind of mnp.argsort")
    descending = static_flag(descending, "descending of mnp.argsort")
    x = value(a)
    _no_order(order, "mnp.argsort")
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.argsort")
    places = iota(dtype=dtypes.default_int(), shape=x.shape, dim=dim)
    if not descending:
        return convert(sorting.sort(x, places, dim=dim, num_keys=1)[1], places_dtype)
    # Reversed before and after, so that equal elements stay in order.
    ordered = sorting.sort(flip(x, dim), flip(places, dim), dim=dim, num_keys=1)[1]
    return convert(flip(ordered, dim), places_dtype)


def _no_order(order: Any, name: str) -> None:
    """Refuse names of fields to sort by: an array has none."""
    if order is not None:
        raise ShapeError(
            f"{name} cannot take order={order!r}.", where=here(), why="arrays have no fields", fix="axis=0"
        )


def lexsort(keys: Any, axis: int = -1) -> Value:
    """The places that sort by the last key, then the one before, and so on."""
    columns = [value(k) for k in items_of(keys, "mnp.lexsort")]
    if not columns or any(c.shape != columns[0].shape for c in columns):
        raise ShapeError(
            f"mnp.lexsort cannot sort by {', '.join(c.type.short() for c in columns) or 'nothing'}.",
            where=here(),
            why="it takes one key or more, all of one shape",
            fix="mnp.lexsort((second, first))",
        )
    if not columns[0].ndim:
        return to_array(np.asarray(0, dtypes.default_int()))
    dim = axis_of(axis, columns[0].ndim, "mnp.lexsort")
    places = iota(dtype=dtypes.default_int(), shape=columns[0].shape, dim=dim)
    return sorting.sort(*reversed(columns), places, dim=dim, num_keys=len(columns))[-1]


def partition(a: ArrayLike, kth: int, axis: int = -1) -> Value:
    """The elements such that those before place ``kth`` are not larger, those after not smaller: sorted, here."""
    return sort(_with_place(a, kth, axis, "mnp.partition"), axis)


def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Value:
    """The places that ``partition`` the elements."""
    return convert(argsort(_with_place(a, kth, axis, "mnp.argpartition"), axis), dtypes.INT32)


def _with_place(a: ArrayLike, kth: Any, axis: Any, name: str) -> Value:
    """An array that has a ``kth`` place along an axis."""
    x = value(a)
    size = x.shape[axis_of(axis, x.ndim, name)]
    place = static_int(kth, f"kth of {name}")
    inside(name, place + size if place < 0 else place, size)
    return x


# Searching

_SEARCHES = ("scan", "scan_unrolled", "sort", "compare_all", "default")  # JAX's; the result is the same


def searchsorted(
    a: ArrayLike, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *, method: str = "scan"
) -> Value:
    """Where in the sorted ``a`` to insert ``v``: before equal elements, or after with ``side="right"``.

    >>> import meshwright.numpy as mnp
    >>> mnp.searchsorted(mnp.array([1, 2, 2, 5]), mnp.array([2, 9]))
    Array([1, 4], dtype=int32)
    """
    one_of(side, ("left", "right"), "side of mnp.searchsorted")
    one_of(method, _SEARCHES, "method of mnp.searchsorted")
    ordered, wanted = (value(x) for x in promote_operands((a, v)))
    if ordered.ndim != 1:
        raise ShapeError(
            f"mnp.searchsorted cannot search {ordered.type.short()}.",
            where=here(),
            why="it needs one dim",
            fix="a.ravel()",
        )
    if sorter is not None:
        ordered = take(ordered, ravel(sorter))
    size = ordered.shape[0]
    kind = dtypes.INT32 if size < 2**31 else dtypes.INT64  # wide enough for the places, whatever the default width is
    low = basic.zeros(wanted.type.with_(dtype=kind, weak=False))
    if size == 0:
        return low
    high = add(low, size)
    # Halve [low, high] until it is one place.
    for _ in range(size.bit_length()):
        middle = floor_half(add(low, high))
        there = take(ordered, middle, mode="clip")
        before = less(there, wanted) if side == "left" else less_equal(there, wanted)
        if dtypes.is_inexact(there.type.dtype):
            nan_before = logical_not(isnan(there)) if side == "left" else isnan(wanted)
            before = logical_or(before, logical_and(isnan(wanted), nan_before))
        before = logical_and(before, less(low, high))
        low, high = either(before, add(middle, 1), low), either(before, high, middle)
    return low


def floor_half(x: Value) -> Value:
    """Half of integers that are not negative."""
    return x >> 1


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None) -> Value:
    """The number of the bin each element falls into."""
    right = static_flag(right, "right of mnp.digitize")
    method = "scan" if method is None else one_of(method, _SEARCHES, "method of mnp.digitize")
    edges = value(bins)
    if edges.ndim != 1:
        raise ShapeError(
            f"mnp.digitize cannot take bins {edges.type.short()}.",
            where=here(),
            why="they have one dim",
            fix="bins.ravel()",
        )
    side = "left" if right else "right"
    rising = searchsorted(edges, x, side, method=method)
    if edges.shape[0] < 2:
        return rising
    falling = subtract(edges.shape[0], searchsorted(flip(edges), x, "right" if right else "left", method=method))
    return either(less(edges[-1], edges[0]), falling, rising)


def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Value, ...]:
    """The places of the nonzero elements, one array per dim. Of a traced array, the number ``size`` must be given.

    >>> import meshwright.numpy as mnp
    >>> mnp.nonzero(mnp.array([0, 5, 6]))
    (Array([1, 2], dtype=int32),)
    """
    x = value(a)
    if not x.ndim:
        raise ShapeError(
            f"mnp.nonzero cannot take {x.type.short()}.",
            where=here(),
            why="places are counted along dims, and there is none",
            fix="mnp.atleast_1d(x), or x != 0",
        )
    kind = dtypes.default_int()
    if size is None:
        data = known(
            x, "mnp.nonzero", "give the number of places: mnp.nonzero(x, size=…), or keep the shape: mnp.where(x, y, 0)"
        )
        return tuple(to_array(places.astype(kind)) for places in np.nonzero(data))
    size = static_size(size, "size of mnp.nonzero")
    mask = ravel(as_bool(x))
    counted = cumsum(convert(mask, kind)) if mask.size else convert(mask, kind)
    # The n-th nonzero element is written to place n; the others to none.
    targets = either(mask, subtract(counted, 1), size)
    flat = At(basic.zeros(targets.type.with_(shape=(size,), weak=False)))[targets].set(
        iota(dtype=kind, shape=mask.shape, dim=0), mode="drop"
    )
    total = counted[-1] if mask.size else value(np.asarray(0, kind))
    filled = less(iota(dtype=kind, shape=(size,), dim=0), total)
    fills = fill_value if isinstance(fill_value, tuple) else (0 if fill_value is None else fill_value,) * x.ndim
    if len(fills) != x.ndim:
        raise ShapeError(
            f"mnp.nonzero cannot take {len(fills)} fill values for {x.type.short()}.",
            where=here(),
            why="there is one for all dims, or one for each",
            fix="fill_value=-1",
        )
    out: list[Value] = []
    stride = 1
    for n, fill in zip(reversed(x.shape), reversed(fills), strict=True):
        place = remainder(floor_divide(flat, stride), n) if n else flat
        out.append(either(filled, place, convert(one_number(fill, "fill_value of mnp.nonzero"), kind)))
        stride *= n
    return tuple(reversed(out))


def where(
    condition: ArrayLike,
    x: ArrayLike = None,
    y: ArrayLike = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """``x`` where ``condition`` holds, else ``y``; without them, the places where it holds.

    >>> import meshwright.numpy as mnp
    >>> mnp.where(mnp.array([True, False]), 1.0, mnp.array([5.0, 6.0]))
    Array([1., 6.], dtype=float32)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ShapeError(
            "mnp.where got one of its two choices.", where=here(), why="it needs both or none", fix="mnp.where(c, x, y)"
        )
    if size is not None or fill_value is not None:
        raise ShapeError(
            "mnp.where got choices and size= or fill_value=.",
            where=here(),
            why="these are about the places it returns without choices",
            fix="mnp.where(c, x, y), or mnp.where(c, size=n)",
        )
    return either(condition, x, y)


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Value:
    """The places of the nonzero elements of the flattened array."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Value:
    """The places of the nonzero elements, one row per element."""
    x = value(a)
    if x.ndim == 0:
        count = nonzero(basic.reshape(x, shape=(1,)), size=size)[0].size
        return basic.zeros(TensorType((count, 0), dtypes.default_int()))
    columns = [basic.reshape(p, shape=(p.size, 1)) for p in nonzero(x, size=size, fill_value=fill_value)]
    return concatenate(columns, 1)


# Counting


def bincount(
    x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, length: int | None = None,
    out_sharding: Any = None,
) -> Value:  # fmt: skip
    """How often each of 0, 1, … occurs in ``x``. Of a traced array, the ``length`` of the result must be given."""
    counted = value(x)
    amounts = value(1 if weights is None else weights)
    if (
        counted.ndim != 1
        or not dtypes.is_integer(counted.type.dtype)
        or (weights is not None and amounts.shape != counted.shape)
    ):
        raise ShapeError(
            f"mnp.bincount cannot count {counted.type.short()}"
            f"{'' if weights is None else f' with weights {amounts.type.short()}'}.",
            where=here(),
            why="it counts integers in one dim, and there is a weight for each",
            fix="mnp.bincount(x.ravel().astype(int))",
        )
    least = static_size(minlength, "minlength of mnp.bincount")
    if length is None:
        data = known(counted, "mnp.bincount", "give the size of the result: mnp.bincount(x, length=…)")
        length = builtin_max(least, int(np.max(data)) + 1 if data.size else 0)
    dtype = dtypes.default_int() if weights is None else amounts.type.dtype
    empty = basic.zeros(value(np.zeros((), dtype)).type.with_(shape=(static_size(length, "length of mnp.bincount"),)))
    return placed(At(empty)[clip(counted, 0)].add(amounts), None, out_sharding)


def builtin_max(a: int, b: int) -> int:
    """The larger of two Python numbers."""
    return a if a > b else b


def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Value:
    """Whether two arrays have one shape and equal elements."""
    equal_nan = static_flag(equal_nan, "equal_nan of mnp.array_equal")
    x, y = value(a1), value(a2)
    if x.shape != y.shape:
        return to_array(np.asarray(False))
    same = equal(x, y)
    return all_(logical_or(same, logical_and(isnan(x), isnan(y))) if equal_nan else same)


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Value:
    """Whether two arrays are equal after broadcasting."""
    x, y = value(a1), value(a2)
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return to_array(np.asarray(False))
    return all_(equal(x, y))


def allclose(
    a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08, equal_nan: bool = False
) -> Value:
    """Whether all elements are close, as ``isclose`` says."""
    equal_nan = static_flag(equal_nan, "equal_nan of mnp.allclose")
    return all_(isclose(a, b, rtol, atol, equal_nan))


def sort_complex(a: ArrayLike) -> Value:
    """The elements in increasing order along the last axis, as complex numbers.

    >>> import meshwright.numpy as mnp
    >>> mnp.sort_complex(mnp.array([2.0, 1.0]))
    Array([1.+0.j, 2.+0.j], dtype=complex64)
    """
    x = inexact(value(a))
    wide = dtypes.FLOAT64 if x.type.dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    return sort(
        x if dtypes.is_complex(x.type.dtype) else convert(x, promoted((wide, False), (dtypes.COMPLEX64, False))[0])
    )

"""Functions of ``meshwright.numpy`` about positions in arrays, and that apply functions along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.control import while_loop
from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    as_bool,
    as_dtype,
    axes_of,
    axis_of,
    convert,
    known,
    promoted_values,
    strong,
    value,
)
from meshwright.arrays.refusals import one_number
from meshwright.arrays.static import (
    items_of,
    no_negative,
    no_out,
    one_of,
    static_flag,
    static_shape,
    static_size,
    whole_numbers,
)
from meshwright.arrays.tracing import check_function
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.trace import Value as ValueClass
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, clip, floor_divide, multiply, remainder, subtract
from meshwright.numpy.creation import arange, diag_indices, ones, tril_indices, triu_indices
from meshwright.numpy.indexing import range_of
from meshwright.numpy.logic import absolute, either, equal, greater, less, not_equal
from meshwright.numpy.order import nonzero
from meshwright.numpy.reductions import any as any_
from meshwright.numpy.reductions import cumsum
from meshwright.numpy.shapes import broadcast_arrays, broadcast_to, concatenate, cut, moveaxis, ravel, resize
from meshwright.numpy.taking import inside, no_inplace, take
from meshwright.numpy.updates import At
from meshwright.ops import basic, elementwise


def ix_(*args: ArrayLike) -> tuple[Value, ...]:
    """Index arrays that together select a grid of rows and columns.

    >>> import meshwright.numpy as mnp
    >>> mnp.arange(12).reshape(3, 4)[mnp.ix_(mnp.array([0, 2]), mnp.array([1, 3]))]
    Array([[ 1,  3],
           [ 9, 11]], dtype=int32)
    """
    out = []
    for n, x in enumerate(map(value, args)):
        if x.ndim != 1:
            raise ShapeError(
                f"mnp.ix_ cannot take {x.type.short()}.", where=here(), why="each argument has one dim", fix="x.ravel()"
            )
        places = nonzero(x)[0] if x.type.dtype == dtypes.BOOL else x
        if not places.size:  # whatever dtype an empty list has
            places = convert(places, dtypes.default_int())
        shape = tuple(places.shape[0] if d == n else 1 for d in range(len(args)))
        out.append(basic.reshape(places, shape=shape))
    return tuple(out)


def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Value, ...]:
    """Places in a flattened array as places along each dim; those outside are moved in."""
    sizes = static_shape(shape)
    no_negative(sizes, "a size of mnp.unravel_index")
    given = integers(indices, "mnp.unravel_index")
    if isinstance(shape, ValueClass | np.ndarray):
        given, beside = promoted_values(given, shape)
        given = given if beside.type.weak else strong(given)
    kind = given.type.dtype
    # Sizes may be beyond the numbers of a narrow dtype.
    flat = given if kind.itemsize >= 4 else convert(given, dtypes.INT32, given.type.weak)
    out: list[Value] = []
    for n in reversed(sizes):
        out.append(remainder(flat, n))
        flat = floor_divide(flat, n)
    # What is left is 0 for places within the array, and -1 for those counted from its end.
    out = [either(greater(flat, 0), n - 1, place) for n, place in zip(reversed(sizes), out, strict=True)]
    if kind in dtypes.SIGNED:
        out = [either(less(flat, -1), 0, place) for place in out]
    return tuple(convert(place, kind) for place in reversed(out))


def integers(x: ArrayLike, name: str) -> Value:
    """A value of an integer dtype, or the error of the function that needs one."""
    x = value(x)
    if not dtypes.is_integer(x.type.dtype):
        raise ShapeError(
            f"{name} cannot take {x.type.short()}.", where=here(), why="it takes integers", fix="x.astype(int)"
        )
    return x


def ravel_multi_index(
    multi_index: Sequence[ArrayLike], dims: Any, mode: str = "raise", order: str = "C", *, dtype: DTypeLike = None
) -> Value:
    """Places along each dim as places in the flattened array. Those outside are an error, or with ``mode`` "clip" moved
    in, or with "wrap" counted around."""
    sizes = static_shape(dims)
    columns = [integers(x, "mnp.ravel_multi_index") for x in items_of(multi_index, "mnp.ravel_multi_index")]
    one_of(mode, ("raise", "clip", "wrap"), "mode of mnp.ravel_multi_index")
    one_of(order, ("C", "F"), "order of mnp.ravel_multi_index")
    if len(columns) != len(sizes):
        raise ShapeError(
            f"mnp.ravel_multi_index cannot take {len(columns)} arrays for {len(sizes)} dims.",
            where=here(),
            why="there is one array for each dim",
            fix="mnp.ravel_multi_index((rows, columns), x.shape, mode='clip')",
        )
    total: Any = 0
    pairs = list(zip(columns, sizes, strict=True))
    for places, n in pairs if order == "C" else reversed(pairs):
        if mode == "raise":
            name = "mnp.ravel_multi_index"
            inside(name, known(places, f"{name} with mode='raise'", "mode='clip' or mode='wrap' inside of jit"), n)
        within = remainder(places, n) if mode == "wrap" else clip(places, 0, n - 1)
        total = add(multiply(total, n), within)
    found = strong(value(total))
    return found if dtype is None else convert(found, as_dtype(dtype))


def _matrix(x: ArrayLike, name: str) -> tuple[int, int]:
    """The shape of a matrix."""
    found = value(x)
    if found.ndim != 2:
        raise ShapeError(f"{name} cannot take {found.type.short()}.", where=here(), why="it takes a matrix", fix="x[0]")
    return found.shape[0], found.shape[1]


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and below the ``k``-th diagonal of a matrix."""
    rows, columns = _matrix(arr, "mnp.tril_indices_from")
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and above the ``k``-th diagonal of a matrix."""
    rows, columns = _matrix(arr, "mnp.triu_indices_from")
    return triu_indices(rows, k, columns)


def fill_diagonal(a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = False) -> Value:
    """``a`` with ``val`` on its main diagonal. A new array."""
    static_flag(inplace, "inplace of mnp.fill_diagonal")
    wrap = static_flag(wrap, "wrap of mnp.fill_diagonal")
    no_inplace(inplace, "mnp.fill_diagonal")
    x, fill = value(a), value(val)
    if wrap or x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ShapeError(
            f"mnp.fill_diagonal cannot take {x.type.short()}{' with wrap=True' * bool(wrap)}.",
            where=here(),
            why="it fills the one diagonal of a matrix, or of an array whose dims are all equal",
            fix="wrap=False, and an array of two dims or more",
        )
    count = min(x.shape)
    return At(x)[(arange(count),) * x.ndim].set(resize(fill, (count,)) if fill.ndim else fill)


def compress(
    condition: ArrayLike, a: ArrayLike, axis: int | None = None, *, size: int | None = None, fill_value: ArrayLike = 0,
    out: None = None,
) -> Value:  # fmt: skip
    """The slices of ``a`` where a condition holds: a known one, or ``size`` of them, filled up with ``fill_value``."""
    no_out(out, "mnp.compress")
    given = value(condition)
    if given.ndim != 1:
        raise ShapeError(
            f"mnp.compress cannot take a condition of shape {given.shape}.",
            where=here(),
            why="it has one dim",
            fix="condition.ravel()",
        )
    x = value(a)
    x, dim = (ravel(x), 0) if axis is None else (x, axis_of(axis, x.ndim, "mnp.compress"))
    if size is None:
        fix = "give the size of the result: mnp.compress(condition, a, size=…)"
        kept = np.nonzero(np.asarray(known(given, "mnp.compress", fix)).astype(bool))[0].astype(np.int32)
        inside("mnp.compress", kept, x.shape[dim])
        return take(x, kept, dim)
    length = x.shape[dim]
    if static_size(size, "size of mnp.compress") > length:
        why = f"there are {length} slices to choose from"
        raise ShapeError(f"mnp.compress cannot choose {size}.", where=here(), why=why, fix=f"size={length}")
    if given.shape[0] > length:
        given = cut(given, 0, 0, length)
    (places,) = nonzero(given, size=size, fill_value=length)
    shape = tuple(places.shape[0] if d == dim else 1 for d in range(x.ndim))
    found = (
        take(x, places, dim, mode="clip")
        if length
        else basic.zeros(x.type.with_(shape=(*x.shape[:dim], places.shape[0], *x.shape[dim + 1 :])))
    )
    fill = convert(one_number(fill_value, "fill_value of mnp.compress", real=False), x.type.dtype)
    return either(basic.reshape(less(places, length), shape=shape), found, fill)


def extract(condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0) -> Value:
    """The elements of ``arr`` where a condition holds: a known one, or ``size`` of them, filled up."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Value:
    """``arr`` with ``values`` before known places of a dim, all counted in ``arr`` as it is.

    >>> import meshwright.numpy as mnp
    >>> mnp.insert(mnp.arange(4), [1, 3], mnp.array([7, 8]))
    Array([0, 7, 1, 2, 8, 3], dtype=int32)
    """
    x = value(arr)
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.insert")
    size = x.shape[dim]
    new = convert(value(values), x.type.dtype, x.type.weak)
    if isinstance(obj, slice):
        taken = range_of(obj, dim, size)
        places = taken.start + taken.step * np.arange(taken.length)
    else:
        places = np.asarray(known(value(obj), "mnp.insert", "give the places as Python integers"))
        if places.dtype == np.bool_:
            places = np.nonzero(places)[0]
        places = whole_numbers(places, "a place of mnp.insert")
    if places.ndim == 0 or places.size == 1:
        place = int(places.reshape(-1)[0])
        place = place + size if place < 0 else place
        inside("mnp.insert", place, size + 1)
        if new.ndim < x.ndim or not places.ndim:
            # One place takes as many rows as there are values, which stand along the dim they are put into.
            new = basic.reshape(new, shape=(1,) * (x.ndim - new.ndim) + new.shape)
            if not places.ndim:
                new = moveaxis(new, 0, dim)
        new = broadcast_to(new, (*x.shape[:dim], new.shape[dim], *x.shape[dim + 1 :]))
        return concatenate([cut(x, dim, 0, place), new, cut(x, dim, place, size)], dim)
    places = np.where(places < 0, places + size, places)
    inside("mnp.insert", places, size + 1)
    order = np.argsort(places, kind="stable")
    targets = places.copy()
    targets[order] += np.arange(places.size)
    kept = np.ones(size + places.size, bool)
    kept[targets] = False
    row = tuple(places.size if d == dim else n for d, n in enumerate(x.shape))
    new = broadcast_to(new, row)
    source = np.empty(kept.size, np.int32)
    source[kept], source[targets] = np.arange(size), size + np.arange(places.size)
    return take(concatenate([x, new], dim), source, dim)


def delete(arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Value:
    """``arr`` without the slices at known places of a dim, or at traced ones of which no two are the same."""
    x = value(arr)
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.delete")
    size = x.shape[dim]
    unique = static_flag(assume_unique_indices, "assume_unique_indices of mnp.delete")
    if isinstance(obj, slice):
        taken = range_of(obj, dim, size)
        gone = taken.start + taken.step * np.arange(taken.length)
    elif unique and (places := ravel(integers(obj, "mnp.delete"))).size <= size:
        mask = At(basic.broadcast_scalar(value(np.True_), (size,)))[places].set(False)
        return compress(mask, x, dim, size=size - places.size)
    else:
        fix = "give the places as Python integers, or assume_unique_indices=True"
        gone = np.asarray(known(value(obj), "mnp.delete", fix))
        if gone.size and gone.dtype != np.bool_:
            gone = whole_numbers(gone, "a place of mnp.delete")
            inside("mnp.delete", np.where(gone < 0, gone + size, gone), size)
        elif gone.size != size:
            inside("mnp.delete", gone.size, 1)
    kept = np.delete(np.arange(size, dtype=np.int32), gone if gone.size else [])
    return take(x, kept, dim)


def put(a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = True) -> Value:
    """``a`` with the values ``v``, repeated as needed, at places of the flattened array. A new array.

    >>> import meshwright.numpy as mnp
    >>> mnp.put(mnp.zeros(3), mnp.array([0, 2]), mnp.array([5.0, 6.0]), inplace=False)
    Array([5., 0., 6.], dtype=float32)
    """
    no_inplace(inplace, "mnp.put")
    one_of(mode, (None, "clip", "wrap"), "mode of mnp.put")
    x, places, new = value(a), ravel(integers(ind, "mnp.put")), ravel(v)
    if not places.size or not new.size:
        return x
    places = remainder(places, x.size) if mode == "wrap" else clip(places, 0 if mode == "clip" else -x.size, x.size - 1)
    return basic.reshape(At(ravel(x))[places].set(resize(new, (places.size,))), shape=x.shape)


def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Value:
    """``arr`` with ``vals``, one after the other and repeated as needed, where ``mask`` holds. A new array."""
    no_inplace(inplace, "mnp.place")
    x, chosen, new = value(arr), ravel(as_bool(mask)), ravel(vals)
    if chosen.size != x.size or not new.size:
        raise ShapeError(
            f"mnp.place cannot take {x.type.short()} with a mask of {chosen.size} and {new.size} values.",
            where=here(), why="the mask says of each element whether it is replaced, and there is one value or more",
            fix="mnp.place(x, x > 0, mnp.array([1.0]), inplace=False)",
        )  # fmt: skip
    nth = subtract(cumsum(convert(chosen, dtypes.default_int())), 1)
    found = take(convert(new, x.type.dtype), remainder(nth, new.size), mode="clip")
    return basic.reshape(either(chosen, found, ravel(x)), shape=x.shape)


def diag_indices_from(arr: ArrayLike) -> tuple[Value, ...]:
    """The places of the main diagonal of an array whose dims are all equal."""
    x = value(arr)
    if x.ndim < 2 or len(set(x.shape)) > 1:
        raise ShapeError(
            f"mnp.diag_indices_from cannot take {x.type.short()}.", where=here(),
            why="it has two dims or more, all of one size", fix="mnp.diag_indices(min(x.shape), x.ndim)",
        )  # fmt: skip
    return diag_indices(x.shape[0], x.ndim)


def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None) -> tuple[Value, ...]:
    """The places of an n x n array that a function of it, such as ``triu``, leaves nonzero."""
    check_function(mask_func, "mask_indices", "mnp.mask_indices(3, mnp.triu)")
    return nonzero(mask_func(ones((n, n), bool), k), size=size)


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: Any = None) -> Value:
    """A known array without the zeros before ("f") its first and after ("b") its last other element, in every dim.

    >>> import meshwright.numpy as mnp
    >>> mnp.trim_zeros(mnp.array([0, 1, 0, 2, 0]))
    Array([1, 0, 2], dtype=int32)
    """
    ends = one_of(trim.lower() if isinstance(trim, str) else trim, ("fb", "f", "b", "bf"), "trim of mnp.trim_zeros")
    x = value(filt)
    if not x.ndim:
        raise ShapeError(
            "mnp.trim_zeros cannot take one number.", where=here(), why="it has no ends", fix="x.reshape(1)"
        )
    filled = np.nonzero(np.asarray(known(x, "mnp.trim_zeros", "x[start:stop] with bounds that are Python integers")))
    for dim in axes_of(axis, x.ndim, "mnp.trim_zeros"):
        places, size = filled[dim], x.shape[dim]
        first, last = (int(places.min()), int(places.max()) + 1) if places.size else (size, 0)
        start, stop = first if "f" in ends else 0, last if "b" in ends else size
        x = cut(x, dim, start, max(start, stop))
    return x


def block(arrays: Any) -> Value:
    """An array put together from nested lists of blocks, the innermost along the last dim."""
    depth = _depth(arrays)
    if depth is None:
        raise ShapeError(
            "mnp.block cannot put these blocks together.",
            where=here(),
            why="lists are nested equally deep everywhere, and none is empty",
            fix="mnp.block([[a, b], [c, d]])",
        )
    rank = max(depth, max(value(x).ndim for x in _flat(arrays)))

    def build(part: Any, level: int) -> Value:
        if not isinstance(part, list):
            x = value(part)
            return basic.reshape(x, shape=(1,) * (rank - x.ndim) + x.shape)
        return concatenate([build(item, level + 1) for item in part], rank - depth + level)

    return build(arrays, 0)


def _depth(x: Any) -> int | None:
    """How deep lists are nested; None where that differs."""
    if not isinstance(x, list):
        return 0
    depths = set(map(_depth, x))
    inner = next(iter(depths), None)
    return None if len(depths) != 1 or inner is None else inner + 1


def _flat(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in _flat(item)] if isinstance(x, list) else [x]


def _whole_numbers(x: ArrayLike, y: ArrayLike, name: str) -> list[Value]:
    """The sizes of two integers, truth values among them, in one dtype."""
    found = [absolute(integers(v, name)) for v in promoted_values(x, y)]
    return [strong(v) for v in found] if found[0].ndim + found[1].ndim else found


def gcd(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The greatest common divisor, by Euclid's algorithm."""
    x, y = broadcast_arrays(*_whole_numbers(x1, x2, "mnp.gcd"))

    def step(pair: tuple[Value, Value]) -> tuple[Value, Value]:
        a, b = pair
        going = not_equal(b, 0)
        return either(going, b, a), either(going, elementwise.rem(a, either(going, b, 1)), 0)

    found, _ = while_loop(lambda pair: any_(not_equal(pair[1], 0)), step, (x, y))
    return found  # type: ignore[no-any-return]


def lcm(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The least common multiple."""
    x, y = _whole_numbers(x1, x2, "mnp.lcm")
    divisor = gcd(x, y)
    return multiply(x, floor_divide(y, either(equal(divisor, 0), 1, divisor)))

"""Functions of ``meshwright.numpy`` about positions in arrays, and that apply functions along axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.control import while_loop
from meshwright.api.vmap import vmap
from meshwright.arrays.operands import (
    ArrayLike,
    axis_of,
    broadcast_shapes,
    convert,
    known,
    promoted_values,
    strong,
    value,
)
from meshwright.arrays.static import items_of, no_negative, one_of, static_flag, static_int, static_shape, whole_numbers
from meshwright.arrays.tracing import check_function
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.trace import Value as ValueClass
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, clip, floor_divide, multiply, remainder
from meshwright.numpy.creation import arange, tril_indices, triu_indices
from meshwright.numpy.indexing import range_of
from meshwright.numpy.logic import absolute, either, equal, greater, less, not_equal
from meshwright.numpy.order import nonzero
from meshwright.numpy.reductions import any as any_
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


def ravel_multi_index(multi_index: Sequence[ArrayLike], dims: Any, mode: str = "raise", order: str = "C") -> Value:
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
    return strong(value(total))


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


def compress(condition: ArrayLike, a: ArrayLike, axis: int | None = None) -> Value:
    """The slices of ``a`` where a known condition holds."""
    mask = np.asarray(known(value(condition), "mnp.compress", "mnp.where(condition, a, 0) keeps the shape"))
    if mask.ndim != 1:
        raise ShapeError(
            f"mnp.compress cannot take a condition of shape {mask.shape}.",
            where=here(),
            why="it has one dim",
            fix="condition.ravel()",
        )
    kept = np.nonzero(mask.astype(bool))[0].astype(np.int32)
    x = value(a)
    inside("mnp.compress", kept, x.size if axis is None else x.shape[axis_of(axis, x.ndim, "mnp.compress")])
    return take(x, kept, axis)


def extract(condition: ArrayLike, arr: ArrayLike) -> Value:
    """The elements of ``arr`` where a known condition holds."""
    return compress(ravel(condition), ravel(arr))


def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Value:
    """``arr`` with ``values`` before a known place of a dim."""
    x = value(arr)
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.insert")
    place = static_int(obj, "the place of mnp.insert")
    place = place + x.shape[dim] if place < 0 else place
    inside("mnp.insert", place, x.shape[dim] + 1)
    new = convert(value(values), x.type.dtype, x.type.weak)
    if new.ndim < x.ndim:
        new = broadcast_to(new, (*x.shape[:dim], *x.shape[dim + 1 :]))
        new = basic.reshape(new, shape=(*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return concatenate([cut(x, dim, 0, place), new, cut(x, dim, place, x.shape[dim])], dim)


def delete(arr: ArrayLike, obj: Any, axis: int | None = None) -> Value:
    """``arr`` without the slices at known places of a dim."""
    x = value(arr)
    if axis is None:
        x, axis = ravel(x), 0
    dim = axis_of(axis, x.ndim, "mnp.delete")
    size = x.shape[dim]
    if isinstance(obj, slice):
        taken = range_of(obj, dim, size)
        gone = taken.start + taken.step * np.arange(taken.length)
    else:
        gone = np.asarray(known(value(obj), "mnp.delete", "give the places as Python integers"))
        if gone.size and gone.dtype != np.bool_:
            gone = whole_numbers(gone, "a place of mnp.delete")
            inside("mnp.delete", np.where(gone < 0, gone + size, gone), size)
        elif gone.size != size:
            inside("mnp.delete", gone.size, 1)
    kept = np.delete(np.arange(size, dtype=np.int32), gone if gone.size else [])
    return take(x, kept, dim)


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


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Value:
    """A function of vectors applied to every one along a dim."""
    check_function(func1d, "apply_along_axis", "mnp.apply_along_axis(f, 0, x)")
    x = value(arr)
    dim = axis_of(axis, x.ndim, "mnp.apply_along_axis")
    rows = moveaxis(x, dim, -1)
    function: Callable[[Value], Any] = lambda row: func1d(row, *args, **kwargs)
    for _ in range(x.ndim - 1):
        function = vmap(function)
    out = value(function(rows))
    new = out.ndim - (x.ndim - 1)
    first = x.ndim - 1
    return moveaxis(out, tuple(range(first, first + new)), tuple(range(dim, dim + new)))


_DIMS = r"\((\w+(,\w+)*)?\)"
_SIGNATURE = rf"{_DIMS}(,{_DIMS})*->{_DIMS}(,{_DIMS})*"


def vectorize(pyfunc: Callable[..., Any], *, excluded: Any = frozenset(), signature: str | None = None) -> Any:
    """A function of scalars (or, by ``signature``, of arrays of fewer dims) that broadcasts over the other dims.

    >>> import meshwright.numpy as mnp
    >>> dot = mnp.vectorize(mnp.dot, signature="(n),(n)->()")
    >>> dot(mnp.ones((4, 1, 3)), mnp.ones((5, 3))).shape
    (4, 5)
    """
    check_function(pyfunc, "vectorize", "mnp.vectorize(f)(x)")
    if signature is not None and not re.fullmatch(_SIGNATURE, str(signature).replace(" ", "")):
        raise ShapeError(
            f"mnp.vectorize cannot read the signature {signature!r}.",
            where=here(),
            why="it names the dims of arguments and results: '(m,n),(n)->(m)'",
            fix="signature='(n),(n)->()'",
        )
    cores = None if signature is None else [_core_rank(part) for part in _arguments(signature)]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = [n for n in range(len(args)) if n not in excluded]
        values = [value(args[n]) for n in chosen]
        ranks = cores or [0] * len(values)
        if len(ranks) != len(values):
            raise ShapeError(
                f"A vectorized function got {len(values)} arguments.",
                where=here(),
                why=f"its signature {signature!r} has {len(ranks)}",
                fix="excluded={…} names those that are passed on as they are",
            )
        loops = [x.shape[: x.ndim - r] for x, r in zip(values, ranks, strict=True)]
        common = broadcast_shapes(*loops) if loops else ()
        if common is None:
            raise ShapeError(
                f"A vectorized function cannot broadcast {', '.join(map(str, loops))}.",
                where=here(),
                why="the dims it loops over must be equal or 1",
                fix="x[:, None] adds a dim of size 1",
            )

        def function(*parts: Any) -> Any:
            given = list(args)
            for n, part in zip(chosen, parts, strict=True):
                given[n] = part
            return pyfunc(*given, **kwargs)

        # From the innermost loop outwards: an argument without the dim, or with size 1, is the same for all.
        for d in range(len(common)):
            place = -1 - d
            axes = [0 if -place <= len(s) and s[place] != 1 else None for s in loops]
            if any(a == 0 for a in axes):
                function = vmap(function, in_axes=tuple(axes))
        squeezed = [
            basic.reshape(x, shape=tuple(n for n in s if n != 1) + x.shape[len(s) :])
            for x, s in zip(values, loops, strict=True)
        ]
        out = function(*squeezed)
        return _with_loops(out, common)

    return wrapped


def _with_loops(out: Any, common: tuple[int, ...]) -> Any:
    """Results with the loop dims of size 1 that no vmap made."""
    if isinstance(out, tuple):
        return tuple(_with_loops(x, common) for x in out)
    out = value(out)
    kept = sum(n != 1 for n in common)
    return basic.reshape(out, shape=common + out.shape[kept:])


def _arguments(signature: str) -> list[str]:
    return signature.replace(" ", "").split("->")[0].strip("()").split("),(")


def _core_rank(part: str) -> int:
    return len([name for name in part.split(",") if name])


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

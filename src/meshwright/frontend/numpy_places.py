"""Functions of ``meshwright.numpy`` about places in arrays, and that apply functions along them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.errors import ShapeError
from meshwright.frontend.batching import vmap
from meshwright.frontend.control import while_loop
from meshwright.frontend.indexing_update import At
from meshwright.frontend.numpy_arithmetic import add, clip, floor_divide, multiply, remainder
from meshwright.frontend.numpy_creation import arange, tril_indices, triu_indices
from meshwright.frontend.numpy_logic import absolute, either, equal, not_equal
from meshwright.frontend.numpy_order import nonzero
from meshwright.frontend.numpy_reduction import any as any_
from meshwright.frontend.numpy_shape import broadcast_arrays, broadcast_to, concatenate, cut, moveaxis, ravel
from meshwright.frontend.numpy_take import take
from meshwright.frontend.operands import (
    ArrayLike,
    axis_of,
    broadcast_shapes,
    convert,
    known,
    promote_operands,
    static_int,
    static_shape,
    value,
)
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
        places = nonzero(x)[0] if x.type.dtype == dtypes.BOOL else x
        shape = tuple(places.shape[0] if d == n else 1 for d in range(len(args)))
        out.append(basic.reshape(places, shape=shape))
    return tuple(out)


def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Value, ...]:
    """Places in a flattened array as places along each dim; those outside are moved in."""
    sizes = static_shape(shape)
    flat = value(indices)
    total = prod(sizes)
    flat = clip(flat, -total, total - 1)
    out: list[Value] = []
    for n in reversed(sizes):
        out.append(remainder(flat, n))
        flat = floor_divide(flat, n)
    return tuple(reversed(out))


def ravel_multi_index(multi_index: Sequence[ArrayLike], dims: Any, mode: str = "clip", order: str = "C") -> Value:
    """Places along each dim as places in the flattened array."""
    sizes = static_shape(dims)
    pairs = list(zip((value(x) for x in multi_index), sizes, strict=True))
    total: Any = 0
    for places, n in pairs if order == "C" else reversed(pairs):
        inside = remainder(places, n) if mode == "wrap" else clip(places, 0, n - 1)
        total = add(multiply(total, n), inside)
    return value(total)


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and below the ``k``-th diagonal of a matrix."""
    rows, columns = value(arr).shape
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and above the ``k``-th diagonal of a matrix."""
    rows, columns = value(arr).shape
    return triu_indices(rows, k, columns)


def fill_diagonal(a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = False) -> Value:
    """``a`` with ``val`` on its main diagonal. A new array."""
    x = value(a)
    places = arange(min(x.shape))
    return At(x)[(places,) * x.ndim].set(val)


def compress(condition: ArrayLike, a: ArrayLike, axis: int | None = None) -> Value:
    """The slices of ``a`` where a known condition holds."""
    mask = np.asarray(known(value(condition), "mnp.compress", "mnp.where(condition, a, 0) keeps the shape"))
    return take(a, np.nonzero(mask.astype(bool))[0].astype(np.int32), axis)


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
    new = convert(value(values), x.type.dtype)
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
    gone = obj if isinstance(obj, slice) else known(value(obj), "mnp.delete", "give the places as Python integers")
    kept = np.delete(np.arange(x.shape[dim], dtype=np.int32), gone)
    return take(x, kept, dim)


def block(arrays: Any) -> Value:
    """An array put together from nested lists of blocks, the innermost along the last dim."""
    depth = _depth(arrays)
    rank = max(depth, max(value(x).ndim for x in _flat(arrays)))

    def build(part: Any, level: int) -> Value:
        if not isinstance(part, list):
            x = value(part)
            return basic.reshape(x, shape=(1,) * (rank - x.ndim) + x.shape)
        return concatenate([build(item, level + 1) for item in part], rank - depth + level)

    return build(arrays, 0)


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x)) if isinstance(x, list) else 0


def _flat(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in _flat(item)] if isinstance(x, list) else [x]


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Value:
    """A function of vectors applied to every one along a dim."""
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


def vectorize(pyfunc: Callable[..., Any], *, excluded: Any = frozenset(), signature: str | None = None) -> Any:
    """A function of scalars (or, by ``signature``, of arrays of fewer dims) that broadcasts over the other dims.

    >>> import meshwright.numpy as mnp
    >>> dot = mnp.vectorize(mnp.dot, signature="(n),(n)->()")
    >>> dot(mnp.ones((4, 1, 3)), mnp.ones((5, 3))).shape
    (4, 5)
    """
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


def gcd(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The greatest common divisor, by Euclid's algorithm."""
    x, y = (absolute(v) for v in broadcast_arrays(*promote_operands((value(x1), value(x2)))))

    def step(pair: tuple[Value, Value]) -> tuple[Value, Value]:
        a, b = pair
        going = not_equal(b, 0)
        return either(going, b, a), either(going, elementwise.rem(a, either(going, b, 1)), 0)

    found, _ = while_loop(lambda pair: any_(not_equal(pair[1], 0)), step, (x, y))
    return found  # type: ignore[no-any-return]


def lcm(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The least common multiple."""
    x, y = (absolute(v) for v in promote_operands((value(x1), value(x2))))
    divisor = gcd(x, y)
    return multiply(x, floor_divide(y, either(equal(divisor, 0), 1, divisor)))

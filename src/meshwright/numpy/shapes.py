"""Functions of ``meshwright.numpy`` that rearrange, join and cut arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    Axis,
    as_dtype,
    axes_of,
    axis_of,
    broadcast,
    common_shape,
    convert,
    known,
    promote_operands,
    stack_values,
    value,
)
from meshwright.arrays.operands import broadcast_shapes as joint_shape
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import (
    items_of,
    no_negative,
    no_out,
    one_of,
    placed,
    static_int,
    static_shape,
    whole_numbers,
)
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.ops import basic
from meshwright.ops import shape as shape_ops
from meshwright.ops.layout import whole_along

# Shape, rank, size


def shape(a: ArrayLike) -> Shape:
    """The shape of ``a``."""
    return a.shape if hasattr(a, "shape") else value(a).shape  # type: ignore[no-any-return]


def ndim(a: ArrayLike) -> int:
    """How many dims ``a`` has."""
    return len(shape(a))


def size(a: ArrayLike, axis: Axis = None) -> int:
    """How many elements ``a`` has, in all or along one axis or several."""
    sizes = shape(a)
    return prod(sizes[d] for d in axes_of(axis, len(sizes), "mnp.size"))


# Rearranging


@lru_cache(maxsize=4096)
def _fill_in(size: int, shape: Shape) -> Shape | None:
    """``shape`` with its one -1 computed, or None where the elements do not fill it."""
    if -1 in shape:
        rest = -prod(shape)
        if shape.count(-1) > 1 or rest <= 0 or size % rest:
            return None
        return tuple(size // rest if n == -1 else n for n in shape)
    return shape if prod(shape) == size else None


@compiled_in_kernels
def reshape(a: ArrayLike, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Value:
    """The elements of ``a`` in another shape; one size may be -1.

    >>> import meshwright.numpy as mnp
    >>> mnp.arange(6).reshape(2, -1).shape
    (2, 3)
    """
    x = a if a.__class__ in VALUES else value(a)
    wanted = static_shape(shape)
    have = x.type
    found = _fill_in(have.size, wanted)
    if found is None:
        raise ShapeError(
            f"{have.short()} cannot be reshaped to {wanted}.",
            where=here(),
            why=_why_no_reshape(have.size, wanted),
            fix=f"a shape of {have.size} elements, e.g. x.reshape({_a_shape(have.size, wanted)})",
        )
    one_of(order, ("C", "F"), "order of mnp.reshape")
    if order == "F":
        made = transpose(apply(basic.reshape, (transpose(x),), {"shape": found[::-1]}))
    else:
        if (
            out_sharding is not None and have.sharding is not None
        ):  # it may ask for what the operand's layout does not say
            x = whole_along(x, range(1, have.ndim))
        made = x if found == have.shape else apply(basic.reshape, (x,), {"shape": found})
    return made if out_sharding is None else placed(made, None, out_sharding)


def _why_no_reshape(size: int, shape: Shape) -> str:
    if shape.count(-1) > 1:
        return "only one size may be -1"
    if -1 in shape:
        return f"{size} elements are not divisible by {-prod(shape)}"
    return f"it has {size} elements, and {' * '.join(map(str, shape)) or '()'} is {prod(shape)}"


def _a_shape(size: int, wanted: Shape) -> str:
    for n in wanted:
        if n > 1 and size % n == 0:
            return f"-1, {n}"
    return "-1"


def ravel(a: ArrayLike, order: str = "C", *, out_sharding: Any = None) -> Value:
    """The elements of ``a`` in one dim."""
    return reshape(a, (-1,) if value(a).size else (0,), order, out_sharding=out_sharding)


@lru_cache(maxsize=1024)
def _reversed_dims(rank: int) -> tuple[int, ...]:
    return tuple(range(rank - 1, -1, -1))


@compiled_in_kernels
def transpose(a: ArrayLike, axes: Any = None) -> Value:
    """``a`` with its dims in the order ``axes``, by default reversed."""
    x = a if a.__class__ in VALUES else value(a)
    rank = x.type.ndim
    if axes is None:
        order = _reversed_dims(rank)
    else:
        order = tuple(axis_of(d, rank, "mnp.transpose") for d in _sequence(axes))
        if len(order) != rank or len(set(order)) != rank:
            raise ShapeError(
                f"mnp.transpose cannot take axes={order} of {x.type.short()}.",
                where=here(),
                why=f"the axes are each of 0 to {rank - 1} once",
                fix=f"mnp.transpose(x, {_reversed_dims(rank)})",
            )
    return x if order == tuple(range(rank)) else apply(basic.transpose, (x,), {"permutation": order})


def permute_dims(a: ArrayLike, axes: Any) -> Value:
    """``a`` with its dims in the order ``axes``."""
    return transpose(a, axes)


def matrix_transpose(x: ArrayLike, /) -> Value:
    """``x`` with its last two dims exchanged."""
    x = value(x)
    if x.ndim < 2:
        raise ShapeError(
            f"{x.type.short()} is not a matrix.", where=here(), why="the last two dims are exchanged", fix="x[:, None]"
        )
    return swapaxes(x, -1, -2)


@compiled_in_kernels
def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Value:
    """``a`` with two dims exchanged."""
    x = value(a)
    first, second = (axis_of(d, x.ndim, "mnp.swapaxes") for d in (axis1, axis2))
    if first == second:
        return x
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return basic.transpose(x, permutation=tuple(order))


def moveaxis(a: ArrayLike, source: Any, destination: Any) -> Value:
    """``a`` with some dims moved to new positions, the others in order."""
    x = value(a)
    sources = [axis_of(d, x.ndim, "mnp.moveaxis") for d in _sequence(source)]
    targets = [axis_of(d, x.ndim, "mnp.moveaxis") for d in _sequence(destination)]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(
            f"mnp.moveaxis cannot move {source} to {destination}.",
            where=here(),
            why="each moved dim needs one position of its own",
            fix="mnp.moveaxis(x, 0, -1)",
        )
    order = [d for d in range(x.ndim) if d not in sources]
    for target, moved in sorted(zip(targets, sources, strict=True)):
        order.insert(target, moved)
    return transpose(x, tuple(order))


def _sequence(x: Any) -> Sequence[Any]:
    return x if isinstance(x, list | tuple) else (x,)


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Value:
    """``a`` with one dim moved to stand before position ``start``."""
    x = value(a)
    moved = axis_of(axis, x.ndim, "mnp.rollaxis")
    place = static_int(start, "start of mnp.rollaxis")
    start = place + x.ndim if place < 0 else place
    if not 0 <= start <= x.ndim:
        raise ShapeError(
            f"mnp.rollaxis cannot take start={place} of an array of rank {x.ndim}.",
            where=here(),
            why=f"it is one of {-x.ndim} to {x.ndim}",
            fix="start=0",
        )
    return moveaxis(x, moved, start - 1 if moved < start else start)


@compiled_in_kernels
def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Value:
    """``a`` with new dims of size 1 at the positions ``axis``."""
    x = value(a)
    given = _sequence(axis)
    places = {axis_of(d, x.ndim + len(given), "mnp.expand_dims") for d in given}
    if len(places) != len(given):
        raise ShapeError(
            f"mnp.expand_dims cannot take axis={axis}.", where=here(), why="it names a dim twice", fix="axis=(0, 1)"
        )
    sizes = iter(x.shape)
    longer = tuple(1 if d in places else next(sizes) for d in range(x.ndim + len(places)))
    return basic.reshape(x, shape=longer)


@compiled_in_kernels
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Value:
    """``a`` without its dims of size 1, or without those at ``axis``."""
    x = value(a)
    if axis is None:
        dropped: tuple[int, ...] = tuple(d for d, n in enumerate(x.shape) if n == 1)
    else:
        dropped = axes_of(axis, x.ndim, "mnp.squeeze")
        wrong = [d for d in dropped if x.shape[d] != 1]
        if wrong:
            raise ShapeError(
                f"mnp.squeeze cannot drop dim {wrong[0]} of {x.type.short()}.",
                where=here(),
                why=f"its size is {x.shape[wrong[0]]}, not 1",
                fix=f"x.reshape(…), or take one element: mnp.take(x, 0, axis={wrong[0]})",
            )
    if not dropped:
        return x
    return basic.reshape(x, shape=tuple(n for d, n in enumerate(x.shape) if d not in dropped))


def atleast_1d(*arrays: ArrayLike) -> Any:
    """Each array with one dim or more."""
    return _each([x if x.ndim >= 1 else basic.reshape(x, shape=(1,)) for x in map(value, arrays)])


def atleast_2d(*arrays: ArrayLike) -> Any:
    """Each array with two dims or more, new ones first."""
    return _each(
        [x if x.ndim >= 2 else basic.reshape(x, shape=(1,) * (2 - x.ndim) + x.shape) for x in map(value, arrays)]
    )


def atleast_3d(*arrays: ArrayLike) -> Any:
    """Each array with three dims or more: a vector's stands in the middle, a matrix's first."""
    out = []
    for x in map(value, arrays):
        if x.ndim < 2:
            x = basic.reshape(x, shape=(1, x.size, 1))
        elif x.ndim == 2:
            x = basic.reshape(x, shape=(*x.shape, 1))
        out.append(x)
    return _each(out)


def _each(found: list[Value]) -> Any:
    return found[0] if len(found) == 1 else found


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that ``shapes`` broadcast to."""
    sizes = [static_shape(s) for s in shapes]
    for s in sizes:
        no_negative(s, "a size of broadcast_shapes")
    found = joint_shape(*sizes) if shapes else ()
    if found is None:
        raise ShapeError(
            f"Shapes {', '.join(map(str, sizes))} do not broadcast.",
            where=here(),
            why="counted from the right, sizes are equal or 1",
            fix="x[:, None] adds a dim of size 1",
        )
    return found


@compiled_in_kernels
def broadcast_to(array: ArrayLike, shape: Any, *, out_sharding: Any = None) -> Value:
    """``array`` repeated along new dims and dims of size 1 to fill ``shape``."""
    x, wanted = value(array), static_shape(shape)
    no_negative(wanted, "a size of mnp.broadcast_to")
    if len(wanted) < x.ndim or joint_shape(x.shape, wanted) != wanted:
        raise ShapeError(
            f"{x.type.short()} cannot be broadcast to {wanted}.",
            where=here(),
            why="counted from the right, each dim keeps its size or grows from 1",
            fix=f"x[..., None] adds a dim at the end; a shape that ends in {x.shape}",
        )
    return placed(broadcast(x, wanted), None, out_sharding)


def broadcast_arrays(*args: ArrayLike) -> list[Value]:
    """The arrays in the one shape they broadcast to."""
    values = [value(x) for x in args]
    common = common_shape("mnp.broadcast_arrays", *values)
    return [broadcast(x, common) for x in values]


# Joining and cutting


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Value:
    """The arrays one after another along a dim they have.

    >>> import meshwright.numpy as mnp
    >>> mnp.concatenate([mnp.array([1, 2]), mnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    parts = [value(x) for x in items_of(arrays, "mnp.concatenate")]
    if not parts:
        raise ShapeError("mnp.concatenate got no arrays.", where=here(), why="it joins one or more", fix="mnp.zeros(0)")
    parts = promote_operands(parts)
    if axis is None:
        parts, axis = [ravel(x) for x in parts], 0
    if parts[0].ndim == 0:
        raise ShapeError(
            "mnp.concatenate cannot join rank-0 arrays.", where=here(), why="they have no dim", fix="mnp.stack([…])"
        )
    dim = axis_of(axis, parts[0].ndim, "mnp.concatenate")
    first = parts[0].shape
    for x in parts:
        if len(x.shape) != len(first) or any(n != m for d, (n, m) in enumerate(zip(x.shape, first)) if d != dim):
            raise ShapeError(
                f"mnp.concatenate cannot join {parts[0].type.short()} and {x.type.short()} along dim {dim}.",
                where=here(),
                why="the shapes may differ in that dim only",
                fix="mnp.reshape or mnp.pad one of them first; mnp.stack makes a new dim",
            )
    joined = parts[0] if len(parts) == 1 else shape_ops.concatenate(*parts, dim=dim)
    return joined if dtype is None else convert(joined, as_dtype(dtype))


concat = concatenate


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Value:
    """Arrays of one shape along a new dim."""
    no_out(out, "mnp.stack")
    given = items_of(arrays, "mnp.stack")
    parts = promote_operands([value(x) for x in given]) if given else []
    if not parts or any(x.shape != parts[0].shape for x in parts):
        shown = ", ".join(x.type.short() for x in parts)
        raise ShapeError(
            f"mnp.stack cannot stack {shown or 'nothing'}.",
            where=here(),
            why="it takes one array or more of one shape",
            fix="mnp.concatenate joins arrays along a dim they have",
        )
    stacked = stack_values(parts, axis_of(axis, parts[0].ndim + 1, "mnp.stack"))
    return stacked if dtype is None else convert(stacked, as_dtype(dtype))


def vstack(tup: Any, dtype: Any = None) -> Value:
    """The arrays under one another."""
    return concatenate([atleast_2d(x) for x in items_of(tup, "mnp.vstack")], 0, dtype)


def hstack(tup: Any, dtype: Any = None) -> Value:
    """The arrays side by side."""
    parts = [atleast_1d(x) for x in items_of(tup, "mnp.hstack")]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Value:
    """The arrays behind one another."""
    return concatenate([atleast_3d(x) for x in items_of(tup, "mnp.dstack")], 2, dtype)


def column_stack(tup: Any) -> Value:
    """Vectors as the columns of a matrix."""
    columns = map(value, items_of(tup, "mnp.column_stack"))
    return concatenate([x if x.ndim >= 2 else basic.reshape(x, shape=(x.size, 1)) for x in columns], 1)


def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Value:
    """``arr`` and ``values`` joined, flattened unless ``axis`` is given."""
    return concatenate([arr, values], axis)


def cut(x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """``x[start:stop:step]`` along one dim."""
    if start == 0 and stop == x.shape[dim] and step == 1:
        return x
    zeros = (0,) * x.ndim
    return apply(
        shape_ops.slice_,
        (x,),
        {
            "starts": (*zeros[:dim], start, *zeros[dim + 1 :]),
            "limits": (*x.shape[:dim], stop, *x.shape[dim + 1 :]),
            "strides": tuple(step if d == dim else 1 for d in range(x.ndim)),
        },
    )


def _are_places(x: Any) -> bool:
    """Whether ``split`` is told where to cut, and not into how many parts."""
    return isinstance(x, list | tuple) or getattr(x, "ndim", 0) > 0


MOST_PARTS = 2**20  # each is an array of its own


def array_split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Value]:
    """``ary`` cut along a dim: before the given places, or into so many parts of nearly equal size."""
    x = value(ary)
    dim = axis_of(axis, x.ndim, "mnp.split")
    length = x.shape[dim]
    if _are_places(indices_or_sections):
        fix = "give the places as Python integers"
        given = np.asarray(known(value(indices_or_sections), "mnp.split", fix))
        if given.ndim != 1:
            raise ShapeError(
                f"mnp.split cannot cut at places of shape {given.shape}.",
                where=here(),
                why="they have one dim",
                fix="mnp.split(x, [1, 3])",
            )
        places = whole_numbers(given.astype(int) if not given.size else given, "a place of mnp.split").ravel().tolist()
        edges = [0, *(min(max(n + length if n < 0 else n, 0), length) for n in places), length]
    else:
        parts = static_int(indices_or_sections, "the number of parts of mnp.split")
        if not 1 <= parts <= MOST_PARTS:
            raise ShapeError(
                f"mnp.array_split cannot cut {x.type.short()} into {parts} parts.",
                where=here(),
                why=f"there is one part or more, and at most {MOST_PARTS}",
                fix="mnp.array_split(x, 2)",
            )
        small, larger = divmod(length, parts)
        edges = [0]
        for n in range(parts):
            edges.append(edges[-1] + small + (n < larger))
    return [cut(x, dim, a, max(a, b)) for a, b in pairwise(edges)]


def split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Value]:
    """``ary`` cut along a dim: before the given places, or into so many parts of equal size."""
    x = value(ary)
    if not _are_places(indices_or_sections):
        parts = static_int(indices_or_sections, "the number of parts of mnp.split")
        length = x.shape[axis_of(axis, x.ndim, "mnp.split")]
        if parts <= 0 or length % parts:
            raise ShapeError(
                f"mnp.split cannot cut {x.type.short()} along dim {axis} into {parts} parts.",
                where=here(),
                why=f"{length} is not divisible by {parts}",
                fix=f"mnp.array_split(x, {parts}, axis={axis}) makes parts of nearly equal size",
            )
    return array_split(x, indices_or_sections, axis)


def vsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Value]:
    """``ary`` cut along its first dim."""
    return split(ary, indices_or_sections, 0)


def hsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Value]:
    """``ary`` cut along its second dim, a vector along its only one."""
    return split(ary, indices_or_sections, 0 if ndim(ary) == 1 else 1)


def dsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Value]:
    """``ary`` cut along its third dim."""
    return split(ary, indices_or_sections, 2)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Value, ...]:
    """The slices of ``x`` along a dim."""
    x = value(x)
    dim = axis_of(axis, x.ndim, "mnp.unstack")
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    return tuple(basic.reshape(cut(x, dim, n, n + 1), shape=rest) for n in range(x.shape[dim]))


# Repeating, turning, padding


def tile(A: ArrayLike, reps: Any) -> Value:
    """``A`` repeated ``reps`` times along each dim."""
    x = value(A)
    counts = static_shape(reps, "reps of mnp.tile")
    no_negative(counts, "a count of mnp.tile")
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    spread = tuple(n for pair in zip(counts, sizes, strict=True) for n in pair)
    repeated = basic.broadcast_in_dim(x, shape=spread, dims=tuple(range(1, 2 * rank, 2))[rank - x.ndim :])
    return basic.reshape(repeated, shape=tuple(c * n for c, n in zip(counts, sizes, strict=True)))


def flip(m: ArrayLike, axis: Any = None) -> Value:
    """``m`` in reverse order along some dims, or all."""
    x = value(m)
    return shape_ops.reverse(x, dims=axes_of(axis, x.ndim, "mnp.flip"))


def fliplr(m: ArrayLike) -> Value:
    """``m`` reversed along its second dim."""
    return flip(m, 1)


def flipud(m: ArrayLike) -> Value:
    """``m`` reversed along its first dim."""
    return flip(m, 0)


def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Value:
    """``m`` turned by ``k`` quarters from the first of ``axes`` towards the second."""
    x = value(m)
    if not isinstance(axes, list | tuple) or len(axes) != 2:
        raise ShapeError(f"mnp.rot90 cannot take {axes=}.", where=here(), why="they are two dims", fix="axes=(0, 1)")
    first, second = (axis_of(d, x.ndim, "mnp.rot90") for d in axes)
    if first == second:
        raise ShapeError(f"mnp.rot90 cannot take {axes=}.", where=here(), why="they are two dims", fix="axes=(0, 1)")
    match static_int(k, "k of mnp.rot90") % 4:
        case 0:
            return x
        case 1:
            return swapaxes(flip(x, second), first, second)
        case 2:
            return flip(x, (first, second))
    return flip(swapaxes(x, first, second), second)


def resize(a: ArrayLike, new_shape: Any) -> Value:
    """The elements of ``a``, repeated or cut off, in another shape."""
    x, wanted = ravel(a), static_shape(new_shape)
    no_negative(wanted, "a size of mnp.resize")
    if x.size == 0:
        return broadcast(basic.scalar_like(x, 0), wanted)
    copies = -(-prod(wanted) // x.size)
    return reshape(cut(tile(x, copies), 0, 0, prod(wanted)), wanted)

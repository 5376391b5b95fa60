"""``x[…]`` and ``x.at[…]``: everything NumPy's basic and advanced indexing allows.

An index is read once into items (a range of a dim, a position along a dim, a new dim), and these become the cheapest
ops that do: slices and reverses where all is known, a dynamic_slice for traced scalars, a gather or scatter else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.operands import broadcast, broadcast_shapes, convert, not_known, promote_operands, value
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.limits import refuse_unheld
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, Value, apply, concrete, to_array
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import Shape, TensorType
from meshwright.errors import IndexingError, ShapeError, ShardingError, TracedMaskError
from meshwright.numpy.logic import either
from meshwright.ops import basic, elementwise, indexing
from meshwright.ops import shape as shape_ops
from meshwright.ops.gathering import read_windows

# Reading an index


class Range(NamedTuple):
    """``start, start + step, …``: ``length`` places along a dim."""

    dim: int
    start: int
    length: int
    step: int


class Position(NamedTuple):
    """One place along a dim, or an array of them. ``dim`` is None for a lone boolean, which uses up no dim."""

    dim: int | None
    at: Any  # an int, a NumPy array of integers, or a tracer; counted from the left, perhaps outside


class NewDim(NamedTuple):
    """A dim of size 1 that the array does not have."""


Item = Range | Position | NewDim


def read_index(x: Value, key: Any, clamp: bool = False, wrap: bool = True) -> list[Item]:
    """The items of an index, one per dim of ``x`` and per new dim. ``clamp`` lets known positions lie outside; without
    ``wrap`` those below 0 do, instead of being counted from the end."""
    shape = x.type.shape
    entries = list(key) if isinstance(key, tuple) else [key]
    entries = [_entry(e) for e in entries]
    used = sum(_dims_used(e) for e in entries)
    if used > len(shape):
        raise IndexingError(
            f"{used} indices for an array {x.type} of rank {len(shape)}.",
            where=here(),
            why="there is at most one index per dim",
            fix=f"x[{', '.join([':'] * len(shape))}] has them all" if shape else "x itself, or x[None]",
        )
    dots = [n for n, e in enumerate(entries) if e is Ellipsis]
    if len(dots) > 1:
        raise IndexingError(
            "An index has '...' twice.", where=here(), why="it stands for all dims not named", fix="keep one"
        )
    place = dots[0] if dots else len(entries)
    full = [slice(None)] * (len(shape) - used)
    entries = entries[:place] + full + entries[place + len(dots) :]
    items: list[Item] = []
    dim = 0
    for entry in entries:
        if entry is None:
            items.append(NewDim())
        elif entry.__class__ is slice:
            items.append(range_of(entry, dim, shape[dim]))
            dim += 1
        elif isinstance(entry, np.ndarray) and entry.dtype == np.bool_:
            items.extend(_mask_positions(entry, dim, x))
            dim += entry.ndim
        else:
            items.append(Position(dim, _inside(entry, dim, x, clamp) if wrap else _as_given(entry)))
            dim += 1
    return items


def _entry(entry: Any) -> Any:
    """One part of an index as None, Ellipsis, a slice, an int, a NumPy array, or a value of integers.

    Known integers are read, unless their type says how they are laid out: the type of the result follows from it.
    """
    if entry is None or entry is Ellipsis or entry.__class__ is int or entry.__class__ is slice:
        return entry
    if isinstance(entry, bool | np.bool_):
        return np.asarray(entry)
    if isinstance(entry, list | tuple):
        entry = value(entry) if entry else np.zeros(0, np.int32)
    if isinstance(entry, Array) and (entry.type.dtype == BOOL or not (entry.type.sharding or entry.type.unreduced)):
        entry = np.asarray(entry.data)
        if entry.ndim == 0 and entry.dtype.kind in "iu":
            return entry
    if isinstance(entry, Tracer | Array):
        if entry.type.dtype == BOOL and isinstance(entry, Tracer):
            data = concrete(entry)
            if data is None:
                raise not_known(
                    entry,
                    "A boolean mask as an index",
                    "keep the shape and choose: mnp.where(mask, x, 0); to change elements:\n"
                    "x = mnp.where(mask, new, x); for places: mnp.nonzero(mask, size=…)",
                    TracedMaskError,
                )
            return np.asarray(data)
        if not dtypes.is_integer(entry.type.dtype):
            raise _not_an_index(str(entry.type))
        return entry
    if not isinstance(entry, np.ndarray):
        try:
            return int(entry.__index__())
        except (AttributeError, TypeError):
            if not isinstance(entry, np.generic) and not hasattr(entry, "__array__"):
                raise _not_an_index(f"{type(entry).__name__} {entry!r}") from None
            entry = np.asarray(entry)
    if entry.dtype != np.bool_ and entry.dtype.kind not in "iu":
        raise _not_an_index(f"{entry.dtype.name}{list(entry.shape)}")
    return entry.item() if entry.ndim == 0 and entry.dtype != np.bool_ else entry


def _not_an_index(shown: str) -> ShapeError:
    return ShapeError(
        f"A value {shown} is used as an index.",
        where=here(),
        why="an index is made of integers, slices, None, '...', integer arrays and boolean arrays",
        fix="i.astype(int)",
    )


def _dims_used(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == np.bool_ else 1


def range_of(entry: slice, dim: int, size: int) -> Range:
    """What a slice takes of a dim."""
    bounds = [b if b is None or b.__class__ is int else _bound(b) for b in (entry.start, entry.stop, entry.step)]
    if bounds[2] == 0:
        raise IndexingError(
            "A slice has step 0.",
            where=here(),
            why="it never gets anywhere",
            fix="x[::1], or x[::-1] to reverse",
        )
    start, stop, step = slice(*bounds).indices(size)
    return Range(dim, start, max(0, -((start - stop) // step)), step)


def _bound(bound: Any) -> int:
    if isinstance(bound, Tracer):
        data = concrete(bound)
        if data is None:
            raise not_known(
                bound,
                "A slice",
                "a slice of known length at a traced place: mw.lax.dynamic_slice_in_dim(x, start, length, axis=0)",
            )
        bound = data
    if isinstance(bound, Array):
        bound = np.asarray(bound.data)
    try:
        return int(bound.__index__())
    except (AttributeError, TypeError):
        raise ShapeError(
            f"A slice has the bound {bound!r}.", where=here(), why="bounds are integers or None", fix="int(…)"
        ) from None


def _mask_positions(mask: np.ndarray[Any, Any], dim: int, x: Value) -> list[Position]:
    """A boolean array as the positions where it holds, one array per dim it covers."""
    if mask.ndim == 0:
        return [Position(None, np.zeros(int(mask), np.int32))]
    if mask.shape != x.type.shape[dim : dim + mask.ndim]:
        raise IndexingError(
            f"A mask of shape {mask.shape} does not fit dims {dim} to {dim + mask.ndim - 1} of {x.type}.",
            where=here(),
            why="a mask has the sizes of the dims it covers",
            fix="mnp.broadcast_to(mask, …) to their sizes",
        )
    kind = dtypes.default_int()
    return [Position(dim + n, places.astype(kind)) for n, places in enumerate(mask.nonzero())]


def _inside(at: Any, dim: int, x: Value, clamp: bool) -> Any:
    """A position counted from the left. A Python integer must lie within; where those of arrays may lie, traced or
    not, is left to whoever reads or writes."""
    size = x.type.shape[dim]
    if isinstance(at, np.ndarray) and at.ndim == 0 and size:
        return int(at) + (size if at < 0 else 0)
    if at.__class__ is int or (isinstance(at, np.ndarray) and at.ndim == 0):
        if not -size <= at < size and (not clamp or not size):
            raise IndexingError(
                f"Index {at} is outside dim {dim} of {x.type}.",
                where=here(),
                why=f"the dim has size {size}",
                fix=f"an index from {-size} to {size - 1}" if size else "an index of an array that has elements",
            )
        return at + size if at < 0 else at
    if isinstance(at, np.ndarray):
        at = at.astype(np.int64)
        return np.where(at < 0, at + size, at).astype(dtypes.default_int())
    if at.type.dtype in dtypes.UNSIGNED:
        return at
    return elementwise.select(elementwise.lt(at, 0), basic.add(at, size), at)


def _as_given(at: Any) -> Any:
    """A position that may lie anywhere."""
    if isinstance(at, np.ndarray):
        return at.astype(np.int64).astype(dtypes.default_int()) if at.ndim else int(at)
    return at


def _rank(at: Any) -> int:
    return 0 if at.__class__ is int else at.ndim


# Reading with an index


def index(x: Value, key: Any) -> Value:
    """``x[key]``."""
    items = read_index(x, key)
    positions = [item for item in items if item.__class__ is Position]
    if x.type.sharding is not None:
        refuse_split(x, [p.dim for p in positions], "x[…]", "x.at[…].get")  # type: ignore[union-attr]
    if any(_rank(p.at) for p in positions):  # type: ignore[union-attr]
        return gather_items(x, items, "clip")
    if any(p.at.__class__ is not int for p in positions):  # type: ignore[union-attr]
        return _dynamic_slice(x, items)
    return static_slice(x, tuple(_clamped(item, x.type.shape) for item in items))


def refuse_split(x: Value, dims: Sequence[int | None], what: str, instead: str) -> None:
    """Refuse positions along dims that Explicit axes split: which device has an element is known when it runs, so that
    somebody has to say where it goes."""
    if x.type.sharding is None:
        return
    for d in dims:
        axes = () if d is None else x.type.sharding.dims[d].axes
        if axes:
            raise ShardingError(
                f"The layout of {what} of {x.type.short()} is ambiguous.",
                where=here(),
                why=f"dim {d}, along which it is indexed, is split over {', '.join(axis.short() for axis in axes)}",
                fix=f"{instead}(…, out_sharding=mw.P(…))",
            )


def _clamped(item: Item, shape: Shape) -> Item:
    """A known position moved into the array, as a traced one is."""
    if item.__class__ is Position and item.at.__class__ is int and item.dim is not None:  # type: ignore[union-attr]
        return Position(item.dim, min(max(item.at, 0), shape[item.dim] - 1))  # type: ignore[union-attr]
    return item


@lru_cache(maxsize=4096)
def _static_plan(shape: Shape, items: tuple[Item, ...]) -> tuple[dict[str, Any] | None, tuple[int, ...], Shape, Shape]:
    """The slice (or None), the dims to reverse, the shape before, and the shape with dims dropped and added."""
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    reversed_dims = []
    final = []
    for item in items:
        if isinstance(item, Range):
            d, start, count, step = item
            if step < 0 and count:
                reversed_dims.append(d)
                start, step = start + (count - 1) * step, -step
            if not count:
                start, step = 0, 1
            starts[d], strides[d] = start, step if count > 1 else 1
            limits[d] = start + (count - 1) * step + 1 if count else start
            final.append(count)
        elif isinstance(item, Position):
            if item.at.__class__ is int:
                starts[item.dim], limits[item.dim] = item.at, item.at + 1  # type: ignore[index]
        else:
            final.append(1)
    unchanged = not any(starts) and tuple(limits) == shape and all(s == 1 for s in strides)
    cut = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    params = None if unchanged else {"starts": tuple(starts), "limits": tuple(limits), "strides": tuple(strides)}
    return params, tuple(reversed_dims), cut, tuple(final)


def static_slice(x: Value, items: tuple[Item, ...]) -> Value:
    params, reversed_dims, cut, final = _static_plan(x.type.shape, items)
    x = _cut(x, params, reversed_dims)
    return x if cut == final else apply(basic.reshape, (x,), {"shape": final})


def _cut(x: Value, params: dict[str, Any] | None, reversed_dims: tuple[int, ...]) -> Value:
    if params is not None:
        x = apply(shape_ops.slice_, (x,), params)
    if reversed_dims:
        x = apply(shape_ops.reverse, (x,), {"dims": reversed_dims})
    return x


def _dynamic_slice(x: Value, items: Sequence[Item]) -> Value:
    """Traced scalars: one element along their dims, after the known part of the index."""
    known = tuple(
        _clamped(i, x.type.shape) if i.__class__ is not Position or i.at.__class__ is int else Position(i.dim, None)  # type: ignore[union-attr]
        for i in items
    )
    params, reversed_dims, _, final = _static_plan(x.type.shape, known)
    x = _cut(x, params, reversed_dims)
    starts: list[Any] = [0] * x.type.ndim
    sizes = list(x.type.shape)
    traced = [i for i in items if i.__class__ is Position and i.at.__class__ is not int]
    ats = promote_operands([i.at for i in traced])  # type: ignore[union-attr]
    for item, at in zip(traced, ats, strict=True):
        starts[item.dim], sizes[item.dim] = at, 1  # type: ignore[union-attr,index]
    out = apply(indexing.dynamic_slice, (x, *starts), {"sizes": tuple(sizes)})
    return out if out.type.shape == final else apply(basic.reshape, (out,), {"shape": final})


class IndexedDims(NamedTuple):
    """Where what an index selects stands in the result, new dims left out: per dim of the result, a dim of the array
    (for a Range) or None (for the dims of the arrays of positions), which start at ``first``."""

    dims: tuple[int | None, ...]
    first: int
    positions: Shape  # the shape that the positions broadcast to
    final: Shape  # the shape of the result, new dims included
    plain: Shape  # and without them


def layout_of(items: Sequence[Item]) -> IndexedDims:
    places = [n for n, item in enumerate(items) if item.__class__ is Position]
    shapes = [np.shape(items[n].at) if isinstance(items[n].at, int | np.ndarray) else items[n].at.shape for n in places]  # type: ignore[union-attr]
    common = broadcast_shapes(*shapes) if shapes else ()
    if common is None:
        raise IndexingError(
            f"Index arrays of shapes {', '.join(map(str, shapes))} do not broadcast together.",
            where=here(),
            why="several index arrays pick one element per place of their common shape",
            fix="for a grid of rows and columns, x[rows[:, None], columns]",
        )
    together = not places or places[-1] - places[0] == len(places) - 1
    dims: list[int | None] = []
    final: list[int] = []
    first = 0
    if not together:
        dims, final = [None] * len(common), list(common)
    for n, item in enumerate(items):
        if isinstance(item, Range):
            dims.append(item.dim)
            final.append(item.length)
        elif isinstance(item, NewDim):
            final.append(1)
        elif together and places and n == places[0]:
            first = len(dims)
            dims += [None] * len(common)
            final += common
    counts = {item.dim: item.length for item in items if isinstance(item, Range)}
    rest = iter(common)
    plain = tuple(counts[d] if d is not None else next(rest) for d in dims)
    return IndexedDims(tuple(dims), first, common, tuple(final), plain)


def index_vectors(components: Sequence[Any], shape: Shape) -> Value:
    """Index vectors: the components, each spread over ``shape``, side by side in a last dim."""
    if all(isinstance(c, int | np.ndarray) for c in components):
        refuse_unheld("an index", [TensorType((*shape, len(components)), dtypes.default_int())])
        stacked = np.stack([np.broadcast_to(c, shape) for c in components], -1)
        return to_array(stacked.astype(dtypes.default_int()))
    if len(components) == 1:
        return basic.reshape(broadcast(components[0], shape), shape=(*shape, 1))
    values = promote_operands(
        [value(c) if isinstance(c, ValueClass) else to_array(np.asarray(c, dtypes.default_int())) for c in components]
    )
    columns = [basic.reshape(broadcast(c, shape), shape=(*shape, 1)) for c in values]
    return shape_ops.concatenate(*columns, dim=len(shape))


def gather_items(x: Value, items: Sequence[Item], mode: str, fill_value: Any = None) -> Value:
    """Arrays of positions, after the ranges of the index."""
    ranges = tuple(Position(i.dim, None) if isinstance(i, Position) and i.dim is not None else i for i in items)
    params, reversed_dims, _, _ = _static_plan(
        x.type.shape, tuple(i for i in ranges if not isinstance(i, Position) or i.dim is not None)
    )
    x = _cut(x, params, reversed_dims)
    layout = layout_of(items)
    if 0 in layout.final:  # nothing is read, perhaps from an array in which there is nothing to read
        return basic.zeros(TensorType(layout.final, x.type.dtype, x.type.weak, varying=x.type.varying))
    chosen = [i for i in items if isinstance(i, Position) and i.dim is not None]
    if not chosen:
        # Lone booleans: a new dim of size 1 or 0.
        shape = tuple(1 if d is None else x.type.shape[d] for d in layout.dims)
        out = (
            broadcast(basic.reshape(x, shape=shape), shape)
            if 0 not in layout.positions
            else basic.zeros(x.type.with_(shape=layout.plain))
        )
    else:
        dims = tuple(i.dim for i in chosen)
        out = read_windows(
            x,
            index_vectors([i.at for i in chosen], layout.positions),
            offset_dims=tuple(n for n, d in enumerate(layout.dims) if d is not None),
            collapsed_dims=dims,
            operand_batch_dims=(),
            indices_batch_dims=(),
            start_index_map=dims,
            slice_sizes=tuple(1 if d in dims else n for d, n in enumerate(x.type.shape)),
            mode=mode if fill_value is None else "clip",
        )
        if fill_value is not None:
            out = either(_valid(x, chosen, layout), out, convert(value(fill_value), x.type.dtype))
    return out if out.type.shape == layout.final else apply(basic.reshape, (out,), {"shape": layout.final})


def _valid(x: Value, chosen: Sequence[Position], layout: IndexedDims) -> Value:
    """Whether all positions lie within the array, at every place of the result."""
    flags: Any = None
    for item in chosen:
        at = value(item.at)
        inside = elementwise.and_(elementwise.ge(at, 0), elementwise.lt(at, x.type.shape[item.dim]))  # type: ignore[index]
        inside = broadcast(inside, layout.positions)
        flags = inside if flags is None else elementwise.and_(flags, inside)
    dims = tuple(range(layout.first, layout.first + len(layout.positions)))
    return basic.broadcast_in_dim(flags, shape=layout.plain, dims=dims)

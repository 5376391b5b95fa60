"""``x.at[…]``: new arrays that differ from ``x`` at an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.control import fori_loop
from meshwright.arrays.operands import ArrayLike, broadcast, broadcast_shapes, convert, strong, value
from meshwright.arrays.refusals import one_number
from meshwright.arrays.static import placed, static_flag
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, Value, apply, concrete, is_number, make_varying, to_array
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError, ShardingError
from meshwright.numpy.arithmetic import add, divide, maximum, minimum, multiply, power
from meshwright.numpy.indexing import (
    IndexedDims,
    Item,
    NewDim,
    Position,
    Range,
    gather_items,
    index_vectors,
    layout_of,
    read_index,
    refuse_split,
    static_slice,
)
from meshwright.numpy.logic import either, greater
from meshwright.numpy.reductions import max as largest
from meshwright.ops import basic, indexing
from meshwright.ops.layout import laid_out, whole_along


class At:
    """What ``x.at`` is: ``x.at[index]`` is then a place to read and to write."""

    __slots__ = ("array",)

    def __init__(self, array: Value) -> None:
        self.array = array

    def __getitem__(self, key: Any) -> IndexedUpdate:
        return IndexedUpdate(self.array, key)

    def __repr__(self) -> str:
        return f"{self.array!r}.at"


class IndexedUpdate:
    """A place of an array: its methods return a new array that differs there. Outside the array, nothing changes."""

    __slots__ = ("array", "key")

    def __init__(self, array: Value, key: Any) -> None:
        self.array = array
        self.key = key

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
        fill_value: ArrayLike | None = None,
        wrap_negative_indices: bool = True,
        out_sharding: Any = None,
    ) -> ValueClass:
        """The elements; positions outside are clamped, or with ``mode="fill"`` give ``fill_value``. The result is laid
        out as ``out_sharding`` says."""
        if out_sharding is not None:
            options: dict[str, Any] = {
                "mode": mode,
                "fill_value": fill_value,
                "wrap_negative_indices": wrap_negative_indices,
            }
            return _laid_out(self, out_sharding, lambda place: place._get(**options))
        return self._get(mode, fill_value, wrap_negative_indices, "x.at[…].get")

    def _get(self, mode: str | None, fill_value: Any, wrap_negative_indices: bool, named: str = "") -> ValueClass:
        """The elements; ``named`` is the function that is not told how they are to be laid out."""
        items = read_index(self.array, self.key, clamp=True, wrap=_wraps(wrap_negative_indices))
        if named:
            refuse_split(self.array, [i.dim for i in items if isinstance(i, Position)], named, "x.at[…].get")
        if mode != "wrap" or (any(isinstance(i, Position) for i in items) and 0 not in layout_of(items).final):
            _check_mode(mode)  # without positions there is none outside, and any mode will do
        if mode in ("fill", "drop") or fill_value is not None:
            fill_value = None if fill_value is None else one_number(fill_value, "fill_value of x.at[…].get", real=False)
            return gather_items(self.array, items, "fill", fill_value)
        if any(isinstance(i, Position) for i in items):
            return gather_items(self.array, items, "promise" if mode == "promise_in_bounds" else "clip")
        return static_slice(self.array, tuple(items))

    def set(self, values: ArrayLike, **options: Any) -> ValueClass:
        """``values`` at the place."""
        return _scatter(self, indexing.scatter_set, values, lambda x, y: y, **options)

    def add(self, values: ArrayLike, **options: Any) -> ValueClass:
        """``values`` added; where an index occurs twice, both count."""
        return _scatter(self, indexing.scatter_add, values, add, **options)

    def subtract(self, values: ArrayLike, **options: Any) -> ValueClass:
        """``values`` subtracted."""
        return self.add(elementwise_negative(values), **options)

    def multiply(self, values: ArrayLike, **options: Any) -> ValueClass:
        """Multiplied by ``values``."""
        return _scatter(self, indexing.scatter_mul, values, multiply, **options)

    mul = multiply

    def min(self, values: ArrayLike, **options: Any) -> ValueClass:
        """The smaller of what is there and ``values``."""
        return _scatter(self, indexing.scatter_min, values, minimum, **options)

    def max(self, values: ArrayLike, **options: Any) -> ValueClass:
        """The larger of what is there and ``values``."""
        return _scatter(self, indexing.scatter_max, values, maximum, **options)

    def divide(self, values: ArrayLike, **options: Any) -> ValueClass:
        """Divided by ``values``."""
        return divide(self.array, IndexedUpdate(_ones(self.array), self.key).multiply(values, **options))

    def power(self, values: ArrayLike, **options: Any) -> ValueClass:
        """Raised to ``values``."""
        return power(self.array, IndexedUpdate(_ones(self.array), self.key).multiply(values, **options))

    def apply(self, function: Callable[[Value], Value], **options: Any) -> ValueClass:
        """``function``, elementwise, of what is there: once for every time that an index names it."""
        wrap = _wraps(options.get("wrap_negative_indices", True))
        items = read_index(self.array, self.key, clamp=True, wrap=wrap)
        if options.get("unique_indices") or not any(
            isinstance(i, Position) and i.at.__class__ is not int for i in items
        ):
            return self.set(function(self.get(wrap_negative_indices=wrap)), **options)
        x = self.array
        if 0 in x.type.shape:
            return x
        times = IndexedUpdate(basic.zeros(TensorType(x.shape, dtypes.INT32, varying=x.type.varying)), self.key).add(
            1, **options
        )

        def again(n: Any, found: Value) -> ValueClass:
            return either(greater(times, n), convert(value(function(found)), x.type.dtype), found)

        known = times.data if isinstance(times, Array) else concrete(times)  # type: ignore[arg-type]
        if known is None:
            return fori_loop(0, largest(times, initial=0), again, x)  # type: ignore[no-any-return]
        for n in range(int(np.max(known, initial=0))):
            x = again(n, x)
        return x

    def __repr__(self) -> str:
        return f"{self.array!r}.at[{self.key!r}]"


def elementwise_negative(values: ArrayLike) -> Value:
    return basic.neg(value(values))


def _ones(x: Value) -> Value:
    return broadcast(make_varying(basic.scalar_like(x, 1), x.type.varying), x.type.shape)


def _laid_out(place: IndexedUpdate, out_sharding: Any, use: Callable[[IndexedUpdate], Value]) -> Value:
    """A use of a place whose result is laid out as asked: of the array as it lies, or else of all of it."""
    try:
        found = use(place)
    except ShardingError:  # over Explicit axes the layout would be ambiguous
        found = use(IndexedUpdate(whole_along(place.array, range(place.array.ndim)), place.key))
    return placed(found, None, out_sharding)


def _scatter(
    place: IndexedUpdate,
    op: Op,
    values: ArrayLike,
    combine: Callable[[Value, Value], Value],
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
    wrap_negative_indices: bool = True,
    out_sharding: Any = None,
    asked: bool = False,
) -> Value:
    if out_sharding is not None:
        options: dict[str, Any] = {
            "unique_indices": unique_indices, "mode": mode, "wrap_negative_indices": wrap_negative_indices,
        }  # fmt: skip
        return _laid_out(place, out_sharding, lambda one: _scatter(one, op, values, combine, asked=True, **options))
    x, gather_mode = place.array, _check_mode(mode)
    y = convert(value(values), x.type.dtype)
    if x.type.weak and not y.type.weak:  # what is written takes on the type of what it is written into
        y = apply(basic.convert, (y,), {"dtype": x.type.dtype, "weak": True})
    if is_number(values):  # the same on all devices, as every number in a program is
        y = make_varying(y, x.type.varying)
    mask = _whole_mask(x, place.key)
    if mask is not None and y.type.ndim == 0:
        dims = tuple(range(mask.ndim))
        mask = basic.broadcast_in_dim(mask, shape=x.type.shape, dims=dims) if mask.ndim < x.type.ndim else mask
        return either(mask, combine(x, y), x)
    items = read_index(x, place.key, clamp=mode in ("drop", "fill", "clip"), wrap=_wraps(wrap_negative_indices))
    if not asked:
        named = f"x.at[…].{op.name.removeprefix('scatter_')}"
        refuse_split(x, [i.dim for i in items if isinstance(i, Position)], named, named)
    layout = layout_of(items)
    if broadcast_shapes(y.type.shape, layout.final) != layout.final:
        raise ShapeError(
            f"Values {y.type.short()} do not fit a place of shape {layout.final} of {x.type}.",
            where=here(),
            why="they are broadcast to the shape of the place",
            fix=f"values of shape {layout.final}, or a number",
        )
    if 0 in layout.final:
        return x
    window = op is indexing.scatter_set and mode is None and all(_is_window(i, x.type.shape) for i in items)
    if window and y.type.ndim == 0:
        return _update_slice(x, y, items)
    y = broadcast(y, layout.final)
    if layout.final != layout.plain:
        y = basic.reshape(y, shape=layout.plain)
    if window:
        return _update_slice(x, y, items)
    return _scatter_windows(x, y, items, layout, op, gather_mode, unique_indices)


_MODES = {None: "drop", "drop": "drop", "fill": "drop", "clip": "clip", "promise_in_bounds": "promise"}


def _wraps(flag: Any) -> bool:
    """Whether positions below 0 are counted from the end."""
    return static_flag(flag, "wrap_negative_indices of x.at[…]")


def _check_mode(mode: Any) -> str:
    """What is done with positions outside, by the name that users give it."""
    if mode not in _MODES:
        raise ShapeError(
            f"x.at[…] cannot take mode={mode!r}.",
            where=here(),
            why="it is 'drop', 'fill', 'clip' or 'promise_in_bounds'",
            fix="mode='drop'",
        )
    return _MODES[mode]


def _whole_mask(x: Value, key: Any) -> Any:
    """The index as one boolean array that covers leading dims of ``x``, if it is."""
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if isinstance(key, Array | Tracer) and key.type.dtype == BOOL:
        mask: Any = key
    elif isinstance(key, np.ndarray) and key.dtype == np.bool_:
        mask = to_array(key)
    else:
        return None
    return mask if mask.type.shape == x.type.shape[: mask.ndim] else None


def _is_window(item: Item, shape: Shape) -> bool:
    if isinstance(item, Range):
        return item.step == 1
    if isinstance(item, NewDim):
        return True
    return item.at.__class__ is int and item.dim is not None and 0 <= item.at < shape[item.dim]


def _update_slice(x: Value, y: Value, items: Sequence[Item]) -> Value:
    """A window at a known place."""
    starts, sizes = [0] * x.type.ndim, [1] * x.type.ndim
    for item in items:
        if isinstance(item, Range):
            starts[item.dim], sizes[item.dim] = item.start, item.length
        elif isinstance(item, Position):
            starts[item.dim] = item.at  # type: ignore[index]
    if y.type.ndim == 0:
        y = basic.broadcast_scalar(y, tuple(sizes))
    elif y.type.shape != tuple(sizes):
        y = basic.reshape(y, shape=tuple(sizes))
    if y.type.shape == x.type.shape:
        return laid_out(y if x.type.weak else strong(y), x.type)
    kind = dtypes.default_int()
    return apply(indexing.dynamic_update_slice, (x, y, *(to_array(np.asarray(s, kind)) for s in starts)), {})


def _scatter_windows(
    x: Value, y: Value, items: Sequence[Item], layout: IndexedDims, op: Op, mode: str, unique: bool
) -> Value:
    """Ranges of step 1 are windows; other ranges, and the positions, say where windows are."""
    ranges = {i.dim: i for i in items if isinstance(i, Range)}
    window_dims = [d for d in layout.dims if d is not None and ranges[d].step == 1]
    spread = [n for n, d in enumerate(layout.dims) if d not in window_dims]  # dims of y that are dims of the indices
    shape = tuple(layout.plain[n] for n in spread)
    components: dict[int, Any] = {}
    for item in items:
        if isinstance(item, Position) and item.dim is not None:
            components[item.dim] = _placed(item.at, spread, layout)
        elif isinstance(item, Range) and item.step != 1:
            n = spread.index(layout.dims.index(item.dim))
            places = item.start + item.step * np.arange(item.length)
            components[item.dim] = places.reshape((-1,) + (1,) * (len(shape) - n - 1))
        elif isinstance(item, Range) and (item.start or item.length != x.type.shape[item.dim]):
            components[item.dim] = item.start
    dims = tuple(sorted(components))
    indices = (
        index_vectors([components[d] for d in dims], shape)
        if dims
        else basic.zeros(value(np.int32(0)).type.with_(shape=(*shape, 0)))
    )
    if not any(isinstance(i, Position) and i.at.__class__ is not int for i in items):  # written as numbers
        indices = make_varying(indices, x.type.varying, numbers=True)
    return apply(
        op,
        (x, indices, y),
        {
            "update_window_dims": tuple(n for n, d in enumerate(layout.dims) if d in window_dims),
            "inserted_window_dims": tuple(d for d in range(x.type.ndim) if d not in window_dims),
            "operand_batch_dims": (),
            "scatter_indices_batch_dims": (),
            "scatter_dims_to_operand_dims": dims,
            "mode": mode,
            "unique": unique,
        },
    )


def _placed(at: Any, spread: Sequence[int], layout: IndexedDims) -> Any:
    """An array of positions with its dims where those of all positions stand among ``spread``."""
    if at.__class__ is int:
        return at
    after = sum(1 for n in spread if n >= layout.first + len(layout.positions))
    if not after or not at.ndim:
        return at
    longer = (*at.shape, *(1,) * after)
    return at.reshape(longer) if isinstance(at, np.ndarray) else basic.reshape(at, shape=longer)

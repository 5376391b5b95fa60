"""The part of ``meshwright.lax`` that reads and writes windows of arrays: slices, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from meshwright.api.control import fori_loop
from meshwright.api.vmap import vmap
from meshwright.arrays.operands import ArrayLike, axis_of, convert, promote_operands, value
from meshwright.arrays.static import static_flag, static_int, static_shape
from meshwright.arrays.tracing import check_function
from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, apply, to_array
from meshwright.errors import IndexingError, ShapeError
from meshwright.numpy.logic import either
from meshwright.ops import basic, elementwise, indexing
from meshwright.ops import shape as shape_ops

Pairs = tuple[tuple[int, int], ...]

# Slices


def slice(
    operand: ArrayLike, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Value:
    """``operand[start:limit:stride]`` along every dim."""
    x = value(operand)
    starts, limits = (static_shape(given, "a bound of lax.slice") for given in (start_indices, limit_indices))
    steps = (1,) * x.ndim if strides is None else static_shape(strides, "a stride of lax.slice")
    return shape_ops.slice_(x, starts=starts, limits=limits, strides=steps)


def slice_in_dim(
    operand: ArrayLike, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Value:
    """``operand[start:limit:stride]`` along one dim."""
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.slice_in_dim")
    size = x.shape[dim]
    given = (0 if start_index is None else start_index, size if limit_index is None else limit_index)
    bounds = [static_int(bound, "a bound of lax.slice_in_dim") for bound in given]
    start, limit = (b + size if b < 0 else b for b in bounds)
    starts, limits, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[dim], limits[dim], steps[dim] = start, limit, static_int(stride, "stride of lax.slice_in_dim")
    return shape_ops.slice_(x, starts=tuple(starts), limits=tuple(limits), strides=tuple(steps))


def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Value:
    """The slice at one known place of a dim."""
    keepdims = static_flag(keepdims, "keepdims of lax.index_in_dim")
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.index_in_dim")
    at = axis_of(index, x.shape[dim], "lax.index_in_dim")
    out = slice_in_dim(x, at, at + 1, 1, dim)
    return out if keepdims else _without(out, dim)


def _without(x: Value, dim: int) -> Value:
    return basic.reshape(x, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))


def _starts(x: Value, given: Any, from_end: Any = True) -> list[Any]:
    """Starts in one dtype, negative ones counted from the end, in all dims or in those that ``from_end`` says."""
    several = isinstance(from_end, list | tuple)
    counted = [static_flag(flag, "allow_negative_indices") for flag in (from_end if several else [from_end] * x.ndim)]
    if not isinstance(given, list | tuple):
        places = value(given)
        given = [places[n] for n in range(places.shape[0])] if places.ndim else [places]
    if len(given) != x.ndim or len(counted) != x.ndim:
        raise ShapeError(
            f"{len(given if len(given) != x.ndim else counted)} start indices for {x.type.short()}.",
            where=here(),
            why="there is one for each dim",
            fix=f"start_indices={(0,) * x.ndim}",
        )
    out: list[Any] = []
    for start, size, negative in zip(given, x.shape, counted, strict=True):
        at = value(start)
        if at.ndim or not dtypes.is_integer(at.type.dtype):
            raise ShapeError(
                f"A start index is {at.type.short()}.",
                where=here(),
                why="there is one integer for each dim",
                fix="start.astype('int32')",
            )
        if at.__class__ is Array:
            known = int(at.data)
            if known < 0 and not negative:
                raise IndexingError(
                    f"A start index is {known}.",
                    where=here(),
                    why="allow_negative_indices=False says that none is counted from the end",
                    fix=f"start index {known + size}, or allow_negative_indices=True",
                )
            out.append(known + size if known < 0 else known)
        elif at.type.dtype in dtypes.UNSIGNED or not negative:
            out.append(at)
        else:
            out.append(elementwise.select(elementwise.lt(at, 0), basic.add(at, size), at))
    if all(isinstance(start, int) for start in out):
        return [to_array(dtypes.default_int().type(start)) for start in out]
    return promote_operands(out)


def dynamic_slice(
    operand: ArrayLike, start_indices: Any, slice_sizes: Sequence[int], *, allow_negative_indices: Any = True
) -> Value:
    """A slice of known sizes at a traced place; where it would stick out it is moved in.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.dynamic_slice(mnp.arange(5), (3,), (3,))
    Array([2, 3, 4], dtype=int32)
    """
    x = value(operand)
    sizes = static_shape(slice_sizes, "a size of lax.dynamic_slice")
    return apply(indexing.dynamic_slice, (x, *_starts(x, start_indices, allow_negative_indices)), {"sizes": sizes})


def dynamic_slice_in_dim(
    operand: ArrayLike, start_index: ArrayLike, slice_size: int, axis: int = 0, *, allow_negative_indices: Any = True
) -> Value:
    """A slice of known size at a traced place of one dim."""
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.dynamic_slice_in_dim")
    starts: list[Any] = [0] * x.ndim
    sizes = list(x.shape)
    starts[dim], sizes[dim] = start_index, static_int(slice_size, "slice_size")
    return dynamic_slice(x, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: ArrayLike, index: ArrayLike, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: Any = True
) -> Value:
    """The slice at one traced place of a dim."""
    keepdims = static_flag(keepdims, "keepdims of lax.dynamic_index_in_dim")
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.dynamic_index_in_dim")
    out = dynamic_slice_in_dim(x, index, 1, dim, allow_negative_indices=allow_negative_indices)
    return out if keepdims else _without(out, dim)


def dynamic_update_slice(
    operand: ArrayLike, update: ArrayLike, start_indices: Any, *, allow_negative_indices: Any = True
) -> Value:
    """``operand`` with ``update`` at a traced place."""
    x, y = value(operand), value(update)
    return apply(indexing.dynamic_update_slice, (x, y, *_starts(x, start_indices, allow_negative_indices)), {})


def dynamic_update_slice_in_dim(
    operand: ArrayLike, update: ArrayLike, start_index: ArrayLike, axis: int, *, allow_negative_indices: Any = True
) -> Value:
    """``operand`` with ``update`` at a traced place of one dim."""
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.dynamic_update_slice_in_dim")
    starts: list[Any] = [0] * x.ndim
    starts[dim] = start_index
    return dynamic_update_slice(x, update, starts, allow_negative_indices=allow_negative_indices)


def dynamic_update_index_in_dim(
    operand: ArrayLike, update: ArrayLike, index: ArrayLike, axis: int, *, allow_negative_indices: Any = True
) -> Value:
    """``operand`` with ``update`` as the slice at one traced place of a dim."""
    x, y = value(operand), value(update)
    dim = axis_of(axis, x.ndim, "lax.dynamic_update_index_in_dim")
    if y.ndim != x.ndim:
        y = basic.reshape(y, shape=(*y.shape[:dim], 1, *y.shape[dim:]))
    return dynamic_update_slice_in_dim(x, y, index, dim, allow_negative_indices=allow_negative_indices)


# Gather and scatter


class GatherScatterMode(Enum):
    """What happens to a window that does not lie within the array."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise"
    ONE_HOT = "one_hot"

    @staticmethod
    def from_any(mode: Any) -> GatherScatterMode:
        """The mode meant by a name, a mode, or None."""
        if isinstance(mode, GatherScatterMode):
            return mode
        names = {None: "fill", "fill": "fill", "drop": "fill", "clip": "clip", "promise_in_bounds": "promise"}
        if not isinstance(mode, str | None) or mode not in names:
            raise ShapeError(
                f"mode={mode!r} is not a mode of gather and scatter.",
                where=here(),
                why="the modes are 'fill', 'drop', 'clip' and 'promise_in_bounds'",
                fix="mode='clip'",
            )
        return GatherScatterMode(names[mode])


class GatherDimensionNumbers(NamedTuple):
    """Which dim is which in a gather."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which dim is which in a scatter."""

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Value:
    """Windows of an array, one for each index vector (the last dim of ``start_indices``)."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.gather")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.gather")
    x, numbers = value(operand), _numbers(dimension_numbers, GatherDimensionNumbers, "lax.gather")
    found = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else GatherScatterMode.from_any(mode)
    if found is GatherScatterMode.FILL_OR_DROP and fill_value is not None:
        return _filled_gather(x, value(start_indices), numbers, slice_sizes, fill_value)
    return indexing.gather(
        x,
        value(start_indices),
        offset_dims=numbers.offset_dims,
        collapsed_dims=numbers.collapsed_slice_dims,
        operand_batch_dims=numbers.operand_batching_dims,
        indices_batch_dims=numbers.start_indices_batching_dims,
        start_index_map=numbers.start_index_map,
        slice_sizes=static_shape(slice_sizes, "a size of lax.gather"),
        mode=found.value,
    )


def _numbers(given: Any, kind: Any, name: str) -> Any:
    """Dimension numbers as tuples of integers, from anything with their fields."""
    if not all(hasattr(given, field) for field in kind._fields):
        raise ShapeError(
            f"{name} cannot take dimension_numbers={given!r}.",
            where=here(),
            why=f"they are a lax.{kind.__name__}",
            fix=f"lax.{kind.__name__}({', '.join(f'{field}=(…)' for field in kind._fields[:3])})",
        )
    return kind(*(static_shape(getattr(given, field), f"a dim of {name}") for field in kind._fields))


def _filled_gather(x: Value, indices: Value, numbers: Any, slice_sizes: Sequence[int], fill: Any) -> Value:
    """A gather with ``fill`` outside: a boolean gather reads True there, and elsewhere the False that is everywhere."""
    read = gather(x, indices, numbers, slice_sizes, mode="clip")
    nowhere = basic.broadcast_in_dim(to_array(False), shape=x.shape, dims=())
    outside = gather(nowhere, indices, numbers, slice_sizes, mode="fill")
    return either(outside, convert(value(fill), x.type.dtype), read)


def _scatter(
    op: Op, operand: ArrayLike, indices: ArrayLike, updates: ArrayLike, numbers: Any, unique: bool, mode: Any
) -> Value:
    x, y = value(operand), value(updates)
    if x.type.weak and not y.type.weak and x.dtype == y.dtype:  # what is written takes on the type of where it goes
        y = basic.convert(y, dtype=y.dtype, weak=True)
    numbers = _numbers(numbers, ScatterDimensionNumbers, f"lax.{op.name}")
    chosen = GatherScatterMode.from_any(mode).value
    return op(
        x,
        value(indices),
        y,
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=numbers.inserted_window_dims,
        operand_batch_dims=numbers.operand_batching_dims,
        scatter_indices_batch_dims=numbers.scatter_indices_batching_dims,
        scatter_dims_to_operand_dims=numbers.scatter_dims_to_operand_dims,
        mode="drop" if chosen == "fill" else chosen,
        unique=bool(unique),
    )


def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """``operand`` with ``updates`` at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter")
    return _scatter(indexing.scatter_set, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """``operand`` with ``updates`` added at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_add")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter_add")
    return _scatter(indexing.scatter_add, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """``operand`` with ``updates`` subtracted at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_sub")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter_sub")
    less = basic.neg(value(updates))
    return _scatter(indexing.scatter_add, operand, scatter_indices, less, dimension_numbers, unique_indices, mode)


def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """``operand`` multiplied by ``updates`` at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_mul")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter_mul")
    return _scatter(indexing.scatter_mul, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """The smaller of ``operand`` and ``updates`` at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_min")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter_min")
    return _scatter(indexing.scatter_min, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """The larger of ``operand`` and ``updates`` at the indexed windows."""
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_max")
    unique_indices = static_flag(unique_indices, "unique_indices of lax.scatter_max")
    return _scatter(indexing.scatter_max, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Value], Value],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Any = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Value:
    """``operand`` with ``func`` of its elements in the indexed windows, as often as these hold them.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_apply(mnp.ones(3), mnp.array([[1], [1]]), lambda x: 2 * x, numbers, update_shape=(2,)).tolist()
    [1.0, 4.0, 1.0]
    """
    check_function(func, "lax.scatter_apply", "lax.scatter_apply(x, indices, lambda x: 2 * x, numbers)")
    static_flag(indices_are_sorted, "indices_are_sorted of lax.scatter_apply")
    x = value(operand)
    once = static_flag(unique_indices, "unique_indices of lax.scatter_apply")
    ones, none = (
        basic.broadcast_in_dim(to_array(np.int32(n)), shape=shape, dims=())
        for n, shape in ((1, static_shape(update_shape, "update_shape of lax.scatter_apply")), (0, x.shape))
    )
    counts: Any = scatter_add(none, scatter_indices, ones, dimension_numbers, unique_indices=once, mode=mode)
    each: Any = func
    for _ in range(x.ndim):
        each = vmap(each)

    def again(n: Any, x: Any) -> Any:
        return either(n < counts, convert(value(each(x)), x.dtype), x)

    return again(0, x) if once or not x.size else fori_loop(0, counts.max(), again, x)  # type: ignore[no-any-return]

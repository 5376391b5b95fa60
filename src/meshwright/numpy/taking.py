"""Functions of ``meshwright.numpy`` that pick elements by position: take, repeat, roll, pad."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    axis_of,
    broadcast,
    broadcast_shapes,
    common_shape,
    convert,
    is_number,
    known,
    promote_operands,
    stack_values,
    strong,
    value,
)
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import (
    items_of,
    no_negative,
    no_out,
    one_of,
    placed,
    static_flag,
    static_int,
    static_size,
    whole_numbers,
)
from meshwright.core import dtypes
from meshwright.core.limits import refuse_unheld
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.errors import IndexingError, ShapeError
from meshwright.numpy.arithmetic import add, clip, remainder, subtract
from meshwright.numpy.indexing import refuse_split
from meshwright.numpy.logic import either, less
from meshwright.numpy.reductions import cumsum
from meshwright.numpy.shapes import concatenate, cut, ravel, reshape
from meshwright.numpy.updates import At
from meshwright.ops import basic, indexing
from meshwright.ops.gathering import read_windows


def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Value:
    """The elements at ``indices`` along ``axis``; those outside are NaN, or as ``mode`` ("clip", "wrap", "fill") says.

    >>> import meshwright.numpy as mnp
    >>> mnp.take(mnp.array([10.0, 20.0, 30.0]), mnp.array([2, 0]))
    Array([30., 10.], dtype=float32)
    """
    static_flag(indices_are_sorted, "indices_are_sorted of mnp.take")
    unique_indices = static_flag(unique_indices, "unique_indices of mnp.take")
    no_out(out, "mnp.take")
    x, places = value(a), value(indices)
    one_of(mode, (None, "fill", "clip", "wrap", "promise_in_bounds"), "mode of mnp.take")
    if places.type.dtype == dtypes.BOOL:
        places = convert(places, dtypes.INT32)
    if axis is None:
        x, dim = ravel(x), 0
    else:
        dim = axis_of(axis, x.ndim, "mnp.take")
    size = x.shape[dim]
    if places.size and not size:
        raise IndexingError(
            f"mnp.take cannot take {places.size} elements of {x.type.short()}.",
            where=here(),
            why=f"its dim {dim} has none",
            fix="take from an array that has elements",
        )
    if mode == "wrap":
        places, mode = remainder(places, size), "clip"
    elif mode == "clip":
        places = clip(places, 0, size - 1)
    key = (slice(None),) * dim + (places,)
    return At(x)[key].get(mode=mode or "fill", fill_value=fill_value)


def _along(
    arr: ArrayLike, indices: ArrayLike, axis: int | None, name: str, counted: bool = True
) -> tuple[Value, Value, int]:
    """An array and positions along one of its dims, both of one shape elsewhere, negative positions counted from the
    end of the dim."""
    x, places = value(arr), value(indices)
    if not dtypes.is_integer(places.type.dtype):
        raise ShapeError(
            f"{name} cannot take indices {places.type.short()}.",
            where=here(),
            why="they are integers",
            fix="i.astype(int)",
        )
    if axis is None:
        x, axis = ravel(x), 0
    if x.ndim != places.ndim:
        raise ShapeError(
            f"{name} cannot take {x.type.short()} with indices {places.type.short()}.",
            where=here(),
            why="both have the same number of dims",
            fix="mnp.expand_dims(indices, axis)",
        )
    dim = axis_of(axis, x.ndim, name)
    others = [tuple(n for d, n in enumerate(v.shape) if d != dim) for v in (x, places)]
    common = broadcast_shapes(*others)
    if common is None:
        raise ShapeError(
            f"{name} cannot take {x.type.short()} with indices {places.type.short()}.",
            where=here(),
            why=f"their dims other than {dim} do not broadcast",
            fix="indices with the sizes of the array, or 1",
        )
    x, places = (broadcast(v, (*common[:dim], v.shape[dim], *common[dim:])) for v in (x, places))
    if places.type.dtype in dtypes.SIGNED and counted:
        places = either(less(places, 0), add(places, x.shape[dim]), places)
    return x, places, dim


def take_along_axis(
    arr: ArrayLike, indices: ArrayLike, axis: int | None = -1, mode: str | None = None, fill_value: Any = None, *,
    wrap_negative_indices: bool | None = None,
) -> Value:  # fmt: skip
    """The elements at ``indices``, one set of positions along ``axis`` for each place of the other dims.

    >>> import meshwright.numpy as mnp
    >>> x = mnp.array([[3.0, 1.0, 2.0]])
    >>> mnp.take_along_axis(x, mnp.argsort(x, axis=1), axis=1)
    Array([[1., 2., 3.]], dtype=float32)
    """
    counted = wrap_negative_indices is None or static_flag(wrap_negative_indices, "wrap_negative_indices")
    x, places, dim = _along(arr, indices, axis, "mnp.take_along_axis", counted)
    others = tuple(d for d in range(x.ndim) if d != dim)
    modes = {None: "fill", "fill": "fill", "clip": "clip", "promise_in_bounds": "promise"}
    one_of(mode, list(modes), "mode of mnp.take_along_axis")
    if 0 in places.shape or 0 in x.shape:
        return basic.zeros(x.type.with_(shape=places.shape))
    refuse_split(x, [dim], "mnp.take_along_axis", "x.at[…].get")
    out = read_windows(
        x,
        basic.reshape(places, shape=(*places.shape, 1)),
        offset_dims=(),
        collapsed_dims=(dim,),
        operand_batch_dims=others,
        indices_batch_dims=others,
        start_index_map=(dim,),
        slice_sizes=(1,) * x.ndim,
        mode=modes[mode] if fill_value is None else "clip",
    )
    if fill_value is None:
        return out
    inside = (places >= 0) & (places < x.shape[dim])
    return either(inside, out, convert(value(fill_value), x.type.dtype))


def no_inplace(inplace: bool, name: str) -> None:
    """Refuse to change an argument, as NumPy's function of that name does."""
    static_flag(inplace, "inplace of mnp.no_inplace")
    if inplace:
        raise ShapeError(
            f"{name} cannot change its argument in place.",
            where=here(),
            why="arrays do not change; the function returns a new one",
            fix=f"x = {name}(x, …, inplace=False)",
        )


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = False,
    *,
    mode: str | None = None,
) -> Value:
    """``arr`` with ``values`` at ``indices`` along ``axis``: the inverse of ``take_along_axis``. A new array."""
    static_flag(inplace, "inplace of mnp.put_along_axis")
    no_inplace(inplace, "mnp.put_along_axis")
    one_of(mode, (None, "fill", "drop", "clip", "promise_in_bounds"), "mode of mnp.put_along_axis")
    shape = value(arr).shape
    x, places, dim = _along(arr, indices, axis, "mnp.put_along_axis")
    others = tuple(d for d in range(x.ndim) if d != dim)
    y = value(values)
    if broadcast_shapes(y.shape, places.shape) != places.shape:
        why = "there is one value for each index, or fewer that broadcast"
        refuse("mnp.put_along_axis", [y.type, places.type], why, "values[:1], or as many values as indices")
    y = broadcast(convert(y, x.type.dtype), places.shape)
    out = indexing.scatter_set(
        x,
        basic.reshape(places, shape=(*places.shape, 1)),
        y,
        update_window_dims=(),
        inserted_window_dims=(dim,),
        operand_batch_dims=others,
        scatter_indices_batch_dims=others,
        scatter_dims_to_operand_dims=(dim,),
        mode="clip" if mode == "clip" else "drop",
        unique=False,
    )
    return out if axis is not None else basic.reshape(out, shape=shape)


def repeat(
    a: ArrayLike, repeats: ArrayLike, axis: int | None = None, *, total_repeat_length: int | None = None,
    out_sharding: Any = None,
) -> Value:  # fmt: skip
    """Each element repeated, all equally often or each its own number of times.

    Traced ``repeats`` need ``total_repeat_length``, the size of the result.
    """
    return placed(_repeated(a, repeats, axis, total_repeat_length), None, out_sharding)


def _repeated(a: ArrayLike, repeats: ArrayLike, axis: int | None, total_repeat_length: int | None) -> Value:
    x = value(a)
    if axis is None:
        x, dim = ravel(x), 0
    else:
        dim = axis_of(axis, x.ndim, "mnp.repeat")
    size = x.shape[dim]
    if total_repeat_length is None or is_number(repeats):
        fix = "give the size of the result: mnp.repeat(x, repeats, total_repeat_length=…)"
        given = repeats if is_number(repeats) else value(repeats)
        counts = whole_numbers(known(given, "mnp.repeat", fix), "a count of mnp.repeat").reshape(-1)
        no_negative(counts.tolist(), "a count of mnp.repeat")
        if counts.size == 1 and total_repeat_length is None:
            return _repeat_equally(x, int(counts[0]), dim)
        if counts.size not in (1, size):
            raise _bad_counts(counts.size, size)
        if total_repeat_length is None:
            each = np.broadcast_to(counts, (size,))
            refuse_unheld("mnp.repeat", [TensorType((sum(each.tolist()),), dtypes.INT32)])
            return take(x, np.repeat(np.arange(size, dtype=np.int32), each), dim)
    total = static_size(total_repeat_length, "total_repeat_length")
    whole_numbers(repeats if is_number(repeats) else value(repeats), "a count of mnp.repeat")
    each = ravel(repeats)  # type: ignore[assignment]
    if each.size not in (1, size):
        raise _bad_counts(each.size, size)
    each = broadcast(each, (size,))
    if size == 0 or total == 0:
        return take(x, np.zeros(0, np.int32), dim)
    # Element n starts where the counts before it end; the number of starts passed so far, less one, is the element.
    ends = cumsum(each)
    starts = subtract(ends, each)
    marks = At(basic.zeros(starts.type.with_(shape=(total,), weak=False)))[starts].add(1)
    return take(x, subtract(cumsum(marks), 1), dim, mode="clip")


def _bad_counts(count: int, size: int) -> ShapeError:
    return ShapeError(
        f"mnp.repeat cannot take {count} counts for a dim of size {size}.",
        where=here(),
        why="there is one count for all, or one for each element",
        fix=f"repeats of size {size}",
    )


def _repeat_equally(x: Value, count: int, dim: int) -> Value:
    longer = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    dims = tuple(d for d in range(len(longer)) if d != dim + 1)
    spread = basic.broadcast_in_dim(x, shape=longer, dims=dims)
    return basic.reshape(spread, shape=(*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :]))


def roll(a: ArrayLike, shift: Any, axis: Any = None) -> Value:
    """``a`` moved along dims by ``shift`` places; what leaves at one end enters at the other."""
    x = value(a)
    shifts = list(shift) if isinstance(shift, tuple | list) or np.ndim(shift) else [shift]
    if axis is None:
        flat = ravel(x)
        for by in shifts:
            flat = _roll(flat, by, 0)
        return reshape(flat, x.shape)
    dims = list(axis) if isinstance(axis, tuple | list) else [axis]
    count = max(len(shifts), len(dims))
    if {len(shifts), len(dims)} - {1, count}:
        raise ShapeError(
            f"mnp.roll cannot take {len(shifts)} shifts along {len(dims)} dims.",
            where=here(),
            why="there is one shift for each dim, or one for all",
            fix="mnp.roll(x, (1, 2), axis=(0, 1))",
        )
    shifts, dims = (given * count if len(given) == 1 else given for given in (shifts, dims))
    for by, d in zip(shifts, dims, strict=True):
        x = _roll(x, by, axis_of(d, x.ndim, "mnp.roll"))
    return x


def _roll(x: Value, shift: Any, dim: int) -> Value:
    size = x.shape[dim]
    if isinstance(shift, Array):
        shift = shift.data[()]
    by = 0 if shift.__class__ in VALUES else static_int(shift, "the shift of mnp.roll") % max(size, 1)
    if size == 0:
        return x
    if shift.__class__ not in VALUES:
        return concatenate([cut(x, dim, size - by, size), cut(x, dim, 0, size - by)], dim) if by else x
    # Two copies side by side hold every rotation as a slice.
    start = remainder(basic.neg(shift), size)
    starts: list[Any] = [0] * x.ndim
    starts[dim] = start
    return indexing.dynamic_slice(concatenate([x, x], dim), *starts, sizes=x.shape)


# By value


def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Value:
    """The element of ``choices[a]`` at each place; ``mode`` "clip" or "wrap" says what is done with other places."""
    no_out(out, "mnp.choose")
    one_of(mode, ("raise", "clip", "wrap"), "mode of mnp.choose")
    picks, options = value(a), [value(x) for x in items_of(choices, "mnp.choose")]
    if not options or not dtypes.is_integer(picks.type.dtype):
        raise ShapeError(
            f"mnp.choose cannot choose by {picks.type.short()} among {len(options)} arrays.",
            where=here(),
            why="it takes integers, and one array or more",
            fix="mnp.choose(i, [x, y])",
        )
    count, options = len(options), [strong(x) for x in promote_operands(options)]
    if mode == "raise":
        fix = "mnp.choose(i, choices, mode='clip') inside of jit"
        inside("mnp.choose", known(picks, "mnp.choose with mode='raise'", fix), count)
    picks = remainder(picks, count) if mode == "wrap" else clip(picks, 0, count - 1)
    common = common_shape("mnp.choose", picks, *options)
    stacked = stack_values([broadcast(x, common) for x in options], 0)
    return take_along_axis(stacked, broadcast(picks, (1, *common)), 0)[0]


def inside(name: str, places: Any, size: int) -> None:
    """Refuse known places outside of a dim, where a function is told to."""
    outside = [n for n in np.asarray(places).ravel().tolist() if not 0 <= n < size]
    if outside:
        raise IndexingError(
            f"{name} is given the place {outside[0]}.",
            where=here(),
            why=f"the places are 0 to {size - 1}",
            fix="mode='clip' moves it in, mode='wrap' counts around",
        )

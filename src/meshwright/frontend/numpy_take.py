"""Functions of ``meshwright.numpy`` that pick elements by position: take, repeat, roll, pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.errors import ShapeError
from meshwright.frontend.indexing_update import At
from meshwright.frontend.numpy_arithmetic import add, clip, remainder, subtract
from meshwright.frontend.numpy_logic import either, less
from meshwright.frontend.numpy_reduction import cumsum
from meshwright.frontend.numpy_shape import concatenate, cut, flip, ravel
from meshwright.frontend.operands import (
    VALUES,
    ArrayLike,
    axis_of,
    broadcast,
    broadcast_shapes,
    convert,
    is_number,
    known,
    no_negative,
    static_int,
    value,
)
from meshwright.ops import basic, indexing
from meshwright.ops import shape as shape_ops
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
    x, places = value(a), value(indices)
    if axis is None:
        x, dim = ravel(x), 0
    else:
        dim = axis_of(axis, x.ndim, "mnp.take")
    size = x.shape[dim]
    if mode == "wrap":
        places, mode = remainder(places, size), "clip"
    elif mode == "clip":
        places = clip(places, 0, size - 1)
    elif mode not in (None, "fill", "promise_in_bounds"):
        raise ShapeError(
            f"mnp.take cannot take mode={mode!r}.",
            where=here(),
            why="it is 'fill', 'clip' or 'wrap'",
            fix="mode='clip'",
        )
    key = (slice(None),) * dim + (places,)
    return At(x)[key].get(mode=mode or "fill", fill_value=fill_value)


def _along(arr: ArrayLike, indices: ArrayLike, axis: int | None, name: str) -> tuple[Value, Value, int]:
    """An array and positions along one of its dims, both of one shape elsewhere, negative positions counted."""
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
    if places.type.dtype in dtypes.SIGNED:
        places = either(less(places, 0), add(places, x.shape[dim]), places)
    return x, places, dim


def take_along_axis(
    arr: ArrayLike, indices: ArrayLike, axis: int | None = -1, mode: str | None = None, fill_value: Any = None
) -> Value:
    """The elements at ``indices``, one set of positions along ``axis`` for each place of the other dims.

    >>> import meshwright.numpy as mnp
    >>> x = mnp.array([[3.0, 1.0, 2.0]])
    >>> mnp.take_along_axis(x, mnp.argsort(x, axis=1), axis=1)
    Array([[1., 2., 3.]], dtype=float32)
    """
    x, places, dim = _along(arr, indices, axis, "mnp.take_along_axis")
    others = tuple(d for d in range(x.ndim) if d != dim)
    modes = {None: "fill", "fill": "fill", "clip": "clip", "promise_in_bounds": "promise"}
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
    shape = value(arr).shape
    x, places, dim = _along(arr, indices, axis, "mnp.put_along_axis")
    others = tuple(d for d in range(x.ndim) if d != dim)
    y = broadcast(convert(value(values), x.type.dtype), places.shape)
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
    a: ArrayLike, repeats: ArrayLike, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Value:
    """Each element repeated, all equally often or each its own number of times.

    Traced ``repeats`` need ``total_repeat_length``, the size of the result.
    """
    x = value(a)
    if axis is None:
        x, dim = ravel(x), 0
    else:
        dim = axis_of(axis, x.ndim, "mnp.repeat")
    size = x.shape[dim]
    if total_repeat_length is None or is_number(repeats):
        fix = "give the size of the result: mnp.repeat(x, repeats, total_repeat_length=…)"
        counts = np.asarray(known(repeats, "mnp.repeat", fix)).reshape(-1)
        no_negative(counts.tolist(), "a count of mnp.repeat")
        if counts.size == 1 and total_repeat_length is None:
            return _repeat_equally(x, int(counts[0]), dim)
        if counts.size not in (1, size):
            raise ShapeError(
                f"mnp.repeat cannot take {counts.size} counts for a dim of size {size}.",
                where=here(),
                why="there is one count for all, or one for each element",
                fix=f"repeats of size {size}",
            )
        if total_repeat_length is None:
            return take(x, np.repeat(np.arange(size, dtype=np.int32), np.broadcast_to(counts, (size,))), dim)
    total = static_int(total_repeat_length, "total_repeat_length")
    each = broadcast(ravel(repeats), (size,)) if value(repeats).size == 1 else ravel(repeats)
    if size == 0 or total == 0:
        return take(x, np.zeros(0, np.int32), dim)
    # Element n starts where the counts before it end; the number of starts passed so far, less one, is the element.
    ends = cumsum(each)
    starts = subtract(ends, each)
    marks = At(basic.zeros(starts.type.with_(shape=(total,), weak=False)))[starts].add(1)
    return take(x, subtract(cumsum(marks), 1), dim, mode="clip")


def _repeat_equally(x: Value, count: int, dim: int) -> Value:
    longer = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    dims = tuple(d for d in range(len(longer)) if d != dim + 1)
    spread = basic.broadcast_in_dim(x, shape=longer, dims=dims)
    return basic.reshape(spread, shape=(*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :]))


def roll(a: ArrayLike, shift: Any, axis: Any = None) -> Value:
    """``a`` moved along dims by ``shift`` places; what leaves at one end enters at the other."""
    x = value(a)
    if axis is None:
        return basic.reshape(_roll(ravel(x), shift, 0), shape=x.shape)
    dims = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = shift if isinstance(shift, tuple | list) else [shift] * len(dims)
    if len(shifts) != len(dims):
        shifts = [shifts[0]] * len(dims) if len(shifts) == 1 else shifts
        dims = tuple(dims) * len(shifts) if len(dims) == 1 else dims
    for by, d in zip(shifts, dims, strict=True):
        x = _roll(x, by, axis_of(d, x.ndim, "mnp.roll"))
    return x


def _roll(x: Value, shift: Any, dim: int) -> Value:
    size = x.shape[dim]
    if size == 0:
        return x
    if isinstance(shift, Array):
        shift = shift.data[()]
    if shift.__class__ not in VALUES:
        by = static_int(shift, "the shift of mnp.roll") % size
        return concatenate([cut(x, dim, size - by, size), cut(x, dim, 0, size - by)], dim) if by else x
    # Two copies side by side hold every rotation as a slice.
    start = remainder(basic.neg(shift), size)
    starts: list[Any] = [0] * x.ndim
    starts[dim] = start
    return indexing.dynamic_slice(concatenate([x, x], dim), *starts, sizes=x.shape)


# Padding

_Width = tuple[int, int]


def _per_dim(given: Any, rank: int, name: str) -> list[Any]:
    """A pair per dim from one number, one pair, or a pair per dim."""
    array = np.asarray(given) if not _has_values(given) else np.asarray(given, object)
    try:
        return [tuple(pair) for pair in np.broadcast_to(array, (rank, 2))]
    except ValueError:
        raise ShapeError(
            f"mnp.pad cannot take {name}={given!r} for {rank} dims.",
            where=here(),
            why="it is one number, one (before, after), or one (before, after) per dim",
            fix=f"{name}={((1, 1),) * rank}",
        ) from None


def _has_values(x: Any) -> bool:
    return hasattr(x, "builder") or (isinstance(x, list | tuple) and any(_has_values(v) for v in x))


def pad(array: ArrayLike, pad_width: Any, mode: str = "constant", **options: Any) -> Value:
    """``array`` with elements added before and after along each dim.

    Modes are "constant" (with ``constant_values``), "edge", "reflect", "symmetric", "wrap" and "empty".

    >>> import meshwright.numpy as mnp
    >>> mnp.pad(mnp.array([1, 2, 3]), (1, 2), constant_values=9)
    Array([9, 1, 2, 3, 9, 9], dtype=int32)
    """
    x = value(array)
    if isinstance(pad_width, dict):
        pairs: list[Any] = [(0, 0)] * x.ndim
        for d, pair in pad_width.items():
            pairs[axis_of(d, x.ndim, "mnp.pad")] = pair if isinstance(pair, tuple | list) else (pair, pair)
        pad_width = pairs
    widths: list[_Width] = (
        [(static_int(a, "pad_width"), static_int(b, "pad_width")) for a, b in _per_dim(pad_width, x.ndim, "pad_width")]
        if x.ndim
        else []
    )
    if any(n < 0 for pair in widths for n in pair):
        raise ShapeError(
            f"mnp.pad cannot take pad_width={pad_width!r}.",
            where=here(),
            why="widths are 0 or more",
            fix="x[1:-1] removes",
        )
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, options.pop("constant_values", 0))
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ShapeError(
            f"mnp.pad cannot take mode={mode!r}.",
            where=here(),
            why="the modes are constant, edge, reflect, symmetric, wrap and empty",
            fix="mode='edge'",
        )
    for d, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_edge(x, d, before, after) if mode == "edge" else _pad_copies(x, d, before, after, mode)
    return x


def _pad_constant(x: Value, widths: Sequence[_Width], constants: Any) -> Value:
    if np.ndim(constants) == 0:
        fill = convert(value(constants), x.type.dtype)
        low, high = (tuple(pair[n] for pair in widths) for n in (0, 1))
        return shape_ops.pad(x, fill, low=low, high=high, interior=(0,) * x.ndim)
    for d, ((before, after), (first, last)) in enumerate(
        zip(widths, _per_dim(constants, x.ndim, "constant_values"), strict=True)
    ):
        for width, fill_, is_low in ((before, first, True), (after, last, False)):
            sizes = tuple(width if n == d else 0 for n in range(x.ndim))
            none = (0,) * x.ndim
            fill = convert(value(fill_), x.type.dtype)
            x = shape_ops.pad(x, fill, low=sizes if is_low else none, high=none if is_low else sizes, interior=none)
    return x


def _pad_edge(x: Value, d: int, before: int, after: int) -> Value:
    size = x.shape[d]
    first = broadcast(cut(x, d, 0, 1), (*x.shape[:d], before, *x.shape[d + 1 :]))
    last = broadcast(cut(x, d, size - 1, size), (*x.shape[:d], after, *x.shape[d + 1 :]))
    return concatenate([part for part in (first, x, last) if part.shape[d]], d)


def _pad_copies(x: Value, d: int, before: int, after: int, mode: str) -> Value:
    """Runs of whole, perhaps turned copies, cut to the widths."""
    size = x.shape[d]
    places = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
    # Consecutive places are one slice each, up or down.
    parts = []
    start = 0
    while start < len(places):
        stop = start + 1
        step = places[stop] - places[start] if stop < len(places) else 1
        step = step if step in (1, -1) else 1
        while stop < len(places) and places[stop] - places[stop - 1] == step:
            stop += 1
        run = places[start:stop]
        part = cut(x, d, int(run.min()), int(run.max()) + 1)
        parts.append(flip(part, d) if step < 0 else part)
        start = stop
    return concatenate(parts, d)


# By value


def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Value:
    """The element of ``choices[a]`` at each place; ``mode`` is "clip" or "wrap"."""
    stacked = value(list(choices)) if isinstance(choices, list | tuple) else value(choices)
    picks = value(a)
    picks = remainder(picks, stacked.shape[0]) if mode == "wrap" else clip(picks, 0, stacked.shape[0] - 1)
    common = np.broadcast_shapes(picks.shape, stacked.shape[1:])
    stacked = broadcast(stacked, (stacked.shape[0], *common)) if stacked.ndim == len(common) + 1 else stacked
    return take_along_axis(stacked, broadcast(picks, (1, *common)), 0)[0]

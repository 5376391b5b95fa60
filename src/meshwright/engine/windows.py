"""What NumPy lacks for moving blocks of an array: padding inside, dynamic slices, and many windows at once.

A *window* of ``x`` is a block of it, ``sizes[i]`` long along ``dims[i]`` and whole along the other dims. Windows are
told apart by where they start: one array per dim of ``dims``, together of one (broadcast) shape, each within bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshwright.core.limits import refuse_impossible
from meshwright.core.types import TensorType

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]

_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}

# Below this width a row is combined element by element; above it, whole rows are cheaper.
_WIDE_ROW = 32
# A step that combines fewer rows than this at once is slower than combining them one by one.
_FEW_ROWS = 16


def pad_interior(x: Array, value: Array, low: Ints, high: Ints, interior: Ints) -> Array:
    """``x`` with padding before, after and between its elements; negative padding cuts off."""
    shape, source, target = _padding(x.shape, low, high, interior)
    refuse_impossible("padding", [TensorType(shape, x.dtype)])
    out = np.empty(shape, x.dtype)
    out[...] = value
    out[target] = x[source]
    return out


@lru_cache(maxsize=1024)
def _padding(shape: Ints, low: Ints, high: Ints, interior: Ints) -> tuple[Ints, tuple[slice, ...], tuple[slice, ...]]:
    """The padded shape, which elements survive, and where they go."""
    padded, source, target = [], [], []
    for size, before, after, between in zip(shape, low, high, interior, strict=True):
        step = between + 1
        total = before + after + size + max(size - 1, 0) * between
        first = max(0, -(before // step))  # element i goes to before + i * step, which must be within 0 … total
        stop = max(first, min(size, (total - 1 - before) // step + 1))
        padded.append(total)
        source.append(slice(first, stop))
        start = before + first * step
        target.append(slice(start, start + (stop - first - 1) * step + 1, step) if stop > first else slice(0, 0))
    return tuple(padded), tuple(source), tuple(target)


def dynamic_slice(x: Array, starts: Sequence[Any], sizes: Ints) -> Array:
    """The block of ``sizes`` at ``starts``, moved into bounds where it sticks out."""
    return x[_block(x.shape, starts, sizes)]


def dynamic_update_slice(x: Array, update: Array, starts: Sequence[Any]) -> Array:
    """A copy of ``x`` with ``update`` written at ``starts``, moved into bounds where it sticks out."""
    out = np.array(x, order="C")  # what is a scalar cannot be written to
    out[_block(x.shape, starts, update.shape)] = update
    return out


def _block(shape: Ints, starts: Sequence[Any], sizes: Ints) -> tuple[slice, ...]:
    block = []
    for size, start, length in zip(shape, starts, sizes, strict=True):
        begin = max(0, min(int(start), size - length))
        block.append(slice(begin, begin + length))
    return tuple(block)


def gather_windows(
    x: Array, starts: Sequence[Array], dims: Ints, sizes: Ints, valid: Array | None = None, fill: Any = None
) -> Array:
    """The windows of ``x``: the shape of the starts, then the dims of ``x``. Those not ``valid`` hold ``fill``."""
    single = all(size == 1 for size in sizes)
    if single and len(dims) == 1:
        out = _take(x, starts[0], dims[0])
    elif single and dims == tuple(range(len(dims))) and x.flags.c_contiguous:
        flat = x.reshape(prod(x.shape[: len(dims)]), *x.shape[len(dims) :])
        rows = _linear(starts, x.shape[: len(dims)])
        out = flat.take(rows, axis=0, mode="clip").reshape(*rows.shape, *sizes, *flat.shape[1:])
    else:
        out = _windows(x, dims, sizes)[tuple(starts)]
    if valid is not None and not valid.all():
        if not out.flags.writeable:  # a single window is a view
            out = out.copy()
        out[np.broadcast_to(~valid, out.shape[: out.ndim - x.ndim])] = fill
    return out


def _take(x: Array, start: Array, dim: int) -> Array:
    """Single slices along one dim, with that dim kept."""
    taken = x.take(start, axis=dim, mode="clip")
    taken = taken.reshape(*taken.shape[: dim + start.ndim], 1, *x.shape[dim + 1 :])
    if dim == 0:
        return taken
    batch = tuple(range(dim, dim + start.ndim))
    return taken.transpose(batch + tuple(range(dim)) + tuple(range(dim + start.ndim, taken.ndim)))


def _windows(x: Array, dims: Ints, sizes: Ints, writeable: bool = False) -> Array:
    """A view with every window of ``x``: where it starts along ``dims``, then its own dims."""
    shape = list(x.shape)
    for dim, size in zip(dims, sizes, strict=True):
        shape[dim] = size
    starts = [x.shape[dim] - size + 1 for dim, size in zip(dims, sizes, strict=True)]
    strides = [x.strides[dim] for dim in dims]
    raw = x if x.dtype.isbuiltin == 1 else x.view(f"u{x.itemsize}")  # as_strided knows NumPy's own dtypes
    view = as_strided(raw, (*starts, *shape), (*strides, *x.strides), writeable=writeable)
    return view if raw is x else view.view(x.dtype)


def _linear(indices: Sequence[Array], shape: Ints) -> Array:
    """The number of a place in an array of ``shape``, counted row by row."""
    total: Any = indices[0].astype(np.intp)
    for index, size in zip(indices[1:], shape[1:], strict=True):
        total = total * size + index.astype(np.intp, copy=False)  # a u64 and a signed one would make a float
    return total  # type: ignore[no-any-return]


def scatter_windows(
    x: Array,
    starts: Sequence[Array],
    dims: Ints,
    updates: Array,
    how: str,
    valid: Array | None = None,
    unique: bool = False,
) -> Array:
    """A copy of ``x`` whose windows are combined with ``updates``, in the order of the starts.

    ``updates`` has the shape of the starts, then the dims of a window. ``how`` is ``set``, ``add``, ``mul``, ``max`` or
    ``min``. Windows that are not ``valid`` are left alone; ``unique`` promises that no two windows overlap.
    """
    batch = updates.shape[: updates.ndim - x.ndim]
    window = updates.shape[len(batch) :]
    sizes = tuple(window[dim] for dim in dims)
    flat = [np.broadcast_to(start, batch).reshape(-1) for start in starts]
    updates = updates.reshape(prod(batch), *window)
    if valid is not None and not valid.all():
        kept = np.broadcast_to(valid, batch).reshape(-1)
        flat = [start[kept] for start in flat]
        updates = updates[kept]
    if dims and (unique or how == "set"):
        out = x.copy()
        view, at = _windows(out, dims, sizes, writeable=True), tuple(flat)
        view[at] = updates if how == "set" else _UFUNCS[how](view[at], updates)
        return out
    # Otherwise: bring `dims` to the front and see x as rows, one per place that a window may touch.
    order = dims + tuple(dim for dim in range(x.ndim) if dim not in dims)
    out = np.array(x.transpose(order), order="C")
    places = out.shape[: len(dims)]
    rows = _linear(flat, places) if dims else np.zeros(len(updates), np.intp)
    if any(size != 1 for size in sizes):
        steps = _linear(np.indices(sizes, sparse=True), places)
        rows = (rows.reshape(-1, *(1,) * len(dims)) + steps).reshape(-1)
    width = out.size // max(1, prod(places))
    _combine_rows(
        out.reshape(prod(places), width),
        rows,
        updates.transpose(0, *(dim + 1 for dim in order)).reshape(rows.size, width),
        how,
    )
    return out.transpose(tuple(sorted(range(x.ndim), key=order.__getitem__)))


def _combine_rows(out: Array, rows: Array, updates: Array, how: str) -> None:
    """Combine each update with the row of ``out`` it names, in place and in order."""
    if not updates.size or not out.size:
        return
    if how == "set":
        out[rows] = updates
        return
    if out.dtype.isbuiltin != 1:  # a narrow float, slow in NumPy: combine in single precision and round once
        wide = out.astype(np.float32)
        _combine_rows(wide, rows, updates.astype(np.float32), how)
        out[...] = wide
        return
    ufunc, width = _UFUNCS[how], out.shape[1]
    if width == 1:
        ufunc.at(out.reshape(-1), rows, updates.reshape(-1))
    elif width < _WIDE_ROW:
        ufunc.at(out.reshape(-1), (rows[:, None] * width + np.arange(width)).reshape(-1), updates.reshape(-1))
    else:
        _combine_wide_rows(out, rows, updates, ufunc)


def _combine_wide_rows(out: Array, rows: Array, updates: Array, ufunc: np.ufunc) -> None:
    """The first update of each row at once, then the second of each, …; the last few one by one."""
    count = len(rows)
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    turn = np.arange(count) - np.repeat(first, np.diff(np.append(first, count)))
    order = order[np.argsort(turn, kind="stable")]
    done = 0
    for size in np.bincount(turn).tolist():
        if size < _FEW_ROWS:
            break
        now = order[done : done + size]
        at = rows[now]
        out[at] = ufunc(out[at], updates[now])
        done += size
    for n in order[done:].tolist():
        row = out[rows[n]]
        ufunc(row, updates[n], out=row)

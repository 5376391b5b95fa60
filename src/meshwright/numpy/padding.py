"""``mnp.pad``: elements added before and after an array, along each of its dims."""

from __future__ import annotations

from builtins import min as least
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, axis_of, broadcast, convert, is_number, value
from meshwright.arrays.static import one_of, static_int
from meshwright.core import dtypes
from meshwright.core.limits import refuse_impossible, refuse_unheld
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import multiply, subtract
from meshwright.numpy.creation import linspace
from meshwright.numpy.functions import apply_along_axis
from meshwright.numpy.mathematics import rint
from meshwright.numpy.quantiles import median
from meshwright.numpy.reductions import max, mean, min
from meshwright.numpy.shapes import concatenate, cut, flip
from meshwright.ops import basic
from meshwright.ops import shape as shape_ops

_Width = tuple[int, int]

# The modes, each with the one option it has and what that is if left out.
_OPTIONS: dict[str, tuple[str, Any] | None] = {
    "constant": ("constant_values", 0),
    "edge": None,
    "empty": None,
    "linear_ramp": ("end_values", 0),
    "maximum": ("stat_length", None),
    "mean": ("stat_length", None),
    "median": ("stat_length", None),
    "minimum": ("stat_length", None),
    "reflect": ("reflect_type", "even"),
    "symmetric": ("reflect_type", "even"),
    "wrap": None,
}
_STATISTICS: dict[str, Callable[..., Value]] = {"maximum": max, "mean": mean, "median": median, "minimum": min}


def pad(array: ArrayLike, pad_width: Any, mode: str | Callable[..., Any] = "constant", **options: Any) -> Value:
    """``array`` with elements added before and after along each dim.

    Modes are "constant" (with ``constant_values``), "edge", "reflect" and "symmetric" (with ``reflect_type``), "wrap",
    "linear_ramp" (with ``end_values``), "maximum", "mean", "median" and "minimum" (with ``stat_length``), "empty", and
    a function ``f(row, widths, dim, options)`` of rows that have zeros at both ends.

    >>> import meshwright.numpy as mnp
    >>> mnp.pad(mnp.array([1, 2, 3]), (1, 2), constant_values=9)
    Array([9, 1, 2, 3, 9, 9], dtype=int32)
    """
    x = value(array)
    widths = _widths(pad_width, x.ndim)
    if callable(mode):
        return _by_function(x, widths, mode, options)
    one_of(mode, list(_OPTIONS), "mode of mnp.pad")
    name, default = _OPTIONS[mode] or ("", None)
    unknown = next((key for key in options if key != name), None)
    if unknown is not None:
        raise ShapeError(
            f"mnp.pad with mode={mode!r} cannot take {unknown}=.",
            where=here(),
            why=f"its option is {name}" if name else "it has no options",
            fix=f"{name}={default!r}" if name else f"leave out {unknown}",
        )
    option = options.get(name, default)
    refuse_impossible("mnp.pad", [x.type.with_(shape=tuple(n + a + b for n, (a, b) in zip(x.shape, widths)))])
    if mode in ("constant", "empty"):
        return _constant(x, widths, option if mode == "constant" else 0)
    if mode != "mean" and any(pair != (0, 0) and x.shape[d] == 0 for d, pair in enumerate(widths)):  # that is NaN
        raise ShapeError(
            f"mnp.pad with mode={mode!r} cannot add to {x.type.short()}.",
            where=here(),
            why="a dim to be made longer has no elements to take others from",
            fix="mode='constant'",
        )
    settings = _settings(mode, option, x.ndim)
    for d, (before, after) in enumerate(widths):
        if before or after:
            x = _along(x, d, before, after, mode, settings[d])
    return x


def _by_function(x: Value, widths: list[_Width], function: Callable[..., Any], options: dict[str, Any]) -> Value:
    """Along one dim after the other, what a function makes of each row: it is given the row with zeros around it, how
    many there are, and the dim."""
    padded = _constant(x, widths, 0)
    for d, pair in enumerate(widths):
        padded = apply_along_axis(function, d, padded, pair, d, options)
    return padded


def _widths(given: Any, rank: int) -> list[_Width]:
    """How many elements are added before and after, for each dim."""
    if isinstance(given, dict):
        pairs: list[Any] = [(0, 0)] * rank
        for d, pair in given.items():
            pairs[axis_of(d, rank, "mnp.pad")] = pair if isinstance(pair, tuple | list) else (pair, pair)
        given = pairs
    if not rank:
        return []
    widths = [(static_int(a, "pad_width"), static_int(b, "pad_width")) for a, b in _per_dim(given, rank, "pad_width")]
    if any(n < 0 for pair in widths for n in pair):
        raise ShapeError(
            f"mnp.pad cannot take pad_width={given!r}.", where=here(), why="widths are 0 or more", fix="x[1:-1] removes"
        )
    return widths


def _settings(mode: str, option: Any, rank: int) -> list[Any]:
    """What the option of a mode says about each dim."""
    if mode in ("reflect", "symmetric"):
        one_of(option, ("even", "odd"), "reflect_type of mnp.pad")
        return [option] * rank
    if mode == "linear_ramp":
        return _per_dim(option, rank, "end_values")
    if mode not in _STATISTICS or option is None:
        return [None] * rank
    lengths = [tuple(static_int(n, "stat_length") for n in pair) for pair in _per_dim(option, rank, "stat_length")]
    if any(n < 1 for pair in lengths for n in pair):
        raise ShapeError(
            f"mnp.pad cannot take stat_length={option!r}.",
            where=here(),
            why="a statistic is of one element or more",
            fix="stat_length=1",
        )
    return lengths


def _per_dim(given: Any, rank: int, name: str) -> list[Any]:
    """A pair per dim from one number, one pair, or a pair per dim."""
    try:
        array = np.asarray(given) if not _has_values(given) else np.asarray(given, object)
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


def _constant(x: Value, widths: Sequence[_Width], constants: Any) -> Value:
    if np.ndim(constants) == 0:
        fill = convert(value(constants), x.type.dtype, weak=is_number(constants))
        low, high = (tuple(pair[n] for pair in widths) for n in (0, 1))
        return shape_ops.pad(x, fill, low=low, high=high, interior=(0,) * x.ndim)
    for d, ((before, after), (first, last)) in enumerate(
        zip(widths, _per_dim(constants, x.ndim, "constant_values"), strict=True)
    ):
        for width, fill_, is_low in ((before, first, True), (after, last, False)):
            sizes = tuple(width if n == d else 0 for n in range(x.ndim))
            none = (0,) * x.ndim
            fill = convert(value(fill_), x.type.dtype, weak=is_number(fill_))
            x = shape_ops.pad(x, fill, low=sizes if is_low else none, high=none if is_low else sizes, interior=none)
    return x


def _along(x: Value, d: int, before: int, after: int, mode: str, setting: Any) -> Value:
    """``x`` made longer along one dim."""
    size = x.shape[d]
    if mode == "edge" or (setting == "odd" and size == 1):
        first, last = cut(x, d, 0, 1), cut(x, d, size - 1, size)
        return _joined(x, d, _repeated(first, d, before), _repeated(last, d, after))
    if mode == "linear_ramp":
        first, last = (_ramp(x, d, n, end, low) for n, end, low in zip((before, after), setting, (True, False)))
        return _joined(x, d, first, last)
    if mode in _STATISTICS:
        low, high = (size if setting is None else least(n, size) for n in (setting or (size, size)))
        first, last = (_statistic(cut(x, d, *part), d, mode) for part in ((0, low), (size - high, size)))
        return _joined(x, d, _repeated(first, d, before), _repeated(last, d, after))
    if setting == "odd":
        return _turned(_turned(x, d, before, mode, True), d, after, mode, False)
    return _copies(x, d, before, after, mode)


def _joined(x: Value, d: int, first: Value, last: Value) -> Value:
    return concatenate([part for part in (first, x, last) if part.shape[d]], d)


def _repeated(row: Value, d: int, count: int) -> Value:
    """A slice of size 1 along a dim, repeated."""
    return broadcast(row, (*row.shape[:d], count, *row.shape[d + 1 :]))


def _statistic(part: Value, d: int, mode: str) -> Value:
    found = _STATISTICS[mode](part, d, keepdims=True)
    whole = dtypes.is_integer(part.type.dtype) and not dtypes.is_integer(found.type.dtype)
    return basic.convert(rint(found) if whole else found, dtype=part.type.dtype, weak=part.type.weak)


def _ramp(x: Value, d: int, count: int, end: Any, low: bool) -> Value:
    """Steps from a given number at the far end to the last element at this one."""
    size = x.shape[d]
    edge = cut(x, d, 0, 1) if low else cut(x, d, size - 1, size)
    edge = basic.reshape(edge, shape=(*x.shape[:d], *x.shape[d + 1 :]))
    ramp = linspace(value(end), edge, count, endpoint=False, dtype=x.type.dtype, axis=d)
    return ramp if low else flip(ramp, d)


def _turned(x: Value, d: int, count: int, mode: str, low: bool) -> Value:
    """``x`` continued by itself turned around the point at its edge, as far as it reaches and then again."""
    skipped = 1 if mode == "reflect" else 0
    while count > 0:
        size = x.shape[d]
        edge = cut(x, d, 0, 1) if low else cut(x, d, size - 1, size)
        width = least(count, size - skipped)
        start = skipped if low else size - skipped - width
        part = subtract(multiply(edge, 2), flip(cut(x, d, start, start + width), d))
        x = concatenate([part, x] if low else [x, part], d)
        count -= width
    return x


def _copies(x: Value, d: int, before: int, after: int, mode: str) -> Value:
    """Runs of whole, perhaps turned copies, cut to the widths."""
    size = x.shape[d]
    refuse_unheld("mnp.pad", [TensorType((before + size + after,), dtypes.INT64)])  # the places that it reads
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

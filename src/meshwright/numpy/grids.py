"""Arrays written as an index of slices: ``mgrid``, ``ogrid``, ``r_``, ``c_``, ``s_``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import promoted_values, value
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.creation import arange, linspace, meshgrid
from meshwright.numpy.shapes import concatenate, moveaxis, stack
from meshwright.ops import basic

s_ = np.s_  # an index as it is written, such as s_[1:, ::2]
index_exp = np.index_exp


def _numbers(key: slice, name: str) -> Value:
    """The numbers that a slice stands for: a complex step is how many there are, with both ends."""
    start = 0 if key.start is None else key.start
    step = 1 if key.step is None else key.step
    if key.stop is None:
        raise ShapeError(
            f"{name} got a slice without an end.", where=here(), why="there is no array to end with", fix=f"{name}[0:3]"
        )
    if isinstance(step, complex):
        return linspace(start, key.stop, int(abs(step)))
    return arange(start, key.stop, step)


class _Grid:
    """``mgrid`` and ``ogrid``: the coordinates of a grid given by a slice for each dim."""

    def __init__(self, name: str, sparse: bool) -> None:
        self.name, self.sparse = name, sparse

    def __repr__(self) -> str:
        return self.name

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _numbers(key, self.name)
        columns = promoted_values(*(_numbers(k, self.name) for k in key)) if key else []
        found = meshgrid(*columns, indexing="ij", sparse=self.sparse)
        return found if self.sparse else stack(found) if found else arange(0)


mgrid = _Grid("mnp.mgrid", sparse=False)
ogrid = _Grid("mnp.ogrid", sparse=True)


class _Joined:
    """``r_`` and ``c_``: what is written in the brackets, slices among it, one after the other along a dim."""

    def __init__(self, name: str, axis: int, ndmin: int, first: int) -> None:
        self.name, self.axis, self.ndmin, self.first = name, axis, ndmin, first

    def __repr__(self) -> str:
        return self.name

    def __getitem__(self, key: Any) -> Value:
        items = key if isinstance(key, tuple) else (key,)
        axis, ndmin, first = self.axis, self.ndmin, self.first
        matrix = ""
        if items and isinstance(items[0], str):
            axis, ndmin, first, matrix = self._directive(items[0])
            items = items[1:]
        parts = [value(_numbers(x, self.name) if isinstance(x, slice) else x) for x in items]
        if not parts:
            raise ShapeError(
                f"{self.name} joins nothing.", where=here(), why="it needs an item", fix=f"{self.name}[0:3]"
            )
        shaped = [self._shaped(x, ndmin, first) for x in promoted_values(*parts)]
        found = concatenate(shaped, axis)
        if matrix and found.ndim == 1:
            found = basic.reshape(found, shape=(1, found.size) if matrix == "r" else (found.size, 1))
        return found

    def _directive(self, text: str) -> tuple[int, int, int, str]:
        """The axis, the least rank and the place of an item's dims, as a text before the items says them."""
        if text in ("r", "c"):
            return self.axis, self.ndmin, self.first, text
        try:
            given = [int(n) for n in text.split(",")]
        except ValueError:
            given = []
        if not 1 <= len(given) <= 3:
            raise ShapeError(
                f"{self.name} cannot read {text!r}.", where=here(),
                why="it is the axis, the least number of dims and where an item's dims stand among them",
                fix=f"{self.name}['0,2', x, y]",
            )  # fmt: skip
        axis, ndmin, first = (
            (*given, self.ndmin, self.first)[:3] if len(given) > 1 else (*given, self.ndmin, self.first)
        )
        return axis, ndmin, first, ""

    def _shaped(self, x: Value, ndmin: int, first: int) -> Value:
        """An item with dims of size 1 up to the least rank: before its own, or around them from place ``first``."""
        x = basic.reshape(x, shape=(1,)) if not x.ndim else x
        missing = ndmin - x.ndim
        if missing <= 0:
            return x
        rank = x.ndim
        longer = basic.reshape(x, shape=(1,) * missing + x.shape)
        if first == -1:
            return longer
        own = tuple(range(missing, ndmin))
        places = (
            tuple(range(first, first + rank))
            if first >= 0
            else tuple(range(ndmin + first + 1 - rank, ndmin + first + 1))
        )
        return moveaxis(longer, own, places)


r_ = _Joined("mnp.r_", 0, 1, -1)
c_ = _Joined("mnp.c_", -1, 2, 0)

"""Marks on memory: for each element its last write, by reader its last read, and the copies that may be reading it.

A kernel uses memory in boxes: slots, tiles, all of it. The sides of the boxes met so far cut a buffer into cells, and
one mark per cell is enough, as every box is made of whole cells. Where there would be too many cells, and where what is
selected is no box, the buffer gets a mark per element.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshwright.kernel.run.memory import Box, Data, Path, apart, inside, mark, put

if TYPE_CHECKING:
    from meshwright.kernel.run.transfers import Transfer

UNDEFINED = 1 << 62  # in the mark of a write: what was written has no value
MOST_CELLS = 1024


class Place(Protocol):
    """A part of a buffer: how it is selected, and the box it is, if it is one."""

    @property
    def path(self) -> Path: ...

    @property
    def box(self) -> Box | None: ...


class Cell:
    """The marks of a part of a buffer all of whose elements have the same."""

    __slots__ = ("copies", "reads", "write")

    def __init__(self, write: int, reads: dict[int, int], copies: dict[int, Transfer]) -> None:
        self.write = write
        self.reads = reads  # by task
        self.copies = copies  # by number: those that may be reading it

    def again(self) -> Cell:
        return Cell(self.write, dict(self.reads), dict(self.copies))


class Marks:
    """The marks of one buffer; ``initial`` is the mark of what nobody has written to yet."""

    __slots__ = ("cells", "copies", "cuts", "initial", "known", "last", "reads", "scratch", "shape", "writes")

    def __init__(self, shape: tuple[int, ...], initial: int) -> None:
        self.shape = shape
        self.initial = initial
        self.cuts = [[0] for _ in shape]  # where cells start, along each dim
        self.cells: dict[tuple[int, ...], Cell] | None = {(0,) * len(shape): Cell(initial, {}, {})}
        self.known: dict[Box | None, list[Cell]] = {}  # the cells of boxes
        self.writes: Any = None  # per element, once cells are not enough, as are the following
        self.reads: dict[int, Data] = {}
        self.copies: dict[int, tuple[Transfer, Place]] = {}
        self.scratch: Data | None = None
        self.last: tuple[Place | None, list[Cell] | None] = (None, None)  # what was selected last

    def select(self, place: Place) -> list[Cell] | None:
        """The cells of a place, or None where there are marks per element."""
        if self.last[0] is place:  # an access asks several times
            return self.last[1]
        found = self.known.get(place.box)
        if found is None and self.cells is not None:
            found = self._cut_out(place.box, self.cells)
        self.last = (place, found)
        return found

    def _cut_out(self, box: Box | None, cells: dict[tuple[int, ...], Cell]) -> list[Cell] | None:
        if box is not None and any(start >= stop for start, stop in box):
            return []
        for dim, ends in enumerate(box or ()):
            if ends != (0, self.shape[dim]) and not (self._cut(dim, ends[0]) and self._cut(dim, ends[1])):
                box = None
                break
        if box is None:
            self._refine(cells)
            return None
        starts = [
            cuts[bisect_left(cuts, start) : bisect_left(cuts, stop)]
            for cuts, (start, stop) in zip(self.cuts, box, strict=True)
        ]
        found = self.known[box] = [cells[at] for at in product(*starts)]
        return found

    def _cut(self, dim: int, at: int) -> bool:
        """Let a cell start at a place along a dim; whether there is room for as many cells."""
        cuts = self.cuts[dim]
        n = bisect_left(cuts, at)
        if at == self.shape[dim] or (n < len(cuts) and cuts[n] == at):
            return True
        assert self.cells is not None
        others = [[cuts[n - 1]] if d == dim else starts for d, starts in enumerate(self.cuts)]
        if len(self.cells) + prod(map(len, others)) > MOST_CELLS:
            return False
        for start in product(*others):
            self.cells[(*start[:dim], at, *start[dim + 1 :])] = self.cells[start].again()
        cuts.insert(n, at)
        self.known.clear()
        self.last = (None, None)
        return True

    def _refine(self, cells: dict[tuple[int, ...], Cell]) -> None:
        """From marks per cell to marks per element."""
        self.cells = None
        self.known.clear()
        self.last = (None, None)
        self.writes = np.full(self.shape, self.initial, np.int64) if self.initial else np.zeros(self.shape, np.int64)
        ends = [dict(zip(cuts, [*cuts[1:], n], strict=True)) for cuts, n in zip(self.cuts, self.shape, strict=True)]
        for start, cell in cells.items():
            where = tuple(slice(at, end[at]) for at, end in zip(start, ends, strict=True))
            self.writes[where] = cell.write
            for entity, number in cell.reads.items():
                self._layer(entity)[where] = number
            for copy in cell.copies.values():
                self.copies[copy.number] = (copy, copy.src)

    def _layer(self, entity: int) -> Data:
        layer = self.reads.get(entity)
        if layer is None:
            layer = self.reads[entity] = np.zeros(self.shape, np.int64)
        return layer

    # Questions

    def written(self, place: Place) -> Collection[int]:
        """The marks of writes that occur in a place."""
        cells = self.select(place)
        if cells is not None:
            return {cell.write for cell in cells} if len(cells) != 1 else (cells[0].write,)
        view = mark(self.writes, place.path)
        if view.size == 0:
            return set()
        first = view.flat[0]
        return {int(first)} if (view == first).all() else set(np.unique(view).tolist())

    def undefined(self, place: Place) -> Any:
        """Which of the elements have no value: all or none (a bool), or those of a mask."""
        cells = self.select(place)
        if cells is not None:
            found = {cell.write == 0 or cell.write & UNDEFINED != 0 for cell in cells}
            if len(found) == 1:
                return found.pop()
            assert self.cells is not None
            self._refine(self.cells)
        view = mark(self.writes, place.path)
        return (view == 0) | (view & UNDEFINED != 0)

    def last_reads(self, place: Place) -> Iterator[tuple[int, int]]:
        """The reads by tasks of a place, the last of each among them."""
        cells = self.select(place)
        if cells is not None:
            for cell in cells:
                yield from cell.reads.items()
            return
        for entity, layer in self.reads.items():
            yield entity, int(mark(layer, place.path).max(initial=0))

    def reading(self, place: Place) -> list[Transfer]:
        """The copies that may be reading some of a place."""
        cells = self.select(place)
        if cells is None:
            return [copy for copy, read in self.copies.values() if self.overlap(place, read)]
        if len(cells) == 1:
            return list(cells[0].copies.values())
        return list({number: copy for cell in cells for number, copy in cell.copies.items()}.values())

    def overlap(self, a: Place, b: Place) -> bool:
        """Whether two places have a common element."""
        if a.box is not None and b.box is not None:
            return not apart(a.box, b.box)
        return bool(self._of(a, b).any())

    def _within(self, a: Place, b: Place) -> bool:
        """Whether a place lies in another."""
        if a.box is not None and b.box is not None:
            return inside(a.box, b.box)
        return bool(self._of(b, a).all())

    def _of(self, a: Place, b: Place) -> Data:
        """Which elements of ``b`` are elements of ``a``."""
        if self.scratch is None:
            self.scratch = np.zeros(self.shape, np.int8)
        put(self.scratch, a.path, 1)
        found = mark(self.scratch, b.path).copy()
        put(self.scratch, a.path, 0)
        return found

    # Changes

    def write(self, place: Place, value: int, undefined: Any = None) -> None:
        """Mark a write; where ``undefined``, of what has no value."""
        cells = self.select(place)
        if cells is not None and isinstance(undefined, np.ndarray):
            assert self.cells is not None
            self._refine(self.cells)
            cells = None
        if isinstance(undefined, np.ndarray):
            view = mark(self.writes, place.path)
            view[...] = value
            view[undefined] |= UNDEFINED
            return
        value = value | UNDEFINED if undefined else value
        if cells is None:
            put(self.writes, place.path, value)
            return
        for cell in cells:
            cell.write = value

    def read(self, place: Place, entity: int, number: int) -> None:
        """Mark a read by a task."""
        cells = self.select(place)
        if cells is None:
            put(self._layer(entity), place.path, number)
            return
        for cell in cells:
            cell.reads[entity] = number

    def start_read(self, place: Place, copy: Transfer) -> None:
        """Mark a read by a copy, which may take until somebody knows it to be over."""
        cells = self.select(place)
        if cells is None:
            self.copies[copy.number] = (copy, place)
            return
        for cell in cells:
            cell.copies[copy.number] = copy

    def end_reads(self, place: Place, over: Collection[Transfer]) -> None:
        """Forget that copies may be reading a place: they have been; of elements, where it is all that they read."""
        cells = self.select(place) if over else ()
        for copy in over:
            if cells is not None:
                for cell in cells:
                    cell.copies.pop(copy.number, None)
            elif self._within(self.copies[copy.number][1], place):
                del self.copies[copy.number]

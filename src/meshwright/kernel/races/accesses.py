"""The last accesses to memory: for each element its last write, by reader its last read, and the copies that may be
reading it.

A kernel uses memory in boxes: slots, tiles, all of it. The sides of the boxes met so far cut a buffer into cells, and
one record per cell is enough, as every box is made of whole cells. Where there would be too many cells, and where what
is selected is no box, the buffer gets a record per element.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshwright.kernel.run.memory import Box, Data, Path, apart, inside, put, select_elements

if TYPE_CHECKING:
    from meshwright.kernel.run.transfers import Transfer

UNDEFINED = 1 << 62  # in the number of a write: what was written has no value
MOST_CELLS = 1024


class BufferRegion(Protocol):
    """A part of a buffer: how it is selected, and the box it is, if it is one."""

    @property
    def path(self) -> Path: ...

    @property
    def box(self) -> Box | None: ...


class WholeBuffer:
    """All of a buffer, as a region of it."""

    path: Path = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.box: Box | None = tuple((0, n) for n in shape)


class AccessCell:
    """The last accesses to a part of a buffer, the same for all of its elements."""

    __slots__ = ("copies", "reads", "write")

    def __init__(self, write: int, reads: dict[int, int], copies: dict[int, Transfer]) -> None:
        self.write = write
        self.reads = reads  # by task
        self.copies = copies  # by number: those that may be reading it

    def again(self) -> AccessCell:
        return AccessCell(self.write, dict(self.reads), dict(self.copies))


class AccessMap:
    """The last accesses to one buffer; ``initial`` is the number of what nobody has written to yet."""

    __slots__ = ("cells", "copies", "cuts", "initial", "known", "last", "reads", "rows", "scratch", "shape", "writes")

    def __init__(self, shape: tuple[int, ...], initial: int) -> None:
        self.shape = shape
        self.initial = initial
        self.cuts = [[0] for _ in shape]  # where cells start, along each dim
        self.cells: dict[tuple[int, ...], AccessCell] | None = {(0,) * len(shape): AccessCell(initial, {}, {})}
        self.known: dict[Box | None, list[AccessCell]] = {}  # the cells of boxes
        self.rows: list[AccessCell] | None = None  # the cells of rows, where these are the cells
        self.writes: Any = None  # per element, once cells are not enough, as are the following
        self.reads: dict[int, Data] = {}
        self.copies: dict[int, tuple[Transfer, BufferRegion]] = {}
        self.scratch: Data | None = None
        self.last: tuple[BufferRegion | None, list[AccessCell] | None] = (None, None)  # what was selected last

    def select(self, region: BufferRegion) -> list[AccessCell] | None:
        """The cells of a region, or None where there are records per element."""
        if self.last[0] is region:  # an access asks several times
            return self.last[1]
        found = self.known.get(region.box)
        if found is None and self.cells is not None:
            found = self._cut_out(region.box, self.cells)
        self.last = (region, found)
        return found

    def only(self, region: BufferRegion) -> AccessCell | None:
        """The cell that a region is, if it is one."""
        path = region.path
        if self.rows is not None and len(path) == 1:
            index: Any = path[0]
            if index.__class__ is tuple and len(index) == 1 and index[0].__class__ is int:
                return self.rows[index[0]]
        found = self.last[1] if self.last[0] is region else self.select(region)
        return found[0] if found is not None and len(found) == 1 else None

    def _cut_out(self, box: Box | None, cells: dict[tuple[int, ...], AccessCell]) -> list[AccessCell] | None:
        if len(cells) == 1 and box == tuple([(0, n) for n in self.shape]) and 0 not in self.shape:
            found = self.known[box] = list(cells.values())
            return found
        if box is not None and any(start >= stop for start, stop in box):
            return []
        if box and box[0][1] - box[0][0] == 1 and len(cells) == 1 and 1 < self.shape[0] <= MOST_CELLS // 2:
            # A row: others will follow, and to cut one by one is to look for all boxes again each time.
            (cell,) = cells.values()
            rest = (0,) * (len(self.shape) - 1)
            cells.update({(row, *rest): cell.again() for row in range(1, self.shape[0])})
            self.cuts[0] = list(range(self.shape[0]))
            self.rows = [cells[(row, *rest)] for row in range(self.shape[0])]
            self.known.clear()
            self.last = (None, None)
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
        """Let a cell start at an index along a dim; whether there is room for as many cells."""
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
        self.rows = None
        self.known.clear()
        self.last = (None, None)
        return True

    def _refine(self, cells: dict[tuple[int, ...], AccessCell]) -> None:
        """From records per cell to records per element."""
        self.cells = self.rows = None
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

    def written(self, region: BufferRegion) -> Collection[int]:
        """The numbers of the writes that occur in a region."""
        cells = self.select(region)
        if cells is not None:
            return {cell.write for cell in cells} if len(cells) != 1 else (cells[0].write,)
        view = select_elements(self.writes, region.path)
        if view.size == 0:
            return set()
        first = view.flat[0]
        return {int(first)} if (view == first).all() else set(np.unique(view).tolist())

    def undefined(self, region: BufferRegion, others: Collection[int] = ()) -> Any:
        """Which elements have no value, or are of ``others`` among the writes: all or none (a bool), or a mask."""
        cells = self.select(region)
        if cells is not None:
            found = {cell.write == 0 or cell.write & UNDEFINED != 0 or cell.write in others for cell in cells}
            if len(found) == 1:
                return found.pop()
            assert self.cells is not None
            self._refine(self.cells)
        view = select_elements(self.writes, region.path)
        return (view == 0) | (view & UNDEFINED != 0) | np.isin(view, list(others))

    def last_reads(self, region: BufferRegion) -> Iterator[tuple[int, int]]:
        """The reads by tasks of a region, the last of each among them."""
        cells = self.select(region)
        if cells is not None:
            for cell in cells:
                yield from cell.reads.items()
            return
        for entity, layer in self.reads.items():
            yield entity, int(select_elements(layer, region.path).max(initial=0))

    def reading(self, region: BufferRegion) -> list[Transfer]:
        """The copies that may be reading some of a region."""
        cells = self.select(region)
        if cells is None:
            return [copy for copy, read in self.copies.values() if self.overlap(region, read)]
        if len(cells) == 1:
            return list(cells[0].copies.values())
        return list({number: copy for cell in cells for number, copy in cell.copies.items()}.values())

    def overlap(self, a: BufferRegion, b: BufferRegion) -> bool:
        """Whether two regions have a common element."""
        if a.box is not None and b.box is not None:
            return not apart(a.box, b.box)
        return bool(self._of(a, b).any())

    def _within(self, a: BufferRegion, b: BufferRegion) -> bool:
        """Whether a region lies in another."""
        if a.box is not None and b.box is not None:
            return inside(a.box, b.box)
        return bool(self._of(b, a).all())

    def _of(self, a: BufferRegion, b: BufferRegion) -> Data:
        """Which elements of ``b`` are elements of ``a``."""
        if self.scratch is None:
            self.scratch = np.zeros(self.shape, np.int8)
        put(self.scratch, a.path, 1)
        found = select_elements(self.scratch, b.path).copy()
        put(self.scratch, a.path, 0)
        return found

    # Changes

    def write(self, region: BufferRegion, value: int, undefined: Any = None) -> None:
        """Record a write; where ``undefined``, of what has no value."""
        cells = self.select(region)
        if cells is not None and isinstance(undefined, np.ndarray):
            assert self.cells is not None
            self._refine(self.cells)
            cells = None
        if isinstance(undefined, np.ndarray):
            view = select_elements(self.writes, region.path)
            view[...] = value
            view[undefined] |= UNDEFINED
            return
        value = value | UNDEFINED if undefined else value
        if cells is None:
            put(self.writes, region.path, value)
            return
        for cell in cells:
            cell.write = value

    def read(self, region: BufferRegion, entity: int, number: int) -> None:
        """Record a read by a task."""
        cells = self.select(region)
        if cells is None:
            put(self._layer(entity), region.path, number)
            return
        for cell in cells:
            cell.reads[entity] = number

    def start_read(self, region: BufferRegion, copy: Transfer) -> None:
        """Record a read by a copy, which may take until somebody knows it to be over."""
        cells = self.select(region)
        if cells is None:
            self.copies[copy.number] = (copy, region)
            return
        for cell in cells:
            cell.copies[copy.number] = copy

    def end_reads(self, region: BufferRegion, over: Collection[Transfer]) -> None:
        """Forget that copies may be reading a region: they have been; of elements, where it is all that they read."""
        cells = self.select(region) if over else ()
        for copy in over:
            if cells is not None:
                for cell in cells:
                    cell.copies.pop(copy.number, None)
            elif self._within(self.copies[copy.number][1], region):
                del self.copies[copy.number]

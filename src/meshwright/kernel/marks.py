"""Marks on memory: for each element its last write, and by reader its last read.

Most kernels use a buffer in parts that are the same each time (slots, tiles), and then one mark per part is enough.
Once two parts overlap without being equal, the buffer gets a mark per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.kernel.memory import Box, Data, Path, apart, box_of, mark, put

UNDEFINED = 1 << 62  # in the mark of a write: what was written has no value
MOST_PARTS = 256  # as many are searched for overlaps whenever a new one is met


class Part:
    """The marks of a part of a buffer all of whose elements have the same."""

    __slots__ = ("box", "reads", "write")

    def __init__(self, box: Box, write: int) -> None:
        self.box = box
        self.write = write
        self.reads: dict[int, int] = {}


class Marks:
    """The marks of one buffer; ``initial`` is the mark of what nobody has written to yet."""

    __slots__ = ("initial", "last", "parts", "reads", "scratch", "shape", "writes")

    def __init__(self, shape: tuple[int, ...], initial: int) -> None:
        self.shape = shape
        self.initial = initial
        self.parts: dict[Box, Part] | None = {}
        self.writes: Any = None  # per element, once parts are not enough
        self.reads: dict[int, Data] = {}
        self.scratch: Data | None = None
        self.last: tuple[Path, Part] | None = None  # what was asked for last: an access asks several times

    def part(self, path: Path) -> Part | None:
        """The part that a path selects, or None where there are marks per element."""
        if self.parts is None:
            return None
        if self.last is not None and self.last[0] is path:
            return self.last[1]
        box = box_of(self.shape, path)
        if box is not None:
            found = self.parts.get(box)
            if found is not None:
                self.last = (path, found)
                return found
            if any(start >= stop for start, stop in box):
                return Part(box, self.initial)
            if len(self.parts) < MOST_PARTS and all(apart(box, other) for other in self.parts):
                found = self.parts[box] = Part(box, self.initial)
                return found
        self._refine(self.parts)
        return None

    def _refine(self, parts: dict[Box, Part]) -> None:
        """From marks per part to marks per element."""
        self.parts = self.last = None
        self.writes = np.full(self.shape, self.initial, np.int64) if self.initial else np.zeros(self.shape, np.int64)
        for part in parts.values():
            where = tuple(slice(start, stop) for start, stop in part.box)
            self.writes[where] = part.write
            for entity, number in part.reads.items():
                self._layer(entity)[where] = number

    def _layer(self, entity: int) -> Data:
        layer = self.reads.get(entity)
        if layer is None:
            layer = self.reads[entity] = np.zeros(self.shape, np.int64)
        return layer

    def written(self, path: Path) -> tuple[int, ...]:
        """The marks of writes that occur in what a path selects."""
        part = self.part(path)
        if part is not None:
            return (part.write,)
        view = mark(self.writes, path)
        if view.size == 0:
            return ()
        first = view.flat[0]
        if (view == first).all():
            return (int(first),)
        return tuple(int(x) for x in np.unique(view))

    def undefined(self, path: Path) -> Any:
        """Which of the elements have no value: all (True), or those of a mask."""
        part = self.part(path)
        if part is not None:
            return part.write == 0 or part.write & UNDEFINED != 0
        view = mark(self.writes, path)
        return (view == 0) | (view & UNDEFINED != 0)

    def write(self, path: Path, value: int, undefined: Any = None) -> None:
        """Mark a write; where ``undefined``, of what has no value."""
        part = self.part(path)
        if part is not None and isinstance(undefined, np.ndarray):
            assert self.parts is not None
            self._refine(self.parts)
            part = None
        if part is not None:
            part.write = value | UNDEFINED if undefined else value
        elif isinstance(undefined, np.ndarray):
            view = mark(self.writes, path)
            view[...] = value
            view[undefined] |= UNDEFINED
        else:
            put(self.writes, path, value | UNDEFINED if undefined else value)

    def read(self, path: Path, entity: int, number: int) -> None:
        """Mark a read by a task."""
        part = self.part(path)
        if part is not None:
            part.reads[entity] = number
        else:
            put(self._layer(entity), path, number)

    def last_reads(self, path: Path) -> Iterator[tuple[int, int]]:
        """The last read by each task of what a path selects."""
        part = self.part(path)
        if part is not None:
            yield from part.reads.items()
            return
        for entity, layer in self.reads.items():
            yield entity, int(mark(layer, path).max(initial=0))

    def overlap(self, a: Path, b: Path) -> bool:
        """Whether two paths select a common element."""
        one, other = box_of(self.shape, a), box_of(self.shape, b)
        if one is not None and other is not None:
            return not apart(one, other)
        if self.scratch is None:
            self.scratch = np.zeros(self.shape, np.int8)
        put(self.scratch, a, 1)
        found = bool(mark(self.scratch, b).any())
        put(self.scratch, a, 0)
        return found

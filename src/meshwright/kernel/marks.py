"""Marks on memory: for each element its last write, and by reader its last read.

Most kernels use a buffer in parts that are the same each time (slots, tiles), and then one mark per part is enough.
Once two parts overlap without being equal, the buffer gets a mark per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from meshwright.kernel.memory import Bitcast, Data, Path, Reshape, mark, put

UNDEFINED = 1 << 62  # in the mark of a write: what was written has no value
MOST_PARTS = 256  # as many are searched for overlaps whenever a new one is met

Box = tuple[tuple[int, int], ...]


def box_of(shape: tuple[int, ...], path: Path) -> Box | None:
    """The start and stop along each dim of what a path selects; None if it is no box."""
    if not path:
        return tuple((0, n) for n in shape)
    only: Any = path[0]
    if len(path) == 1 and len(only) == 1 and only[0].__class__ is int and only.__class__ is tuple:
        return ((only[0], only[0] + 1), *((0, n) for n in shape[1:]))
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    view = list(range(len(shape)))
    for step in path:
        if isinstance(step, Bitcast):
            continue
        if isinstance(step, Reshape):
            return None
        if step[0] is Ellipsis and len(step) == 1:
            continue
        at, kept = 0, []
        for key in step:
            if key is Ellipsis:
                skipped = len(view) - (len(step) - 1)
                kept += view[at : at + skipped]
                at += skipped
                continue
            dim = view[at]
            at += 1
            if key.__class__ is int:
                starts[dim] += key * steps[dim]
                stops[dim], steps[dim] = starts[dim] + 1, 1
            elif key.__class__ is slice:
                kept.append(dim)
                if key.start is key.stop is key.step is None:
                    continue
                size = -((starts[dim] - stops[dim]) // steps[dim])
                first, end, stride = key.indices(size)
                count = len(range(first, end, stride))
                starts[dim] += first * steps[dim]
                steps[dim] *= stride
                stops[dim] = starts[dim] + (count - 1) * steps[dim] + 1 if count else starts[dim]
            else:
                return None
        view = kept + view[at:]
    if any(step != 1 for step in steps):
        return None
    return tuple(zip(starts, stops, strict=True))


class Part:
    """The marks of a part of a buffer all of whose elements have the same."""

    __slots__ = ("box", "reads", "write")

    def __init__(self, box: Box, write: int) -> None:
        self.box = box
        self.write = write
        self.reads: dict[int, int] = {}


def _apart(a: Box, b: Box) -> bool:
    return any(min(stop, end) <= max(first, start) for (first, stop), (start, end) in zip(a, b, strict=True))


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
            if len(self.parts) < MOST_PARTS and all(_apart(box, other) for other in self.parts):
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

    def unwritten(self) -> Any:
        """The elements that nobody has written to: a mask, all (True) or None."""
        if self.parts is not None:
            written = [part for part in self.parts.values() if part.write]
            if not written:
                return True
            if sum(prod(stop - start for start, stop in part.box) for part in written) == prod(self.shape):
                return None
            self._refine(self.parts)
        missing = self.writes == 0
        return missing if missing.any() else None

    def overlap(self, a: Path, b: Path) -> bool:
        """Whether two paths select a common element."""
        one, other = box_of(self.shape, a), box_of(self.shape, b)
        if one is not None and other is not None:
            return not _apart(one, other)
        if self.scratch is None:
            self.scratch = np.zeros(self.shape, np.int8)
        put(self.scratch, a, 1)
        found = bool(mark(self.scratch, b).any())
        put(self.scratch, a, 0)
        return found

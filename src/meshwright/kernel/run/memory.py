"""Memory of devices: buffers, and the paths by which refs select parts of them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.kernel.language.indexing import Index
from meshwright.kernel.language.spaces import ACC, MemorySpace, MemoryType, memory_of
from meshwright.kernel.run.faults import CopyError

if TYPE_CHECKING:
    from meshwright.kernel.races.checker import AccessChecker
    from meshwright.kernel.run.transfers import Transfer

Data = np.ndarray[Any, Any]


class Reshape(NamedTuple):
    """A step of a path: the same elements in another shape."""

    shape: tuple[int, ...]


class Bitcast(NamedTuple):
    """A step of a path: the same bits as numbers of another dtype."""

    dtype: DType


MOST_PARTS = 64  # of memory not filled yet: beyond, looking through them takes longer than filling

Path = tuple[Index | Reshape | Bitcast, ...]
Box = tuple[tuple[int, int], ...]  # start and stop along each dim


def follow(data: Data, path: Path) -> Data:
    """The part of an array that a path selects, as a view."""
    for step in path:
        if isinstance(step, Reshape):
            data = data.reshape(step.shape)
        elif isinstance(step, Bitcast):
            data = data.view(step.dtype)
        else:
            data = data[step]
    return data


def select_elements(data: Data, path: Path) -> Data:
    """The part of an array with one number per element that a path selects."""
    return follow(data, tuple(step for step in path if not isinstance(step, Bitcast)))


def put(data: Data, path: Path, value: int) -> None:
    """Mark the part of an array that a path selects; its last step may be an array of indices."""
    steps = tuple(step for step in path if not isinstance(step, Bitcast))
    if steps and not isinstance(steps[-1], Reshape):
        follow(data, steps[:-1])[steps[-1]] = value
    else:
        follow(data, steps)[...] = value


def box_of(shape: tuple[int, ...], path: Path) -> Box | None:
    """The start and stop along each dim of what a path selects; None if it is no box."""
    if not path:
        return tuple((0, n) for n in shape)
    only: Any = path[0]
    if len(path) == 1 and len(only) == 1 and only[0].__class__ is int and only.__class__ is tuple:
        return ((only[0], only[0] + 1), *((0, n) for n in shape[1:]))
    if len(path) == 1 and only.__class__ is tuple and len(only) == len(shape):
        found = []
        for key, size in zip(only, shape, strict=True):
            if key.__class__ is int:
                found.append((key, key + 1))
            elif key.__class__ is slice and key.step in (None, 1):
                start, stop, _ = key.indices(size)
                found.append((start, max(start, stop)))
            else:
                break
        else:
            return tuple(found)
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


def apart(a: Box, b: Box) -> bool:
    for (first, stop), (start, end) in zip(a, b, strict=True):
        if stop <= start or end <= first or first >= stop or start >= end:
            return True
    return False


def inside(a: Box, b: Box) -> bool:
    for (first, stop), (start, end) in zip(a, b, strict=True):  # noqa: SIM110 (a generator takes longer)
        if first < start or end < stop:
            return False
    return True


def poison(shape: tuple[int, ...], dtype: DType) -> Data:
    """Memory nobody has written to: NaN, or the least number of an integer dtype."""
    data = np.empty(shape, dtype)
    fill_poison(data)
    return data


def fill_poison(data: Data) -> None:
    """Overwrite memory with what nobody wrote."""
    kind = data.dtype.kind
    if kind == "b":
        data[...] = True
    elif kind in "iu" or "int" in data.dtype.name:  # narrow integers are of no kind that NumPy knows
        limits = ml_dtypes.iinfo(data.dtype)  # type: ignore[no-untyped-call]
        data[...] = limits.min if limits.min < 0 else limits.max
    elif data.dtype.itemsize == 1 or kind in "fcV":
        data[...] = np.asarray(np.nan, data.dtype)


class Unfilled:
    """What was written of memory of which the rest is not even poison yet."""

    __slots__ = ("elements", "known", "parts")

    def __init__(self) -> None:
        self.elements = 0  # how many were written
        self.parts: list[Box] = []  # disjoint
        self.known: set[Box | None] = set()  # boxes that are inside one of them

    def covers(self, box: Box | None) -> bool:
        """Whether all of a box was written, as a part or within one."""
        if box in self.known:
            return True
        found = box is not None and any(inside(box, part) for part in self.parts)
        if found:
            self.known.add(box)
        return found

    def add(self, box: Box | None) -> bool:
        """Note that a box is written; False if it overlaps parts it is not in, or if there are too many."""
        if self.covers(box):
            return True
        if box is None or len(self.parts) >= MOST_PARTS or not all(apart(box, part) for part in self.parts):
            return False
        self.parts.append(box)
        self.elements += prod(stop - start for start, stop in box)
        self.known.add(box)
        return True


class Buffer:
    """An allocation of one device. ``key`` is its address: the same on all devices that run the same kernel."""

    __slots__ = (
        "accesses", "addressable", "alive", "birth", "core", "data", "device", "key", "label", "landing", "readonly",
        "space", "unfilled",
    )  # fmt: skip

    def __init__(self, key: Any, label: str, space: MemorySpace | ACC, data: Data, device: int, core: int) -> None:
        self.key = key
        self.label = label
        self.space = space
        self.addressable = space.addressable
        self.data = data
        self.device = device
        self.core = core
        self.alive = True
        self.readonly = False
        self.accesses: AccessChecker | None = None
        self.unfilled: Unfilled | None = None
        self.landing: list[Transfer] | None = None  # of windows: the copies that the body has started to them
        self.birth = 0  # the event of its device at which it came to be

    @property
    def type(self) -> MemoryType:
        return memory_of(self.space, self.data.shape, self.data.dtype)

    def before_read(self, box: Box | None) -> None:
        """Something reads: unless all of it was written, let the rest be poison first."""
        if self.unfilled is not None and not self.unfilled.covers(box):
            self.fill_unwritten()

    def before_write(self, box: Box | None) -> None:
        """Something writes."""
        if self.unfilled is None:
            return
        if not self.unfilled.add(box):
            self.fill_unwritten()
        elif self.unfilled.elements == self.data.size:
            self.unfilled = None

    def fill_unwritten(self) -> None:
        """Poison what was never written, where that was put off."""
        unfilled, self.unfilled = self.unfilled, None
        if unfilled is None:
            return
        if unfilled.elements == self.data.size:
            return
        places = [tuple(slice(*ends) for ends in box) for box in unfilled.parts]
        kept = [self.data[place].copy() for place in places]
        fill_poison(self.data)
        for place, values in zip(places, kept, strict=True):
            self.data[place] = values


def reshaped(data: Data, shape: tuple[int, ...]) -> Data:
    """The same memory in another shape."""
    same_size = data.size == prod(shape)
    view = data.reshape(shape) if same_size else data
    if not same_size or (data.size and not np.may_share_memory(view, data)):
        raise CopyError(
            f"A ref of shape {data.shape} cannot be seen in shape {shape}.",
            where=here(),
            why="its elements do not lie in memory in that order" if same_size else "the sizes differ",
            fix="load the value and reshape that: ref[...].reshape(…)",
        )
    return view

"""Memory of devices: buffers, and the paths by which refs select parts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.kernel.faults import CopyError
from meshwright.kernel.indexing import Index
from meshwright.kernel.spaces import MemorySpace, MemoryType

if TYPE_CHECKING:
    from meshwright.kernel.marks import Marks
    from meshwright.kernel.shadow import Shadow

Data = np.ndarray[Any, Any]


class Reshape(NamedTuple):
    """A step of a path: the same elements in another shape."""

    shape: tuple[int, ...]


class Bitcast(NamedTuple):
    """A step of a path: the same bits as numbers of another dtype."""

    dtype: DType


Path = tuple[Index | Reshape | Bitcast, ...]


def follow(data: Data, path: Path) -> Data:
    """The part of an array that a path selects, as a view."""
    for step in path:
        if isinstance(step, Reshape):
            data = data.view()
            data.shape = step.shape
        elif isinstance(step, Bitcast):
            data = data.view(step.dtype)
        else:
            data = data[step]
    return data


def mark(data: Data, path: Path) -> Data:
    """The part of an array of marks, one per element, that a path selects."""
    return follow(data, tuple(step for step in path if not isinstance(step, Bitcast)))


def put(data: Data, path: Path, value: int) -> None:
    """Mark the part of an array that a path selects; its last step may be an array of indices."""
    steps = tuple(step for step in path if not isinstance(step, Bitcast))
    if steps and not isinstance(steps[-1], Reshape):
        follow(data, steps[:-1])[steps[-1]] = value
    else:
        follow(data, steps)[...] = value


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
    elif kind in "iu":
        data[...] = np.iinfo(data.dtype).min if kind == "i" else np.iinfo(data.dtype).max
    elif data.dtype.itemsize == 1 or kind in "fcV":
        data[...] = np.asarray(np.nan, data.dtype)


class Buffer:
    """An allocation of one device. ``key`` is its address: the same on all devices that run the same kernel."""

    __slots__ = ("alive", "birth", "core", "data", "device", "key", "label", "readonly", "shadow", "space", "unfilled")

    def __init__(self, key: Any, label: str, space: MemorySpace, data: Data, device: int, core: int) -> None:
        self.key = key
        self.label = label
        self.space = space
        self.data = data
        self.device = device
        self.core = core
        self.alive = True
        self.readonly = False
        self.shadow: Shadow | None = None
        self.unfilled: Marks | None = None  # what was written, while the rest is not even poison yet
        self.birth = 0  # the event of its device at which it came to be

    @property
    def type(self) -> MemoryType:
        return MemoryType(self.space, self.data.shape, self.data.dtype)

    def settle(self) -> None:
        """Poison what was never written, where that was put off."""
        written, self.unfilled = self.unfilled, None
        if written is not None:
            missing = written.unwritten()
            if missing is True:
                fill_poison(self.data)
            elif missing is not None:
                rest = poison((int(missing.sum()),), self.data.dtype)
                self.data[missing] = rest


def reshaped(data: Data, shape: tuple[int, ...]) -> Data:
    """The same memory in another shape."""
    view = data.view()
    try:
        view.shape = shape
    except (AttributeError, ValueError):
        raise CopyError(
            f"A ref of shape {data.shape} cannot be seen in shape {shape}.",
            where=here(),
            why="its elements do not lie in memory in that order"
            if data.size == np.prod(shape)
            else "the sizes differ",
            fix="load the value and reshape that: ref[...].reshape(…)",
        ) from None
    return view

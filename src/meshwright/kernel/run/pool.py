"""Large memory is used again: the system hands out fresh pages one fault at a time, which costs more than a copy."""

from __future__ import annotations

import sys
import threading
from math import prod
from typing import Any

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.kernel.run.faults import CapacityError
from meshwright.kernel.run.memory import Data

LEAST_BYTES = 1 << 16  # of what is worth keeping
MOST_BYTES = 1 << 28  # kept in all


class Pool:
    """Blocks of bytes, each free as soon as no array refers to it any more.

    >>> pool = Pool()
    >>> a = pool.empty((1 << 17,), np.dtype("int8"))
    >>> a[0] = 7
    >>> del a
    >>> int(pool.empty((1 << 17,), np.dtype("int8"))[0])
    7
    """

    def __init__(self) -> None:
        self.blocks: list[Data] = []
        self.lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: DType, label: str = "a result") -> Data:
        """An array whose contents are arbitrary; ``label`` is what the kernel calls it."""
        nbytes = prod(shape) * dtype.itemsize
        if not LEAST_BYTES <= nbytes <= MOST_BYTES:
            return _allocated(shape, dtype, label)
        with self.lock:
            block = self._free(nbytes)
            # The array refers to the block, as do all views of it: that is what tells whether it is in use.
            return block.view(dtype).reshape(shape)

    def _free(self, nbytes: int) -> Data:
        for n in range(len(self.blocks)):
            block = self.blocks[n]
            # Nobody else refers to it: the list, this name and the argument of getrefcount do.
            if block.nbytes == nbytes and sys.getrefcount(block) == 3:
                self.blocks.append(self.blocks.pop(n))
                return block
        made: Any = np.empty((nbytes,), np.int8)
        self.blocks.append(made)
        total = sum(block.nbytes for block in self.blocks)
        while total > MOST_BYTES:
            total -= self.blocks.pop(0).nbytes  # those in use live on with their arrays
        return made  # type: ignore[no-any-return]


def _allocated(shape: tuple[int, ...], dtype: DType, label: str) -> Data:
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # more than there is, or than there are addresses for
        raise CapacityError(
            f"A kernel needs {prod(shape) * dtype.itemsize} bytes for {label}.",
            where=here(),
            why=f"it has the shape {shape} and the dtype {dtype.name}, and this computer does not have as much memory",
            fix="smaller blocks, or a grid over them",
        ) from None


pool = Pool()

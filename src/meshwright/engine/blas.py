"""Matmuls by several threads of ours, each of which calls BLAS for a part.

The threads of OpenBLAS wait for each other in the middle of a product, and they do not sleep: beside other work on the
machine, a product of 2 ms takes 20. Parts that do not wait for each other lose only the time that the others take.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.engine.threads import EACH, cpus, in_parts

ONE_THREAD_MACS = 1 << 18  # multiply-adds up to which OpenBLAS takes one thread itself
PER_THREAD_MACS = 1 << 22  # below which another thread costs more than it saves
COLUMNS = 16  # that a kernel of BLAS computes at a time


class BlasThreads(NamedTuple):
    """How many threads NumPy's BLAS takes."""

    get: Callable[[], int]
    set: Callable[[int], Any]


@cache
def blas_threads() -> BlasThreads | None:
    """How to ask and tell the OpenBLAS in NumPy's wheels how many threads it takes; None where NumPy has another BLAS,
    or none of its own."""
    folder = Path(np.__file__).parent
    files = [*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")]
    for file in files:
        library = ctypes.CDLL(str(file))
        for name in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads"):
            if hasattr(library, name.format("set")):
                return BlasThreads(getattr(library, name.format("get")), getattr(library, name.format("set")))
    return None


class _Busy:
    """Who keeps BLAS at one thread, and how many it had."""

    lock = threading.Lock()
    count = 0
    before = 1


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """BLAS takes one thread in this block; how many it took before, or 0 if that is not known."""
    threads = blas_threads()
    if threads is None:
        yield 0
        return
    with _Busy.lock:
        if not _Busy.count:
            _Busy.before = threads.get()
            threads.set(1)
        _Busy.count += 1
    try:
        yield _Busy.before
    finally:
        with _Busy.lock:
            _Busy.count -= 1
            if not _Busy.count:
                threads.set(_Busy.before)


def matmul(x: Any, y: Any) -> Any:
    """``np.matmul(x, y)``; large ones are computed in parts, each by a thread.

    >>> x = np.ones((512, 512), np.float32)
    >>> np.array_equal(matmul(x, x), np.full((512, 512), 512))
    True
    """
    if x.ndim < 2 or y.ndim < 2:
        return np.matmul(x, y)
    (*batch, rows, depth), columns = x.shape, y.shape[-1]
    macs = rows * depth * columns
    total = macs * prod(batch)
    few = total < 2 * PER_THREAD_MACS and (macs <= ONE_THREAD_MACS or _Busy.count)
    if few or x.dtype != y.dtype or x.dtype.char not in "fdFD":
        return np.matmul(x, y)
    with one_blas_thread() as before:
        parts = min(before, cpus(), total // PER_THREAD_MACS)
        if parts < 2:
            return np.matmul(x, y)
        out = np.empty((*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), rows, columns), x.dtype)
        by_batch = batch and (batch[0] % parts == 0 or max(rows, columns) < COLUMNS * parts)
        parts = min(EACH * parts, total // PER_THREAD_MACS)
        if by_batch and x.shape[:-2] == y.shape[:-2]:
            in_parts(lambda n: np.matmul(x[n], y[n], out[n]), batch[0], parts)
        elif rows > columns:
            in_parts(lambda n: np.matmul(x[..., n, :], y, out[..., n, :]), rows, parts, COLUMNS)
        else:
            in_parts(lambda n: np.matmul(x, y[..., n], out[..., n]), columns, parts, COLUMNS)
    return out

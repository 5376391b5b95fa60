"""Elementwise kernels run a cache-sized chunk at a time, and large arrays by several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Kernel = Callable[..., None]  # kernel(*operand chunks, *result chunks): 1-D arrays of one length, or of stride 0

_PER_THREAD = 1 << 17  # elements below which another thread costs more than it saves


def map_chunks(
    make_kernel: Callable[[int], Kernel], operands: Sequence[Any], results: Sequence[Any], chunk: int
) -> tuple[Any, ...]:
    """New arrays of dtypes ``results``, each chunk of them written by ``make_kernel(length)``'s kernel.

    A kernel owns its scratch memory (of ``length`` elements at most), so every thread makes its own.
    """
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    outs = [np.empty(shape, dtype) for dtype in results]
    size = outs[0].size
    if size == 0:
        return tuple(outs)
    length = min(chunk, size)
    arrays = [*operands, *outs]
    flags: Any = ["external_loop", "buffered", "ranged", "delay_bufalloc"]
    uses: Any = [["readonly"]] * len(operands) + [["writeonly"]] * len(outs)

    def run(start: int, stop: int) -> None:
        kernel = make_kernel(length)
        chunks: Any = np.nditer(arrays, flags, uses, order="C", buffersize=length)
        with np.errstate(all="ignore"), chunks:
            chunks.iterrange = (start, stop)
            chunks.reset()
            for views in chunks:
                kernel(*views)

    threads = max(1, min(_cpus(), size // _PER_THREAD))
    bounds = [size * n // threads for n in range(threads + 1)]
    _run_all([(run, start, stop) for start, stop in pairwise(bounds)])
    return tuple(outs)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_all(calls: Sequence[tuple[Any, ...]]) -> None:
    """Make the calls at the same time; the first one in this thread."""
    failures: list[BaseException] = []

    def call(function: Any, *args: Any) -> None:
        try:
            function(*args)
        except BaseException as failure:
            failures.append(failure)

    others = [threading.Thread(target=call, args=each) for each in calls[1:]]
    for thread in others:
        thread.start()
    call(*calls[0])
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]


LARGE_BYTES = 1 << 22  # of an array that several threads sum or copy


def reduce_from_nothing(x: Any, axes: tuple[int, ...], dtype: Any, out: Any = None) -> Any:
    """A sum over dims that adds nothing to its summands: of negative zeros it is negative zero."""
    return np.add.reduce(x, axes, dtype, out=out, initial=-np.zeros((), dtype))


def sum_rows(ufunc: np.ufunc, bare: bool = False) -> Callable[..., Any]:
    """``ufunc.reduce`` over the first dim of a large array: floats are summed by BLAS, anything else by threads.

    A ``bare`` sum adds nothing to its summands.
    """
    in_part = reduce_from_nothing if bare else ufunc.reduce

    def reduce(x: Any, axes: tuple[int, ...], dtype: Any, out: Any = None) -> Any:
        if out is None:
            out = np.empty(x.shape[1:], dtype)
        if (
            ufunc is np.add
            and x.dtype == dtype
            and dtype.char in "fd"
            and x.flags.c_contiguous
            and out.flags.c_contiguous
        ):
            rows, total = x.reshape(x.shape[0], -1), out.reshape(-1)
            np.dot(np.ones(x.shape[0], dtype), rows, total)
            if bare:  # which BLAS is not
                (lost,) = np.nonzero((total == 0) & (rows[0] == 0) & np.signbit(rows[0]))
                total[lost] = reduce_from_nothing(rows[:, lost], (0,), dtype)
        else:
            _in_parts(lambda part: in_part(x[:, part], (0,), dtype, out[part]), x.shape[1])
        return out

    return reduce


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` in another shape: a view if it can be, else a copy made by several threads."""
    if x.flags.c_contiguous or x.shape[0] < 2:
        return x.reshape(shape)
    out = np.empty(shape, x.dtype)
    view = out.reshape(x.shape)

    def copy(part: slice) -> None:
        view[part] = x[part]

    _in_parts(copy, x.shape[0])
    return out


def _in_parts(function: Callable[[slice], Any], size: int) -> None:
    threads = max(1, min(_cpus(), size))
    bounds = [size * n // threads for n in range(threads + 1)]
    _run_all([(function, slice(start, stop)) for start, stop in pairwise(bounds)])

"""Elementwise kernels run a cache-sized chunk at a time, and large arrays by several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.engine.blas import one_blas_thread
from meshwright.engine.threads import EACH, cpus, in_parts, run_all

Kernel = Callable[..., None]  # kernel(*operand chunks, *result chunks): 1-D arrays of one length, or of stride 0

_PER_THREAD = 1 << 17  # elements below which another thread costs more than it saves
_SUMMED_BYTES = 1 << 24  # that are summed in the time in which another thread wakes up
_PAGE = 1 << 10  # elements that one thread writes at least: whole pages
_BLOCK = 1 << 16  # elements of a sum that stay in the cache


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

    threads = max(1, min(cpus(), size // _PER_THREAD))
    parts = min(EACH * threads, size // _PER_THREAD) if threads > 1 else 1
    bounds = [size * n // parts for n in range(parts + 1)]
    run_all([partial(run, start, stop) for start, stop in pairwise(bounds)])
    return tuple(outs)


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
            with one_blas_thread():
                threads = min(cpus(), x.nbytes // _SUMMED_BYTES)
                parts = EACH * threads if threads > 1 else 1
                in_parts(lambda part: _sum_part(rows[:, part], total[part], bare), total.size, parts, _PAGE)
        else:
            in_parts(lambda part: in_part(x[:, part], (0,), dtype, out[part]), x.shape[1], EACH * cpus())
        return out

    return reduce


def _sum_part(rows: Any, total: Any, bare: bool) -> None:
    """The sum of rows by BLAS. It adds to zero, which makes negative zeros positive ones; a ``bare`` sum does not."""
    ones = np.ones((1, len(rows)), rows.dtype)
    for start in range(0, total.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        block, found = rows[:, part], total[None, part]
        np.matmul(ones, block, found)
        if bare and (found == 0).any():
            (lost,) = np.nonzero((found[0] == 0) & np.signbit(block[0]))
            found[0, lost] = reduce_from_nothing(block[:, lost], (0,), rows.dtype)


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` in another shape: a view if it can be, else a copy made by several threads."""
    if x.flags.c_contiguous or x.shape[0] < 2:
        return x.reshape(shape)
    out = np.empty(shape, x.dtype)
    view = out.reshape(x.shape)

    def copy(part: slice) -> None:
        view[part] = x[part]

    in_parts(copy, x.shape[0], EACH * cpus())
    return out


class Repeated:
    """A large array that is a smaller one several times over, which is written out when somebody reads it.

    >>> x = repeated(np.broadcast_to(np.arange(2.0), (3, 2)), (6,))
    >>> x.shape, np.asarray(x)
    ((6,), array([0., 1., 0., 1., 0., 1.]))
    """

    def __init__(self, view: Any, shape: tuple[int, ...]) -> None:
        self.view = view  # in which it is there once
        self.shape, self.ndim, self.dtype = shape, len(shape), view.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return reshaped(self.view, self.shape).astype(self.dtype if dtype is None else dtype, copy=False)


def repeated(x: Any, shape: tuple[int, ...]) -> Any:
    """`reshaped`, of a view that repeats elements not yet written out."""
    if any(stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True)):
        return Repeated(x, shape)
    return reshaped(x, shape)

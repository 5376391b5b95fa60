"""Convolution on NumPy: the windows are a strided view of the input, copied into matrices that BLAS multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshwright.core import dtypes
from meshwright.engine.windows import pad_interior
from meshwright.ops.basic import inverse
from meshwright.ops.contraction import blas_layout
from meshwright.ops.convolution import DimNumbers, dilated

# Windows are copied this much at a time, so that they are still in cache when they are multiplied.
BUFFER_BYTES = 4 << 20

# With so many kernel elements or fewer, a group of one feature is faster element by element than as a matrix.
FEW = 64


def conv_general_dilated(
    x: Any,
    w: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dims: DimNumbers,
    feature_groups: int,
    batch_groups: int,
) -> Any:
    """The convolution of two arrays of one dtype."""
    lhs, rhs, out = dims
    groups = feature_groups * batch_groups
    window = [w.shape[d] for d in rhs[2:]]
    counts = [
        max(0, (dilated(x.shape[d], spread) + low + high - dilated(size, dilation)) // stride + 1)
        for d, spread, (low, high), size, dilation, stride in zip(
            lhs[2:], lhs_dilation, padding, window, rhs_dilation, strides, strict=True
        )
    ]
    dtype, compute = x.dtype, _compute_dtype(x, w)
    if not (x.size and w.size and prod(counts)):
        found = np.zeros((x.shape[lhs[0]] // batch_groups, w.shape[rhs[0]], *counts), dtype)
        return found.transpose(inverse(out))
    if dtype != compute:
        x, w = x.astype(compute), w.astype(compute)
    phases = [
        spread if stride == dilation == 1 else 1
        for spread, stride, dilation in zip(lhs_dilation, strides, rhs_dilation, strict=True)
    ]
    if prod(phases) > 1:
        groups_of = {"feature_groups": feature_groups, "batch_groups": batch_groups}
        rest = tuple(d if p == 1 else 1 for d, p in zip(lhs_dilation, phases, strict=True))
        params = {"strides": strides, "lhs_dilation": rest, "rhs_dilation": rhs_dilation, "dims": dims, **groups_of}
        found = _by_phase(x, w, phases, counts, padding, params)
        return _back(found, dtype)
    x, w = _spread(x, lhs[2:], padding, lhs_dilation).transpose(lhs), w.transpose(rhs)
    # From here on the dims are: group, batch, feature, *space and group, output feature, input feature, *window.
    if batch_groups > 1:
        x = x.reshape(groups, -1, *x.shape[1:])
    else:
        x = x.reshape(x.shape[0], groups, -1, *x.shape[2:]).swapaxes(0, 1)
    w = w.reshape(groups, -1, *w.shape[1:])
    # A step that is never taken may be as long as it likes.
    steps = [n * s if count > 1 else 0 for n, s, count in zip(x.strides[3:], strides, counts, strict=True)]
    hops = [n * d if size > 1 else 0 for n, d, size in zip(x.strides[3:], rhs_dilation, window, strict=True)]
    windows = as_strided(x, (*x.shape[:3], *counts, *window), (*x.strides[:3], *steps, *hops), writeable=False)
    alone = groups > 1 and x.shape[2] == 1 and prod(window) <= FEW
    found = _by_element(windows, w) if alone else _by_matrices(windows, w, out)
    found = _back(found, dtype).swapaxes(0, 1)
    return found.reshape(found.shape[0], -1, *counts).transpose(inverse(out))


def _compute_dtype(x: Any, w: Any) -> Any:
    """Narrow floats are summed in f32, and integers in floats that hold every sum exactly."""
    if x.dtype.kind in "iu" and x.size and w.size:
        largest = [max(int(a.max()), -int(a.min()), 1) for a in (x, w)]
        bound = largest[0] * largest[1] * w.size
        return x.dtype if bound >= 1 << 53 else dtypes.FLOAT32 if bound < 1 << 24 else dtypes.FLOAT64
    return dtypes.FLOAT32 if x.dtype in dtypes.FLOATS and x.dtype.itemsize < 4 else x.dtype


def _back(x: Any, dtype: Any) -> Any:
    """``x`` in the dtype of the result; exact integers wrap around."""
    if x.dtype == dtype:
        return x
    return x.astype(np.int64).astype(dtype) if dtype.kind in "iu" else x.astype(dtype)


def _by_phase(
    x: Any, w: Any, phases: list[int], counts: list[int], padding: tuple[tuple[int, int], ...], params: dict[str, Any]
) -> Any:
    """A convolution of a dilated input without its zeros, by the phase of the output along the dilated dims.

    With dilation d, output o = f + d t meets input i and kernel element k where o + k = low + d i. So those of one
    phase f meet only k = j + d m for one j, and i = t + m - (low - f - j) / d: a convolution with part of the kernel.
    """
    lhs, rhs, out = params["dims"]
    shape = [x.shape[lhs[0]] // params["batch_groups"], w.shape[rhs[0]], *counts]
    total = np.zeros([shape[out.index(d)] for d in range(len(shape))], x.dtype)
    met = [
        # The phases that meet some kernel element: no more than there are elements, however large the dilation.
        [f for f in sorted({(low - j) % step for j in range(min(w.shape[d], step))}) if f < count]
        for step, (low, _), d, count in zip(phases, padding, rhs[2:], counts, strict=True)
    ]
    for place in product(*met):
        part, target, pads = [slice(None)] * w.ndim, [slice(None)] * w.ndim, list(padding)
        for n, (phase, step) in enumerate(zip(place, phases, strict=True)):
            if step > 1:
                first = (padding[n][0] - phase) % step
                low = (padding[n][0] - phase - first) // step
                taps, places = len(range(first, w.shape[rhs[n + 2]], step)), len(range(phase, counts[n], step))
                part[rhs[n + 2]], target[out[n + 2]] = slice(first, None, step), slice(phase, None, step)
                pads[n] = low, places + taps - 1 - x.shape[lhs[n + 2]] - low
        kernel, results = w[tuple(part)], total[tuple(target)]
        if kernel.size and results.size:
            results[...] = conv_general_dilated(x, kernel, padding=tuple(pads), **params)
    return total


def _spread(x: Any, dims: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> Any:
    """``x`` with ``dims`` dilated and padded by zeros; a negative padding cuts off."""
    if all(p == (0, 0) for p in padding) and all(d == 1 for d in dilation):
        return x
    low, high, interior = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
    for dim, pads, step in zip(dims, padding, dilation, strict=True):
        (low[dim], high[dim]), interior[dim] = pads, step - 1
    return pad_interior(x, np.zeros((), x.dtype), tuple(low), tuple(high), tuple(interior))


def _by_element(windows: Any, w: Any) -> Any:
    """Groups of one input feature: a weighted sum of shifted inputs, in the order the input has in memory."""
    spatial = (windows.ndim - 3) // 2
    axes = sorted([0, 1, *range(3, 3 + spatial)], key=lambda a: -abs(windows.strides[a]))
    group = axes.index(0)
    spread = (slice(None),) * (group + 1) + (None,)
    total: Any = None
    for place in product(*(range(n) for n in w.shape[3:])):
        part = windows[(..., *place)].transpose(*axes, 2)[..., 0][spread]
        weight = w[(..., *place)][:, :, 0].reshape(w.shape[:2] + (1,) * (len(axes) - group - 1))
        term = part * weight
        if total is None:
            total = term
        else:
            total += term
    # `total` has the output features behind the groups; back to group, batch, output feature, *space.
    order = [*axes[: group + 1], 2, *axes[group + 1 :]]
    return total.transpose(inverse(order))


def _by_matrices(windows: Any, w: Any, out: tuple[int, ...]) -> Any:
    """Windows as rows times the kernel as columns, or the transpose of both where features precede space."""
    spatial = (windows.ndim - 3) // 2
    features_last = out[1] == spatial + 1
    batch = [0, 1] if not features_last and out[0] < out[1] else [0]

    # The dims of a matrix are taken in the order of memory, so that copying runs along it.
    def outer_first(axis: int) -> int:
        return -abs(int(windows.strides[axis]))

    rows = sorted([a for a in (1, *range(3, 3 + spatial)) if a not in batch], key=outer_first)
    columns = sorted([2, *range(3 + spatial, windows.ndim)], key=outer_first)
    kernel_axis = {a: a if a == 2 else a - spatial for a in columns}

    def kernel(part: Any) -> Any:
        matrix = _matrix(part, [0], [kernel_axis[a] for a in columns], [1])
        return matrix[:, None] if len(batch) == 2 else matrix

    def multiply(part: Any, right: Any, **options: Any) -> Any:
        left = _matrix(part, batch, rows, columns)
        if features_last:
            return np.matmul(left, right, **options)
        return np.matmul(right.swapaxes(-1, -2), left.swapaxes(-1, -2), **options)

    order = [*batch, *rows, 2] if features_last else [*batch, 2, *rows]  # axis 2 of the result: output features
    shape = [w.shape[1] if a == 2 else windows.shape[a] for a in order]
    cut = min((*batch[1:], *rows, *columns), key=lambda a: (windows.shape[a] == 1, outer_first(a)))
    length = windows.shape[cut]
    pieces = min(length, windows.size * windows.itemsize // BUFFER_BYTES + 1) if prod(w.shape[3:]) > 1 else 1
    step = -(-length // pieces)
    if pieces == 1:
        total = multiply(windows, kernel(w)).reshape(shape)
    elif cut in columns:
        total = 0
        for start in range(0, length, step):
            part = _take(windows, cut, start, start + step)
            total = total + multiply(part, kernel(_take(w, kernel_axis[cut], start, start + step)))
        total = total.reshape(shape)
    else:
        total, right = np.empty(shape, windows.dtype), kernel(w)
        for start in range(0, length, step):
            part, target = _take(windows, cut, start, start + step), _take(total, order.index(cut), start, start + step)
            if target.flags.c_contiguous:
                matrix = (-1, w.shape[1]) if features_last else (w.shape[1], -1)
                multiply(part, right, out=target.reshape(*target.shape[: len(batch)], *matrix))
            else:
                target[...] = multiply(part, right).reshape(target.shape)
    return total.transpose(inverse(order))


def _take(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _matrix(x: Any, batch: list[int], rows: list[int], columns: list[int]) -> Any:
    """``x`` as batch dims and a matrix, the dim that is inner in memory inner; copied only where it must be."""

    def innermost(axes: list[int]) -> tuple[int, int]:
        return min(((abs(x.strides[a]), -x.shape[a]) for a in axes if x.shape[a] > 1), default=(1 << 62, 0))

    turned = innermost(rows) < innermost(columns)
    first, second = (columns, rows) if turned else (rows, columns)
    shape = x.shape
    matrix = x.transpose(*batch, *first, *second).reshape(
        *(shape[a] for a in batch), prod(shape[a] for a in first), prod(shape[a] for a in second)
    )
    return blas_layout(matrix.swapaxes(-1, -2) if turned else matrix)

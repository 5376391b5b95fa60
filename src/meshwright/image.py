"""``meshwright.image``: images in other sizes, as ``jax.image`` has it.

A dim is resampled by a matrix of weights, so that batches, channels and dims that are split take part in one product.

>>> import meshwright as mw, meshwright.numpy as mnp
>>> mw.image.resize(mnp.ones((1, 4, 4, 3)), (1, 8, 8, 3), "cubic").shape
(1, 8, 8, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, axis_of, convert, inexact, value
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import check_precision, static_flag, static_shape
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import (
    abs,
    arange,
    concatenate,
    floor,
    maximum,
    minimum,
    moveaxis,
    pi,
    sin,
    sum,
    take,
    tensordot,
    where,
)

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(Enum):
    """How the pixels between those of an image are found.

    >>> ResizeMethod.from_string("bicubic")
    <ResizeMethod.CUBIC: 4>
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method of a name."""
        for method, names in _NAMES.items():
            if s in names.split():
                return method
        raise ShapeError(
            f"There is no way {s!r} to resize an image.", where=here(), why=f"there are {' '.join(_NAMES.values())}",
            fix="method='linear'",
        )  # fmt: skip


_NAMES = {
    ResizeMethod.NEAREST: "nearest",
    ResizeMethod.LINEAR: "linear bilinear trilinear triangle",
    ResizeMethod.LANCZOS3: "lanczos3",
    ResizeMethod.LANCZOS5: "lanczos5",
    ResizeMethod.CUBIC: "cubic bicubic tricubic",
    ResizeMethod.CUBIC_PYTORCH: "cubic-pytorch bicubic-pytorch",
    ResizeMethod.AREA: "area",
}


def _method(method: Any) -> ResizeMethod:
    return method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)


# Weights of a pixel by its distance


def _triangle(x: Any) -> Any:
    return maximum(0, 1 - x)


def _cubic(a: float) -> Callable[[Any], Any]:
    """Keys's kernel: two cubics that meet smoothly, with slope ``a`` at distance 1."""

    def kernel(x: Any) -> Any:
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return where(x <= 1, inner, where(x < 2, outer, 0.0))

    return kernel


def _lanczos(radius: float) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        near = x <= 1e-3
        y = where(near, 1.0, x)
        wave = radius * sin(pi * y) * sin(pi * y / radius) / (pi * pi * y * y)
        return where(near, 1.0, where(x > radius, 0.0, wave))

    return kernel


_KERNELS: dict[ResizeMethod, Callable[[Any], Any]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _cubic(-0.5),
    ResizeMethod.CUBIC_PYTORCH: _cubic(-0.75),
}


def _weights(size: int, new: int, scale: Any, shift: Any, method: ResizeMethod, antialias: bool, dtype: Any) -> Any:
    """What each pixel counts in each new one, ``[size, new]``."""
    inverse = 1.0 / scale
    if method is ResizeMethod.AREA:
        starts = (arange(new).astype(dtype) - shift) * inverse
        pixels = arange(size).astype(dtype)[:, None]
        overlap = minimum(pixels + 1, starts + inverse) - maximum(pixels, starts)
        found = maximum(overlap, 0)
        middle = starts + inverse / 2 - 0.5
    else:
        kernel = _KERNELS[method]
        if method is ResizeMethod.CUBIC_PYTORCH and antialias:
            kernel = _KERNELS[ResizeMethod.CUBIC]
        wide = maximum(inverse, 1.0) if antialias else 1.0
        middle = (arange(new).astype(dtype) + 0.5) * inverse - shift * inverse - 0.5
        beyond = 4 if method is ResizeMethod.CUBIC_PYTORCH and not antialias else 0
        if beyond:  # what lies outside is as the pixel at the edge, however far
            middle = minimum(maximum(middle, -2.0), size + 1.0)
        pixels = arange(-beyond, size + beyond).astype(dtype)
        found = kernel(abs(middle - pixels[:, None]) / wide)
        if beyond:
            first, last = (sum(part, 0, keepdims=True) for part in (found[: beyond + 1], found[-beyond - 1 :]))
            inner = found[beyond + 1 : -beyond - 1]
            found = concatenate([first, inner, last]) if size > 1 else first + last - found[beyond : beyond + 1]
    total = sum(found, 0, keepdims=True)
    some = abs(total) > 1000 * float(np.finfo(np.float32).eps)
    found = where(some, found / where(some, total, 1.0), 0.0)
    if method is ResizeMethod.CUBIC_PYTORCH and not antialias:
        return found.astype(dtype)
    inside = (middle >= -0.5) & (middle <= size - 0.5)
    return where(inside[None], found, 0.0).astype(dtype)


def _resampled(x: Value, dim: int, weights: Any) -> Any:
    """``x`` with the pixels of a dim weighed."""
    return moveaxis(tensordot(x, weights, ((dim,), (0,))), -1, dim)


def resize(
    image: ArrayLike, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True,
    precision: Any = "highest",
) -> Any:  # fmt: skip
    """An image in another shape; a dim whose size stays is left as it is.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.image.resize(mnp.array([0.0, 1.0]), (4,), "linear")
    Array([0.  , 0.25, 0.75, 1.  ], dtype=float32)
    """
    check_precision(precision)
    antialias = static_flag(antialias, "antialias of image.resize")
    x, sizes, way = value(image), static_shape(shape, "a size of image.resize"), _method(method)
    if len(sizes) != x.ndim:
        refuse("image.resize", [x.type], f"the shape {sizes} has another rank", "shape=(*x.shape[:-1], 8)")
    for size, new in zip(x.shape, sizes, strict=True):
        if size != new and (not size or new < 0):
            refuse("image.resize", [x.type], f"it is to be of shape {sizes}", "sizes of 1 or more")
    if way is ResizeMethod.NEAREST:
        for dim, new in enumerate(sizes):
            size = x.shape[dim]
            if size != new:
                places = floor((arange(new).astype(dtypes.FLOAT32) + 0.5) * size / new).astype(dtypes.INT32)
                x = take(x, places, dim, mode="clip")
        return x
    x = inexact(x)
    wide = dtypes.FLOAT32 if x.type.dtype.itemsize < 4 else dtypes.real_part(x.type.dtype)
    found = convert(x, wide) if x.type.dtype.itemsize < 4 else x
    for dim, new in enumerate(sizes):
        size = x.shape[dim]
        if size != new and new:
            scale = np.asarray(new / size, wide)
            found = _resampled(found, dim, _weights(size, new, scale, np.asarray(0, wide), way, antialias, wide))
        elif size != new:
            found = take(found, np.zeros(0, np.int32), dim)
    return convert(found, x.type.dtype)


def scale_and_translate(
    image: ArrayLike, shape: Sequence[int], spatial_dims: Sequence[int], scale: ArrayLike, translation: ArrayLike,
    method: str | ResizeMethod, antialias: bool = True, precision: Any = "highest",
) -> Any:  # fmt: skip
    """An image of another shape, some of its dims scaled and moved; what comes from outside of it is zero.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> one, by = mnp.ones(1), mnp.array([1.0])
    >>> mw.image.scale_and_translate(mnp.array([1.0, 2.0, 3.0]), (3,), (0,), one, by, "linear")
    Array([0., 1., 2.], dtype=float32)
    """
    check_precision(precision)
    antialias = static_flag(antialias, "antialias of image.scale_and_translate")
    x, sizes, way = inexact(image), static_shape(shape), _method(method)
    dims = [axis_of(d, x.ndim, "image.scale_and_translate") for d in spatial_dims]
    factors, moves = inexact(scale), inexact(translation)
    if way is ResizeMethod.NEAREST:
        raise ShapeError(
            "image.scale_and_translate cannot take the nearest pixel.", where=here(), why="it weighs pixels",
            fix="image.resize(x, shape, 'nearest')",
        )  # fmt: skip
    kept = all(n == new for d, (n, new) in enumerate(zip(x.shape, sizes, strict=False)) if d not in dims)
    if len(sizes) != x.ndim or factors.shape != (len(dims),) or moves.shape != (len(dims),) or not kept:
        why = f"it has the rank of {sizes}, a factor and a move for each of the dims {dims}, and keeps the other ones"
        refuse("image.scale_and_translate", [x.type, factors.type, moves.type], why, "scale=mnp.ones(2)")
    wide = dtypes.FLOAT32 if x.type.dtype.itemsize < 4 else dtypes.real_part(x.type.dtype)
    found = convert(x, wide) if x.type.dtype.itemsize < 4 else x
    for n, dim in enumerate(dims):
        by, move = (convert(v[n], wide) for v in (factors, moves))
        found = _resampled(found, dim, _weights(x.shape[dim], sizes[dim], by, move, way, antialias, wide))
    return convert(found, x.type.dtype)

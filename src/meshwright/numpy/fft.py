"""``meshwright.numpy.fft``: Fourier transforms, as ``jax.numpy.fft`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, axis_of, convert, inexact, value
from meshwright.arrays.refusals import one_number
from meshwright.arrays.static import one_of, placed, static_int, static_shape
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import divide, multiply
from meshwright.numpy.creation import arange
from meshwright.numpy.logic import conjugate
from meshwright.numpy.padding import pad
from meshwright.numpy.shapes import concatenate, cut, moveaxis
from meshwright.numpy.taking import roll
from meshwright.ops.linalg import fft as fft_op

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

_NORMS = {None: "backward", "backward": "backward", "ortho": "ortho", "forward": "forward"}


def _transform(kind: str, a: ArrayLike, s: Any, axes: Any, norm: str | None) -> Value:
    """The transform over ``axes``, each cut or padded with zeros to its length in ``s``."""
    name = f"mnp.fft.{kind}"
    one_of(norm, list(_NORMS), f"norm of {name}")
    x = inexact(value(a))
    given = None if s is None else static_shape(s, f"a length of {name}")
    if kind == "rfft":
        if dtypes.is_complex(x.type.dtype):
            raise ShapeError(f"{name} cannot take {x.type.short()}.", where=here(), why="it takes reals", fix="x.real")
        x = convert(x, dtypes.FLOAT32) if x.type.dtype.itemsize < 4 else x
    elif not dtypes.is_complex(x.type.dtype):
        x = convert(x, dtypes.COMPLEX128 if x.type.dtype.itemsize == 8 else dtypes.COMPLEX64)
    if axes is None:
        axes = tuple(range(-(x.ndim if given is None else len(given)), 0))
    dims = [axis_of(d, x.ndim, name) for d in static_shape(axes, f"an axis of {name}")]
    lengths = [x.shape[d] for d in dims] if given is None else list(given)
    if len(set(dims)) != len(dims) or len(lengths) != len(dims) or not dims:
        raise ShapeError(
            f"{name} cannot transform {x.type.short()} over dims {dims} to lengths {lengths}.",
            where=here(),
            why="there is one length for each dim, and each dim is there once",
            fix="axes=(-1,), or leave s= and axes= out",
        )
    if kind == "irfft" and s is None:
        lengths[-1] = 2 * (lengths[-1] - 1)
    if any(n < 1 for n in lengths):
        raise ShapeError(f"{name} cannot take lengths {lengths}.", where=here(), why="they are 1 or more", fix="n=8")
    kept = [*lengths[:-1], lengths[-1] // 2 + 1] if kind == "irfft" else lengths
    for d, n in zip(dims, kept, strict=True):
        x = _resized(x, d, n)
    last = list(range(x.ndim - len(dims), x.ndim))
    out = fft_op(moveaxis(x, dims, last), kind=kind, lengths=tuple(lengths))
    out = moveaxis(out, last, dims)
    count = prod(lengths)
    forward = kind in ("fft", "rfft")
    scale = {
        "backward": 1.0,
        "ortho": 1 / sqrt(count) if forward else sqrt(count),
        "forward": 1 / count if forward else float(count),
    }[_NORMS[norm]]
    return out if scale == 1.0 else multiply(out, scale)


def _resized(x: Value, dim: int, length: int) -> Value:
    have = x.shape[dim]
    if length <= have:
        return cut(x, dim, 0, length)
    return pad(x, [(0, length - have if d == dim else 0) for d in range(x.ndim)])


def _one(kind: str, a: ArrayLike, n: int | None, axis: int, norm: str | None) -> Value:
    return _transform(kind, a, None if n is None else (n,), (axis,), norm)


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The discrete Fourier transform along a dim.

    >>> import meshwright.numpy as mnp
    >>> mnp.fft.fft(mnp.array([1.0, 0.0, 0.0, 0.0])).real
    Array([1., 1., 1., 1.], dtype=float32)
    """
    return _one("fft", a, n, axis, norm)


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of ``fft``."""
    return _one("ifft", a, n, axis, norm)


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The transform of real numbers: the half that determines the other."""
    return _one("rfft", a, n, axis, norm)


def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of ``rfft``; ``n`` is the length of the result, by default even."""
    return _one("irfft", a, n, axis, norm)


_OTHER_WAY = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The transform of numbers of which the second half mirrors the first: real, of length ``n``, by default even.

    >>> import meshwright.numpy as mnp
    >>> mnp.fft.hfft(mnp.array([1.0, 2.0]))
    Array([ 3., -1.], dtype=float32)
    """
    one_of(norm, list(_NORMS), "norm of mnp.fft.hfft")
    return _one("irfft", conjugate(inexact(value(a))), n, axis, _OTHER_WAY[norm])


def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of ``hfft``, of real numbers."""
    one_of(norm, list(_NORMS), "norm of mnp.fft.ihfft")
    return conjugate(_one("rfft", a, n, axis, _OTHER_WAY[norm]))


def _two(axes: Any, name: str) -> tuple[int, ...]:
    """The axes of a transform of matrices."""
    found = static_shape(axes, f"an axis of {name}")
    if len(found) != 2:
        raise ShapeError(f"{name} cannot take axes={axes!r}.", where=here(), why="there are two", fix="axes=(-2, -1)")
    return found


def fft2(a: ArrayLike, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Value:
    """The transform over two dims."""
    return _transform("fft", a, s, _two(axes, "mnp.fft.fft2"), norm)


def ifft2(a: ArrayLike, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Value:
    """The inverse of ``fft2``."""
    return _transform("ifft", a, s, _two(axes, "mnp.fft.ifft2"), norm)


def rfft2(a: ArrayLike, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Value:
    """The transform of real numbers over two dims."""
    return _transform("rfft", a, s, _two(axes, "mnp.fft.rfft2"), norm)


def irfft2(a: ArrayLike, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Value:
    """The inverse of ``rfft2``."""
    return _transform("irfft", a, s, _two(axes, "mnp.fft.irfft2"), norm)


def fftn(a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Value:
    """The transform over several dims, by default all."""
    return _transform("fft", a, s, axes, norm)


def ifftn(a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Value:
    """The inverse of ``fftn``."""
    return _transform("ifft", a, s, axes, norm)


def rfftn(a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Value:
    """The transform of real numbers over several dims."""
    return _transform("rfft", a, s, axes, norm)


def irfftn(a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Value:
    """The inverse of ``rfftn``."""
    return _transform("irfft", a, s, axes, norm)


def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: Any = None) -> Value:
    """The frequencies of the results of ``fft``."""
    n = static_int(n, "n of mnp.fft.fftfreq")
    kind = dtypes.default_float() if dtype is None else as_dtype(dtype)
    half = (n - 1) // 2 + 1
    step = one_number(d, "d of mnp.fft.fftfreq")
    places = concatenate([arange(half), arange(-(n // 2), 0)])
    return placed(divide(convert(places, kind), multiply(step, n)), device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: Any = None) -> Value:
    """The frequencies of the results of ``rfft``."""
    kind = dtypes.default_float() if dtype is None else as_dtype(dtype)
    n = static_int(n, "n of mnp.fft.rfftfreq")
    step = one_number(d, "d of mnp.fft.rfftfreq")
    return placed(divide(convert(arange(n // 2 + 1), kind), multiply(step, n)), device)


def fftshift(x: ArrayLike, axes: Any = None) -> Value:
    """The frequency zero moved to the middle."""
    return _shifted(value(x), axes, 1)


def ifftshift(x: ArrayLike, axes: Any = None) -> Value:
    """The inverse of ``fftshift``."""
    return _shifted(value(x), axes, -1)


def _shifted(x: Value, axes: Any, sign: int) -> Value:
    given = range(x.ndim) if axes is None else static_shape(axes, "an axis of mnp.fft.fftshift")
    dims = tuple(axis_of(d, x.ndim, "mnp.fft.fftshift") for d in given)
    return roll(x, tuple(sign * (x.shape[d] // 2) for d in dims), dims)

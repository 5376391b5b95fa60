"""The error function and its relatives: the normal distribution, Dawson's and Faddeeva's functions, Owen's T."""

from __future__ import annotations

from functools import cache
from math import log as real_log
from math import pi, sqrt
from typing import Any

import numpy as np

from meshwright.api.custom import custom_jvp
from meshwright.arrays.operands import ArrayLike, convert, inexact
from meshwright.arrays.static import static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax import complex as make_complex
from meshwright.lax import erf as erf_op
from meshwright.lax import erf_inv
from meshwright.lax import erfc as erfc_op
from meshwright.numpy import abs, exp, imag, inf, isinf, isnan, log, log1p, maximum, nan, real, sign, where
from meshwright.numpy import sqrt as root
from meshwright.scipy.special.elementwise import complex_dtype, horner, is_wide, of_reals


@of_reals
def erf(x: Any) -> Any:
    """The error function."""
    return erf_op(x)


@of_reals
def erfc(x: Any) -> Any:
    """``1 - erf(x)``, exact where that is small."""
    return erfc_op(x)


@of_reals
def erfinv(x: Any) -> Any:
    """The inverse of ``erf``."""
    return erf_inv(x)


# Faddeeva's function. Weideman (1994): with Z = (L + iz) / (L - iz), w(z) is 2 p(Z) / (L - iz)² + 1 / (√π (L - iz))
# above the real axis, where p has the Fourier coefficients of exp(-t²)(L² + t²) at t = L tan(θ / 2).


@cache
def _weideman(terms: int) -> tuple[float, tuple[float, ...]]:
    """L and the coefficients of p, highest power first."""
    scale = sqrt(terms / sqrt(2))
    points = 4 * terms
    t = scale * np.tan(np.arange(-points // 2 + 1, points // 2) * pi / points)
    heights = np.concatenate([[0.0], np.exp(-t * t) * (scale * scale + t * t)])
    found = np.fft.fft(np.fft.fftshift(heights)).real / points
    return scale, tuple(found[1 : terms + 1][::-1].tolist())


def _terms(x: Value) -> int:
    return 44 if is_wide(x) else 24


@custom_jvp
def _erfcx(x: Any) -> Any:
    scale, coefficients = _weideman(_terms(x))
    size = abs(x)
    far = size > 1e7
    y = where(far, 1.0, size)
    near = 2 * horner((scale - y) / (scale + y), coefficients) / (scale + y) ** 2 + 1 / (sqrt(pi) * (scale + y))
    right = where(far, 1 / (sqrt(pi) * where(far, size, 1.0)), near)
    return where(x < 0, 2 * exp(x * x) - right, right)


_erfcx.defjvps(lambda t, out, x: t * (2 * x * out - 2 / sqrt(pi)))


@of_reals
def erfcx(x: Any) -> Any:
    """``exp(x**2) * erfc(x)``, which neither overflows nor vanishes for large ``x``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.erfcx(100.0)), 6)
    0.005642
    """
    return _erfcx(x)


@custom_jvp
def _wofz(z: Any) -> Any:
    scale, coefficients = _weideman(_terms(z))
    below = imag(z) < 0
    upper = where(below, -z, z)
    iz = upper * 1j
    divisor = scale - iz
    found = 2 * horner((scale + iz) / divisor, coefficients) / (divisor * divisor) + 1 / (sqrt(pi) * divisor)
    # On the real axis the real part is a Gauss curve, which vanishes beside the rounding of the imaginary one.
    line = imag(z) == 0
    on_axis = make_complex(where(line, exp(-(real(z) ** 2)), real(found)), imag(found))
    far = isinf(real(z)) | isinf(imag(z))
    on_axis = where(far, 0.0, on_axis)
    square = where(below & ~far, z * z, 0.0)
    return where(below, 2 * exp(-square) - on_axis, on_axis)


_wofz.defjvps(lambda t, out, z: t * (2j / sqrt(pi) - 2 * z * out))


def wofz(z: ArrayLike) -> Value:
    """Faddeeva's function ``exp(-z**2) * erfc(-1j * z)``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.wofz(1.0).real), 4)
    0.3679
    """
    x = inexact(z)
    found: Value = _wofz(x if dtypes.is_complex(x.type.dtype) else convert(x, complex_dtype(x)))
    return found


# Dawson's function. Rybicki (1989): a sum of exp(-(x - nh)²) / n over odd n, exact up to exp(-(π / 2h)²).


@custom_jvp
def _dawsn(x: Any) -> Any:
    step, reach, far = (0.25, 13, 12.0) if is_wide(x) else (0.4, 6, 6.0)
    size = abs(x)
    y = where(size < far, size, 1.0)
    middle = 2 * ((y / (2 * step)).astype(int)).astype(x.dtype)
    total: Any = 0.0
    for n in range(-2 * reach + 1, 2 * reach, 2):
        total = total + exp(-((y - (middle + n) * step) ** 2)) / (middle + n)
    near = total / sqrt(pi)
    square = where(size < 0.2, x * x, 0.0)
    series: Any = 1.0
    for n in range(12, 0, -1):  # x (1 - 2x²/3 (1 - 2x²/5 (1 - …)))
        series = 1 - 2 * square / (2 * n + 1) * series
    inverse = 1 / where(size < far, 1.0, size * size)
    outer: Any = 1.0
    for n in range(15, 0, -1):  # (1 + 1/2x² (1 + 3/2x² (1 + 5/2x² (…)))) / 2x
        outer = 1 + (2 * n - 1) / 2 * inverse * outer
    away = outer * 0.5 / where(size < far, 1.0, size)
    found = where(size < 0.2, abs(x) * series, where(size < far, near, away))
    return where(isinf(x), 0.0, sign(x) * found)


_dawsn.defjvps(lambda t, out, x: t * (1 - 2 * x * out))


@of_reals
def dawsn(x: Any) -> Any:
    """Dawson's integral: ``exp(-x**2)`` times the integral of ``exp(t**2)`` from 0 to ``x``."""
    return _dawsn(x)


# The normal distribution


@of_reals
def ndtr(x: Any) -> Any:
    """The share of a normal distribution that is below ``x``."""
    return 0.5 * erfc_op(-x * sqrt(0.5))


@custom_jvp
def _log_ndtr(x: Any) -> Any:
    low = x < -1
    left = where(low, x, -1.0)
    right = where(low, -1.0, x)
    tail = -left * left / 2 + log(0.5 * _erfcx(-left * sqrt(0.5)))
    return where(low, where(x == -inf, -inf, tail), log1p(-0.5 * erfc_op(right * sqrt(0.5))))


def _hazard(x: Any) -> Any:
    """The density over the share below: the slope of ``log_ndtr``, 0 far to the right."""
    right = x > 0
    left = sqrt(2 / pi) / _erfcx(-where(right, 0.0, x) * sqrt(0.5))
    high = where(right, x, 0.0)
    return where(right, exp(-high * high / 2) / sqrt(2 * pi) / (0.5 * erfc_op(-high * sqrt(0.5))), left)


_log_ndtr.defjvps(lambda t, out, x: t * _hazard(x))


def log_ndtr(x: ArrayLike, series_order: int = 3) -> Value:
    """The logarithm of ``ndtr``, exact far to the left too, whatever ``series_order``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.log_ndtr(-30.0)), 3)
    -454.321
    """
    order = static_int(series_order, "series_order of log_ndtr")
    if not 0 <= order <= 30:
        raise ShapeError(f"series_order is {order}.", where=here(), why="it is from 0 to 30", fix="series_order=3")
    found: Value = _logarithm(x)
    return found


@of_reals
def _logarithm(x: Any) -> Any:
    return _log_ndtr(x)


@custom_jvp
def _ndtri(p: Any) -> Any:
    left = p < 0.5
    q = where(left, p, 1 - p)  # exact: 1 - p is for p of a half and more
    inside = (q > 0) & (q <= 0.5)
    q = where(inside, q, 0.25)
    middle = sqrt(2) * erf_inv(maximum(2 * q - 1, -0.9))
    # In the tail by Newton's method for log_ndtr, which is nearly a parabola there.
    small = q < 0.05
    height = log(where(small, q, 0.05))
    y = root(-2 * height)
    x = -root(maximum(-2 * height - 2 * log(y) - real_log(2 * pi), 1.0))
    for _ in range(3):
        x = x - (_log_ndtr(x) - height) / _hazard(x)
    found = where(small, x, middle)
    found = where(left, found, -found)
    ends = where(p == 0, -inf, where(p == 1, inf, nan))
    return where(inside & ~isnan(p), found, ends)


_ndtri.defjvps(lambda t, out, p: t * sqrt(2 * pi) * exp(out * out / 2))


@of_reals
def ndtri(p: Any) -> Any:
    """The number below which a share ``p`` of a normal distribution is.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.ndtri(0.975)), 4)
    1.96
    """
    return _ndtri(p)


@custom_jvp
def _erfcinv(y: Any) -> Any:
    # Below a half, y says more than 1 - y; above, 1 - y is exact.
    small = y < 0.5
    return where(small, _ndtri(where(small, y, 0.5) / 2) / -sqrt(2), erf_inv(where(small, 0.0, 1 - y)))


_erfcinv.defjvps(lambda t, out, y: t * (-sqrt(pi) / 2) * exp(out * out))


@of_reals
def erfcinv(y: Any) -> Any:
    """The inverse of ``erfc``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.erfcinv(1e-20)), 4)
    6.6016
    """
    return _erfcinv(y)


# Owen's T


@cache
def _gauss(points: int) -> tuple[tuple[float, float], ...]:
    """Places and weights of Gauss's quadrature on 0 to 1."""
    places, weights = np.polynomial.legendre.leggauss(points)
    return tuple(zip(((places + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


@custom_jvp
def _owens_t(h: Any, a: Any) -> Any:
    height, slope = abs(h), abs(a)
    steep = slope > 1
    endless = isinf(slope)
    finite = where(endless, 2.0, slope)
    # T(h, a) + T(ah, 1/a) is known, so that the integral is over 0 to 1 at the most.
    by = where(steep, 1 / where(steep, finite, 1.0), finite)
    at = where(steep, finite * height, height)
    at = where(isinf(at), 0.0, at)
    total: Any = 0.0
    for place, weight in _gauss(40 if is_wide(h) else 20):
        bend = 1 + (place * by) ** 2
        total = total + weight * exp(-at * at * bend / 2) / bend
    found = total * by / (2 * pi)
    left, right = (0.5 * erfc_op(y * sqrt(0.5)) for y in (height, finite * height))
    found = where(steep, (left + right) / 2 - left * right - found, found)
    found = where(endless, left / 2, where(isinf(height), 0.0, found))
    return where(isnan(h) | isnan(a), nan, sign(a) * found)


_owens_t.defjvps(
    lambda t, out, h, a: -t * exp(-h * h / 2) * erf_op(a * h * sqrt(0.5)) / (2 * sqrt(2 * pi)),
    lambda t, out, h, a: t * exp(-h * h * (1 + a * a) / 2) / (2 * pi * (1 + a * a)),
)


@of_reals
def owens_t(h: Any, a: Any) -> Any:
    """Owen's T: the chance that a normal number is above ``h`` while another is between 0 and ``a`` times it."""
    return _owens_t(h, a)

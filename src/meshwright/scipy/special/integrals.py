"""Integrals of elementary functions: exponential, sine and cosine integrals, Fresnel's, the dilogarithm."""

from __future__ import annotations

from math import factorial, pi, sqrt
from typing import Any

from meshwright.api.custom import custom_jvp
from meshwright.arrays.operands import convert
from meshwright.lax import complex as make_complex
from meshwright.lax import digamma, lgamma, stop_gradient
from meshwright.numpy import (
    abs,
    cos,
    euler_gamma,
    exp,
    floor,
    imag,
    inf,
    isinf,
    isnan,
    log,
    log1p,
    nan,
    ones_like,
    real,
    sign,
    sin,
    where,
)
from meshwright.scipy.special.elementwise import complex_dtype, horner, is_wide, of_reals
from meshwright.scipy.special.normal import wofz


def _fraction(n: Any, z: Any, depth: int) -> Any:
    """1 / (z + n - n / (z + n + 2 - 2 (n + 1) / (z + n + 4 - …))): E_n(z) without its factor exp(-z)."""
    rest = z + n + 2 * depth
    for k in range(depth, 0, -1):
        rest = z + n + (2 * k - 2) - k * (n - 1 + k) / rest
    return 1 / rest


# Exponential integrals


@custom_jvp
def _expn(n: Any, x: Any) -> Any:
    wide = is_wide(x)
    small = (x > 0) & (x <= 1)
    large = x > 1
    far = where(large & ~isinf(x), x, 2.0)
    outside = exp(-far) * _fraction(n, far, 90 if wide else 26)
    near = where(small, x, 0.5)
    order = where(n < 1, 1.0, n)
    logarithm = digamma(order) - log(near)
    odd = floor((order - 1) / 2) * 2 != order - 1
    total = where(odd, -1.0, 1.0) * exp((order - 1) * log(near) - lgamma(order)) * logarithm
    term: Any = 1.0
    for k in range(20 if wide else 13):
        left_out = order == k + 1
        total = total - where(left_out, 0.0, term / where(left_out, 1.0, k + 1 - order))
        term = term * -near / (k + 1)
    found = where(large, where(isinf(x), 0.0, outside), total)
    zeroth = where(x > 0, exp(-x) / where(x > 0, x, 1.0), inf)
    at_zero = where(n > 1, 1 / where(n > 1, n - 1, 1.0), inf)
    found = where(n == 0, zeroth, where(x == 0, at_zero, found))
    return where((x < 0) | isnan(x) | (n < 0) | (n != floor(n)) | isnan(n), nan, found)


def _expn_slope(t: Any, out: Any, n: Any, x: Any) -> Any:
    zeroth = n == 0
    before = _expn(where(zeroth, 1.0, n) - 1, x)
    return -t * where(zeroth, out * (1 + 1 / where(x == 0, 1.0, x)), before)


_expn.defjvps(None, _expn_slope)


@of_reals
def expn(n: Any, x: Any) -> Any:
    """The exponential integral E_n: that of ``exp(-x t) / t**n`` from 1 on, for whole ``n``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.expn(2, 0.5)), 4)
    0.3266
    """
    return _expn(stop_gradient(n), x)


@of_reals
def exp1(x: Any) -> Any:
    """The exponential integral E_1."""
    return _expn(ones_like(x), x)


@custom_jvp
def _expi(x: Any) -> Any:
    edge, terms, tail = (40.0, 120, 40) if is_wide(x) else (20.0, 60, 20)
    inside = (x > 0) & (x <= edge)
    y = where(inside, x, 1.0)
    total: Any = 1 / terms
    for k in range(terms - 1, 0, -1):  # x (1 + x/2 (1/2 + x/3 (1/3 + …)))
        total = 1 / k + y / (k + 1) * total
    near = euler_gamma + log(y) + y * total
    far = (x > edge) & ~isinf(x)
    z = where(far, x, edge)
    outer: Any = 1.0
    for k in range(tail - 1, 0, -1):  # 1 + 1/x (1 + 2/x (1 + 3/x (…)))
        outer = 1 + k / z * outer
    half = exp(z / 2)
    away = half * (half / z * outer)
    one = where(x < 0, -x, 1.0)
    left = -_expn(ones_like(x), one)
    found = where(x < 0, left, where(inside, near, away))
    return where(x == 0, -inf, where(x == inf, inf, where(isnan(x), nan, found)))


_expi.defjvps(lambda t, out, x: t * exp(x) / x)


@of_reals
def expi(x: Any) -> Any:
    """The exponential integral Ei: that of ``exp(t) / t`` up to ``x``, around 0.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.expi(1.0)), 4)
    1.8951
    """
    return _expi(x)


# Sine and cosine integrals


def _sici(x: Any) -> tuple[Any, Any]:
    size = abs(x)
    small = size <= 4
    wide = is_wide(x)
    y = where(small, size, 1.0)
    square = y * y
    terms = 16 if wide else 10
    odd = [(-1) ** k / ((2 * k + 1) * factorial(2 * k + 1)) for k in range(terms)]
    even = [(-1) ** k / (2 * k * factorial(2 * k)) for k in range(1, terms)]
    some = where(y > 0, y, 1.0)
    near_si = y * horner(square, odd[::-1])
    near_ci = euler_gamma + log(some) + square * horner(square, even[::-1])
    z = where(small | isinf(x), 5.0, size)
    # E_1(iz) = -Ci(z) + i (Si(z) - pi / 2)
    rotated = convert(make_complex(z * 0, z), complex_dtype(x))
    found = exp(-rotated) * _fraction(1.0, rotated, 48 if wide else 18)
    si = where(small, near_si, where(isinf(x), pi / 2, pi / 2 + imag(found)))
    ci = where(small, near_ci, where(isinf(x), 0.0, -real(found)))
    ci = where(x == 0, -inf, where(x == -inf, nan, ci))
    return where(isnan(x), nan, sign(x) * si), where(isnan(x), nan, ci)


@custom_jvp
def _si(x: Any) -> Any:
    return _sici(x)[0]


@custom_jvp
def _ci(x: Any) -> Any:
    return _sici(x)[1]


def _sine_share(x: Any) -> Any:
    """sin(x) / x, and 1 at 0."""
    none = x == 0
    return where(none, 1.0, sin(x) / where(none, 1.0, x))


_si.defjvps(lambda t, out, x: t * _sine_share(x))
_ci.defjvps(lambda t, out, x: t * cos(x) / x)


@of_reals
def sici(x: Any) -> Any:
    """The sine integral and the cosine integral.

    >>> import meshwright as mw
    >>> [round(float(y), 4) for y in mw.scipy.special.sici(1.0)]
    [0.9461, 0.3374]
    """
    return _si(x), _ci(x)


# Fresnel's integrals


def _fresnel(x: Any) -> tuple[Any, Any]:
    size = abs(x)
    small = size <= 1.5
    wide = is_wide(x)
    y = where(small, size, 1.0)
    fourth = y**4
    terms = 14 if wide else 9
    parts = [
        [(-1) ** k * (pi / 2) ** (2 * k + d) / (factorial(2 * k + d) * (4 * k + 1 + 2 * d)) for k in range(terms)]
        for d in (0, 1)
    ]
    near_c, near_s = y * horner(fourth, parts[0][::-1]), y**3 * horner(fourth, parts[1][::-1])
    z = where(small | isinf(x), 2.0, size)
    # C + iS = (1 + i) / 2 * erf(sqrt(pi) / 2 * (1 - i) z), and erfc there is Faddeeva's function and a phase.
    half = z * z / 2
    angle = pi * (half - 2 * floor(half / 2))  # without whole turns
    along = convert(make_complex(z, z), complex_dtype(x)) * (sqrt(pi) / 2)
    rest = make_complex(cos(angle), sin(angle)) * wofz(along)
    found = (0.5 + 0.5j) * (1 - rest)
    s, c = where(small, near_s, imag(found)), where(small, near_c, real(found))
    s, c = (where(isinf(x), 0.5, v) for v in (s, c))
    return tuple(where(isnan(x), nan, sign(x) * v) for v in (s, c))  # type: ignore[return-value]


@custom_jvp
def _fresnel_s(x: Any) -> Any:
    return _fresnel(x)[0]


@custom_jvp
def _fresnel_c(x: Any) -> Any:
    return _fresnel(x)[1]


_fresnel_s.defjvps(lambda t, out, x: t * sin(pi / 2 * x * x))
_fresnel_c.defjvps(lambda t, out, x: t * cos(pi / 2 * x * x))


@of_reals
def fresnel(x: Any) -> Any:
    """Fresnel's integrals S and C: those of ``sin(pi t**2 / 2)`` and ``cos(pi t**2 / 2)`` from 0 to ``x``.

    >>> import meshwright as mw
    >>> [round(float(y), 4) for y in mw.scipy.special.fresnel(1.0)]
    [0.4383, 0.7799]
    """
    return _fresnel_s(x), _fresnel_c(x)


# The dilogarithm

# B_2k / (2k + 1)!: Li_2(1 - exp(-t)) is t - t² / 4 and these times t^(2k + 1).
_DEBYE = (1 / 36, -1 / 3600, 1 / 211680, -1 / 10886400, 1 / 526901760, -691 / 16999766784000, 1 / 1120863744000)


@custom_jvp
def _spence(x: Any) -> Any:
    low, high = (x > 0) & (x < 0.5), x > 2
    y = where(low, 1 - x, where(high, 1 - 1 / where(high, x, 3.0), where((x >= 0.5) & ~high, x, 1.0)))
    t = -log1p(y - 1)
    square = t * t
    plain = t - square / 4 + t * square * horner(square, _DEBYE[::-1])
    inner, outer = where(low, x, 0.25), where(high, x, 3.0)
    mirrored = pi * pi / 6 - log(inner) * log1p(-inner) - plain
    height = log(outer)
    turned = -(height**2) / 2 - pi * pi / 6 - height * log1p(-1 / outer) + plain
    found = where(low, mirrored, where(high, turned, plain))
    return where(x == 0, pi * pi / 6, where((x < 0) | isnan(x), nan, where(x == inf, -inf, found)))


def _spence_slope(t: Any, out: Any, x: Any) -> Any:
    near = abs(x - 1) < 1e-3
    d = where(near, x - 1, 0.0)
    series = -(1 - d / 2 + d * d / 3 - d**3 / 4)  # log(1 + d) / -d
    away = where(near, 2.0, x)
    return t * where(near, series, log(away) / (1 - away))


_spence.defjvps(_spence_slope)


@of_reals
def spence(x: Any) -> Any:
    """The dilogarithm of ``1 - x``: the integral of ``log(t) / (1 - t)`` from 1 to ``x``.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.spence(0.0)), 4)
    1.6449
    """
    return _spence(x)

"""The gamma function and what is made of it: beta functions, binomials, zeta, Bernoulli's numbers."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import log as real_log
from math import pi
from typing import Any

import numpy as np

from meshwright.api.custom import custom_jvp
from meshwright.arrays.operands import ArrayLike, inexact, known, value
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import static_flag, static_int, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError, TracerError
from meshwright.lax import betainc as lax_betainc
from meshwright.lax import complex as make_complex
from meshwright.lax import digamma as lax_digamma
from meshwright.lax import igamma, igammac, lgamma
from meshwright.lax import polygamma as lax_polygamma
from meshwright.lax import zeta as lax_zeta
from meshwright.numpy import arange as places
from meshwright.numpy import (
    array,
    conj,
    exp,
    floor,
    imag,
    inf,
    isinf,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    nan,
    real,
    rint,
    signbit,
    sum,
    where,
)
from meshwright.scipy.special.elementwise import horner, of_reals


@of_reals
def gammaln(x: Any) -> Any:
    """The logarithm of the size of the gamma function."""
    return lgamma(x)


@of_reals
def digamma(x: Any) -> Any:
    """The derivative of ``gammaln``."""
    return lax_digamma(x)


@of_reals
def gammasgn(x: Any) -> Any:
    """The sign of the gamma function; NaN at its poles below 0.

    >>> import meshwright as mw
    >>> float(mw.scipy.special.gammasgn(-1.5)), float(mw.scipy.special.gammasgn(-2.5))
    (1.0, -1.0)
    """
    below = floor(x)
    pole = (x < 0) & (x == below)
    odd = floor(below / 2) * 2 != below
    found = where((x < 0) & odd, -1.0, 1.0)
    return where(isnan(x) | pole | (x == -inf), nan, where((x == 0) & signbit(x), -1.0, found)).astype(x.dtype)


@of_reals
def gamma(x: Any) -> Any:
    """The gamma function.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.gamma(5.0)), 3)
    24.0
    """
    return gammasgn(x) * exp(lgamma(x))


# B_2k / (2k (2k - 1)), of Stirling's series for log(gamma(z)): (z - 1/2) log z - z + log(2 pi) / 2 + this sum over z.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def _correction(z: Any) -> Any:
    inverse = 1 / z
    return inverse * horner(inverse * inverse, _STIRLING[::-1])


def loggamma(x: ArrayLike) -> Value:
    """The logarithm of the gamma function, on the branch that is real for positive numbers.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.loggamma(2 + 1j).imag), 4)
    0.4838
    """
    given = inexact(x)
    found: Value
    if not dtypes.is_complex(given.type.dtype):
        found = gammaln(where(given < 0, nan, given))
        return found
    found = _complex_loggamma(given)
    return found


@custom_jvp
def _complex_loggamma(z: Any) -> Any:
    below = imag(z) < 0
    upper = where(below, conj(z), z)
    left = real(upper) < 0.5
    right = where(left, 1 - upper, upper)
    shifts: Any = 0.0
    for n in range(8):
        shifts = shifts + log(right + n)
    far = right + 8
    plain = (far - 0.5) * log(far) - far + real_log(2 * pi) / 2 + _correction(far) - shifts
    # log(sin(pi z)), analytic above the real axis.
    turned = where(left, upper, 0.25)
    mirrored = real_log(2 * pi) + 1j * pi * (turned - 0.5) - log1p(-exp(2j * pi * turned)) - plain
    pole = (imag(z) == 0) & (real(z) <= 0) & (real(z) == rint(real(z)))
    found = where(left, mirrored, plain)
    found = where(below, conj(found), found)
    return where(pole, make_complex(real(z) * 0 + inf, imag(z)), found)


def _complex_digamma(z: Any) -> Any:
    """The derivative of ``loggamma``."""
    left = real(z) < 0.5
    right = where(left, 1 - z, z)
    shifts: Any = 0.0
    for n in range(8):
        shifts = shifts + 1 / (right + n)
    far = right + 8
    inverse = 1 / (far * far)
    terms = [(2 * k - 1) * c for k, c in enumerate(_STIRLING, 1)]
    plain = log(far) - 0.5 / far - inverse * horner(inverse, terms[::-1]) - shifts
    turned = where(left, z, 0.25)
    up = imag(turned) >= 0
    power = exp(2j * pi * where(up, turned, -turned))
    # pi cot(pi z), with the exponential that does not overflow.
    cotangent = where(up, -1.0, 1.0) * 1j * pi * (1 + power) / (1 - power)
    return where(left, plain - cotangent, plain)


_complex_loggamma.defjvps(lambda t, out, z: t * _complex_digamma(z))


@of_reals
def gammainc(a: Any, x: Any) -> Any:
    """The lower incomplete gamma function over gamma(a)."""
    return igamma(a, x)


@of_reals
def gammaincc(a: Any, x: Any) -> Any:
    """One minus ``gammainc``, exact also where it is small."""
    return igammac(a, x)


@of_reals
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The share of the beta function's integral that is below ``x``."""
    return lax_betainc(a, b, x)


@custom_jvp
def _betaln(a: Any, b: Any) -> Any:
    low, high = minimum(a, b), maximum(a, b)
    large = high > 10
    far, near = where(large, high, 11.0), where(large, low, 1.0)
    # log(gamma(b) / gamma(a + b)) by the difference of two of Stirling's series, whose large parts cancel on paper.
    ratio = -(far - 0.5) * log1p(near / far) - near * (log(far + near) - 1) + _correction(far) - _correction(far + near)
    apart = lgamma(low) + ratio
    return where(large & (low > -1), apart, lgamma(a) + lgamma(b) - lgamma(a + b))


_betaln.defjvps(
    lambda t, out, a, b: t * (lax_digamma(a) - lax_digamma(a + b)),
    lambda t, out, a, b: t * (lax_digamma(b) - lax_digamma(a + b)),
)


@of_reals
def betaln(a: Any, b: Any) -> Any:
    """The logarithm of the size of the beta function.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.betaln(2.0, 3.0)), 4)
    -2.4849
    """
    return _betaln(a, b)


@of_reals
def beta(a: Any, b: Any) -> Any:
    """The beta function: gamma(a) gamma(b) / gamma(a + b)."""
    signs = gammasgn(a) * gammasgn(b) * gammasgn(a + b)
    return signs * exp(_betaln(a, b))


@of_reals
def poch(z: Any, m: Any) -> Any:
    """The rising factorial: gamma(z + m) / gamma(z)."""
    trivial = m == 0
    safe = where(trivial, 1.0, z)
    power = where(trivial, 1.0, m)
    ratio = gammasgn(safe + power) * gammasgn(safe) * exp(lgamma(safe + power) - lgamma(safe))
    # A pole of the divisor alone leaves nothing.
    none = (safe <= 0) & (safe == floor(safe)) & ~((safe + power <= 0) & (safe + power == floor(safe + power)))
    found = where(trivial, 1.0, where(none & ~isnan(m) & ~isinf(m), 0.0, ratio))
    return where(isnan(z) & ~trivial, nan, found).astype(z.dtype)


def factorial(n: ArrayLike, exact: bool = False) -> Value:
    """``n!`` as a float: gamma(n + 1), and 0 below 0.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.factorial(4)), 3)
    24.0
    """
    if static_flag(exact, "exact of factorial"):
        raise ShapeError(
            "factorial cannot be exact.", where=here(), why="arrays have no integers without bounds", fix="exact=False"
        )
    found: Value = _factorial(n)
    return found


@of_reals
def _factorial(n: Any) -> Any:
    return where(n < 0, 0.0, exp(lgamma(where(n < 0, 0.0, n) + 1)))


def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Value:
    """How many ways there are to take ``k`` of ``N`` things, as a float.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.comb(5, 2)), 3)
    10.0
    """
    again = static_flag(repetition, "repetition of comb")
    found: Value = _combinations(N, k) if not again else _combinations_again(N, k)
    return found


@of_reals
def _combinations(n: Any, k: Any) -> Any:
    fits = (k >= 0) & (n >= 0) & (k <= n)
    n, k = where(fits, n, 1.0), where(fits, k, 0.0)
    return where(fits, exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)), 0.0)


@of_reals
def _combinations_again(n: Any, k: Any) -> Any:
    fits = (k >= 0) & (n > 0)
    n, k = where(fits, n, 1.0), where(fits, k, 0.0)
    return where(fits, exp(lgamma(n + k) - lgamma(k + 1) - lgamma(n)), 0.0)


def multigammaln(a: ArrayLike, d: ArrayLike) -> Value:
    """The logarithm of the multivariate gamma function of dimension ``d``."""
    size = static_int(known(value(d), "d of multigammaln", "pass d as a Python int").item(), "d of multigammaln")
    if size < 1:
        raise ShapeError(f"d of multigammaln is {size}.", where=here(), why="a dimension is 1 or more", fix="d=2")
    x = inexact(a)
    if dtypes.is_complex(x.type.dtype):
        refuse("scipy.special.multigammaln", [x.type], "it takes real numbers", "a.real")
    parts = gammaln(x[..., None] - places(size).astype(x.dtype) / 2)
    return sum(parts, -1) + size * (size - 1) / 4 * real_log(pi)


def polygamma(n: ArrayLike, x: ArrayLike) -> Value:
    """The ``n``-th derivative of ``digamma``; ``n`` is whole, and may differ between elements.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.polygamma(1, 1.0)), 4)
    1.6449
    """
    order = value(n)
    if not order.ndim:
        try:
            known(order, "n of polygamma", "pass n as a Python number")
        except TracerError:
            pass
        else:
            found: Value = _of_order(order, x)
            return found
    result: Value = _polygamma(order, x)
    return result


def _of_order(order: Value, x: ArrayLike) -> Value:
    @of_reals
    def polygamma(x: Any) -> Any:
        return lax_polygamma(order, x)

    found: Value = polygamma(x)
    return found


@of_reals
def _polygamma(n: Any, x: Any) -> Any:
    """By Hurwitz's zeta function: (-1)^(n+1) n! zeta(n + 1, x)."""
    first = n == 0
    order = where(first, 1.0, n)
    direction = where(floor(order / 2) * 2 == order, -1.0, 1.0)
    return where(first, lax_digamma(x), direction * exp(lgamma(order + 1)) * lax_zeta(order + 1, x))


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Value:
    """Hurwitz's zeta function, the sum of ``(q + n)**-x``; without ``q``, Riemann's, for ``x`` above 1.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.zeta(2.0, 1.0)), 4)
    1.6449
    """
    found: Value = _zeta(x, 1.0 if q is None else q)
    return found


@of_reals
def _zeta(x: Any, q: Any) -> Any:
    return lax_zeta(x, q)


@cache
def _bernoulli(count: int) -> tuple[float, ...]:
    """B_0 to B_count, in fractions, by the triangle of Akiyama and Tanigawa."""
    rows: list[Fraction] = []
    found: list[float] = []
    for n in range(count + 1):
        rows.append(Fraction(1, n + 1))
        for k in range(n, 0, -1):
            rows[k - 1] = k * (rows[k - 1] - rows[k])
        found.append(float(rows[0]))
    return tuple(-b if n == 1 else b for n, b in enumerate(found))


def bernoulli(n: int) -> Value:
    """Bernoulli's numbers B_0 to B_n, with B_1 = -1/2.

    >>> import meshwright as mw
    >>> mw.scipy.special.bernoulli(4).shape
    (5,)
    """
    count = static_size(n, "n of bernoulli")
    if count > 512:
        raise ShapeError(f"n of bernoulli is {count}.", where=here(), why="B_258 and later overflow", fix="n=256")
    with np.errstate(over="ignore"):
        return array(np.asarray(_bernoulli(count)), float)

"""The part of ``meshwright.lax`` with incomplete gamma and beta functions, Hurwitz's zeta and Bessel functions.

Each is a sum, a continued fraction or a polynomial of ops, so that it is partitioned and lowered as those are. Narrow
floats are computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from math import factorial
from typing import Any

import numpy as np

from meshwright.api.control import while_loop
from meshwright.api.custom import custom_jvp
from meshwright.api.grad import jvp
from meshwright.arrays.operands import ArrayLike, broadcast, broadcast_shapes, convert
from meshwright.core.dtypes import FLOAT32, FLOATS, DType
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax.elementwise import digamma, fitting_operands, lgamma
from meshwright.numpy import abs, any, exp, floor, full_like, isinf, isnan, log, log1p, maximum, sign, sqrt, where

_MOST_STEPS = 2000

Elementwise = Callable[..., Any]


def _of_floats(function: Elementwise) -> Elementwise:
    """``function`` of f32 or f64 arrays of one shape, as one of any floats that ``lax`` would take."""

    @wraps(function)
    def taking(*args: ArrayLike) -> Value:
        xs: list[Any] = fitting_operands(function.__name__, *args)
        given = {x.dtype for x in xs}
        shape = broadcast_shapes(*(x.shape for x in xs))
        if len(given) > 1 or not given <= set(FLOATS) or shape is None:
            raise ShapeError(
                f"lax.{function.__name__} cannot take {', '.join(x.type.short() for x in xs)}.",
                where=here(),
                why="its operands are floats of one dtype and one shape",
                fix="x.astype('float32'), mnp.broadcast_to(x, shape)",
            )
        (dtype,) = given
        wide = FLOAT32 if dtype.itemsize < 4 else dtype
        return convert(function(*(broadcast(convert(x, wide), shape) for x in xs)), dtype)

    return taking


def _tiny(dtype: DType) -> float:
    return float(np.finfo(dtype).eps)


# Gamma functions of two arguments. P(a, x) is the part of gamma(a) that its integral has up to x, and Q = 1 - P.


def _series(a: Any, x: Any) -> Any:
    """S of P(a, x) = S x^a e^-x / gamma(a + 1): the sum of x^n / ((a + 1) … (a + n))."""

    def step(state: Any) -> Any:
        n, term, total = state
        term = term * (x / (a + n))
        return n + 1, term, total + term

    def goes_on(state: Any) -> Any:
        n, term, total = state
        return (n[()] < _MOST_STEPS) & any(term > total * _tiny(x.dtype))

    one = full_like(x, 1)
    return while_loop(goes_on, step, (np.asarray(1, x.dtype), one, one))[2]


def _fraction(a: Any, x: Any) -> Any:
    """K of Q(a, x) = K x^a e^-x / gamma(a): the quotient of two recurrences, which are kept from growing."""

    def step(state: Any) -> Any:
        n, tops, bottoms, found, moving = state
        z, yn = x - a + (2 * n + 2), (n + 1 - a) * n
        top, bottom = (new * z - old * yn for old, new in (tops, bottoms))
        zero = bottom == 0
        ratio = where(zero | ~moving, found, top / where(zero, 1, bottom))
        scale = where(abs(top) > 1 / _tiny(x.dtype), _tiny(x.dtype), 1)
        moving = moving & (zero | (abs(ratio - found) > _tiny(x.dtype) * abs(ratio)))
        return n + 1, (tops[1] * scale, top * scale), (bottoms[1] * scale, bottom * scale), ratio, moving

    def goes_on(state: Any) -> Any:
        return (state[0] < _MOST_STEPS) & any(state[4])

    z = x - a + 2
    start = np.asarray(1, x.dtype), (full_like(x, 1), x + 1), (x, z * x), (x + 1) / (z * x), full_like(x, True, bool)
    return while_loop(goes_on, step, start)[3]


def _by_a(function: Elementwise, a: Any, x: Any) -> tuple[Any, Any]:
    """An elementwise function and its derivative by its first argument."""
    found: tuple[Any, Any] = jvp(lambda a: function(a, x), (a,), (full_like(a, 1),))
    return found


def _two_parts(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Where the sum is the better way, and the arguments of both, which are harmless where they are not looked at."""
    by_sum = (x <= 1) | (x <= a)
    usable = (a > 0) & (x > 0) & ~isinf(x) & ~isinf(a)
    summed, divided = usable & by_sum, usable & ~by_sum
    return by_sum, tuple(where(summed, y, 1) for y in (a, x)), (where(divided, a, 1), where(divided, x, 2))


def _logarithm(a: Any, x: Any) -> Any:
    return a * log(x) - x - lgamma(a)


def _tails(a: Any, x: Any) -> tuple[Any, Any]:
    """P and Q, each computed as it is where it is the smaller one."""
    by_sum, low, high = _two_parts(a, x)
    below = _series(*low) * exp(_logarithm(*low)) / low[0]
    above = _fraction(*high) * exp(_logarithm(*high))
    p, q = where(by_sum, below, 1 - above), where(by_sum, 1 - below, above)
    for case, at in ((isinf(x) | (a == 0), 1.0), ((x == 0) | isinf(a), 0.0)):
        p, q = where(case, at, p), where(case, 1 - at, q)
    wrong = (x < 0) | (a < 0) | isnan(x) | isnan(a) | ((a == 0) & (x == 0)) | (isinf(a) & isinf(x))
    return where(wrong, np.nan, p), where(wrong, np.nan, q)


@custom_jvp
def _igamma(a: Any, x: Any) -> Any:
    return _tails(a, x)[0]


@custom_jvp
def _igammac(a: Any, x: Any) -> Any:
    return _tails(a, x)[1]


def _density(a: Any, x: Any) -> Any:
    """The derivative of P by x."""
    return exp((a - 1) * log(x) - x - lgamma(a))


_igamma.defjvps(lambda t, out, a, x: t * igamma_grad_a(a, x), lambda t, out, a, x: t * _density(a, x))
_igammac.defjvps(lambda t, out, a, x: -t * igamma_grad_a(a, x), lambda t, out, a, x: -t * _density(a, x))


@_of_floats
def igamma(a: Any, x: Any) -> Any:
    """The lower incomplete gamma function over gamma(a): the chance that a gamma sample is at most ``x``.

    >>> from meshwright import lax
    >>> round(float(lax.igamma(1.0, 2.0)), 4)
    0.8647
    """
    return _igamma(a, x)


@_of_floats
def igammac(a: Any, x: Any) -> Any:
    """One minus ``igamma``, exact also where it is small."""
    return _igammac(a, x)


@_of_floats
def igamma_grad_a(a: Any, x: Any) -> Any:
    """The derivative of ``igamma`` by ``a``."""
    by_sum, low, high = _two_parts(a, x)
    total, slope = _by_a(_series, *low)
    below = exp(_logarithm(*low)) / low[0] * (total * (log(low[1]) - digamma(low[0] + 1)) + slope)
    total, slope = _by_a(_fraction, *high)
    above = exp(_logarithm(*high)) * (total * (log(high[1]) - digamma(high[0])) + slope)
    found = where(x == 0, 0, where(by_sum, below, -above))
    return where(_outside(a, x), np.nan, found)


@_of_floats
def random_gamma_grad(a: Any, sample: Any) -> Any:
    """The derivative of a gamma ``sample`` by ``a``, its place in the distribution being kept."""
    by_sum, low, high = _two_parts(a, sample)
    total, slope = _by_a(_series, *low)
    below = -(total * (log(low[1]) - digamma(low[0] + 1)) + slope) * low[1] / low[0]
    total, slope = _by_a(_fraction, *high)
    above = (total * (log(high[1]) - digamma(high[0])) + slope) * high[1]
    found = where(sample == 0, 0, where(by_sum, below, above))
    return where(_outside(a, sample), np.nan, found)


def _outside(a: Any, x: Any) -> Any:
    """Where ``igamma`` has no derivative by ``a``."""
    return (x < 0) | (a <= 0) | isnan(x) | isnan(a) | isinf(x) | isinf(a)


# The incomplete beta function


def _beta_fraction(a: Any, b: Any, x: Any) -> Any:
    """The continued fraction of I_x(a, b) by Lentz's method: two of its parts in a step."""
    least = float(np.finfo(x.dtype).tiny) * 2**10

    def kept(y: Any) -> Any:
        return where(abs(y) < least, least, y)

    def step(state: Any) -> Any:
        n, c, d, before, moving = state
        even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n))
        odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1))
        found = before
        for part in (even, odd):
            d = 1 / kept(1 + part * d)
            c = kept(1 + part / c)
            found = where(moving, found * c * d, found)
        return n + 1, c, d, found, moving & (abs(found - before) > _tiny(x.dtype) * abs(found))

    def goes_on(state: Any) -> Any:
        return (state[0] < _MOST_STEPS) & any(state[4])

    d = 1 / kept(1 - (a + b) * x / (a + 1))
    start = np.asarray(1, x.dtype), full_like(x, 1), d, d, full_like(x, True, bool)
    return while_loop(goes_on, step, start)[3]


def _betainc(a: Any, b: Any, x: Any) -> Any:
    swapped = x > (a + 1) / (a + b + 2)
    usable = (a > 0) & (b > 0) & (x > 0) & (x < 1)
    a_, b_ = where(usable, where(swapped, b, a), 1), where(usable, where(swapped, a, b), 1)
    x_ = where(usable, where(swapped, 1 - x, x), 0.5)
    logarithm = a_ * log(x_) + b_ * log1p(-x_) + lgamma(a_ + b_) - lgamma(a_) - lgamma(b_)
    found = exp(logarithm) * _beta_fraction(a_, b_, x_) / a_
    found = where(swapped, 1 - found, found)
    found = where(x == 0, 0, where(x == 1, 1, found))
    return where((a <= 0) | (b <= 0) | (x < 0) | (x > 1) | isnan(a) | isnan(b) | isnan(x), np.nan, found)


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    return exp((a - 1) * log(x) + (b - 1) * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b))


_betainc_rule = custom_jvp(_betainc)
_betainc_rule.defjvps(
    lambda t, out, a, b, x: t * jvp(lambda a: _betainc(a, b, x), (a,), (full_like(a, 1),))[1],
    lambda t, out, a, b, x: t * jvp(lambda b: _betainc(a, b, x), (b,), (full_like(b, 1),))[1],
    lambda t, out, a, b, x: t * _beta_density(a, b, x),
)


@_of_floats
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function: the chance that a sample of beta(a, b) is at most ``x``.

    >>> from meshwright import lax
    >>> round(float(lax.betainc(2.0, 2.0, 0.5)), 4)
    0.5
    """
    return _betainc_rule(a, b, x)


# Hurwitz's zeta function

_SUMMED = 10  # terms that are added up as they are
_CORRECTIONS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


@_of_floats
def zeta(x: Any, q: Any) -> Any:
    """Hurwitz's zeta function: the sum of 1 / (q + n)^x over n = 0, 1, …

    >>> from meshwright import lax
    >>> round(float(lax.zeta(2.0, 1.0)), 4)
    1.6449
    """
    good = (x > 1) & ((q > 0) | (q != floor(q)))
    s, base = where(good, x, 2), where(good, q, 1)
    total: Any = 0
    for n in range(_SUMMED):
        total = total + _power(base + n, s)
    end = base + _SUMMED
    last = _power(end, s)
    total = total + last * end / (s - 1) + last / 2
    # Euler and Maclaurin: B_2k / (2k)! s (s + 1) … (s + 2k - 2) / end^(s + 2k - 1)
    rising, falling = s, last / end
    for k, number in enumerate(_CORRECTIONS, 1):
        total = total + number / factorial(2 * k) * rising * falling
        rising, falling = rising * (s + (2 * k - 1)) * (s + 2 * k), falling / end / end
    total = where((q < 0) & (x != floor(x)), np.nan, total)  # powers of negative numbers
    pole = (x == 1) | ((q <= 0) & (q == floor(q)))
    return where(isnan(x) | isnan(q) | (x < 1), np.nan, where(pole, np.inf, total))


def _power(base: Any, s: Any) -> Any:
    """base^-s; of a negative base, for an even or odd s."""
    odd = floor(s / 2) * 2 != s
    return exp(-s * log(abs(base))) * where((base < 0) & odd, -1, 1)


# Bessel functions

_NEAR = 8.0  # up to here a polynomial in x, from here on one in 1 / x


@cache
def _chebyshev(order: int, near: bool, dtype: DType) -> tuple[float, ...]:
    """Coefficients of e^-x I(x) / x^order on [0, 8], or of √x e^-x I(x) from 8 on, by its integral over angles."""
    wide = np.longdouble
    # The midpoint rule is exact for periodic functions this smooth, for the integral as for the coefficients.
    angles, nodes = ((np.arange(n, dtype=wide) + 0.5) * (wide("3.14159265358979323846") / n) for n in (2048, 36))
    x = wide(_NEAR / 2) * (np.cos(nodes) + 1) if near else wide(2 * _NEAR) / (np.cos(nodes) + 1)
    values = np.exp(x[:, None] * (np.cos(angles) - 1)) @ np.cos(order * angles) / 2048
    values = values / x**order if near else values * np.sqrt(x)
    found = np.cos(np.arange(36)[:, None] * nodes) @ values * wide(2) / 36
    found[0] /= 2
    needed = np.nonzero(np.abs(found) > np.finfo(dtype).eps / 8)[0][-1] + 1
    return tuple(map(float, found[:needed]))


def _clenshaw(coefficients: tuple[float, ...], t: Any) -> Any:
    before, now = full_like(t, 0), full_like(t, coefficients[-1])
    for one in reversed(coefficients[1:-1]):
        before, now = now, 2 * t * now - before + one
    return t * now - before + coefficients[0]


def _bessel(order: int, x: Any) -> Any:
    size = abs(x)
    near = _clenshaw(_chebyshev(order, True, x.dtype), where(size <= _NEAR, size, 0) * (2 / _NEAR) - 1)
    large = maximum(size, _NEAR)
    far = _clenshaw(_chebyshev(order, False, x.dtype), 2 * _NEAR / large - 1) / sqrt(large)
    found = where(isnan(x), np.nan, where(size <= _NEAR, near * size**order, far))
    return found * sign(x) if order else found


@custom_jvp
def _i0e(x: Any) -> Any:
    return _bessel(0, x)


@custom_jvp
def _i1e(x: Any) -> Any:
    return _bessel(1, x)


_i0e.defjvps(lambda t, out, x: t * (_i1e(x) - sign(x) * out))


def _i1e_slope(t: Any, out: Any, x: Any) -> Any:
    """I1' = I0 - I1 / x, which is ½ at 0."""
    small = abs(x) < _tiny(x.dtype)
    safe = where(small, 1, x)
    return t * where(small, 0.5, _i0e(x) - out * (sign(x) + 1 / safe))


_i1e.defjvps(_i1e_slope)


@_of_floats
def bessel_i0e(x: Any) -> Any:
    """The modified Bessel function of order 0 times e^-|x|.

    >>> from meshwright import lax
    >>> round(float(lax.bessel_i0e(1.0)), 4)
    0.4658
    """
    return _i0e(x)


@_of_floats
def bessel_i1e(x: Any) -> Any:
    """The modified Bessel function of order 1 times e^-|x|."""
    return _i1e(x)

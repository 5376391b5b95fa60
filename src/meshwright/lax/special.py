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


Start = Callable[[Any], tuple[Any, Any]]  # of a parameter: parts of a recurrence, and what it has found
Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # of the parameter, the number of the step, and the parts: the same


def _limit(start: Start, step: Step, p: Any) -> Any:
    """What a recurrence finds at last: each element by itself, so that none moves on once it is there."""

    def body(state: Any) -> Any:
        n, parts, found, moving = state
        parts, new = step(p, n, parts)
        new = where(moving, new, found)
        return n + 1, parts, new, moving & (abs(new - found) > _tiny(p.dtype) * abs(new))

    parts, found = start(p)
    begin = np.asarray(1, p.dtype), parts, found, full_like(found, True, bool)
    return while_loop(_goes_on, body, begin)[2]


def _limit_and_slope(start: Start, step: Step, p: Any) -> tuple[Any, Any]:
    """The limit of a recurrence and its derivative by the parameter. Where the parameter is an integer, a continued
    fraction may end, and its derivative goes on: so both have to be there."""
    one = full_like(p, 1)

    def body(state: Any) -> Any:
        n, parts, slopes, found, slope, moving = state
        (parts, new), (slopes, turned) = jvp(lambda p, parts: step(p, n, parts), (p, parts), (one, slopes))
        new, turned = where(moving, new, found), where(moving, turned, slope)
        far = [abs(y - x) > _tiny(p.dtype) * abs(y) for x, y in ((found, new), (slope, turned))]
        return n + 1, parts, slopes, new, turned, moving & (far[0] | far[1])

    (parts, found), (slopes, slope) = jvp(start, (p,), (one,))
    begin = np.asarray(1, p.dtype), parts, slopes, found, slope, full_like(found, True, bool)
    *_, found, slope, _ = while_loop(_goes_on, body, begin)
    return found, slope


def _goes_on(state: Any) -> Any:
    return (state[0] < _MOST_STEPS) & any(state[-1])


def _fraction(x: Any) -> tuple[Start, Step]:
    """K of Q(a, x) = K x^a e^-x / gamma(a) for each a: the quotient of two recurrences, which are kept from growing."""

    def start(a: Any) -> Any:
        bottom = (x - a + 2) * x
        return (full_like(x, 1), x + 1, x, bottom), (x + 1) / bottom

    def step(a: Any, n: Any, parts: Any) -> Any:
        z, yn = x - a + (2 * n + 2), (n + 1 - a) * n
        top, bottom = parts[1] * z - parts[0] * yn, parts[3] * z - parts[2] * yn
        scale = where(abs(top) > 1 / _tiny(x.dtype), _tiny(x.dtype), 1)
        return (parts[1] * scale, top * scale, parts[3] * scale, bottom * scale), top / bottom

    return start, step


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
    above = _limit(*_fraction(high[1]), high[0]) * exp(_logarithm(*high))
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
    total, slope = _limit_and_slope(*_fraction(high[1]), high[0])
    above = exp(_logarithm(*high)) * (total * (log(high[1]) - digamma(high[0])) + slope)
    found = where(x == 0, 0, where(by_sum, below, -above))
    return where(_outside(a, x), np.nan, found)


@_of_floats
def random_gamma_grad(a: Any, sample: Any) -> Any:
    """The derivative of a gamma ``sample`` by ``a``, its place in the distribution being kept."""
    by_sum, low, high = _two_parts(a, sample)
    total, slope = _by_a(_series, *low)
    below = -(total * (log(low[1]) - digamma(low[0] + 1)) + slope) * low[1] / low[0]
    total, slope = _limit_and_slope(*_fraction(high[1]), high[0])
    above = (total * (log(high[1]) - digamma(high[0])) + slope) * high[1]
    found = where(sample == 0, 0, where(by_sum, below, above))
    return where(_outside(a, sample), np.nan, found)


def _outside(a: Any, x: Any) -> Any:
    """Where ``igamma`` has no derivative by ``a``."""
    return (x < 0) | (a <= 0) | isnan(x) | isnan(a) | isinf(x) | isinf(a)


# The incomplete beta function


def _beta_fraction(x: Any, a_of: Elementwise, b_of: Elementwise) -> tuple[Start, Step]:
    """The continued fraction of I_x(a, b) by Lentz's method, two of its parts in a step; ``a`` and ``b`` are functions
    of the parameter."""
    least = float(np.finfo(x.dtype).tiny) * 2**10

    def kept(y: Any) -> Any:
        return where(abs(y) < least, least, y)

    def start(p: Any) -> Any:
        a, b = a_of(p), b_of(p)
        d = 1 / kept(1 - (a + b) * x / (a + 1))
        return (full_like(x, 1), d, d), d

    def step(p: Any, n: Any, parts: Any) -> Any:
        a, b = a_of(p), b_of(p)
        c, d, found = parts
        even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n))
        odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1))
        for part in (even, odd):
            d = 1 / kept(1 + part * d)
            c = kept(1 + part / c)
            found = found * c * d
        return (c, d, found), found

    return start, step


def _swapped(a: Any, b: Any, x: Any) -> tuple[Any, Any, Any]:
    """Where I_x(a, b) is 1 - I_(1 - x)(b, a), in which the fraction is the faster; where it is a number at all, and the
    argument of the fraction."""
    swapped = x > (a + 1) / (a + b + 2)
    usable = (a > 0) & (b > 0) & (x > 0) & (x < 1)
    return swapped, usable, where(usable, where(swapped, 1 - x, x), 0.5)


def _beta_prefactor(a: Any, b: Any, x: Any) -> Any:
    return exp(a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a


def _beta_parts(a: Any, b: Any, x: Any, of_a: bool) -> tuple[Any, Any]:
    """I_x(a, b) before its ends are looked at, and its derivative by ``a`` or by ``b``."""
    swapped, usable, at = _swapped(a, b, x)
    p, other = (where(usable, y, 1) for y in ((a, b) if of_a else (b, a)))
    # the fraction's own arguments: the parameter stands first where nothing is swapped and it is a, or the reverse
    first = ~swapped if of_a else swapped
    a_of: Elementwise = lambda p: where(first, p, other)
    b_of: Elementwise = lambda p: where(first, other, p)
    value, slope = _limit_and_slope(*_beta_fraction(at, a_of, b_of), p)
    before, turned = jvp(lambda p: _beta_prefactor(a_of(p), b_of(p), at), (p,), (full_like(p, 1),))
    found, moved = before * value, before * slope + turned * value
    return where(swapped, 1 - found, found), where(swapped, -moved, moved)


def _betainc(a: Any, b: Any, x: Any) -> Any:
    swapped, usable, at = _swapped(a, b, x)
    p, other = where(usable, where(swapped, b, a), 1), where(usable, where(swapped, a, b), 1)
    found = _beta_prefactor(p, other, at) * _limit(*_beta_fraction(at, lambda p: p, lambda p: other), p)
    found = where(swapped, 1 - found, found)
    found = where(x == 0, 0, where(x == 1, 1, found))
    return where((a <= 0) | (b <= 0) | (x < 0) | (x > 1) | isnan(a) | isnan(b) | isnan(x), np.nan, found)


def _beta_slope(of_a: bool) -> Elementwise:
    return lambda t, out, a, b, x: t * where((x <= 0) | (x >= 1), 0, _beta_parts(a, b, x, of_a)[1])


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    return exp((a - 1) * log(x) + (b - 1) * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b))


_betainc_rule = custom_jvp(_betainc)
_betainc_rule.defjvps(
    _beta_slope(of_a=True), _beta_slope(of_a=False), lambda t, out, a, b, x: t * _beta_density(a, b, x)
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

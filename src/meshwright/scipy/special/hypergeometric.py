"""Hypergeometric functions, by their series, and where it converges slowly, by that of another argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.control import while_loop
from meshwright.api.custom import custom_jvp
from meshwright.api.grad import jvp
from meshwright.lax import lgamma
from meshwright.numpy import abs, any, exp, floor, full_like, inf, isnan, log1p, nan, ones_like, rint, where
from meshwright.scipy.special.elementwise import Elementwise, of_reals
from meshwright.scipy.special.gammas import gammasgn

_MOST_TERMS = 20_000


def _sum(ratio: Elementwise, x: Any) -> Any:
    """The sum of terms, 1 first, each ``ratio(k)`` times the one before, until none counts any more."""
    least = float(np.finfo(x.dtype).eps) / 4

    def step(state: Any) -> Any:
        k, term, total = state
        term = term * ratio(k)
        return k + 1, term, total + term

    def goes_on(state: Any) -> Any:
        k, term, total = state
        return (k[()] < _MOST_TERMS) & any(abs(term) > least * abs(total))

    one = ones_like(x)
    return while_loop(goes_on, step, (np.asarray(0, x.dtype), one, one))[2]


def _slope(function: Elementwise, place: int, args: tuple[Any, ...]) -> Any:
    """The derivative of an elementwise function by one of its arguments."""
    by = lambda y: function(*args[:place], y, *args[place + 1 :])
    return jvp(by, (args[place],), (full_like(args[place], 1),))[1]


# 1F1


def _kummer(a: Any, b: Any, x: Any) -> Any:
    # Below 0 terms would cancel; 1F1(a, b, x) = exp(x) 1F1(b - a, b, -x).
    left = x < 0
    top, y = where(left, b - a, a), abs(x)
    plain = _sum(lambda k: (top + k) / (b + k) * y / (k + 1), where(isnan(x), 0.0, y))
    found = where(left, exp(where(left, x, 0.0)) * plain, plain)
    return where(isnan(a) | isnan(b) | isnan(x), nan, where(a == b, exp(x), found))


@custom_jvp
def _hyp1f1(a: Any, b: Any, x: Any) -> Any:
    return where((a == 0) & (b == 0), 1.0, _kummer(a, where((a == 0) & (b == 0), 1.0, b), x))


_hyp1f1.defjvps(
    lambda t, out, a, b, x: t * _slope(_kummer, 0, (a, b, x)),
    lambda t, out, a, b, x: t * _slope(_kummer, 1, (a, b, x)),
    lambda t, out, a, b, x: t * a / b * _hyp1f1(a + 1, b + 1, x),
)


@of_reals
def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """The hypergeometric function 1F1.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.hyp1f1(1.0, 2.0, 1.0)), 4)
    1.7183
    """
    return _hyp1f1(a, b, x)


# 2F1


def _series(a: Any, b: Any, c: Any, x: Any) -> Any:
    return _sum(lambda k: (a + k) * (b + k) / ((c + k) * (k + 1)) * x, x)


def _ratio(tops: tuple[Any, Any], bottoms: tuple[Any, Any]) -> Any:
    """A quotient of products of two gamma functions; a pole below leaves nothing."""
    size = exp(lgamma(tops[0]) + lgamma(tops[1]) - lgamma(bottoms[0]) - lgamma(bottoms[1]))
    none = [(y <= 0) & (y == floor(y)) for y in bottoms]
    safe = [where(pole, 1.0, y) for pole, y in zip(none, bottoms, strict=True)]
    signs = gammasgn(tops[0]) * gammasgn(tops[1]) * gammasgn(safe[0]) * gammasgn(safe[1])
    return where(none[0] | none[1], 0.0, signs * size)


def _gauss(a: Any, b: Any, c: Any, x: Any) -> Any:
    """On 0 <= x < 1: the series, and near 1 two of 1 - x, unless c - a - b is nearly whole."""
    s = c - a - b
    near = (x > 0.9) & (abs(s - rint(s)) > 0.01)
    plain = _series(a, b, c, where(near, 0.0, x))
    t, whole = where(near, 1 - x, 0.5), where(near, s, 0.5)
    zero = where(near, 1.0, 0.0)
    first = _ratio((c, whole), (c - a, c - b)) * _series(a * zero, b, 1 - whole, t)
    second = _ratio((c, -whole), (a, b)) * _series((c - a) * zero, c - b, 1 + whole, t)
    return where(near, first + exp(whole * log1p(t - 1)) * second, plain)


def _everywhere(a: Any, b: Any, c: Any, x: Any) -> Any:
    left, inside = x < 0, (x >= 0) & (x < 1)
    # Pfaff: (1 - x)^-a 2F1(a, c - b, c, x / (x - 1)) for x below 0.
    below = where(left, x, 0.0)
    y = where(left, below / (below - 1), where(inside, x, 0.0))
    found = _gauss(a, where(left, c - b, b), c, y)
    found = where(left, exp(-a * log1p(-below)) * found, found)
    s = c - a - b
    safe = where(s > 0, s, 1.0)
    at_one = where(s > 0, _ratio((c, safe), (c - a, c - b)), inf)
    found = where(left | inside, found, where(x == 1, at_one, inf))
    return where(isnan(a) | isnan(b) | isnan(c) | isnan(x), nan, found)


@custom_jvp
def _hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    return _everywhere(a, b, c, x)


_hyp2f1.defjvps(
    lambda t, out, a, b, c, x: t * _slope(_everywhere, 0, (a, b, c, x)),
    lambda t, out, a, b, c, x: t * _slope(_everywhere, 1, (a, b, c, x)),
    lambda t, out, a, b, c, x: t * _slope(_everywhere, 2, (a, b, c, x)),
    lambda t, out, a, b, c, x: t * a * b / c * _hyp2f1(a + 1, b + 1, c + 1, x),
)


@of_reals
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """The hypergeometric function 2F1, for ``x`` up to 1.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.hyp2f1(1.0, 1.0, 2.0, 0.5)), 4)
    1.3863
    """
    return _hyp2f1(a, b, c, x)

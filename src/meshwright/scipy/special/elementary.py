"""Functions made of logarithms and powers alone."""

from __future__ import annotations

from typing import Any

from meshwright.arrays.operands import ArrayLike, inexact, promoted_values
from meshwright.nn import sigmoid
from meshwright.numpy import expm1, inf, isnan, log, log1p, nan, where
from meshwright.scipy.special.elementwise import of_reals


def expit(x: ArrayLike) -> Any:
    """``1 / (1 + exp(-x))``."""
    return sigmoid(x)


def logit(x: ArrayLike) -> Any:
    """The inverse of ``expit``: ``log(x / (1 - x))``.

    >>> import meshwright as mw
    >>> float(mw.scipy.special.logit(0.5))
    0.0
    """
    p = inexact(x)
    return log(p) - log1p(-p)


def xlogy(x: ArrayLike, y: ArrayLike) -> Any:
    """``x * log(y)``, and 0 where ``x`` is 0.

    >>> import meshwright as mw
    >>> float(mw.scipy.special.xlogy(0.0, 0.0))
    0.0
    """
    a, b = promoted_values(x, y, inexact=True)
    none = (a == 0) & ~isnan(b)
    return where(none, 0.0, a * log(where(none, 1.0, b)))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Any:
    """``x * log(1 + y)``, and 0 where ``x`` is 0."""
    a, b = promoted_values(x, y, inexact=True)
    none = (a == 0) & ~isnan(b)
    return where(none, 0.0, a * log1p(where(none, 0.0, b)))


@of_reals
def entr(x: Any) -> Any:
    """``-x log(x)``, 0 at 0, and -inf below."""
    inside = x > 0
    found = -x * log(where(inside, x, 1.0))
    return where(isnan(x), nan, where(inside, found, where(x == 0, 0.0, -inf)))


@of_reals
def rel_entr(p: Any, q: Any) -> Any:
    """``p log(p / q)``, 0 where ``p`` is 0, and infinite where one of them is below 0."""
    both, none = (p > 0) & (q > 0), (p == 0) & (q >= 0)
    # A quotient would vanish or overflow where the difference of logarithms does not.
    found = where(both, p, 1.0) * (log(where(both, p, 1.0)) - log(where(both, q, 1.0)))
    return where(isnan(p) | isnan(q), nan, where(both, found, where(none, 0.0, inf)))


@of_reals
def kl_div(p: Any, q: Any) -> Any:
    """``p log(p / q) - p + q``, and infinite where one of them is below 0."""
    return rel_entr(p, q) - p + q


@of_reals
def boxcox(x: Any, lmbda: Any) -> Any:
    """``(x**lmbda - 1) / lmbda``, and the logarithm where ``lmbda`` is 0."""
    return _powers(log(x), lmbda)


@of_reals
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """``((1 + x)**lmbda - 1) / lmbda``, and ``log(1 + x)`` where ``lmbda`` is 0."""
    return _powers(log1p(x), lmbda)


def _powers(height: Any, power: Any) -> Any:
    """``(exp(power * height) - 1) / power``: near power 0 its series, whose derivatives are those of the function."""
    product = where(power == 0, 0.0, power * height)
    flat = abs(product) < 1e-3
    series = height * (1 + product / 2 * (1 + product / 3 * (1 + product / 4)))
    some = where(power == 0, 1.0, power)
    return where(flat, series, where(flat, 0.0, expm1(where(flat, 0.0, product)) / some))

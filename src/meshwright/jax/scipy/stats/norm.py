"""``jax.scipy.stats.norm``: the normal distribution."""

from __future__ import annotations

import math
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.jax.absent import absent


def _standard(x: Any, loc: Any, scale: Any) -> Any:
    """How many scales a value is above the location."""
    return mnp.divide(mnp.subtract(x, loc), scale)


def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density.

    >>> round(float(logpdf(0.0)), 4)
    -0.9189
    """
    return -0.5 * mnp.square(_standard(x, loc, scale)) - mnp.log(mnp.multiply(scale, math.sqrt(2 * math.pi)))


def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density."""
    return mnp.exp(logpdf(x, loc, scale))


def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that is at most ``x``.

    >>> float(cdf(0.0))
    0.5
    """
    return 0.5 * lax.erfc(_standard(x, loc, scale) * -math.sqrt(0.5))


def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that is above ``x``."""
    return 0.5 * lax.erfc(_standard(x, loc, scale) * math.sqrt(0.5))


def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that a share ``q`` is at most."""
    q = mnp.asarray(q)
    return lax.erf_inv(2 * (q if q.dtype.kind == "f" else q.astype(float)) - 1) * math.sqrt(2) * scale + loc


def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that a share ``q`` is above."""
    return ppf(1 - mnp.asarray(q), loc, scale)


__getattr__ = absent("jax.scipy.stats.norm")

__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]

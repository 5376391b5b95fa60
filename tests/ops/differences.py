"""Where an op differs from JAX on purpose: at which operands, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.versions import COMPLEX_MAXIMUM, DIGAMMA, NEXTAFTER, SIGN, older_than

Mask = Any  # of bools, one per element


def _is_complex(x: Any) -> bool:
    return bool(x.dtype.kind == "c")


def _nowhere(*xs: Any, **params: Any) -> Mask:
    return np.zeros(xs[0].shape, bool)


def _both_zero(x: Any, y: Any) -> Mask:
    """0.0 and -0.0 are equal: which of them is the larger is left open, as in NumPy."""
    return (x == 0) & (y == 0)


def _zero_meets_zero(low: Any, x: Any, high: Any) -> Mask:
    return _both_zero(low, x) | _both_zero(x, high) | _both_zero(low, high)


def _negative_zero_part(x: Any) -> Mask:
    """The sign of a zero part says on which side of a branch cut x is, as in C; XLA does not look at it."""
    if not _is_complex(x):
        return _nowhere(x)
    return ((x.real == 0) & np.signbit(x.real)) | ((x.imag == 0) & np.signbit(x.imag))


def _by_complex_zero(x: Any, y: Any) -> Mask:
    """Which infinity a complex number divided by zero is."""
    return (y == 0) & _is_complex(y)


def _complex_zero_base(x: Any, y: Any) -> Mask:
    """0^y is 0 for Re y > 0; XLA has nan unless y is real."""
    return (x == 0) & _is_complex(x)


def _complex_angle(y: Any, x: Any) -> Mask:
    """Quotients that lie on the branch cut of the logarithm up to rounding."""
    return np.full(x.shape, _is_complex(x))


def _narrow(x: Any) -> Mask:
    """XLA computes in 8 bits all the way, and overflows or loses digits."""
    return (x <= -10) & (x.dtype.itemsize == 1)


def _near_roots(*roots: float) -> Callable[[Any], Mask]:
    """Close to a root both are accurate to some ulps of 1, not of the value."""
    return lambda x: np.isin(x.astype(np.float64), roots)


AT_EDGES: dict[str, Callable[..., Mask]] = {
    "maximum": _both_zero,
    "minimum": _both_zero,
    "clamp": _zero_meets_zero,
    "sqrt": _negative_zero_part,
    "asin": _negative_zero_part,
    "acos": _negative_zero_part,
    "asinh": _negative_zero_part,
    "acosh": _negative_zero_part,
    "div": _by_complex_zero,
    "pow": _complex_zero_base,
    "atan2": _complex_angle,
    "logistic": _narrow,
    "exp2": _narrow,
    "lgamma": _near_roots(1.0, 2.0, -2.5),
    "digamma": _near_roots(1.5, -0.5, *([0.0] if older_than(DIGAMMA) else [])),
}


def at_edges(name: str, operands: list[Any], params: Any) -> Mask:
    """Where the value of op ``name`` is not compared with JAX's."""
    return AT_EDGES.get(name, _nowhere)(*operands, **params)


# Ops whose derivative is not JAX's for complex operands: old versions have 0 for the sign, which turns with its
# operand, and new ones have none for the largest and the smallest.
COMPLEX_DERIVATIVE = frozenset({"sign"} if older_than(SIGN) else ())
if not older_than(COMPLEX_MAXIMUM):
    COMPLEX_DERIVATIVE |= {"maximum", "minimum", "cummax", "cummin"}
# And those that have none for real ones in old versions.
NO_DERIVATIVE = frozenset({"nextafter"} if older_than(NEXTAFTER) else ())

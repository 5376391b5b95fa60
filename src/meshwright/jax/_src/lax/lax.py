"""``jax._src.lax.lax``: ``jax.lax``, and constants of another value's dtype."""

from __future__ import annotations

from typing import Any

from meshwright.arrays.operands import value
from meshwright.jax import lax as _lax
from meshwright.jax import numpy as _numpy

PrecisionLike = Any


def _const(example: Any, number: Any) -> Any:
    """A number in the dtype of ``example``, or of its type if that is a number, too.

    >>> _const(_numpy.ones(2, "bfloat16"), 3).dtype
    dtype(bfloat16)
    """
    if isinstance(example, bool | int | float | complex):
        return type(example)(number)
    return _numpy.asarray(number, value(example).dtype)


def __getattr__(name: str) -> Any:
    """What ``jax.lax`` has by this name."""
    return getattr(_lax, name)

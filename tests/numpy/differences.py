"""Derivatives as differences of JAX's results in wide numbers, for where JAX's rule is not that of its function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.numpy.closeness import plain

STEP = 1e-5


def slopes(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any], cotangents: Sequence[Any]
) -> list[np.ndarray[Any, Any]]:
    """The tangents of the results, then the cotangents of the primals, of a function at a point.

    JAX's bilinear form of complex numbers is the real part of the product, without a conjugate.
    """
    with jax.enable_x64(True):
        at = [plain(x) for x in primals]
        forward: list[np.ndarray[Any, Any]] = [np.zeros(np.shape(c), plain(c).dtype) for c in cotangents]
        backward = []
        for n, x in enumerate(at):
            found = np.zeros(x.shape, x.dtype)
            for place in np.ndindex(x.shape):
                for unit in (1.0, 1j) if x.dtype.kind == "c" else (1.0,):
                    column = _difference(function, at, n, place, unit)
                    along = plain(tangents[n])[place]
                    share = along if x.dtype.kind != "c" else along.real if unit == 1.0 else along.imag
                    forward = [total + share * slope for total, slope in zip(forward, column, strict=True)]
                    pulled = sum(float((plain(c) * s).sum().real) for c, s in zip(cotangents, column, strict=True))
                    found[place] += pulled if unit == 1.0 else -1j * pulled
            backward.append(found)
        return [*forward, *backward]


def _difference(
    function: Callable[..., Sequence[Any]], at: Sequence[np.ndarray[Any, Any]], n: int, place: Any, unit: Any
) -> list[np.ndarray[Any, Any]]:
    """How fast the results change with one element of one argument."""
    ends = []
    for sign in (1, -1):
        moved = [x.copy() for x in at]
        moved[n][place] += sign * STEP * unit
        ends.append([plain(x) for x in function(*(jnp.asarray(x) for x in moved))])
    return [(high - low) / (2 * STEP) for high, low in zip(*ends, strict=True)]

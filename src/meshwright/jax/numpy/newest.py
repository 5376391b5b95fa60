"""Functions that ``jax.numpy`` has since jax 0.12, of those of ``meshwright.numpy``."""

from __future__ import annotations

from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.arrays.operands import ArrayLike
from meshwright.arrays.static import one_of
from meshwright.core.trace import Value


def top_k(
    a: ArrayLike, k: int, /, *, axis: int = -1, mode: str = "largest", sorted: bool = True
) -> tuple[Value, Value]:
    """The ``k`` largest or smallest elements along a dim and their places; they are sorted in any case.

    >>> import meshwright.jax.numpy as jnp
    >>> jnp.top_k(jnp.array([3, 1, 2]), 2, mode="smallest")[0].tolist()
    [1, 2]
    """
    one_of(mode, ("largest", "smallest"), "mode of jnp.top_k")
    x: Any = mnp.asarray(a)
    if mode == "largest":
        return lax.top_k(x, k, axis=axis)
    places = lax.slice_in_dim(mnp.argsort(x, axis), 0, k, axis=axis)
    return mnp.take_along_axis(x, places, axis), places


def minmax(
    a: ArrayLike, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> tuple[Value, Value]:
    """The smallest and the largest element along some dims; ``initial`` may be one bound for each.

    >>> import meshwright.jax.numpy as jnp
    >>> [int(x) for x in jnp.minmax(jnp.array([3, 1, 2]))]
    [1, 3]
    """
    low, high = initial if isinstance(initial, tuple) else (initial, initial)
    return mnp.min(a, axis, out, keepdims, low, where), mnp.max(a, axis, out, keepdims, high, where)


def lexsort(keys: Any, axis: int = -1, *, batch_size: int = 16) -> Value:
    """``mnp.lexsort``; all keys are compared in one sort, however many ``batch_size`` would allow."""
    return mnp.lexsort(keys, axis)

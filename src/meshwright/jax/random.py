"""``jax.random`` over ``meshwright.random``: ``key`` makes keys of a dtype of their own, ``PRNGKey`` words."""

from typing import Any, NewType

from meshwright import random as _random
from meshwright.arrays.operands import ArrayLike
from meshwright.core.trace import Value
from meshwright.jax.lax.primitives import primitive as _primitive
from meshwright.random import *  # noqa: F403
from meshwright.random.keys import typed as _typed

random_gamma_p = _primitive("random_gamma")
Key = NewType("Key", Value)  # as annotations of keys name them


def key(seed: ArrayLike, *, impl: str | None = None, dtype: str | None = None) -> Value:  # type: ignore[no-redef]
    """The key of an integer seed; arrays of keys have the shape of the keys.

    >>> import meshwright.jax as jax
    >>> jax.random.split(jax.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _typed(_random.key(seed, impl=impl, dtype=dtype))


def wrap_key_data(  # type: ignore[no-redef]
    key_bits_array: ArrayLike, *, impl: str | None = None, dtype: str | None = None
) -> Value:
    """One or more keys from their words."""
    return _typed(_random.wrap_key_data(key_bits_array, impl=impl, dtype=dtype))


def __getattr__(name: str) -> Any:
    return getattr(_random, name)

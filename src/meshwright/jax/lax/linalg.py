"""``jax.lax.linalg`` over ``meshwright.lax.linalg``."""

from typing import Any

from meshwright.jax.lax.primitives import find_primitive as _find_primitive
from meshwright.lax import linalg as _linalg
from meshwright.lax.linalg import *  # noqa: F403


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:  # type: ignore[no-redef]
    """``lax.linalg.cholesky``, of an array that JAX calls ``x``."""
    return _linalg.cholesky(x, symmetrize_input=symmetrize_input)


def __getattr__(name: str) -> Any:
    """``linalg.lu_p``, JAX's primitive."""
    found = _find_primitive(name)
    return getattr(_linalg, name) if found is None else found

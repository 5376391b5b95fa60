"""``jax.ref``: reads and writes of refs as functions, in kernels and outside of them."""

from __future__ import annotations

from typing import Any

from meshwright.jax.refs import Ref as Ref
from meshwright.jax.refs import empty_ref as empty_ref
from meshwright.jax.refs import free_ref as free_ref
from meshwright.jax.refs import freeze as freeze
from meshwright.jax.refs import new_ref as new_ref


def get(ref: Any, idx: Any = None) -> Any:
    """``ref[idx]``; without an index all of it.

    >>> import meshwright.jax.numpy as jnp
    >>> get(new_ref(jnp.arange(3)), 1).tolist()
    1
    """
    return ref[... if idx is None else idx]


def set(ref: Any, idx: Any, value: Any) -> None:
    """``ref[idx] = value``.

    >>> import meshwright.jax.numpy as jnp
    >>> ref = new_ref(jnp.arange(3))
    >>> set(ref, 0, 5)
    >>> ref[...].tolist()
    [5, 1, 2]
    """
    ref[... if idx is None else idx] = value


def swap(ref: Any, idx: Any, value: Any) -> Any:
    """``ref[idx] = value``, and what was there before.

    >>> import meshwright.jax.numpy as jnp
    >>> ref = new_ref(jnp.arange(3))
    >>> swap(ref, 2, 7).tolist(), ref[...].tolist()
    (2, [0, 1, 7])
    """
    before = get(ref, idx)
    set(ref, idx, value)
    return before


def addupdate(ref: Any, idx: Any, x: Any) -> None:
    """``ref[idx] += x``.

    >>> import meshwright.jax.numpy as jnp
    >>> ref = new_ref(jnp.arange(3))
    >>> addupdate(ref, None, 10)
    >>> ref[...].tolist()
    [10, 11, 12]
    """
    set(ref, idx, get(ref, idx) + x)

"""A function of JAX as a function of values of ours: traced by JAX once for each kind of arguments, then read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from meshwright.arrays.tracing import ShapeDtypeStruct, check_function, leaf_array, said_by_jax
from meshwright.core.trace import Value
from meshwright.interop.jaxpr.keys import is_key
from meshwright.interop.jaxpr.reader import Reader
from meshwright.random.keys import is_typed, key_data, typed


def reading(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` on values of ours, in the containers of JAX."""
    import jax

    check_function(f, "from_jax", "mw.interop.jax.from_jax(f)")
    jitted = jax.jit(f)

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, containers = jax.tree.flatten((args, kwargs))
        standing = [_as_jax_has_it(x, said) for x, said in zip(leaves, said_by_jax(leaves), strict=True)]
        given, named = jax.tree.unflatten(containers, standing)
        traced = jitted.trace(*given, **named)
        outs = Reader().function(traced.jaxpr)(*map(_as_read, leaves))
        infos, results = jax.tree.flatten(traced.out_info)
        return jax.tree.unflatten(
            results, [typed(x) if is_key(info) else x for x, info in zip(outs, infos, strict=True)]
        )

    return function


def _as_jax_has_it(x: Any, sharding: Any = None) -> Any:
    """What stands for a leaf while JAX traces: its shape and dtype, and a sharding; numbers are themselves."""
    import jax

    if isinstance(x, Value | ShapeDtypeStruct):
        make: Any = jax.ShapeDtypeStruct
        if is_typed(x):
            return make(x.shape, jax.random.key(0, impl="threefry2x32").dtype)
        return make(x.shape, x.dtype, weak_type=x.type.weak, sharding=sharding)
    return np.asarray(x) if isinstance(x, np.generic) else x


def _as_read(x: Any) -> Value:
    """A leaf as programs of JAX are read on it: keys as their words."""
    found = leaf_array(x)
    return key_data(found) if is_typed(found) else found

"""A function of JAX as a function of values of ours: traced by JAX once for each kind of arguments, then read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from meshwright.arrays.tracing import ShapeDtypeStruct, check_function
from meshwright.core.trace import Value, to_array
from meshwright.interop.jaxpr.reader import Reader


def reading(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` on values of ours, in the containers of JAX."""
    import jax

    check_function(f, "from_jax", "mw.interop.jax.from_jax(f)")
    jitted = jax.jit(f)

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, containers = jax.tree.flatten((args, kwargs))
        given, named = jax.tree.unflatten(containers, [_as_jax_has_it(x) for x in leaves])
        traced = jitted.trace(*given, **named)
        outs = Reader().function(traced.jaxpr)(*map(to_array, leaves))
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)

    return function


def _as_jax_has_it(x: Any) -> Any:
    """What stands for a leaf while JAX traces: its shape and dtype; numbers are themselves."""
    import jax

    if isinstance(x, Value | ShapeDtypeStruct):
        make: Any = jax.ShapeDtypeStruct
        return make(x.shape, x.dtype, weak_type=x.type.weak)
    return np.asarray(x) if isinstance(x, np.generic) else x

"""Arguments that JAX made, arrays and ``ShapeDtypeStruct``s, in the place of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.device_put import device_put
from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.core import dtypes
from meshwright.core.trace import Value, to_array
from meshwright.interop.jaxpr import keys
from meshwright.interop.jaxpr.shardings import is_said, named
from meshwright.random.keys import typed


def standing_for(x: Any) -> ShapeDtypeStruct:
    """What an array of JAX's, or its ``ShapeDtypeStruct``, is here: on a mesh like its own, if it is on one."""
    place = named(x.sharding) if is_said(x.sharding) else None
    if keys.is_key(x):
        keys.check_kind(x)
        return ShapeDtypeStruct(x.shape, dtypes.KEY, sharding=place)
    return ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type, sharding=place)


def array_of(x: Any) -> Value:
    """An array of JAX's as one of ours, on a mesh like its own, if it is on one."""
    found = numbers_of(x)
    place = standing_for(x).sharding
    return found if place is None else device_put(found, place)  # type: ignore[no-any-return]


def numbers_of(x: Any) -> Value:
    """An array of JAX's as one of ours, wherever it is."""
    if not keys.is_key(x):
        return to_array(x)
    import jax

    keys.check_kind(x)
    return typed(to_array(np.asarray(jax.random.key_data(x))))

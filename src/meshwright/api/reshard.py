"""reshard: the same value laid out in another way."""

from __future__ import annotations

from typing import Any

from meshwright.arrays.device_put import put, sharding_for, spread
from meshwright.arrays.tracing import leaf_value
from meshwright.compile.jit import jit
from meshwright.core import tree
from meshwright.core.trace import Array, Value, state
from meshwright.ops.collective import finish_sum
from meshwright.ops.placement import sharding_constraint
from meshwright.sharding.mesh import get_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


def reshard(x: Any, sharding: Any) -> Any:
    """The arrays of a tree in another layout: a sharding, or a ``P`` on the current mesh or else on that of the array.

    A value of which each device holds a summand, ``{U:i}``, becomes the sum.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> y = mw.shard_map(lambda x: x, mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P(sum="i"))(mnp.arange(8.0))
    >>> z = reshard(y, mw.NamedSharding(mesh, mw.P()))
    >>> print(mw.typeof(y), mw.typeof(z), z.tolist())
    float32[2]{U:i} float32[2] [12.0, 16.0]
    """
    leaves, structure = tree.flatten(x)
    places = spread(sharding, x, "reshard")
    found = [
        _one(leaf_value(leaf, "what is given to reshard"), place) for leaf, place in zip(leaves, places, strict=True)
    ]
    return tree.unflatten(structure, found)


def _one(x: Value, place: Any) -> Value:
    if isinstance(place, PartitionSpec) and get_mesh() is None and x.__class__ is Array:
        before = x._sharding
        place = NamedSharding(before.mesh, place) if isinstance(before, NamedSharding) else place
    spec = place.spec if isinstance(place, NamedSharding) else place
    kept = spec.unreduced if isinstance(spec, PartitionSpec) else frozenset()
    unreduced = tuple(axis for axis in x.type.unreduced if axis not in kept)
    if unreduced:
        x = finish_sum(x, axes=unreduced)
        if place == PartitionSpec() and get_mesh() is None and state.manual is None:
            # Whole, on whatever mesh the summands are.
            return x if isinstance(x, Array) or x.type.sharding is not None else sharding_constraint(x, spec=place)
    if x.__class__ is Array and place is not None and state.builder is None:
        found = sharding_for(place, x.type.shape)
        if isinstance(found, NamedSharding) and not found.spec.is_closed:  # what is left open is as propagation says
            return jit(lambda x: put(x, found))(x)  # type: ignore[no-any-return]
    return x if place is None else put(x, place)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """The arrays of a tree, which are to be laid out so: what propagation starts from, and what the program ensures.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2, 2), ("x", "y"))
    >>> rows = mw.NamedSharding(mesh, mw.P("x"))
    >>> f = mw.jit(lambda x: with_sharding_constraint(x * 2, rows) + 1)
    >>> print(mw.typeof(f(mnp.ones((4, 4)))))
    float32[4@x,4]
    """
    return reshard(x, shardings)

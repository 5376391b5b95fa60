"""Meshes, specs and shardings of JAX as those of this package."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.source import here
from meshwright.errors import ShardingError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import P


def is_said(sharding: Any) -> bool:
    """Whether something is a sharding on a mesh, and neither left open nor a device."""
    return hasattr(sharding, "spec") and bool(sharding.mesh.axis_names)


def mesh_of(mesh: Any) -> Mesh:
    """A mesh of JAX, concrete or abstract, by its sizes and names; its devices are counted from 0."""
    sizes = tuple(mesh.shape.values())
    return Mesh(np.arange(int(np.prod(sizes, dtype=int))).reshape(sizes), tuple(mesh.axis_names))


def spec_of(spec: Any) -> P:
    """A ``PartitionSpec`` of JAX."""
    import jax

    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    return P(*(P.UNCONSTRAINED if entry is free else entry for entry in spec))


def named(sharding: Any) -> NamedSharding:
    """A sharding of JAX on a mesh."""
    if not hasattr(sharding, "spec"):
        raise ShardingError(
            f"A {type(sharding).__name__} is not read.",
            where=here(),
            why="it does not say along which axes of a mesh an array is split",
            fix="jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(...))",
        )
    return NamedSharding(mesh_of(sharding.mesh), spec_of(sharding.spec))

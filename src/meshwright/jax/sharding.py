"""``jax.sharding`` over ``meshwright.sharding``."""

from __future__ import annotations

from meshwright.api.reshard import reshard
from meshwright.sharding.mesh import AbstractMesh, AxisType, BaseMesh, Mesh, get_mesh, set_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.single_device import SingleDeviceSharding
from meshwright.sharding.spec import PartitionSpec

__all__ = [
    "AbstractMesh",
    "AxisType",
    "BaseMesh",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "SingleDeviceSharding",
    "get_mesh",
    "reshard",
    "set_mesh",
]

"""Meshes, shardings and their algebra.

>>> from meshwright.sharding import Mesh, TensorSharding
>>> mesh = Mesh.parse('<["x"=2, "y"=4]>')
>>> print(TensorSharding.parse('sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>', mesh))
#sdy.sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>
"""

from typing import TYPE_CHECKING

from meshwright.core.first_use import on_first_use

if TYPE_CHECKING:
    from meshwright.api.reshard import reshard
    from meshwright.sharding.axes import AxisRef
    from meshwright.sharding.dimension import DimensionSharding
    from meshwright.sharding.mesh import AbstractMesh, AxisType, Device, Mesh, get_mesh, make_mesh, set_mesh
    from meshwright.sharding.named import NamedSharding, TensorSharding
    from meshwright.sharding.single_device import SingleDeviceSharding
    from meshwright.sharding.space import count_shardings, enumerate_shardings
    from meshwright.sharding.spec import P, PartitionSpec

__getattr__ = on_first_use(
    "meshwright.sharding",
    {
        "meshwright.api.reshard": ["reshard"],
        "meshwright.sharding.axes": ["AxisRef"],
        "meshwright.sharding.dimension": ["DimensionSharding"],
        "meshwright.sharding.mesh": ["AbstractMesh", "AxisType", "Device", "Mesh", "get_mesh", "make_mesh", "set_mesh"],
        "meshwright.sharding.named": ["NamedSharding", "TensorSharding"],
        "meshwright.sharding.single_device": ["SingleDeviceSharding"],
        "meshwright.sharding.space": ["count_shardings", "enumerate_shardings"],
        "meshwright.sharding.spec": ["P", "PartitionSpec"],
    },
)

__all__ = [
    "AbstractMesh",
    "AxisRef",
    "AxisType",
    "Device",
    "DimensionSharding",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "SingleDeviceSharding",
    "TensorSharding",
    "count_shardings",
    "enumerate_shardings",
    "get_mesh",
    "make_mesh",
    "reshard",
    "set_mesh",
]

"""Meshes, shardings and their algebra.

>>> mesh = Mesh.parse('<["x"=2, "y"=4]>')
>>> print(TensorSharding.parse('sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>', mesh))
#sdy.sharding<@mesh, [{"x"}, {"y":(1)2, ?}]>
"""

from meshwright.core.axes import AxisRef
from meshwright.core.device_sharding import SingleDeviceSharding
from meshwright.core.dimension_sharding import DimensionSharding
from meshwright.core.mesh import AbstractMesh, AxisType, Device, Mesh, get_mesh, make_mesh, set_mesh
from meshwright.core.partition_spec import P, PartitionSpec
from meshwright.core.sharding import NamedSharding, TensorSharding
from meshwright.core.sharding_space import count_shardings, enumerate_shardings
from meshwright.frontend.resharding import reshard

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

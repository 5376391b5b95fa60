"""``jax.sharding`` over ``meshwright.sharding``."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.api.axis_types import auto_axes, explicit_axes, get_abstract_mesh, use_abstract_mesh
from meshwright.jax.api import reshard
from meshwright.jax.core import ManualAxisType
from meshwright.sharding.device import Device
from meshwright.sharding.mesh import AbstractMesh, AxisType, BaseMesh, Mesh, set_mesh
from meshwright.sharding.mesh import get_mesh as _current_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.single_device import SingleDeviceSharding
from meshwright.sharding.spec import PartitionSpec


class _IsSharding(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, NamedSharding | SingleDeviceSharding)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, NamedSharding | SingleDeviceSharding) or other is Sharding


class Sharding(metaclass=_IsSharding):
    """What ``isinstance`` knows all shardings by.

    >>> isinstance(make_single_device_sharding(Device(0)), Sharding)
    True
    """


class AbstractDevice(NamedTuple):
    """A kind of devices."""

    device_kind: str
    num_cores: int | None = None
    platform: str | None = None


def make_single_device_sharding(device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """All of an array on one device."""
    return SingleDeviceSharding(device)


def get_mesh() -> BaseMesh:
    """The current mesh; one of no axes if there is none.

    >>> get_mesh().empty
    True
    """
    mesh: Any = _current_mesh()
    return Mesh([], ()) if mesh is None else mesh


__all__ = [
    "AbstractDevice",
    "AbstractMesh",
    "AxisType",
    "ManualAxisType",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "Sharding",
    "SingleDeviceSharding",
    "auto_axes",
    "explicit_axes",
    "get_abstract_mesh",
    "get_mesh",
    "make_single_device_sharding",
    "reshard",
    "set_mesh",
    "use_abstract_mesh",
]

"""The sharding of an array that is whole on one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from meshwright.core.mesh import Device, Mesh
from meshwright.core.placement import Index
from meshwright.core.sharding import NamedSharding, TensorSharding
from meshwright.core.sharding_check import checked_shape
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import ShardingError


class SingleDeviceSharding:
    """All of an array on one device.

    >>> sharding = SingleDeviceSharding(Device(3))
    >>> sharding, sharding.shard_shape((4, 6))
    (SingleDeviceSharding(device=CpuDevice(id=3)), (4, 6))
    """

    device: Device

    def __init__(self, device: Device) -> None:
        if not isinstance(device, Device):
            raise ShardingError(
                f"SingleDeviceSharding cannot take {device!r} for a device.",
                where=here(),
                why="a device is a Device, or an entry of mesh.devices",
                fix="mw.sharding.SingleDeviceSharding(mw.sharding.Device(0))",
            )
        self.device = device

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of this device and no axes."""
        return Mesh._of((), (), None, (self.device.id,), self.device.kind)

    @cached_property
    def _tensor(self) -> TensorSharding:
        return TensorSharding(self.mesh, [])

    def to_tensor_sharding(self, ndim: int | None = None) -> TensorSharding:
        """The whole representation, the same for every rank."""
        return self._tensor

    def typed(self, type: TensorType) -> TensorType:
        """The type of an array on the device: it has no sharding."""
        return type if type.sharding is None else type.with_(sharding=None)

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape on the device: the whole."""
        return checked_shape(shape)

    local_shape = shard_shape

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Device, Index]:
        """The device and what it holds: everything."""
        return {self.device: (slice(None),) * len(checked_shape(shape))}

    def is_equivalent_to(self, other: SingleDeviceSharding | NamedSharding | TensorSharding, ndim: int) -> bool:
        """Whether the other sharding is on this one device too."""
        if isinstance(other, SingleDeviceSharding):
            return self.device is other.device
        return self._tensor.is_equivalent_to(other, ndim)

    is_fully_replicated = True
    num_devices = 1

    @property
    def device_set(self) -> set[Device]:
        """The one device."""
        return {self.device}

    def __hash__(self) -> int:
        return hash((SingleDeviceSharding, self.device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.device is other.device

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SingleDeviceSharding, (self.device,)

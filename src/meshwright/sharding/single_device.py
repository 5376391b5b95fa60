"""The sharding of an array that is whole on one device, and the device of arrays that are put nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from meshwright.core.current import current_device, set_here
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import MeshError, ShardingError
from meshwright.sharding.check import checked_shape
from meshwright.sharding.mesh import Device, Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.placement import Index


class SingleDeviceSharding:
    """All of an array on one device.

    >>> sharding = SingleDeviceSharding(Device(3))
    >>> sharding, sharding.shard_shape((4, 6))
    (SingleDeviceSharding(device=CpuDevice(id=3)), (4, 6))
    """

    device: Device
    committed = True  # it is there because somebody said so

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
    memory_kind = "device"  # where on it: all arrays are in its main memory
    is_fully_addressable = True

    @property
    def device_set(self) -> set[Device]:
        """The one device."""
        return {self.device}

    addressable_devices = device_set

    def __hash__(self) -> int:
        return hash((SingleDeviceSharding, self.device))

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, SingleDeviceSharding) and self.committed == other.committed
        return same and self.device is other.device  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.device,)


class DefaultDevice(SingleDeviceSharding):
    """Where an array is that was put nowhere: it goes along to wherever another operand was put."""

    committed = False


def as_default(device: Any) -> DefaultDevice | None:
    """The place of arrays that are put nowhere: on a device, or the first one of a kind; None for the very first."""
    if device is None:
        return None
    if isinstance(device, str) and device.strip():
        device = Device(0, device)
    if not isinstance(device, Device):
        raise MeshError(
            f"The default device cannot be {device!r}.",
            where=here(),
            why="it is a device, the name of a kind of them, or None for the first one",
            fix='mw.config.update("jax_default_device", mw.devices("tpu", count=4)[1])',
        )
    return DefaultDevice(device)


def one_device(what: str, places: Sequence[Any]) -> SingleDeviceSharding | None:
    """The device that some of ``what`` was put onto, such as operands: results are there, too; None if nothing was."""
    single = [place for place in places if isinstance(place, SingleDeviceSharding) and place.committed]
    if not single:
        return None
    first = single[0]
    other = next((s.device for s in single if s.device is not first.device), None)
    whole = next((s for s in places if isinstance(s, NamedSharding) and s.device_set != {first.device}), None)
    if other is None and whole is None:
        return first
    raise MeshError(
        f"{what} are on different devices.",
        where=here(),
        why=f"one is on {first.device}, another on {other if whole is None else whole.mesh}",
        fix=f"mw.device_put(x, {'y.sharding' if whole is None else 'mw.NamedSharding(mesh, mw.P())'})",
    )


@contextmanager
def default_device(device: Any) -> Iterator[None]:
    """Inside, arrays that are put nowhere are on this device: new ones, and what is computed from those.

    ``mw.config.update("jax_default_device", device)`` says so for the whole process.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> with mw.default_device(mw.devices("tpu", count=4)[2]):
    ...     x = mnp.ones(3)
    >>> str(x.device), x.committed
    ('TPU 2', False)
    """
    own = vars(current_device)
    before = own.get("place", own)  # which no place is
    set_here(as_default(device))
    try:
        yield
    finally:
        if before is own:
            del current_device.place
        else:
            set_here(before)

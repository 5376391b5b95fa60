"""Devices: a number and a kind each, and the ways of giving several."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.sharding.mesh_check import bad_device, bad_devices, check_kind
from meshwright.sharding.torus import coords, is_torus


class Device:
    """One device: its number and its kind. Equal devices are the same object.

    >>> Device(1, "tpu"), str(Device(1, "tpu"))
    (TpuDevice(id=1, process_index=0, coords=(1,0,0), core_on_chip=0), 'TPU 1')
    """

    __slots__ = ("__weakref__", "id", "kind")

    id: int
    kind: str

    _interned: ClassVar[dict[tuple[int, str], Device]] = {}

    def __new__(cls, id: int, kind: str = "cpu") -> Device:
        if type(id) is not int:
            if not isinstance(id, np.integer):
                raise bad_device(id, here)
            id = int(id)
        found = cls._interned.get((id, kind)) if type(kind) is str else None
        if found is None:
            if id < 0:
                raise bad_device(id, here)
            kind = check_kind(kind, here)
            found = super().__new__(cls)
            object.__setattr__(found, "id", id)
            object.__setattr__(found, "kind", kind)
            found = cls._interned.setdefault((id, kind), found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Device is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.id, self.kind)

    @property
    def platform(self) -> str:
        """The first word of the kind: ``tpu`` of ``tpu v5e``."""
        return self.kind.split()[0]

    @property
    def device_kind(self) -> str:
        """Which device it is, of those that its platform has: ``cpu``, ``TPU v5e``."""
        return self.kind if self.platform == "cpu" else self.kind.replace(self.platform, self.platform.upper(), 1)

    @property
    def process_index(self) -> int:
        """The process that the device belongs to: of TPUs, their host's."""
        return self.id // 4 if is_torus(self.kind) else 0

    @property
    def coords(self) -> tuple[int, int, int] | None:
        """The place of a TPU in the torus of its slice; None for devices that are in none."""
        return coords(self.id) if is_torus(self.kind) else None

    @property
    def local_hardware_id(self) -> int:
        """Its number among the devices of its process."""
        return self.id % 4 if is_torus(self.kind) else self.id

    @property
    def core_on_chip(self) -> int:
        """Which core of its chip the device is: chips are one device each."""
        return 0

    def __repr__(self) -> str:
        name = f"{self.platform.capitalize()}Device(id={self.id}"
        if self.coords is None:
            return f"{name})"
        place = ",".join(map(str, self.coords))
        return f"{name}, process_index={self.process_index}, coords=({place}), core_on_chip={self.core_on_chip})"

    def __str__(self) -> str:
        return f"{self.platform.upper()} {self.id}"


def device_numbers(devices: Any) -> tuple[NDArray[np.int64], str | None]:
    """The numbers of devices given by number or as ``Device`` objects, and the kind of the latter.

    >>> device_numbers([[0, 1], [2, 3]])[0].shape, device_numbers([Device(3, "tpu")])
    ((2, 2), (array([3]), 'tpu'))
    """
    try:
        grid = np.asarray(devices)
    except (TypeError, ValueError, OverflowError):  # lists of different lengths, for example
        raise bad_devices(devices, here) from None
    if not grid.size:
        return np.zeros(grid.shape, np.int64), None
    flat = grid.ravel().tolist()
    if grid.dtype == object and all(isinstance(device, Device) for device in flat):
        kinds = sorted({device.kind for device in flat})
        if len(kinds) > 1:
            raise MeshError(
                f"The devices of a mesh are of {len(kinds)} kinds: {', '.join(kinds)}.",
                where=here(),
                why="a mesh has devices of one kind",
                fix=f"a mesh for each kind, such as mw.Mesh([d for d in devices if d.kind == {kinds[0]!r}], …)",
            )
        return np.array([device.id for device in flat], np.int64).reshape(grid.shape), kinds[0]
    if not np.issubdtype(grid.dtype, np.integer):
        raise bad_devices(devices, here)
    return grid.astype(np.int64), None

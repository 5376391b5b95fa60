"""What an array says about the devices it is on. Shardings are loaded when the first of these is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright.core.trace import Array

if TYPE_CHECKING:
    from meshwright.arrays.shards import Shard, Sharding
    from meshwright.sharding.mesh import Device


class Placed:
    """What ``Array`` has and ``Tracer`` has not: devices."""

    @property
    def sharding(self: Any) -> Sharding:
        """How the array lies on its devices; one that was put nowhere is on the first device.

        >>> import meshwright.numpy as mnp
        >>> mnp.ones(3).sharding
        SingleDeviceSharding(device=CpuDevice(id=0))
        """
        from meshwright.arrays.shards import sharding_of

        return sharding_of(self)

    @property
    def addressable_shards(self: Any) -> list[Shard]:
        """The part of the array on each device of this process, in the order of the mesh."""
        from meshwright.arrays.shards import shards_of

        return shards_of(self)

    @property
    def global_shards(self: Any) -> list[Shard]:
        """As ``addressable_shards``: what other processes hold is not known here."""
        return self.addressable_shards  # type: ignore[no-any-return]

    def addressable_data(self: Any, index: int) -> Array:
        """What the ``index``-th device holds, of those of this process."""
        from meshwright.arrays.shards import shard_data

        return shard_data(self, index)

    def on_device_size_in_bytes(self: Any) -> int:
        """The bytes of the whole array, each element counted once."""
        return self.type.nbytes  # type: ignore[no-any-return]

    def devices(self: Any) -> set[Device]:
        """The devices that hold a part of the array."""
        return self.sharding.device_set  # type: ignore[no-any-return]

    @property
    def device(self: Any) -> Device | Sharding:
        """The device of an array on one; otherwise its sharding, which ``device=`` takes too."""
        sharding: Sharding = self.sharding
        return getattr(sharding, "device", sharding)  # type: ignore[no-any-return]

    @property
    def is_fully_replicated(self: Any) -> bool:
        """Whether every device holds the whole array."""
        return self._sharding is None or self._sharding.is_fully_replicated

    @property
    def is_fully_addressable(self: Any) -> bool:
        """Whether this process has all of the array; of several (`mw.distributed`), each has its shards."""
        from meshwright.arrays.shards import is_addressable

        return is_addressable(self)

    @property
    def committed(self: Any) -> bool:
        """Whether the array was put somewhere, and is not just on the default device."""
        return self._sharding is not None and getattr(self._sharding, "committed", True)

    def _repr_html_(self: Any) -> str:
        from meshwright.report.notebook import array_html

        return array_html(self)


def _install() -> None:
    for name in ("sharding", "addressable_shards", "global_shards", "addressable_data", "devices", "device",
                 "is_fully_replicated", "is_fully_addressable", "committed", "on_device_size_in_bytes",
                 "_repr_html_"):  # fmt: skip
        setattr(Array, name, vars(Placed)[name])


_install()

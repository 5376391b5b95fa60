"""Where the contents of an array are: its sharding and the part of it on each device.

An array keeps its global contents once. What a device holds is a view of them, so replicas cost nothing and putting an
array onto other devices moves no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.engine.device_arrays import blocks_here
from meshwright.errors import VarianceError
from meshwright.sharding.mesh import Device
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.placement import Index, block_numbers
from meshwright.sharding.single_device import DefaultDevice, SingleDeviceSharding
from meshwright.sharding.spec import PartitionSpec

Sharding = NamedSharding | SingleDeviceSharding

DEFAULT = SingleDeviceSharding(Device(0))  # of an array that was put nowhere


class Shard:
    """The part of an array on one device: ``device``, ``index`` into the array, ``replica_id``, ``data``.

    Devices that hold the same part have replica ids 0, 1, … Of a partial sum, ``data`` is the device's summand.

    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("x",))
    >>> x = mnp.arange(5, device=mw.NamedSharding(mesh, mw.P("x")))
    >>> x.addressable_shards[1]
    Shard(device=CpuDevice(id=1), index=(slice(3, 5, None),), replica_id=0, data=[3 4])
    """

    __slots__ = ("_array", "_position", "device", "index", "replica_id")

    def __init__(self, array: Array, position: int, device: Device, index: Index, replica_id: int) -> None:
        self._array = array
        self._position = position
        self.device = device
        self.index = index
        self.replica_id = replica_id

    @property
    def data(self) -> Array:
        """What the device holds, without padding: a view of the array's contents."""
        have = self._array.type
        if is_addressable(self._array):
            whole = summand(self._array, self._position) if have.unreduced else self._array.data
            part = whole[self.index]
        else:
            part = _of_this_process(self._array)[self.device.id]
        return Array(part, TensorType(part.shape, have.dtype, have.weak), SingleDeviceSharding(self.device))

    def __repr__(self) -> str:
        return (
            f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, "
            f"data={np.asarray(self.data)})"
        )


def sharding_of(x: Array) -> Sharding:
    """The sharding of an array: the one it was put onto, or the default device."""
    found: Sharding = DEFAULT if x._sharding is None else x._sharding
    return SingleDeviceSharding(found.device) if isinstance(found, DefaultDevice) else found


def shards_of(x: Array) -> list[Shard]:
    """The part of the array on each device of this process, in the order of the mesh."""
    sharding = sharding_of(x).to_tensor_sharding(x.type.ndim)
    found = [Shard(x, position, *row) for position, row in enumerate(parts(sharding, x.type.shape))]
    if is_addressable(x):
        return found
    own = _of_this_process(x)
    return [shard for shard in found if shard.device.id in own]


def is_addressable(x: Array) -> bool:
    """Whether this process has all of an array."""
    return bool(getattr(x._data, "is_fully_addressable", True))


def _of_this_process(x: Array) -> dict[int, Any]:
    """By the numbers of its devices, what this process has of an array that others have more of."""
    return dict(blocks_here(x._data, x.type.shape))


def shard_data(x: Array, number: int) -> Array:
    """What the ``number``-th device of the mesh holds."""
    return shards_of(x)[number].data


def summand(x: Array, position: int) -> Any:
    """Of a partial sum, what the device at a position of the mesh adds to it, at all places of the array."""
    if x._data is None:
        return x.data  # which says why it has no contents
    rows, sharding = x._rows, sharding_of(x)
    if not isinstance(sharding, NamedSharding):
        raise VarianceError(
            f"There is no telling which device holds which summand of a value {x.type.short()}.",
            where=here(),
            why="it comes from a transformation that ran at once, and was put onto no mesh",
            fix="jit the transformation, whose results are on the mesh: mw.jit(lambda x: mw.vjp(f, x)[0])(x)",
        )
    for axis in x.type.unreduced:
        (digits,) = NamedSharding(sharding.mesh, PartitionSpec(axis)).to_tensor_sharding(1).layout.dims
        rows = rows[int(block_numbers(digits, np.asarray(position)))]
    return rows


@lru_cache(maxsize=64)
def parts(sharding: TensorSharding, shape: Shape) -> tuple[tuple[Device, Index, int], ...]:
    """For each device: what it holds of an array of this shape, and how many devices before it hold the same."""
    held = sharding.devices_indices_map(shape)
    return tuple(zip(held.keys(), held.values(), _replica_ids(sharding), strict=True))


def _replica_ids(sharding: TensorSharding) -> list[int]:
    layout = sharding.layout
    positions = np.arange(layout.size)
    block = np.zeros(layout.size, np.int64)
    for digits in (*layout.dims, layout.unreduced):  # summands are no copies of each other
        numbers = block_numbers(digits, positions)
        block = block * (int(numbers.max(initial=0)) + 1) + numbers
    order = np.argsort(block, kind="stable")
    ordered = block[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    begins = np.maximum.accumulate(np.where(first, positions, 0))
    ids = np.empty_like(positions)
    ids[order] = positions - begins
    return ids.tolist()  # type: ignore[no-any-return]


def distinct_parts(sharding: Sharding, shape: Shape) -> list[Index]:
    """The parts of an array that some device holds, each once; those without elements are left out."""
    table = parts(sharding.to_tensor_sharding(len(shape)).with_(unreduced=()), shape)
    return [index for _, index, replica in table if replica == 0 and all(_extents(index, shape))]


def _extents(index: Index, shape: Sequence[int]) -> list[int]:
    return [len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)]

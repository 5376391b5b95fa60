"""What a sharding means, by going through the devices one by one."""

from __future__ import annotations

import numpy as np

from meshwright.sharding.axes import AxisRef
from meshwright.sharding.named import TensorSharding

Block = tuple[int, ...]


def along(sharding: TensorSharding, axis: AxisRef, coordinates: dict[str, int]) -> int:
    """A device's coordinate along a sub-axis: its axis reshaped to [pre, size, post], the middle one."""
    return int(np.unravel_index(coordinates[axis.name], (axis.pre, axis.size, axis.post))[1])


def blocks(sharding: TensorSharding) -> dict[int, tuple[Block, Block]]:
    """For each device, the block of each dim that it holds, and its coordinates along the unreduced axes."""
    mesh = sharding.mesh
    found = {}
    for position in range(mesh.size):
        place = np.unravel_index(position, mesh.axis_sizes)
        coordinates = {name: int(c) for name, c in zip(mesh.axis_names, place, strict=True)}
        held = []
        for dim in sharding.dims:
            block = 0
            for axis in dim.axes:
                block = block * axis.size + along(sharding, axis, coordinates)
            held.append(block)
        unreduced_axes = tuple(along(sharding, axis, coordinates) for axis in sharding.unreduced)
        device = position if mesh.order is None else mesh.order[position]
        found[device] = tuple(held), unreduced_axes
    return found


def same_placement(one: TensorSharding, other: TensorSharding) -> bool:
    """Whether each device holds the same blocks, and the devices fall into the same summands."""
    first, second = blocks(one), blocks(other)
    if first.keys() != second.keys() or one.rank != other.rank:
        return False
    if any(first[device][0] != second[device][0] for device in first):
        return False
    pairs = {(first[device][1], second[device][1]) for device in first}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def held(sharding: TensorSharding, shape: tuple[int, ...]) -> dict[int, np.ndarray]:
    """For each device, the elements it holds of an array that counts from 0: pad, cut into equal blocks, unpad."""
    array = np.arange(int(np.prod(shape))).reshape(shape)
    padding = [(0, -size % dim.shards) for size, dim in zip(shape, sharding.dims, strict=True)]
    padded = np.pad(array, padding, constant_values=-1)
    result = {}
    for device, (block, _) in blocks(sharding).items():
        part = padded
        for dim, number in enumerate(block):
            part = np.split(part, sharding.dims[dim].shards, axis=dim)[number]
        kept = part >= 0
        sizes = [int(kept.any(axis=tuple(i for i in range(kept.ndim) if i != dim)).sum()) for dim in range(kept.ndim)]
        result[device] = part[tuple(slice(size) for size in sizes)] if part.ndim else part
    return result

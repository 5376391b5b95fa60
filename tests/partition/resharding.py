"""What resharding must do, worked out device by device: shards, the bytes each device lacks, and sums of summands."""

from __future__ import annotations

import random
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.partition.reshard.run import run_plan
from meshwright.sharding.axes import AxisRef, in_mesh_order, merged
from meshwright.sharding.mesh import Mesh, make_mesh
from meshwright.sharding.named import TensorSharding

Array = NDArray[Any]
PADDING = 999


def boxes(sharding: TensorSharding, shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
    """What each device holds, by its number."""
    found = sharding.devices_indices_map(shape)
    return {device.id: tuple(slice(*s.indices(n)) for s, n in zip(found[device], shape, strict=True))
            for device in sorted(found, key=lambda device: device.id)}  # fmt: skip


def summand_of(sharding: TensorSharding) -> dict[int, int]:
    """Which summand each device holds, by its number: its coordinates along the unreduced axes."""
    mesh = sharding.mesh
    assert isinstance(mesh, Mesh)
    found = {}
    for place in product(*map(range, mesh.axis_sizes)):
        number = 0
        for axis in sharding.unreduced:
            coordinate = place[mesh.axis_names.index(axis.name)] // axis.post % axis.size
            number = number * axis.size + coordinate
        found[int(mesh.device_ids[place])] = number
    return found


def shards(x: Array, sharding: TensorSharding, rng: np.random.Generator, reduction: str = "sum") -> list[Array]:
    """The shards of an array, with padding that nobody may look at, as summands where a sum is unreduced."""
    count = prod(axis.size for axis in sharding.unreduced)
    if reduction == "sum":
        parts = [rng.integers(-50, 50, x.shape) for _ in range(count - 1)]
        parts.append(x - sum(parts, np.zeros_like(x)))
    else:
        sign = -1 if reduction == "max" else 1
        parts = [x + sign * rng.integers(0, 50, x.shape) for _ in range(count)]
        winner = rng.integers(0, count, x.shape)
        parts = [np.where(winner == index, x, part) for index, part in enumerate(parts)]
    local, which = sharding.local_shape(x.shape), summand_of(sharding)
    found = []
    for device, box in boxes(sharding, x.shape).items():
        part = parts[which[device]][box]
        found.append(
            np.pad(part, [(0, n - has) for n, has in zip(local, part.shape, strict=True)], constant_values=PADDING)
        )
    return found


def whole(found: list[Array], sharding: TensorSharding, shape: tuple[int, ...], reduction: str = "sum") -> Array:
    """The array whose shards these are; replicas must be equal, and sums are taken."""
    count = prod(axis.size for axis in sharding.unreduced)
    parts = [np.full(shape, 10**9) for _ in range(count)]
    which, local = summand_of(sharding), sharding.local_shape(shape)
    for (device, box), shard in zip(boxes(sharding, shape).items(), found, strict=True):
        assert shard.shape == local
        part = parts[which[device]][box]
        real = shard[tuple(slice(0, n) for n in part.shape)]
        assert ((part == 10**9) | (part == real)).all(), "replicas differ"
        parts[which[device]][box] = real
    reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction]
    result: Array = reduce.reduce(parts)
    return result


def check(plan: ReshardPlan, rng: np.random.Generator) -> None:
    """Carry the plan out: the right array arrives, and each device receives what the plan says."""
    x = rng.integers(-100, 100, plan.shape)
    received: list[int] = []
    before = shards(x, plan.source, rng, plan.source.reduction)
    after = run_plan(plan, before, received)
    assert (whole(after, plan.target, plan.shape, plan.target.reduction) == x).all(), plan
    item = plan.dtype.itemsize
    if "all_reduce" not in {step.kind for step in plan.steps}:  # of which a device may receive half an element
        assert sum(received) * item == plan.total_bytes, plan
        assert max(received) * item == plan.bytes_received_per_device, plan


def lacking(plan: ReshardPlan) -> list[int]:
    """The bytes of its target shard that each device does not hold."""
    shape, found = plan.shape, []
    source, target = boxes(plan.source, shape), boxes(plan.target, shape)
    for device, box in target.items():
        wanted = prod(s.stop - s.start for s in box)
        held = prod(
            max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in zip(source[device], box, strict=True)
        )
        found.append((wanted - held) * plan.dtype.itemsize)
    return found


# Random shardings


def factors(rng: random.Random, number: int) -> list[int]:
    """A number as a product of random factors."""
    found = []
    while number > 1:
        found.append(rng.choice([k for k in range(2, number + 1) if number % k == 0]))
        number //= found[-1]
    return found


def random_mesh(rng: random.Random, count: int) -> Mesh:
    """A mesh of any shape over ``count`` devices, in order, with axes exchanged, or in any order."""
    sizes = tuple(factors(rng, count))
    names, kind = tuple("abcdef"[: len(sizes)]), rng.random()
    if kind < 0.7:
        return make_mesh(sizes, names)
    if kind < 0.85:
        axes = rng.sample(range(len(sizes)), len(sizes))
        return Mesh(np.arange(count).reshape(sizes).transpose(axes).reshape(sizes), names)
    return Mesh(np.array(rng.sample(range(count), count)).reshape(sizes), names)


def random_sharding(rng: random.Random, mesh: Mesh, rank: int, sums: bool) -> TensorSharding:
    """Axes and parts of axes on any dims in any order, some of them unreduced."""
    atoms: list[AxisRef] = []
    for axis in mesh.axes:
        if axis.size > 1:
            atoms += axis.split(*factors(rng, axis.size)) if rng.random() < 0.4 else [axis]
    rng.shuffle(atoms)
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    unreduced: list[AxisRef] = []
    for atom in atoms:
        where = rng.randrange(rank + (2 if sums else 1))
        if where < rank:
            dims[where].append(atom)
        elif where > rank:
            unreduced.append(atom)
    unreduced_axes = merged(in_mesh_order(unreduced, mesh.axis_names))
    return TensorSharding(mesh, [merged(dim) for dim in dims], unreduced=unreduced_axes)

"""A reshard plan carried out on NumPy arrays, one for each device: what its steps mean, word for word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import ShapeError
from meshwright.ops.basic import additive_identity
from meshwright.partition.reshard.blocks import BlockExchange
from meshwright.partition.reshard.pairs import block_pairs, digit, permute_pairs, receivers
from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.partition.reshard.sketch import View
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    DigitOfDim,
    Expand,
    LocalSlice,
    Mask,
    Permute,
    Recut,
    ReduceScatter,
    ReshardStep,
    Rounds,
    Select,
)
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.mesh import BaseMesh

Shard = NDArray[Any]
REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def run_plan(plan: ReshardPlan, shards: Sequence[Shard], received: list[int] | None = None) -> list[Shard]:
    """The shards of the target, given those of the source, padding included; both in the order of device numbers.

    A list given as ``received`` gets the number of elements that each device took in from others.

    >>> import numpy as np
    >>> from meshwright.sharding.mesh import make_mesh
    >>> from meshwright.sharding.spec import P
    >>> from meshwright.sharding.named import NamedSharding
    >>> from meshwright.partition.reshard.plan import plan_reshard
    >>> mesh = make_mesh((2,), ("x",))
    >>> plan = plan_reshard((2, 2), "f32", NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x")))
    >>> run_plan(plan, [np.array([[0, 1]]), np.array([[2, 3]])])
    [array([[0],
           [2]]), array([[1],
           [3]])]
    """
    local = plan.source.local_shape(plan.shape)
    if len(shards) != plan.num_devices or any(np.shape(shard) != local for shard in shards):
        raise ShapeError(
            f"These are not the shards of {plan.source}.",
            where=here(),
            why=f"there are {plan.num_devices} devices, and each holds an array of shape {local}, padding included",
            fix="one array for each device, in the order of their numbers",
        )
    order = range(plan.num_devices) if plan.order is None else plan.order
    arrays = [np.asarray(shards[rank]) for rank in order]
    arrays = [_fit(array, _sizes(plan.views[0])) for array in arrays]
    machine = _PlanDevices(plan)
    for index, step in enumerate(plan.steps):
        arrays = machine.run(step, arrays, plan.views[index], plan.views[index + 1])
    done = [_fit(array, plan.target.local_shape(plan.shape)) for array in arrays]
    result: list[Shard] = [done[0]] * len(done)
    for array, rank in zip(done, order, strict=True):
        result[rank] = array
    if received is not None:
        by_rank = dict(zip(order, machine.received, strict=True))
        received[:] = [by_rank[rank] for rank in range(len(done))]
    return result


def _sizes(view: View) -> tuple[int, ...]:
    return tuple(prod(digit.size for digit in dim) for dim in view)


def _fit(array: Shard, shape: tuple[int, ...]) -> Shard:
    """The array cropped, or padded with zeros, to a shape."""
    array = array[tuple(slice(0, size) for size in shape)]
    return np.pad(array, [(0, size - has) for size, has in zip(shape, array.shape, strict=True)])


def _axis(view: View, position: DigitOfDim) -> int:
    """The index of a digit among all digits of a view."""
    before = sum(len(dim) for dim in view[: position.dim])
    return before + [digit.digit for digit in view[position.dim]].index(position.digit)


def _opened(array: Shard, view: View) -> Shard:
    return array.reshape([digit.size for dim in view for digit in dim])


class _PlanDevices:
    """The devices of a plan's mesh and their coordinates."""

    def __init__(self, plan: ReshardPlan) -> None:
        self.plan = plan
        self.size = plan.num_devices
        self.received = [0] * self.size

    @property
    def mesh(self) -> BaseMesh:
        return self.plan.mesh

    def coordinate(self, device: int, axis: AxisRef) -> int:
        stride, size = digit(self.mesh, axis)
        return device // stride % size

    def moved(self, device: int, axis: AxisRef, value: int) -> int:
        """The device that differs from this one along one axis only."""
        return device + (value - self.coordinate(device, axis)) * digit(self.mesh, axis).stride

    def sent(self, sender: int, receiver: int, elements: int) -> None:
        """Count what another device took in."""
        self.received[receiver] += elements * (sender != receiver)

    def run(self, step: ReshardStep, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        if isinstance(step, BlockExchange):
            return self.blocks(step, arrays)
        if isinstance(step, Recut):
            return [_fit(array, _sizes(after)) for array in arrays]
        opened = [_opened(array, before) for array in arrays]
        rule: Callable[..., list[Shard]] = getattr(self, type(step).__name__.lower())
        return [array.reshape(_sizes(after)) for array in rule(step, opened, before, after)]

    def localslice(
        self, step: LocalSlice | ReduceScatter, arrays: list[Shard], before: View, after: View
    ) -> list[Shard]:
        found = []
        for device, array in enumerate(arrays):
            index: list[Any] = [slice(None)] * array.ndim
            for part in step.parts:
                index[_axis(before, part.position)] = self.coordinate(device, part.axis)
            found.append(array[tuple(index)])
        return found

    def expand(self, step: Expand, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found, empty = [], _identity(arrays[0].dtype, self.plan.target.reduction)
        for device, array in enumerate(arrays):
            whole = np.full([digit.size for dim in after for digit in dim], empty, array.dtype)
            index: list[Any] = [slice(None)] * whole.ndim
            for part in step.parts:
                index[_axis(after, part.position)] = self.coordinate(device, part.axis)
            whole[tuple(index)] = array
            found.append(whole)
        return found

    def select(self, step: Select, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        empty = _identity(arrays[0].dtype, self.plan.target.reduction)
        return [
            array
            if all(
                self.coordinate(device, part.axis) == self.coordinate(device, axis)
                for part, axis in zip(step.parts, step.onto, strict=True)
            )
            else np.full_like(array, empty)
            for device, array in enumerate(arrays)
        ]

    def allgather(self, step: AllGather, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = []
        for device, array in enumerate(arrays):
            whole = np.empty([digit.size for dim in after for digit in dim], array.dtype)
            for values in product(*(range(part.axis.size) for part in step.parts)):
                sender = device
                index: list[Any] = [slice(None)] * whole.ndim
                for part, value in zip(step.parts, values, strict=True):
                    sender = self.moved(sender, part.axis, value)
                    index[_axis(after, part.position)] = value
                whole[tuple(index)] = arrays[sender]
                self.sent(sender, device, arrays[sender].size)
            found.append(whole)
        return found

    def allreduce(self, step: AllReduce, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = self.reduced(step.axes, step.reduction, arrays)
        for device in range(self.size):  # as a reduce-scatter and an all-gather
            self.received[device] += 2 * arrays[device].size * (step.group - 1) // step.group
        return found

    def reduced(self, axes: Sequence[AxisRef], reduction: str, arrays: list[Shard]) -> list[Shard]:
        for axis in axes:
            arrays = [
                reduce(REDUCE[reduction], [arrays[self.moved(device, axis, value)] for value in range(axis.size)])
                for device in range(self.size)
            ]
        return arrays

    def reducescatter(self, step: ReduceScatter, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = self.localslice(step, self.reduced(step.axes, step.reduction, arrays), before, after)
        for device in range(self.size):
            self.received[device] += found[device].size * (step.group - 1)
        return found

    def mask(self, step: Mask, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        if step.reduction in ("max", "min"):
            return arrays  # of equal values each is the largest and the smallest
        empty = _identity(arrays[0].dtype, step.reduction)
        return [
            array if not any(self.coordinate(device, axis) for axis in step.axes) else np.full_like(array, empty)
            for device, array in enumerate(arrays)
        ]

    def permute(self, step: Permute, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = list(arrays)
        for sender, receiver in permute_pairs(self.mesh, step):
            found[receiver] = arrays[sender]
            self.sent(sender, receiver, arrays[sender].size)
        return found

    def alltoall(self, step: AllToAll, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = []
        for device, array in enumerate(arrays):
            whole = np.empty([digit.size for dim in after for digit in dim], array.dtype)
            for values in product(*(range(swap.axes[0].size) for swap in step.swaps)):
                sender = device
                take: list[Any] = [slice(None)] * array.ndim
                put: list[Any] = [slice(None)] * whole.ndim
                for swap, value in zip(step.swaps, values, strict=True):
                    sender = self.moved(sender, swap.axes[0], value)
                    take[_axis(before, swap.split)] = self.coordinate(device, swap.axes[0])
                    put[_axis(after, swap.join)] = value
                whole[tuple(put)] = part = arrays[sender][tuple(take)]
                self.sent(sender, device, part.size)
            found.append(whole)
        return found

    def rounds(self, step: Rounds, arrays: list[Shard], before: View, after: View) -> list[Shard]:
        found = [np.empty([digit.size for dim in after for digit in dim], array.dtype) for array in arrays]
        for round in step.rounds():
            for sender, receiver in enumerate(receivers(self.mesh, step, round).tolist()):
                take: list[Any] = [slice(None)] * arrays[sender].ndim
                put: list[Any] = [slice(None)] * found[receiver].ndim
                for path, shift in zip(step.paths, round.shifts, strict=True):
                    size = path.axes[0].size
                    take[_axis(before, path.split)] = (self.coordinate(sender, path.axes[-1]) + shift) % size
                    put[_axis(after, path.join)] = (self.coordinate(receiver, path.axes[0]) - shift) % size
                found[receiver][tuple(put)] = part = arrays[sender][tuple(take)]
                self.sent(sender, receiver, part.size)
        return found

    def blocks(self, step: BlockExchange, arrays: list[Shard]) -> list[Shard]:
        units = self.plan.units
        shape = [size * unit for size, unit in zip(step.shape, units, strict=True)]
        found = [np.zeros(shape, array.dtype) for array in arrays]
        for round in (*step.rounds, *step.copies):
            pairs = block_pairs(self.plan.mesh, step, round)
            for end in (1, 2):
                assert len({pair[end] for pair in pairs}) == len(pairs), "a device sends and receives once in a round"
            for index, sender, receiver in pairs:
                send = round.sends[index]
                part = arrays[sender][_box(send.take, round.shape, units)]
                found[receiver][_box(send.put, round.shape, units)] = part
                self.sent(sender, receiver, part.size)
        return found


def _box(offset: Sequence[int], shape: Sequence[int], units: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o * u, (o + s) * u) for o, s, u in zip(offset, shape, units, strict=True))


def _identity(dtype: Any, reduction: str) -> Any:
    """What changes nothing when it is reduced."""
    if reduction in ("max", "min"):
        if np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            return info.min if reduction == "max" else info.max
        return -np.inf if reduction == "max" else np.inf
    return 1 if reduction == "prod" else additive_identity(dtype)

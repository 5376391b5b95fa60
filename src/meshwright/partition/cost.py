"""What decides between layouts: seconds, on the machine that a program is partitioned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

from meshwright.core.dtypes import DType
from meshwright.core.types import Shape, TensorType
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, dtype_name, get
from meshwright.hardware.collectives import collective_seconds
from meshwright.hardware.machines import machine_for
from meshwright.hardware.roofline import Roofline, work
from meshwright.hardware.topology import Topology
from meshwright.partition.combine import CollectiveRecord
from meshwright.partition.layouts import finished, layout, local_type, summed
from meshwright.partition.reshard.cost import refined_for
from meshwright.partition.reshard.plan import ReshardPlan, every_plan
from meshwright.sharding.check import resolve
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import read_axis

DEFAULT_CHIP = "tpu v5e"
EQUAL_DIGITS = 14  # of seconds; of plans that take as long, the one with fewer collectives is better
START_SECONDS = 7e-10  # of a collective, without a machine: of two ways that move as much, the one with fewer is better


@dataclass(frozen=True, eq=False)
class MachineCost:
    """Seconds of work and of collectives on a machine.

    Without a ``topology``, chips of `DEFAULT_CHIP` stand in, each joined to all others: a device receives at the rate
    of its links over any axes, and a collective starts in no time to speak of. So a small program is laid out as a
    large one is, and axes may be renamed or reordered.
    """

    chip: Chip
    topology: Topology | None = None
    mesh: BaseMesh | None = None  # that lies on it

    @cached_property
    def flops_per_s(self) -> float:
        """The rate of products of bf16."""
        return self.chip.flops_per_s("bf16")

    @cached_property
    def bytes_per_s(self) -> float:
        """The bytes per second that a device receives along an axis."""
        return self.chip.axis_bytes_per_s()

    def work(self, flops: float, nbytes: float, dtype: object) -> float:
        """The seconds of one device's share of an equation; without a machine, products are what matters."""
        if self.topology is None:
            return flops / self.flops_per_s
        return self.roofline(flops, nbytes, self._rate(dtype)).seconds

    def roofline(self, flops: float, nbytes: float, dtype: object) -> Roofline:
        """Work of one device, and what bounds it; a dtype that the chip does not multiply is an error."""
        return work(flops, nbytes, self.chip, dtype)

    def _rate(self, dtype: object) -> str:
        name = dtype_name(dtype)
        try:
            self.chip.flops_per_s(name)
        except HardwareError:
            return "f32"
        return name

    def receive(self, nbytes: float, collectives: int) -> float:
        """The seconds in which a device receives bytes over its links, in so many collectives."""
        start = START_SECONDS if self.topology is None else self.chip.known("hop_seconds", 0.0)
        return nbytes / self.bytes_per_s + start * collectives

    def plan(self, plan: ReshardPlan) -> float:
        """The seconds of a reshard plan."""
        if self.topology is None or plan.mesh.shape != self.topology.mesh:
            return self.receive(plan.total_bytes / plan.num_devices, plan.num_collectives)
        return plan.seconds_with_copies(self.topology)

    def collective(self, record: CollectiveRecord, mesh: BaseMesh) -> float:
        """The seconds of all runs of a collective."""
        if self.topology is None:
            return record.times * self.receive(record.total_bytes / mesh.size, 1)
        return record.times * self.along(record.kind, record.volume, record.axes, record.shift)

    def along(self, kind: str, volume: float, axes: Sequence[str], shift: int | None = None) -> float:
        """The seconds of a collective of a local program along axes of the mesh, or parts of them, on the machine;
        ``shift`` is how far along the last one a permute sends, None where devices differ in that."""
        assert self.topology is not None and self.mesh is not None, "there is no machine"
        whole = resolve(self.mesh, map(read_axis, axes))
        names, topology = refined_for(whole, self.topology)
        options: dict[str, Any] = {"shift": shift} if kind == "permute" else {}
        return collective_seconds(kind, volume, topology, names, **options)


NO_MACHINE = MachineCost(get(DEFAULT_CHIP))


class Planning(NamedTuple):
    """What layouts are to be chosen by: the cost, whether parts of axes are tried that nobody wrote, and whether types
    say how every value is split, so that an equation runs on its operands as they are wherever it can."""

    cost: MachineCost = NO_MACHINE
    thorough: bool = False
    typed: bool = False

    @property
    def predictable(self) -> bool:
        """Whether values are laid out as their operands are, although something else may be faster."""
        return self.cost.topology is None and not self.thorough


PLAINLY = Planning()


@lru_cache(maxsize=64)
def cost_on(hardware: Any, mesh: BaseMesh) -> MachineCost:
    """The costs on a machine that a mesh lies on; None is none."""
    if hardware is None:
        return NO_MACHINE
    topology = machine_for(hardware, mesh.shape, "program")
    return MachineCost(topology.chip, topology, mesh)


@lru_cache(maxsize=65536)
def reshard_plan(
    shape: Shape, dtype: DType, source: TensorSharding, target: TensorSharding, cost: MachineCost = NO_MACHINE
) -> ReshardPlan:
    """The cheapest reshard plan from one sharding to another."""
    plans = every_plan(shape, dtype, summed(source), summed(target), cost.topology is not None)
    if cost.topology is not None:
        return min(plans, key=lambda plan: (round(cost.plan(plan), EQUAL_DIGITS), plan.num_collectives))
    if plans[0].num_collectives <= 1:
        return plans[0]  # the fewest bytes, in one collective
    return min(plans, key=lambda plan: (plan.exceeds_memory, cost.plan(plan)))


def reshard_seconds(t: TensorType, source: TensorSharding, target: TensorSharding, cost: MachineCost) -> float:
    """The seconds to reshard a value from one sharding to another."""
    return 0.0 if source == target else cost.plan(reshard_plan(t.shape, t.dtype, source, target, cost))


def reshard_collectives(t: TensorType, source: TensorSharding, target: TensorSharding, cost: MachineCost) -> int:
    """How many collectives it takes to bring a value from one layout into another."""
    return 0 if source == target else reshard_plan(t.shape, t.dtype, source, target, cost).num_collectives


def least_seconds(t: TensorType, source: TensorSharding, target: TensorSharding, cost: MachineCost) -> float:
    """What `reshard_seconds` is at least: a device must receive what its block is larger, and of a sum all of it."""
    if source == target or cost.topology is not None or target.unreduced:
        return 0.0
    lacks = t.nbytes / prod(target.shards)
    if prod(axis.size for axis in source.unreduced) == 1:
        lacks -= local_type(t, source).nbytes
    return max(lacks, 0.0) / cost.bytes_per_s


@lru_cache(maxsize=16384)
def taken(t: TensorType, natural: TensorSharding, how: Planning) -> TensorSharding:
    """The layout in which a sum that nobody placed is taken: whole, or for a machine that is named where it is there
    soonest, in parts if a dim divides."""
    whole, cost = finished(natural), how.cost
    if how.predictable or not natural.unreduced:
        return whole
    dims = tuple(dim.axes for dim in natural.dims)
    count = prod(axis.size for axis in natural.unreduced)
    parts = [
        layout(natural.mesh, (*dims[:n], (*dims[n], *natural.unreduced), *dims[n + 1 :]))
        for n, (size, shards) in enumerate(zip(t.shape, natural.shards, strict=True))
        if size % (shards * count) == 0
    ]
    return min((whole, *parts), key=lambda one: reshard_seconds(t, natural, one, cost))


def local_bytes(types: Sequence[TensorType], layouts: Sequence[TensorSharding]) -> float:
    """The bytes of one device's blocks."""
    return sum(t.nbytes / prod(sharding.shards) for t, sharding in zip(types, layouts, strict=True))

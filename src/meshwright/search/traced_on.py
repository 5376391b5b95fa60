"""A traced step on the devices of a machine that share its tensors: how it is split, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshwright.core.facts import Structure
from meshwright.core.program import Program
from meshwright.errors import HardwareError
from meshwright.hardware.topology import Topology
from meshwright.partition.cost import MachineCost
from meshwright.search.batch_dims import BatchDims
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutGroup, LayoutStep, alive_at_peak, read_graph
from meshwright.search.layout.model import LayoutModel, build
from meshwright.search.layout.roles import assign_roles
from meshwright.search.layout.solve import IMPOSSIBLE, Pairs, best_choice
from meshwright.search.layout.ways import GroupSplit
from meshwright.search.step_units import StepUnits
from meshwright.search.written_out import DATA, MODEL, ChosenPlaces, Writer, place_in
from meshwright.sharding.mesh import Mesh
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.machine import COMPUTE, Machine
from meshwright.simulate.memory import memory
from meshwright.simulate.schedule import Scheduler, order_of
from meshwright.simulate.tasks import TaskBlock, TaskReader

if TYPE_CHECKING:
    from meshwright.search.traced import Traced

MEMORY = 0.05  # the share of its seconds that a choice may cost more if it halves memory


class StepOnMachine:
    """What a device does and holds: its tasks, the units of the step, and the share of collectives between parts that
    is waited for."""

    def __init__(self, block: TaskBlock, units: StepUnits, model: Traced, machine: Machine) -> None:
        self.block, self.units, self.machine = block, units, machine
        self.donated = model.donated
        self.batch_bytes = float(sum(block.program.inputs[n].type.nbytes for n in model.batch))
        self.compute_seconds, talks = _work(block)
        self.waited_seconds = max(0.0, Scheduler("loops").schedule(block).seconds - self.compute_seconds)
        self.exposed = self.waited_seconds / talks if talks else 0.0
        self.short = units.short()
        self.loops = any(times > 1 for times in self.short.times)
        self._summed: dict[int, StepSummed] = {}

    def summed(self, costs: OnTopology, data: int, tensor: int) -> StepSummed:
        """What it takes with the sums over so many replicas, each as soon as it can be."""
        if data not in self._summed:
            _price_sums(self.block, lambda nbytes: costs.group_seconds("allreduce", nbytes, data, tensor))
            schedule = Scheduler("loops").schedule(self.block)
            _price_sums(self.block, lambda nbytes: 0.0)
            order, kernels, flash = order_of(self.block, schedule.starts), self.block.kernels, self.block.flash
            use = memory(self.block.program, donated=self.donated, kernels=kernels, order=order, flash=flash)
            held = sum(t.nbytes for t in self.block.program.in_types)
            kept = float(self.short.nbytes["kept"].sum())
            once = float(max(self.units.transient.max(), self.units.updated.max()))
            self._summed[data] = StepSummed(schedule.seconds, use.peak_bytes - held - kept - once)
        return self._summed[data]


class StepSummed(NamedTuple):
    """The seconds of the program that was read, and the bytes that memory has at its peak beside arguments, what units
    keep, and what a task needs."""

    seconds: float
    beside: float


def on_machine(model: Traced, costs: OnTopology, rows: int, tensor: int, sums: bool) -> StepOnMachine:
    """The step with so many samples, split over so many devices."""
    program, marked = model.written(rows, sums)
    key = ("read", costs.key, rows, sums)
    if key not in model.known:
        model.known[key] = _Readable(program, model.batch, costs)
    read: _Readable = model.known[key]
    block, machine = read.block, read.machine
    if tensor > 1:
        topology = _placed(costs.topology, tensor)
        writer = Writer(block, read.graph, read.places(topology, tensor), marked)
        marked = frozenset(writer.marked)
        machine = Machine(topology, dict(topology.mesh or {}), costs.mode)
        block = TaskReader(machine).block(writer.program)
    _price_sums(block, lambda nbytes: 0.0)
    return StepOnMachine(block, model.units(block, marked).units, model, machine)


class _Readable:
    """The program of a device as a graph of decisions."""

    def __init__(self, program: Program, batch: tuple[int, ...], costs: OnTopology) -> None:
        topology = _placed(costs.topology, 1)
        self.machine = Machine(topology, dict(topology.mesh or {}), costs.mode)
        self.block = TaskReader(self.machine).block(program)
        _price_sums(self.block, lambda nbytes: 0.0)
        self.batch_numbers = batch
        self.lengths = {eqn.params["length"] for eqn in program.eqns if eqn.op.structure is Structure.ROWS}

    @cached_property
    def graph(self) -> LayoutGraph:
        return read_graph(self.block)

    @cached_property
    def roles(self) -> list[LayoutGroup]:
        return assign_roles(self.graph)

    @cached_property
    def alive(self) -> list[LaidValue]:
        return alive_at_peak(self.graph)

    @cached_property
    def dims(self) -> BatchDims:
        return BatchDims(self.graph, self.batch_numbers)

    def places(self, topology: Topology, tensor: int) -> ChosenPlaces:
        """The cheapest way to split it along an axis."""
        mesh = Mesh(np.arange(tensor), (MODEL,))
        sizes = dict(topology.mesh or {})
        whole = Mesh(np.arange(topology.size).reshape(tuple(sizes.values())), tuple(sizes))
        cost = MachineCost(topology.chip, topology, whole)
        model = build(self.alive, self.roles, mesh, cost, keep=lambda first, way: self.keep(first, way, tensor))
        return ChosenPlaces(model, _cheapest(model), self.graph)

    def keep(self, first: LayoutStep, way: GroupSplit, tensor: int) -> bool:
        """Whether a way is for tensors: not along the batch, and with parameters in parts."""
        for value, layout in (*zip(first.inputs, way.operands), *zip(first.outputs, way.results)):
            place = place_in(layout)
            if place >= 0 and (self.dims.place(value) == place or value.type.shape[place] % tensor):
                return False
        if first.kind != "input" or first.outputs[0] in self.dims.batch:
            return True
        shape = first.outputs[0].type.shape
        stacked = len(shape) > 1 and shape[0] in self.lengths  # loops take it row by row
        parts = [d for d, size in enumerate(shape) if size % tensor == 0 and size > 1 and d >= stacked]
        place = place_in(way.results[0])
        return place in parts if len(shape) > 1 + stacked and parts else place < 0 or place >= stacked


def _cheapest(model: LayoutModel) -> list[int]:
    pairs: Pairs = {}
    for e in model.edges:
        table = np.minimum(e.seconds, IMPOSSIBLE)
        key = min(e.maker, e.reader), max(e.maker, e.reader)
        table = table if key[0] == e.maker else table.T
        pairs[key] = pairs[key] + table if key in pairs else table
    least = sum(float(s.min()) for s in model.seconds)
    most = sum(float(b.max()) for b in model.nbytes)
    price = MEMORY * least / most if most else 0.0
    found = best_choice([s + price * b for s, b in zip(model.seconds, model.nbytes, strict=True)], pairs)
    return [int(way) for way in found.ways]


def _placed(topology: Topology, tensor: int) -> Topology:
    """The machine with neighbours along an axis for tensors, and the others along one for the batch."""
    if topology.size % tensor:
        raise HardwareError(
            f"{topology.size} chips do not divide into groups of {tensor}.",
            why="devices that share tensors are neighbours, and every chip is in such a group",
            fix=f"tensor={next(n for n in range(min(tensor, topology.size), 0, -1) if topology.size % n == 0)}",
        )
    mesh = {DATA: topology.size // tensor, MODEL: tensor}
    return Topology(topology.chip, topology.shape, mesh=mesh, wrap=topology.wrap, slices=topology.slices)


def _price_sums(block: TaskBlock, seconds: Callable[[float], float]) -> None:
    """Give sums over the batch their seconds, which depend on how many have parts of it."""
    for task in block.tasks:
        if task.cost.axes == (DATA,):
            task.cost = task.cost._replace(seconds=seconds(float(sum(v.type.nbytes for v in task.reads))))
        if task.body is not None:
            _price_sums(task.body, seconds)


def _work(block: TaskBlock) -> tuple[float, float]:
    """Seconds of kernels, and of collectives, of all iterations."""
    compute = talks = 0.0
    for task in block.tasks:
        if task.body is not None:
            inner = _work(task.body)
            compute, talks = compute + task.times * inner[0], talks + task.times * inner[1]
        elif COMPUTE in task.cost.units or not task.cost.axes:
            compute += task.cost.seconds
        else:
            talks += task.cost.seconds
    return compute, talks

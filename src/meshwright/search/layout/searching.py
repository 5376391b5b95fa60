"""A step on a machine, read once, and what is known of its layouts: the costs of its ways on each mesh, the choices
that cost least, and what was simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import inf, prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshwright.core.program import Program, Var
from meshwright.core.types import TensorType
from meshwright.hardware.machines import machine_for
from meshwright.hardware.topology import Topology
from meshwright.partition.cost import MachineCost
from meshwright.partition.layouts import is_even
from meshwright.search.layout.bound import StepBound, least_of
from meshwright.search.layout.expected import Expected
from meshwright.search.layout.found import FoundLayout
from meshwright.search.layout.graph import LaidValue, LayoutStep, alive_at_peak, read_graph
from meshwright.search.layout.model import LayoutModel, build
from meshwright.search.layout.roles import assign_roles
from meshwright.search.layout.shortened import Specs, shortened
from meshwright.search.layout.solve import IMPOSSIBLE, Chosen, Pairs, best_choice
from meshwright.search.layout.step import Step
from meshwright.search.layout.ways import GroupSplit, layouts_of
from meshwright.sharding.mesh import BaseMesh, Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.machine import Machine
from meshwright.simulate.tasks import TaskReader

T = TypeVar("T")
Allowed = Callable[[int, TensorSharding], bool]

HIDDEN = (0.1, 0.4, 1.0)  # the share of its seconds that a transfer counts for which work can hide
OVERLAP = 0.9  # the share of the work beside which such transfers run
SIMULATED = 9_000  # equations of layouts of least cost that are simulated


class Candidate(NamedTuple):
    """A choice of ways on a mesh, and its estimated seconds."""

    model: LayoutModel
    ways: np.ndarray
    seconds: float

    def layout(self, value: LaidValue) -> TensorSharding:
        """The layout of a group's first value."""
        assert value.step is not None and value.step.group is not None
        role = value.step.group.role
        found: TensorSharding = self.model.groups[role].ways[self.ways[role]].results[0]
        return found


class LayoutSearch:
    """A step on a machine, read once, and what is found of it on each mesh, with arguments in equal parts alone if they
    are to be ``even``; ``evenly`` are the seconds of its kernels as one device has them, each split as well as it can
    be."""

    def __init__(self, step: Step, topology: Topology, memory: float, mode: str, even: bool = False) -> None:
        self.step, self.topology, self.memory, self.mode, self.even = step, topology, memory, mode, even
        one = Machine(machine_for(topology.chip, {}, "program"), {}, mode)
        self.short = short = shortened(step)
        if short is None:
            self.graph = read_graph(TaskReader(one).block(step.program))
        else:
            self.graph = read_graph(TaskReader(one).block(short.few.program), short.few.repeated, short.few.removed + 1)
        self.equations = short.equations if short is not None else equations(step.program)
        self.roles = assign_roles(self.graph)
        self.alive = alive_at_peak(self.graph)
        self.evenly = inf
        self.made: dict[tuple[Any, ...], FoundLayout] = {}
        self.models: dict[tuple[tuple[str, int], ...], LayoutModel] = {}

    def machine(self, sizes: Mapping[str, int]) -> Topology:
        found = self.topology
        return Topology(found.chip, found.shape, mesh=dict(sizes), wrap=found.wrap, slices=found.slices)

    def model(self, sizes: Mapping[str, int]) -> LayoutModel:
        """The costs of the step's ways on a mesh."""
        key = tuple(sizes.items())
        if key not in self.models:
            machine, mesh = self.machine(sizes), mesh_of(sizes)
            cost = MachineCost(self.topology.chip, machine, mesh)
            self.models[key] = build(self.alive, self.roles, mesh, cost, self.returned, self.is_allowed)
        return self.models[key]

    def is_allowed(self, first: LayoutStep, way: GroupSplit) -> bool:
        """Whether a way of a group is looked at."""
        return first.kind != "input" or self.is_for_arguments(first.outputs[0].type, way.results[0])

    def is_for_arguments(self, t: TensorType, s: TensorSharding) -> bool:
        """Whether an argument may be laid out so."""
        return not self.even or is_even(s, t.shape)

    def layouts(self, t: TensorType, mesh: BaseMesh) -> list[TensorSharding]:
        """The layouts that an argument may have."""
        return [s for s in layouts_of(t, mesh) if self.is_for_arguments(t, s)]

    @cached_property
    def returned(self) -> list[tuple[LaidValue, LaidValue]]:
        """Results that are arguments anew, and these."""
        outputs = range(len(self.graph.outputs)) if self.short is None else self.short.few.outputs
        inputs, anew = self.of_all(self.graph.inputs), self.step.returned
        return [(v, inputs[anew[n]]) for n, v in zip(outputs, self.graph.outputs, strict=True) if n in anew]

    def on(self, sizes: Mapping[str, int]) -> list[Candidate]:
        """The best layouts on a mesh by their costs."""
        model = self.model(sizes)
        self.evenly = min(self.evenly, sum(float(s.min()) for s in model.compute))
        found: dict[bytes, Candidate] = {}
        for hidden in HIDDEN:
            chosen = within(model, hidden, self.memory)
            if chosen is None:
                break
            one = Candidate(model, chosen.ways, estimated(model, chosen.ways))
            found[chosen.ways.tobytes()] = one
            if self.is_large and one.seconds <= 1.01 * chosen.cost:  # what can be hidden is less than the work
                break
        return list(found.values())

    def bound(self, meshes: Sequence[Mapping[str, int]]) -> float:
        """The seconds that no layout on these meshes is below."""
        step = StepBound(self.graph, self.returned, self.topology.chip)
        allowed = lambda of, s: self.is_for_arguments(of.outputs[0].type, s)
        found = [step.on(self.machine(sizes), mesh_of(sizes), allowed) for sizes in meshes]
        return least_of(found)

    @property
    def is_large(self) -> bool:
        """Whether only few layouts of the step can be simulated."""
        return 3 * self.equations > SIMULATED

    def of_all(self, of_short: Sequence[T]) -> list[T]:
        """What all arguments of the step have, from what those in the graph have."""
        return list(of_short) if self.short is None else self.short.of_all(of_short)

    def inputs(self, one: Candidate) -> tuple[TensorSharding, ...]:
        """The shardings of arguments."""
        return tuple(self.of_all([one.layout(value) for value in self.graph.inputs]))

    def restricted(self, sizes: Mapping[str, int], allowed: Allowed) -> Candidate | None:
        """The layout of least cost on a mesh among those whose arguments, by their numbers, are in layouts that are
        allowed, as far as each can be; None if none fits."""
        model = self.model(sizes)
        alone = list(model.seconds)
        numbers = range(len(self.graph.inputs)) if self.short is None else self.short.few.inputs
        for n, value in zip(numbers, self.graph.inputs, strict=True):
            assert value.step is not None and value.step.group is not None
            role = value.step.group.role
            refused = np.array([not allowed(n, way.results[0]) for way in model.groups[role].ways])
            if not refused.all():
                alone[role] = alone[role] + IMPOSSIBLE * refused
        chosen = within(model, 1.0, self.memory, alone)
        return None if chosen is None else Candidate(model, chosen.ways, estimated(model, chosen.ways))

    def specs(self, one: Candidate) -> dict[Var, PartitionSpec]:
        """The specs of the values that decide."""
        found = {}
        for group in self.graph.groups:
            for value in group.first.outputs[:1]:  # what is only printed makes none
                layout = one.layout(value)
                if value.var is not None and group.first.kind == "eqn" and not layout.unreduced and value.type.ndim:
                    found[value.var] = layout.to_named().spec
        return found

    def simulated(
        self, given: Sequence[TensorSharding], machine: Topology, specs: Specs, whole: bool = False
    ) -> FoundLayout:
        """A layout of arguments, with constraints or without, simulated once: the whole step, or with few layers."""
        key = (*given, frozenset(specs.items()))
        if key not in self.made:
            short = None if whole else self.short
            taken = (
                None
                if short is None
                else partial(short.taken, [s.to_named() for s in given], machine, specs, self.mode)
            )
            everywhere = specs if self.short is None else self.short.everywhere(specs)
            name = split_name(self.step, given) + ", constraints" * bool(specs)
            self.made[key] = self.step.laid_out(given, machine, name, everywhere, self.memory, self.mode, taken)
        return self.made[key]

    def held(self, one: Candidate) -> float:
        """The bytes that a device holds where one device by itself holds most: without what is only passed on."""
        return sum(float(b[w]) for b, w in zip(one.model.nbytes, one.ways, strict=True))

    def estimated(self, one: Candidate) -> None:
        """Add a candidate with the seconds and bytes that are expected of it."""
        given, machine = self.inputs(one), self.machine(one.model.mesh.shape)
        work = sum(float(s[w]) for s, w in zip(one.model.compute, one.ways, strict=True))
        expected = partial(Expected, "estimated", one.seconds, work, one.seconds - work, int(self.held(one)))
        name, rest = split_name(self.step, given), (self.memory, self.mode, expected)
        self.made.setdefault((*given, frozenset()), self.step.laid_out(given, machine, name, {}, *rest))


def equations(program: Program) -> int:
    """How many equations a program has, with those of its regions."""
    return sum(1 + sum(equations(region) for _, region in eqn.regions()) for eqn in program.eqns)


def estimated(model: LayoutModel, ways: np.ndarray) -> float:
    """The seconds of a choice of ways, with transfers beside the work as far as they can be."""
    work = sum(float(s[w]) for s, w in zip(model.seconds, ways, strict=True))
    moved = dict.fromkeys((False, True), 0.0)
    for e in model.edges:
        moved[e.hidden] += min(float(e.seconds[ways[e.maker], ways[e.reader]]), IMPOSSIBLE)
    return work + moved[False] + max(HIDDEN[0] * moved[True], moved[True] - OVERLAP * work)


def within(
    model: LayoutModel, hidden: float, memory: float, alone: Sequence[np.ndarray] | None = None
) -> Chosen | None:
    """The best choice that fits into memory, None if there is none: bytes have the lowest price at which it does.
    ``alone`` are the seconds of each role's ways, if they are not those of the model."""
    pairs: Pairs = {}
    for e in model.edges:
        table = np.minimum(e.seconds, IMPOSSIBLE) * (hidden if e.hidden else 1.0)
        key = min(e.maker, e.reader), max(e.maker, e.reader)
        table = table if key[0] == e.maker else table.T
        pairs[key] = pairs[key] + table if key in pairs else table
    if sum(float(b.min()) for b in model.nbytes) > memory:
        return None

    def at(price: float) -> tuple[Chosen, float]:
        found = best_choice([s + price * b for s, b in zip(alone or model.seconds, model.nbytes, strict=True)], pairs)
        return found, sum(float(b[w]) for b, w in zip(model.nbytes, found.ways, strict=True))

    chosen, held = at(0.0)
    if held <= memory:
        return chosen
    low, price, best = 0.0, 0.02 * chosen.cost / memory, None
    for _ in range(7):
        chosen, held = at(price)
        if held <= memory:
            best = chosen._replace(cost=chosen.cost - price * held)
            if not low or price / low < 2:
                break
            price = (low * price) ** 0.5
        else:
            low, price = price, price * (16 if best is None else 1.5)
    return best


def mesh_of(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of so many devices."""
    return Mesh(np.arange(prod(sizes.values())).reshape(tuple(sizes.values())), tuple(sizes))


def correct(found: Iterable[FoundLayout], ratio: float, held: float = 1.0) -> None:
    """Take into account, for layouts that were not simulated, what one took, and held, against what was expected."""
    for one in found:
        if one.kind != "simulated" and isinstance(one.measured, Expected):
            one.measured.corrected(ratio, held)


def split_name(step: Step, given: Sequence[TensorSharding]) -> str:
    """What is split over which axes, in a few words."""
    found: dict[str, set[str]] = {"batch": set(), "parameters": set()}
    for n, s in enumerate(given):
        found["batch" if n in step.batch else "parameters"].update(a.name for d in s.dims for a in d.axes)
    parts = [f"{what} over {', '.join(sorted(axes))}" for what, axes in found.items() if axes]
    return "; ".join(parts) or "all replicated"

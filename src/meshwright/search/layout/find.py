"""`find_layout`: the mesh and the sharding of every argument in which a step is fastest, and fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import inf, prod
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshwright.chart.amounts import size_text
from meshwright.core import tree
from meshwright.core.program import Program, Var
from meshwright.core.source import here
from meshwright.errors import HardwareError, MeshError, MeshwrightError
from meshwright.hardware.arguments import checked, function
from meshwright.hardware.chips import Chip
from meshwright.hardware.machines import machine_for, named_machine
from meshwright.hardware.topology import Topology
from meshwright.partition.cost import MachineCost
from meshwright.search.layout.expected import Expected
from meshwright.search.layout.found import FoundLayout, FoundLayouts
from meshwright.search.layout.graph import LaidValue, alive_at_peak, read_graph
from meshwright.search.layout.model import LayoutModel, build
from meshwright.search.layout.roles import assign_roles
from meshwright.search.layout.shortened import Specs, shortened
from meshwright.search.layout.solve import IMPOSSIBLE, Chosen, Pairs, best_choice
from meshwright.search.layout.step import Step
from meshwright.search.layout.ways import blocks, layouts_of
from meshwright.search.layout.written import to_paste
from meshwright.sharding.mesh import BaseMesh, Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import P, PartitionSpec
from meshwright.simulate.machine import Machine
from meshwright.simulate.tasks import TaskReader

T = TypeVar("T")

HIDDEN = (0.1, 0.4, 1.0)  # the share of its seconds that a transfer counts for which work can hide
OVERLAP = 0.9  # the share of the work beside which such transfers run
CANDIDATES = 6  # layouts of least cost that are simulated,
SIMULATED = 9_000  # as long as they have so many equations in all
TRIED = 2_000  # equations of layouts that are simulated to improve on the best,
MOST_TRIED = 48  # and layouts
NEAR = 1.2  # times the seconds that were expected: other layouts of a large step are tried only if it takes more
OTHERS = 8  # candidates of such a step that are returned with what is expected of them
WHOLE = 3  # simulations of a whole step of which few layers were simulated
MESHES = 3  # on which that is done


class NoLayoutFits(MeshwrightError):
    """Every layout of a step takes more memory than there is."""


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
    """A step on a machine, read once, and what is found of it on each mesh."""

    def __init__(self, step: Step, topology: Topology, memory: float, mode: str) -> None:
        self.step, self.topology, self.memory, self.mode = step, topology, memory, mode
        one = Machine(machine_for(topology.chip, {}, "program"), {}, mode)
        self.short = short = shortened(step)
        if short is None:
            self.graph = read_graph(TaskReader(one).block(step.program))
        else:
            self.graph = read_graph(TaskReader(one).block(short.few.program), short.few.repeated, short.few.removed + 1)
        self.equations = short.equations if short is not None else equations(step.program)
        self.roles = assign_roles(self.graph)
        self.alive = alive_at_peak(self.graph)
        self.bound = inf
        self.made: dict[tuple[Any, ...], FoundLayout] = {}

    def machine(self, sizes: Mapping[str, int]) -> Topology:
        found = self.topology
        return Topology(found.chip, found.shape, mesh=dict(sizes), wrap=found.wrap, slices=found.slices)

    def model(self, sizes: Mapping[str, int]) -> LayoutModel:
        """The costs of the step's ways on a mesh."""
        machine, mesh = self.machine(sizes), _mesh(sizes)
        return build(self.alive, self.roles, mesh, MachineCost(self.topology.chip, machine, mesh), self.returned)

    @cached_property
    def returned(self) -> list[tuple[LaidValue, LaidValue]]:
        """Results that are arguments anew, and these."""
        outputs = range(len(self.graph.outputs)) if self.short is None else self.short.few.outputs
        inputs, anew = self.of_all(self.graph.inputs), self.step.returned
        return [(v, inputs[anew[n]]) for n, v in zip(outputs, self.graph.outputs, strict=True) if n in anew]

    def on(self, sizes: Mapping[str, int]) -> list[Candidate]:
        """The best layouts on a mesh by their costs."""
        model = self.model(sizes)
        self.bound = min(self.bound, sum(float(s.min()) for s in model.compute))
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

    def specs(self, one: Candidate) -> dict[Var, PartitionSpec]:
        """The specs of the values that decide."""
        found = {}
        for group in self.graph.groups:
            value = group.first.outputs[0]
            layout = one.layout(value)
            if value.var is not None and group.first.kind == "eqn" and not layout.unreduced and value.type.ndim:
                found[value.var] = layout.to_named().spec
        return found

    def simulated(
        self, given: Sequence[TensorSharding], machine: Topology, name: str, specs: Specs, whole: bool = False
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
            self.made[key] = self.step.laid_out(given, machine, name, everywhere, self.memory, self.mode, taken)
        return self.made[key]

    def estimated(self, one: Candidate) -> None:
        """Add a candidate with the seconds and bytes that are expected of it."""
        given, machine = self.inputs(one), self.machine(one.model.mesh.shape)
        work = sum(float(s[w]) for s, w in zip(one.model.compute, one.ways, strict=True))
        held = int(sum(float(b[w]) for b, w in zip(one.model.nbytes, one.ways, strict=True)))
        expected = partial(Expected, "estimated", one.seconds, work, one.seconds - work, held)
        name, rest = _name(self.step, given), (self.memory, self.mode, expected)
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


def within(model: LayoutModel, hidden: float, memory: float) -> Chosen | None:
    """The best choice that fits into memory, None if there is none: bytes have the lowest price at which it does."""
    pairs: Pairs = {}
    for e in model.edges:
        table = np.minimum(e.seconds, IMPOSSIBLE) * (hidden if e.hidden else 1.0)
        key = min(e.maker, e.reader), max(e.maker, e.reader)
        table = table if key[0] == e.maker else table.T
        pairs[key] = pairs[key] + table if key in pairs else table
    if sum(float(b.min()) for b in model.nbytes) > memory:
        return None

    def at(price: float) -> tuple[Chosen, float]:
        found = best_choice([s + price * b for s, b in zip(model.seconds, model.nbytes, strict=True)], pairs)
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


def _mesh(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of so many devices."""
    return Mesh(np.arange(prod(sizes.values())).reshape(tuple(sizes.values())), tuple(sizes))


def mesh_sizes(chips: int) -> list[dict[str, int]]:
    """The meshes to try: all chips along one axis, or along two of which the second lies among neighbours.

    >>> mesh_sizes(8)
    [{'data': 8}, {'data': 4, 'model': 2}, {'data': 2, 'model': 4}]
    """
    two = [{"data": chips // n, "model": n} for n in range(2, chips // 2 + 1) if chips % n == 0]
    return [{"data": chips}, *two]


def _as_it_is(name: str, value: Any, of: str) -> Any:
    """What is checked further on."""
    return value


@checked("a layout search", batch_args=_as_it_is, memory=_as_it_is, fixed=_as_it_is, progress=function)
def find_layout(
    f: Callable[..., Any],
    *args: Any,
    topology: Any = None,
    batch_args: int | Sequence[int] | None = None,
    memory: float | None = None,
    fixed: Mapping[str, int] | BaseMesh | None = None,
    microbatches: int | None = None,
    mode: str = "exact",
    progress: Callable[[str], None] | None = None,
) -> FoundLayouts:
    """The layouts of a step, written for one device, in which it is fastest on a machine and fits into its memory.

    ``args`` are arrays, or shapes alone (`mw.ShapeDtypeStruct`). ``batch_args`` are the positions of those whose first
    dim is the batch, by default all that the step does not return anew. ``memory`` is what a device has, in bytes;
    ``fixed`` a mesh to stay on, or its sizes; ``progress`` is called with the sizes of each mesh. The layouts that
    are returned were partitioned and simulated, so their seconds are those of the program that runs; each has its mesh,
    shardings and memory, can be compiled, and printed as code.

    >>> import meshwright as mw
    >>> def step(w, x):
    ...     loss, gradient = mw.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
    ...     return loss, w - 0.1 * gradient
    >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
    >>> found = mw.find_layout(step, shape(1024, 1024), shape(1 << 16, 1024), topology="h100 8")
    >>> found.best.mesh.size, found.best.fits, found.best.seconds <= found[1].seconds
    (8, True, True)
    """
    machine = _machine(topology)
    if microbatches is not None and microbatches != 1:
        raise MeshwrightError(
            f"find_layout does not cut a step into {microbatches!r} microbatches.",
            where=here(),
            why="what of a step is done for each of them is not known from its program alone",
            fix="a step that accumulates its gradients in a lax.scan over microbatches, and microbatches=None",
        )
    step = Step(f, args, batch_args)
    if memory is None:
        memory = machine.chip.known("hbm_bytes", inf)
    if isinstance(memory, bool) or not isinstance(memory, Real) or not memory > 0:
        raise MeshwrightError(
            f"The memory of a device is {memory!r}.", where=here(), why="it is a number of bytes", fix="memory=80e9"
        )
    search = LayoutSearch(step, machine, memory, mode)
    wanted = mesh_sizes(machine.size) if fixed is None else [_fixed(fixed, machine)]
    candidates: list[Candidate] = []
    for sizes in wanted:
        if progress is not None:
            progress(" x ".join(map(str, sizes.values())))
        candidates += search.on(sizes)
    _simulate_all(search, sorted(candidates, key=lambda one: one.seconds), wanted[0])
    _climb(search)
    found = _with_whole(search)
    if not found[0].fits:
        least = min(found, key=lambda one: one.peak_bytes_per_device)
        raise NoLayoutFits(
            f"No layout of {step.name} that was found fits into {size_text(memory)} a device.",
            where=here(),
            why=f"the smallest takes {size_text(least.peak_bytes_per_device)} on {machine}",
            fix="more chips, a smaller batch, or mw.checkpoint(layer) in the step",
        )
    return FoundLayouts(tuple(to_paste(found)), search.bound)


def _ranked(search: LayoutSearch) -> list[FoundLayout]:
    """The layouts that were simulated, the fastest that fits first; of those that take the same, the simplest: with the
    fewest axes, and without constraints."""
    found: dict[tuple[float, int], FoundLayout] = {}
    for one in sorted(search.made.values(), key=lambda one: (len(one.mesh.shape), bool(one.constraints))):
        found.setdefault((float(f"{one.seconds:.9g}"), one.peak_bytes_per_device), one)
    return sorted(found.values(), key=lambda one: (not one.fits, one.seconds))


def _with_whole(search: LayoutSearch) -> list[FoundLayout]:
    """Those layouts, ranked after the whole step was simulated in the first; as far as it takes another time than was
    expected, so will the others."""
    found = _ranked(search)
    for n in range(WHOLE):
        first = found[0]
        if first.kind == "simulated":
            break
        expected = first.seconds
        ratio = first.simulation.seconds / expected if expected else 1.0
        if n == 0:
            _correct(search.made.values(), ratio)
        found = _ranked(search)
    return found


def _correct(found: Iterable[FoundLayout], ratio: float) -> None:
    for one in found:
        if one.kind != "simulated" and isinstance(one.measured, Expected):
            one.measured.corrected(ratio)


def _simulate_all(search: LayoutSearch, candidates: Sequence[Candidate], sizes: Mapping[str, int]) -> None:
    """Simulate the layout of least cost. If a large step takes as long as was expected, that is it; otherwise those
    that are usually written, and then others as far as there is time."""
    tried = set[tuple[TensorSharding, ...]]()
    for n, one in enumerate(candidates):
        fits = any(found.fits for found in search.made.values())
        if fits and (len(tried) >= CANDIDATES or (len(search.made) + 1) * search.equations > SIMULATED):
            return
        given = search.inputs(one)
        if given not in tried:
            tried.add(given)
            first = _simulate(search, one, given, whole=n == 0 and search.is_large)
            if n == 0 and search.is_large and first.fits and first.seconds <= NEAR * one.seconds:
                for other in candidates[1:OTHERS]:
                    search.estimated(other)
                _correct(search.made.values(), first.seconds / one.seconds)
                return
        if n == 0:
            _simulate_usual(search, sizes)
    if not candidates:
        _simulate_usual(search, sizes)


def _simulate(search: LayoutSearch, one: Candidate, given: Sequence[TensorSharding], whole: bool) -> FoundLayout:
    """Simulate a candidate: by its arguments alone, and with its constraints."""
    machine = search.machine(one.model.mesh.shape)
    plain = search.simulated(given, machine, _name(search.step, given), {}, whole)
    if plain.seconds > one.seconds * (NEAR if search.is_large else 1.0) or not plain.fits:
        search.simulated(given, machine, f"{_name(search.step, given)}, constraints", search.specs(one))
    return plain


def _climb(search: LayoutSearch) -> None:
    """Change the sharding of one argument at a time (of equal ones, in equal layers, together) while that is better: of
    the best layouts on a few meshes, as far as a step is small enough to be simulated often."""
    most = min(MOST_TRIED, TRIED // max(1, search.equations))
    first: dict[Mesh, FoundLayout] = {}
    for one in sorted(search.made.values(), key=lambda one: (not one.fits, one.seconds)):
        if not one.constraints:
            first.setdefault(one.mesh, one)
    roles: dict[int, list[int]] = {}
    for n, value in enumerate(search.of_all(search.graph.inputs)):
        assert value.step is not None and value.step.group is not None
        roles.setdefault(value.step.group.role, []).append(n)
    for best in list(first.values())[:MESHES]:
        machine = search.machine(best.mesh.shape)
        improved = True
        while improved:
            improved = False
            for numbers in roles.values():
                given = [
                    s.to_tensor_sharding(t.ndim)
                    for s, t in zip(tree.leaves(best.in_shardings), search.step.types, strict=True)
                ]
                for other in layouts_of(search.step.types[numbers[0]], best.mesh):
                    if most <= len(search.made):
                        return
                    tried = [other if n in numbers else s for n, s in enumerate(given)]
                    found = search.simulated(tried, machine, _name(search.step, tried), {})
                    if (not found.fits, found.seconds) < (not best.fits, best.seconds * (1 - 1e-9)):
                        best, improved = found, True


def _simulate_usual(search: LayoutSearch, sizes: Mapping[str, int]) -> None:
    """Simulate what is usually written: a batch in parts, with parameters whole or in parts."""
    mesh, machine = _mesh(sizes), search.machine(sizes)
    axes = tuple(sizes)
    for name, split in (("batch", False), ("batch, parameters", True)):
        given = []
        for n, t in enumerate(search.step.types):
            dims = [d for d, size in enumerate(t.shape) if size % mesh.size == 0 and size]
            first = dims[:1] if n in search.step.batch else dims[:1] if split and t.ndim > 1 else []
            spec = P(*(axes if d in first else None for d in range(t.ndim)))
            given.append(NamedSharding(mesh, spec).to_tensor_sharding(t.ndim))
        held = sum(t.nbytes / blocks(s) for t, s in zip(search.step.types, given, strict=True))
        if held <= search.memory or split:
            search.simulated(given, machine, name, {})


def _name(step: Step, given: Sequence[TensorSharding]) -> str:
    """What is split over which axes, in a few words."""
    found: dict[str, set[str]] = {"batch": set(), "parameters": set()}
    for n, s in enumerate(given):
        found["batch" if n in step.batch else "parameters"].update(a.name for d in s.dims for a in d.axes)
    parts = [f"{what} over {', '.join(sorted(axes))}" for what, axes in found.items() if axes]
    return "; ".join(parts) or "all replicated"


def _fixed(fixed: Any, machine: Topology) -> dict[str, int]:
    """The sizes of the mesh to stay on."""
    sizes = dict(fixed.shape) if isinstance(fixed, BaseMesh) else fixed
    if not isinstance(sizes, Mapping) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes.values()):
        raise MeshError(
            f"fixed is {fixed!r}.",
            where=here(),
            why="it is a mesh, or the sizes of its axes",
            fix=f'fixed={{"data": {machine.size}}}',
        )
    if prod(sizes.values()) != machine.size:
        raise MeshError(
            f"A mesh of {prod(sizes.values())} devices does not lie on {machine.size} chips.",
            where=here(),
            why=f"fixed is {dict(sizes)}, and the machine {machine.text}",
            fix=f'fixed={{"data": {machine.size}}}',
        )
    return dict(sizes)


def _machine(topology: Any) -> Topology:
    try:
        found = named_machine(topology) if isinstance(topology, str) else topology
    except HardwareError as error:
        count = topology.split()[-1]
        error.fix = re.sub(r"hardware\.get\('([^']*)'\)", rf'topology="\1 {count}"', error.fix)
        raise
    if isinstance(found, Chip) or not isinstance(found, Topology):
        name = found.name if isinstance(found, Chip) else "h100"
        raise MeshwrightError(
            f"The topology is {topology!r}." if topology is not None else "There is no topology to lay a step out on.",
            where=here(),
            why="a layout is for chips of a number: a machine, or a chip's name and how many",
            fix=f'topology="{name} 64"',
        )
    return found

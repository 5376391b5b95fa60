"""Products of split matrices: which case it is, what must be communicated, and which way is fastest where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product
from math import inf, prod
from typing import Any

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware import arguments
from meshwright.hardware.chips import Chip, dtype_name, item_bytes
from meshwright.hardware.collectives import collective_cost, crossover
from meshwright.hardware.layouts import Layout
from meshwright.hardware.links import CollectiveCost
from meshwright.hardware.machines import for_mesh, named_machine
from meshwright.hardware.roofline import Roofline, work
from meshwright.hardware.topology import Topology, mesh_sizes
from meshwright.partition.matmul.problem import (
    CASES,
    UNLIKE,
    MatmulProblem,
    natural_result,
    parse_matmul,
    unlike_indices,
)
from meshwright.partition.matmul.steps import FEW_AXES, ArrayConversion, ConversionStep, conversions
from meshwright.partition.reshard.cost import refined_for

_ORDERED_AXES = 2  # of an index, which are tried in every order
_MOST_TRIED = 1024  # assignments of axes to indices; of more, only some are tried


Conversions = tuple[ArrayConversion, ArrayConversion, ArrayConversion]  # of both operands and the result


@dataclass(frozen=True)
class Alternative:
    """One way to do it: where each mesh axis splits the product, and how the operands get there and the result on."""

    problem: MatmulProblem = field(repr=False)
    axes: Mapping[str, tuple[str, ...]]
    conversions: tuple[ArrayConversion, ArrayConversion, ArrayConversion] = field(
        repr=False
    )  # of both operands and the result

    @property
    def before(self) -> tuple[ConversionStep, ...]:
        """The steps on the operands."""
        return (*self.conversions[0].steps, *self.conversions[1].steps)

    @property
    def after(self) -> tuple[ConversionStep, ...]:
        """The steps on the result."""
        return self.conversions[2].steps

    @property
    def steps(self) -> tuple[ConversionStep, ...]:
        """Slices and collectives in order; the product stands between ``before`` and ``after``."""
        return (*self.before, *self.after)

    @property
    def collectives(self) -> tuple[ConversionStep, ...]:
        """The steps that communicate, one that takes several rounds as often."""
        return tuple(step for step in self.steps if step.kind != "slice" for _ in range(step.rounds))

    @property
    def name(self) -> str:
        """``AllGather_x(A), multiply``."""
        before = [step.name for step in self.before if step.kind != "slice"]
        return ", ".join([*before, "multiply", *(step.name for step in self.after if step.kind != "slice")])

    @cached_property
    def costs(self) -> tuple[CollectiveCost, ...]:
        """The terms of each collective."""
        return tuple(self._cost(step) for step in self.collectives)

    def _cost(self, step: ConversionStep) -> CollectiveCost:
        p = self.problem
        axes, topology = refined_for(step.along, p.topology)
        options: dict[str, Any] = {"shift": None} if step.kind == "permute" else {}
        return collective_cost(
            step.kind, step.elements(p.sizes) * item_bytes(p.dtype), topology, axes, p.mode, **options
        )

    @cached_property
    def _copied(self) -> tuple[float, ...]:
        """Elements that one device reads and writes between collectives, of both operands and the result."""
        p = self.problem
        whole = (prod(p.sizes[index] for index in one.indices) for one in (p.left, p.right, p.result))
        return tuple(one.copied * size for one, size in zip(self.conversions, whole))

    @property
    def copy_seconds(self) -> float:
        """Reading and writing memory between collectives, which for sizes without end is nothing beside them."""
        p = self.problem
        if p.mode == "asymptotic":
            return 0.0
        return work(0, sum(self._copied) * item_bytes(p.dtype), p.topology.chip, mode=p.mode).seconds

    @cached_property
    def _local(self) -> dict[str, float]:
        """The sizes of one device's part of the product."""
        p = self.problem
        return {index: p.sizes[index] / prod(p.mesh[axis] for axis in self.axes.get(index, ())) for index in p.indices}

    @cached_property
    def _elements(self) -> tuple[float, ...]:
        """Elements of one device's operands and result."""
        p = self.problem
        return tuple(prod(self._local[index] for index in one.indices) for one in (p.left, p.right, p.result))

    @cached_property
    def work(self) -> Roofline:
        """The product on one device, beside its communication."""
        p = self.problem
        moved = sum(self._elements) * item_bytes(p.dtype)
        alone = work(2 * prod(self._local.values()), moved, p.topology.chip, p.dtype, p.mode)
        return alone.with_communication(self.communication_seconds)

    @property
    def flops(self) -> float:
        """FLOPs of one device."""
        return self.work.flops

    @property
    def total_flops(self) -> float:
        """FLOPs of all devices; more than the product needs if devices repeat each other's work."""
        return self.flops * prod(self.problem.mesh.values())

    @property
    def bytes_received_per_device(self) -> float:
        """Bytes that each device takes in."""
        p = self.problem
        return sum(step.received(p.sizes) for step in self.collectives) * item_bytes(p.dtype)

    @property
    def bandwidth_seconds(self) -> float:
        """The bandwidth terms of its collectives."""
        return sum(cost.bandwidth_seconds for cost in self.costs)

    @property
    def latency_seconds(self) -> float:
        """The latency terms of its collectives, and their launches."""
        return sum(cost.latency_seconds + cost.launch_seconds for cost in self.costs)

    @property
    def measures(self) -> tuple[float, float, float]:
        """What alternatives are compared by, beside their time: FLOPs, bandwidth and latency."""
        return self.flops, self.bandwidth_seconds, self.latency_seconds

    @property
    def communication_seconds(self) -> float:
        """Its collectives one after another."""
        return sum((cost.seconds for cost in self.costs), 0.0)

    @property
    def moving_seconds(self) -> float:
        """Its collectives and the copies between them."""
        return self.communication_seconds + self.copy_seconds

    @property
    def seconds(self) -> float:
        """The whole: communication, then compute, and copies; or the longer of the two if the plan overlaps them."""
        return (self.work.seconds if self.problem.overlap else self.work.serial_seconds) + self.copy_seconds

    def scaled_seconds(self, scale: float) -> float:
        """The whole if all sizes were ``scale`` times as large.

        Bytes grow with the rank of their array, FLOPs with the number of indices; latencies stay.
        """
        p, work = self.problem, self.work
        communication = sum(
            cost.launch_seconds + max(cost.bandwidth_seconds * scale ** len(step.before.indices), cost.latency_seconds)
            for step, cost in zip(self.collectives, self.costs)
        )
        ranks = [len(one.indices) for one in (p.left, p.right, p.result)]
        grown = sum(elements * scale**rank for elements, rank in zip(self._elements, ranks))
        memory = work.memory_seconds * grown / sum(self._elements)
        compute = max(work.compute_seconds * scale ** len(p.indices), memory)
        copied = sum(elements * scale**rank for elements, rank in zip(self._copied, ranks))
        copies = self.copy_seconds * copied / sum(self._copied) if copied else 0.0
        return copies + (max(compute, communication) if p.overlap else compute + communication)

    def at(self, **sizes: float) -> Alternative:
        """The same steps for other sizes.

        >>> plan = plan_matmul("A[I,J] @ B[J_x,K] -> C[I,K]", {"x": 4}, {"I": 512, "J": 8192, "K": 8192})
        >>> plan.best.at(I=65536).work.flops / plan.best.work.flops
        128.0
        """
        p = self.problem
        other = MatmulProblem(
            p.left, p.right, p.result, p.mesh, {**p.sizes, **sizes}, p.dtype, p.topology, p.mode, p.overlap
        )
        return Alternative(other, self.axes, self.conversions)

    def __str__(self) -> str:
        product = f"{self.problem.left.name} @ {self.problem.right.name}"
        split = [f"{index} over {''.join(axes)}" for index, axes in self.axes.items() if axes]
        return "\n".join([*map(str, self.before), f"multiply {product}" + (f", {', '.join(split)}" if split else ""),
                          *map(str, self.after)])  # fmt: skip


@dataclass(frozen=True)
class Regime:
    """An alternative, and the scales of all sizes between which it is the fastest."""

    low: float
    high: float
    alternative: Alternative

    def __str__(self) -> str:
        low, high = _scale(self.low), _scale(self.high)
        return f"sizes × {low}" if self.low == self.high else f"sizes × {low} … × {high}"


@dataclass(frozen=True)
class MatmulPlan:
    """The answer: the case, every sensible alternative from the fastest on, and which wins where."""

    problem: MatmulProblem
    cases: dict[str, int]
    natural: str
    every: tuple[Alternative, ...] = field(repr=False)
    greedy: bool = False  # whether there are too many ways to try them all, so that a faster one may exist

    @property
    def case(self) -> int:
        """Seed 001's case, 1 to 4: the highest of its axes'."""
        return max(self.cases.values(), default=1)

    @property
    def case_text(self) -> str:
        """What the case is, in words."""
        p = self.problem
        return UNLIKE if self.case == 3 and unlike_indices(p.left, p.right, p.contracted) else CASES[self.case]

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Those that no other beats in FLOPs, bandwidth, latency and time at once, the fastest first."""

        measures = [(*one.measures, one.seconds) for one in self.every]
        front: list[tuple[float, ...]] = []
        for measure in sorted(set(measures)):  # what beats another comes before it
            if not any(all(a <= b for a, b in zip(other, measure)) for other in front):
                front.append(measure)
        kept = [(one, measure) for one, measure in zip(self.every, measures) if measure in front]
        fewest: dict[tuple[float, ...], int] = {}
        for one, measure in kept:
            fewest[measure] = min(fewest.get(measure, len(one.steps)), len(one.steps))
        return tuple(one for one, measure in kept if len(one.steps) == fewest[measure])

    @property
    def best(self) -> Alternative:
        """The fastest."""
        return self.every[0]

    @property
    def collectives(self) -> tuple[ConversionStep, ...]:
        """The collectives of the fastest."""
        return self.best.collectives

    @property
    def seconds(self) -> float:
        """The time of the fastest."""
        return self.best.seconds

    def find(self, *collectives: str) -> Alternative:
        """The fastest alternative with exactly these collectives, by name.

        >>> plan = plan_matmul("A[I,J] @ B[J_x,K] -> C[I,K]", {"x": 4}, {"I": 512, "J": 8192, "K": 8192})
        >>> plan.find("AllGather_x(B)").name
        'AllGather_x(B), multiply'
        """
        for one in self.every:
            if tuple(step.name for step in one.collectives) == collectives:
                return one
        names = "; ".join(", ".join(step.name for step in one.collectives) or "none" for one in self.every)
        raise HardwareError(
            f"No alternative has the collectives {', '.join(collectives) or 'none'}.",
            where=here(),
            why=f"there are: {names}",
            fix="plan.best",
        )

    def crossover(
        self,
        index: str,
        first: Alternative,
        second: Alternative,
        measure: str = "seconds",
        low: float = 1.0,
        high: float = 2.0**40,
    ) -> float | None:
        """The size of ``index`` at which two alternatives are equal in ``measure``, the other sizes as they are.

        >>> sizes = {"B": 128, "D": 8192, "F": 32768}
        >>> plan = plan_matmul("A[B,D] @ W[D_x,F] -> C[B,F]", {"x": 4}, sizes, mode="asymptotic")
        >>> reduce, gather = plan.find("AllReduce_x(C)"), plan.find("AllGather_x(W)")
        >>> plan.crossover("B", reduce, gather, "bandwidth_seconds")
        4096.0
        """
        _check_crossover(self.problem, index, measure)
        return crossover(
            lambda size: float(getattr(first.at(**{index: size}), measure)),
            lambda size: float(getattr(second.at(**{index: size}), measure)),
            low,
            high,
        )

    @cached_property
    def regimes(self) -> tuple[Regime, ...]:
        """Which alternative is the fastest as all sizes shrink and grow together, from 1/4096 to 4096 times."""
        out: list[Regime] = []
        for power in range(-12, 13):
            scale = 2.0**power
            if min(self.problem.sizes.values()) * scale < 1:
                continue
            winner = min(self.every, key=lambda one: (one.scaled_seconds(scale), len(one.steps)))
            if out and out[-1].alternative is winner:
                out[-1] = Regime(out[-1].low, scale, winner)
            else:
                out.append(Regime(scale, scale, winner))
        return tuple(out)

    def __str__(self) -> str:
        p = self.problem
        sizes = " ".join(f"{index}={size:g}" for index, size in p.sizes.items())
        mesh = " ".join(f"{name}={size}" for name, size in p.mesh.items())
        lines = [
            f"{p.left} @ {p.right} -> {p.result}",
            f"{p.dtype}, {sizes}, mesh {mesh}, on {p.topology.text} ({p.mode})",
            f"case {self.case}: {self.case_text}",
            f"natural result: {self.natural}",
            "",
        ]
        shown = self.alternatives
        width = max(len(one.name) for one in shown)
        lines.append(
            f"   {'':<{width}}  {'FLOPs':>8}  {'received':>9}  {'compute':>8}  {'comms':>8}  {'total':>8}  bound"
        )
        for number, one in enumerate(shown, 1):
            lines.append(
                f"{number:>2} {one.name:<{width}}  {one.flops:>8.2g}  {_bytes(one.bytes_received_per_device):>9}  "
                f"{_time(max(one.work.compute_seconds, one.work.memory_seconds)):>8}  "
                f"{_time(one.communication_seconds):>8}  {_time(one.seconds):>8}  {one.work.bound}"
            )
        if self.greedy:
            lines += ["", f"greedy: {len(self.every)} ways were tried, not all; a faster one may exist"]
        lines += ["", "fastest, as all sizes grow:"]
        lines += [f"  {regime!s:<26}  {regime.alternative.name}" for regime in self.regimes]
        return "\n".join(lines)


_MEASURES = ("seconds", "communication_seconds", "bandwidth_seconds", "latency_seconds", "flops", "total_flops",
             "bytes_received_per_device")  # fmt: skip


def _check_crossover(problem: MatmulProblem, index: object, measure: object) -> None:
    for given, known, what in (
        (index, problem.indices, "The product has no index"),
        (measure, _MEASURES, "There is no"),
    ):
        if given not in known:
            why = f"there are {', '.join(known)}"
            raise HardwareError(f"{what} {given!r}.", where=here(), why=why, fix=repr(known[0]))


@arguments.checked("a product", **dict.fromkeys(("text", "sizes", "dtype"), arguments.given))
def plan_matmul(
    text: str,
    mesh: object,
    sizes: Mapping[str, int],
    dtype: object = "bf16",
    topology: Topology | Chip | str = "tpu v5e",
    *,
    mode: str = "exact",
    overlap: bool = False,
) -> MatmulPlan:
    """Plan a product of split arrays, written in the index notation of seed 001.

    ``A[I_x,J]`` is split along I over mesh axis x, ``I_xy`` over x and then y, ``{U_x}`` is unreduced over x.
    ``topology`` is a machine, or a chip to build one of the mesh's shape from.

    >>> import meshwright as mw
    >>> plan = mw.plan_matmul("A[I,J_x] @ B[J_x,K] -> C[I,K]", {"x": 4}, {"I": 1024, "J": 4096, "K": 1024})
    >>> plan.case, plan.best.name
    (3, 'multiply, AllReduce_x(C)')
    >>> print(plan.best)
    multiply A @ B, J over x
    AllReduce_x(C[I,K]{U_x}) -> C[I,K]
    """
    axes = mesh_sizes(mesh)
    left, right, result = parse_matmul(text, axes)
    wanted = dict.fromkeys((*left.indices, *right.indices))
    if not isinstance(sizes, Mapping):
        raise HardwareError(
            f"{sizes!r} are not the sizes of a product.",
            where=here(),
            why="they are a dict with the size of each index",
            fix=f"sizes={{{', '.join(f'{index!r}: 1024' for index in wanted)}}}",
        )
    missing = [index for index in wanted if index not in sizes]
    if missing:
        raise HardwareError(
            f"No size for {', '.join(missing)}.",
            where=here(),
            why=f"the indices are {', '.join(wanted)}",
            fix=f"sizes={{{', '.join(f'{index!r}: {sizes.get(index, 1024)}' for index in wanted)}}}",
        )
    for index in wanted:
        size = sizes[index]
        if (
            not isinstance(size, int | float | np.integer | np.floating)
            or isinstance(size, bool)
            or not 1 <= size < inf
        ):
            raise HardwareError(
                f"The size of {index} is {size!r}.",
                where=here(),
                why="it is a number of elements, at least 1",
                fix=f"sizes={{{index!r}: 1024, …}}",
            )
    named = named_machine(topology) if isinstance(topology, str) else topology
    machine = named if isinstance(named, Topology) else for_mesh(named, axes)
    if dict(machine.mesh) != axes:
        machine = Topology(machine.chip, machine.shape, mesh=axes, wrap=machine.wrap, slices=machine.slices)
    cases, natural, target = natural_result(left, right, result, axes, text)
    problem = MatmulProblem(
        left, right, target, axes, {index: sizes[index] for index in wanted}, dtype_name(dtype), machine, mode, overlap
    )
    tried = _Tried(problem)
    greedy = prod(map(len, tried.options.values())) > _MOST_TRIED
    if greedy:
        tried.search()
    else:
        for chosen in product(*tried.options.values()):
            tried.seconds(dict(zip(tried.options, chosen)))
    if not tried.found:
        unreduced = [axis for axis in target.unreduced if axis in (*left.unreduced, *right.unreduced)]
        raise HardwareError(
            f"{left} @ {right} cannot give {target}.",
            where=here(),
            why=f"no index is summed over, and no operand is unreduced over "
            f"{', '.join(axis for axis in target.unreduced if axis not in unreduced)}",
            fix=f'"{left} @ {right} -> {replace(target, unreduced=tuple(unreduced))}"',
        )
    ordered = sorted(tried.found.values(), key=lambda one: (one.seconds, *one.measures, len(one.steps)))
    return MatmulPlan(problem, cases, natural, tuple(ordered), greedy)


Chosen = dict[str, str | None]  # the index that each mesh axis splits the product along; U if a sum is carried through


class _Tried:
    """Assignments of mesh axes to indices, converted to and from."""

    def __init__(self, problem: MatmulProblem) -> None:
        self.problem = problem
        self.found: dict[tuple[str, ...], Alternative] = {}
        arrays = (problem.left, problem.right, problem.result)
        used = {axis for one in arrays for axis in (*one.used, *one.unreduced)}
        summed = (*problem.left.unreduced, *problem.right.unreduced)
        # On a mesh of many axes, those that no array uses are left idle.
        self.options: dict[str, list[str | None]] = {
            axis: [None, *problem.indices, *(["U"] if axis in summed else [])]
            for axis, size in problem.mesh.items()
            if size > 1 and (axis in used or len(problem.mesh) <= FEW_AXES)
        }

    def seconds(self, chosen: Chosen) -> float:
        """Enter the ways to do it so, and return the time of the fastest."""
        best = inf
        for one in _alternatives(self.problem, chosen):
            best = min(best, one.seconds)
            key = tuple(map(str, one.steps))
            if key not in self.found or one.flops < self.found[key].flops:
                self.found[key] = one
        return best

    def search(self) -> None:
        """From what the arrays say, change one axis at a time as long as that is faster."""
        p = self.problem
        orders = ((p.left, p.right, p.result), (p.right, p.left, p.result), (p.result, p.left, p.right), ())
        for arrays in orders:
            now: Chosen = {axis: self._start(axis, arrays) for axis in self.options}
            best = self.seconds(now)
            while len(self.found) < _MOST_TRIED:
                near = [
                    {**now, axis: to} for axis, options in self.options.items() for to in options if to != now[axis]
                ]
                times = [self.seconds(one) if len(self.found) < _MOST_TRIED else inf for one in near]
                if min(times) >= best:
                    break
                best = min(times)
                now = near[times.index(best)]

    def _start(self, axis: str, arrays: Sequence[Layout]) -> str | None:
        """What the arrays say of an axis; of one that the result is unreduced over, what leaves it so."""
        p, said = self.problem, _index_of(axis, arrays)
        if axis not in p.result.unreduced or said in p.contracted:
            return said
        return "U" if "U" in self.options[axis] else next(iter(p.contracted), said)


def _index_of(axis: str, arrays: Sequence[Layout]) -> str | None:
    """The index that an axis splits in the first array that has it."""
    return next((index for one in arrays for index, axes in zip(one.indices, one.axes) if axis in axes), None)


def _alternatives(problem: MatmulProblem, given: Chosen) -> Iterator[Alternative]:
    """The ways to multiply with the axes so assigned."""
    carried = tuple(axis for axis, index in given.items() if index == "U")
    left, right, result = (one.over_many(problem.mesh) for one in (problem.left, problem.right, problem.result))
    for split in _orders(problem, given):
        operands: list[tuple[ArrayConversion, ...]] = []
        for one, other in ((left, right), (right, left)):
            carries = tuple(axis for axis in one.unreduced if axis in carried)
            if any(axis in other.unreduced for axis in carries) and one is right:
                carries = tuple(axis for axis in carries if axis not in other.unreduced)
            wanted = Layout(one.name, one.indices, tuple(split[index] for index in one.indices), carries)
            operands.append(conversions(one, wanted, problem.mesh))
        unreduced = [*(axis for index in problem.contracted for axis in split[index]), *carried]
        partial = Layout(
            result.name,
            result.indices,
            tuple(split[index] for index in result.indices),
            tuple(axis for axis in problem.mesh if axis in unreduced),
        )
        legs = (*operands, conversions(partial, result, problem.mesh))
        if all(legs):
            yield from _combined(problem, split, legs)


def _combined(
    problem: MatmulProblem, split: dict[str, tuple[str, ...]], legs: Sequence[Sequence[ArrayConversion]]
) -> Iterator[Alternative]:
    """The conversions of each array that none beats in bandwidth, in latency and in time, with those of the others."""
    nothing = ArrayConversion()
    kept: list[list[ArrayConversion]] = []
    for number, leg in enumerate(legs):
        alone = [
            (one, Alternative(problem, split, tuple(one if n == number else nothing for n in range(3))))  # type: ignore[arg-type]
            for one in leg
        ]
        measures = [(a.bandwidth_seconds, a.latency_seconds, a.moving_seconds) for _, a in alone]
        kept.append([one for n, (one, _) in enumerate(alone) if not _is_beaten(n, measures)])
    for left, right, result in product(*kept):
        yield Alternative(problem, split, (left, right, result))


def _is_beaten(number: int, measures: Sequence[tuple[float, ...]]) -> bool:
    """Whether another is as good in everything and better in something, or comes before it and is as good."""
    mine = measures[number]
    return any(
        all(a <= b * (1 + 1e-9) for a, b in zip(other, mine)) and (n < number or other < mine)
        for n, other in enumerate(measures)
        if n != number
    )


def _orders(problem: MatmulProblem, given: Mapping[str, str | None]) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every order of an index's axes; of more than a few, those that an array has already, and that of the mesh."""
    choices: list[list[tuple[str, ...]]] = []
    for index in problem.indices:
        axes = [axis for axis, chosen in given.items() if chosen == index]
        orders = set(permutations(axes)) if len(axes) <= _ORDERED_AXES else {tuple(axes)}
        for one in (problem.left, problem.right, problem.result):
            if index in one.indices and len(axes) > 1:
                has = [axis for axis in one.of(index) if axis in axes]
                orders.add((*has, *(axis for axis in axes if axis not in has)))
        choices.append(sorted(orders))
    for orders_of in product(*choices):
        yield dict(zip(problem.indices, orders_of))


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0"


def _bytes(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def _scale(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"

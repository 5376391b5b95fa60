"""Shardings of arguments with which a program would take less time, each tried before it is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.partitioning import Collective, PartitionedProgram, with_arguments
from meshwright.compile.value_names import ValueNames, of_any_index
from meshwright.core.program import Var
from meshwright.partition.combine import dearest, received
from meshwright.partition.reshard.plan import show_bytes
from meshwright.propagate.reasons import Reasons
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec, pasted
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.spmd import simulate, work

MOST_TRIED = 8  # shardings of arguments; of large programs half as many
LARGE = 2000  # equations
MOST_FOR_ONE = 3  # for one collective


class Suggestion(NamedTuple):
    """A sharding for arguments of a kind, and what a device would not receive, wait for and hold; negative: would."""

    arguments: tuple[str, ...]
    spec: PartitionSpec
    saved_bytes: int
    saved_seconds: float
    saved_memory: int
    seconds: float  # of the step as it is

    @property
    def saves(self) -> bool:
        """Whether it is better: in seconds, or in bytes if it takes as long."""
        close = abs(self.saved_seconds) <= 1e-9 * self.seconds
        return self.saved_bytes > 0 if close else self.saved_seconds > 0

    @property
    def changes(self) -> bool:
        """Whether it makes a difference to speak of."""
        return bool(self.saved_bytes) or abs(self.saved_seconds) > 1e-3 * self.seconds

    @property
    def argument(self) -> str:
        """The name of the arguments, without the numbers in which they differ."""
        return self.arguments[0] if len(self.arguments) == 1 else of_any_index(self.arguments[0])

    def __str__(self) -> str:
        share = f" ({abs(self.saved_seconds) / self.seconds:.1%} of the step)" if self.seconds else ""
        return (
            f"lay out {self.argument} as {self.spec}: {_signed(-self.saved_bytes, show_bytes)} per device, "
            f"{_signed(-self.saved_seconds, time_text)}{share}"
            + (f", {_signed(-self.saved_memory, size_text)} of memory" if self.saved_memory else "")
        )

    @property
    def fix(self) -> str:
        """Code to paste."""
        place = f"mw.NamedSharding(mesh, {pasted(self.spec)})"
        if len(self.arguments) == 1:
            return f"mw.device_put({self.arguments[0]}, {place})"
        numbered = [self.argument.replace("*", str(n)) for n in range(len(self.arguments))]
        if self.argument.count("*") == 1 and numbered == list(self.arguments):
            one = self.argument.replace("*", "n")
            return f"for n in range({len(self.arguments)}): {one} = mw.device_put({one}, {place})"
        return "; ".join(f"{one} = mw.device_put({one}, {place})" for one in self.arguments)


def _signed(amount: float, text: Any) -> str:
    return f"{'−' if amount < 0 else '+'}{text(abs(amount))}"


class _Candidate(NamedTuple):
    """A sharding to try for arguments by their numbers."""

    numbers: tuple[int, ...]
    sharding: NamedSharding


def suggestions(
    placed: PartitionedProgram, names: ValueNames, hardware: Any, now: Simulation | None, reasons: Reasons
) -> list[Suggestion | None]:
    """For each collective of a program the best of the shardings of arguments that were tried on its account, better
    than what there is or not; those that take longest are looked at first.

    Tried are: the sharding that an argument is brought into for its first use; and of an argument that an axis of the
    moved value comes from, this axis left out, or along another of its dims.
    """
    inlined = placed.compilation.inlined
    best: list[Suggestion | None] = [None] * len(placed.collectives)
    if now is None or inlined is None or inlined.fixed:  # types say what goes where
        return best
    whole, bytes_now = now.seconds, received(placed.collectives)
    tried: dict[_Candidate, Suggestion] = {}
    most = MOST_TRIED if len(placed.source.eqns) <= LARGE else MOST_TRIED // 2
    counted = {id(c) for c in dearest(placed.collectives)}
    cost = {id(c): c.seconds(hardware) * c.times for c in placed.collectives}
    groups: dict[Any, list[int]] = {}
    for n, c in enumerate(placed.collectives):
        if c.implicit and id(c) in counted:
            groups.setdefault((c.kind, c.axes, c.bytes_received_per_device, c.source, c.why), []).append(n)
    order = sorted(groups.values(), key=lambda group: -sum(cost[id(placed.collectives[n])] for n in group))
    for group in order:
        found: list[Suggestion] = []
        for candidate in _candidates(placed, names, reasons, [placed.collectives[n] for n in group]):
            if candidate not in tried:
                if len(tried) >= most:
                    continue
                tried[candidate] = _try(placed, candidate, names, hardware, now, whole, bytes_now)
            if tried[candidate].changes:
                found.append(tried[candidate])
        if found:
            chosen = max(found, key=lambda one: (one.saves, one.saved_seconds, one.saved_bytes))
            for n in group:
                best[n] = chosen
    return best


def simulated(program: Any, hardware: Any, donated: Sequence[bool]) -> Simulation:
    """A run of a program, in which loops of unknown length run one step, and a kernel alone is one task."""
    found = simulate(program, hardware, while_steps=1, donated=donated)
    return found if isinstance(found, Simulation) else work(program, hardware, while_steps=1, donated=donated)


def _try(
    placed: PartitionedProgram,
    candidate: _Candidate,
    names: ValueNames,
    hardware: Any,
    now: Simulation,
    whole: float,
    bytes_now: int,
) -> Suggestion:
    other = with_arguments(placed, dict.fromkeys(candidate.numbers, candidate.sharding))
    run = simulated(other, hardware, placed.compilation.donated)
    return Suggestion(
        tuple(names.names[n] for n in candidate.numbers),
        candidate.sharding.spec,
        bytes_now - received(other.collectives),
        whole - run.seconds,
        now.peak_bytes_per_device - run.peak_bytes_per_device,
        whole,
    )


def _candidates(
    placed: PartitionedProgram, names: ValueNames, reasons: Reasons, group: Sequence[Collective]
) -> Iterator[_Candidate]:
    """Shardings of arguments without which the collectives of a group might not be needed, a few."""
    seen: set[_Candidate] = set()
    for candidate in _all_candidates(placed, names, reasons, group[0]):
        if candidate not in seen:
            seen.add(candidate)
            yield candidate
        if len(seen) >= MOST_FOR_ONE:
            return


def _all_candidates(
    placed: PartitionedProgram, names: ValueNames, reasons: Reasons, c: Collective
) -> Iterator[_Candidate]:
    own = names.argument(c.var)
    if own is not None and own in placed.moved:
        yield _Candidate(_alike(placed, names, own), placed.moved[own].to_named())
    if not isinstance(c.var, Var) or c.var not in reasons.propagated.numbers:
        return
    axes = {axis.split(":")[0] for axis in c.axes}
    for number, axis in _origins(names, reasons, c.var, axes):
        if own is not None and number != own:
            continue
        numbers = _alike(placed, names, number)
        sharding = placed.compilation.inlined.given[number] if placed.compilation.inlined else None
        if sharding is None:
            continue
        for other in _without(sharding, axis, placed.source.inputs[number].type.shape):
            yield _Candidate(numbers, other)


def _origins(names: ValueNames, reasons: Reasons, var: Var, axes: set[str]) -> Iterator[tuple[int, AxisRef]]:
    """The arguments that the axes of a value's sharding, or of what stands against it, come from."""
    vars_ = [var, *(v for eqn in names.readers.get(var, ()) for v in (*eqn.inputs, *eqn.outputs) if isinstance(v, Var))]
    for one in dict.fromkeys(vars_):
        if one not in reasons.propagated.numbers:
            continue
        for reason in reasons.of(one).reasons:
            number = names.argument(reason.origin.var)
            if reason.axis.name in axes and number is not None and reason.origin.op.startswith("argument"):
                yield number, reason.axis


def _without(sharding: TensorSharding, axis: AxisRef, shape: Sequence[int]) -> Iterator[NamedSharding]:
    """A sharding along another dim that the axis divides, and one without the axis."""
    dims = [tuple(a for a in dim.axes if a != axis) for dim in sharding.dims]
    if all(axis not in dim.axes for dim in sharding.dims):
        return
    for n, dim in enumerate(sharding.dims):
        if axis not in dim.axes and shape[n] and not sharding.dims[n].axes and shape[n] % axis.size == 0:
            moved = [DimensionSharding((*axes, axis) if m == n else axes) for m, axes in enumerate(dims)]
            yield TensorSharding(sharding.mesh, moved).to_named()
    yield TensorSharding(sharding.mesh, [DimensionSharding(axes) for axes in dims]).to_named()


def _alike(placed: PartitionedProgram, names: ValueNames, number: int) -> tuple[int, ...]:
    """The arguments that are called as one is but for numbers, of its type and in its sharding: those of all layers."""
    inlined = placed.compilation.inlined
    assert inlined is not None
    pattern, t, given = of_any_index(names.names[number]), placed.source.inputs[number].type, inlined.given[number]
    return tuple(
        n
        for n, name in enumerate(names.names)
        if of_any_index(name) == pattern and placed.source.inputs[n].type is t and inlined.given[n] == given
    )

"""Shardings of arguments, results and constraints with which a program would take less time, each tried before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.partitioning import Collective, OtherShardings, PartitionedProgram, changed
from meshwright.compile.value_names import ValueNames, of_any_index
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.op import is_elementwise
from meshwright.core.program import Atom, Eqn, Var
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
MOST_OTHERS = 4  # shardings of results and constraints, beside those of arguments
MOST_OTHERS_FOR_ONE = 2
MOST_STEPS = 8  # from a result back to what it is made of
MOST_LEAVES = 12  # results that are written as a tree


class Suggestion(NamedTuple):
    """A sharding for arguments, for results or for constraints, which have names alike, and what a device would not
    receive, wait for and hold; negative: would."""

    kind: str  # argument, result, constraint
    arguments: tuple[str, ...]  # their names; of constraints, their lines
    spec: PartitionSpec
    saved_bytes: int
    saved_seconds: float
    saved_memory: int
    seconds: float  # of the step as it is
    code: str = ""  # to paste, of a result

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
        what = {"argument": "lay out", "result": "return", "constraint": "constrain the value at"}[self.kind]
        return (
            f"{what} {self.argument} as {self.spec}: {_signed(-self.saved_bytes, show_bytes)} per device, "
            f"{_signed(-self.saved_seconds, time_text)}{share}"
            + (f", {_signed(-self.saved_memory, size_text)} of memory" if self.saved_memory else "")
        )

    @property
    def fix(self) -> str:
        """Code to paste."""
        place = _place(self.spec)
        if self.kind == "constraint":
            return f"mw.lax.with_sharding_constraint(x, {place})  # at {', '.join(self.arguments)}"
        if self.kind == "result":
            return self.code
        if len(self.arguments) == 1:
            return f"mw.device_put({self.arguments[0]}, {place})"
        numbered = [self.argument.replace("*", str(n)) for n in range(len(self.arguments))]
        if self.argument.count("*") == 1 and numbered == list(self.arguments):
            one = self.argument.replace("*", "n")
            return f"for n in range({len(self.arguments)}): {one} = mw.device_put({one}, {place})"
        return "; ".join(f"{one} = mw.device_put({one}, {place})" for one in self.arguments)


def _signed(amount: float, text: Any) -> str:
    return f"{'−' if amount < 0 else '+'}{text(abs(amount))}"


def _place(spec: PartitionSpec) -> str:
    return f"mw.NamedSharding(mesh, {pasted(spec)})"


class _Candidate(NamedTuple):
    """A sharding to try for arguments, results or constraints, by their numbers."""

    numbers: tuple[int, ...]
    sharding: NamedSharding
    kind: str = "argument"

    def changes(self) -> OtherShardings:
        return OtherShardings(**{f"{self.kind}s": dict.fromkeys(self.numbers, self.sharding)})


def suggestions(
    placed: PartitionedProgram, names: ValueNames, hardware: Any, now: Simulation | None, reasons: Reasons
) -> list[Suggestion | None]:
    """For each collective of a program the best of the shardings that were tried on its account, better than what there
    is or not; those that take longest are looked at first.

    Tried are: the sharding that an argument is brought into for its first use; of an argument that an axis of the
    moved value comes from, of a result that it is, and of a constraint on it, this axis left out, or along another dim.
    """
    inlined = placed.compilation.inlined
    best: list[Suggestion | None] = [None] * len(placed.collectives)
    if now is None or inlined is None or inlined.fixed:  # types say what goes where
        return best
    whole, bytes_now = now.seconds, received(placed.collectives)
    tried: dict[_Candidate, Suggestion] = {}
    most = MOST_TRIED if len(placed.source.eqns) <= LARGE else MOST_TRIED // 2
    room = {"argument": most, "other": MOST_OTHERS if most == MOST_TRIED else MOST_OTHERS // 2}
    counted = {id(c) for c in dearest(placed.collectives)}
    cost = {id(c): c.seconds(hardware) * c.times for c in placed.collectives}
    groups: dict[Any, list[int]] = {}
    for n, c in enumerate(placed.collectives):
        if id(c) in counted:
            groups.setdefault((c.kind, c.axes, c.bytes_received_per_device, c.source, c.why), []).append(n)
    order = sorted(groups.values(), key=lambda group: -sum(cost[id(placed.collectives[n])] for n in group))
    for group in order:
        found: list[Suggestion] = []
        for candidate in _candidates(placed, names, reasons, [placed.collectives[n] for n in group]):
            if candidate not in tried:
                of = candidate.kind if candidate.kind in room else "other"
                if not room[of]:
                    continue
                room[of] -= 1
                tried[candidate] = _try(placed, candidate, names, hardware, now, whole, bytes_now)
            if tried[candidate].changes:
                found.append(tried[candidate])
        if found:
            # A result in another sharding may cost its reader something, who is not seen here.
            chosen = max(found, key=lambda one: (one.saves, one.kind != "result", one.saved_seconds, one.saved_bytes))
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
    other = changed(placed, candidate.changes())
    run = simulated(other, hardware, placed.compilation.donated)
    return Suggestion(
        candidate.kind,
        _names(placed, names, candidate),
        candidate.sharding.spec,
        bytes_now - received(other.collectives),
        whole - run.seconds,
        now.peak_bytes_per_device - run.peak_bytes_per_device,
        whole,
        _result_code(placed, names, candidate) if candidate.kind == "result" else "",
    )


def _names(placed: PartitionedProgram, names: ValueNames, candidate: _Candidate) -> tuple[str, ...]:
    """What a user calls the arguments or results that a candidate is for; of constraints, their lines."""
    if candidate.kind == "constraint":
        return tuple(dict.fromkeys(str(placed.source.eqns[n].source) for n in candidate.numbers))
    of = names.names if candidate.kind == "argument" else names.out_names
    return tuple(of[n] for n in candidate.numbers)


class _Text(str):
    """Code among the leaves of a tree that is printed."""

    __repr__ = str.__str__


def _result_code(placed: PartitionedProgram, names: ValueNames, candidate: _Candidate) -> str:
    """The ``out_shardings`` of a jit, or constraints before the return where there are many results."""
    place = _place(candidate.sharding.spec)
    if placed.out_tree.num_leaves > MOST_LEAVES:
        lines = (f"mw.lax.with_sharding_constraint({names.out_names[n]}, {place})" for n in candidate.numbers)
        return "; ".join(lines)
    leaves: list[Any] = [_Text(place) if n in candidate.numbers else None for n in range(placed.out_tree.num_leaves)]
    return f"mw.jit(f, out_shardings={tree.unflatten(placed.out_tree, leaves)!r})"


def _candidates(
    placed: PartitionedProgram, names: ValueNames, reasons: Reasons, group: Sequence[Collective]
) -> Iterator[_Candidate]:
    """Shardings without which the collectives of a group might not be needed, a few."""
    first = group[0]
    if first.implicit:
        yield from islice(dict.fromkeys(_of_arguments(placed, names, reasons, first)), MOST_FOR_ONE)
    others = chain(_of_results(placed, names, first), _of_constraints(placed, names, first))
    yield from islice(dict.fromkeys(others), MOST_OTHERS_FOR_ONE)


def _of_arguments(
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


def _of_results(placed: PartitionedProgram, names: ValueNames, c: Collective) -> Iterator[_Candidate]:
    """Other shardings of the results that a collective is for. One that is an argument updated stays as that is: the
    next call would bring it back."""
    places = dict(zip(placed.source.inputs, placed.in_shardings, strict=True))
    reached = _onward(names, c.var)
    for number, atom in enumerate(placed.source.outputs):
        sharding, t = placed.out_shardings[number], placed.out_types[number]
        if not isinstance(atom, Var) or t is not atom.type or atom not in reached:
            continue
        if any(v.type is t and places.get(v) == sharding for v in _updated(names, atom)):
            continue
        alike = tuple(
            n
            for n, name in enumerate(names.out_names)
            if of_any_index(name) == of_any_index(names.out_names[number])
            and placed.out_types[n] is t
            and placed.out_shardings[n] == sharding
        )
        for other in _otherwise(sharding.to_tensor_sharding(t.ndim), c, t.shape):
            yield _Candidate(alike, other, "result")


def _onward(names: ValueNames, value: Atom | None) -> set[Atom]:
    """A value and what elementwise equations and constraints make of it, in a few steps."""
    found, frontier = {value}, [value]
    for _ in range(MOST_STEPS):
        read = (eqn for v in frontier if v is not None for eqn in names.readers.get(v, ()))
        frontier = [v for eqn in read if _is_local(eqn) for v in eqn.outputs if v not in found]
        found.update(frontier)
    return {one for one in found if one is not None}


def _updated(names: ValueNames, result: Var) -> Iterator[Var]:
    """The values that a result is made of by such equations, in a few steps."""
    frontier = [result]
    for _ in range(MOST_STEPS):
        yield from frontier
        made = (names.makers[v] for v in frontier if v in names.makers)
        frontier = list(dict.fromkeys(v for eqn in made if _is_local(eqn) for v in eqn.inputs if isinstance(v, Var)))


def _is_local(eqn: Eqn) -> bool:
    return is_elementwise(eqn) or eqn.op.structure is Structure.CONSTRAINT


def _of_constraints(placed: PartitionedProgram, names: ValueNames, c: Collective) -> Iterator[_Candidate]:
    """Other specs of a constraint on the value that a collective moves: of all that its line leads to, as its transpose
    in a derivative."""
    eqns = placed.source.eqns
    if c.var is None:
        return
    near = [*names.readers.get(c.var, ()), *(eqn for eqn in eqns if c.var in eqn.outputs)]
    for eqn in near:
        if not _is_constraint(eqn) or eqn.source is None:
            continue
        numbers = tuple(n for n, one in enumerate(eqns) if _is_constraint(one) and str(one.source) == str(eqn.source))
        specs = {(eqns[n].params["spec"], eqns[n].outputs[0].type.shape) for n in numbers}
        if len(specs) != 1 or not any(eqns[n] is eqn for n in numbers) or eqn.params.get("mesh") is not None:
            continue
        t = eqn.outputs[0].type
        for other in _otherwise(NamedSharding(placed.mesh, eqn.params["spec"]).to_tensor_sharding(t.ndim), c, t.shape):
            yield _Candidate(numbers, other, "constraint")


def _is_constraint(eqn: Eqn) -> bool:
    return eqn.op.structure is Structure.CONSTRAINT and eqn.params.get("out_sharding") is None


def _otherwise(sharding: TensorSharding, c: Collective, shape: Sequence[int]) -> Iterator[NamedSharding]:
    """A sharding with the axes of a collective elsewhere: along a dim that is whole, if they are not in it, or as
    `_without` has them."""
    if not sharding.is_closed or sharding.unreduced:
        return
    for name in c.axes:
        axis = sharding.mesh.axis_by_name.get(name)
        if axis is None:
            continue
        if any(axis in dim.axes for dim in sharding.dims):
            yield from _without(sharding, axis, shape)
        elif not any(axis.overlaps(other) for dim in sharding.dims for other in dim.axes):
            for n, dim in enumerate(sharding.dims):
                if not dim.axes and shape[n] and shape[n] % axis.size == 0:
                    dims = [DimensionSharding((axis,)) if m == n else one for m, one in enumerate(sharding.dims)]
                    yield TensorSharding(sharding.mesh, dims).to_named()


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

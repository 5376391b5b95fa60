"""Shardings of arguments, results and constraints with which a program would take less time, each tried before."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from meshwright.arrays.device_put import put
from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.assignments import Assignment, WrittenBelow, assigned_values, assignment, reached
from meshwright.compile.partitioning import Collective, OtherShardings, PartitionedProgram, changed, partitioned
from meshwright.compile.stacks import StackFolder
from meshwright.compile.stages import Compilation
from meshwright.compile.updates import arguments_anew
from meshwright.compile.value_names import ValueNames, for_all, of_any_index
from meshwright.core import tree
from meshwright.core.facts import Structure
from meshwright.core.op import is_elementwise
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import Source
from meshwright.partition.combine import dearest, received
from meshwright.partition.layouts import closed
from meshwright.partition.reshard.plan import show_bytes
from meshwright.propagate.reasons import Reasons, ReasonStep
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
MOST_VALUES = 6  # shardings of values without a constraint, each of which traces the program
MOST_VALUES_FOR_ONE = 4
ABOUT_AS_MANY = 1e-3  # of a step: seconds that make no difference
MOST_STEPS = 8  # from a result back to what it is made of
MOST_LEAVES = 12  # results that are written as a tree


class Suggestion(NamedTuple):
    """A sharding for arguments, for results, for constraints, which have names alike, or for a value that has none yet;
    and what a device would not receive, wait for and hold; negative: would."""

    kind: str  # argument, result, constraint, value
    arguments: tuple[str, ...]  # their names; of constraints, their lines; of values, their names and lines
    spec: PartitionSpec
    saved_bytes: int
    saved_seconds: float
    saved_memory: int
    seconds: float  # of the step as it is
    code: str = ""  # to paste, of a result, a value, or what jit's shardings say
    results: tuple[str, ...] = ()  # that are these arguments anew, and go out as they come in

    @property
    def saves(self) -> bool:
        """Whether the program is better with the other sharding: in seconds, or in bytes if the step takes as long."""
        return self.saved_bytes > 0 if self.takes_as_long else self.saved_seconds > 0

    @property
    def takes_as_long(self) -> bool:
        """Whether the step is neither longer nor shorter, but for rounding."""
        return abs(self.saved_seconds) <= 1e-9 * self.seconds

    @property
    def changes(self) -> bool:
        """Whether bytes change, or seconds by more than a thousandth of the step."""
        return bool(self.saved_bytes) or abs(self.saved_seconds) > 1e-3 * self.seconds

    @property
    def argument(self) -> str:
        """The name of the arguments, without the numbers in which they differ."""
        return self.arguments[0] if self.kind in ("constraint", "value") else for_all(self.arguments)

    def __str__(self) -> str:
        nbytes = f"{_signed(-self.saved_bytes, show_bytes)} per device" if self.saved_bytes else "as many bytes"
        share = f" ({abs(self.saved_seconds) / self.seconds:.1%} of the step)" if self.seconds else ""
        seconds = "in the same time" if self.takes_as_long else f"{_signed(-self.saved_seconds, time_text)}{share}"
        both = f" and {for_all(self.results)}" if self.results else ""
        return f"{_VERBS[self.kind]} {self.argument}{both} as {self.spec}: {nbytes}, {seconds}" + (
            f", {_signed(-self.saved_memory, size_text)} of memory" if self.saved_memory else ""
        )

    @property
    def fix(self) -> str:
        """Code to paste."""
        place = _place(self.spec)
        if self.kind == "constraint":
            return f"mw.lax.with_sharding_constraint(x, {place})  # at {', '.join(self.arguments)}"
        if self.code:
            return self.code
        return _put(self.arguments, place)


_VERBS = {"argument": "lay out", "result": "return", "constraint": "constrain the value at", "value": "constrain"}


def _are_numbered(names: Sequence[str]) -> bool:
    """Whether names are one with the numbers from zero on."""
    one = for_all(names) if names else ""
    return one.count("*") == 1 and [one.replace("*", str(n)) for n in range(len(names))] == list(names)


def _put(names: Sequence[str], place: str) -> str:
    """Code that brings arguments into a sharding."""
    if len(names) == 1:
        return f"mw.device_put({names[0]}, {place})"
    if _are_numbered(names):
        one = for_all(names).replace("*", "n")
        return f"for n in range({len(names)}): {one} = mw.device_put({one}, {place})"
    return "; ".join(f"{one} = mw.device_put({one}, {place})" for one in names)


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: one for all of them, if nothing else is called so."""
    return for_all(names) if _are_numbered(names) else ", ".join(names)


def _signed(amount: float, text: Any) -> str:
    return f"{'−' if amount < 0 else '+'}{text(abs(amount))}"


def _of_one_shape(value: Var, moved: Atom | None) -> bool:
    """Whether a value may be what a collective moves, its cotangent, or what it is added to."""
    return moved is not None and sorted(value.type.shape) == sorted(moved.type.shape)


def _outline(program: Program) -> list[Any]:
    return [(eqn.op, *(v.type for v in eqn.outputs)) for eqn in program.eqns]


def _place(spec: PartitionSpec) -> str:
    return f"mw.NamedSharding(mesh, {pasted(spec)})"


class _Candidate(NamedTuple):
    """A sharding to try for arguments, results or constraints, by their numbers, or for what a line assigns."""

    numbers: tuple[int, ...]
    sharding: NamedSharding
    kind: str = "argument"
    assigned: Assignment | None = None
    results: tuple[int, ...] = ()  # that are these arguments anew, and were asked for in their sharding

    def changes(self) -> OtherShardings:
        found = OtherShardings(**{f"{self.kind}s": dict.fromkeys(self.numbers, self.sharding)})
        return found._replace(results=dict.fromkeys(self.results, self.sharding)) if self.results else found


Again = Callable[[AbstractContextManager[Any]], Compilation | None]


def suggestions(
    placed: PartitionedProgram,
    names: ValueNames,
    hardware: Any,
    now: Simulation | None,
    reasons: Reasons,
    again: tuple[Again, Program] | None = None,
    in_tree: tree.TreeDef | None = None,
) -> list[Suggestion | None]:
    """For each collective of a program the best of the shardings that were tried on its account, better than what there
    is or not. Looked at first is what brings the axes of an argument to other dims, which it can do without; then those
    that take longest. ``again`` traces the program, and is what that gave when it was compiled.

    Tried are: the sharding that an argument is brought into for its first use; of an argument that an axis of the
    moved value comes from, of a result that it is, of a constraint on it, and of what lines assign that lead to it,
    this axis left out, or along another dim. ``in_tree`` is that of the arguments: those that come back updated in the
    sharding that they came in, because `jit` was told so, are tried in and out.
    """
    inlined = placed.compilation.inlined
    best: list[Suggestion | None] = [None] * len(placed.collectives)
    if now is None or inlined is None or inlined.fixed:  # types say what goes where
        return best
    trial = _Trial(placed, names, reasons, hardware, now, again, in_tree)
    tried: dict[_Candidate, Suggestion | None] = {}
    large = len(placed.source.eqns) > LARGE
    room = {"argument": MOST_TRIED, "other": MOST_OTHERS, "value": MOST_VALUES}
    room = {kind: most // 2 if large else most for kind, most in room.items()}
    counted = {id(c) for c in dearest(placed.collectives)}
    cost = {id(c): c.seconds(hardware) * c.times for c in placed.collectives}
    groups: dict[Any, list[int]] = {}
    for n, c in enumerate(placed.collectives):
        if id(c) in counted:
            groups.setdefault((c.kind, c.whole_axes, c.bytes_received_per_device, c.source, c.why), []).append(n)
    seconds = {id(group): sum(cost[id(placed.collectives[n])] for n in group) for group in groups.values()}

    def urgency(group: list[int]) -> tuple[bool, float]:
        worth = seconds[id(group)] > ABOUT_AS_MANY * now.seconds
        return worth and trial.is_misplaced(placed.collectives[group[0]]), seconds[id(group)]

    order = sorted(groups.values(), key=urgency, reverse=True)
    for group in order:
        found: list[Suggestion] = []
        for candidate in trial.candidates(placed.collectives[group[0]]):
            if candidate not in tried:
                of = candidate.kind if candidate.kind in room else "other"
                if not room[of]:
                    continue
                tried[candidate] = trial.of(candidate)
                room[of] -= tried[candidate] is not None
            one = tried[candidate]
            if one is not None and one.changes:
                found.append(one)
        if found:
            chosen = _best(found)
            for n in group:
                best[n] = chosen
    return best


def _best(found: Sequence[Suggestion]) -> Suggestion:
    """The one that saves the most seconds; of those that save about as many, the most bytes and memory."""

    def rank(one: Suggestion) -> tuple[bool, bool]:
        # A result in another sharding may cost its reader something, who is not seen here.
        return one.saves, one.kind != "result"

    most = max(found, key=lambda one: (*rank(one), one.saved_seconds))
    enough = most.saved_seconds - ABOUT_AS_MANY * most.seconds
    close = [one for one in found if rank(one) == rank(most) and one.saved_seconds >= enough]
    return max(close, key=lambda one: (one.saved_bytes, one.saved_memory, one.saved_seconds))


def simulated(program: Any, hardware: Any, donated: Sequence[bool]) -> Simulation:
    """A run of a program, in which loops of unknown length run one step, and a kernel alone is one task."""
    found = simulate(program, hardware, while_steps=1, donated=donated)
    return found if isinstance(found, Simulation) else work(program, hardware, while_steps=1, donated=donated)


class _Trial:
    """A program as it is on a machine, which others are compared with."""

    def __init__(
        self,
        placed: PartitionedProgram,
        names: ValueNames,
        reasons: Reasons,
        hardware: Any,
        now: Simulation,
        again: tuple[Again, Program] | None,
        in_tree: tree.TreeDef | None,
    ) -> None:
        self.placed, self.names, self.reasons = placed, names, reasons
        self.hardware, self.now, self.received = hardware, now, received(placed.collectives)
        self.again = again[0] if again is not None and self._is_the_same(*again) else None
        self.assigned = assigned_values(placed.source) if self.again is not None else {}
        self.refused: set[Assignment] = set()  # which no constraint can be written below
        self.folder = StackFolder([placed.source])
        self.state = _state(placed, in_tree) if in_tree is not None else {}

    def candidates(self, c: Collective) -> Iterator[_Candidate]:
        """Shardings without which a collective might not be needed, a few."""
        placed, names = self.placed, self.names
        if c.implicit:
            of_arguments = islice(dict.fromkeys(_of_arguments(placed, names, self.reasons, c)), MOST_FOR_ONE)
            yield from map(self._in_and_out, of_arguments)
        of_results = (one for one in _of_results(placed, names, c) if not self.state.keys() & set(one.numbers))
        others = chain(of_results, _of_constraints(placed, names, c))
        yield from islice(dict.fromkeys(others), MOST_OTHERS_FOR_ONE)
        if c.implicit:
            yield from islice(dict.fromkeys(self._values(c)), MOST_VALUES_FOR_ONE)

    def _in_and_out(self, candidate: _Candidate) -> _Candidate:
        """With the results that are the arguments anew."""
        return candidate._replace(results=tuple(n for n, of in self.state.items() if of in candidate.numbers))

    def is_misplaced(self, c: Collective) -> bool:
        """Whether an argument comes with axes on other dims than those it is used with. What is gathered may be so
        to save memory; this saves none."""
        return c.kind in ("all_to_all", "permute") and self.names.argument(c.var) in self.placed.moved

    def of(self, candidate: _Candidate) -> Suggestion | None:
        """What a sharding would save, if the program can be had with it."""
        other = (
            changed(self.placed, candidate.changes()) if candidate.assigned is None else self._constrained(candidate)
        )
        if other is None:
            return None
        run = simulated(other, self.hardware, self.placed.compilation.donated)
        return Suggestion(
            candidate.kind,
            _names(self.placed, self.names, candidate),
            candidate.sharding.spec,
            self.received - received(other.collectives),
            self.now.seconds - run.seconds,
            self.now.peak_bytes_per_device - run.peak_bytes_per_device,
            self.now.seconds,
            _code(self.placed, self.names, candidate),
            tuple(self.names.out_names[n] for n in candidate.results),
        )

    def _values(self, c: Collective) -> Iterator[_Candidate]:
        """Other shardings of what lines assign that led to the value a collective moves, or to what needs it.

        Lines of functions that are called from several places come last: they speak of other values, too.
        """
        maker = self.names.makers.get(c.var) if c.var is not None else None
        made = maker.source if maker is not None else None
        stacks = [one.stack() for one in (c.origin, made, c.source) if one is not None]
        lines = (line for depth in zip_longest(*stacks) for line in depth if line is not None)
        specs = [self._otherwise_assigned(line, c) for line in sorted(lines, key=self.folder.is_folded)]
        yield from (one for depth in zip_longest(*specs) for one in depth if one is not None)

    def _otherwise_assigned(self, line: Source, c: Collective) -> Iterator[_Candidate]:
        assigned, value = assignment(line), self.assigned.get(reached(line))
        if assigned is None or value is None or assigned in self.refused or not _of_one_shape(value, c.var):
            return
        sharding = self.placed.propagated.shardings.get(value)
        if sharding is not None:
            for other in _otherwise(closed(sharding), c, value.type.shape):
                yield _Candidate((), other, "value", assigned)

    def _is_the_same(self, again: Again, traced: Program) -> bool:
        """Whether the function is still what it was when it was traced."""
        try:
            now = again(redirect_stdout(io.StringIO()))
        except Exception:  # whatever a user's function raises
            return False
        return now is not None and _outline(now.program) == _outline(traced)

    def _constrained(self, candidate: _Candidate) -> PartitionedProgram | None:
        """The program traced with a constraint below a line that assigns something; None if it cannot be there."""
        assert candidate.assigned is not None and self.again is not None
        below = WrittenBelow(candidate.assigned, lambda x: put(x, candidate.sharding))
        try:
            start = self.again(below())
        except Exception:  # no array, or of another rank, or whatever else a user's line may lead to
            start = None
        if start is None or not below.times:
            self.refused.add(candidate.assigned)
            return None
        return partitioned(start)


def _state(placed: PartitionedProgram, in_tree: tree.TreeDef) -> dict[int, int]:
    """By the number of a result, the argument that it is anew, of those that were asked for in their sharding."""
    inlined = placed.compilation.inlined
    assert inlined is not None
    args, kwargs = tree.unflatten(in_tree, range(in_tree.num_leaves))
    found = arguments_anew(placed.source, [*args, *(arg for _, arg in sorted(kwargs.items()))], placed.out_tree)
    return {n: of for n, of in found.items() if inlined.asked[n] is not None and inlined.asked[n] == inlined.given[of]}


def _names(placed: PartitionedProgram, names: ValueNames, candidate: _Candidate) -> tuple[str, ...]:
    """What a user calls the arguments or results that a candidate is for; of constraints, their lines."""
    if candidate.assigned is not None:
        return (str(candidate.assigned),)
    if candidate.kind == "constraint":
        return tuple(dict.fromkeys(str(placed.source.eqns[n].source) for n in candidate.numbers))
    of = names.names if candidate.kind == "argument" else names.out_names
    return tuple(of[n] for n in candidate.numbers)


class _Text(str):
    """Code among the leaves of a tree that is printed."""

    __repr__ = str.__str__


def _code(placed: PartitionedProgram, names: ValueNames, candidate: _Candidate) -> str:
    """The line to write below another, the ``out_shardings`` of a jit, or constraints before the return where there
    are many results; of what ``in_shardings`` or ``out_shardings`` say, what they should; nothing for what is said by
    names alone."""
    place, inlined = _place(candidate.sharding.spec), placed.compilation.inlined
    assert inlined is not None
    if candidate.kind == "argument":
        told = any(placed.placement.told[n] for n in candidate.numbers if placed.placement.told)
        ins = _listed([names.names[n] for n in candidate.numbers])
        outs = _listed([names.out_names[n] for n in candidate.results])
        back = f"{outs} in out_shardings" if outs else ""
        if told:
            return f"{place}  # of {ins} in in_shardings" + (f" and of {back}" if back else "")
        if not back:
            return ""
        code = _put([names.names[n] for n in candidate.numbers], place)
        return f"{code}  # and the same sharding of {back}"
    if candidate.assigned is not None:
        at = candidate.assigned
        return f"{at.name} = mw.lax.with_sharding_constraint({at.name}, {place})  # below {at.place}"
    if candidate.kind != "result":
        return ""
    if any(inlined.asked[n] is not None for n in range(placed.out_tree.num_leaves)):
        return f"{place}  # of {_listed([names.out_names[n] for n in candidate.numbers])} in out_shardings"
    if placed.out_tree.num_leaves > MOST_LEAVES:
        lines = (f"mw.lax.with_sharding_constraint({names.out_names[n]}, {place})" for n in candidate.numbers)
        return "; ".join(lines)
    leaves: list[Any] = [_Text(place) if n in candidate.numbers else None for n in range(placed.out_tree.num_leaves)]
    return f"mw.jit(f, out_shardings={tree.unflatten(placed.out_tree, leaves)!r})"


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


def axes_written(names: ValueNames, reasons: Reasons, var: Var, axes: set[str]) -> Iterator[tuple[str, ReasonStep]]:
    """Where a user wrote the axes of a value's sharding, or of what stands against it: with the step of each."""
    for axis, step in _written(names, reasons, var, axes):
        yield axis.name, step


def _written(names: ValueNames, reasons: Reasons, var: Var, axes: set[str]) -> Iterator[tuple[AxisRef, ReasonStep]]:
    vars_ = [var, *(v for eqn in names.readers.get(var, ()) for v in (*eqn.inputs, *eqn.outputs) if isinstance(v, Var))]
    for one in dict.fromkeys(vars_):
        if one in reasons.propagated.numbers:
            yield from ((r.axis, r.origin) for r in reasons.of(one).reasons if r.axis.name in axes)


def _origins(names: ValueNames, reasons: Reasons, var: Var, axes: set[str]) -> Iterator[tuple[int, AxisRef]]:
    """The arguments that the axes of a value's sharding, or of what stands against it, come from."""
    for axis, step in _written(names, reasons, var, axes):
        number = names.argument(step.var)
        if number is not None and step.op.startswith("argument"):
            yield number, axis


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

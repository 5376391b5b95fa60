"""Why the values of a traced program are sharded as they are: each axis back to the line on which it was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwright.core.facts import Structure
from meshwright.core.program import Eqn, Program, Var
from meshwright.propagate.from_program import Propagated
from meshwright.propagate.graph import FunctionOp, GraphValue
from meshwright.propagate.problem import Kind
from meshwright.propagate.why import AnswerReasons, Conflict, Link, label
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec


class ReasonStep(NamedTuple):
    """A value that an axis passed, the op that brought the axis there, and the user's line of that.

    Of the last one ``op`` is what says so: an argument, a constraint, a spec, a result's sharding. ``var`` is None for
    what stands for an array inside of a loop.
    """

    var: Var | None
    dim: int
    op: str
    where: str


class Reason(NamedTuple):
    """How an axis came to a dim of a value: from the value back to what a user wrote."""

    dim: int
    axis: AxisRef
    steps: tuple[ReasonStep, ...]

    @property
    def origin(self) -> ReasonStep:
        """The step that a user wrote."""
        return self.steps[-1]

    def __str__(self) -> str:
        rows = [f"through {step.op}" for step in self.steps[:-1]]
        rows.append(f"from {self.origin.op}, dim {self.origin.dim}")
        width = max(map(len, rows))
        lines = [f"    {row:{width}}  {step.where}".rstrip() for row, step in zip(rows, self.steps, strict=True)]
        return "\n".join([f"  dim {self.dim} over {self.axis}", *lines])


class Clash(NamedTuple):
    """An equation whose values want different axes along one factor: both sides, each with where its axes are from."""

    op: str
    where: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"  conflict at {self.op}  {self.where}\n    {self.one}\n    {self.other}"


class Explained(NamedTuple):
    """A value, its sharding, how each axis came there, and what stood against each other where it is made or used."""

    name: str
    var: Var
    sharding: TensorSharding | None
    reasons: tuple[Reason, ...]
    conflicts: tuple[Clash, ...]

    def __str__(self) -> str:
        spec = PartitionSpec()
        if self.sharding is not None:
            dims = [DimensionSharding(dim.axes) for dim in self.sharding.dims]
            spec = TensorSharding(self.sharding.mesh, dims, (), self.sharding.unreduced).to_named().spec
        lines = [f"{self.name}  {self.var.type.short()}  {spec}", *map(str, self.reasons), *map(str, self.conflicts)]
        return "\n".join(lines)


class Reasons:
    """The reasons of a propagated program. ``names`` and ``out_names`` are what a user calls arguments and results."""

    def __init__(self, propagated: Propagated, names: Sequence[str], out_names: Sequence[str]) -> None:
        self.propagated = propagated
        self.program = propagated.program
        self.names = dict(zip(self.program.inputs, names, strict=True))
        self.out_names = tuple(out_names)
        self.why = AnswerReasons(propagated.answer)
        values = self.why.graph.by_number
        self._var = {id(values[number]): var for var, number in propagated.numbers.items()}

    @cached_property
    def made(self) -> dict[Var, tuple[str, str]]:
        """The op and the line of each variable that an equation makes, in regions, too."""
        return {var: (eqn.op.name, str(eqn.source or "")) for eqn in equations(self.program) for var in eqn.outputs}

    def name(self, var: Var | None) -> str:
        """The name of a variable in an explanation."""
        if var is None:
            return "a value"
        if var in self.names:
            return self.names[var]
        op, where = self.made.get(var, ("", ""))
        return f"{op} at {where}" if where else op or "a value"

    def of(self, var: Var) -> Explained:
        """The explanation of one variable's sharding."""
        sharding = self.propagated.shardings.get(var)
        reasons = []
        for dim, one in enumerate(sharding.dims if sharding is not None else ()):
            reasons += [Reason(dim, axis, self.steps(var, dim, axis)) for axis in one.axes]
        return Explained(self.name(var), var, sharding, tuple(reasons), tuple(self._clashes(var)))

    def of_result(self, number: int) -> list[Explained]:
        """Everything about a result; where it is asked for in another layout than it has, that one first."""
        atom, main = self.program.outputs[number], self.why.graph.functions[0]
        own = [self.of(atom)] if isinstance(atom, Var) else []  # a number is nowhere in particular
        asked, has = self.propagated.asked[number], self.propagated.shardings.get(atom)  # type: ignore[arg-type]
        if asked is None or not own or _axes(asked) == _axes(has):
            return own
        name = self.out_names[number]
        where = main.result_where[number] if main.result_where else ""
        reasons = [
            Reason(dim, axis, (ReasonStep(own[0].var, dim, f"out_shardings, {name}", where),))
            for dim, one in enumerate(asked.dims)
            for axis in one.axes
        ]
        return [Explained(name, own[0].var, asked, tuple(reasons), ()), *own]

    def links(self, var: Var, dim: int, axis: AxisRef) -> list[Link]:
        """The links by which an axis came to a value, as propagation recorded them."""
        value = self.why.graph.by_number[self.propagated.numbers[var]]
        assert value is not None
        return self.why.chain(value, dim, axis)

    def steps(self, var: Var, dim: int, axis: AxisRef) -> tuple[ReasonStep, ...]:
        """The steps by which an axis came to a variable, back to what a user wrote."""
        links = self.links(var, dim, axis)
        found = [self._step(link) for link in links]
        return tuple(found) or (ReasonStep(var, dim, "its type", self.made.get(var, ("", ""))[1]),)

    def variable(self, value: GraphValue) -> Var | None:
        """The variable that a value of the graph stands for."""
        if value.op is not None and value.op.kind is Kind.EDGE:
            value = value.op.operands[0].value
        return self._var.get(id(value))

    def _step(self, link: Link) -> ReasonStep:
        var, by = self.variable(link.value), link.by
        if isinstance(by, FunctionOp):
            name, where = self._result(link)
            return ReasonStep(var, link.dim, name, where)
        if by is not None:
            name, _, where = label(by).partition(" at ")
            return ReasonStep(var, link.dim, name, where)
        if var in self.names:
            origin, name = link.value.origin, self.names[var].removeprefix("argument ")
            return ReasonStep(var, link.dim, f"argument {name}", origin.where if origin is not None else "")
        maker = link.value.op
        if maker is None or maker.node is None:
            return ReasonStep(var, link.dim, "its type", self.made.get(var, ("", ""))[1] if var is not None else "")
        is_said = maker.kind is Kind.CONSTRAINT or maker.node.rule is None
        name = maker.node.name if is_said else f"the type of {maker.node.name}"
        return ReasonStep(var, link.dim, name, maker.node.where)

    def _result(self, link: Link) -> tuple[str, str]:
        """Which result's sharding has the axis, and where that was written."""
        main = self.why.graph.functions[0]
        for number, use in enumerate(main.block.terminator.operands):
            sharding = self.propagated.asked[number]
            same = link.value in (use.value, use.value.holder, use.value.sunk)
            if same and sharding is not None and any(a.overlaps(link.axis) for a in sharding.dims[link.dim].axes):
                where = main.result_where[number] if main.result_where else ""
                return f"out_shardings, {self.out_names[number]}", where
        raise AssertionError("no result has the axis")

    @cached_property
    def _conflicts(self) -> list[tuple[Conflict, set[int]]]:
        found = []
        for conflict in self.why.conflicts():
            op = conflict.node
            values = [*(use.value for use in op.operands), *op.results]
            found.append((conflict, {id(value) for one in values for value in (one, one.holder)}))
        return found

    def _clashes(self, var: Var) -> Iterator[Clash]:
        number = self.propagated.numbers.get(var)
        value = None if number is None else self.why.graph.by_number[number]
        for conflict, values in self._conflicts:
            if id(value) in values:
                name, _, where = label(conflict.node).partition(" at ")
                yield Clash(name, where, self._side(conflict, *conflict.one), self._side(conflict, *conflict.other))

    def _side(self, conflict: Conflict, value: GraphValue, axes: tuple[AxisRef, ...]) -> str:
        name = self.name(self.variable(value))
        dim = _dim_of(conflict, value)
        if not axes:
            return f"{name}, dim {dim}, has no axis"
        links = self.why.chain(value, dim, axes[0])
        origin = self._step(links[-1]) if links else None
        came = f", from {origin.op}  {origin.where}".rstrip() if origin is not None else ""
        return f"{name}, dim {dim}, has {', '.join(map(str, axes))}{came}"


def _axes(sharding: TensorSharding | None) -> list[tuple[AxisRef, ...]]:
    """The axes of each dim that has some."""
    found = [] if sharding is None else [dim.axes for dim in sharding.dims]
    return found if any(found) else []


def _dim_of(conflict: Conflict, value: GraphValue) -> int:
    """The dim of a value that a conflict's factor is in."""
    op = conflict.node
    assert op.rule is not None
    values = [*(use.value.holder for use in op.operands), *op.results]
    tensors = (*op.rule.operands, *op.rule.results)
    dims = next(dims for one, dims in zip(values, tensors, strict=True) if one is value)
    return next((dim for dim, factors in enumerate(dims) if conflict.factor in factors), 0)


def equations(program: Program) -> Iterator[Eqn]:
    """The equations of a program, those of regions after the one that has them."""
    for eqn in program.eqns:
        yield eqn
        if eqn.op.structure is not Structure.DEVICE:
            for _, inner in eqn.regions():
                yield from equations(inner)

"""A traced program as a problem of propagation, and the shardings that were found for its variables.

A scan is a loop that takes rows from arrays outside, and puts rows into arrays that it carries along. A part written
for one device is a fence: its operands and results have the shardings that its specs say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from meshwright.core.factors import Factors, check_fit, pointwise
from meshwright.core.facts import Structure
from meshwright.core.op import No, Op
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.types import Shape, TensorType
from meshwright.ops.placement import constraint_sharding
from meshwright.propagate.graph import GraphValue, Known, walk
from meshwright.propagate.problem import (
    Direction,
    FactorRule,
    Kind,
    Problem,
    ProblemBlock,
    ProblemFunction,
    ProblemNode,
    ProblemValue,
)
from meshwright.propagate.run import Answer, run
from meshwright.sharding.axes import AxisRef, merged
from meshwright.sharding.check import resolve
from meshwright.sharding.dimension import DimensionSharding, axis_set
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes, is_open, priority_of, read_axis

PASSES = (
    "sdy-add-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "sdy-user-priority-propagate",
    "sdy-sink-data-flow-edges",
)


class ProgramGraph:
    """A program as propagation knows it, which is read once: values and nodes, without what is asked of them.

    ``numbers`` are those of the program's variables among the values, ``fixed`` shardings that are known beforehand.
    """

    def __init__(self, program: Program, mesh: BaseMesh, fixed: Mapping[Var, TensorSharding] | None = None) -> None:
        reader = _ProgramReader(mesh, fixed or {})
        for var in program.inputs:
            reader.atom(var)
        arguments = tuple(reader.number[var] for var in program.inputs)
        reader.block(program)
        returns = tuple(reader.atom(atom) for atom in program.outputs)
        self.program = program
        self.mesh = mesh
        self.numbers: Mapping[Var, int] = reader.number
        self.fixed = reader.fixed
        self.values = tuple(reader.values)  # the arguments first
        self.block = ProblemBlock(arguments, tuple(reader.nodes), returns)

    def propagate(
        self,
        in_shardings: Sequence[TensorSharding | None],
        out_shardings: Sequence[TensorSharding | None],
        in_where: Sequence[str] = (),
        out_where: Sequence[str] = (),
    ) -> Propagated:
        """The shardings of all values, regions included, for those of arguments and results.

        ``in_where`` and ``out_where`` are the lines on which these were written.
        """
        places = in_where or [""] * len(in_shardings)
        given = zip(self.values, in_shardings, places, strict=False)
        arguments = [value._replace(sharding=s or value.sharding, where=where) for value, s, where in given]
        values = (*arguments, *self.values[len(arguments) :])
        main = ProblemFunction("main", self.block, tuple(out_shardings), result_where=tuple(out_where))
        meshes = {value.sharding.mesh: None for value in values if value.sharding is not None}
        others = (one for one in meshes if one != self.mesh)
        return Propagated(self, run(Problem(values, (main,), (self.mesh, *others)), PASSES), out_shardings)


class Propagated:
    """What propagation found for a program: a sharding for each variable, and the answer with its reasons.

    ``asked`` is how its results were asked for, ``results`` how they are returned.
    """

    def __init__(self, graph: ProgramGraph, answer: Answer, asked: Sequence[TensorSharding | None]) -> None:
        self.graph = graph
        self.answer = answer
        self.asked = tuple(asked)
        self.results = [None if s is None else s.plain() for s in answer.graph.functions[0].result_shardings]
        self.shardings: Mapping[Var, TensorSharding] = _found(graph, answer)

    @property
    def program(self) -> Program:
        """The program whose values have these shardings."""
        return self.graph.program

    @property
    def numbers(self) -> Mapping[Var, int]:
        """The numbers of the program's variables among the values of the graph."""
        return self.graph.numbers


def propagate_program(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding | None],
    out_shardings: Sequence[TensorSharding | None],
) -> Propagated:
    """The shardings of all values of a program, regions included."""
    return ProgramGraph(program, mesh).propagate(in_shardings, out_shardings)


def _found(graph: ProgramGraph, answer: Answer) -> dict[Var, TensorSharding]:
    """The sharding of each variable that has one."""
    plain: dict[Known, TensorSharding] = {}
    found: dict[Var, TensorSharding] = {}

    def enter(variables: Sequence[Var], values: Sequence[GraphValue]) -> None:
        for var, value in zip(variables, values, strict=False):
            known = value.sharding
            if known is not None:
                if known not in plain:
                    plain[known] = known.plain()
                found[var] = plain[known]

    main = answer.graph.functions[0].block
    enter(graph.program.inputs, main.arguments)
    for op in walk(main):
        ref = op.node.ref if op.node is not None else None
        if ref is not None:
            enter(ref.results, op.results)
            for variables, block in zip(ref.arguments, op.blocks, strict=False):
                enter(variables, block.arguments)
    found.update((var, sharding) for var, sharding in graph.fixed.items() if sharding.unreduced)
    return found


class _Ref(NamedTuple):
    """The variables that a node stands for: its results, and the arguments of its regions."""

    results: tuple[Var, ...]
    arguments: tuple[tuple[Var, ...], ...] = ()


class _ProgramReader:
    def __init__(self, mesh: BaseMesh, fixed: Mapping[Var, TensorSharding]) -> None:
        self.mesh = mesh
        self.fixed = fixed
        self.values: list[ProblemValue] = []
        self.nodes: list[ProblemNode] = []
        self.number: dict[Var, int] = {}

    def value(self, shape: Shape, sharding: TensorSharding | None = None, where: str = "") -> int:
        self.values.append(ProblemValue(shape, sharding, where=where))
        return len(self.values) - 1

    def atom(self, atom: Atom, where: str = "") -> int:
        """The number of a value; a literal is a constant of its own."""
        if isinstance(atom, Var):
            if atom not in self.number:
                self.number[atom] = self.value(atom.type.shape, self.fixed.get(atom), where)
            return self.number[atom]
        number = self.value(())
        self.nodes.append(ProblemNode(Kind.OP, (), (number,), FactorRule((), ((),), (), ()), constant=True))
        return number

    def block(self, program: Program) -> None:
        for var, _ in program.constants:
            self.node(
                FactorRule((), (_dims(var.type.ndim),), var.type.shape, range(var.type.ndim)), (), (var,), constant=True
            )
        for eqn in program.eqns:
            read = _READ.get(eqn.op.structure) if eqn.op.structure else None
            (read or _ProgramReader.equation)(self, eqn)

    def node(self, rule: FactorRule | None, operands: Sequence[Atom], results: Sequence[Var], **facts: Any) -> None:
        where = facts.pop("where", "")
        numbers = tuple(self.atom(a) for a in operands)
        outs = tuple(self.atom(v, where) for v in results)
        self.nodes.append(ProblemNode(Kind.OP, numbers, outs, rule, where=where, ref=_Ref(tuple(results)), **facts))

    def enter(self, operand: Atom, result: Var, eqn: Eqn) -> None:
        """The values that enter a region as they are."""
        rule, name = FactorRule.identity(result.type.shape), f"the entry of {eqn.op.name}"
        facts: dict[str, Any] = {"elementwise": True, "passes": Direction.BOTH}
        self.node(rule, [operand], (result,), where=str(eqn.source or ""), name=name, **facts)

    def equation(self, eqn: Eqn) -> None:
        where = str(eqn.source) if eqn.source else ""
        if isinstance(eqn.op.factors, No):
            self.node(None, eqn.inputs, eqn.outputs, where=where, name=eqn.op.name)
            return
        operands, results = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
        rule, facts = _rule(eqn.op, operands, results, tuple(eqn.params.items()))
        self.node(rule, eqn.inputs, eqn.outputs, where=where, name=eqn.op.name, **facts)

    # Regions

    def region(self, arguments: Sequence[Var], build: Callable[[], Sequence[Atom]]) -> ProblemBlock:
        """A block of nodes of its own."""
        outer, self.nodes = self.nodes, []
        numbers = tuple(self.atom(var) for var in arguments)
        returns = tuple(self.atom(atom) for atom in build())
        block, self.nodes = ProblemBlock(numbers, tuple(self.nodes), returns), outer
        return block

    def loop(
        self,
        init: Sequence[Atom],
        test: ProblemBlock,
        body: ProblemBlock,
        arguments: tuple[Sequence[Var], Sequence[Var]],
        eqn: Eqn,
    ) -> None:
        where = str(eqn.source or "")
        operands = tuple(self.atom(a) for a in init)
        outs = tuple(self.atom(v, where) for v in eqn.outputs)
        ref = _Ref(tuple(eqn.outputs), tuple(map(tuple, arguments)))
        facts: dict[str, Any] = {"pure": False, "name": eqn.op.name, "where": where, "ref": ref}
        self.nodes.append(ProblemNode(Kind.WHILE, operands, outs, regions=(test, body), **facts))

    def _scan(self, eqn: Eqn) -> None:
        """Rows are taken from scanned arrays, and put into arrays that the loop carries along."""
        body, consts, carry = eqn.params["body"], eqn.params["consts"], eqn.params["carry"]
        fixed, init, xs = eqn.inputs[:consts], eqn.inputs[consts : consts + carry], eqn.inputs[consts + carry :]
        stacks = eqn.outputs[carry:]
        empty, before, after = ([Var(v.type) for v in stacks] for _ in range(3))
        for var in empty:
            self.fresh(var)

        def steps() -> Sequence[Atom]:
            for atom, var in zip(fixed, body.inputs, strict=False):
                self.enter(atom, var, eqn)
            facts: dict[str, Any] = {"passes": Direction.BOTH, "where": str(eqn.source or "")}
            for atom, var in zip(xs, body.inputs[consts + carry :], strict=True):
                self.node(_rows(atom.type.shape), [atom], [var], name="a row of scan", **facts)
            self.block(body)
            for row, old, new in zip(body.outputs[carry:], before, after, strict=True):
                self.node(_update(new.type.shape), [old, row], [new], name="the rows of scan", **facts)
            return [*body.outputs[:carry], *after]

        carried = [*body.inputs[consts : consts + carry], *before]
        inside = self.region(carried, steps)
        ignored = [Var(v.type) for v in carried]
        unused = self.region(ignored, lambda: [])
        self.loop([*init, *empty], unused, inside, (ignored, carried), eqn)

    def fresh(self, var: Var) -> None:
        """A value made out of nothing."""
        rule = FactorRule((), (_dims(var.type.ndim),), var.type.shape, range(var.type.ndim))
        self.node(rule, (), (var,), constant=True)

    def _while(self, eqn: Eqn) -> None:
        test, body = eqn.params["cond"], eqn.params["body"]
        n_test, n_body = eqn.params["cond_consts"], eqn.params["body_consts"]
        cut = n_test + n_body

        def run(program: Program, consts: Sequence[Atom]) -> Callable[[], Sequence[Atom]]:
            def steps() -> Sequence[Atom]:
                for atom, var in zip(consts, program.inputs, strict=False):
                    self.enter(atom, var, eqn)
                self.block(program)
                return program.outputs

            return steps

        tested = self.region(test.inputs[n_test:], run(test, eqn.inputs[:n_test]))
        inside = self.region(body.inputs[n_body:], run(body, eqn.inputs[n_test:cut]))
        arguments = test.inputs[n_test:], body.inputs[n_body:]
        self.loop(eqn.inputs[cut:], tested, inside, arguments, eqn)

    def _cond(self, eqn: Eqn) -> None:
        blocks = []
        for branch in eqn.params["branches"]:

            def steps(branch: Program = branch) -> Sequence[Atom]:
                for atom, var in zip(eqn.inputs[1:], branch.inputs, strict=True):
                    self.enter(atom, var, eqn)
                self.block(branch)
                return branch.outputs

            blocks.append(self.region([], steps))
        where, ref = str(eqn.source or ""), _Ref(tuple(eqn.outputs))
        operands, outs = (self.atom(eqn.inputs[0]),), tuple(self.atom(v, where) for v in eqn.outputs)
        facts: dict[str, Any] = {"pure": False, "name": eqn.op.name, "where": where, "ref": ref}
        self.nodes.append(ProblemNode(Kind.CASE, operands, outs, regions=tuple(blocks), **facts))

    def _shard_map(self, eqn: Eqn) -> None:
        where = str(eqn.source) if eqn.source else ""
        facts: dict[str, Any] = {"elementwise": True, "name": "shard_map's in_specs", "where": where}
        operands = []
        for atom, spec in zip(eqn.inputs, eqn.params["in_specs"], strict=True):
            number = self.value(atom.type.shape, self.by_spec(spec, atom.type.ndim), where)
            self.nodes.append(ProblemNode(Kind.CONSTRAINT, (self.atom(atom),), (number,), **facts))
            operands.append(number)
        results = []
        for var, spec in zip(eqn.outputs, eqn.params["out_specs"], strict=True):
            self.number[var] = self.value(var.type.shape, self.by_spec(spec, var.type.ndim), where)
            results.append(self.number[var])
        ref = _Ref(tuple(eqn.outputs))
        facts = {"pure": False, "name": "shard_map's out_specs", "where": where, "ref": ref}
        self.nodes.append(ProblemNode(Kind.OP, tuple(operands), tuple(results), None, **facts))

    def _sharding_constraint(self, eqn: Eqn) -> None:
        where, (var,) = str(eqn.source or ""), eqn.outputs
        sharding = self.fixed.get(var)
        if sharding is None and eqn.params.get("mesh") is not None:
            sharding = constraint_sharding(eqn.params, var.type.ndim, self.mesh)
        sharding = sharding or self.by_spec(eqn.params["spec"], var.type.ndim)
        number = self.number[var] = self.value(var.type.shape, sharding, where)
        operands, ref = (self.atom(eqn.inputs[0]),), _Ref((var,))
        facts: dict[str, Any] = {"elementwise": True, "name": eqn.op.name, "where": where, "ref": ref}
        self.nodes.append(ProblemNode(Kind.CONSTRAINT, operands, (number,), **facts))

    def by_spec(self, spec: PartitionSpec, rank: int) -> TensorSharding:
        """The sharding that a partition spec gives a tensor."""
        dims = [DimensionSharding()] * rank
        for n, entry in enumerate(spec.partitions):
            dims[n] = DimensionSharding(self.axes(entry_axes(entry)), is_open(entry), priority_of(entry))
        replicated = merged(resolve(self.mesh, axis_set(self.mesh, spec.replicated)))
        return TensorSharding(self.mesh, dims, replicated)

    def axes(self, names: Sequence[str]) -> tuple[AxisRef, ...]:
        return merged(resolve(self.mesh, [read_axis(name) for name in names]))


_READ: dict[Structure, Callable[[_ProgramReader, Eqn], None]] = {
    Structure.ROWS: _ProgramReader._scan,
    Structure.LOOP: _ProgramReader._while,
    Structure.BRANCH: _ProgramReader._cond,
    Structure.DEVICE: _ProgramReader._shard_map,
    Structure.CONSTRAINT: _ProgramReader._sharding_constraint,
}


def _dims(rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple((dim,) for dim in range(rank))


def _rows(shape: Shape) -> FactorRule:
    """An array and its rows: the first dim is whole, the others are the rows'."""
    whole, row = _dims(len(shape)), tuple((dim,) for dim in range(1, len(shape)))
    return FactorRule((whole,), (row,), shape, range(1, len(shape)))


def _update(shape: Shape) -> FactorRule:
    """An array with one of its rows replaced."""
    whole, row = _dims(len(shape)), tuple((dim,) for dim in range(1, len(shape)))
    return FactorRule((whole, row), (whole,), shape, range(1, len(shape)))


@lru_cache(maxsize=16384)
def _rule(
    op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...]
) -> tuple[FactorRule, Mapping[str, Any]]:
    """The rule of an op, and what decides when and in which direction it passes shardings on, read off the rule."""
    factors = check_fit(op.name, op.factors(operands, results, dict(params)), operands, results)  # type: ignore[operator]
    return FactorRule.of(factors), _facts(op, operands, factors)


def _facts(op: Op, types: tuple[TensorType, ...], factors: Factors) -> dict[str, Any]:
    if op.factors is pointwise or factors.elementwise:
        return {"elementwise": True, "passes": Direction.BOTH}
    if not types:
        return {"constant": True}
    shared = set(factors.sizes)
    plain = not (factors.reduced or factors.replicated or factors.permuted)
    operands = [{f for dim in dims for f in dim} for dims in factors.operands if dims]
    results = [{f for dim in dims for f in dim} for dims in factors.results]
    if plain and len(types) == 1 and all(t == shared for t in (*operands, *results)):
        return {"passes": Direction.BOTH}  # a rearrangement
    if plain and len(types) == 1 and results == [shared]:
        return {"backward_only": True, "spreads_scalar": not types[0].ndim}
    return {}

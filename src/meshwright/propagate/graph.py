"""A program that can be changed: ops in blocks, values with the list of their uses, shardings as they are known.

``GraphValue.uses`` has the newest use last. Their order decides in which order ops are visited, and so, now and then,
what propagation finds. Shardings are interned per graph, so equal ones are one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from meshwright.sharding.axes import Axes
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

OPEN = DimensionSharding(is_open=True)
CLOSED = DimensionSharding()


class Known(TensorSharding):
    """A sharding of which a graph has only one object, so that it is compared and hashed by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def plain(self) -> TensorSharding:
        """The sharding as everybody else knows it."""
        return TensorSharding.unchecked(self.mesh, self.dims, self.replicated, self.unreduced, self.reduction)


class GraphUse:
    """One operand of one op."""

    __slots__ = ("edges", "index", "op", "value")

    def __init__(self, op: GraphOp, index: int, value: GraphValue) -> None:
        self.op, self.index, self.value = op, index, value
        self.edges: tuple[GraphOp, ...] = ()  # those that this operand is a source of
        value.uses.append(self)

    def set(self, value: GraphValue) -> None:
        """Make the operand another value."""
        self.value.uses.remove(self)
        self.value = value
        value.uses.append(self)

    def drop(self) -> None:
        """The operand is no longer."""
        self.value.uses.remove(self)


class GraphValue:
    """A value: the result of ``op`` with number ``index``, or that argument of ``block``.

    ``edge`` is the data-flow edge that this value is a target of; the edge then holds its sharding. ``sunk`` is the
    result of the edge that it was a target of before the edges were taken out.
    """

    __slots__ = (
        "block",
        "edge",
        "given_by",
        "groups",
        "index",
        "op",
        "origin",
        "shape",
        "sharding",
        "sunk",
        "target_of",
        "uses",
    )

    def __init__(self, shape: tuple[int, ...] | None, op: GraphOp | None, block: GraphBlock | None, index: int) -> None:
        self.shape, self.op, self.block, self.index = shape, op, block, index
        self.uses: list[GraphUse] = []
        self.sharding: Known | None = None
        self.edge: GraphOp | None = None
        self.sunk: GraphValue | None = None
        self.target_of: GraphValue | None = None  # the result of a loop that its argument becomes, if there is no edge
        self.groups: GraphGroup | None = None
        self.given_by: GraphValue | GraphOp | None = None  # whose sharding was copied here before propagation
        self.origin: ProblemValue | None = None

    @property
    def holder(self) -> GraphValue:
        """The value that holds the sharding: the result of the edge this is a target of, or itself."""
        if self.edge is not None:
            return self.edge.results[0]
        return self if self.target_of is None else self.target_of

    @property
    def known(self) -> Known | None:
        """The sharding of the value."""
        return self.holder.sharding

    @property
    def is_argument(self) -> bool:
        return self.block is not None

    def replace_uses(self, value: GraphValue, but: GraphOp | None = None) -> None:
        """Let all uses (but those by one op) be uses of another value: the newest first, so that their order turns."""
        for use in self.uses[::-1]:
            if use.op is not but:
                use.set(value)


class GraphGroup:
    """Values that have one sharding."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[GraphValue] = []


class GraphBlock:
    """The block of a region; the last of its ops is the terminator."""

    __slots__ = ("arguments", "end", "ops", "parent")

    def __init__(self, parent: GraphOp | FunctionOp) -> None:
        self.parent = parent
        self.end = ("", "")
        self.arguments: list[GraphValue] = []
        self.ops: list[GraphOp] = []

    @property
    def terminator(self) -> GraphOp:
        return self.ops[-1]

    def insert_before(self, place: GraphOp, op: GraphOp) -> None:
        op.parent = self
        self.ops.insert(self.ops.index(place), op)

    def insert_after(self, place: GraphOp, op: GraphOp) -> None:
        op.parent = self
        self.ops.insert(self.ops.index(place) + 1, op)


class GraphOp:
    """A node of the graph. ``node`` holds its facts; a terminator has none."""

    __slots__ = (
        "blocks",
        "callee",
        "direction",
        "erased",
        "group",
        "in_shardings",
        "kind",
        "manual_axes",
        "node",
        "operands",
        "out_shardings",
        "parent",
        "queued",
        "results",
        "rule",
        "shows_rule",
        "sources",
    )

    def __init__(self, kind: Kind | None, node: ProblemNode | None, parent: GraphBlock | None) -> None:
        self.kind, self.node, self.parent = kind, node, parent
        self.operands: list[GraphUse] = []
        self.results: list[GraphValue] = []
        self.blocks: list[GraphBlock] = []
        self.rule: FactorRule | None = node.rule if node else None
        self.in_shardings: list[Known] | None = None
        self.out_shardings: list[Known] | None = None
        self.callee = ""
        self.manual_axes: tuple[str, ...] = node.manual_axes if node else ()
        self.group = 0
        self.direction = Direction.BOTH
        self.queued = False
        self.erased = False
        self.shows_rule = False
        self.sources: list[GraphUse] = []

    def add_result(self, shape: tuple[int, ...] | None) -> GraphValue:
        value = GraphValue(shape, self, None, len(self.results))
        self.results.append(value)
        return value

    def use(self, values: Sequence[GraphValue]) -> None:
        """Give the op its operands."""
        self.operands = [GraphUse(self, index, value) for index, value in enumerate(values)]

    def __repr__(self) -> str:
        label = self.node.name if self.node and self.node.name else self.kind.value if self.kind else "return"
        return f"<{label} {id(self):x}>"


class FunctionOp:
    """A function."""

    __slots__ = (
        "block", "calls", "manual_axes", "name", "origin", "original_name", "private", "ref", "result_shardings",
        "result_where",
    )  # fmt: skip

    def __init__(self, name: str, private: bool) -> None:
        self.name, self.private = name, private
        self.block = GraphBlock(self)
        self.result_shardings: list[Known | None] = []
        self.result_where: tuple[str, ...] = ()
        self.origin = name  # the function of the problem whose attributes it has
        self.original_name = ""  # of the function that it was copied from
        self.ref: Any = None  # if it was made of a computation, the reader's op
        self.manual_axes: tuple[str, ...] = ()
        self.calls: tuple[str, ...] | None = None

    @property
    def known_as(self) -> str:
        """The name that all copies of a function have in common."""
        return self.original_name or self.name


class Graph:
    """The functions of a problem as ops that can be moved, copied and erased."""

    def __init__(self, problem: Problem) -> None:
        self.meshes = problem.meshes
        self._shardings: dict[Any, Known] = {}
        self.functions: list[FunctionOp] = []
        values: list[GraphValue | None] = [None] * len(problem.values)
        for function in problem.functions:
            self._function(function, problem, values)
        self.by_number = values  # as the problem numbers them
        self.link_edges()

    @property
    def main(self) -> FunctionOp | None:
        """The only function, or the one of that name."""
        if len(self.functions) == 1:
            return self.functions[0]
        return next((function for function in self.functions if function.name == "main"), None)

    # Shardings

    def sharding(
        self,
        mesh: BaseMesh,
        dims: tuple[DimensionSharding, ...],
        replicated: Axes = (),
        unreduced: Axes = (),
        reduction: str = "sum",
    ) -> Known:
        """The one object for a sharding."""
        key = (mesh.name, mesh, dims, replicated, unreduced, reduction)
        found = self._shardings.get(key)
        if found is None:
            found = Known.__new__(Known)
            found._set(mesh, dims, replicated, unreduced, reduction)
            self._shardings[key] = found
        return found

    def intern(self, sharding: TensorSharding | None) -> Known | None:
        """The one object for a sharding from outside."""
        return None if sharding is None else self.interned(sharding)

    def interned(self, sharding: TensorSharding) -> Known:
        return self.sharding(sharding.mesh, sharding.dims, sharding.replicated, sharding.unreduced, sharding.reduction)

    def open_sharding(self, mesh: BaseMesh, rank: int) -> Known:
        """The sharding of a value of which nothing is known: every dim is open."""
        return self.sharding(mesh, (OPEN,) * rank)

    # Building

    def _function(self, function: ProblemFunction, problem: Problem, values: list[GraphValue | None]) -> None:
        op = FunctionOp(function.name, function.private)
        op.result_shardings = [self.intern(sharding) for sharding in function.result_shardings]
        op.result_where = function.result_where
        op.original_name, op.calls = function.original_name, function.calls
        self._block(op.block, function.block, problem, values)
        self.functions.append(op)

    def _value(self, value: GraphValue, number: int, problem: Problem, values: list[GraphValue | None]) -> GraphValue:
        written = problem.values[number]
        value.shape, value.origin = written.shape, written
        value.sharding = self.intern(written.sharding)
        values[number] = value
        return value

    def _block(self, block: GraphBlock, given: ProblemBlock, problem: Problem, values: list[GraphValue | None]) -> None:
        for index, number in enumerate(given.arguments):
            block.arguments.append(self._value(GraphValue(None, None, block, index), number, problem, values))
        for node in given.nodes:
            op = GraphOp(node.kind, node, block)
            block.ops.append(op)
            for region in node.regions:
                inner = GraphBlock(op)
                op.blocks.append(inner)
                self._block(inner, region, problem, values)
            op.callee, op.direction, op.group = node.callee, node.direction, node.group
            op.use([_made(values, number) for number in node.operands])
            if node.in_shardings is not None:
                op.in_shardings = [self.interned(sharding) for sharding in node.in_shardings]
            if node.out_shardings is not None:
                op.out_shardings = [self.interned(sharding) for sharding in node.out_shardings]
            for number in node.results:
                self._value(op.add_result(None), number, problem, values)
            set_targets(op)
        block.end = given.end
        terminator = GraphOp(None, None, block)
        block.ops.append(terminator)
        terminator.use([_made(values, number) for number in given.returns])

    def link_edges(self) -> None:
        """Find the sources and targets of each edge that is in the program."""
        for op in self.walk():
            if op.kind in (Kind.EDGE, Kind.FUNC_EDGE):
                self.link_edge(op)

    def link_edge(self, edge: GraphOp) -> None:
        """Find the sources and targets of an edge."""
        owner = edge.operands[0].value
        edge.sources, targets = edge_of(owner) if edge.kind is Kind.EDGE else (self._flowing_into(owner), [owner])
        for source in edge.sources:
            source.edges = (*source.edges, edge)
        for target in targets:
            target.edge = edge

    def _flowing_into(self, owner: GraphValue) -> list[GraphUse]:
        """What calls give an argument of a function, or what a function returns for a result of a call."""
        if owner.block is not None:
            function = owner.block.parent
            if not isinstance(function, FunctionOp):
                return []
            calls = [op for op in self.walk() if op.kind is Kind.CALL and op.callee == function.name]
            return [op.operands[owner.index] for op in calls]
        callee = owner.op.callee if owner.op is not None else ""
        return [f.block.terminator.operands[owner.index] for f in self.functions if f.name == callee]

    # Walking

    def walk(self) -> Iterator[GraphOp]:
        """All ops of all functions, an op before those inside it."""
        for function in self.functions:
            yield from walk(function.block)

    def ops(self) -> list[GraphOp]:
        """The same, all at once."""
        found: list[GraphOp] = []
        for function in self.functions:
            _add_ops(function.block, found)
        return found

    # Changing

    def sweep(self) -> None:
        """Take the ops that were erased out of their blocks."""
        for function in self.functions:
            sweep(function.block)

    def clone(self, op: GraphOp, mapping: dict[GraphValue, GraphValue]) -> GraphOp:
        """A copy of an op and of all inside it, which uses what ``mapping`` says instead of what the op uses."""
        copy = GraphOp(op.kind, op.node, None)
        copy.callee, copy.direction, copy.group = op.callee, op.direction, op.group
        copy.manual_axes = op.manual_axes
        copy.in_shardings = None if op.in_shardings is None else list(op.in_shardings)
        copy.out_shardings = None if op.out_shardings is None else list(op.out_shardings)
        copy.use([mapping.get(use.value, use.value) for use in op.operands])
        for block in op.blocks:
            inner = GraphBlock(copy)
            copy.blocks.append(inner)
            self.clone_block(block, inner, mapping)
        for value in op.results:
            new = copy.add_result(value.shape)
            new.sharding, new.origin = value.sharding, value.origin
            mapping[value] = new
        set_targets(copy)
        return copy

    def clone_block(self, block: GraphBlock, copy: GraphBlock, mapping: dict[GraphValue, GraphValue]) -> None:
        """Fill a block with a copy of another's arguments and ops."""
        copy.end = block.end
        for value in block.arguments:
            new = GraphValue(value.shape, None, copy, value.index)
            new.sharding, new.origin = value.sharding, value.origin
            copy.arguments.append(new)
            mapping[value] = new
        for op in block.ops:
            new_op = self.clone(op, mapping)
            new_op.parent = copy
            copy.ops.append(new_op)

    # The answer

    def problem(self) -> Problem:
        """The program as it is now."""
        numbers: dict[int, int] = {}
        values: list[ProblemValue] = []
        kept: list[GraphValue] = []

        def number(value: GraphValue) -> int:
            if id(value) not in numbers:
                numbers[id(value)] = len(values)
                kept.append(value)
                origin = value.origin or ProblemValue(None)
                values.append(ProblemValue(value.shape, _plain(value.sharding), origin.name, origin.where))
            return numbers[id(value)]

        def block(given: GraphBlock) -> ProblemBlock:
            arguments = tuple(map(number, given.arguments))
            nodes = tuple(node(op) for op in given.ops[:-1])
            return ProblemBlock(arguments, nodes, tuple(number(use.value) for use in given.terminator.operands))

        def node(op: GraphOp) -> ProblemNode:
            assert op.kind is not None
            base = op.node or ProblemNode(op.kind, (), ())
            return base._replace(
                kind=op.kind,
                operands=tuple(number(use.value) for use in op.operands),
                regions=tuple(map(block, op.blocks)),
                results=tuple(map(number, op.results)),
                in_shardings=None if op.in_shardings is None else tuple(s.plain() for s in op.in_shardings),
                out_shardings=None if op.out_shardings is None else tuple(s.plain() for s in op.out_shardings),
                callee=op.callee,
                group=op.group,
                manual_axes=op.manual_axes,
                direction=op.direction,
                shows_rule=op.shows_rule,
            )

        functions = tuple(
            ProblemFunction(
                f.name,
                block(f.block),
                tuple(map(_plain, f.result_shardings)),
                f.private,
                f.result_where,
                f.origin,
                f.original_name,
                f.ref,
                f.calls,
            )
            for f in self.functions
        )
        return Problem(tuple(values), functions, self.meshes)


def _plain(sharding: Known | None) -> TensorSharding | None:
    return None if sharding is None else sharding.plain()


def walk(block: GraphBlock) -> Iterator[GraphOp]:
    """All ops of a block, an op before those inside it."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk(inner)


def _add_ops(block: GraphBlock, found: list[GraphOp]) -> None:
    for op in block.ops:
        found.append(op)
        for inner in op.blocks:
            _add_ops(inner, found)


def can_hold(value: GraphValue) -> bool:
    """Whether a value has a place for a sharding: not the argument of a loop that no edge leads into."""
    if value.block is None:
        return True
    parent = value.block.parent
    return isinstance(parent, FunctionOp) or parent.kind in (Kind.MANUAL, Kind.NAMED)


def hold(graph: Graph, value: GraphValue, sharding: Known) -> None:
    """Write a sharding; results beside it that have none are then open."""
    if not can_hold(value):
        return
    op = value.op
    if op is not None and len(op.results) > 1 and all(result.sharding is None for result in op.results):
        for result in op.results:
            result.sharding = graph.open_sharding(sharding.mesh, len(result.shape or ()))
    value.sharding = sharding


def copy_function(
    graph: Graph, function: FunctionOp, numbers: Iterator[int], before: Callable[[FunctionOp], None] | None = None
) -> FunctionOp:
    """A copy of a function under a new name, at the end of the program; what ``before`` adds comes before it."""
    copy = FunctionOp("", True)
    copy.result_shardings, copy.result_where = list(function.result_shardings), function.result_where
    copy.origin, copy.original_name = function.origin, function.known_as
    graph.clone_block(function.block, copy.block, {})
    for op in walk(copy.block):
        if op.kind is Kind.EDGE:
            graph.link_edge(op)
    if before is not None:
        before(copy)
    copy.name = fresh_name(graph, function.name, numbers)
    graph.functions.append(copy)
    return copy


def fresh_name(graph: Graph, name: str, numbers: Iterator[int]) -> str:
    """A name that no function has yet: the given one with the next number that makes it so."""
    taken = {function.name for function in graph.functions}
    return next(found for number in numbers if (found := f"{name}_{number}") not in taken)


def callees_first(graph: Graph) -> list[FunctionOp]:
    """The functions in order, each after those that it calls."""
    functions = {function.name: function for function in graph.functions}
    found: dict[str, FunctionOp] = {}

    def visit(function: FunctionOp) -> None:
        if function.name in found:
            return
        for op in walk(function.block):
            if op.kind is Kind.CALL:
                visit(functions[op.callee])
        found[function.name] = function

    for function in graph.functions:
        visit(function)
    return list(found.values())


def inside_first(block: GraphBlock) -> Iterator[GraphOp]:
    """All ops of a block, an op after those inside it."""
    for op in block.ops:
        for inner in op.blocks:
            yield from inside_first(inner)
        yield op


def sweep(block: GraphBlock) -> None:
    """Take the ops that were erased out of a block."""
    if any(op.erased for op in block.ops):
        block.ops = [op for op in block.ops if not op.erased]
    for op in block.ops:
        for inner in op.blocks:
            sweep(inner)


def edge_of(owner: GraphValue) -> tuple[list[GraphUse], list[GraphValue]]:
    """What flows into an owner, and where that is seen: the owner first."""
    index = owner.index
    if owner.block is not None:  # the argument of a computation
        parent = owner.block.parent
        if isinstance(parent, FunctionOp) or parent.kind not in (Kind.MANUAL, Kind.NAMED):
            return [], [owner]
        return [parent.operands[index]], [owner]
    op = owner.op
    assert op is not None
    returned = [block.terminator.operands[index] for block in op.blocks if op.kind is not Kind.WHILE]
    if op.kind is Kind.WHILE:
        condition, body = op.blocks
        sources = [op.operands[index], body.terminator.operands[index]]
        return sources, [owner, condition.arguments[index], body.arguments[index]]
    if op.kind is Kind.FENCE:
        return [op.operands[index]], [owner]
    return returned, [owner]


def set_targets(op: GraphOp) -> None:
    """Let the arguments of a loop's regions know which result they become."""
    if op.kind is Kind.WHILE:
        for block in op.blocks:
            for argument, result in zip(block.arguments, op.results, strict=True):
                argument.target_of = result


def _made(values: list[GraphValue | None], number: int) -> GraphValue:
    value = values[number]
    if value is None:
        raise ValueError(f"value {number} is used before it is made")
    return value

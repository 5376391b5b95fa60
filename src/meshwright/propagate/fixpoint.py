"""Steps until nothing changes: which node is visited when.

Nodes are visited in the order of the program; a value that changes puts its maker and its users onto the stack of nodes
to visit, unless they are on it already. Nodes whose results nobody uses are taken out when it is their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshwright.propagate.graph import FunctionOp, Graph, GraphOp, GraphValue, Known, can_hold, hold, walk
from meshwright.propagate.groups import form_groups
from meshwright.propagate.manual import begin_computation, finish_computation, with_manual, without_manual
from meshwright.propagate.problem import Direction, FactorRule, Kind
from meshwright.propagate.step import Changes, step

Directions = tuple[Direction, Direction]  # of the factors that pass through, and of all others
DirectionOf = Callable[[GraphOp], Directions]

BOTH: Directions = (Direction.BOTH, Direction.BOTH)
_COMPUTATIONS = (Kind.MANUAL, Kind.NAMED)
_EDGES = (Kind.EDGE, Kind.FUNC_EDGE)
_WHOLE_OR_PART = (*_EDGES, Kind.BARRIER)  # never conservative
_IDENTITIES = (Kind.CONSTRAINT, Kind.BARRIER)


def both(op: GraphOp) -> Directions:
    """Every node passes shardings both ways."""
    return BOTH


class ShardingEvent(NamedTuple):
    """A value was given a sharding.

    ``by`` is the node, or the function whose result it is; ``values`` are what the node joins, ``before`` their
    shardings as the step saw them, ``number`` which of them it is. A value of a group that another one changed has that
    one in ``values`` and no rule.
    """

    value: GraphValue
    sharding: Known
    by: GraphOp | FunctionOp
    rule: FactorRule | None
    values: tuple[GraphValue, ...]
    before: tuple[Known | None, ...]
    number: int


class JoinedTensors(NamedTuple):
    """What a node joins: its rule, and the values that hold the shardings of its operands and results."""

    rule: FactorRule
    values: tuple[GraphValue, ...]
    elementwise: bool
    is_manual_edge: bool

    @staticmethod
    def of(
        rule: FactorRule, seen: tuple[GraphValue, ...], elementwise: bool = False, is_manual_edge: bool = False
    ) -> JoinedTensors:
        return JoinedTensors(rule, tuple([value.holder for value in seen]), elementwise, is_manual_edge)


class Propagation:
    """The shardings of a graph while they grow."""

    def __init__(self, graph: Graph, *, use_basic: bool = False, conservative: bool = False) -> None:
        self.graph = graph
        self.use_basic, self.conservative = use_basic, conservative
        self.events: list[ShardingEvent] = []
        self._steps: dict[object, Changes] = {}
        self._computations = [op for op in graph.ops() if op.kind in _COMPUTATIONS]
        for op in self._computations:
            begin_computation(graph, op)
        self.told = form_groups(graph)
        self._joined: dict[int, JoinedTensors] = {}
        self._stack: list[GraphOp] = []
        self._current: GraphOp | None = None

    # One run

    def run(self, direction_of: DirectionOf = both) -> None:
        """Let shardings pass until nothing changes."""
        self._exchange_results()
        order = self.graph.ops()
        order.reverse()
        self._stack = order
        for op in order:
            op.queued = True
        while order:
            op = order.pop()
            if op.erased:
                continue
            op.queued = False
            if is_dead(op):
                self._current = None
                self._erase(op)
                continue
            self._visit(op, direction_of)
        self.graph.sweep()
        self._exchange_results()

    def finish(self) -> None:
        """Write what was found for the results and arguments of a computation where it says it."""
        for op in self.graph.ops():
            op.shows_rule = op.shows_rule or op.kind is Kind.CONSTRAINT
        for op in self._computations:
            finish_computation(self.graph, op)

    def _visit(self, op: GraphOp, direction_of: DirectionOf) -> None:
        joined = self._joined.get(id(op))
        if joined is None:
            found = self._join(op)
            if found is None:
                return
            joined = self._joined[id(op)] = found
        self._current = op
        if joined.is_manual_edge:
            self._visit_manual_edge(op, joined, direction_of(op))
            return
        directions = direction_of(op) if op.kind is not Kind.BARRIER else (op.direction, op.direction)
        rule, values = joined.rule, joined.values
        before = tuple([value.sharding for value in values])
        if not any(before):
            return
        for number, sharding in self.step(rule, before, directions, joined.elementwise, op.kind not in _WHOLE_OR_PART):
            self._set(joined, number, sharding, op, before)

    def _join(self, op: GraphOp) -> JoinedTensors | None:
        """The rule and tensors of a node, if it passes shardings on."""
        if op.kind in _EDGES:
            shape = op.results[0].shape
            if shape is None:
                return None
            owner = op.operands[0].value
            parent = owner.op if owner.block is None else owner.block.parent
            manual = isinstance(parent, GraphOp) and parent.kind is Kind.MANUAL
            sources = [use.value for use in op.sources]
            return JoinedTensors.of(FactorRule.identity(shape, len(sources)), (*sources, op.results[0]), False, manual)
        if op.kind in _IDENTITIES:
            shape = op.results[0].shape
            if shape is None:
                return None
            return JoinedTensors.of(FactorRule.identity(shape), (op.operands[0].value, op.results[0]), True)
        if op.rule is None or op.kind is not Kind.OP:
            return None
        assert op.node is not None
        return JoinedTensors.of(op.rule, (*(use.value for use in op.operands), *op.results), op.node.elementwise)

    def step(
        self,
        rule: FactorRule,
        before: tuple[Known | None, ...],
        directions: Directions,
        elementwise: bool = False,
        may_be_conservative: bool = True,
    ) -> Changes:
        """The shardings of a node's tensors after one step from given ones; equal questions are remembered."""
        key = (rule, before, directions, elementwise, may_be_conservative)
        found = self._steps.get(key)
        if found is None:
            passing, other = directions
            per_factor = [
                Direction.NONE if factor in rule.blocked else passing if factor in rule.passing else other
                for factor in range(len(rule.sizes))
            ]
            found = self._steps[key] = step(
                rule,
                before,
                per_factor,
                self.graph.sharding,
                use_basic=self.use_basic,
                conservative=self.conservative and may_be_conservative,
                elementwise=elementwise,
            )
        return found

    @property
    def different_steps(self) -> int:
        """How many steps were taken that were not remembered."""
        return len(self._steps)

    # Changing a sharding

    def _set(
        self,
        joined: JoinedTensors,
        number: int,
        sharding: Known,
        by: GraphOp | FunctionOp,
        before: tuple[Known | None, ...],
    ) -> None:
        value = joined.values[number]
        if not can_hold(value):
            return
        hold(self.graph, value, sharding)
        self.events.append(ShardingEvent(value, sharding, by, joined.rule, joined.values, before, number))
        self._notify(value)
        if value.groups is not None:
            for member in value.groups.members:
                if member is not value:
                    holder = member.holder
                    hold(self.graph, holder, sharding)
                    self.events.append(ShardingEvent(holder, sharding, by, None, (value,), (sharding,), 0))
                    self._notify(holder)

    def _notify(self, value: GraphValue) -> None:
        """Put everybody who sees the value onto the stack, its first user on top."""
        op = value.op
        if op is not None:
            if op.kind is Kind.EDGE:
                for target in targets_of(op):
                    if target is not op.operands[0].value:
                        self._notify_users(target)
            self._push(op)
        self._notify_users(value)

    def _notify_users(self, value: GraphValue) -> None:
        for use in reversed(value.uses):
            edges = use.edges
            if not edges:
                self._push(use.op)
            elif use.op.kind not in _COMPUTATIONS:
                for edge in edges:
                    self._push(edge)

    def _push(self, op: GraphOp) -> None:
        if not op.queued and op is not self._current:
            op.queued = True
            self._stack.append(op)

    def _erase(self, op: GraphOp) -> None:
        """Take out a dead node; whoever made its operands may be dead now too."""
        inner = [op, *(one for block in op.blocks for one in walk(block))]
        for one in reversed(inner):
            if one.erased:
                continue
            for use in one.operands:
                others: set[int] = set()
                for other in use.value.uses:
                    if other.op is not one:
                        others.add(id(other.op))
                maker = use.value.op
                if maker is not None and len(others) <= 1 and maker is not op:
                    self._push(maker)
            for use in one.operands:
                use.drop()
            one.erased = True

    # Special places

    def _exchange_results(self) -> None:
        """The values that main returns and the shardings written for its results learn from each other."""
        main = self.graph.main
        if main is None:
            return
        for number, use in enumerate(main.block.terminator.operands):
            shape = use.value.shape
            if shape is None:
                continue
            joined = JoinedTensors.of(FactorRule.identity(shape), (use.value,))
            before = (use.value.known, main.result_shardings[number])
            for place, sharding in self.step(joined.rule, before, BOTH, False, False):
                if place == 0:
                    self._set(joined, 0, sharding, main, before)
                else:
                    main.result_shardings[number] = sharding

    def _visit_manual_edge(self, op: GraphOp, joined: JoinedTensors, directions: Directions) -> None:
        """An edge into or out of a manual computation: outside, dims have the manual axes first."""
        rule, values = joined.rule, joined.values
        owner, graph, own = op.operands[0].value, self.graph, values[-1].sharding
        enters = owner.block is not None
        parent = owner.op if owner.block is None else owner.block.parent
        assert isinstance(parent, GraphOp)
        manual = parent.manual_axes
        written = parent.in_shardings if enters else parent.out_shardings
        assert written is not None
        outside = written[owner.index]
        seen = own
        if enters:
            seen = with_manual(graph, outside, own or graph.open_sharding(outside.mesh, len(rule.sizes)), manual)
        elif own is not None:
            seen = without_manual(graph, own, manual)
        before = (*(value.sharding for value in values[:-1]), seen)
        for number, sharding in self.step(rule, before, directions, False, False):
            if number == len(values) - 1:
                if enters:
                    sharding = without_manual(graph, sharding, manual)
                else:
                    sharding = with_manual(graph, outside, sharding, manual)
            self._set(joined, number, sharding, op, before)


def targets_of(edge: GraphOp) -> list[GraphValue]:
    """The values whose sharding an edge holds."""
    owner = edge.operands[0].value
    op = owner.op
    if op is not None and op.kind is Kind.WHILE:
        return [owner, *(block.arguments[owner.index] for block in op.blocks)]
    return [owner]


def is_dead(op: GraphOp) -> bool:
    """Whether nobody would miss the node."""
    for result in op.results:
        if result.uses:
            return False
    return is_pure(op)


_NEVER_PURE = (None, Kind.CONSTRAINT, Kind.GROUP, Kind.EDGE, Kind.FUNC_EDGE, Kind.CALL)


def is_pure(op: GraphOp) -> bool:
    """Whether the node does nothing but make its results."""
    if op.kind in _NEVER_PURE or (op.node is not None and not op.node.pure):
        return False
    return all(is_pure(inner) for block in op.blocks for inner in block.ops[:-1])

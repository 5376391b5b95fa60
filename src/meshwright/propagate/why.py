"""Why a value is sharded as it is: from each axis back to the annotation it came from, node by node.

Propagation keeps an ``Event`` for each sharding it sets: the node, the shardings it saw. An axis of a dim of a value
was brought by the first event that has it there; through the node's rule it stands in a factor, and some other tensor
of the node had it in that factor before. So the chain goes back until a sharding that somebody wrote.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from meshwright.propagate.fixpoint import ShardingEvent
from meshwright.propagate.graph import FunctionOp, Graph, GraphOp, GraphValue, Known
from meshwright.propagate.problem import FactorRule, Kind
from meshwright.propagate.project import Projection, project, shapes_of
from meshwright.propagate.run import Answer
from meshwright.sharding.axes import Axes, AxisRef


class Link(NamedTuple):
    """A value that has an axis on a dim. ``by`` is what brought it there, None if it was written for the value itself.

    The last link is the annotation: on the value, or in ``by``, a function (for a result) or a manual computation.
    """

    value: GraphValue
    dim: int
    axis: AxisRef
    by: GraphOp | FunctionOp | None

    def __str__(self) -> str:
        origin, name = self.value.origin, _named(self.value)
        where = f" at {origin.where}" if origin is not None and origin.where else ""
        if self.by is None:
            return f"{name}, dim {self.dim}, over {self.axis}: written{where}"
        return f"{name}, dim {self.dim}, over {self.axis}: through {label(self.by)}"


class Conflict(NamedTuple):
    """Two tensors of a node that want different axes for one factor, and where each side comes from."""

    node: GraphOp
    factor: int
    one: tuple[GraphValue, Axes]
    other: tuple[GraphValue, Axes]


def label(by: GraphOp | FunctionOp) -> str:
    """The op that brought an axis, in words."""
    if isinstance(by, FunctionOp):
        return f"the results of {by.name}"
    if by.kind is Kind.EDGE:
        owner = by.operands[0].value
        around = owner.op if owner.block is None else owner.block.parent
        if isinstance(around, GraphOp) and around.node is not None and around.node.name:
            by = around
    name = by.node.name if by.node is not None and by.node.name else by.kind.value if by.kind else "return"
    where = f" at {by.node.where}" if by.node is not None and by.node.where else ""
    return name + where


class AnswerReasons:
    """The reasons of a propagated graph's shardings.

    >>> from meshwright.sharding.mesh import Mesh
    >>> from meshwright.sharding.named import TensorSharding
    >>> from meshwright.propagate.problem import ProblemBlock, ProblemFunction, ProblemNode, Problem, ProblemValue
    >>> from meshwright.propagate.run import run
    >>> given = TensorSharding.parse('sharding<@mesh, [{"x"}, {?}]>', Mesh.parse('<["x"=2]>'))
    >>> negate = ProblemNode(Kind.OP, (0,), (1,), FactorRule.identity((4, 8)), elementwise=True, name="negate")
    >>> main = ProblemFunction("main", ProblemBlock((0,), (negate,), (1,)), (None,))
    >>> values = (ProblemValue((4, 8), given, "%0", "model.py:3"), ProblemValue((4, 8), None, "%1"))
    >>> answer = run(Problem(values, (main,)), ["sdy-basic-propagate"])
    >>> result = answer.graph.functions[0].block.ops[0].results[0]
    >>> for link in AnswerReasons(answer).chain(result, 0):
    ...     print(link)
    %1, dim 0, over "x": through negate
    %0, dim 0, over "x": written at model.py:3
    """

    def __init__(self, answer: Answer) -> None:
        self.events = answer.events
        self.graph: Graph = answer.graph
        self._of: dict[GraphValue, list[int]] = {}  # the events that set a value, by number
        for number, event in enumerate(self.events):
            self._of.setdefault(event.value, []).append(number)

    def chain(self, value: GraphValue, dim: int, axis: AxisRef | None = None) -> list[Link]:
        """From the axis (the first one of the dim, by default) on a dim of a value back to where it was written.

        The value is one whose sharding propagation left: an argument, the result of a node, the result of an edge.
        """
        holder = value.sunk or value.holder
        sharding = self._last(holder, len(self.events))
        if axis is None:
            if sharding is None or not sharding.dims[dim].axes:
                return []
            axis = sharding.dims[dim].axes[0]
        return list(self._back(holder, dim, axis, len(self.events)))

    def _last(self, value: GraphValue, before: int) -> Known | None:
        """The sharding of a value before an event."""
        numbers = self._of.get(value, [])
        place = bisect_left(numbers, before)
        if place:
            return self.events[numbers[place - 1]].sharding
        if not numbers:
            return value.sharding
        first = self.events[numbers[0]]
        return first.before[first.number] if first.rule is not None else None

    def _brought(self, value: GraphValue, dim: int, axis: AxisRef, before: int) -> int | None:
        """The first event before another from which on the value has the axis; None if it had it from the beginning."""
        numbers = self._of.get(value, [])
        place = bisect_left(numbers, before)
        found = None
        while place and _has(self.events[numbers[place - 1]].sharding, dim, axis):
            found = numbers[place - 1]
            place -= 1
        if found is None:
            return None
        event = self.events[found]
        if event.rule is not None and _has(event.before[event.number], dim, axis):
            return None  # written, and held back until its priority's turn
        return found

    def _back(self, value: GraphValue, dim: int, axis: AxisRef, before: int) -> Iterator[Link]:
        while True:
            number = self._brought(value, dim, axis, before)
            if number is None:
                giver = value.given_by
                if isinstance(giver, GraphOp):  # a manual computation that the value goes into
                    yield Link(value, dim, axis, giver)
                    return
                if giver is None:
                    yield Link(value, dim, axis, None)
                    return
                yield Link(value, dim, axis, giver.op)  # copied before propagation
                value, before = giver, 0
                continue
            event = self.events[number]
            source = self._source(event, dim, axis)
            if source is None and isinstance(event.by, GraphOp):
                yield Link(value, dim, axis, None)  # written where a computation says what goes in or comes out
                return
            yield Link(value, dim, axis, event.by)
            if source is None:
                return
            value, dim, before = source[0], source[1], number

    def _source(self, event: ShardingEvent, dim: int, axis: AxisRef) -> tuple[GraphValue, int] | None:
        """The tensor of a node, and its dim, that had the axis before."""
        if event.rule is None:  # a value of the same group
            return event.values[0], dim
        shapes, _ = shapes_of(event.rule)
        factors = set(shapes[event.number].dims[dim])
        for number, (shape, sharding) in enumerate(zip(shapes, event.before, strict=True)):
            if number == event.number or sharding is None or number >= len(event.values):
                continue
            projection = project(shape, sharding)
            for other, names in enumerate(shape.dims):
                for factor in names:
                    if factor in factors and _overlaps(projection, factor, axis):
                        return event.values[number], other
        return None

    def conflicts(self) -> Iterator[Conflict]:
        """Where two tensors of a node are sharded differently along one factor."""
        for op in self.graph.walk():
            if op.kind is not Kind.OP or op.rule is None:
                continue
            values = [*(use.value.holder for use in op.operands), *op.results]
            yield from _conflicts_of(op, op.rule, values)


def _conflicts_of(op: GraphOp, rule: FactorRule, values: list[GraphValue]) -> Iterator[Conflict]:
    shapes, _ = shapes_of(rule)
    found: dict[int, tuple[GraphValue, Axes]] = {}
    for shape, value in zip(shapes, values, strict=True):
        if value.sharding is None or value.sharding.mesh.is_maximal:
            continue
        for factor, (axes, _, _, _) in project(shape, value.sharding).items():
            first = found.setdefault(factor, (value, axes))
            if first[1] != axes:
                yield Conflict(op, factor, first, (value, axes))


def _has(sharding: Known | None, dim: int, axis: AxisRef) -> bool:
    return sharding is not None and any(one.overlaps(axis) for one in sharding.dims[dim].axes)


def _overlaps(projection: Projection, factor: int, axis: AxisRef) -> bool:
    found = projection.get(factor)
    return found is not None and any(one.overlaps(axis) for one in (*found[0], *found[1]))


def explain(answer: Answer) -> Iterator[str]:
    """Line by line, where each axis of each value of a propagated program comes from; then the conflicts."""
    why = AnswerReasons(answer)
    arguments = [value for function in answer.graph.functions for value in function.block.arguments]
    results = [value for op in answer.graph.walk() for value in op.results if value.edge is None]
    for value in (*arguments, *results):
        if value.sharding is None:
            continue
        for dim, sharding in enumerate(value.sharding.dims):
            for axis in sharding.axes:
                first, *rest = why.chain(value, dim, axis) or [Link(value, dim, axis, None)]
                yield str(first)
                yield from (f"  from {link}" for link in rest)
    for conflict in why.conflicts():
        (one, axes), (other, others) = conflict.one, conflict.other
        yield f"At {label(conflict.node)}: {_named(one)} has {_listed(axes)}, {_named(other)} has {_listed(others)}"


def _named(value: GraphValue) -> str:
    return value.origin.name if value.origin is not None and value.origin.name else "a value"


def _listed(axes: Axes) -> str:
    return ", ".join(map(str, axes)) or "nothing"

"""What propagates first: priorities of ops, and priorities that users wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshwright.propagate.fixpoint import BOTH, Directions, Propagation
from meshwright.propagate.graph import CLOSED, Graph, GraphOp, GraphValue, Known
from meshwright.propagate.problem import Direction, Kind
from meshwright.sharding.axes import in_mesh_order

_NONE: Directions = (Direction.NONE, Direction.NONE)
_ALWAYS_PASS = (Kind.EDGE, Kind.FUNC_EDGE, Kind.CONSTRAINT, Kind.BARRIER)


def _passes(op: GraphOp) -> Direction:
    if op.kind in _ALWAYS_PASS:
        return Direction.BOTH
    return Direction.NONE if op.node is None else op.node.passes


def _through(op: GraphOp) -> Direction:
    return Direction.BACKWARD if op.node is not None and op.node.backward_only else Direction.BOTH


def _used_once(op: GraphOp) -> bool:
    """Whether every operand that is no scalar is used here only."""
    return all(len(use.value.uses) == 1 or use.value.shape == () for use in op.operands)


def first(op: GraphOp) -> Directions:
    """Round 0: nodes that keep dims as they are, where nothing else uses their operands."""
    passes = _passes(op)
    return (passes, passes) if passes and _used_once(op) else _NONE


def second(op: GraphOp) -> Directions:
    """Round 1: all nodes that keep dims as they are."""
    passes = _passes(op)
    return passes, passes


def third(op: GraphOp) -> Directions:
    """Round 2: also all factors that pass through."""
    passes = _passes(op)
    return passes.union(_through(op)), passes


def fourth(op: GraphOp) -> Directions:
    """Round 3: all factors; broadcasts backward only."""
    found = _passes(op).union(_through(op))
    return found, found


def last(op: GraphOp) -> Directions:
    """Round 4: everything."""
    return BOTH


def by_op(propagation: Propagation) -> None:
    """Rounds of propagation, each with more nodes and factors than the one before."""
    for direction_of in (first, second, third, fourth, last):
        propagation.run(direction_of)


class _WrittenAt(NamedTuple):
    """Where a sharding was written: on a value, or for a function's result."""

    holder: GraphValue | list[Any]
    number: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether the value was taken out because nobody uses it."""
        return isinstance(self.holder, GraphValue) and self.holder.op is not None and self.holder.op.erased

    def read(self) -> Known:
        found = self.holder.sharding if isinstance(self.holder, GraphValue) else self.holder[self.number]
        assert found is not None
        return found

    def write(self, sharding: Known) -> None:
        if isinstance(self.holder, GraphValue):
            self.holder.sharding = sharding
        else:
            self.holder[self.number] = sharding


def by_user(propagation: Propagation, inner: Callable[[Propagation], None] = by_op) -> None:
    """The dims of priority 0 first, then those of 1, and so on; each time ``inner`` runs."""
    graph = propagation.graph
    priorities: set[int] = set()
    held: list[tuple[_WrittenAt, Known]] = []
    for place in _written(graph):
        sharding = place.read()
        found = {dim.priority for dim in sharding.dims if dim.priority}
        if any(dim.priority is not None for dim in sharding.dims):
            place.write(_hold_back(graph, sharding))
        if found:
            priorities |= found
            held.append((place, sharding))
    inner(propagation)
    for priority in sorted(priorities):
        for place, sharding in held:
            if any(dim.priority == priority for dim in sharding.dims):
                if place.is_gone:
                    propagation.told.append(f"A value with {sharding} is used by nobody, its priorities do nothing.")
                    continue
                place.write(_release(graph, sharding, place.read(), priority))
        inner(propagation)


def _written(graph: Graph) -> list[_WrittenAt]:
    """All shardings that somebody wrote."""
    found: list[_WrittenAt] = []
    for function in graph.functions:
        found.extend(_WrittenAt(value) for value in function.block.arguments if value.sharding is not None)
        found.extend(
            _WrittenAt(function.result_shardings, number)
            for number, sharding in enumerate(function.result_shardings)
            if sharding is not None
        )
    for op in graph.walk():
        found.extend(_WrittenAt(value) for value in op.results if value.sharding is not None and value.edge is None)
    return found


def _hold_back(graph: Graph, sharding: Known) -> Known:
    """Dims of a later priority are empty and closed until their turn, their axes reserved."""
    reserved = tuple(axis for dim in sharding.dims if dim.priority for axis in dim.axes)
    dims = tuple(CLOSED if dim.priority else dim.with_(priority=None) for dim in sharding.dims)
    replicated = in_mesh_order((*sharding.replicated, *reserved), sharding.mesh.axis_names)
    return graph.sharding(sharding.mesh, dims, replicated, sharding.unreduced, sharding.reduction)


def _release(graph: Graph, written: Known, now: Known, priority: int) -> Known:
    """The dims of one priority as they were written, their axes no longer reserved."""
    due = [dim.priority == priority for dim in written.dims]
    axes = {axis for dim, is_due in zip(written.dims, due, strict=True) if is_due for axis in dim.axes}
    dims = tuple(
        one.with_(priority=None) if is_due else other
        for one, other, is_due in zip(written.dims, now.dims, due, strict=True)
    )
    replicated = tuple(axis for axis in now.replicated if axis not in axes)
    return graph.sharding(now.mesh, dims, replicated, now.unreduced, now.reduction)

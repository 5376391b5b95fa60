"""Sharding constraints before propagation: one that is closed decides the sharding of its input."""

from __future__ import annotations

from meshwright.propagate.graph import OPEN, Graph, GraphOp, GraphValue, Known, hold, inside_first
from meshwright.propagate.groups import place_after
from meshwright.propagate.manual import begin_computation, finish_computation, write_inside
from meshwright.propagate.problem import Kind


def apply_constraints(graph: Graph) -> None:
    """Copy closed constraints to what they constrain, and let later users see the constrained value."""
    order = [op for function in graph.functions for op in inside_first(function.block)]
    computations = [op for op in order if op.kind in (Kind.MANUAL, Kind.NAMED)]
    for op in computations:
        begin_computation(graph, op)
    for op in order:
        if op.kind is Kind.CONSTRAINT:
            first = _first_of_chain(op)
            if first is not None:
                _let_later_users_see(graph, op, first.operands[0].value, first)
    for op in order:
        if op.kind is Kind.CONSTRAINT:
            sharding = op.results[0].sharding
            assert sharding is not None
            _apply(graph, op.operands[0].value, sharding, op, op)
        elif op.kind is Kind.MANUAL:
            write_inside(graph, op)
            for use, sharding in zip(list(op.operands), op.in_shardings or (), strict=True):
                _apply(graph, use.value, sharding, op, None)
    for op in computations:
        finish_computation(graph, op)


def _apply(graph: Graph, value: GraphValue, sharding: Known, op: GraphOp, constraint: GraphOp | None) -> None:
    if value.shape is None or _is_said(value) or any(dim.is_open for dim in sharding.dims):
        return
    if any(_constrains_otherwise(use.op, use.index, sharding) for use in value.uses):
        return
    holder = value.holder
    if holder.op is not None and holder.op.kind in (Kind.EDGE, Kind.FUNC_EDGE):
        _constrain_edge(graph, value, sharding, constraint)
    else:
        hold(graph, holder, sharding)
        holder.given_by = constraint.results[0] if constraint is not None else op
        if constraint is not None:
            constraint.shows_rule = True


def _is_said(value: GraphValue) -> bool:
    """Whether anything was said of how a value is sharded: more than that its dims are open.

    Of a scalar, that it has a sharding says enough, but not, as in Shardy, of one of several results, or of what a
    manual computation makes.
    """
    known = value.known
    if known is None:
        return False
    one_of_many = value.op is not None and (value.op.kind is Kind.MANUAL or len(value.op.results) > 1)
    scalar = not known.dims and not one_of_many
    return scalar or bool(known.replicated or known.unreduced) or any(dim != OPEN for dim in known.dims)


def _constrains_otherwise(op: GraphOp, index: int, sharding: Known) -> bool:
    if op.kind is Kind.CONSTRAINT:
        return op.results[0].sharding is not sharding
    if op.kind is Kind.MANUAL:
        return op.in_shardings is not None and op.in_shardings[index] is not sharding
    return False


def _constrain_edge(graph: Graph, value: GraphValue, sharding: Known, constraint: GraphOp | None) -> None:
    """Put the constraint right after an edge, before everybody else."""
    if constraint is None:
        constraint = GraphOp(Kind.CONSTRAINT, None, None)
        result = constraint.add_result(value.shape)
        result.sharding, result.origin = sharding, value.origin
        constraint.use([value])
    else:
        assert constraint.parent is not None
        constraint.parent.ops.remove(constraint)
    place_after(value, constraint)
    value.replace_uses(constraint.results[0], but=constraint)
    if sharding.unreduced:
        value.holder.sharding = graph.sharding(
            sharding.mesh, (OPEN,) * len(sharding.dims), (), sharding.unreduced, sharding.reduction
        )


def _first_of_chain(op: GraphOp) -> GraphOp | None:
    """The first of a chain of constraints, each the only user of the one before, of which ``op`` is the last.

    The chain is of two at least, and nobody else constrains the value.
    """
    if any(use.op.kind in (Kind.CONSTRAINT, Kind.MANUAL) for use in op.results[0].uses):
        return None
    first = op
    while True:
        before = first.operands[0].value.op
        if before is None or before.kind is not Kind.CONSTRAINT or len(before.results[0].uses) != 1:
            break
        first = before
    value = first.operands[0].value
    others = [use.op for use in value.uses if use.op is not first]
    if first is op or _is_said(value):
        return None
    if any(other.kind in (Kind.CONSTRAINT, Kind.MANUAL) for other in others):
        return None
    return first


def _let_later_users_see(graph: Graph, op: GraphOp, value: GraphValue, first: GraphOp) -> None:
    """Users of a value in the same block, after its constraint, use the constrained value; main returns what it did."""
    block = op.parent
    assert block is not None
    place = {id(one): number for number, one in enumerate(block.ops)}
    for use in value.uses[::-1]:
        if use.op.kind is None and block.parent is graph.main:
            continue
        if use.op is not first and place.get(id(use.op), -1) > place[id(op)]:
            use.set(op.results[0])

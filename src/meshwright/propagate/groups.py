"""Sharding groups: values that are to have one sharding."""

from __future__ import annotations

from meshwright.propagate.graph import Graph, GraphGroup, GraphOp, GraphValue, Known, hold
from meshwright.propagate.problem import Kind, Refusal


def import_groups(graph: Graph) -> None:
    """Groups that share a value become one; they are numbered as they are met, and a value is in its group once."""
    ops = [op for op in graph.walk() if op.kind is Kind.GROUP]
    if not ops:
        return
    parent: dict[int, int] = {}

    def find(group: int) -> int:
        parent.setdefault(group, group)
        while parent[group] != group:
            group = parent[group]
        return group

    first: dict[GraphValue, int] = {}
    for op in ops:
        value = op.operands[0].value
        one, other = find(op.group), find(first.setdefault(value, op.group))
        parent[max(one, other)] = min(one, other)
    roots = list(dict.fromkeys(find(op.group) for op in ops))
    seen: set[GraphValue] = set()
    for op in ops:
        value = op.operands[0].value
        if value in seen:
            op.operands[0].drop()
            op.erased = True
        seen.add(value)
    left = [op for op in ops if not op.erased]
    for op in left:
        op.group = find(op.group)
    _check(left)
    for op in left:
        op.group = roots.index(op.group)
    graph.sweep()


def _check(ops: list[GraphOp]) -> None:
    by_group: dict[int, GraphOp] = {}
    for op in ops:
        first = by_group.setdefault(op.group, op)
        one, other = first.operands[0].value, op.operands[0].value
        if one.shape != other.shape:
            raise Refusal(
                f"Values of the shapes {one.shape} and {other.shape} are in one sharding group.",
                message=f"ShardingGroupOps values must have the same shape for groupId: {op.group}",
                where=op.node.where if op.node else "",
                why="the values of a group have one sharding, so they have one shape",
                fix="give them groups of their own",
            )
        if _computation(first) is not _computation(op):
            raise Refusal(
                "A sharding group has values inside and outside of a manual computation.",
                message=f"ShardingGroupOps values cannot cross ManualComputationOp boundaries for groupId: {op.group}",
                where=op.node.where if op.node else "",
                why="inside, the manual axes are not there to shard over",
                fix="give the values inside a group of their own",
            )


def _computation(op: GraphOp) -> GraphOp | None:
    """The manual computation that an op is in."""
    place = op.parent
    while place is not None and isinstance(place.parent, GraphOp):
        if place.parent.kind is Kind.MANUAL:
            return place.parent
        place = place.parent.parent
    return None


def form_groups(graph: Graph) -> list[str]:
    """Let the values of each group know each other, and have one sharding; what could not be is told.

    If several different shardings were written, a constraint that says nothing is put after each value, as often as it
    is in the group, and takes its place there.
    """
    groups: dict[int, list[GraphOp]] = {}
    for op in graph.walk():
        if op.kind is Kind.GROUP:
            groups.setdefault(op.group, []).append(op)
    told = []
    for number, ops in groups.items():
        values = list(dict.fromkeys(op.operands[0].value for op in ops))
        written = [value.known for value in values]
        known = [sharding for sharding in written if sharding is not None and not _is_trivial(sharding)]
        if len(set(known)) > 1:
            told.append(
                f"The values of sharding group {number} have different shardings: "
                + ", ".join(sorted({str(sharding) for sharding in known}))
            )
            values = [_constrain(graph, op.operands[0].value, known[0]) for op in ops]
        elif known:
            giver = next(value.holder for value in values if value.known is known[0])
            for value in values:
                if value.holder.sharding is not known[0]:
                    value.holder.given_by = giver
                hold(graph, value.holder, known[0])
        group = GraphGroup()
        group.members = values
        for value in values:
            value.groups = group
    return told


def _is_trivial(sharding: Known) -> bool:
    return all(dim.is_open and not dim.axes for dim in sharding.dims)


def _constrain(graph: Graph, value: GraphValue, like: Known) -> GraphValue:
    """A constraint after a value, which everybody uses instead of it."""
    constraint = GraphOp(Kind.CONSTRAINT, None, None)
    result = constraint.add_result(value.shape)
    result.sharding = graph.open_sharding(like.mesh, len(value.shape or ()))
    result.origin = value.origin
    value.replace_uses(result)
    constraint.use([value])
    place_after(value, constraint)
    return result


def place_after(value: GraphValue, op: GraphOp) -> None:
    """Put an op right after the one that makes a value, or at the beginning of the block that has it as argument."""
    if value.op is not None:
        assert value.op.parent is not None
        value.op.parent.insert_after(value.op, op)
    else:
        assert value.block is not None
        op.parent = value.block
        value.block.ops.insert(0, op)

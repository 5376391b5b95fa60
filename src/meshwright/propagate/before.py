"""What is done to a program before propagation, so that propagation itself has no special cases."""

from __future__ import annotations

from meshwright.core.axes import in_mesh_order
from meshwright.propagate.graph import Graph, GraphValue, Known, Op
from meshwright.propagate.manual import without_manual
from meshwright.propagate.problem import Kind

_OWNERS = (Kind.WHILE, Kind.CASE, Kind.FENCE, Kind.MANUAL, Kind.NAMED)


def add_edges(graph: Graph) -> None:
    """Put a data-flow edge after every value that several places flow into."""
    for op in list(graph.walk()):
        if op.kind in _OWNERS:
            add_edges_of(graph, op)


def add_edges_of(graph: Graph, op: Op) -> None:
    """The edges of the arguments and of the results of one op."""
    if op.kind in (Kind.MANUAL, Kind.NAMED):
        block = op.blocks[0]
        edges = []
        for index, argument in enumerate(block.arguments):
            if argument.shape is not None:
                sharding = op.in_shardings[index] if op.in_shardings else None
                if sharding is not None and op.kind is Kind.MANUAL and op.node is not None:
                    sharding = without_manual(graph, sharding, op.node.manual_axes)
                edges.append(_edge(graph, argument, sharding))
        for edge in edges:
            edge.parent = block
        block.ops[:0] = edges
    edges = []
    for index, result in enumerate(op.results):
        if result.shape is not None:
            sharding = result.sharding
            if op.kind in (Kind.MANUAL, Kind.NAMED):
                sharding = op.out_shardings[index] if op.out_shardings else None
            edges.append(_edge(graph, result, sharding))
    parent = op.parent
    assert parent is not None
    for edge in edges:
        edge.parent = parent
    place = parent.ops.index(op) + 1
    parent.ops[place:place] = edges


def _edge(graph: Graph, owner: GraphValue, sharding: Known | None) -> Op:
    edge = Op(Kind.EDGE, None, None)
    result = edge.add_result(owner.shape)
    result.sharding, result.origin = sharding, owner.origin
    owner.replace_uses(result)
    edge.use([owner])
    graph.link_edge(edge)
    return edge


def clean_manual_axes(graph: Graph) -> None:
    """Manual axes in the order of the mesh; those that an in or out sharding does not use are replicated there."""
    for op in graph.walk():
        if op.kind is not Kind.MANUAL or op.node is None:
            continue
        for shardings in (op.in_shardings, op.out_shardings):
            for index, sharding in enumerate(shardings or ()):
                assert shardings is not None
                used = {axis.name for dim in sharding.dims for axis in dim.axes}
                used |= {axis.name for axis in (*sharding.replicated, *sharding.unreduced)}
                missing = [name for name in op.node.manual_axes if name not in used]
                if missing and not sharding.mesh.empty:
                    axes = (*sharding.replicated, *(sharding.mesh.axis_by_name[name] for name in missing))
                    replicated = in_mesh_order(axes, sharding.mesh.axis_names)
                    shardings[index] = graph.sharding(
                        sharding.mesh, sharding.dims, replicated, sharding.unreduced, sharding.reduction
                    )

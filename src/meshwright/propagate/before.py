"""What is done to a program before propagation, so that propagation itself has no special cases."""

from __future__ import annotations

from meshwright.propagate.graph import Graph, GraphOp, GraphValue, Known, walk
from meshwright.propagate.manual import without_manual
from meshwright.propagate.problem import Kind
from meshwright.sharding.axes import Axes, in_mesh_order, merged
from meshwright.sharding.dimension import DimensionSharding

_OWNERS = (Kind.WHILE, Kind.CASE, Kind.FENCE, Kind.MANUAL, Kind.NAMED)


def add_edges(graph: Graph) -> None:
    """Put a data-flow edge after every value that several places flow into."""
    for op in list(graph.walk()):
        if op.kind in _OWNERS:
            add_edges_of(graph, op)


def add_edges_of(graph: Graph, op: GraphOp) -> None:
    """The edges of the arguments and of the results of one op."""
    if op.kind in (Kind.MANUAL, Kind.NAMED):
        block = op.blocks[0]
        edges = []
        for index, argument in enumerate(block.arguments):
            if argument.shape is not None:
                sharding = op.in_shardings[index] if op.in_shardings else None
                if sharding is not None and op.kind is Kind.MANUAL:
                    sharding = without_manual(graph, sharding, op.manual_axes)
                edges.append(edge_after(graph, argument, sharding))
        for edge in edges:
            edge.parent = block
        block.ops[:0] = edges
    edges = []
    for index, result in enumerate(op.results):
        if result.shape is not None:
            sharding = result.sharding
            if op.kind in (Kind.MANUAL, Kind.NAMED):
                sharding = op.out_shardings[index] if op.out_shardings else None
            edges.append(edge_after(graph, result, sharding))
    parent = op.parent
    assert parent is not None
    for edge in edges:
        edge.parent = parent
    place = parent.ops.index(op) + 1
    parent.ops[place:place] = edges


def edge_after(graph: Graph, owner: GraphValue, sharding: Known | None, kind: Kind = Kind.EDGE) -> GraphOp:
    """An edge that everybody uses instead of its owner; where it stands is the caller's to say."""
    edge = GraphOp(kind, None, None)
    result = edge.add_result(owner.shape)
    result.sharding, result.origin = sharding, owner.origin
    owner.replace_uses(result)
    edge.use([owner])
    graph.link_edge(edge)
    return edge


def clean_manual_axes(graph: Graph) -> None:
    """Manual axes in the order of the mesh; those that an in or out sharding does not use are replicated there.

    A sharding on a mesh without axes is on the mesh of the others.
    """
    for op in graph.walk():
        if op.kind is not Kind.MANUAL:
            continue
        meshes = [s.mesh for s in (*(op.in_shardings or ()), *(op.out_shardings or ())) if not s.mesh.empty]
        if not meshes or not op.manual_axes:
            continue
        op.manual_axes = tuple(sorted(op.manual_axes, key=meshes[0].axis_names.index))
        for shardings in (op.in_shardings, op.out_shardings):
            for index, sharding in enumerate(shardings or ()):
                assert shardings is not None
                used = {axis.name for dim in sharding.dims for axis in dim.axes}
                used |= {axis.name for axis in (*sharding.replicated, *sharding.unreduced)}
                missing = [name for name in op.manual_axes if name not in used]
                mesh = meshes[0] if sharding.mesh.empty else sharding.mesh
                if missing or mesh is not sharding.mesh:
                    axes = (*sharding.replicated, *(mesh.axis_by_name[name] for name in missing))
                    replicated = in_mesh_order(axes, mesh.axis_names)
                    shardings[index] = graph.sharding(
                        mesh, sharding.dims, replicated, sharding.unreduced, sharding.reduction
                    )


def remove_size_one_axes(graph: Graph) -> None:
    """Take axes of size 1 out of all shardings: they split nothing."""
    cleaned: dict[Known, Known] = {}

    def clean(sharding: Known) -> Known:
        found = cleaned.get(sharding)
        if found is None:
            found = cleaned[sharding] = _without_size_one(graph, sharding)
        return found

    for function in graph.functions:
        for value in function.block.arguments:
            value.sharding = value.sharding and clean(value.sharding)
        function.result_shardings = [sharding and clean(sharding) for sharding in function.result_shardings]
    for op in graph.walk():
        for value in op.results:
            value.sharding = value.sharding and clean(value.sharding)
        if op.in_shardings is not None:
            op.in_shardings = [clean(sharding) for sharding in op.in_shardings]
        if op.out_shardings is not None:
            op.out_shardings = [clean(sharding) for sharding in op.out_shardings]


def _without_size_one(graph: Graph, sharding: Known) -> Known:
    if 1 not in sharding.mesh.axis_sizes:
        return sharding

    def kept(axes: Axes) -> Axes:
        return merged(axis for axis in axes if axis.size != 1)

    dims = []
    for dim in sharding.dims:
        axes = kept(dim.axes)
        priority = dim.priority if axes or dim.is_open else None
        dims.append(DimensionSharding(axes, dim.is_open, priority))
    return graph.sharding(
        sharding.mesh, tuple(dims), kept(sharding.replicated), kept(sharding.unreduced), sharding.reduction
    )


def share_result_shardings(graph: Graph) -> None:
    """A call's results have the shardings of its function's, where nothing was written for them."""
    functions = {function.name: function for function in graph.functions}
    for op in graph.walk():
        if op.kind is Kind.CALL and all(value.sharding is None for value in op.results):
            given = functions[op.callee].result_shardings
            mesh = next((sharding.mesh for sharding in given if sharding is not None), None)
            if mesh is not None:
                for value, sharding in zip(op.results, given, strict=True):
                    value.sharding = sharding or graph.open_sharding(mesh, len(value.shape or ()))


def remove_unused_functions(graph: Graph) -> None:
    """Private functions that nobody calls are gone."""
    functions = {function.name: function for function in graph.functions}
    live: set[str] = set()
    todo = [function.name for function in graph.functions if not function.private]
    while todo:
        name = todo.pop()
        if name not in live:
            live.add(name)
            todo.extend(op.callee for op in walk(functions[name].block) if op.callee and op.kind is not Kind.NAMED)
            todo.extend(callee for callee in functions[name].calls or () if callee in functions)
    for function in graph.functions:
        if function.name not in live:
            for op in walk(function.block):
                for use in op.operands:
                    use.drop()
    graph.functions = [function for function in graph.functions if function.name in live]

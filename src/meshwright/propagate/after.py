"""What is done to a program after propagation: computations become functions again, edges and groups go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from math import gcd

from meshwright.propagate.graph import (
    CLOSED,
    FunctionOp,
    Graph,
    GraphBlock,
    GraphOp,
    GraphValue,
    Known,
    fresh_name,
    inside_first,
    walk,
)
from meshwright.propagate.manual import with_manual
from meshwright.propagate.problem import Kind
from meshwright.sharding.axes import Axes, AxisRef, total_size
from meshwright.sharding.dimension import DimensionSharding

Change = Callable[[Known, tuple[int, ...] | None], Known]


def results_from_returns(graph: Graph) -> None:
    """Results have the shardings of what is returned; those of main only where nothing was written for them."""
    for function in graph.functions:
        for number, use in enumerate(function.block.terminator.operands):
            sharding = use.value.known
            if sharding is not None and (function is not graph.main or function.result_shardings[number] is None):
                function.result_shardings[number] = sharding


def merge_constants(graph: Graph) -> None:
    """Equal constants and broadcasts of scalars in one region, with equal shardings, are one again."""
    for function in graph.functions:
        _merge_block(function.block)
    graph.sweep()


def _merge_block(block: GraphBlock) -> None:
    seen: dict[object, GraphOp] = {}
    for op in block.ops:
        for inner in op.blocks:
            _merge_block(inner)
        node = op.node
        if node is None or node.key is None or not (node.constant or node.spreads_scalar):
            continue
        operands = tuple(use.value for use in op.operands)
        key = (node.key, operands, tuple(value.sharding for value in op.results))
        first = seen.setdefault(key, op)
        if first is not op:
            for value, kept in zip(op.results, first.results, strict=True):
                value.replace_uses(kept)
            for use in op.operands:
                use.drop()
            op.erased = True


def sink_edges(graph: Graph) -> None:
    """The owners of edges have their shardings; the edges are gone."""
    for op in list(graph.walk()):
        if op.kind is Kind.EDGE:
            sink_edge(graph, op)
    graph.sweep()


def sink_edge(graph: Graph, edge: GraphOp) -> None:
    """The owner of an edge has its sharding; everybody uses the owner."""
    owner, sharding = edge.operands[0].value, edge.results[0].sharding
    op = owner.op if owner.block is None else owner.block.parent
    assert isinstance(op, GraphOp)
    if sharding is not None:
        _sink(graph, op, owner, sharding)
    edge.operands[0].drop()
    edge.results[0].replace_uses(owner)
    edge.erased = True
    for value in (owner, *(block.arguments[owner.index] for block in op.blocks if op.kind is Kind.WHILE)):
        value.edge, value.sunk = None, edge.results[0]
    for source in edge.sources:
        source.edges = ()


def _sink(graph: Graph, op: GraphOp, owner: GraphValue, sharding: Known) -> None:
    if op.kind not in (Kind.MANUAL, Kind.NAMED):
        for value in op.results:
            if value.edge is None and value.sunk is None:
                value.sharding = None  # what was written on the op is that of its edges
        if all(value.sharding is None for value in op.results):
            for value in op.results:
                value.sharding = graph.open_sharding(sharding.mesh, len(value.shape or ()))
        owner.sharding = sharding
        return
    enters = owner.block is not None
    written = op.in_shardings if enters else op.out_shardings
    if written is None:
        values = op.blocks[0].arguments if enters else op.results
        written = [graph.open_sharding(sharding.mesh, len(value.shape or ())) for value in values]
        if enters:
            op.in_shardings = written
        else:
            op.out_shardings = written
    if op.kind is Kind.MANUAL and enters:
        sharding = with_manual(graph, written[owner.index], sharding, op.manual_axes)
    written[owner.index] = sharding


def remove_groups(graph: Graph) -> None:
    """Groups have done their work."""
    for op in graph.walk():
        if op.kind is Kind.GROUP:
            op.operands[0].drop()
            op.erased = True
    graph.sweep()


def constraints_to_reshards(graph: Graph) -> None:
    """Turn every sharding constraint into a reshard of its operand."""
    for op in graph.walk():
        if op.kind is Kind.CONSTRAINT:
            op.kind = Kind.RESHARD


# Shardings of all values


def change_shardings(graph: Graph, change: Change) -> None:
    """Change every sharding of the program."""
    for function in graph.functions:
        change_function_shardings(function, change)
    for op in graph.walk():
        for value in op.results:
            if value.sharding is not None:
                value.sharding = change(value.sharding, value.shape)
        _change_computation(op, change)


def change_function_shardings(function: FunctionOp, change: Change) -> None:
    """Change the shardings of a function's arguments and results."""
    for value in function.block.arguments:
        if value.sharding is not None:
            value.sharding = change(value.sharding, value.shape)
    returned = [use.value.shape for use in function.block.terminator.operands]
    function.result_shardings = [
        None if sharding is None else change(sharding, shape)
        for sharding, shape in zip(function.result_shardings, returned, strict=True)
    ]


def _change_computation(op: GraphOp, change: Change) -> None:
    if op.in_shardings is not None:
        shapes = [use.value.shape for use in op.operands]
        op.in_shardings = [change(s, shape) for s, shape in zip(op.in_shardings, shapes, strict=True)]
    if op.out_shardings is not None:
        shapes = [value.shape for value in op.results]
        op.out_shardings = [change(s, shape) for s, shape in zip(op.out_shardings, shapes, strict=True)]


def close_shardings(graph: Graph) -> None:
    """Close every dim; what was replicated explicitly is so anyway."""
    closed: dict[Known, Known] = {}

    def close(sharding: Known, shape: tuple[int, ...] | None) -> Known:
        found = closed.get(sharding)
        if found is None:
            dims = tuple(
                DimensionSharding(dim.axes, priority=dim.priority if dim.axes else None) for dim in sharding.dims
            )
            found = graph.sharding(sharding.mesh, dims, (), sharding.unreduced, sharding.reduction)
            closed[sharding] = found
        return found

    change_shardings(graph, close)


def make_divisible(graph: Graph) -> None:
    """The arguments and results of functions and calls are split evenly."""

    def divide(sharding: Known, shape: tuple[int, ...] | None, manual: tuple[str, ...] = ()) -> Known:
        if shape is None or len(shape) != len(sharding.dims):
            return sharding
        dims = []
        for size, dim in zip(shape, sharding.dims, strict=True):
            divides = size % total_size(dim.axes) == 0
            fixed = tuple(axis for axis in dim.axes if axis.name in manual)  # they divide it, and come first
            kept = (*fixed, *dividing(size // total_size(fixed), dim.axes[len(fixed) :]))
            dims.append(dim if divides else DimensionSharding(kept, dim.is_open))
        return graph.sharding(sharding.mesh, tuple(dims), sharding.replicated, sharding.unreduced, sharding.reduction)

    for function in graph.functions:
        change_function_shardings(function, divide)
    for op in graph.walk():
        if op.kind is Kind.CALL:
            for value in op.results:
                if value.sharding is not None:
                    value.sharding = divide(value.sharding, value.shape)
        if op.kind is Kind.MANUAL:
            _change_computation(op, partial(divide, manual=op.manual_axes))


def dividing(size: int, axes: Axes) -> Axes:
    """The axes as long as they divide what is left of a dim; of the last one, the part that does."""
    kept: list[AxisRef] = []
    for axis in axes:
        common = gcd(size, axis.size)
        if common == 1:
            break
        if common != axis.size:
            kept.append(axis.part(axis.pre, axis.pre * common))
            break
        kept.append(axis)
        size //= common
    return tuple(kept)


def remove_sub_axes(graph: Graph) -> None:
    """Open dims of what goes into main and comes out of it are split over whole axes only."""

    def whole(sharding: Known, shape: tuple[int, ...] | None) -> Known:
        dims = []
        for dim in sharding.dims:
            axes = dim.axes
            if dim.is_open:
                stop = next((i for i, axis in enumerate(axes) if not axis.is_full), len(axes))
                axes = axes[:stop]
            dims.append(DimensionSharding(axes, dim.is_open, dim.priority))
        return graph.sharding(sharding.mesh, tuple(dims), sharding.replicated, sharding.unreduced, sharding.reduction)

    main = graph.main
    if main is not None:
        change_function_shardings(main, whole)


# Functions


def export_computations(graph: Graph) -> None:
    """Each named computation becomes a call of a function of its own."""
    numbers = count()  # shared by all names
    for function in list(graph.functions):
        for op in list(inside_first(function.block)):
            if op.kind is Kind.NAMED:
                taken = {other.name for other in graph.functions}
                _export(graph, op, fresh_name(graph, op.callee, numbers) if op.callee in taken else op.callee)
    graph.sweep()


def _export(graph: Graph, op: GraphOp, name: str) -> None:
    block = op.blocks[0]
    for edge in [one for one in block.ops if one.kind is Kind.EDGE and one.operands[0].value.block is block]:
        sink_edge(graph, edge)
    for value in op.results:
        if value.edge is not None:
            sink_edge(graph, value.edge)
    block.ops = [one for one in block.ops if not one.erased]
    function = FunctionOp(name, True)
    function.origin, function.original_name = "", op.callee
    function.ref = op.node.ref if op.node is not None else None
    function.manual_axes = _bound_axes(op)
    function.block = block
    block.parent = function
    for number, argument in enumerate(block.arguments):
        argument.sharding = op.in_shardings[number] if op.in_shardings else None
    function.result_shardings = [None] * len(op.results)
    for number, value in enumerate(op.results):
        value.sharding = op.out_shardings[number] if op.out_shardings else None
    op.kind, op.callee, op.blocks = Kind.CALL, name, []
    op.in_shardings = op.out_shardings = None
    graph.functions.append(function)


def _bound_axes(op: GraphOp) -> tuple[str, ...]:
    """The axes that the computations around an op have for themselves."""
    place = op.parent
    found: tuple[str, ...] = ()
    while place is not None and isinstance(place.parent, GraphOp):
        found = (*place.parent.manual_axes, *found)
        place = place.parent.parent
    return found


def unflatten_calls(graph: Graph, fully: bool = False) -> None:
    """Functions that came from one, with equal shardings, are one again; none knows any more where it came from.

    ``fully``: whatever their shardings; the one that is called most is kept.
    """
    functions = {function.name: function for function in graph.functions}
    chosen: dict[object, str] = {}
    if fully:
        called = Counter(op.callee for op in graph.walk() if op.kind is Kind.CALL)
        for name, _ in sorted(called.items(), key=lambda item: -item[1]):
            chosen.setdefault((functions[name].known_as, functions[name].manual_axes), name)
    for function in graph.functions:
        for op in walk(function.block):
            if op.kind is Kind.CALL:
                callee = functions[op.callee]
                arguments = tuple(value.sharding for value in callee.block.arguments)
                key: tuple[object, ...] = (callee.known_as, callee.manual_axes)
                if not fully:
                    key = (*key, arguments, tuple(callee.result_shardings))
                op.callee = chosen.setdefault(key, op.callee)
    for function in graph.functions:
        function.original_name = ""


def reshard_calls(graph: Graph) -> None:
    """Where a call has other shardings than its function's results, they are resharded to what was found."""
    functions = {function.name: function for function in graph.functions}
    for op in list(graph.walk()):
        if op.kind is not Kind.CALL:
            continue
        given = functions[op.callee].result_shardings
        mesh = next((sharding.mesh for sharding in given if sharding is not None), None)
        for value, sharding in zip(op.results, given, strict=True):
            rank = len(value.shape or ())
            if sharding is None and mesh is not None:
                sharding = graph.open_sharding(mesh, rank)
            elif sharding is None and value.sharding is not None:
                sharding = graph.sharding(value.sharding.mesh, (CLOSED,) * rank)
            if sharding is not None and _unreduced(value.sharding) != _unreduced(sharding):
                # A partial sum that is lost or made here is for the verification to tell: no reshard hides it.
                value.sharding = value.sharding or graph.sharding(sharding.mesh, (CLOSED,) * rank)
                continue
            found, value.sharding = value.sharding, sharding
            if equivalent(found, sharding):
                continue
            if found is None:
                assert sharding is not None
                found = graph.sharding(sharding.mesh, (CLOSED,) * rank)
            reshard = GraphOp(Kind.RESHARD, None, None)
            result = reshard.add_result(value.shape)
            result.sharding, result.origin = found, value.origin
            value.replace_uses(result)
            reshard.use([value])
            assert op.parent is not None
            op.parent.insert_after(op, reshard)


def _unreduced(sharding: Known | None) -> Axes:
    return () if sharding is None else sharding.unreduced


def equivalent(one: Known | None, other: Known | None) -> bool:
    """Whether two shardings split alike; none at all is a replicated one."""
    if one is None or other is None:
        left = one or other
        return left is None or not any(dim.axes for dim in left.dims)
    axes, others = ([dim.axes for dim in sharding.dims] for sharding in (one, other))
    return axes == others and (one.mesh == other.mesh or not any(axes))

"""Calls before and after propagation: each is propagated through as if its function were written in its place."""

from __future__ import annotations

from collections import Counter
from itertools import count

from meshwright.propagate.before import add_edges_of, edge_after
from meshwright.propagate.graph import (
    FunctionOp,
    Graph,
    GraphBlock,
    GraphOp,
    GraphValue,
    Known,
    callees_first,
    copy_function,
    hold,
    walk,
)
from meshwright.propagate.problem import Kind, ProblemNode


def flatten_calls(graph: Graph) -> None:
    """Give each call a function of its own."""
    functions = {function.name: function for function in graph.functions}
    called: set[str] = set()
    numbers = count()

    def copy_callees(function: FunctionOp) -> None:
        for op in walk(function.block):
            if op.kind is Kind.CALL:
                copy_callee(op)

    def copy_callee(call: GraphOp) -> None:
        copy = copy_function(graph, functions[call.callee], numbers, copy_callees)
        functions[copy.name] = copy
        call.callee = copy.name

    for function in callees_first(graph):
        for op in list(walk(function.block)):
            if op.kind is Kind.CALL:
                if op.callee in called:
                    copy_callee(op)
                called.add(op.callee)


def add_function_edges(graph: Graph) -> None:
    """Put an edge after every argument of functions other than main, and after every result of calls."""
    for function in graph.functions:
        if function is not graph.main:
            _put_edges(graph, function.block, 0, function.block.arguments)
    for op in list(graph.walk()):
        if op.kind is Kind.CALL:
            assert op.parent is not None
            _put_edges(graph, op.parent, op.parent.ops.index(op) + 1, op.results)


def _put_edges(graph: Graph, block: GraphBlock, place: int, owners: list[GraphValue]) -> None:
    edges = [edge_after(graph, owner, owner.sharding, Kind.FUNC_EDGE) for owner in owners if owner.shape is not None]
    for edge in edges:
        edge.parent = block
    block.ops[place:place] = edges


def sink_function_edges(graph: Graph) -> None:
    """The owners of functions' edges have their shardings; the edges are gone."""
    for edge in list(graph.walk()):
        if edge.kind is Kind.FUNC_EDGE:
            owner, result = edge.operands[0].value, edge.results[0]
            edge.operands[0].drop()
            owner.edge = None
            for source in edge.sources:
                source.edges = ()
            if result.sharding is not None:
                hold(graph, owner, result.sharding)
            result.replace_uses(owner)
            edge.erased = True
    graph.sweep()


def import_calls(graph: Graph, edges: bool = True) -> None:
    """Put each function in the place of its calls, as named computations, with ``edges`` or without."""
    functions = {function.name: function for function in graph.functions}
    called: set[str] = set()
    left = Counter(op.callee for op in graph.walk() if op.kind is Kind.CALL)
    for function in callees_first(graph):
        for op in list(walk(function.block)):
            if op.kind is Kind.CALL:
                called.add(op.callee)
                left[op.callee] -= 1
                _import_call(graph, op, functions[op.callee], is_last=not left[op.callee])
    graph.functions = [function for function in graph.functions if function.name not in called]
    for op in list(graph.walk()) if edges else ():
        if op.kind is Kind.NAMED and op.results and op.results[0].edge is None:
            add_edges_of(graph, op)


def _import_call(graph: Graph, call: GraphOp, function: FunctionOp, is_last: bool) -> None:
    node = call.node._replace(kind=Kind.NAMED) if call.node else ProblemNode(Kind.NAMED, (), ())
    named = GraphOp(Kind.NAMED, node, call.parent)
    named.callee = function.known_as
    named.in_shardings = _filled(graph, function.block.arguments)
    named.out_shardings = _filled(graph, call.results)
    named.use([use.value for use in call.operands])
    block = function.block if is_last else GraphBlock(named)
    if not is_last:
        graph.clone_block(function.block, block, {})
        for op in walk(block):
            if op.kind is Kind.EDGE:
                graph.link_edge(op)
    block.parent = named
    for argument in block.arguments:
        argument.sharding = None
    for use in block.terminator.operands:
        use.set(use.value)  # as by a new op
    named.blocks.append(block)
    for value in call.results:
        new = named.add_result(value.shape)
        new.origin = value.origin
        value.replace_uses(new)
    for use in call.operands:
        use.drop()
    assert call.parent is not None
    call.parent.ops[call.parent.ops.index(call)] = named


def _filled(graph: Graph, values: list[GraphValue]) -> list[Known] | None:
    """The shardings of some values, those that have none open; None if none has any."""
    mesh = next((value.sharding.mesh for value in values if value.sharding is not None), None)
    if mesh is None:
        return None
    return [value.sharding or graph.open_sharding(mesh, len(value.shape or ())) for value in values]


def order_functions(graph: Graph) -> None:
    """Put each function before those that it calls."""
    graph.functions = callees_first(graph)[::-1]

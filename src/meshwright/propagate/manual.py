"""Shardings on the two sides of a computation: outside of a manual one, each dim has its manual axes first."""

from __future__ import annotations

from meshwright.propagate.graph import Graph, GraphOp, GraphValue, Known
from meshwright.sharding.axes import Axes
from meshwright.sharding.dimension import DimensionSharding


def with_manual(graph: Graph, outside: Known, inside: Known, manual: tuple[str, ...]) -> Known:
    """A sharding inside a manual computation as seen from outside: the manual axes come first in each dim."""
    dims = tuple(
        DimensionSharding((*(axis for axis in out.axes if axis.name in manual), *inner.axes), inner.is_open)
        for out, inner in zip(outside.dims, inside.dims, strict=True)
    )
    return graph.sharding(inside.mesh, dims, outside.replicated, outside.unreduced, outside.reduction)


def without_manual(graph: Graph, sharding: Known, manual: tuple[str, ...]) -> Known:
    """A sharding outside of a manual computation as seen from inside: without the manual axes."""
    dims = tuple(
        dim if not dim.axes else DimensionSharding(_kept(dim.axes, manual), dim.is_open, dim.priority)
        for dim in sharding.dims
    )
    return graph.sharding(
        sharding.mesh,
        dims,
        _kept(sharding.replicated, manual),
        _kept(sharding.unreduced, manual),
        sharding.reduction,
    )


def _kept(axes: Axes, manual: tuple[str, ...]) -> Axes:
    return tuple(axis for axis in axes if axis.name not in manual)


def begin_computation(graph: Graph, op: GraphOp) -> None:
    """Where there are no edges, let the results and arguments of a computation hold what it says of them."""
    for value, sharding in zip(op.results, op.out_shardings or (), strict=False):
        value.sharding = sharding if value.edge is None else None
    for value, sharding in zip(op.blocks[0].arguments, op.in_shardings or (), strict=False):
        inside = without_manual(graph, sharding, op.manual_axes)
        value.sharding = inside if value.edge is None else None


def finish_computation(graph: Graph, op: GraphOp) -> None:
    """Write what the results and arguments of a computation hold where it says it."""
    write_inside(graph, op)
    op.out_shardings = _held(graph, op.results) or op.out_shardings
    for value in (*op.results, *op.blocks[0].arguments):
        value.sharding = None


def write_inside(graph: Graph, op: GraphOp) -> None:
    """Write what the arguments of a computation hold as what it says of its operands."""
    inside = _held(graph, op.blocks[0].arguments)
    if inside is not None:
        outside = op.in_shardings or inside
        op.in_shardings = [
            out
            if op.in_shardings and without_manual(graph, out, op.manual_axes) is inner
            else with_manual(graph, out, inner, op.manual_axes)
            for out, inner in zip(outside, inside, strict=True)
        ]


def _held(graph: Graph, values: list[GraphValue]) -> list[Known] | None:
    mesh = next((value.sharding.mesh for value in values if value.sharding is not None), None)
    if mesh is None:
        return None
    return [value.sharding or graph.open_sharding(mesh, len(value.shape or ())) for value in values]

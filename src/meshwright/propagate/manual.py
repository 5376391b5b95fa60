"""Shardings on the two sides of a manual computation: outside, each dim has its manual axes first."""

from __future__ import annotations

from meshwright.propagate.graph import Graph, Known
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

"""How the groups of a collective stand in the nodes and units of a switched network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.hardware.placement import DCN, Span, group_size
from meshwright.hardware.topology import Topology

Array = np.ndarray[Any, Any]


class GroupCounts(NamedTuple):
    """A group of ``size`` chips in ``nodes`` nodes and ``units`` units; the ``fewest`` and ``most`` in one node."""

    size: int
    nodes: int
    fewest: int
    most: int
    units: int = 1


class UnitTraffic(NamedTuple):
    """What the busiest unit exchanges with the rest, one way, in arrays of one group, all groups together.

    ``straddling`` groups have members in the unit and outside of it.
    """

    straddling: float
    gathered: float
    summed: float
    exchanged: float
    moved: float
    held: float


class Occupancy(NamedTuple):
    """The distinct ways that groups stand in nodes, and the traffic of units where there are several."""

    groups: tuple[GroupCounts, ...]
    units: UnitTraffic | None


def occupancy(topology: Topology, spans: tuple[Span, ...]) -> Occupancy:
    """How all the groups along ``spans`` stand on a switched machine.

    >>> occupancy(Topology("h100", 24), (Span(0, 12),)).groups
    (GroupCounts(size=12, nodes=2, fewest=4, most=8, units=1),)
    """
    slice_size = prod(topology.shape)
    numbered = tuple(Span(0, s.size, s.stride * slice_size) if s.axis == DCN else s for s in spans)
    node = topology.node_size
    unit = topology.levels[-1].size if topology.levels[-1].name == "unit" else 0
    return _occupancy(numbered, node, unit, topology.size)


@lru_cache(maxsize=4096)
def _occupancy(spans: tuple[Span, ...], node: int, unit: int, chips: int) -> Occupancy:
    if all(_even(spans, block, chips) for block in (node, unit) if block):
        return _evenly(spans, node, unit, chips)
    period = lcm(node, unit or 1, *(span.stride * span.size for span in spans))
    first = np.arange(period if chips % period == 0 else chips)
    for span in spans:
        first = first[first // span.stride % span.size == 0]
    reach = sum((span.size - 1) * span.stride for span in spans)
    first = first[first + reach < chips]
    members = first[:, None]
    for span in spans:
        steps = np.arange(span.size) * span.stride
        members = (members[:, :, None] + steps).reshape(len(first), -1)
    return _counted(list(members), len(members), node, unit)


def occupancy_of(
    topology: Topology, members: Sequence[int] | Array, concurrent: Sequence[Sequence[int] | Array] = ()
) -> Occupancy:
    """How one group of chips, given by their numbers, stands on a switched machine while others communicate too.

    >>> occupancy_of(Topology("h100", 16), (0, 1, 2, 8)).groups
    (GroupCounts(size=4, nodes=2, fewest=1, most=3, units=1),)
    """
    unit = topology.levels[-1].size if topology.levels[-1].name == "unit" else 0
    every = [np.asarray(group) for group in (members, *concurrent)]
    return _counted(every, 1, topology.node_size, unit)


def _even(spans: tuple[Span, ...], block: int, chips: int) -> bool:
    """Whether every block of chips in a row has equally many members of each group that it has members of."""
    return chips % block == 0 and all(
        chips % (s.stride * s.size) == 0
        and (
            block % (s.stride * s.size) == 0
            or s.stride % block == 0
            or (block % s.stride == 0 and s.stride * s.size % block == 0)
        )
        for s in spans
    )


def _evenly(spans: tuple[Span, ...], node: int, unit: int, chips: int) -> Occupancy:
    size = group_size(spans)
    inside = members_in_block(spans, node)
    nodes = size // inside
    if not unit:
        return Occupancy((GroupCounts(size, nodes, inside, inside),), None)
    here = members_in_block(spans, unit)
    units = size // here
    count = min(unit, chips) // here if units > 1 else 0
    share = here / size
    traffic = UnitTraffic(
        count,
        count * max(1 - share, share),
        count * max(1 - share, share),
        count * share * (1 - share),
        count * min(share, 1 - share),
        count * share,
    )
    return Occupancy((GroupCounts(size, nodes, inside, inside, units),), traffic)


def members_in_block(spans: tuple[Span, ...], block: int) -> int:
    """How many chips of a group stand in one block of ``block`` chips in a row, where blocks share groups evenly."""
    return prod(min(span.size, max(1, block // span.stride)) for span in spans)


def _counted(groups: list[Array], own: int, node: int, unit: int) -> Occupancy:
    """The occupancy of the first ``own`` groups, counted chip by chip; the others add to the traffic of units."""
    sizes = np.array([len(group) for group in groups])
    chips = np.concatenate(groups)
    owner = np.repeat(np.arange(len(groups)), sizes)
    pair, in_node, nodes = _blocks(owner, chips // node, len(groups))
    starts = np.searchsorted(pair[0], np.arange(len(groups)))
    fewest, most = np.minimum.reduceat(in_node, starts), np.maximum.reduceat(in_node, starts)
    if not unit:
        rows = np.stack([sizes, nodes, fewest, most, np.ones_like(sizes)], 1)[:own]
        return Occupancy(_rows(rows), None)
    at, in_unit, units = _blocks(owner, chips // unit, len(groups))
    _, nodes_in_unit, _ = _blocks(pair[0], pair[1] * node // unit, len(groups))
    across = units[at[0]] > 1
    share = (in_unit / sizes[at[0]])[across]
    nodes_share = (nodes_in_unit / nodes[at[0]])[across]
    where = at[1][across]

    def total(weights: Array) -> Array:
        return np.bincount(where, weights, minlength=1)

    traffic = UnitTraffic(
        float(total(np.ones_like(share)).max()),
        float(max(total(1 - share).max(), total(share).max())),
        float(max(total(1 - nodes_share).max(), total(nodes_share).max())),
        float(total(share * (1 - share)).max()),
        float(total(np.minimum(share, 1 - share)).max()),
        float(total(share).max()),
    )
    return Occupancy(_rows(np.stack([sizes, nodes, fewest, most, units], 1)[:own]), traffic)


def _blocks(owner: Array, block: Array, groups: int) -> tuple[tuple[Array, Array], Array, Array]:
    """Each group with each block it has members in, how many of them, and how many blocks each group has."""
    high = int(block.max()) + 1
    keys = owner * high + block
    if groups * high <= 8 * len(keys):  # without sorting them
        every = np.bincount(keys)
        keys = np.flatnonzero(every)
        counts = every[keys]
    else:
        keys, counts = np.unique(keys, return_counts=True)
    return (keys // high, keys % high), counts, np.bincount(keys // high, minlength=groups)


def _rows(rows: Array) -> tuple[GroupCounts, ...]:
    return tuple(GroupCounts(*map(int, row)) for row in np.unique(rows, axis=0))

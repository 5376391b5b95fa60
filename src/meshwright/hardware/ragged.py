"""All-to-alls of mixtures of experts: every token goes to a few of many devices, once to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chip_groups import Link, chip_numbers, link_rate, way
from meshwright.hardware.links import CollectiveCost, links
from meshwright.hardware.occupancy import Array, GroupCounts, Occupancy, occupancy
from meshwright.hardware.placement import group_size
from meshwright.hardware.topology import Axes, Topology


def share_reached(part: float, active: int, experts: int | None = None) -> float:
    """The expected share of tokens with an expert in a ``part`` of the devices: 1 - (1 - part)^k for k experts drawn
    one by one, or exactly for k different ones of ``experts``.

    >>> share_reached(1 / 8, 2), round(share_reached(1 / 8, 2, 64), 4)
    (0.234375, 0.2361)
    """
    if experts is None:
        return 1 - (1 - part) ** active
    outside = experts - round(part * experts)
    return 1 - comb(outside, active) / comb(experts, active)


def ragged_all_to_all(
    bytes: float, topology: Topology, axes: Axes = None, *, active: int, experts: int | None = None
) -> CollectiveCost:
    """Every token of a group, ``bytes`` in all, goes to ``active`` experts, spread evenly over the group's devices.

    A token is sent once to each node that has experts for it, and there once to each device. With p(x) the share of
    tokens that reach a part x of the devices, a node of m among N devices takes in (1 - m/N)·p(m/N) of V through its
    adapters, a device p(1/N)·(m-1)/m through NVLink; on a torus the all-to-all moves N·p(1/N) times what it does if
    each token goes to one. With one active expert this is a dense all-to-all.

    >>> from meshwright.hardware import Topology, collective_seconds
    >>> node = Topology("h100", 8)
    >>> ragged_all_to_all(1e9, node, active=1).seconds == collective_seconds("all_to_all", 1e9, node)
    True
    >>> round(ragged_all_to_all(1e9, node, active=2).seconds / ragged_all_to_all(1e9, node, active=1).seconds, 3)
    1.875
    """
    spans = topology.spans(axes)
    size = group_size(spans)
    _check(active, experts, size)
    if size == 1:
        return CollectiveCost("all_to_all", bytes, 1, 0.0, 0.0)

    def reached(part: float) -> float:
        return share_reached(part, active, experts)

    if not topology.switched:
        return links("all_to_all", bytes * size * reached(1 / size), topology, spans, True)
    found = occupancy(topology, spans)
    gpu, *above = topology.levels
    terms = [(max(reached(1 / size) * (g.most - 1) / g.most for g in found.groups), gpu.bytes_per_s, "link")]
    if above:
        into = max(_into_chip(g, reached) for g in found.groups)
        terms.append((into, above[0].bytes_per_s / above[0].size, "net"))
    terms += _units(found, above, reached)
    share, rate, network = max(terms, key=lambda term: term[0] / term[1])
    dense = links("all_to_all", bytes, topology, spans, True)
    return replace(dense, bandwidth_seconds=bytes * share / rate, bytes_per_link=bytes * share, network=network)


def _into_chip(group: GroupCounts, reached: Any) -> float:
    if group.nodes == 1:
        return 0.0
    part = group.fewest / group.size
    return float((1 - part) * reached(part) / group.fewest)


def _units(found: Occupancy, above: Sequence[Any], reached: Any) -> list[tuple[float, float, str]]:
    """A unit's way out: what a dense all-to-all takes, times how many more tokens have an expert there."""
    if found.units is None or not found.units.straddling:
        return []
    part = found.units.held / found.units.straddling
    return [(found.units.exchanged * reached(part) / part, above[-1].bytes_per_s, "net")]


def exchange_cost(sent: Any, topology: Topology, members: Sequence[int] | None = None) -> CollectiveCost:
    """An all-to-all of known counts: ``sent[i][j]`` bytes from the i-th of ``members`` (or of all chips) to the j-th.

    Every message goes straight to its chip, over NVLink, adapters and units, or over a shortest way on a torus; the
    busiest of these decides.

    >>> from meshwright.hardware import Topology
    >>> exchange_cost([[0, 9e9], [0, 0]], Topology("h100", 8), (0, 1)).bandwidth_seconds
    0.02
    """
    counts = np.asarray(sent, float)
    chips = list(range(topology.size)) if members is None else list(members)
    if counts.shape != (len(chips), len(chips)) or (counts < 0).any():
        raise HardwareError(
            f"Counts of {counts.shape} are not those of {len(chips)} chips.",
            where=here(),
            why="every chip sends a number of bytes, none or more, to every other",
            fix=f"numpy.zeros(({len(chips)}, {len(chips)}))",
        )
    chip_numbers(topology, [chips])
    counts = np.where(np.eye(len(chips), dtype=bool), 0.0, counts)
    total = float(counts.sum())
    busiest = _switched_load(counts, chips, topology) if topology.switched else _torus_load(counts, chips, topology)
    seconds, load, latency, network = busiest
    return CollectiveCost("all_to_all", total, len(chips), seconds, latency, bytes_per_link=load, network=network)


def _switched_load(counts: Array, chips: list[int], topology: Topology) -> tuple[float, float, float, str]:
    """Seconds and bytes of the busiest port, adapter or unit, the hops of all that are used, and the network."""
    at, levels = np.array(chips), topology.levels
    found, latency = [], 0.0
    for index, level in enumerate(levels):
        # Messages inside a node take NVLink alone, all others an adapter, and beyond a unit its way out.
        taken = _apart(at, level.size)
        if index == 0 and len(levels) > 1:
            taken = taken & ~_apart(at, levels[1].size)
        owner, rate = (at, level.bytes_per_s / level.size) if index < 2 else (at // level.size, level.bytes_per_s)
        moved = np.where(taken, counts, 0.0)
        load = float(max(np.bincount(owner, moved.sum(axis)).max() for axis in (0, 1)))
        found.append((load / rate, load, "net" if index else "link"))
        latency += level.hop_seconds if load else 0.0
    seconds, load, network = max(found)
    return seconds, load, latency, network


def _apart(chips: Array, block: int) -> Array:
    apart: Array = np.not_equal.outer(chips // block, chips // block)
    return apart


def _torus_load(counts: Array, chips: list[int], topology: Topology) -> tuple[float, float, float, str]:
    load: Counter[Link] = Counter()
    farthest = 0.0
    for i, j in np.argwhere(counts > 0):
        path = way(topology, chips[i], chips[j])
        hops = sum(topology.chip.hop_seconds if link[1] >= 0 else topology.chip.dcn_hop_seconds for link in path)
        farthest = max(farthest, hops)
        for link in path:
            load[link] += counts[i, j]
    if not load:
        return 0.0, 0.0, 0.0, "link"
    busiest = max(load, key=lambda link: load[link] / link_rate(topology, link))
    most = float(load[busiest])
    return most / link_rate(topology, busiest), most, farthest, "link" if busiest[1] >= 0 else "net"


def _check(active: int, experts: int | None, size: int) -> None:
    if active < 1 or (experts is not None and (active > experts or experts % size)):
        raise HardwareError(
            f"Tokens cannot go to {active} of {experts if experts is not None else 'any'} experts on {size} devices.",
            where=here(),
            why="at least one expert is active, at most all are, and every device has as many of them",
            fix=f"active=1, experts={size}",
        )

"""What the links of rings, lines, tori and switched trees allow: a bandwidth term and a latency term, kept apart.

``V`` is the size of the array the collective acts on, for one group: the result of an all-gather, the input of a
reduce-scatter or all-reduce, the sum over the group for an all-to-all or a permute. ``N`` is the group's size,
``w`` a link's bandwidth one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

from meshwright.hardware.occupancy import GroupCounts, Occupancy, UnitTraffic, occupancy
from meshwright.hardware.placement import DCN, Span, group_size
from meshwright.hardware.topology import Topology


@dataclass(frozen=True)
class CollectiveCost:
    """The terms of one collective.

    ``network`` is the one that decides: "link", or "net" beyond a node or a slice. ``seconds`` is the launch plus the
    larger of the other two terms, or plus both if the model is additive. ``link_seconds`` is the bandwidth term of the
    links inside of nodes or slices, where others decide.
    """

    kind: str
    bytes: float
    group: int
    bandwidth_seconds: float
    latency_seconds: float
    launch_seconds: float = 0.0
    bytes_per_link: float = 0.0
    network: str = "link"
    model: str = "links"
    additive: bool = False
    link_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The modelled time."""
        combine = sum if self.additive else max
        return self.launch_seconds + combine((self.bandwidth_seconds, self.latency_seconds))

    @property
    def bound(self) -> str:
        """ "latency" or "bandwidth", whichever is larger."""
        return "latency" if self.latency_seconds > self.bandwidth_seconds else "bandwidth"


def links(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, **options: Any
) -> CollectiveCost:
    """What the links of rings, lines, tori and switched trees allow."""
    if topology.switched:
        return switched(kind, bytes, topology, spans, exact, **options)
    near = tuple(span for span in spans if span.axis != DCN)
    far = [span for span in spans if span.axis == DCN]
    if not far:
        return torus(kind, bytes, topology, near, exact, **options)
    # Slices first gather (or last reduce) their own part each: both networks work at once.
    slices, chips = group_size(far), group_size(near)
    share = bytes if kind in ("broadcast", "reduce") else bytes / chips
    over = _crossing(kind, share, slices, exact) / topology.chip.dcn_bytes_per_s
    times = 2 if kind == "all_reduce" else 1
    latency = times * topology.chip.dcn_hop_seconds
    if chips == 1:
        return CollectiveCost(kind, bytes, slices, over, latency, network="net")
    inner = bytes / slices if kind in ("all_to_all", "permute") else bytes
    within = torus(kind, inner, topology, near, exact, **options)
    return CollectiveCost(
        kind,
        bytes,
        slices * chips,
        max(over, within.bandwidth_seconds),
        latency + within.latency_seconds,
        bytes_per_link=within.bytes_per_link,
        network="net" if over > within.bandwidth_seconds else "link",
        link_seconds=within.bandwidth_seconds,
    )


def torus(
    kind: str,
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    exact: bool,
    sharing: tuple[int, ...] | None = None,
    **options: Any,
) -> CollectiveCost:
    """A group over axes of a torus; ``sharing`` groups have the links of each axis in common, all that interleave."""
    link, hop = topology.chip.link_bytes_per_s, topology.chip.hop_seconds
    rings = [topology.wraps(span) for span in spans]
    size = group_size(spans)
    shared = sharing or tuple(span.stride for span in spans)
    radius = sum((s.size // 2 if ring else s.size - 1) * s.stride for s, ring in zip(spans, rings))
    # Bandwidth into a chip per axis.
    into = [(2 if ring else 1) / share for ring, share in zip(rings, shared)]
    if kind in ("all_gather", "reduce_scatter", "all_reduce"):
        times = 2 if kind == "all_reduce" else 1
        load = times * bytes * (_gather_load(spans, into) if exact else 1 / sum(into))
        return CollectiveCost(kind, bytes, size, load / link, times * radius * hop, bytes_per_link=load)
    if kind == "all_to_all":
        load = max(
            bytes * s.size / size * _exchange_load(s.size, ring, exact) * share
            for s, ring, share in zip(spans, rings, shared)
        )
        return CollectiveCost(kind, bytes, size, load / link, radius * hop, bytes_per_link=load)
    if kind == "permute":
        return _shift(bytes, topology, spans, rings, shared, **options)
    load = bytes / sum(into)  # broadcast and reduce: the array crosses the links of the worst-joined chip once
    return CollectiveCost(kind, bytes, size, load / link, radius * hop, bytes_per_link=load)


def _gather_load(spans: tuple[Span, ...], into: list[float]) -> float:
    """Share of V that must cross a link, over the worst cut.

    A set S of chips without the data of |S|/N of V takes it in through its links. The worst S is a single corner,
    or where axes differ in bandwidth a slab: all chips with one coordinate fixed on the axes T, which lacks (P -
    1)/P of V, P the product of the lengths of T, and lets in Σ_T into per chip for N/P chips.
    """
    size = group_size(spans)
    return max(
        (prod(spans[i].size for i in fixed) - 1) / (size * sum(into[i] for i in fixed))
        for count in range(1, len(spans) + 1)
        for fixed in combinations(range(len(spans)), count)
    )


def _exchange_load(size: int, ring: bool, exact: bool) -> float:
    """Share of V that crosses the busiest link, one way, in an all-to-all along one axis."""
    if ring:
        # Distances sum to floor(N²/4) per chip, over 2N links; even rings split what goes to the opposite chip.
        return (size * size // 4) / (2 * size * size) if exact else 1 / 8
    return (size // 2) * ((size + 1) // 2) / (size * size) if exact else 1 / 4


def _shift(
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    rings: list[bool],
    shared: tuple[int, ...],
    shift: int | None = 1,
    split: bool = False,
) -> CollectiveCost:
    """Every chip sends its V/N to the chip ``shift`` further along the last axis (None: the worst permutation of
    all axes).

    ``split`` sends s(N-s)/N of a message's bytes·hops each way round a ring, which loads both directions alike.
    """
    link, hop, size = topology.chip.link_bytes_per_s, topology.chip.hop_seconds, group_size(spans)
    moves = list(zip(spans, rings, shared))[-1 if shift is not None else 0 :]
    load, far = 0.0, 0
    for span, ring, share in moves:
        steps = (span.size // 2 if shift is None else abs(shift)) % span.size
        near = min(steps, span.size - steps)
        both_ways = ring and (split or shift is None)
        crossing = steps * (span.size - steps) / span.size if both_ways else near
        load = max(load, bytes / size * crossing * share)
        longest = max(steps, span.size - steps) if steps and (both_ways or not ring) else near
        far += longest * span.stride
    return CollectiveCost("permute", bytes, size, load / link, far * hop, bytes_per_link=load)


def _crossing(kind: str, bytes: float, blocks: int, exact: bool) -> float:
    """Bytes into one of ``blocks`` blocks that together hold a group, each an equal part of it."""
    others = (blocks - 1) / blocks if exact else 1.0
    if kind in ("all_gather", "reduce_scatter"):
        return others * bytes
    if kind == "all_reduce":
        return 2 * others * bytes
    if kind == "all_to_all":
        return others * bytes / blocks
    return bytes / blocks if kind == "permute" else bytes


def switched(
    kind: str,
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    exact: bool,
    reduced_in_network: bool = False,
    **_: Any,
) -> CollectiveCost:
    """All the groups along mesh axes at once, in the nodes and units of a switched network."""
    return over_levels(kind, bytes, topology, occupancy(topology, spans), exact, reduced_in_network)


def over_levels(
    kind: str, bytes: float, topology: Topology, found: Occupancy, exact: bool, reduced_in_network: bool = False
) -> CollectiveCost:
    """Levels work at the same time, and the busiest decides; a message waits for a hop at each.

    Every GPU has an adapter of its own, an equal share of its node's way out, which brings in its part of what comes
    from other nodes; NVLink carries what the others of the node bring. Units share their way out among all groups.
    """
    gpu, *above = topology.levels
    # Switches that add take the array once and send it back once, at the same time: what a broadcast takes.
    shares = "broadcast" if kind == "all_reduce" and reduced_in_network else kind
    terms = [(max(_in_node(shares, group, exact) for group in found.groups), gpu.bytes_per_s, 1, "link")]
    if above:
        node = above[0]
        into = max(_into_chip(shares, group, exact) for group in found.groups)
        terms.append((into, node.bytes_per_s / node.size, node.size, "net"))
    if found.units is not None:
        terms.append((_out_of_unit(shares, found.units, exact), above[-1].bytes_per_s, 1, "net"))
    share, rate, adapters, network = max(terms, key=lambda term: term[0] / term[1])
    crossed = max(
        (group.most > 1) * gpu.hop_seconds
        + sum(level.hop_seconds for level, blocks in zip(above, (group.nodes, group.units)) if blocks > 1)
        for group in found.groups
    )
    return CollectiveCost(
        kind,
        bytes,
        max(group.size for group in found.groups),
        bytes * share / rate,
        (2 if shares == "all_reduce" else 1) * crossed,
        bytes_per_link=bytes * share * adapters,
        network=network,
        link_seconds=bytes * terms[0][0] / gpu.bytes_per_s,
    )


def _in_node(kind: str, group: GroupCounts, exact: bool) -> float:
    """Share of V that NVLink brings into one GPU, from the others of the group in its node."""
    if group.most == 1:
        return 0.0
    others = (group.most - 1) / group.most if exact else 1.0
    if kind in ("all_to_all", "permute"):
        return (others if kind == "all_to_all" else 1.0) / group.size
    return {"all_reduce": 2 * others, "broadcast": 1.0, "reduce": 1.0}.get(kind, others)


def _into_chip(kind: str, group: GroupCounts, exact: bool) -> float:
    """Share of V that one GPU's adapter brings in from other nodes, in the node that has fewest members.

    Gathers bring in what the node lacks, (N - m)/N of V for m members; sums are scattered over nodes in equal parts,
    so that (M - 1)/M of V comes in twice for M nodes, however the members are spread.
    """
    if group.nodes == 1:
        return 0.0
    if kind in ("all_to_all", "permute"):
        return ((group.size - group.fewest) / group.size if exact and kind == "all_to_all" else 1.0) / group.size
    lacks = (group.size - group.fewest) / group.size if exact else 1.0
    others = (group.nodes - 1) / group.nodes if exact else 1.0
    return {"all_reduce": 2 * others, "broadcast": 1.0, "reduce": 1.0}.get(kind, lacks) / group.fewest


def _out_of_unit(kind: str, units: UnitTraffic, exact: bool) -> float:
    """V's that the busiest unit takes in or sends out, all groups together."""
    if kind == "all_to_all":
        return units.exchanged if exact else units.held
    if kind == "permute":
        return units.moved
    if kind in ("broadcast", "reduce") or not exact:
        return units.straddling * (2 if kind == "all_reduce" else 1)
    return 2 * units.summed if kind == "all_reduce" else units.gathered

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

from meshwright.hardware.placement import DCN, Span, group_size
from meshwright.hardware.topology import Topology


@dataclass(frozen=True)
class CollectiveCost:
    """The terms of one collective.

    ``network`` is the one that decides: "link", or "net" beyond a node or a slice. ``seconds`` is the launch plus the
    larger of the other two terms, or plus both if the model is additive.
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
        return _torus(kind, bytes, topology, near, exact, **options)
    # Slices first gather (or last reduce) their own part each: both networks work at once.
    slices, chips = group_size(far), group_size(near)
    share = bytes if kind in ("broadcast", "reduce") else bytes / chips
    over = _crossing(kind, share, slices, exact) / topology.chip.dcn_bytes_per_s
    times = 2 if kind == "all_reduce" else 1
    latency = times * topology.chip.dcn_hop_seconds
    if chips == 1:
        return CollectiveCost(kind, bytes, slices, over, latency, network="net")
    inner = bytes / slices if kind in ("all_to_all", "permute") else bytes
    within = _torus(kind, inner, topology, near, exact, **options)
    return CollectiveCost(
        kind,
        bytes,
        slices * chips,
        max(over, within.bandwidth_seconds),
        latency + within.latency_seconds,
        bytes_per_link=within.bytes_per_link,
        network="net" if over > within.bandwidth_seconds else "link",
    )


def _torus(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, **options: Any
) -> CollectiveCost:
    link, hop = topology.chip.link_bytes_per_s, topology.chip.hop_seconds
    rings = [topology.wraps(span) for span in spans]
    size = group_size(spans)
    radius = sum((s.size // 2 if ring else s.size - 1) * s.stride for s, ring in zip(spans, rings))
    # Bandwidth into a chip per axis; groups that interleave share their links.
    into = [(2 if ring else 1) / s.stride for s, ring in zip(spans, rings)]
    if kind in ("all_gather", "reduce_scatter", "all_reduce"):
        times = 2 if kind == "all_reduce" else 1
        load = times * bytes * (_gather_load(spans, into) if exact else 1 / sum(into))
        return CollectiveCost(kind, bytes, size, load / link, times * radius * hop, bytes_per_link=load)
    if kind == "all_to_all":
        load = max(
            bytes * s.size / size * _exchange_load(s.size, ring, exact) * s.stride for s, ring in zip(spans, rings)
        )
        return CollectiveCost(kind, bytes, size, load / link, radius * hop, bytes_per_link=load)
    if kind == "permute":
        return _shift(bytes, topology, spans, rings, size, **options)
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
    size: int,
    shift: int | None = 1,
    split: bool = False,
) -> CollectiveCost:
    """Every chip sends its V/N to the chip ``shift`` further along the last axis (None: the worst permutation of
    all axes).

    ``split`` sends s(N-s)/N of a message's bytes·hops each way round a ring, which loads both directions alike.
    """
    link, hop = topology.chip.link_bytes_per_s, topology.chip.hop_seconds
    moves = list(zip(spans, rings))[-1:] if shift is not None else list(zip(spans, rings))
    load, far = 0.0, 0
    for span, ring in moves:
        steps = (span.size // 2 if shift is None else abs(shift)) % span.size
        near = min(steps, span.size - steps)
        both_ways = ring and (split or shift is None)
        crossing = steps * (span.size - steps) / span.size if both_ways else near
        load = max(load, bytes / size * crossing * span.stride)
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
    """At each level a block takes in what the group has elsewhere; all groups that have members in it do so at once.

    A GPU's own adapter brings in its share of what comes from other nodes, so NVLink carries what the others of its
    node bring.
    """
    size, times = group_size(spans), 2 if kind == "all_reduce" else 1
    worst, latency, load, network = 0.0, 0.0, 0.0, "link"
    levels = topology.levels
    for index, level in enumerate(levels):
        inside = _members(spans, level.size)
        around = _members(spans, levels[1].size) if index == 0 and len(levels) > 1 else size
        blocks = around // inside
        if blocks == 1:
            continue
        groups = min(level.size, topology.size) // inside
        share = bytes * around / size if kind in ("all_to_all", "permute") else bytes
        crossing = bytes if reduced_in_network and kind == "all_reduce" else _crossing(kind, share, blocks, exact)
        seconds = groups * crossing / level.bytes_per_s
        if seconds > worst:
            worst, load, network = seconds, groups * crossing, "net" if index else "link"
        latency += (1 if reduced_in_network else times) * level.hop_seconds
    return CollectiveCost(kind, bytes, size, worst, latency, bytes_per_link=load, network=network)


def _members(spans: tuple[Span, ...], block: int) -> int:
    """How many chips of a group stand in one block of ``block`` chips in a row."""
    return prod(min(span.size, max(1, block // span.stride)) for span in spans)

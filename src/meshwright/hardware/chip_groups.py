"""Collectives of groups that are given by the numbers of their chips, whether or not these are an axis of a mesh."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.links import CollectiveCost, links, over_levels
from meshwright.hardware.occupancy import Array, occupancy_of
from meshwright.hardware.placement import DCN, Span
from meshwright.hardware.topology import Topology

Link = tuple[int, int, int]  # chip, axis (or DCN), direction


def group_cost(
    kind: str,
    bytes: float,
    topology: Topology,
    members: Sequence[int] | Array,
    concurrent: Sequence[Sequence[int] | Array] = (),
    exact: bool = True,
) -> CollectiveCost:
    """The terms of a collective of ``members``, chips by number, while the groups of ``concurrent`` do the same.

    Behind switches as `links.over_levels` has it. On a torus a group that is a box runs on the box's axes, and shares
    them with the groups that stand on the same lines; any other runs as a ring through its members in order, both ways
    round, each message over a shortest way.
    """
    if topology.switched:
        return over_levels(kind, bytes, topology, occupancy_of(topology, members, concurrent), exact)
    spans = box(topology, members)
    if spans is not None:
        near = [span for span in spans if span.axis != DCN]
        return links(kind, bytes, topology, spans, exact, sharing=_sharing(topology, members, concurrent, near))
    groups = [np.asarray(group).tolist() for group in (members, *concurrent)]
    return _ring(kind, bytes, topology, groups if kind == "permute" else [sorted(group) for group in groups])


def chip_numbers(topology: Topology, groups: Sequence[Sequence[int]]) -> list[Array]:
    """Groups as arrays of the numbers of their chips; raises unless these are different chips of the machine.

    >>> chip_numbers(Topology("h100", 16), [(0, 1), range(2, 4)])
    [array([0, 1]), array([2, 3])]
    """
    out = [np.arange(g.start, g.stop, g.step) if isinstance(g, range) else np.asarray(g) for g in groups]
    for numbers in out:
        wrong = numbers[:0] if numbers.dtype.kind in "iu" else numbers[:1]
        if not len(wrong):
            wrong = numbers[(numbers < 0) | (numbers >= topology.size)]
        if len(wrong):
            raise HardwareError(
                f"{topology.text} has no chip {wrong.tolist()[0]!r}.",
                where=here(),
                why=f"its {topology.size} chips are numbered from 0 to {topology.size - 1}",
                fix=f"members={tuple(range(min(topology.size, max(2, min(len(numbers), 8)))))}",
            )
    times = np.bincount(np.concatenate(out))
    if (times > 1).any():
        raise HardwareError(
            f"Chip {times.argmax()} is in a group twice, or in two groups.",
            where=here(),
            why="groups that communicate at the same time have different members",
            fix="name each chip once",
        )
    return out


def coordinates(topology: Topology, chip: int) -> tuple[int, ...]:
    """Slice and place of a chip by its number: slices one after another, the last axis the fastest.

    >>> coordinates(Topology("tpu v5e", (4, 8)), 9)
    (0, 1, 1)
    """
    return tuple(map(int, np.unravel_index(chip, (topology.slices, *topology.shape))))


def box(topology: Topology, members: Sequence[int] | Array) -> tuple[Span, ...] | None:
    """The axes of a group that is a box, evenly spaced along each axis; None where it is none.

    >>> box(Topology("tpu v5e", (4, 8)), (0, 2, 16, 18))
    (Span(axis=0, size=2, stride=2), Span(axis=1, size=2, stride=2))
    >>> box(Topology("tpu v5e", (4, 8)), (0, 1, 8)) is None
    True
    """
    along = [np.unique(places) for places in np.unravel_index(np.asarray(members), (topology.slices, *topology.shape))]
    if prod(map(len, along)) != len(members):
        return None
    spans = []
    for axis, places in enumerate(along, DCN):
        steps = np.diff(places)
        if len(steps) and (steps != steps[0]).any():
            return None
        if len(steps):
            spans.append(Span(axis, len(places), int(steps[0])))
    return tuple(spans)


def _sharing(
    topology: Topology,
    members: Sequence[int] | Array,
    concurrent: Sequence[Sequence[int] | Array],
    spans: Sequence[Span],
) -> tuple[int, ...]:
    """Along each axis, the most groups that have links of one line of chips in common with the group's own."""
    if not concurrent:
        return (1,) * len(spans)

    def lines(group: Sequence[int] | Array, axis: int) -> dict[tuple[int, ...], tuple[int, int]]:
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for chip in group:
            at = coordinates(topology, chip)
            found[(*at[: axis + 1], *at[axis + 2 :])].append(at[axis + 1])
        whole = topology.shape[axis] if topology.wrap[axis] else 0
        return {
            line: (0, whole) if whole and len(at) > 1 and _around(at, whole) else (min(at), max(at))
            for line, at in found.items()
        }

    out = []
    for span in spans:
        own = lines(members, span.axis)
        count = dict.fromkeys(own, 1)
        for group in concurrent:
            for line, (low, high) in lines(group, span.axis).items():
                if line in own and max(low, own[line][0]) < min(high, own[line][1]):
                    count[line] += 1
        out.append(max(count.values()))
    return tuple(out)


def _around(places: Sequence[int], length: int) -> bool:
    """Whether places evenly spaced on a ring go all around it."""
    at = sorted(places)
    return (at[1] - at[0]) * len(at) == length


def _ring(kind: str, bytes: float, topology: Topology, groups: Sequence[Sequence[int]]) -> CollectiveCost:
    """Steps of a ring, or messages between all pairs, each over a shortest way; the busiest link decides."""
    members, times = groups[0], 2 if kind == "all_reduce" else 1
    size = len(members)
    load: Counter[Link] = Counter()
    for group in groups:
        for source, target, share in _messages(kind, group):
            for link in way(topology, source, target):
                load[link] += share  # type: ignore[assignment]
    chip = topology.chip
    link, most = max(load.items(), key=lambda item: item[1] / link_rate(topology, item[0]))
    steps = {"all_to_all": 1, "permute": 1, "broadcast": size - 1, "reduce": size - 1}.get(kind, times * (size // 2))
    reach = max(
        (sum(chip.hop_seconds if axis >= 0 else chip.dcn_hop_seconds for _, axis, _ in way(topology, a, b)))
        for a, b, _ in _messages(kind, members)
    )
    return CollectiveCost(
        kind,
        bytes,
        size,
        bytes * most / link_rate(topology, link),
        steps * reach,
        bytes_per_link=bytes * most,
        network="link" if link[1] >= 0 else "net",
    )


def _messages(kind: str, group: Sequence[int]) -> Iterable[tuple[int, int, float]]:
    """Who sends to whom, and what share of V in all."""
    size = len(group)
    around = list(zip(group, [*group[1:], group[0]]))
    if kind == "all_to_all":
        return [(a, b, 1 / size**2) for a in group for b in group if a != b]
    if kind == "permute":
        return [(a, b, 1 / size) for a, b in around]
    if kind in ("broadcast", "reduce"):
        return [(a, b, 1.0) for a, b in around[:-1]]
    share = (2 if kind == "all_reduce" else 1) * (size - 1) / size / 2
    return [message for a, b in around for message in ((a, b, share), (b, a, share))]


def way(topology: Topology, source: int, target: int) -> list[Link]:
    """The links of a message, axis by axis; between slices it takes the network of both chips.

    >>> way(Topology("tpu v5e", (4, 8)), 0, 9)
    [(0, 0, 1), (8, 1, 1)]
    """
    (first, *at), (last, *stop) = coordinates(topology, source), coordinates(topology, target)
    if first != last:
        return [(source, DCN, 1), (target, DCN, -1)]
    path: list[Link] = []
    for axis, length in enumerate(topology.shape):
        ahead = stop[axis] - at[axis]
        if topology.wrap[axis] and 2 * abs(ahead) > length:
            ahead -= length if ahead > 0 else -length
        step = 1 if ahead > 0 else -1
        for _ in range(abs(ahead)):
            number = int(np.ravel_multi_index((first, *at), (topology.slices, *topology.shape)))
            path.append((number, axis, step))
            at[axis] = (at[axis] + step) % length
    return path


def link_rate(topology: Topology, link: Link) -> float:
    return topology.chip.link_bytes_per_s if link[1] >= 0 else topology.chip.dcn_bytes_per_s

"""Resharding where blocks do not nest: every device is sent what it lacks, each byte once, in rounds of permutes.

The ends of the source's blocks cut a device's target shard into cells, each of which is held by the devices of one
source block. Cells of one shape that are missing form a bipartite multigraph from holders to receivers; its edges are
coloured so that no device sends or receives twice in one colour, and each colour is one permute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.axes import Axes, AxisRef
from meshwright.core.placement import block_size
from meshwright.partition.reshard_steps import Mapped, Place, Received, ReshardStep, axes_text

Offset = tuple[int, ...]


class Send(NamedTuple):
    """A cell of a device's array at ``take`` that a device puts at ``put`` of its new one."""

    source: int
    target: int
    take: Offset
    put: Offset


class BlockRound(NamedTuple):
    """Cells of one shape; each device sends at most one and receives at most one."""

    shape: tuple[int, ...]
    sends: tuple[Send, ...]


class Split(NamedTuple):
    """A dim of ``size`` elements: how many blocks each side has, and which of them each device has."""

    size: int
    source_blocks: int
    source: NDArray[np.int64]
    target_blocks: int
    target: NDArray[np.int64]


@dataclass(frozen=True)
class Blocks(ReshardStep):
    """Rounds of permutes of cells, and the cells that each device has already.

    Devices are numbered along the axes, major to minor. Offsets and shapes count in the plan's units.
    """

    over: Axes
    devices: int
    rounds: tuple[BlockRound, ...]
    copies: tuple[BlockRound, ...]
    shape: tuple[int, ...]
    mapped: tuple[tuple[Place, AxisRef], ...]
    kind = "permute"

    @property
    def axes(self) -> Axes:
        """The axes along which devices are numbered."""
        return self.over

    @property
    def collectives(self) -> int:
        """One permute for each round."""
        return len(self.rounds)

    def after(self, mapped: Mapped) -> dict[Place, AxisRef]:
        """As the step says."""
        return dict(self.mapped)

    def received(self, before: int) -> Received:
        """The cells that are missing."""
        taken = [0] * self.devices
        for round in self.rounds:
            for send in round.sends:
                taken[send.target] += prod(round.shape)
        return Received(Fraction(max(taken)), Fraction(sum(taken), self.devices))

    def __str__(self) -> str:
        over = f" over {axes_text(self.over)}"
        rounds = "1 permute" if len(self.rounds) == 1 else f"{len(self.rounds)} rounds of permute"
        return f"{rounds} of blocks{over}" if self.rounds else f"rearrange blocks{over}"


def blocks_step(splits: Sequence[Split], devices: int, over: Axes, mapped: Iterable[tuple[Place, AxisRef]]) -> Blocks:
    """The rounds that bring every device its target block."""
    segments = [_segments(split) for split in splits]
    own = list(zip(*(split.source.tolist() for split in splits), strict=True)) if splits else [()] * devices
    wanted = list(zip(*(split.target.tolist() for split in splits), strict=True)) if splits else [()] * devices
    starts = [block_size(split.size, split.target_blocks) for split in splits]
    steps = [block_size(split.size, split.source_blocks) for split in splits]
    holders: dict[Offset, list[int]] = {}
    for device, block in enumerate(own):
        holders.setdefault(block, []).append(device)
    missing: dict[Offset, list[Send]] = {}
    held: dict[Offset, list[Send]] = {}
    turns: dict[tuple[Offset, Offset], int] = {}
    cells = {
        numbers: [
            (
                tuple(segment.block for segment in cell),
                tuple(segment.stop - segment.start for segment in cell),
                tuple(segment.start - segment.block * step for segment, step in zip(cell, steps, strict=True)),
                tuple(s.start - n * step for s, n, step in zip(cell, numbers, starts, strict=True)),
            )
            for cell in product(*(found[number] for found, number in zip(segments, numbers, strict=True)))
        ]
        for numbers in set(wanted)
    }
    for device, numbers in enumerate(wanted):
        for block, shape, take, put in cells[numbers]:
            if own[device] == block:
                held.setdefault(shape, []).append(Send(device, device, take, put))
                continue
            having = holders[block]
            turn = turns.get((block, shape), 0)
            turns[block, shape] = turn + 1
            missing.setdefault(shape, []).append(Send(having[turn % len(having)], device, take, put))
    rounds = [
        BlockRound(shape, sends) for shape in sorted(missing, reverse=True) for sends in _coloured(missing[shape])
    ]
    copies = [BlockRound(shape, sends) for shape in sorted(held, reverse=True) for sends in _coloured(held[shape])]
    return Blocks(over, devices, tuple(rounds), tuple(copies), tuple(starts), tuple(mapped))


class Segment(NamedTuple):
    """What of a dim is in one source block and one target block."""

    block: int
    start: int
    stop: int


def _segments(split: Split) -> list[list[Segment]]:
    """The segments of each target block."""
    wide, step = block_size(split.size, split.source_blocks), block_size(split.size, split.target_blocks)
    found = []
    for number in range(split.target_blocks):
        start, stop = min(number * step, split.size), min((number + 1) * step, split.size)
        first, last = (start // wide, -(-stop // wide)) if start < stop else (0, 0)
        found.append([Segment(b, max(start, b * wide), min(stop, (b + 1) * wide)) for b in range(first, last)])
    return found


def _coloured(sends: Sequence[Send]) -> list[tuple[Send, ...]]:
    """The sends in as few groups as the busiest device has sends or receives (König's theorem)."""
    out: dict[int, dict[int, int]] = {}  # by sender, by colour: the edge
    into: dict[int, dict[int, int]] = {}
    colour: list[int] = []
    for edge, send in enumerate(sends):
        here, there = out.setdefault(send.source, {}), into.setdefault(send.target, {})
        first = next(c for c in range(len(here) + 1) if c not in here)
        second = next(c for c in range(len(there) + 1) if c not in there)
        if first != second and first in there:
            # The path from the receiver whose edges have the two colours in turn ends elsewhere than at the sender,
            # which has no edge of the first: swap the colours along it.
            path, at_receiver, at, wanted = [], True, send.target, first
            while True:
                edges = (into if at_receiver else out).get(at, {})
                if wanted not in edges:
                    break
                path.append(edges[wanted])
                at = sends[path[-1]].source if at_receiver else sends[path[-1]].target
                at_receiver, wanted = not at_receiver, second if wanted == first else first
            for found in path:
                del out[sends[found].source][colour[found]], into[sends[found].target][colour[found]]
            for found in path:
                colour[found] = second if colour[found] == first else first
                out[sends[found].source][colour[found]] = into[sends[found].target][colour[found]] = found
        colour.append(first)
        here[first] = there[first] = edge
    groups: list[list[Send]] = [[] for _ in range(max(colour, default=-1) + 1)]
    for edge, number in enumerate(colour):
        groups[number].append(sends[edge])
    return [tuple(group) for group in groups]

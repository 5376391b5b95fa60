"""Resharding where blocks do not nest: every device is sent what it lacks, each byte once, in rounds of permutes.

The ends of the source's blocks cut a device's target shard into cells, each of which is held by the devices of one
source block. Cells of one shape that are missing form a bipartite multigraph from holders to receivers; its edges are
coloured so that no device sends or receives twice in one colour, and each colour is one permute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, lcm, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.partition.reshard.steps import DigitOfDim, Mapped, Received, ReshardStep, axes_text
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.placement import block_size

Offset = tuple[int, ...]
MOST_CELLS = 1 << 16  # that are matched with their holders one by one, in less than a second
MOST_ROUNDS = 1 << 10  # of permutes
MOST_ENTRIES = 1 << 22  # of the tables of all rounds, a row for each device


class CellMove(NamedTuple):
    """A cell of a device's array at ``take`` that a device puts at ``put`` of its new one."""

    source: int
    target: int
    take: Offset
    put: Offset


class BlockRound(NamedTuple):
    """Cells of one shape; each device sends at most one and receives at most one."""

    shape: tuple[int, ...]
    sends: tuple[CellMove, ...]


class DimBlocks(NamedTuple):
    """A dim of ``size`` elements: how many blocks each side has, and which of them each device has."""

    size: int
    source_blocks: int
    source: NDArray[np.int64]
    target_blocks: int
    target: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells, one in each row: who sends it to whom, its shape, where it is taken and put."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    shape: NDArray[np.int64]
    take: NDArray[np.int64]
    put: NDArray[np.int64]

    def __getitem__(self, rows: NDArray[Any]) -> Cells:
        return Cells(self.source[rows], self.target[rows], self.shape[rows], self.take[rows], self.put[rows])

    @cached_property
    def by_shape(self) -> list[tuple[tuple[int, ...], Cells]]:
        """The cells of each shape, the largest shape first."""
        if not len(self.source):
            return []
        kinds, which = distinct(self.shape)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(kinds)))[:-1]
        groups = zip(map(tuple, kinds.tolist()), np.split(order, ends), strict=True)
        return [(shape, self[rows]) for shape, rows in sorted(groups, key=lambda group: group[0], reverse=True)]

    @cached_property
    def counts(self) -> list[tuple[tuple[int, ...], int]]:
        """For each shape, in how many rounds its cells can be sent: as many as the busiest device has of them."""
        return [
            (shape, int(max(np.bincount(cells.source).max(), np.bincount(cells.target).max())))
            for shape, cells in self.by_shape
        ]

    def rounds(self) -> tuple[BlockRound, ...]:
        """The rounds."""
        found = []
        for shape, cells in self.by_shape:
            ends = cells.source.tolist(), cells.target.tolist()
            offsets = (map(tuple, offset.tolist()) for offset in (cells.take, cells.put))
            sends = [CellMove(*row) for row in zip(*ends, *offsets, strict=True)]
            found += [BlockRound(shape, group) for group in _coloured(sends)]
        return tuple(found)


def distinct(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that are there, each once, and which of them each row is."""
    kinds, which = np.unique(rows, axis=0, return_inverse=True)
    return kinds, which.ravel()


@dataclass(frozen=True, eq=False)
class BlockExchange(ReshardStep):
    """Rounds of permutes of cells, and the cells that each device has already.

    Devices are numbered along the axes, major to minor. Offsets and shapes count in the plan's units.
    """

    over: Axes
    devices: int
    missing: Cells
    held: Cells
    shape: tuple[int, ...]
    mapped: tuple[tuple[DigitOfDim, AxisRef], ...]
    kind = "permute"
    recuts = True
    __eq__ = object.__eq__  # arrays are not compared
    __hash__ = object.__hash__

    @cached_property
    def rounds(self) -> tuple[BlockRound, ...]:
        """The rounds of cells that devices send."""
        return self.missing.rounds()

    @cached_property
    def copies(self) -> tuple[BlockRound, ...]:
        """The cells that each device keeps."""
        return self.held.rounds()

    @property
    def axes(self) -> Axes:
        """The axes along which devices are numbered."""
        return self.over

    @property
    def collectives(self) -> int:
        """One permute for each round."""
        return sum(count for _, count in self.missing.counts)

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """As the step says."""
        return dict(self.mapped)

    def received(self, before: int) -> Received:
        """The cells that are missing."""
        return self._received

    @cached_property
    def _received(self) -> Received:
        sizes = self.missing.shape
        exact = prod(self.shape) < 1 << 62 // max(1, len(sizes))
        elements = np.prod(sizes if exact else sizes.astype(np.object_), axis=1, initial=1)
        taken: NDArray[Any] = np.zeros(self.devices, elements.dtype)
        np.add.at(taken, self.missing.target, elements)
        return Received(Fraction(int(taken.max())), Fraction(int(taken.sum()), self.devices))

    def __str__(self) -> str:
        over = f" over {axes_text(self.over)}"
        rounds = "1 permute" if self.collectives == 1 else f"{self.collectives} rounds of permute"
        return f"{rounds} of blocks{over}" if self.collectives else f"rearrange blocks{over}"


class Sides(NamedTuple):
    """A dim of ``size`` elements, and how many blocks each side has."""

    size: int
    source_blocks: int
    target_blocks: int

    @property
    def segments(self) -> int:
        """How many pairs of a source block and a target block have elements in common."""
        wide, step = block_size(self.size, self.source_blocks), block_size(self.size, self.target_blocks)
        ends = (wide, step, lcm(wide, step))
        return sum(sign * -(-self.size // end) for sign, end in zip((1, 1, -1), ends, strict=True)) if self.size else 0


def count_cells(sides: Iterable[Sides], devices: int) -> int:
    """How many cells the shards of all devices consist of, and at least how many devices there are.

    >>> count_cells([Sides(12, 2, 3)], 6)
    8
    """
    cells = Fraction(devices)
    for side in sides:
        cells *= Fraction(side.segments, side.target_blocks)
    return max(devices, ceil(cells))


def blocks_step(
    splits: Sequence[DimBlocks], devices: int, over: Axes, mapped: Iterable[tuple[DigitOfDim, AxisRef]]
) -> BlockExchange:
    """The cells that bring every device its target block; holders of a block send its cells in turn."""
    device, places = _every_cell([_segments(split) for split in splits], [split.target for split in splits], devices)
    block, shape, take, put = (places[:, :, field] for field in range(4))
    own = np.stack([split.source for split in splits], axis=1) if splits else np.zeros((devices, 0), np.int64)
    mine = (own[device] == block).all(axis=1)
    cells = Cells(device, device, shape, take, put)
    missing, needed = cells[~mine], block[~mine]
    if len(needed):
        blocks, which = distinct(np.concatenate([own, needed]))
        holder, wanted = which[:devices], which[devices:]
        turn = _turns(distinct(np.concatenate([needed, missing.shape], axis=1))[1])
        having = np.bincount(holder, minlength=len(blocks))
        first = np.cumsum(having) - having
        sender = np.argsort(holder, kind="stable")[first[wanted] + turn % having[wanted]]
        missing = replace(missing, source=sender)
    starts = tuple(block_size(split.size, split.target_blocks) for split in splits)
    return BlockExchange(over, devices, missing, cells[mine], starts, tuple(mapped))


def _every_cell(
    segments: Sequence[list[list[Segment]]], wanted: Sequence[NDArray[np.int64]], devices: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cells of all devices' target blocks: whose they are, and their segments of each dim."""
    counts = [np.array([len(row) for row in rows])[numbers] for rows, numbers in zip(segments, wanted, strict=True)]
    each = np.prod(np.stack([np.ones(devices, np.int64), *counts]), axis=0)
    device = np.repeat(np.arange(devices), each)
    index = np.arange(len(device)) - np.repeat(np.cumsum(each) - each, each)
    columns = []
    for rows, numbers, count in zip(reversed(segments), reversed(wanted), reversed(counts), strict=True):
        table = np.array([segment for row in rows for segment in row], np.int64).reshape(-1, 4)
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        columns.append(table[starts[numbers[device]] + index % count[device]])
        index = index // count[device]
    return device, np.stack(columns[::-1], axis=1) if columns else np.zeros((len(device), 0, 4), np.int64)


def _turns(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry, the number of equal entries before it."""
    order = np.argsort(kinds, kind="stable")
    counts = np.bincount(kinds)
    turns = np.empty_like(kinds)
    turns[order] = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
    return turns


class Segment(NamedTuple):
    """The elements of a dim in one source block and one target block, and where they begin in either."""

    block: int
    size: int
    take: int
    put: int


def _segments(split: DimBlocks) -> list[list[Segment]]:
    """The segments of each target block."""
    wide, step = block_size(split.size, split.source_blocks), block_size(split.size, split.target_blocks)
    found = []
    for number in range(split.target_blocks):
        start, stop = min(number * step, split.size), min((number + 1) * step, split.size)
        first, last = (start // wide, -(-stop // wide)) if start < stop else (0, 0)
        row = []
        for block in range(first, last):
            low, high = max(start, block * wide), min(stop, (block + 1) * wide)
            row.append(Segment(block, high - low, low - block * wide, low - start))
        found.append(row)
    return found


def _coloured(sends: Sequence[CellMove]) -> list[tuple[CellMove, ...]]:
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
    groups: list[list[CellMove]] = [[] for _ in range(max(colour, default=-1) + 1)]
    for edge, number in enumerate(colour):
        groups[number].append(sends[edge])
    return [tuple(group) for group in groups]

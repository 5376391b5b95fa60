"""Reshard plans where the blocks of the two shardings do not nest: blocks are sent directly.

Digits that some dims have in common still help: a digit that only the target splits, by an atom that is idle in the
source, is sliced first, and one that only the source splits, by an atom that is idle in the target, is gathered last.
What is left between is exchanged in rounds of permutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from meshwright.core.source import here
from meshwright.errors import ShardingError
from meshwright.partition.reshard.blocks import (
    MOST_CELLS,
    MOST_ENTRIES,
    MOST_ROUNDS,
    BlockExchange,
    DimBlocks,
    Sides,
    blocks_step,
    count_cells,
)
from meshwright.partition.reshard.search import Name, on_parts
from meshwright.partition.reshard.sketch import DigitView, Sketch
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    DigitOfDim,
    LocalSlice,
    Mask,
    ReduceScatter,
    ReshardStep,
)
from meshwright.partition.reshard.structure import DigitStructure, Frame, atoms_of, numbered, tables
from meshwright.sharding.axes import cut
from meshwright.sharding.placement import Digit, Digits, axes_of, block_numbers, block_size


def direct_sketches(
    found: Frame, parts: DigitStructure, shape: Sequence[int], name: Name, reduction: str, sums_by: str, most: int
) -> list[Sketch]:
    """Sums are scattered over dims without common digits, or reduced whole; none with more than ``most`` cells."""
    exchanges = [_Direct(found, parts, shape, scatter) for scatter in ((True, False) if parts.to_reduce else (False,))]
    every = [exchange.sketch(name, reduction, sums_by) for exchange in exchanges if exchange.cells <= most]
    return [sketch for sketch in every if all(map(_can_be_written, sketch.steps))]


def _can_be_written(step: ReshardStep) -> bool:
    """Whether the rounds of a step, each a table of the devices along its axes, are few and small enough."""
    devices = prod({axis.name: axis.whole for axis in step.axes}.values())
    return step.collectives <= MOST_ROUNDS and step.collectives * devices <= MOST_ENTRIES


def listed_sketch(found: Frame, shape: Sequence[int], reduction: str) -> Sketch:
    """All devices exchange with each other: their axes have no common parts."""
    blocks = [
        Sides(size, *(_count(side.dims[dim]) for side in (found.source, found.target)))
        for dim, size in enumerate(shape)
    ]
    cells = count_cells(blocks, found.source.size)
    if cells > MOST_CELLS:
        raise ShardingError(
            "The devices of this reshard cannot be matched one by one.",
            where=here(),
            why=f"the two sides cut {found.source.size} devices differently, and their shards into {cells} blocks;"
            f" up to {MOST_CELLS} are matched",
            fix="reshard to P() first, and from there to dst",
        )
    splits = [
        DimBlocks(size, *one, *other)
        for size, one, other in zip(shape, tables(found.source), tables(found.target), strict=True)
    ]
    ends = tuple((block_size(s.size, s.source_blocks), block_size(s.size, s.target_blocks)) for s in splits)
    to_reduce = axes_of(found.mesh, found.source.unreduced) or ()
    first: tuple[ReshardStep, ...] = (AllReduce(to_reduce, reduction),) if to_reduce else ()
    over = tuple(axis for axis in cut(found.mesh.axes, to_reduce) if axis.size > 1)
    step = blocks_step(splits, found.source.size, over, ())
    cuts = tuple(DigitView(((),) * len(splits), tuple(sizes[side] for sizes in ends)) for side in (0, 1))
    return Sketch(cuts, {}, (*first, step))


class _Direct:
    """Where digits lie before and after the exchange, and what is sliced, scattered, reduced and gathered around it."""

    def __init__(self, found: Frame, parts: DigitStructure, shape: Sequence[int], scatter: bool) -> None:
        self.found, self.parts, self.shape = found, parts, shape
        self.source: dict[DigitOfDim, Digit] = {}
        self.target: dict[DigitOfDim, Digit] = {}
        for dim, pieces in enumerate(parts.dims):
            for digit, piece in enumerate(pieces or ()):
                if piece.source is not None:
                    self.source[DigitOfDim(dim, digit)] = piece.source
                if piece.target is not None:
                    self.target[DigitOfDim(dim, digit)] = piece.target
        self.start = dict(self.source)
        self.sliced: list[tuple[DigitOfDim, Digit]] = []
        self.scattered: list[tuple[DigitOfDim, Digit]] = []
        self.gathered: list[tuple[DigitOfDim, Digit]] = []
        self._around()
        self.whole = [atom for atom in parts.to_reduce if atom not in {atom for _, atom in self.scattered}]
        self.minor: dict[int, list[Digit]] = {}  # digits of dims without common ones, for sums
        if scatter:
            self._scatter()
        self.rest = tuple(
            1 if pieces is None else block_size(size, prod(piece.size for piece in pieces))
            for size, pieces in zip(shape, parts.dims, strict=True)
        )
        self.sides = [self._sides(dim) for dim in range(len(shape))]
        self.over = [atom for atom in reversed(parts.atoms) if any(atom in (*a, *b) for _, a, b in self.sides)]

    @property
    def cells(self) -> int:
        """How many blocks are exchanged or kept."""
        return count_cells([Sides(n, _count(a), _count(b)) for n, a, b in self.sides], _count(self.over))

    def _around(self) -> None:
        """Slice and gather what can be; only digits next to those that are split, so that blocks stay whole."""
        parts, sides = self.parts, (self.found.source, self.found.target)
        apart = [dim for dim, pieces in enumerate(parts.dims) if pieces is None]
        busy, aimed = ({a for dim in apart for a in atoms_of(side.dims[dim], parts.atoms)} for side in sides)
        busy |= {*self.source.values(), *parts.source_sums} - {*parts.to_reduce}
        aimed |= {*self.target.values()}
        for dim, pieces in enumerate(parts.dims):
            for digit, piece in enumerate(pieces or ()):
                position = DigitOfDim(dim, digit)
                if piece.source is None and piece.target is not None:
                    if piece.target in busy:
                        break
                    (self.scattered if piece.target in parts.to_reduce else self.sliced).append(
                        (position, piece.target)
                    )
                    self.source[position] = piece.target
                elif piece.target is None and piece.source is not None:
                    if piece.source in aimed:
                        break
                    self.gathered.append((position, piece.source))
                    self.target[position] = piece.source

    def _scatter(self) -> None:
        """Scatter unreduced atoms onto the minor ends of blocks that they divide."""
        for atom in list(self.whole):
            for dim, pieces in enumerate(self.parts.dims):
                digits = self.minor.get(dim, [])
                blocks = _count(self.found.source.dims[dim]) * _count(digits)
                if pieces is None and self.shape[dim] % (blocks * atom.size) == 0:
                    self.scattered.append((DigitOfDim(dim, len(digits)), atom))
                    self.minor[dim] = [*digits, atom]
                    self.whole.remove(atom)
                    break

    def sketch(self, name: Name, reduction: str, sums_by: str) -> Sketch:
        """The steps."""
        parts = self.parts
        steps: list[ReshardStep] = [LocalSlice(on_parts(self.sliced, name))] if self.sliced else []
        steps += [ReduceScatter(on_parts(self.scattered, name), reduction)] if self.scattered else []
        steps += [AllReduce(tuple(map(name, self.whole)), reduction)] if self.whole else []
        steps.append(self._exchange(name))
        steps += [AllGather(on_parts(self.gathered, name))] if self.gathered else []
        steps += [Mask(tuple(map(name, parts.introduced)), sums_by)] if parts.introduced else []
        start = {position: name(atom) for position, atom in self.start.items()}
        return Sketch((self._cut(False), self._cut(True)), start, tuple(steps))

    def _cut(self, moved: bool) -> DigitView:
        """The view of dims as digits before the exchange, or after it."""
        side = self.found.target if moved else self.found.source
        digits, rest = [], []
        for dim, (size, pieces) in enumerate(zip(self.shape, self.parts.dims, strict=True)):
            if pieces is not None:
                digits.append(tuple(piece.size for piece in pieces))
                rest.append(self.rest[dim])
            else:
                minor = () if moved else self.minor.get(dim, ())
                digits.append(tuple(digit.size for digit in minor))
                rest.append(block_size(size, _count(side.dims[dim])) // _count(minor))
        return DigitView(tuple(digits), tuple(rest))

    def _exchange(self, name: Name) -> BlockExchange:
        """The rounds, among the devices along the atoms that are not the same on both sides."""
        digits, devices = numbered(reversed(self.over))
        numbers = np.arange(devices)
        splits = [
            DimBlocks(
                size,
                _count(source),
                block_numbers(tuple(digits[atom] for atom in source), numbers),
                _count(target),
                block_numbers(tuple(digits[atom] for atom in target), numbers),
            )
            for size, source, target in self.sides
        ]
        mapped = [(position, name(atom)) for position, atom in self.target.items()]
        return blocks_step(splits, devices, tuple(map(name, self.over)), mapped)

    def _sides(self, dim: int) -> tuple[int, Digits, Digits]:
        """The size of a dim that is exchanged, and the atoms of both sides: digits kept at the major end are left
        out."""
        pieces = self.parts.dims[dim]
        if pieces is None:
            one, other = (atoms_of(side.dims[dim], self.parts.atoms) for side in (self.found.source, self.found.target))
            return self.shape[dim], (*one, *self.minor.get(dim, ())), other
        positions = [DigitOfDim(dim, digit) for digit in range(len(pieces))]
        while positions and self.source.get(positions[0]) == self.target.get(positions[0]) is not None:
            positions.pop(0)
        return (
            self.rest[dim] * prod(pieces[position.digit].size for position in positions),
            tuple(self.source[position] for position in positions if position in self.source),
            tuple(self.target[position] for position in positions if position in self.target),
        )


def _count(digits: Iterable[Digit]) -> int:
    return prod(digit.size for digit in digits)

"""Two shardings of one array, written in the same digits.

Cut every mesh axis into *atoms*, so finely that both shardings are made of them, and read each dim's index from the
major end as *digits* whose sizes are the atoms of either side. A sharding then is a map from digits to atoms: a device
holds the elements whose digit is its own coordinate along the digit's atom, and a digit without an atom is held whole.

The two sides of a dim have no common digits if their blocks do not nest: 2 blocks and 3, or 5 elements in 2 blocks (of
3) and in 4 (of 2). Such a dim has no ``pieces``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.mesh import BaseMesh
from meshwright.core.mesh_check import MOST_LISTED
from meshwright.core.placement import (
    Digit,
    Digits,
    Layout,
    Step,
    block_numbers,
    block_size,
    order_steps,
    ranks,
    through,
)
from meshwright.core.source import here
from meshwright.errors import MeshError


class Piece(NamedTuple):
    """A digit of a dim, and the atom it lies on in the source and in the target."""

    size: int
    source: Digit | None
    target: Digit | None

    @property
    def kept(self) -> bool:
        """Whether nothing happens to it."""
        return self.source == self.target


Pieces = tuple[Piece, ...]


class Structure(NamedTuple):
    """The digits of each dim (None where the sides have none in common), and the atoms that owe sums."""

    devices: int
    dims: tuple[Pieces | None, ...]
    source_sums: Digits
    target_sums: Digits
    atoms: Digits

    @property
    def owed(self) -> Digits:
        """The atoms to reduce over."""
        return tuple(atom for atom in self.source_sums if atom not in self.target_sums)

    @property
    def introduced(self) -> Digits:
        """The atoms over which the target owes a sum and the source does not."""
        return tuple(atom for atom in self.target_sums if atom not in self.source_sums)

    @property
    def idle(self) -> Digits:
        """The atoms over which both sides are replicated."""
        used = {atom for dim in self.dims if dim for piece in dim for atom in piece[1:]}
        return tuple(a for a in self.atoms if a not in (*used, *self.source_sums, *self.target_sums))


class Frame(NamedTuple):
    """Both layouts over the same numbering of devices.

    Devices are numbered by their position on ``mesh``, whose axes steps name; ``order`` gives the rank of each by
    position. Where the target is not made of digits of this number, its layout has an order of its own.
    """

    mesh: BaseMesh
    order: tuple[int, ...] | None
    source: Layout
    target: Layout


def frame(source: Layout, target: Layout, source_mesh: BaseMesh, target_mesh: BaseMesh) -> Frame:
    """A numbering of the devices in which the source's layout is digits, and the target's too if there is one."""
    one = None if source.order is None else ranks(source.order)
    other = None if target.order is None else ranks(target.order)
    bare_source, bare_target = source._replace(order=None), target._replace(order=None)
    if one == other or not (any(target.dims) or target.unreduced):
        return Frame(source_mesh, one, bare_source, bare_target)
    if not (any(source.dims) or source.unreduced):
        return Frame(target_mesh, other, bare_source, bare_target)
    there = (Step(1, target.size, 1),) if other is None else order_steps(other)
    back = (Step(1, source.size, 1),) if one is None else order_steps(one)
    if there is not None and back is not None:
        back = tuple(sorted(Step(step.image, step.size, step.stride) for step in back))
        moved = [_through(digits, there, back) for digits in (*target.dims, target.unreduced)]
        found = [digits for digits in moved if digits is not None]
        if len(found) == len(moved):
            return Frame(
                source_mesh, one, bare_source, bare_target._replace(dims=tuple(found[:-1]), unreduced=found[-1])
            )
    place = {rank: position for position, rank in enumerate(one or range(source.size))}
    seen = tuple(place[rank] for rank in (other or range(target.size)))
    return Frame(source_mesh, one, bare_source, target._replace(order=seen))


def _through(digits: Digits, there: Sequence[Step], back: Sequence[Step]) -> Digits | None:
    moved = through(digits, there)
    return None if moved is None else through(moved, back)


# Common digits


def structure(found: Frame, shape: Sequence[int]) -> Structure | None:
    """The common digits of both layouts; None if the axes themselves have no common parts."""
    if found.target.order is not None:
        return None
    source, target = found.source, found.target
    cuts = {1, source.size}
    for name, size in found.mesh.shape.items():
        cuts |= {found.mesh.strides[name], found.mesh.strides[name] * size}
    for digit in (d for part in (*source.dims, *target.dims, source.unreduced, target.unreduced) for d in part):
        cuts |= {digit.stride, digit.stride * digit.size}
    if not _nested(cuts):
        return None
    apart: set[int] = set()
    while True:
        atoms = tuple(Digit(low, high // low) for low, high in pairwise(sorted(cuts)))
        dims: list[Pieces | None] = []
        for dim, (one, other) in enumerate(zip(source.dims, target.dims, strict=True)):
            pieces = None if dim in apart else _aligned(atoms_of(one, atoms), atoms_of(other, atoms))
            if isinstance(pieces, set):
                if _nested(cuts | pieces):
                    cuts |= pieces
                    break
                pieces = None
            if pieces is None or not _fits(pieces, shape[dim]):
                pieces = None
                apart.add(dim)
            dims.append(pieces)
        else:
            sums = atoms_of(source.unreduced, atoms), atoms_of(target.unreduced, atoms)
            return Structure(source.size, tuple(dims), *sums, atoms)


def _nested(cuts: Iterable[int]) -> bool:
    return all(after % before == 0 for before, after in pairwise(sorted(cuts)))


def atoms_of(digits: Digits, atoms: Digits) -> Digits:
    """The atoms of the digits, in their order."""
    return tuple(
        atom
        for digit in digits
        for atom in reversed(atoms)
        if digit.stride <= atom.stride and atom.stride * atom.size <= digit.stride * digit.size
    )


def _aligned(source: Digits, target: Digits) -> Pieces | set[int] | None:
    """The digits of a dim; where an atom must be cut for them, the cuts; None if there are no common ones."""
    pieces = []
    for one, other in zip(source, target, strict=False):
        if one.size != other.size:
            common = gcd(one.size, other.size)
            if common == 1:
                return None
            return {atom.stride * (atom.size // common) for atom in (one, other)}
        pieces.append(Piece(one.size, one, other))
    shared = len(pieces)
    pieces += [Piece(atom.size, atom, None) for atom in source[shared:]]
    pieces += [Piece(atom.size, None, atom) for atom in target[shared:]]
    return tuple(pieces)


def _fits(pieces: Pieces, size: int) -> bool:
    """Whether the blocks of both sides are made of the same smallest blocks; one that is whole can be padded."""
    every = prod(piece.size for piece in pieces)
    smallest = block_size(size, every)
    for side in (1, 2):
        blocks = prod(piece.size for piece in pieces if piece[side] is not None)
        if blocks > 1 and block_size(size, blocks) != smallest * (every // blocks):
            return False
    return True


# What must be received at least


class Bound(NamedTuple):
    """Elements that the worst device, and all devices together, cannot do without."""

    device: int
    total: int


def lower_bound(found: Frame, parts: Structure | None, shape: Sequence[int]) -> Bound:
    """What must be received: the elements of each device's target shard that it does not hold.

    A sum of k summands that is wanted at c places takes k - 1 messages until the first device knows it, and c - 1 more
    until the others do: no message completes more than one of them. If no device that wants it has a summand, it takes
    one more. Where the target splits an array into summands that the source does not have, anything could be a summand,
    and the bound is 0.
    """
    if parts is not None and parts.introduced:
        return Bound(0, 0)
    if parts is not None and parts.owed:
        return _sum_bound(found, parts, shape)
    if parts is None or any(
        pieces is None or size % prod(piece.size for piece in pieces)
        for size, pieces in zip(shape, parts.dims, strict=True)
    ):
        return _listed_bound(found, shape)
    every = [piece for pieces in parts.dims for piece in pieces or ()]
    shard = prod(shape) // prod(piece.size for piece in every if piece.target is not None)
    gathered = prod(piece.size for piece in every if piece.target is None)
    number = {atom: index for index, atom in enumerate(parts.atoms)}
    moved = [(number[p.source], number[p.target]) for p in every if p.source and p.target]
    agree = agreeing(moved, [atom.size for atom in parts.atoms])
    worst = shard if agree < parts.devices else shard - shard // gathered
    return Bound(worst, parts.devices * shard - agree * (shard // gathered))


def agreeing(pairs: Iterable[tuple[int, int]], sizes: Sequence[int]) -> int:
    """How many lists of numbers below ``sizes`` have equal ones at both places of every pair."""
    leader = list(range(len(sizes)))

    def find(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    count = prod(sizes)
    for one, other in pairs:
        first, second = find(one), find(other)
        if first != second:
            leader[first] = second
            count //= sizes[first]
    return count


def _listed_bound(found: Frame, shape: Sequence[int]) -> Bound:
    """By listing devices."""
    if found.source.size > MOST_LISTED:
        raise MeshError(
            f"The fewest bytes of a reshard on {found.source.size} devices cannot be counted.",
            where=here(),
            why=f"a dim is not a multiple of its devices, so that they must be listed, and at most {MOST_LISTED} are",
            fix="a smaller mesh, or a shape whose dims are multiples of the devices they are split over",
        )
    wanted = np.ones(found.source.size, np.int64)
    held = wanted.copy()
    for size, one, other in zip(shape, tables(found.source), tables(found.target), strict=True):
        low, high = _interval(size, *one)
        start, stop = _interval(size, *other)
        wanted *= stop - start
        held *= np.maximum(0, np.minimum(high, stop) - np.maximum(low, start))
    missing = wanted - held
    return Bound(int(missing.max(initial=0)), int(missing.sum()))


def _interval(size: int, blocks: int, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    step = block_size(size, blocks)
    return np.minimum(numbers * step, size), np.minimum((numbers + 1) * step, size)


def _sum_bound(found: Frame, parts: Structure, shape: Sequence[int]) -> Bound:
    summands = prod(atom.size for atom in parts.owed)
    sums = prod(digit.size for digit in found.source.unreduced) // summands
    blocks = prod(digit.size for digits in found.target.dims for digit in digits)
    copies = found.target.size // (blocks * sums)
    messages = summands + copies - 1 - _near(parts)
    total = int(sums * prod(shape) * messages)
    shard = prod(
        block_size(size, prod(digit.size for digit in digits))
        for size, digits in zip(shape, found.target.dims, strict=True)
    )
    return Bound(max(total // found.target.size, shard), total)


def _near(parts: Structure) -> Fraction:
    """The share of elements of which some device that wants them has a summand; 1 where that is not known.

    Along an atom that splits one digit in the source and another in the target, the two must have the same value.
    """
    if None in parts.dims:
        return Fraction(1)
    every = [piece for pieces in parts.dims for piece in pieces or ()]
    leaving = {piece.source: index for index, piece in enumerate(every) if piece.source is not None}
    pairs = [(leaving[piece.target], index) for index, piece in enumerate(every) if piece.target in leaving]
    free = agreeing(pairs, [piece.size for piece in every])
    return Fraction(free, prod(piece.size for piece in every))


def tables(layout: Layout) -> list[tuple[int, NDArray[np.int64]]]:
    """For each dim, the number of its blocks and the block of each device by its number."""
    positions = np.arange(layout.size)
    if layout.order is not None:
        positions = np.argsort(np.array(layout.order), kind="stable")
    return [(prod(digit.size for digit in digits), block_numbers(digits, positions)) for digits in layout.dims]

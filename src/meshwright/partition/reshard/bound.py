"""The fewest bytes that resharding can do with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.partition.reshard.structure import DigitStructure, Frame, atoms_of, numbered, tables
from meshwright.sharding.mesh_check import MOST_LISTED
from meshwright.sharding.placement import Digit, DigitLayout, block_size


class Bound(NamedTuple):
    """Elements that the worst device, and all devices together, cannot do without."""

    device: int
    total: int


def lower_bound(found: Frame, parts: DigitStructure | None, shape: Sequence[int]) -> Bound:
    """The elements that devices must receive: those of their target shards that they do not hold.

    A sum of k summands that is wanted at c places takes k - 1 messages until the first device knows it, and c - 1 more
    until the others do: no message completes more than one of them. If no device that wants it has a summand, it takes
    one more. Where the target splits an array into summands that the source does not have, anything could be a summand,
    and the bound is 0.
    """
    if parts is not None and parts.introduced:
        return Bound(0, 0)
    if parts is not None and parts.to_reduce:
        return _sum_bound(found, parts, shape)
    if parts is None or any(
        pieces is None or size % prod(piece.size for piece in pieces)
        for size, pieces in zip(shape, parts.dims, strict=True)
    ):
        return _listed_bound(found, parts, shape)
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

    def find(position: int) -> int:
        while leader[position] != position:
            position = leader[position]
        return position

    count = prod(sizes)
    for one, other in pairs:
        first, second = find(one), find(other)
        if first != second:
            leader[first] = second
            count //= sizes[first]
    return count


def _listed_bound(found: Frame, parts: DigitStructure | None, shape: Sequence[int]) -> Bound:
    """By listing devices: all of them, or for each group of dims that share no atoms those along its atoms.

    What a device wants, and what it has of that, is the product of its shares of the groups.
    """
    groups = [_Group(found.source, found.target, tuple(shape))] if parts is None else _groups(found, parts, shape)
    wanted = held = devices = 1
    shares: Shares = {(1, 1)}
    for group in groups:
        want, have = _shares(group)
        devices *= group.source.size
        wanted *= int(want.sum())
        held *= int(have.sum())
        shares = _worst({(w * a, h * b) for w, h in shares for a, b in _least_held(want, have)})
    return Bound(max(w - h for w, h in shares), found.source.size // devices * (wanted - held))


class _Group(NamedTuple):
    """Dims that share atoms, on the devices along these."""

    source: DigitLayout
    target: DigitLayout
    shape: tuple[int, ...]


def _groups(found: Frame, parts: DigitStructure, shape: Sequence[int]) -> list[_Group]:
    joined: list[tuple[set[int], set[Digit]]] = []
    for dim, sides in enumerate(zip(found.source.dims, found.target.dims, strict=True)):
        dims, atoms = {dim}, {atom for digits in sides for atom in atoms_of(digits, parts.atoms)}
        for other in [group for group in joined if group[1] & atoms]:
            joined.remove(other)
            dims, atoms = dims | other[0], atoms | other[1]
        joined.append((dims, atoms))
    return [_group(found, parts, sorted(dims), sorted(atoms), shape) for dims, atoms in joined]


def _group(found: Frame, parts: DigitStructure, dims: list[int], atoms: list[Digit], shape: Sequence[int]) -> _Group:
    digits, devices = numbered(atoms)

    def layout(side: DigitLayout) -> DigitLayout:
        found = (atoms_of(side.dims[dim], parts.atoms) for dim in dims)
        return DigitLayout(devices, None, tuple(tuple(digits[atom] for atom in each) for each in found), (), "sum")

    return _Group(layout(found.source), layout(found.target), tuple(shape[dim] for dim in dims))


def _shares(group: _Group) -> tuple[NDArray[Any], NDArray[Any]]:
    """The share of a group of dims that each device wants, and how much of it the device has."""
    devices = group.source.size
    exact = prod(group.shape) * devices < 1 << 62
    most = MOST_LISTED if exact else MOST_LISTED >> 3
    if devices > most:
        raise MeshError(
            f"The fewest bytes of a reshard on {devices} devices cannot be counted.",
            where=here(),
            why=f"a dim is not a multiple of its devices, so that they must be listed, and at most {most} are",
            fix="a smaller mesh, or a shape whose dims are multiples of the devices they are split over",
        )
    wanted: NDArray[Any] = np.ones(devices, np.int64 if exact else np.object_)
    held = wanted.copy()
    for size, one, other in zip(group.shape, tables(group.source), tables(group.target), strict=True):
        low, high = _interval(size, one[0], one[1].astype(wanted.dtype))
        start, stop = _interval(size, other[0], other[1].astype(wanted.dtype))
        wanted = wanted * (stop - start)
        held = held * np.maximum(0, np.minimum(high, stop) - np.maximum(low, start))
    return wanted, held


Shares = set[tuple[int, int]]


def _least_held(wanted: NDArray[Any], held: NDArray[Any]) -> Shares:
    """What the devices that want as much, of which there are few kinds, have at least."""
    return {(int(want), int(held[wanted == want].min())) for want in np.unique(wanted)}


def _worst(shares: Shares) -> Shares:
    """The shares that no other share is worse than, in wanting as much and having as little."""
    found: Shares = set()
    least: float = inf
    for wanted, held in sorted(shares, key=lambda share: (-share[0], share[1])):
        if held < least:
            found.add((wanted, held))
            least = held
    return found


def _interval(size: int, blocks: int, numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    step = block_size(size, blocks)
    return np.minimum(numbers * step, size), np.minimum((numbers + 1) * step, size)


def _sum_bound(found: Frame, parts: DigitStructure, shape: Sequence[int]) -> Bound:
    summands = prod(atom.size for atom in parts.to_reduce)
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


def _near(parts: DigitStructure) -> Fraction:
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

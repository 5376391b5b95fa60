"""Two shardings of one array, written in the same digits.

Cut every mesh axis into *atoms*, so finely that both shardings are made of them, and read each dim's index from the
major end as *digits* whose sizes are the atoms of either side. A sharding then is a map from digits to atoms: a device
holds the elements whose digit is its own coordinate along the digit's atom, and a digit without an atom is held whole.

The two sides of a dim have no common digits if their blocks do not nest: 2 blocks and 3, or 5 elements in 2 blocks (of
3) and in 4 (of 2). Such a dim has no ``pieces``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.placement import (
    Digit,
    DigitLayout,
    Digits,
    DigitStep,
    block_numbers,
    block_size,
    order_between,
    order_steps,
    ranks,
    through,
)


class DigitEnds(NamedTuple):
    """A digit of a dim, and the atom it lies on in the source and in the target."""

    size: int
    source: Digit | None
    target: Digit | None

    @property
    def kept(self) -> bool:
        """Whether nothing happens to it."""
        return self.source == self.target


Pieces = tuple[DigitEnds, ...]


class DigitStructure(NamedTuple):
    """The digits of each dim (None where the sides have none in common), and the atoms that are unreduced."""

    devices: int
    dims: tuple[Pieces | None, ...]
    source_sums: Digits
    target_sums: Digits
    atoms: Digits

    @property
    def to_reduce(self) -> Digits:
        """The atoms to reduce over."""
        return tuple(atom for atom in self.source_sums if atom not in self.target_sums)

    @property
    def introduced(self) -> Digits:
        """The atoms over which the target is unreduced and the source is not."""
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
    source: DigitLayout
    target: DigitLayout


def frame(source: DigitLayout, target: DigitLayout, source_mesh: BaseMesh, target_mesh: BaseMesh) -> Frame:
    """A numbering of the devices in which the source's layout is digits, and the target's too if there is one."""
    one = None if source.order is None else ranks(source.order)
    other = None if target.order is None else ranks(target.order)
    bare_source, bare_target = source._replace(order=None), target._replace(order=None)
    if one == other or not (any(target.dims) or target.unreduced):
        return Frame(source_mesh, one, bare_source, bare_target)
    if not (any(source.dims) or source.unreduced):
        return Frame(target_mesh, other, bare_source, bare_target)
    there = (DigitStep(1, target.size, 1),) if other is None else order_steps(other)
    back = (DigitStep(1, source.size, 1),) if one is None else order_steps(one)
    if there is not None and back is not None:
        back = tuple(sorted(DigitStep(step.image, step.size, step.stride) for step in back))
        moved = [_through(digits, there, back) for digits in (*target.dims, target.unreduced)]
        found = [digits for digits in moved if digits is not None]
        if len(found) == len(moved):
            return Frame(
                source_mesh, one, bare_source, bare_target._replace(dims=tuple(found[:-1]), unreduced=found[-1])
            )
    position = {rank: position for position, rank in enumerate(one or range(source.size))}
    seen = tuple(position[rank] for rank in (other or range(target.size)))
    return Frame(source_mesh, one, bare_source, target._replace(order=seen))


def seen_from(mesh: BaseMesh, source: TensorSharding, target: TensorSharding) -> Frame:
    """Two layouts of any meshes of the same devices, which are numbered by their position on ``mesh``."""
    found = []
    for side in (source, target):
        order = order_between(side.mesh, mesh)
        assert order is not None, "the meshes of a program are views of the same devices"
        found.append(side.layout._replace(order=order))
    return Frame(mesh, None, *found)


def _through(digits: Digits, there: Sequence[DigitStep], back: Sequence[DigitStep]) -> Digits | None:
    moved = through(digits, there)
    return None if moved is None else through(moved, back)


# Common digits


def structure(found: Frame, shape: Sequence[int], atoms: Digits = ()) -> DigitStructure | None:
    """The common digits of both layouts, made of parts of ``atoms``; None if axes themselves have no common parts."""
    if found.target.order is not None:
        return None
    source, target = found.source, found.target
    cuts = {1, source.size, *(end for atom in atoms for end in (atom.stride, atom.stride * atom.size))}
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
            return DigitStructure(source.size, tuple(dims), *sums, atoms)


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
        pieces.append(DigitEnds(one.size, one, other))
    shared = len(pieces)
    pieces += [DigitEnds(atom.size, atom, None) for atom in source[shared:]]
    pieces += [DigitEnds(atom.size, None, atom) for atom in target[shared:]]
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


# Devices


def tables(layout: DigitLayout) -> list[tuple[int, NDArray[np.int64]]]:
    """For each dim, the number of its blocks and the block of each device by its number."""
    positions = np.arange(layout.size)
    if layout.order is not None:
        positions = np.argsort(np.array(layout.order), kind="stable")
    return [(prod(digit.size for digit in digits), block_numbers(digits, positions)) for digits in layout.dims]


def numbered(atoms: Iterable[Digit]) -> tuple[dict[Digit, Digit], int]:
    """The digits of devices that are numbered along some atoms alone, from minor to major, and how many there are."""
    digits: dict[Digit, Digit] = {}
    devices = 1
    for atom in atoms:
        digits[atom] = Digit(devices, atom.size)
        devices *= atom.size
    return digits, devices

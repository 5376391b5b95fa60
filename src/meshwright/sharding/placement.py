"""Which part of a tensor each device holds.

A device's position in its mesh is a number written in mixed radix, one *digit* per axis: the digit of stride ``s`` and
size ``k`` is ``p // s % k``. A sub-axis is a digit too, and the block of a dim that the device holds is the number made
of the dim's digits, major to minor. So a placement is a list of digits per dim; neighbours ``(s k, l), (s, k)`` are one
digit ``(s, k l)``, and what is left after merging them is unique: two shardings place a tensor alike if and only if
their digits are the same, whatever their meshes' axes are called and however they are cut. (From the function
``p -> block`` the digits are read back: the smallest ``p`` with a block other than 0 is the smallest stride, the run of
equal steps from there is its size, and so on.) A device order that permutes digits only renames strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.sharding.axes import Axes, AxisRef, append
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.mesh_check import check_listable

Index = tuple[slice, ...]


class Digit(NamedTuple):
    """The digit ``p // stride % size`` of a number ``p``."""

    stride: int
    size: int


Digits = tuple[Digit, ...]


class DigitStep(NamedTuple):
    """One digit of a number and the stride it has in another."""

    stride: int
    size: int
    image: int


class DigitLayout(NamedTuple):
    """Where a tensor is: digits of each dim and of the unreduced axes over ``size`` devices in some order."""

    size: int
    order: tuple[int, ...] | None
    dims: tuple[Digits, ...]
    unreduced: Digits
    reduction: str


def merged(digits: Iterable[Digit]) -> Digits:
    """The shortest list of digits that is the same number.

    >>> merged([Digit(4, 2), Digit(1, 4), Digit(8, 1)])
    (Digit(stride=1, size=8),)
    """
    result: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        if result and result[-1].stride == digit.stride * digit.size:
            result[-1] = Digit(digit.stride, result[-1].size * digit.size)
        else:
            result.append(digit)
    return tuple(result)


def digits_of(mesh: BaseMesh, axes: Iterable[AxisRef]) -> Digits:
    """The digits of a device's position along ``axes``."""
    return merged(Digit(mesh.strides[axis.name] * axis.post, axis.size) for axis in axes)


def axes_of(mesh: BaseMesh, digits: Digits) -> Axes | None:
    """The axes that have these digits, or None if they are no axes or sub-axes of the mesh."""
    result: Axes = ()
    for digit in digits:
        left = digit.size
        for axis in mesh.axes:  # from the largest stride to the smallest
            piece = _common(digit, Digit(mesh.strides[axis.name], axis.size))
            if piece is None:
                return None
            if piece.size > 1:
                end = mesh.strides[axis.name] * axis.size
                result = append(result, axis.part(end // (piece.stride * piece.size), end // piece.stride))
                left //= piece.size
        if left > 1:
            return None
    return result


def _common(first: Digit, second: Digit) -> Digit | None:
    """The digit that is part of both, of size 1 if there is none; None if what they share is no digit."""
    low, high = max(first.stride, second.stride), min(first.stride * first.size, second.stride * second.size)
    if low >= high:
        return Digit(1, 1)
    ends = (first.stride * first.size, second.stride * second.size)
    if low % first.stride or low % second.stride or high % low or any(end % high for end in ends):
        return None
    return Digit(low, high // low)


def independent(digits: Iterable[Digit]) -> bool:
    """Whether each digit begins at a multiple of the last one's end, so that all combinations occur equally often."""
    ordered = sorted(digits)
    return all(after.stride % (before.stride * before.size) == 0 for before, after in pairwise(ordered))


# Device orders


@lru_cache(maxsize=256)
def order_steps(order: tuple[int, ...]) -> tuple[DigitStep, ...] | None:
    """A list of 0, …, n - 1 as digits that change places, from minor to major; None if it is not such a list.

    >>> order_steps((0, 2, 1, 3))
    (DigitStep(stride=1, size=2, image=2), DigitStep(stride=2, size=2, image=1))
    """
    count, steps, stride = len(order), [], 1
    while stride < count:
        image, size = order[stride], 1
        while stride * size < count and order[stride * size] == image * size:
            size += 1
        if image < 1 or count % (stride * size):
            return None
        steps.append(DigitStep(stride, size, image))
        stride *= size
    expected = np.zeros(1, np.int64)
    for step in steps:
        expected = (np.arange(step.size)[:, None] * step.image + expected).ravel()
    return tuple(steps) if np.array_equal(expected, order) else None


def order_between(first: BaseMesh, second: BaseMesh) -> tuple[int, ...] | None:
    """For each position on one mesh of some devices, the position of that device on another mesh of them.

    None if they have other devices.
    """
    if first.size != second.size:
        return None
    if first.order == second.order:
        return tuple(range(first.size))
    position = {id: p for p, id in enumerate(second.order or range(second.size))}
    found = [position.get(id, -1) for id in first.order or range(first.size)]
    return None if -1 in found else tuple(found)


def through(digits: Digits, steps: Sequence[DigitStep]) -> Digits | None:
    """The digits of a position as digits of the number that an order gives it; None if they are not."""
    result: list[Digit] = []
    for digit in digits:
        for step in reversed(steps):
            piece = _common(digit, Digit(step.stride, step.size))
            if piece is None:
                return None
            result.append(Digit(piece.stride // step.stride * step.image, piece.size) if piece.size > 1 else piece)
    return merged(result)


def digits_in_order(order: tuple[int, ...]) -> Digits | None:
    """The digits whose combinations, counted up from the last, are these numbers; None if there are none."""
    steps = order_steps(order)
    return None if steps is None else tuple(Digit(step.image, step.size) for step in reversed(steps))


def ranks(order: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of an order replaced by 0, …, n - 1."""
    if max(order) < len(order):
        return order
    rank = {id: position for position, id in enumerate(sorted(order))}
    return tuple(rank[id] for id in order)


# Equality


def same_placement(one: DigitLayout, other: DigitLayout) -> bool:
    """Whether every device holds the same block, and its partial sums are over the same devices."""
    if one.size != other.size or len(one.dims) != len(other.dims):
        return False
    if (one.unreduced or other.unreduced) and one.reduction != other.reduction:
        return False
    if one.order != other.order and sorted(one.order or range(one.size)) != sorted(other.order or range(other.size)):
        return False
    orders = (None, None) if one.order == other.order else (one.order, other.order)
    ones, others = _canonical(one, orders[0]), _canonical(other, orders[1])
    return ones == others if ones is not None and others is not None else _same_tables(one, other)


def _canonical(layout: DigitLayout, order: tuple[int, ...] | None) -> tuple[Digits, ...] | None:
    """The digits of each dim and of the sums, over device numbers; None if they are not digits of those."""
    parts = [*layout.dims, layout.unreduced]
    if not independent(digit for part in parts for digit in part):
        return None
    if order is not None:
        steps = order_steps(ranks(order))
        moved = [through(part, steps) if steps is not None else None for part in parts]
        if any(part is None for part in moved):
            return None
        parts = [part for part in moved if part is not None]
    return (*parts[:-1], merged(sorted(parts[-1], reverse=True)))


def _same_tables(one: DigitLayout, other: DigitLayout) -> bool:
    """Whether two layouts place the same blocks on the same devices, by listing the devices."""
    check_listable(one.size, 0, here)
    first, second = _table(one), _table(other)
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def _table(layout: DigitLayout) -> list[NDArray[np.int64]]:
    positions = np.arange(layout.size)
    if layout.order is not None:
        positions = np.argsort(np.array(layout.order), kind="stable")
    rows = [block_numbers(digits, positions) for digits in layout.dims]
    labels = block_numbers(layout.unreduced, positions)
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    return [*rows, first[group]]


# Blocks


def block_numbers(digits: Digits, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number that the digits of each position make."""
    numbers = np.zeros_like(positions)
    for stride, size in digits:
        numbers = numbers * size + positions // stride % size
    return numbers


def block_size(size: int, blocks: int) -> int:
    """The size of one of ``blocks`` equal blocks that cover a dim; the last ones may reach over its end."""
    return -(-size // blocks)


def block_slice(size: int, blocks: int, number: int) -> slice:
    """What of a dim is in a block: all of it if there is one block; nothing if the block lies beyond its end.

    >>> [block_slice(7, 4, number) for number in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None), slice(6, 7, None)]
    """
    if blocks == 1:
        return slice(None)
    step = block_size(size, blocks)
    return slice(min(number * step, size), min((number + 1) * step, size))


def position_indices(layout: DigitLayout, shape: Sequence[int]) -> list[Index]:
    """For each position of the mesh, the part of a tensor of this shape that is there."""
    positions = np.arange(layout.size)
    columns: list[list[slice]] = []
    for size, digits in zip(shape, layout.dims, strict=True):
        blocks = prod(digit.size for digit in digits)
        slices = [block_slice(size, blocks, number) for number in range(blocks)]
        columns.append([slices[number] for number in block_numbers(digits, positions).tolist()])
    return [tuple(row) for row in zip(*columns, strict=True)] if columns else [()] * layout.size


def positions_in_order(digits: Iterable[Digit]) -> NDArray[Any]:
    """The numbers that have each combination of values of the digits, counted up from the last digit."""
    numbers = np.zeros(1, np.int64)
    for stride, size in digits:
        numbers = (numbers[:, None] + stride * np.arange(size)).ravel()
    return numbers

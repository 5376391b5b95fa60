"""Windows of a split dim: each device gets the part of the whole that it needs, from those that hold it.

Devices hold blocks of equal size, device ``i`` needs ``length`` elements from ``starts[i]`` on. What it does not hold
comes by permutes, one for each distance between who holds and who needs, unless the distances of several can go at
once. A window that sticks out of the whole is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Value
from meshwright.core.trace import Array, make_varying
from meshwright.core.types import TensorType, union
from meshwright.ops.basic import add, broadcast_scalar, reshape
from meshwright.ops.choice import select
from meshwright.ops.collective import ppermute
from meshwright.ops.elementwise import and_, ge, lt
from meshwright.ops.indexing import dynamic_slice, dynamic_update_slice
from meshwright.ops.shape import concatenate, iota, pad, slice_along
from meshwright.partition.blocks import along, part_index, scalar
from meshwright.partition.localize import Localizer
from meshwright.sharding.axes import Axes


class WindowPiece(NamedTuple):
    """What a device sends to another, or keeps: ``size`` elements from ``take`` in its block to ``put`` in a window."""

    source: int
    target: int
    take: int
    put: int
    size: int


class Moves(NamedTuple):
    """How windows are put together: rounds of pieces between devices, and those that stay."""

    rounds: tuple[tuple[WindowPiece, ...], ...]
    own: tuple[WindowPiece, ...]

    @property
    def received(self) -> int:
        """Elements that a device takes in."""
        return sum(max(piece.size for piece in round) for round in self.rounds)


@lru_cache(maxsize=4096)
def moves(block: int, starts: tuple[int, ...], length: int) -> Moves:
    """The pieces of the windows, for blocks of one size."""
    count = len(starts)
    by_distance: dict[int, list[WindowPiece]] = {}
    for target, start in enumerate(starts):
        for source in range(max(0, start // block), min(count - 1, (start + length - 1) // block) + 1):
            low, high = max(start, source * block), min(start + length, (source + 1) * block)
            if low < high:
                piece = WindowPiece(source, target, low - source * block, low - start, high - low)
                by_distance.setdefault(source - target, []).append(piece)
    own = by_distance.pop(0, [])
    rounds: list[tuple[list[WindowPiece], set[int], set[int]]] = []  # with who sends and who receives
    for _, pieces in sorted(by_distance.items(), key=lambda item: (abs(item[0]), item[0])):
        sources, targets = {p.source for p in pieces}, {p.target for p in pieces}
        for round, senders, receivers in rounds:
            if sources.isdisjoint(senders) and targets.isdisjoint(receivers):
                round.extend(pieces)
                senders |= sources
                receivers |= targets
                break
        else:
            rounds.append((pieces, sources, targets))
    return Moves(tuple(tuple(round) for round, _, _ in rounds), tuple(own))


def fetch_bytes(t: TensorType, dim: int, starts: Sequence[int], length: int) -> float:
    """The bytes that a device receives for its window along a dim of its block, which has the type ``t``."""
    if not t.shape[dim] or not length:
        return 0.0
    return float(moves(t.shape[dim], tuple(starts), length).received * (t.nbytes // t.shape[dim]))


def fetch(
    local: Localizer,
    x: Value,
    dim: int,
    n: int,
    axes: Axes,
    starts: Sequence[int],
    length: int,
    fill: Value | None,
    why: str,
) -> Value:
    """A device's window along a dim of size ``n`` split over ``axes``; ``fill`` is None where nothing that sticks out
    is looked at."""
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    key = (id(x), dim, axes, tuple(starts), length)
    if key not in local.windows:
        local.windows[key] = (x, _fetched(local, x, dim, n, axes, starts, length, why))
    out, position = local.windows[key][1], part_index(local.names, axes)
    if fill is None or all(start >= 0 and start + length <= n for start in starts):
        return out
    place = add(iota(dtype=dtypes.INT32, shape=(length,), dim=0), lookup(list(starts), position))
    inside = and_(ge(place, 0), lt(place, n))
    return select(along(inside, dim, shape), out, broadcast_scalar(fill, shape))


def _fetched(
    local: Localizer, x: Value, dim: int, n: int, axes: Axes, starts: Sequence[int], length: int, why: str
) -> Value:
    """A device's window, with anything where it sticks out."""
    block = x.shape[dim]
    found = moves(block, tuple(starts), length)
    pairs = [pair for axis in axes for pair in local.names(axis)]
    names = tuple(name for name, _ in pairs)
    x = make_varying(x, union((x.type.varying, names)))
    position = part_index(local.names, axes)
    parts: list[tuple[Sequence[WindowPiece], int, Value]] = []
    if found.own:
        size = max(piece.size for piece in found.own)
        parts.append((found.own, size, _taken(x, dim, found.own, size, position, len(starts))))
    for round in found.rounds:
        size = max(piece.size for piece in round)
        taken = _taken(x, dim, round, size, position, len(starts))
        permutation = tuple(sorted((piece.source, piece.target) for piece in round))
        with local.because(why, TensorType((*x.shape[:dim], n, *x.shape[dim + 1 :]), x.dtype)):
            part = ppermute(taken, axes=names, sizes=tuple(count for _, count in pairs), permutation=permutation)
        parts.append((round, size, part))
    out = _side_by_side(parts, dim, length, x)
    if out is None:
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        out = _put(parts, dim, shape, block, position, len(starts), x)
    return out


def fetch_whole(
    local: Localizer, x: Value, dim: int, axes: Axes, starts: Sequence[int], length: int, fill: Value | None
) -> Value:
    """A device's window along a dim that all devices hold whole."""
    n = x.shape[dim]
    low, high = max(0, -min(starts)), max(0, max(starts) + length - n)
    if low or high:
        fill = scalar(0, x.dtype) if fill is None else fill
        x = padded(x, fill, dim, low, high)
    return window_at(x, dim, [start + low for start in starts], length, part_index(local.names, axes))


def padded(x: Value, fill: Value, dim: int, low: int, high: int, interior: int = 0) -> Value:
    """``x`` padded along one dim."""
    at = [tuple(n if d == dim else 0 for d in range(x.ndim)) for n in (low, high, interior)]
    return pad(x, fill, low=at[0], high=at[1], interior=at[2])


def window_at(x: Value, dim: int, starts: Sequence[int], length: int, position: Value) -> Value:
    """A part of ``x`` that begins where a table says for each device."""
    if len(set(starts)) == 1:
        whole = starts[0] == 0 and length == x.shape[dim]
        return x if whole else slice_along(x, dim, starts[0], starts[0] + length)
    zero = scalar(0, dtypes.INT32)
    at = [lookup(list(starts), position) if d == dim else zero for d in range(x.ndim)]
    return dynamic_slice(x, *at, sizes=(*x.shape[:dim], length, *x.shape[dim + 1 :]))


def lookup(table: list[int], position: Value) -> Value:
    """The entry of a table for a device."""
    if len(set(table)) == 1:
        return scalar(table[0], dtypes.INT32)
    row = np.asarray(table, np.int32)
    entry = dynamic_slice(Array(row, TensorType(row.shape, row.dtype)), position, sizes=(1,))
    return reshape(entry, shape=())


def _taken(x: Value, dim: int, pieces: Sequence[WindowPiece], size: int, position: Value, count: int) -> Value:
    """The elements that each device sends: ``size`` of them, of which those of its piece matter."""
    at = _per_device({p.source: _begin(p, size, x.shape[dim]) for p in pieces}, count)
    return window_at(x, dim, at, size, position)


def _begin(piece: WindowPiece, size: int, block: int) -> int:
    return min(piece.take, block - size)


def _per_device(known: dict[int, int], count: int) -> list[int]:
    """A table; devices that take no part have the entry of another."""
    other = next(iter(known.values()))
    return [known.get(device, other) for device in range(count)]


def _side_by_side(
    parts: Sequence[tuple[Sequence[WindowPiece], int, Value]], dim: int, length: int, like: Value
) -> Value | None:
    """The window, where all devices put all parts at the same place; None if they do not."""
    if any(len({(p.take, p.put, p.size) for p in pieces}) != 1 for pieces, _, _ in parts):
        return None
    ordered = sorted(parts, key=lambda item: item[0][0].put)
    if any(left[0][0].put + left[1] > right[0][0].put for left, right in pairwise(ordered)):
        return None
    joined: list[Value] = []
    end = 0

    def gap(size: int) -> None:
        if size:
            shape = (*like.shape[:dim], size, *like.shape[dim + 1 :])
            joined.append(make_varying(broadcast_scalar(scalar(0, like.dtype), shape), like.type.varying))

    for pieces, size, part in ordered:
        gap(pieces[0].put - end)
        joined.append(part)
        end = pieces[0].put + size
    gap(length - end)
    return joined[0] if len(joined) == 1 else concatenate(*joined, dim=dim)


def _put(
    parts: Sequence[tuple[Sequence[WindowPiece], int, Value]],
    dim: int,
    shape: tuple[int, ...],
    block: int,
    position: Value,
    count: int,
    like: Value,
) -> Value:
    """The window put together from parts whose places differ between devices."""
    length = shape[dim]
    out: Value = make_varying(broadcast_scalar(scalar(0, like.dtype), shape), like.type.varying)
    place = iota(dtype=dtypes.INT32, shape=(length,), dim=0)
    for pieces, size, part in parts:
        begin = {p.target: p.put - (p.take - _begin(p, size, block)) for p in pieces}
        at = _per_device(begin, count)
        # A part longer than its piece may stick out of the window: there is room for it on both sides.
        room = (*shape[:dim], length + 2 * size, *shape[dim + 1 :])
        spread = make_varying(broadcast_scalar(scalar(0, like.dtype), room), like.type.varying)
        zero = scalar(0, dtypes.INT32)
        where = [lookup([n + size for n in at], position) if d == dim else zero for d in range(len(shape))]
        spread = slice_along(dynamic_update_slice(spread, part, *where), dim, size, size + length)
        low = [next((p.put for p in pieces if p.target == device), 0) for device in range(count)]
        high = [next((p.put + p.size for p in pieces if p.target == device), 0) for device in range(count)]
        mine = and_(ge(place, lookup(low, position)), lt(place, lookup(high, position)))
        out = select(along(mine, dim, shape), spread, out)
    return out

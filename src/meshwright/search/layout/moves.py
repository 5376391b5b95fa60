"""What it takes to bring a value from one layout into another, axis by axis.

Sums are taken first, then what is cut further, then axes that go to another dim, and last what is gathered. The plan
that the partitioner makes may be shorter; it is made for the layouts that are simulated.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from meshwright.partition.cost import MachineCost
from meshwright.sharding.axes import Axes
from meshwright.sharding.named import TensorSharding


def move_seconds(nbytes: float, have: TensorSharding, need: TensorSharding, cost: MachineCost) -> float:
    """The seconds to bring a value of so many bytes from one layout into another; infinite for none into summands."""
    if have is need:
        return 0.0
    moves = _moves(have, need)
    if moves is None:
        return inf
    return sum(_along(kind, nbytes * share, axes, cost) for kind, share, axes in moves)


class LayoutMove(NamedTuple):
    """A collective on the way: what it does, the share of a value's bytes that it is given, and its axes."""

    kind: str
    share: float
    axes: tuple[str, ...]


@lru_cache(maxsize=1 << 18)
def _moves(have: TensorSharding, need: TensorSharding) -> tuple[LayoutMove, ...] | None:
    """The collectives from one layout into another; None if there is no way."""
    if have == need:
        return ()
    if need.unreduced and need.unreduced != have.unreduced:
        return None
    before = {axis: d for d, dim in enumerate(have.dims) for axis in dim.axes}
    after = {axis: d for d, dim in enumerate(need.dims) for axis in dim.axes}
    local = 1 / prod(axis.size for axis in before)
    found = []
    if have.unreduced and not need.unreduced:
        whole = [axis for axis in have.unreduced if axis not in after]
        for axis in have.unreduced:
            if axis in after:
                found.append(LayoutMove("reduce_scatter", local, (axis.name,)))
                local /= axis.size
        if whole:
            found.append(LayoutMove("all_reduce", local, tuple(axis.name for axis in whole)))
    if any(_turned(one.axes, other.axes) for one, other in zip(have.dims, need.dims, strict=True)):
        axes = tuple(dict.fromkeys((*before, *after)))
        found.append(LayoutMove("permute", local * prod(a.size for a in axes), tuple(a.name for a in axes)))
    cut = [axis for axis, d in after.items() if axis not in before and axis not in have.unreduced]
    stays = [all(after.get(axis) == d for axis in dim.axes) for d, dim in enumerate(have.dims)]
    local /= prod(axis.size for axis in cut if stays[after[axis]])  # where axes leave a dim, it is cut after that
    for axis in [axis for axis, d in before.items() if axis in after and after[axis] != d]:
        found.append(LayoutMove("all_to_all", local * axis.size, (axis.name,)))
    gathered = [axis for axis in before if axis not in after]
    if gathered:
        volume = local * prod(axis.size for axis in gathered)
        found.append(LayoutMove("all_gather", volume, tuple(axis.name for axis in gathered)))
    return tuple(found)


def _turned(have: Axes, need: Axes) -> bool:
    """Whether axes that stay on a dim do not come first on both sides, in one order: then blocks go elsewhere."""
    kept = [axis for axis in have if axis in need]
    return bool(kept) and (list(have[: len(kept)]) != kept or list(need[: len(kept)]) != kept)


@lru_cache(maxsize=1 << 16)
def _along(kind: str, volume: float, axes: tuple[str, ...], cost: MachineCost) -> float:
    return cost.along(kind, volume, axes)

"""Who sends to whom in the permutes of a reshard plan, as positions on its mesh."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.partition.reshard.blocks import BlockExchange, BlockRound
from meshwright.partition.reshard.steps import Permute, Round, Rounds, cycle_moves
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.mesh_check import MOST_LISTED
from meshwright.sharding.placement import Digit, digits_of

Positions = NDArray[np.int64]


def digit(mesh: BaseMesh, axis: AxisRef) -> Digit:
    """The digit of a device's position along an axis."""
    return digits_of(mesh, (axis,))[0]


def coordinates(mesh: BaseMesh, axis: AxisRef) -> Positions:
    """The coordinate along an axis at each position."""
    stride, size = digit(mesh, axis)
    found: Positions = np.arange(mesh.size) // stride % size
    return found


def receivers(mesh: BaseMesh, step: Permute | Rounds, round: Round | None = None) -> Positions:
    """The position to which each position sends, in one round of a step; some send to themselves.

    >>> from meshwright.sharding.mesh import make_mesh
    >>> mesh = make_mesh((2, 2), ("x", "y"))
    >>> receivers(mesh, Permute((mesh.axes,)))
    array([0, 2, 1, 3])
    """
    _check_listable(mesh)
    found = np.arange(mesh.size)
    goes: list[tuple[AxisRef, Positions]] = []
    for axes in step.cycles:
        goes += [(move.target, coordinates(mesh, move.source)) for move in cycle_moves(axes)]
    if isinstance(step, Rounds):
        assert round is not None
        for path, shift in zip(step.paths, round.shifts, strict=True):
            first, last = path.axes[0], path.axes[-1]
            goes.append((first, (coordinates(mesh, last) + shift) % first.size))
            goes += [(there, coordinates(mesh, one)) for one, there in zip(path.axes, path.axes[1:], strict=False)]
    for axis, value in goes:
        found += (value - coordinates(mesh, axis)) * digit(mesh, axis).stride
    return found


def _check_listable(mesh: BaseMesh) -> None:
    if mesh.size > MOST_LISTED:
        raise MeshError(
            f"A permute among {mesh.size} devices cannot be written down.",
            where=here(),
            why=f"it lists who sends to whom, and at most {MOST_LISTED} devices are listed",
            fix="a smaller mesh, or a reshard without a permute: through mw.P()",
        )


class BlockEnds(NamedTuple):
    """Who sends to whom in a round, for each send and each group of devices that makes it: positions on a mesh."""

    send: Positions
    sender: Positions
    receiver: Positions


def block_ends(mesh: BaseMesh, step: BlockExchange, round: BlockRound) -> BlockEnds:
    """The sends of a round on all devices of a mesh that has the axes of a step."""
    positions = _groups(mesh, step.over)
    source, target = (np.array([send[end] for send in round.sends], np.int64) for end in (0, 1))
    receiver = positions[target]
    sender = receiver + (positions[source, 0] - positions[target, 0])[:, None]
    index = np.repeat(np.arange(len(round.sends)), positions.shape[1])
    return BlockEnds(index, sender.ravel(), receiver.ravel())


@lru_cache(maxsize=16)
def _groups(mesh: BaseMesh, over: Axes) -> Positions:
    """The positions of the devices of each number along some axes; the first is at 0 along the others."""
    _check_listable(mesh)
    numbers = np.zeros(mesh.size, np.int64)
    for axis in over:
        numbers = numbers * axis.size + coordinates(mesh, axis)
    return np.argsort(numbers, kind="stable").reshape(prod(axis.size for axis in over), -1)


def block_pairs(mesh: BaseMesh, step: BlockExchange, round: BlockRound) -> list[tuple[int, int, int]]:
    """For each send of a round, and each group of devices that makes it: its index, the sender and the receiver."""
    return list(zip(*(column.tolist() for column in block_ends(mesh, step, round)), strict=True))


def permute_pairs(mesh: BaseMesh, step: Permute | Rounds, round: Round | None = None) -> list[tuple[int, int]]:
    """The source and target positions of a permute, without those that keep what they have.

    >>> from meshwright.sharding.mesh import make_mesh
    >>> mesh = make_mesh((2, 2), ("x", "y"))
    >>> permute_pairs(mesh, Permute((mesh.axes,)))
    [(1, 2), (2, 1)]
    """
    return [(sender, to) for sender, to in enumerate(receivers(mesh, step, round).tolist()) if sender != to]

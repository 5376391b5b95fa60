"""The blocks a sharding cuts a tensor into, and the devices that hold each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.sharding.mesh import BaseMesh, Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.placement import block_numbers, block_size

MOST_LISTED = 8
MOST_DEVICES = 2**22
JOINED_BY = {"sum": "+", "max": "∨", "min": "∧"}


class TensorBlocks(NamedTuple):
    """The blocks of a tensor. ``devices`` has one dim per dim of the tensor, then the summands, then their copies."""

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    devices: NDArray[np.int64]
    kind: str
    joined_by: str

    @property
    def number(self) -> int:
        """How many blocks there are."""
        return prod(self.counts)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of a block, padding included."""
        return tuple(map(block_size, self.shape, self.counts))

    def range(self, dim: int, block: int) -> tuple[int, int]:
        """What of ``dim`` is in a block, from and up to: nothing if it lies beyond the end."""
        size = self.shape[dim]
        step = block_size(size, self.counts[dim])
        return min(block * step, size), min((block + 1) * step, size)

    def range_text(self, dim: int, block: int) -> str:
        """``0:4``; ``:`` for a dim that is not cut; ``empty`` for a block beyond the end."""
        start, stop = self.range(dim, block)
        return ":" if self.counts[dim] == 1 else f"{start}:{stop}" if start < stop else "empty"

    def index_text(self, block: Sequence[int]) -> str:
        """What a block is of the tensor: ``[0:4, :]``."""
        return f"[{', '.join(self.range_text(dim, number) for dim, number in enumerate(block))}]"

    def is_even(self, dim: int) -> bool:
        """Whether the blocks of ``dim`` have one size."""
        return self.shape[dim] % self.counts[dim] == 0

    def label(self, block: tuple[int, ...], bare: bool = False) -> str:
        """The devices of a block: ``TPU 0,2``, and ``TPU 0+2`` where each holds a summand."""
        groups = self.devices[block].tolist()
        text = self.joined_by.join(listed(group) for group in groups)
        if len(groups) > 1 and self.devices[block].size > MOST_LISTED:
            ends = groups if len(groups) <= 3 else [*groups[:2], groups[-1]]
            shown = [listed(group, most=2) for group in ends]
            text = self.joined_by.join(shown if len(groups) <= 3 else [*shown[:2], "…", shown[-1]])
        return text if bare else f"{self.kind} {text}"


def blocks_of(shape: tuple[int, ...], sharding: TensorSharding) -> TensorBlocks:
    """The blocks of a tensor of this shape."""
    mesh, layout = sharding.mesh, sharding.layout
    dims = ((),) * len(shape) if mesh.is_maximal else layout.dims
    if mesh.empty:
        raise MeshError(
            "There is no picture of a sharding on an empty mesh.",
            where=here(),
            why="it has no devices: it stands for any mesh",
            fix='mesh = mw.make_mesh((2, 4), ("x", "y"))',
        )
    counts = tuple(prod(digit.size for digit in digits) for digits in dims)
    summands = prod(digit.size for digit in layout.unreduced)
    ids = device_numbers(mesh)
    positions = np.arange(mesh.size)
    block = np.zeros_like(positions)
    for digits, count in zip(dims, counts, strict=True):
        block = block * count + block_numbers(digits, positions)
    # Every combination of digits occurs equally often, so that sorting by them leaves a full array.
    order = np.lexsort((ids, block_numbers(layout.unreduced, positions), block))
    devices = ids[order].reshape(*counts, summands, -1)
    first = np.argsort(devices[..., :1], axis=-2, kind="stable")
    devices = np.take_along_axis(devices, first, axis=-2)
    return TensorBlocks(shape, counts, devices, kind_of(mesh), JOINED_BY[layout.reduction])


def device_numbers(mesh: BaseMesh) -> NDArray[np.int64]:
    """The number of the device at each position; without devices, the position."""
    if mesh.size > MOST_DEVICES:
        raise MeshError(
            f"{mesh.size} devices are too many to list.",
            where=here(),
            why=f"a picture of what each holds is drawn for up to {MOST_DEVICES}",
            fix="a smaller mesh with the same axes",
        )
    return mesh.device_ids.ravel() if isinstance(mesh, Mesh) else np.arange(mesh.size)


def kind_of(mesh: BaseMesh) -> str:
    """What the devices of a mesh are called: ``TPU``."""
    return mesh.kind.split()[0].upper() if isinstance(mesh, Mesh) and mesh.kind.strip() else "device"


def listed(ids: Sequence[int], most: int = MOST_LISTED) -> str:
    """Numbers in increasing order; a list of more than ``most`` is shortened.

    >>> listed([0, 2]), listed(range(16)), listed(range(0, 32, 2)), listed([*range(8), *range(16, 24)])
    ('0,2', '0-15', '0,2,…,30', '0-7,16-23')
    """
    if len(ids) <= most:
        return ",".join(map(str, ids))
    steps = {after - before for before, after in pairwise(ids)}
    if len(ids) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ids[0]},{ids[1]},…,{ids[-1]}"
    breaks = [place for place in range(1, len(ids)) if ids[place] != ids[place - 1] + 1]
    bounds = list(zip([0, *breaks], [*breaks, len(ids)], strict=True))
    runs = [f"{ids[a]}-{ids[b - 1]}" if b > a + 1 else str(ids[a]) for a, b in bounds]
    return ",".join(runs if len(runs) <= 4 else [*runs[:2], "…", runs[-1]])

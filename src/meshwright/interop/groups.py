"""Groups of devices that take part in a collective together, by their positions on the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshwright.sharding.placement import Digit, merged, positions_in_order

MeshAxes = Sequence[tuple[str, int]]


def group_digits(mesh: MeshAxes, axes: Sequence[str]) -> tuple[list[Digit], list[Digit]]:
    """The digits of a position along the other axes, and along these."""
    found, stride = {}, 1
    for name, size in reversed(mesh):
        found[name] = Digit(stride, size)
        stride *= size
    return [found[name] for name, _ in mesh if name not in axes], [found[axis] for axis in axes]


def groups_of(mesh: MeshAxes, axes: Sequence[str]) -> np.ndarray:
    """The positions of each group's devices, a row for each group."""
    outer, inner = group_digits(mesh, axes)
    positions = positions_in_order(merged([*outer, *inner]))
    return positions.reshape(prod(digit.size for digit in outer), -1)

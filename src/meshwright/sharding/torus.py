"""Where TPUs are: the chips of hosts in a torus, and the order in which a mesh takes them.

A host has a plane of 2x2 chips, and hosts are stacked: device ``id`` is at ``(id % 2, id // 2 % 2, id // 4)`` on host
``id // 4``. A mesh over them gives each of its axes whole dims of the torus, the last axis first and as many dims as
multiply to its size, so that neighbours along an axis are neighbours in the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

KINDS = ("tpu", "tpu v4")
MOST = 1 << 16  # devices whose order is worked out; larger meshes take them as they are numbered


def is_torus(kind: str) -> bool:
    """Whether devices of a kind are chips of such hosts."""
    return kind.strip().lower() in KINDS


def coords(id: int) -> tuple[int, int, int]:
    """The place of a device in the torus.

    >>> [coords(id) for id in (0, 1, 2, 3, 4)]
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1)]
    """
    return id % 2, id // 2 % 2, id // 4


def torus_order(sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The devices along a mesh of these sizes; None for their own order, also where no dims of the torus fit.

    >>> torus_order((4,)), torus_order((2, 2)), torus_order((2, 4))
    ((0, 2, 1, 3), (0, 1, 2, 3), (0, 2, 1, 3, 4, 6, 5, 7))
    """
    count = prod(sizes)
    if not 1 < count <= MOST or (count != 2 and count % 4):
        return None
    shape = (2, 1, 1) if count == 2 else (2, 2, count // 4)
    free = list(range(3))
    dims: list[tuple[int, ...]] = [()] * len(sizes)
    for axis, size in reversed(list(enumerate(sizes))):
        fitting = (
            chosen
            for number in range(len(free), 0, -1)
            for chosen in combinations(free, number)
            if prod(shape[dim] for dim in chosen) == size
        )
        dims[axis] = next(fitting, ())
        if not dims[axis] and size > 1:
            return None
        free = [dim for dim in free if dim not in dims[axis]]
    places = [dim for chosen in dims for dim in chosen]
    if len(places) < 3:
        return None
    ids = np.arange(count).reshape(shape[::-1]).transpose(2, 1, 0)  # by x, y and z
    return tuple(ids.transpose(places).ravel().tolist())

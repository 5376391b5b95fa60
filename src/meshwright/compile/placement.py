"""Where the arguments of a program are and where its results go, as far as that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from meshwright.partition.overlap.matmuls import Overlap
    from meshwright.sharding.mesh import BaseMesh, Mesh
    from meshwright.sharding.named import NamedSharding
    from meshwright.sharding.single_device import SingleDeviceSharding


class Placement(NamedTuple):
    """Arguments and results on a mesh."""

    mesh: Mesh
    in_shardings: tuple[NamedSharding | None, ...]
    out_shardings: Any  # a prefix of the tree of results
    overlap: Overlap | None = None
    groups: tuple[int, ...] = ()  # which argument of the function each of these is part of
    others: tuple[BaseMesh, ...] = ()  # meshes that values are on, too
    thorough: bool = False  # whether layouts in parts of axes are tried that nobody wrote
    told: tuple[bool, ...] = ()  # of which arguments ``in_shardings`` say where they are
    hardware: Any = None  # the machine that layouts are chosen for


class Where(NamedTuple):
    """Arguments and results on a mesh, on one device, or (neither) nowhere in particular."""

    on_mesh: Placement | None = None
    device: SingleDeviceSharding | None = None


NOWHERE = Where()

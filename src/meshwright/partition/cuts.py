"""Where the axes of a mesh are cut: the axes of a local program are parts that nest.

Of an axis of 6, ``x:(1)2`` and ``x:(2)3`` are parts of one cut, and ``x:(1)3`` of another: no mesh has both as axes. A
program is cut where it first must be; layouts in parts that do not fit in are left out from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise

from meshwright.core.axis_names import whole_axis
from meshwright.core.facts import Structure
from meshwright.core.program import Eqn, Program
from meshwright.partition.layouts import layout
from meshwright.sharding.axes import Axes, AxisRef, merged
from meshwright.sharding.check import resolve
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import read_axis

Named = tuple[tuple[str, int], ...]  # axes of a local program with their sizes, from major to minor


class MeshCutNeeded(Exception):
    """A part of an axis is needed that the program's mesh is not cut at yet."""

    def __init__(self, axis: AxisRef) -> None:
        super().__init__(axis.short())
        self.axis = axis


class Cuts:
    """The parts that each axis of a mesh is cut into; a value, which further cuts leave as it is.

    >>> from meshwright.sharding.mesh import make_mesh
    >>> mesh = make_mesh((12,), ("x",))
    >>> cuts = Cuts(mesh).at(AxisRef("x", 2, 3, 12))
    >>> cuts.names(mesh.axes[0])
    (('x:(1)2', 2), ('x:(2)3', 3), ('x:(6)2', 2))
    >>> cuts.fits(AxisRef("x", 1, 6, 12)), cuts.fits(AxisRef("x", 1, 3, 12))
    (True, False)
    """

    def __init__(self, mesh: BaseMesh, parts: Mapping[str, Axes] | None = None) -> None:
        self.mesh = mesh
        self.parts: Mapping[str, Axes] = parts or {axis.name: (axis,) for axis in mesh.axes}
        self._names: dict[AxisRef, Named] = {}

    @cached_property
    def axes(self) -> Named:
        """All axes of the local program."""
        return tuple((part.short(), part.size) for parts in self.parts.values() for part in parts)

    @cached_property
    def fixed(self) -> Axes:
        """The parts of axes that are cut and could have been cut in another way."""
        return tuple(
            part
            for parts in self.parts.values()
            if len(parts) > 1 and _has_unnested_parts(parts[0].whole)
            for part in parts
        )

    def fits(self, axis: AxisRef) -> bool:
        """Whether the mesh can be cut at an axis, too."""
        return axis.is_full or all(axis.can_coexist(part) for part in self.parts[axis.name])

    def at(self, axis: AxisRef) -> Cuts:
        """The mesh cut at an axis that fits in, too."""
        parts = self.parts[axis.name]
        ends = sorted({n for part in (*parts, axis) for n in (part.pre, part.next)})
        found = tuple(axis.part(low, high) for low, high in pairwise(ends)) or parts
        return Cuts(self.mesh, {**self.parts, axis.name: found})

    def where_they_fit(self, axes: Iterable[AxisRef]) -> Cuts:
        """The mesh cut at one axis after the other, as far as they fit in."""
        cuts = self
        for axis in axes:
            if cuts.fits(axis):
                cuts = cuts.at(axis)
        return cuts

    def names(self, axis: AxisRef) -> Named:
        """The axes of the local program that make up an axis or a part of one."""
        found = self._names.get(axis)
        if found is None:
            parts = tuple(part for part in self.parts[axis.name] if axis.contains(part))
            if merged(parts) != (axis,):
                raise MeshCutNeeded(axis)
            found = self._names[axis] = tuple((part.short(), part.size) for part in parts)
        return found

    def fitted(self, sharding: TensorSharding) -> TensorSharding:
        """A layout with the major axes of each dim that fit in."""
        dims = tuple(self._fitting(dim.axes) for dim in sharding.dims)
        unreduced = tuple(axis for axis in sharding.unreduced if self.fits(axis))
        return layout(sharding.mesh, dims, unreduced, sharding.reduction)

    def _fitting(self, axes: Axes) -> Axes:
        for n, axis in enumerate(axes):
            if not self.fits(axis):
                return axes[:n]
        return axes


def written(program: Program) -> Iterator[Eqn]:
    """The shard_maps of a program, also of its regions."""
    for eqn in program.eqns:
        if eqn.op.structure is Structure.DEVICE:
            yield eqn
        for _, region in eqn.regions():
            yield from written(region)


def written_parts(eqn: Eqn, mesh: BaseMesh) -> Axes:
    """The axes that a shard_map is written for, of which some may be parts of the mesh's."""
    return resolve(mesh, [read_axis(name) for name, _ in eqn.params["mesh"]])


def _sizes(eqn: Eqn) -> dict[str, int]:
    """The axes of the mesh that a shard_map is written for, those that are cut in one piece."""
    sizes: dict[str, int] = {}
    for name, size in eqn.params["mesh"]:
        whole = whole_axis(name)
        sizes[whole] = sizes.get(whole, 1) * size
    return sizes


def apart(program: Program, mesh: BaseMesh) -> Callable[[Eqn], bool]:
    """Which shard_maps are written for another mesh, or in parts of axes that do not nest with those of earlier ones.

    They cannot be written for one device together, and are partitioned as what they are on whole arrays.
    """
    cuts, found = Cuts(mesh), set()
    for eqn in written(program):
        if _sizes(eqn) != dict(mesh.shape):
            found.add(id(eqn))
            continue
        parts = written_parts(eqn, mesh)
        if not all(map(cuts.fits, parts)):
            found.add(id(eqn))
        cuts = cuts.where_they_fit(parts if id(eqn) not in found else ())
    return lambda eqn: id(eqn) in found


def _has_unnested_parts(size: int) -> bool:
    """Whether an axis has parts that do not nest: its size is no power of a prime."""
    prime = next((n for n in range(2, size + 1) if size % n == 0), size)
    while size > 1 and size % prime == 0:
        size //= prime
    return size > 1

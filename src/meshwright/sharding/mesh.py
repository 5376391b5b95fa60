"""Meshes: a named, multi-dimensional view of devices, and the mesh that is current.

The device at coordinates ``(i, j, …)`` is the one at that row-major position, mapped through the mesh's device order if
it has one. Several meshes may view the same devices.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.current import current_mesh, current_processes
from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.sharding.axes import Axes, AxisRef, difference
from meshwright.sharding.device import Device as Device
from meshwright.sharding.device import device_numbers
from meshwright.sharding.mesh_check import (
    Where,
    bad_size,
    check_axes,
    check_axis_name,
    check_ids,
    check_kind,
    check_listable,
    check_name,
    check_names,
    check_sizes,
)
from meshwright.sharding.text_sdy import WrittenMesh, mesh_text, read_mesh, symbol
from meshwright.sharding.torus import is_torus, torus_order


class AxisType(enum.Enum):
    """How the sharding over a mesh axis is decided.

    ``Auto``: by propagation. ``Explicit``: it is part of every value's type. ``Manual``: by the code of one device.

    >>> AxisType.Auto, AxisType.Explicit, AxisType.Manual
    (Auto, Explicit, Manual)
    """

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


class BaseMesh:
    """What a mesh with devices and one without have in common: named axes with sizes and types."""

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    name: str | None
    order: tuple[int, ...] | None = None
    size: int

    def __init__(
        self, sizes: tuple[int, ...], names: Iterable[str], types: Any, name: str | None, where: Where = here
    ) -> None:
        self.__dict__.update(
            axis_names=check_axes(names, sizes, where),
            axis_sizes=sizes,
            axis_types=_axis_types(types, len(sizes), where),
            name=check_name(name, where),
            size=prod(sizes) if sizes else 0,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a mesh is immutable; use .with_(…)")

    def __enter__(self) -> BaseMesh:
        """``with mesh:`` is ``with set_mesh(mesh):``."""
        _entered.append(set_mesh(self))
        return self

    def __exit__(self, *error: object) -> None:
        _entered.pop().__exit__(None, None, None)

    # Axes

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by name."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def axes(self) -> Axes:
        """The whole axes, in order."""
        return tuple(map(AxisRef.full, self.axis_names, self.axis_sizes))

    @cached_property
    def axis_by_name(self) -> Mapping[str, AxisRef]:
        """The whole axes by name."""
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def strides(self) -> Mapping[str, int]:
        """By how much a device's position grows with its coordinate along each axis."""
        return {name: prod(self.axis_sizes[i + 1 :]) for i, name in enumerate(self.axis_names)}

    def unused(self, axes: Iterable[AxisRef]) -> Axes:
        """What is left of the mesh's axes without ``axes``, in mesh order."""
        return difference(self.axes, axes)

    @property
    def empty(self) -> bool:
        """Whether the mesh has no devices: it stands for any mesh."""
        return self.size == 0

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        """The axes as pairs of a name and a size."""
        return tuple(self.shape.items())

    @property
    def is_maximal(self) -> bool:
        """Whether the mesh is one device and nothing else, ``<[], device_ids=[3]>``."""
        return not self.axis_names and self.order is not None

    def _of_type(self, type: AxisType) -> tuple[str, ...]:
        return tuple(name for name, found in zip(self.axis_names, self.axis_types, strict=True) if found is type)

    @property
    def auto_axes(self) -> tuple[str, ...]:
        """The names of the axes of type Auto."""
        return self._of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[str, ...]:
        """The names of the axes of type Explicit."""
        return self._of_type(AxisType.Explicit)

    @cached_property
    def explicit_mesh(self) -> AbstractMesh | None:
        """The axes of type Explicit as a mesh, which is what the shardings in types are on; None if there are none."""
        names = self.explicit_axes
        return AbstractMesh([self.shape[n] for n in names], names, AxisType.Explicit) if names else None

    @property
    def manual_axes(self) -> tuple[str, ...]:
        """The names of the axes of type Manual."""
        return self._of_type(AxisType.Manual)

    def with_(self, **changes: Any) -> BaseMesh:
        """This mesh with some of its fields replaced."""
        raise NotImplementedError

    def update_axis_types(self, name_to_type: Mapping[str, AxisType]) -> BaseMesh:
        """This mesh with other types of some axes.

        >>> AbstractMesh((2, 4), ("x", "y")).update_axis_types({"x": AxisType.Explicit})
        AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Auto))
        """
        unknown = next((name for name in name_to_type if name not in self.axis_names), None)
        if unknown is not None:
            raise MeshError(
                f"update_axis_types is given the axis {unknown!r}.",
                where=here(),
                why=f"the mesh has the axes {', '.join(self.axis_names)}",
                fix=f"update_axis_types({{{self.axis_names[0] if self.axis_names else 'x'!r}: AxisType.Explicit}})",
            )
        types = [name_to_type.get(n, t) for n, t in zip(self.axis_names, self.axis_types, strict=True)]
        return self.with_(axis_types=tuple(types))

    def update(self, **changes: Any) -> BaseMesh:
        """``with_`` by its name in JAX."""
        return self.with_(**changes)

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether all axes are of type Explicit."""
        return len(self.explicit_axes) == len(self.axis_names)

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether all axes are of type Auto."""
        return len(self.auto_axes) == len(self.axis_names)

    @property
    def are_all_axes_manual(self) -> bool:
        """Whether all axes are of type Manual."""
        return len(self.manual_axes) == len(self.axis_names)

    @cached_property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without its devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types, name=self.name)

    # Equality does not look at the name: two names for one mesh are one mesh.

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self._identity()

    def _identity(self) -> tuple[Any, ...]:
        return type(self), self.axis_names, self.axis_sizes, self.axis_types

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, BaseMesh) and self._key == other._key)

    # Text

    def __str__(self) -> str:
        return mesh_text(tuple(zip(self.axis_names, self.axis_sizes, strict=True)), self.order)

    def _repr_html_(self) -> str:
        from meshwright.report.notebook import mesh_html

        return mesh_html(self)

    def declaration(self) -> str:
        """As a module declares it: ``sdy.mesh @mesh = <["x"=2, "y"=4]>``."""
        return f"sdy.mesh {symbol(self.name or 'mesh')} = {self}"

    def reference(self) -> str:
        """As a sharding refers to it: ``@mesh``, or written out if its name is the empty one."""
        return f"mesh{self}" if self.name == "" else symbol(self.name or "mesh")

    def short(self) -> str:
        """As the repr of a sharding shows it: ``Mesh('x': 2, 'y': 4, axis_types=(Auto, Auto))``."""
        axes = "".join(f"{name!r}: {size}, " for name, size in self.shape.items())
        return f"{type(self).__name__}({axes}axis_types={self.axis_types})" if axes else f"{type(self).__name__}()"


def both(one: BaseMesh, other: BaseMesh) -> tuple[str, str]:
    """How an error tells two meshes apart: by axes and devices, or else by all that they are."""
    shown = str(one), str(other)
    return shown if shown[0] != shown[1] else (one.short(), other.short())


class AbstractMesh(BaseMesh):
    """A mesh of axes and sizes, without devices.

    >>> AbstractMesh((2, 4), ("x", "y"))
    AbstractMesh('x': 2, 'y': 4, axis_types=(Auto, Auto))
    """

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(check_sizes(axis_sizes, here), check_names(axis_names, here), axis_types, name)

    @classmethod
    def of_parts(cls, axes: Sequence[tuple[str, int]]) -> AbstractMesh:
        """The mesh of a local program, whose axes may be parts of those that a user named.

        >>> AbstractMesh.of_parts([("x:(1)2", 2), ("x:(2)4", 4)]).shape
        {'x:(1)2': 2, 'x:(2)4': 4}
        """
        self = cls.__new__(cls)
        BaseMesh.__init__(self, tuple(size for _, size in axes), [name for name, _ in axes], None, None)
        return self

    def with_(self, **changes: Any) -> AbstractMesh:
        """This mesh with some of axis_sizes, axis_names, axis_types, name replaced."""
        if changes.keys() == {"name"}:  # axes that are parts of others stay as they are
            renamed = AbstractMesh.__new__(AbstractMesh)
            BaseMesh.__init__(renamed, self.axis_sizes, self.axis_names, self.axis_types, changes["name"])
            return renamed
        fields = {key: getattr(self, key) for key in ("axis_sizes", "axis_names", "axis_types", "name")}
        return AbstractMesh(**{**fields, **changes})

    @cached_property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def __repr__(self) -> str:
        return self.short()

    def __reduce__(self) -> tuple[Any, ...]:
        return _abstract_mesh, (self.axis_sizes, self.axis_names, self.axis_types, self.name)


class Mesh(BaseMesh):
    """Devices, given by number (or as ``Device`` objects) in an array with one named dim per axis.

    >>> mesh = Mesh([[0, 1], [2, 3]], ("x", "y"))
    >>> mesh.shape, mesh.size
    ({'x': 2, 'y': 2}, 4)
    >>> print(mesh, Mesh([1, 0], "x"))
    <["x"=2, "y"=2]> <["x"=2], device_ids=[1, 0]>
    >>> mesh.devices[0, 1]
    CpuDevice(id=1)
    """

    kind: str

    def __init__(
        self,
        devices: Any,
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
        *,
        kind: str | None = None,
        name: str | None = None,
    ) -> None:
        grid, own_kind = device_numbers(devices)
        names = check_names(axis_names, here)
        kind = check_kind(kind, here) if kind is not None else own_kind or "cpu"
        shape = () if not names and not grid.size else grid.shape
        if len(shape) != len(names):
            raise MeshError(
                f"{len(names)} axis names {names} were given for devices of {grid.ndim} dims {grid.shape}.",
                where=here(),
                why="each dim of the devices is one axis of the mesh",
                fix=f"mw.Mesh(devices.reshape({', '.join(['…'] * len(names))}), {names})",
            )
        self.__dict__.update(kind=kind)
        self._set(shape, names, axis_types, name, tuple(grid.ravel().tolist()) if grid.size else None, here)

    def _set(
        self,
        sizes: tuple[int, ...],
        names: tuple[str, ...],
        types: Any,
        name: str | None,
        ids: tuple[int, ...] | None,
        where: Where,
    ) -> None:
        super().__init__(sizes, names, types, name, where)
        if ids is not None:
            check_ids(ids, sizes, where)
            if sizes and ids == tuple(range(len(ids))):
                ids = None
        self.__dict__.update(order=ids, size=1 if ids and not sizes else self.size)

    @classmethod
    def _of(
        cls,
        sizes: tuple[int, ...],
        names: tuple[str, ...],
        types: Any = None,
        ids: tuple[int, ...] | None = None,
        kind: str = "cpu",
        name: str | None = None,
        where: Where = here,
    ) -> Mesh:
        """A mesh from its parts, without an array of devices."""
        self = cls.__new__(cls)
        self.__dict__.update(kind=kind)
        self._set(sizes, names, types, name, ids, where)
        return self

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read a mesh: ``<["x"=2, "y"=4]>``, with ``device_ids=[…]``, or a whole ``sdy.mesh @name = <…>``.

        >>> Mesh.parse('sdy.mesh @m = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>').declaration()
        'sdy.mesh @m = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>'
        """
        written, reader = read_mesh(text)
        return cls.from_written(written, reader.pointing)

    @classmethod
    def from_written(cls, written: WrittenMesh, pointing: Any) -> Mesh:
        """The mesh that was written; ``pointing`` shows a place of the text it was written in."""
        for name, size, at in written.axes:
            check_axis_name(name, partial(pointing, at), [name for name, _, _ in written.axes])
            if size < 1:
                raise bad_size(name, size, partial(pointing, at))
        names = tuple(name for name, _, _ in written.axes)
        sizes = tuple(size for _, size, _ in written.axes)
        ids = written.device_ids
        if ids is not None:
            places = written.id_places
            check_ids(ids, sizes, lambda: pointing(written.ids_at), lambda i: str(pointing(places[i])), written.exact)
        place = next((at for i, (name, _, at) in enumerate(written.axes) if name in names[:i]), 0)
        return cls._of(sizes, names, None, ids, "cpu", written.name, lambda: pointing(place))

    def with_(self, **changes: Any) -> Mesh:
        """This mesh with some of axis_types, kind, name replaced."""
        fields = {"axis_types": self.axis_types, "kind": self.kind, "name": self.name, **changes}
        types, kind, name = (fields.pop(key) for key in ("axis_types", "kind", "name"))
        if fields:
            raise TypeError(f"a mesh has no {', '.join(fields)} to replace")
        return Mesh._of(self.axis_sizes, self.axis_names, types, self.order, check_kind(kind, here), name)

    # Devices

    @property
    def is_multi_process(self) -> bool:
        """Whether the devices belong to several processes."""
        return current_processes.all.count > 1

    @property
    def local_mesh(self) -> Mesh:
        """The devices of this process as a mesh: all of them, unless there are several processes."""
        return self

    @cached_property
    def device_ids(self) -> NDArray[np.int64]:
        """The number of the device at each place."""
        check_listable(self.size, len(self.axis_sizes), here)
        ids = np.arange(self.size) if self.order is None else np.array(self.order, np.int64)
        ids = ids.reshape(self.axis_sizes if not self.empty else (0,))
        ids.flags.writeable = False
        return ids

    @cached_property
    def devices(self) -> NDArray[Any]:
        """The device at each place."""
        ids = self.device_ids
        devices = np.empty(ids.shape, object)
        devices.reshape(-1)[:] = [Device(id, self.kind) for id in ids.ravel().tolist()]
        devices.flags.writeable = False
        return devices

    def has_devices_of(self, other: BaseMesh) -> bool:
        """Whether another mesh is a view of the same devices."""
        if not isinstance(other, Mesh) or (self.size, self.kind) != (other.size, other.kind):
            return False
        if self.order is None or other.order is None:
            order = self.order or other.order
            return order is None or max(order) < len(order)
        return set(self.order) == set(other.order)

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self.order, self.kind)

    def __repr__(self) -> str:
        if self.is_maximal:
            return f"Mesh(device={self.devices[()]!r})"
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}, axis_types={self.axis_types})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh._of, (self.axis_sizes, self.axis_names, self.axis_types, self.order, self.kind, self.name)


def _abstract_mesh(sizes: Any, names: Any, types: Any, name: Any) -> AbstractMesh:
    return AbstractMesh(sizes, names, types, name=name)


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: str | Sequence[str],
    axis_types: AxisType | Sequence[AxisType] | None = None,
    kind: str = "cpu",
    devices: Sequence[int | Device] | None = None,
    *,
    name: str | None = None,
) -> Mesh:
    """A mesh over as many virtual devices as it needs.

    ``kind`` is what the devices are called. ``devices`` (numbers, or ``Device`` objects) gives the devices and their
    order; by default they are numbered along the mesh, major to minor. Devices of kind ``"tpu"`` are chips of a torus,
    whose dims the axes of the mesh take as JAX's do: four of them on one axis come in the order 0, 2, 1, 3.

    >>> mesh = make_mesh((2, 4), ("x", "y"))
    >>> mesh
    Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'), axis_types=(Auto, Auto))
    >>> mesh.shape["y"], mesh.size, print(mesh)
    <["x"=2, "y"=4]>
    (4, 8, None)
    """
    names, sizes, kind = check_names(axis_names, here), check_sizes(axis_shapes, here), check_kind(kind, here)
    ids: tuple[int, ...] | None = None
    if devices is not None:
        grid, own_kind = device_numbers(devices)
        kind, ids = own_kind or kind, tuple(grid.ravel().tolist())
    elif is_torus(kind):
        ids = torus_order(sizes)
    return Mesh._of(sizes, names, axis_types, ids, kind, name)


def _axis_types(types: Any, count: int, where: Where) -> tuple[AxisType, ...]:
    if types is None:
        return (AxisType.Auto,) * count
    found = (types,) * count if isinstance(types, AxisType) else tuple(types) if isinstance(types, Iterable) else ()
    if (
        len(found) != count
        or not isinstance(types, AxisType | Iterable)
        or not all(isinstance(type, AxisType) for type in found)
    ):
        raise MeshError(
            f"axis_types={types!r} does not fit a mesh of {count} axes.",
            where=where(),
            why="each axis has one type: AxisType.Auto, AxisType.Explicit or AxisType.Manual",
            fix=f"axis_types=(mw.AxisType.Auto,) * {count}",
        )
    return found


# The current mesh


def get_mesh() -> BaseMesh | None:
    """The mesh set by ``set_mesh``, or None.

    >>> with set_mesh(make_mesh((2,), ("x",))):
    ...     print(get_mesh())
    <["x"=2]>
    """
    found: BaseMesh | None = current_mesh.get()
    return found


def devices(kind: str | None = None, *, count: int = 8) -> list[Device]:
    """Devices to make a mesh of: those of the current mesh, or else as many as asked for, since none are real.

    >>> devices(count=2), devices("tpu", count=1)
    ([CpuDevice(id=0), CpuDevice(id=1)], [TpuDevice(id=0, process_index=0, coords=(0,0,0), core_on_chip=0)])
    >>> with set_mesh(make_mesh((2,), ("x",), kind="gpu")):
    ...     devices()
    [GpuDevice(id=0), GpuDevice(id=1)]
    """
    mesh = get_mesh()
    if kind is not None or not isinstance(mesh, Mesh):
        mesh = make_mesh((count,), ("devices",), kind="cpu" if kind is None else kind)
    return sorted(mesh.devices.ravel().tolist(), key=lambda device: device.id)


_entered: list[set_mesh] = []  # by ``with mesh:``, the innermost last


class set_mesh:
    """Make a mesh the current one: from here on, or for the length of a ``with`` block.

    >>> mesh = make_mesh((2,), ("x",))
    >>> with set_mesh(mesh):
    ...     get_mesh() is mesh
    True
    >>> get_mesh() is None
    True
    """

    def __init__(self, mesh: BaseMesh | None) -> None:
        if mesh is not None and not isinstance(mesh, BaseMesh):
            raise MeshError(
                f"set_mesh cannot take {mesh!r}.",
                where=here(),
                why="it is not a mesh",
                fix='mw.set_mesh(mw.make_mesh((2, 4), ("x", "y")))',
            )
        self._mesh = mesh
        self._before = current_mesh.get()
        current_mesh.set(mesh)

    def __enter__(self) -> BaseMesh | None:
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_mesh.set(self._before)

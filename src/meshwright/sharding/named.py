"""Shardings: how a tensor is laid out on a mesh, dim by dim.

A ``TensorSharding`` is the whole representation: open and closed dims, priorities, replicated and unreduced axes. A
``NamedSharding`` is what users write: a mesh and a partition spec, for arrays of any rank the spec reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from meshwright.core.axis_names import axis_text
from meshwright.core.source import Source, here, user_source
from meshwright.core.types import TensorType
from meshwright.errors import MeshError, ShardingError
from meshwright.sharding.axes import Axes, AxisRef, merged
from meshwright.sharding.check import (
    RankError,
    UnknownMeshError,
    check_sharding,
    checked_count,
    checked_mesh,
    checked_shape,
    rank_error,
)
from meshwright.sharding.dimension import (
    DimensionSharding,
    axis_set,
    check_refs,
    named_axis,
    ordered,
    resolved,
    written_axes,
    written_dim,
)
from meshwright.sharding.mesh import BaseMesh, Device, Mesh, get_mesh
from meshwright.sharding.placement import (
    DigitLayout,
    Index,
    axes_of,
    block_size,
    digits_of,
    order_between,
    order_steps,
    position_indices,
    same_placement,
    through,
)
from meshwright.sharding.spec import P, PartitionSpec, dim_entry, entry_axes, is_open, pasted, priority_of
from meshwright.sharding.text_hlo import axes_from_hlo, axes_to_hlo, not_expressible, read_tiles
from meshwright.sharding.text_sdy import REDUCTIONS, WrittenDim, read_sharding, symbol


class TensorSharding:
    """The sharding of a tensor on a mesh: the axes of each dim, replicated and unreduced axes.

    A dim is a ``DimensionSharding``, or (closed, without priority) an axis ``"x"``, ``"x:(1)2"``, several, or None.

    >>> mesh = Mesh.parse('<["x"=2, "y"=4, "z"=2]>')
    >>> sharding = TensorSharding(mesh, ["x", ("z", "y")])
    >>> print(sharding, sharding.local_shape((4, 8)))
    #sdy.sharding<@mesh, [{"x"}, {"z", "y"}]> (2, 1)
    """

    mesh: BaseMesh
    dims: tuple[DimensionSharding, ...]
    replicated: Axes
    unreduced: Axes
    reduction: str

    def __init__(
        self,
        mesh: BaseMesh,
        dims: Iterable[Any],
        replicated: Iterable[str | AxisRef] = (),
        unreduced: Iterable[str | AxisRef] = (),
        reduction: str = "sum",
    ) -> None:
        if reduction not in REDUCTIONS:
            raise ShardingError(
                f"Axes cannot be unreduced by {reduction!r}.",
                where=here(),
                why=f"the reductions are {', '.join(REDUCTIONS)}",
                fix='reduction="sum"',
            )
        checked_mesh(mesh, "TensorSharding")
        if isinstance(dims, str | AxisRef) or not isinstance(dims, Iterable):
            raise ShardingError(
                f"TensorSharding cannot take {dims!r} for its dims.",
                where=here(),
                why="they are a list with an entry for each dim of the tensor",
                fix='TensorSharding(mesh, ["x", None])',
            )
        dims, replicated, unreduced = (_listed(given) for given in (dims, replicated, unreduced))
        check_refs(mesh, (dims, replicated, unreduced))
        copied, summed = ordered(mesh, written_axes(replicated)), ordered(mesh, written_axes(unreduced))
        parts = [written_dim(dim) for dim in dims], copied, summed
        check_sharding(mesh, *parts, lambda at: here())
        self._set(mesh, *resolved(mesh, *parts), reduction)

    def _set(
        self,
        mesh: BaseMesh,
        dims: tuple[DimensionSharding, ...],
        replicated: Axes,
        unreduced: Axes,
        reduction: str,
    ) -> None:
        reduction = reduction if unreduced else "sum"
        self.__dict__.update(mesh=mesh, dims=dims, replicated=replicated, unreduced=unreduced, reduction=reduction)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a TensorSharding is immutable; use .with_(…)")

    @classmethod
    def unchecked(
        cls,
        mesh: BaseMesh,
        dims: tuple[DimensionSharding, ...],
        replicated: Axes = (),
        unreduced: Axes = (),
        reduction: str = "sum",
    ) -> TensorSharding:
        """A sharding whose parts are known to satisfy the rules."""
        self = cls.__new__(cls)
        self._set(mesh, dims, replicated, unreduced, reduction)
        return self

    @classmethod
    def parse(
        cls,
        text: str,
        mesh: BaseMesh | Iterable[BaseMesh] | Mapping[str, BaseMesh] | None = None,
        shape: Sequence[int] | None = None,
    ) -> TensorSharding:
        """Read a sharding. ``mesh`` is the mesh it names, or several to choose from; by default the current one.

        ``shape`` is that of the tensor, if it is known and the text does not say it.

        >>> mesh = Mesh.parse('<["x"=2, "y"=8]>')
        >>> print(TensorSharding.parse('sharding<@mesh, [{"x"}, {"y":(2)2, ?}p1]>', mesh))
        #sdy.sharding<@mesh, [{"x"}, {"y":(2)2, ?}p1]>
        """
        found, reader = read_sharding(text)
        if isinstance(found.mesh, str):
            on = _find_mesh(found.mesh, mesh, reader.pointing(found.mesh_at))
        else:
            on = Mesh.from_written(found.mesh, reader.pointing).with_(name="")
        shape = found.shape if shape is None else checked_shape(shape)
        parts = found.dims, found.replicated, found.unreduced
        if shape is not None and len(shape) != len(found.dims) and not on.is_maximal:
            raise rank_error("a sharding", len(found.dims), shape, reader.pointing(found.mesh_at))
        check_sharding(on, *parts, reader.pointing)
        return cls.unchecked(on, *resolved(on, *parts), found.reduction)

    def with_(self, **changes: Any) -> TensorSharding:
        """This sharding with some fields replaced."""
        fields = {key: getattr(self, key) for key in ("mesh", "dims", "replicated", "unreduced", "reduction")}
        return TensorSharding(**{**fields, **changes})

    # Size and shape

    @property
    def rank(self) -> int:
        """The number of dims; a sharding on a single device fits tensors of any rank."""
        return len(self.dims)

    @property
    def shards(self) -> tuple[int, ...]:
        """How many ways each dim is split."""
        return tuple(dim.shards for dim in self.dims)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise unless a tensor of this shape can be sharded so; any size can, any other rank cannot."""
        shape = checked_shape(shape)
        if len(shape) != len(self.dims) and not self.mesh.is_maximal:
            raise rank_error(str(self), len(self.dims), shape, here())

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape on a single device, padding included: each dim divided by its shards, rounded up."""
        self.check_shape(shape)
        if self.mesh.is_maximal:
            return tuple(shape)
        return tuple(map(block_size, shape, self.shards))

    def padding(self, shape: Sequence[int]) -> tuple[int, ...]:
        """By how much each dim must grow for its shards to be equal.

        >>> sharding = TensorSharding(Mesh.parse('<["x"=8, "y"=2, "z"=3]>'), ["x", "y", "z"])
        >>> sharding.local_shape((7, 3, 8)), sharding.padding((7, 3, 8))
        ((1, 2, 3), (1, 1, 1))
        """
        local = self.local_shape(shape)
        if self.mesh.is_maximal:
            return (0,) * len(shape)
        return tuple(block * shards - size for block, shards, size in zip(local, self.shards, shape, strict=True))

    def padded_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape with its padding."""
        return tuple(size + more for size, more in zip(shape, self.padding(shape), strict=True))

    # Placement

    @property
    def is_closed(self) -> bool:
        """Whether it leaves nothing to propagation: no dim is open or has a priority."""
        return not any(dim.is_open or dim.priority is not None for dim in self.dims)

    @cached_property
    def layout(self) -> DigitLayout:
        """The digits of a device's position that each dim and the unreduced axes take."""
        dims = tuple(digits_of(self.mesh, dim.axes) for dim in self.dims)
        return DigitLayout(self.mesh.size, self.mesh.order, dims, digits_of(self.mesh, self.unreduced), self.reduction)

    @cached_property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole tensor, with no partial sum."""
        return not self.layout.unreduced and not any(self.layout.dims)

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Device, Index]:
        """For each device, the part of a tensor of this shape that it holds; without padding."""
        self.check_shape(shape)
        if not isinstance(self.mesh, Mesh):
            raise _no_devices(self.mesh)
        layout = self.layout
        if self.mesh.is_maximal:
            layout = layout._replace(dims=((),) * len(shape))
        return dict(zip(self.mesh.devices.flat, position_indices(layout, shape), strict=True))

    def is_equivalent_to(self, other: TensorSharding | NamedSharding, ndim: int | None = None) -> bool:
        """Whether each device holds the same part of a tensor under both, whatever its size; meshes may differ.

        Open dims, priorities and explicit replication do not matter: they say what may be decided later.

        >>> full, xy = Mesh.parse('<["devices"=8]>'), Mesh.parse('<["x"=4, "y"=2]>')
        >>> by_parts = TensorSharding(full, ["devices:(1)4", "devices:(4)2"])
        >>> TensorSharding(xy, ["x", "y"]).is_equivalent_to(by_parts)
        True
        """
        if not isinstance(other, TensorSharding):
            if not hasattr(other, "to_tensor_sharding"):
                raise ShardingError(
                    f"{other!r} is not a sharding.",
                    where=here(),
                    why="a sharding is compared to a NamedSharding, a TensorSharding or a SingleDeviceSharding",
                    fix='mw.NamedSharding(mesh, mw.P("x"))',
                )
            other = other.to_tensor_sharding(self.rank if ndim is None else ndim)
        if _of_different_kinds(self.mesh, other.mesh):
            return False
        if self.mesh.is_maximal or other.mesh.is_maximal:
            return _one_device(self) is not None and _one_device(self) == _one_device(other)
        if self.mesh.empty or other.mesh.empty:  # stands for any mesh
            return self.rank == other.rank and self.is_fully_replicated and other.is_fully_replicated
        return same_placement(self.layout, other.layout)

    def on(self, mesh: BaseMesh) -> TensorSharding | None:
        """The same placement on another mesh of the same devices; None if that has no such axes or parts of axes.

        >>> by_two, by_three = Mesh.parse('<["a"=4, "b"=2]>'), Mesh.parse('<["x"=2, "y"=2, "z"=2]>')
        >>> print(TensorSharding(by_three, ["x", ("z", "y")]).on(by_two))
        #sdy.sharding<@mesh, [{"a":(1)2}, {"b", "a":(2)2}]>
        """
        if mesh == self.mesh:
            return self
        order = order_between(self.mesh, mesh)
        steps = None if order is None else order_steps(order)
        found: list[Axes] = []
        for digits in (*self.layout.dims, self.layout.unreduced):
            numbers = digits if not digits else None if steps is None else through(digits, steps)
            axes = None if numbers is None else axes_of(mesh, numbers)
            if axes is None:
                return None
            found.append(axes)
        *dims, unreduced = found
        return TensorSharding.unchecked(mesh, tuple(map(DimensionSharding, dims)), (), unreduced, self.reduction)

    # In types

    @cached_property
    def explicit(self) -> TensorSharding | None:
        """What of it is part of a type: the axes of type Explicit, on a mesh of these; None if they split nothing."""
        mesh = self.mesh.explicit_mesh
        if mesh is None:
            return None
        return type_sharding(
            mesh, tuple(tuple(a for a in dim.axes if a.name in mesh.axis_by_name) for dim in self.dims)
        )

    def row(self) -> TensorSharding | None:
        """That of a row in the place of a type's sharding: without dim 0."""
        return type_sharding(self.mesh, tuple(dim.axes for dim in self.dims[1:]))

    def stack(self) -> TensorSharding | None:
        """That of an array with these rows in the place of a type's sharding."""
        return type_sharding(self.mesh, ((), *(dim.axes for dim in self.dims)))

    # Text

    def __str__(self) -> str:
        parts = [self.mesh.reference(), f"[{', '.join(map(str, self.dims))}]"]
        if self.replicated:
            parts.append(f"replicated={{{', '.join(map(str, self.replicated))}}}")
        if self.unreduced:
            kind = "" if self.reduction == "sum" else self.reduction
            parts.append(f"unreduced={kind}{{{', '.join(map(str, self.unreduced))}}}")
        return f"#sdy.sharding<{', '.join(parts)}>"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from meshwright.report.notebook import sharding_html

        return sharding_html(self)

    def type_dims(self, shape: Sequence[int]) -> list[str]:
        """The dims as a type shows them: ``2048@x``, ``8@(x,y)``, ``8@x:(1)2``."""
        if self.mesh.is_maximal:
            return [str(size) for size in shape]
        self.check_shape(shape)
        return [_type_dim(size, dim.axes) for size, dim in zip(shape, self.dims, strict=True)]

    def to_hlo(self) -> str:
        """HLO's text of the sharding.

        >>> mesh = Mesh.parse('<["x"=2, "y"=2]>')
        >>> TensorSharding(mesh, ["y", None]).to_hlo()
        '{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}'
        """
        return self._hlo(self.mesh.order)

    def _hlo(self, order: tuple[int, ...] | None) -> str:
        return axes_to_hlo(self.mesh, [dim.axes for dim in self.dims], self.unreduced, self.reduction, order)

    @classmethod
    def from_hlo(cls, text: str, mesh: BaseMesh | None = None, ndim: int | None = None) -> TensorSharding:
        """Read HLO's text. Without ``mesh`` one is made that has the axes needed, named ``_axis_0``, ``_axis_1``, …

        ``ndim`` is the rank of the tensor where the text does not say, as in ``{replicated}``.

        >>> print(TensorSharding.from_hlo("{devices=[2,1,4]<=[8] last_tile_dim_replicate}"))
        #sdy.sharding<mesh<["_axis_0"=2, "_axis_1"=4]>, [{"_axis_0"}, {}]>
        """
        return cls._from_hlo(text, mesh, ndim, None if mesh is None else checked_mesh(mesh, "from_hlo").order)

    @classmethod
    def _from_hlo(
        cls, text: str, mesh: BaseMesh | None, ndim: int | None, order: tuple[int, ...] | None
    ) -> TensorSharding:
        tiles, reader = read_tiles(text)
        ndim = None if ndim is None else checked_count(ndim, "dims")
        on, dims, unreduced = axes_from_hlo(tiles, mesh, ndim, order, reader.pointing)
        return cls.unchecked(on, tuple(map(DimensionSharding, dims)), (), unreduced)

    def to_named(self) -> NamedSharding:
        """The same as a mesh and a partition spec: ``{?}`` is unconstrained, ``{"x", ?}p1`` a ``P.dim``."""
        if self.reduction != "sum":
            why = f"a spec's unreduced axes are those of a sum, not of a {self.reduction}"
            raise not_expressible(f"{self} is no partition spec.", why)
        entries = [dim_entry(*dim.axes, open=dim.is_open, priority=dim.priority) for dim in self.dims]
        return NamedSharding(self.mesh, P(*entries, unreduced=self.unreduced, replicated=self.replicated))

    # Equality

    def _key(self) -> tuple[Any, ...]:
        return self.mesh, self.dims, self.replicated, self.unreduced, self.reduction

    @cached_property
    def _hash(self) -> int:
        return hash(self._key())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, TensorSharding) and self._key() == other._key()

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorSharding.unchecked, self._key()


class NamedSharding:
    """A mesh and a partition spec: how an array of the spec's rank or a higher one is laid out.

    >>> mesh = Mesh([[0, 1], [2, 3]], ("x", "y"))
    >>> sharding = NamedSharding(mesh, P("x", None))
    >>> sharding
    NamedSharding(mesh=Mesh('x': 2, 'y': 2, axis_types=(Auto, Auto)), spec=P('x', None))
    >>> sharding.shard_shape((4, 6)), sharding.to_hlo()
    ((2, 6), '{devices=[2,1,2]<=[4] last_tile_dim_replicate}')
    """

    mesh: BaseMesh
    spec: PartitionSpec
    source: Source | None  # the user's line that made it
    _tensor: TensorSharding
    _by_rank: dict[int, TensorSharding]

    def __init__(self, mesh: BaseMesh, spec: PartitionSpec) -> None:
        if not isinstance(mesh, BaseMesh):
            raise ShardingError(
                f"NamedSharding cannot take {mesh!r} for a mesh.",
                where=here(),
                why="the mesh comes first, the partition spec second",
                fix=f"mw.NamedSharding(mesh, {pasted(spec) if isinstance(spec, PartitionSpec) else 'spec'})",
            )
        if not isinstance(spec, PartitionSpec):
            if not isinstance(spec, tuple | list):
                raise ShardingError(
                    f"NamedSharding cannot take {spec!r} for a partition spec.",
                    where=here(),
                    why="a partition spec says for each dim which axes split it",
                    fix=f"mw.NamedSharding(mesh, mw.P({_axis_for(spec, mesh)}))",
                )
            spec = P(*spec)
        self.__dict__.update(mesh=mesh, spec=spec, source=user_source())
        self.__dict__.update(_tensor=self._build(), _by_rank={})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a NamedSharding is immutable")

    def _build(self) -> TensorSharding:
        dims = []
        for entry in self.spec.partitions:
            axes = tuple(named_axis(self.mesh, axis) for axis in entry_axes(entry))
            dims.append(WrittenDim(axes, is_open(entry), priority_of(entry)))
        sets = axis_set(self.mesh, self.spec.replicated), axis_set(self.mesh, self.spec.unreduced)
        check_sharding(self.mesh, dims, *sets, lambda at: here())
        return TensorSharding.unchecked(self.mesh, *resolved(self.mesh, dims, *sets))

    def to_tensor_sharding(self, ndim: int | None = None) -> TensorSharding:
        """The whole representation, for tensors of ``ndim`` dims (as many as the spec has, by default)."""
        own = self._tensor
        if ndim is None or ndim == own.rank or self.mesh.is_maximal:
            return own
        ndim = checked_count(ndim, "dims")
        if ndim < own.rank:
            raise self._rank_error(ndim, f"the tensor has {ndim} dim{'s' * (ndim != 1)}")
        found = self._by_rank.get(ndim)
        if found is None:
            dims = (*own.dims, *(DimensionSharding(),) * (ndim - own.rank))
            found = self._by_rank[ndim] = TensorSharding.unchecked(self.mesh, dims, own.replicated, own.unreduced)
        return found

    def _for(self, shape: Sequence[int]) -> TensorSharding:
        shape = checked_shape(shape)
        if len(shape) < self._tensor.rank:
            raise self._rank_error(len(shape), f"the shape is {shape}")
        return self.to_tensor_sharding(len(shape))

    def _rank_error(self, ndim: int, known: str) -> RankError:
        """The error for a tensor of fewer dims than the spec has."""
        return RankError(
            f"The sharding has {self._tensor.rank} dim{'s' * (self._tensor.rank != 1)} and the tensor {ndim}.",
            where=here(),
            why=f"{self.spec!r} says for each dim how it is sharded, and {known}",
            fix=pasted(self.spec.update(_fitted(self.spec.partitions, ndim))),
        )

    def typed(self, type: TensorType) -> TensorType:
        """The type of an array that is laid out so: over Explicit axes, the sharding is part of it."""
        if self.mesh.explicit_mesh is None or self._tensor.rank > type.ndim:
            return type if type.sharding is None else type.with_(sharding=None)
        sharding = self.to_tensor_sharding(type.ndim).explicit
        return type if sharding is type.sharding else type.with_(sharding=sharding)

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape on a single device; a dim that its axes do not divide is rounded up."""
        return self._for(shape).local_shape(shape)

    local_shape = shard_shape

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Device, Index]:
        """For each device, the part of an array of this shape that it holds."""
        return self._for(shape).devices_indices_map(shape)

    def is_equivalent_to(self, other: NamedSharding | TensorSharding, ndim: int) -> bool:
        """Whether each device holds the same part of an array of ``ndim`` dims under both; meshes may differ."""
        return self.to_tensor_sharding(ndim).is_equivalent_to(other, ndim)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array, with no partial sum."""
        return self._tensor.is_fully_replicated

    @property
    def num_devices(self) -> int:
        """The number of devices of the mesh."""
        return self.mesh.size

    @property
    def memory_kind(self) -> str:
        """Where on a device: all arrays are in its main memory."""
        return "device"

    def update(self, **changes: Any) -> NamedSharding:
        """This sharding with another ``mesh`` or ``spec``."""
        return NamedSharding(changes.get("mesh", self.mesh), changes.get("spec", self.spec))

    @property
    def device_set(self) -> set[Device]:
        """The devices of the mesh."""
        if not isinstance(self.mesh, Mesh):
            raise _no_devices(self.mesh)
        return set(self.mesh.devices.flat)

    addressable_devices = device_set

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process reaches every device: it makes them."""
        return True

    def to_hlo(self, ndim: int | None = None) -> str:
        """HLO's text for arrays of ``ndim`` dims; devices are numbered by their position in the mesh, as JAX does."""
        return self.to_tensor_sharding(ndim)._hlo(None)

    @classmethod
    def from_hlo(cls, text: str, mesh: BaseMesh | None = None, ndim: int | None = None) -> NamedSharding:
        """Read HLO's text; devices are numbered by their position in the mesh."""
        on = None if mesh is None else checked_mesh(mesh, "from_hlo")
        return TensorSharding._from_hlo(text, on, ndim, None).to_named()

    def to_named(self) -> NamedSharding:
        """The sharding itself."""
        return self

    def type_dims(self, shape: Sequence[int]) -> list[str]:
        """The dims as a type shows them."""
        return self._for(shape).type_dims(shape)

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, NamedSharding) and self.spec is other.spec and self.mesh == other.mesh

    def _repr_html_(self) -> str:
        from meshwright.report.notebook import sharding_html

        return sharding_html(self)

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh.short()}, spec={self.spec})"

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedSharding, (self.mesh, self.spec)


def _listed(given: Any) -> Any:
    """What can be read twice, if it is a list of some kind; a single axis stays one."""
    once = isinstance(given, Iterable) and not isinstance(given, str | list | tuple | set | frozenset)
    return tuple(given) if once else given


@lru_cache(maxsize=65536)
def type_sharding(mesh: BaseMesh, dims: tuple[Axes, ...]) -> TensorSharding | None:
    """The sharding of a type whose dims are split so; None if none is. Equal ones are the same object."""
    if not any(dims):
        return None
    return TensorSharding.unchecked(mesh, tuple(DimensionSharding(merged(axes)) for axes in dims))


def _fitted(partitions: Sequence[Any], ndim: int) -> tuple[Any, ...]:
    """Entries for fewer dims: those that split nothing are left out first, from the end and then from the beginning."""
    kept = list(partitions)
    while len(kept) > ndim and kept[-1] is None:
        kept.pop()
    while len(kept) > ndim and kept[0] is None:
        kept.pop(0)
    return tuple(kept[:ndim])


def _axis_for(given: Any, mesh: BaseMesh) -> str:
    """An axis of the mesh as code, if one can be meant by what is given for a spec: of that name, or the first."""
    known = isinstance(given, str) and given in mesh.axis_names
    return "" if given is None or not mesh.axis_names else repr(given if known else mesh.axis_names[0])


def _find_mesh(name: str, given: Any, where: str) -> BaseMesh:
    if given is None:
        given = get_mesh()
    if isinstance(given, BaseMesh) and given.name in (None, name):
        return given if name == (given.name or "mesh") else given.with_(name=name)
    meshes: dict[str, BaseMesh] = {}
    if isinstance(given, BaseMesh):
        meshes = {given.name or "mesh": given}
    elif isinstance(given, Mapping):
        meshes = {str(key): checked_mesh(mesh, "parse") for key, mesh in given.items()}
    elif isinstance(given, Iterable) and not isinstance(given, str):
        found_meshes = list(given)
        meshes = {mesh.name or "mesh": mesh for mesh in found_meshes if isinstance(mesh, BaseMesh)}
        if len(meshes) < len(found_meshes):
            checked_mesh(next((mesh for mesh in found_meshes if not isinstance(mesh, BaseMesh)), None), "parse")
    elif given is not None:
        checked_mesh(given, "parse")
    if name in meshes:
        found = meshes[name]
        return found if name == (found.name or "mesh") else found.with_(name=name)
    raise UnknownMeshError(
        f"There is no mesh {symbol(name)}.",
        where=where,
        why=f"the meshes are {', '.join(map(symbol, meshes))}" if meshes else "no mesh was given, and none is set",
        fix=f"write {' or '.join(map(symbol, meshes))}" if meshes else "with mw.set_mesh(mesh): …",
    )


def _no_devices(mesh: BaseMesh) -> MeshError:
    return MeshError(
        f"{mesh.short()} has no devices.",
        where=here(),
        why="an abstract mesh has axes and sizes only",
        fix=f"mw.make_mesh({mesh.axis_sizes}, {mesh.axis_names})",
    )


def _of_different_kinds(one: BaseMesh, other: BaseMesh) -> bool:
    """Whether both meshes have devices, and none in common for being of another kind."""
    both = isinstance(one, Mesh) and isinstance(other, Mesh) and not one.empty and not other.empty
    return both and one.kind != other.kind  # type: ignore[attr-defined]


def _one_device(sharding: TensorSharding) -> int | None:
    """The only device of a mesh, if it has only one."""
    mesh = sharding.mesh
    return None if mesh.size != 1 else 0 if mesh.order is None else mesh.order[0]


def _type_dim(size: int, axes: Axes) -> str:
    names = [axis_text(axis.short()) for axis in axes]
    return str(size) if not names else f"{size}@{names[0]}" if len(names) == 1 else f"{size}@({','.join(names)})"

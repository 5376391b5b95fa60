"""The sharding of one dim, and the ways of writing one down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from meshwright.core.source import here
from meshwright.errors import ShardingError
from meshwright.sharding.axes import Axes, AxisRef, quoted, total_size
from meshwright.sharding.check import resolve, written
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.spec import read_axis
from meshwright.sharding.text_sdy import WrittenAxis, WrittenDim

_AXES_FIX = 'DimensionSharding((mesh.axis_by_name["x"],))'


class DimensionSharding:
    """The axes that split one dim, major to minor; whether more may be added (open); and when that is decided.

    Equal ones are the same object.

    >>> x, y = AxisRef.full("x", 2), AxisRef.full("y", 4)
    >>> print(DimensionSharding((x, y)), DimensionSharding((x,), is_open=True, priority=1))
    {"x", "y"} {"x", ?}p1
    """

    __slots__ = ("__weakref__", "axes", "is_open", "priority")

    axes: Axes
    is_open: bool
    priority: int | None

    _interned: ClassVar[dict[tuple[Axes, bool, int | None], DimensionSharding]] = {}

    def __new__(
        cls, axes: Iterable[AxisRef] = (), is_open: bool = False, priority: int | None = None
    ) -> DimensionSharding:
        try:
            key = (tuple(axes), is_open, priority)
            found = cls._interned.get(key)
        except TypeError:  # no list, or one of lists
            raise _bad_part(f"the axes {axes!r}", _AXES_FIX) from None
        if found is None:
            _check_parts(*key)
            found = super().__new__(cls)
            for name, value in zip(("axes", "is_open", "priority"), key, strict=True):
                object.__setattr__(found, name, value)
            found = cls._interned.setdefault(key, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a DimensionSharding is immutable; use .with_(…)")

    def __reduce__(self) -> tuple[Any, ...]:
        return DimensionSharding, (self.axes, self.is_open, self.priority)

    def with_(self, **changes: Any) -> DimensionSharding:
        """This one with some fields replaced."""
        fields = {"axes": self.axes, "is_open": self.is_open, "priority": self.priority}
        return DimensionSharding(**{**fields, **changes})

    @property
    def shards(self) -> int:
        """How many ways the dim is split."""
        return total_size(self.axes)

    def __str__(self) -> str:
        inside = ", ".join([*map(str, self.axes), *["?"] * self.is_open])
        return f"{{{inside}}}" + ("" if self.priority is None else f"p{self.priority}")

    def __repr__(self) -> str:
        return f"DimensionSharding({self})"


def _check_parts(axes: tuple[Any, ...], is_open: Any, priority: Any) -> None:
    if not all(isinstance(axis, AxisRef) for axis in axes):
        raise _bad_part(f"the axes {axes!r}", _AXES_FIX)
    if not isinstance(is_open, bool):
        raise _bad_part(f"is_open={is_open!r}", "is_open=True")
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise _bad_part(f"priority={priority!r}", "priority=1")


def _bad_part(what: str, fix: str) -> ShardingError:
    return ShardingError(
        f"A DimensionSharding cannot have {what}.",
        where=here(),
        why="it is made of AxisRefs, whether it is open, and an integer priority or None",
        fix=fix,
    )


def written_dim(dim: Any) -> WrittenDim:
    """A dim given as a DimensionSharding, as axes, or as None."""
    if isinstance(dim, DimensionSharding):
        return WrittenDim(tuple(map(written, dim.axes)), dim.is_open, dim.priority)
    return WrittenDim(written_axes(() if dim is None else dim))


def written_axes(axes: str | AxisRef | Iterable[str | AxisRef]) -> tuple[WrittenAxis, ...]:
    """Axes given by name or reference, one or several."""
    given = tuple(axes) if isinstance(axes, Iterable) and not isinstance(axes, str) else (axes,)
    if not all(isinstance(axis, str | AxisRef) for axis in given):
        raise ShardingError(
            f"A tensor cannot be sharded over {axes!r}.",
            where=here(),
            why='axes are given by name, "x", or as a part, "x:(1)2", one or several',
            fix='"x", or ("x", "y:(1)2")',
        )
    return tuple(read_axis(axis) if isinstance(axis, str) else written(axis) for axis in given)


def check_refs(mesh: BaseMesh, things: Iterable[Any]) -> None:
    """Raise if an AxisRef among axes, dims, and lists of them is of an axis that the mesh has in another size."""
    for thing in things:
        if isinstance(thing, DimensionSharding):
            check_refs(mesh, thing.axes)
        elif isinstance(thing, tuple | list | set | frozenset):
            check_refs(mesh, thing)
        elif isinstance(thing, AxisRef):
            own = mesh.axis_by_name.get(thing.name)
            if own is not None and own.size != thing.whole:
                raise ShardingError(
                    f"The axis {thing} is of another mesh, where {quoted(thing.name)} has size {thing.whole}.",
                    where=here(),
                    why=f"the mesh of the sharding is {mesh}",
                    fix=f"mesh.axis_by_name[{thing.name!r}], or the name alone",
                )


def named_axis(mesh: BaseMesh, text: str) -> WrittenAxis:
    """An axis of a partition spec: a name of the mesh's, or a part of one."""
    return WrittenAxis(text) if text in mesh.axis_by_name else read_axis(text)


def axis_set(mesh: BaseMesh, names: Iterable[str]) -> tuple[WrittenAxis, ...]:
    """A set of axes in the order of the mesh; those it does not have are last."""
    return ordered(mesh, [named_axis(mesh, name) for name in names])


def ordered(mesh: BaseMesh, axes: Iterable[WrittenAxis]) -> tuple[WrittenAxis, ...]:
    """Axes in the order of the mesh, whatever order they are given in; those it does not have are last."""
    place = {name: index for index, name in enumerate(mesh.axis_names)}
    return tuple(sorted(axes, key=lambda a: (place.get(a.name, len(place)), a.name, a.pre or 1, a.size or 0)))


def resolved(
    mesh: BaseMesh, dims: Iterable[WrittenDim], replicated: Sequence[WrittenAxis], unreduced: Sequence[WrittenAxis]
) -> tuple[tuple[DimensionSharding, ...], Axes, Axes]:
    """The parts of a sharding that were written, once they are checked."""
    found = tuple(DimensionSharding(resolve(mesh, dim.axes), dim.is_open, dim.priority) for dim in dims)
    return found, resolve(mesh, replicated), resolve(mesh, unreduced)

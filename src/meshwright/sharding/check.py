"""What a sharding must satisfy: each rule of the representation with its own error, in about the order of Shardy's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from meshwright.core.source import here
from meshwright.errors import ShapeError, ShardingError
from meshwright.sharding.axes import AxisRef, quoted
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.text_sdy import WrittenAxis, WrittenDim, mesh_text

Where = Callable[[int], str]


class UnknownMeshError(ShardingError):
    """A mesh that nobody declared."""


class MaximalError(ShardingError):
    """A sharding on a single device that says more than which one."""


class RankError(ShardingError):
    """More or fewer dim shardings than the tensor has dims."""


class PriorityError(ShardingError):
    """A priority that is negative, or on a dim where it has no effect."""


class UnknownAxisError(ShardingError):
    """An axis that the mesh does not have."""


class RepeatedAxisError(ShardingError):
    """An axis or sub-axis that appears twice."""


class MergeableAxesError(ShardingError):
    """Two consecutive sub-axes that are one bigger one."""


class AxisOrderError(ShardingError):
    """Replicated or unreduced axes that are not in the order of the mesh."""


class SubAxisError(ShardingError):
    """A sub-axis that is no part of its axis, or all of it."""


class OverlapError(ShardingError):
    """Two sub-axes that share a part."""


def check_sharding(
    mesh: BaseMesh,
    dims: Sequence[WrittenDim],
    replicated: Sequence[WrittenAxis],
    unreduced: Sequence[WrittenAxis],
    where: Where,
) -> None:
    """Raise the error of the first rule that is broken."""
    if mesh.is_maximal and (dims or replicated or unreduced):
        raise MaximalError(
            "A sharding on a single device has dims or axes.",
            where=where((*(d.at for d in dims), *(a.at for a in (*replicated, *unreduced)))[0]),
            why="the whole tensor, whatever its rank, is on that device",
            fix=f"sharding<{mesh.reference()}, []>",
        )
    seen: set[tuple[str, int | None, int | None]] = set()
    by_name: dict[str, list[WrittenAxis]] = {}
    for position, dim in enumerate(dims):
        _check_priority(position, dim, where)
        _check_axes(mesh, dim.axes, seen, by_name, where)
    for key, axes in (("replicated", replicated), ("unreduced", unreduced)):
        _check_order(mesh, key, axes, where)
        _check_axes(mesh, axes, seen, by_name, where)
    for name, used in by_name.items():
        if len(used) > 1 or used[0].pre is not None:
            _check_parts(name, mesh.axis_by_name[name].size, used, where)


def _check_priority(position: int, dim: WrittenDim, where: Where) -> None:
    if dim.priority is not None and dim.priority < 0:
        raise PriorityError(
            f"Dim {position} has the priority {dim.priority}.",
            where=where(dim.at),
            why="priorities start at 0, the highest, and increase",
            fix=f"p{-dim.priority}" if dim.axes or dim.is_open else "{} without a priority",
        )
    if dim.priority is not None and not dim.axes and not dim.is_open:
        raise PriorityError(
            f"Dim {position} is empty and closed, and has the priority {dim.priority}.",
            where=where(dim.at),
            why="there is nothing in it to propagate, now or later",
            fix=f"{{}}, or {{?}}p{dim.priority} if it may be sharded further",
        )


def _check_name(mesh: BaseMesh, axis: WrittenAxis, where: Where) -> None:
    if axis.name not in mesh.axis_by_name:
        raise UnknownAxisError(
            f"The mesh has no axis {quoted(axis.name)}.",
            where=where(axis.at),
            why=f"the mesh is {_axes_text(mesh)}",
            fix=f"use {' or '.join(map(quoted, mesh.axis_names))}" if mesh.axis_names else "leave the axis out",
        )


def _check_axes(
    mesh: BaseMesh,
    axes: Sequence[WrittenAxis],
    seen: set[tuple[str, int | None, int | None]],
    by_name: dict[str, list[WrittenAxis]],
    where: Where,
) -> None:
    before: WrittenAxis | None = None
    for axis in axes:
        _check_name(mesh, axis, where)
        if axis[:3] in seen:
            raise RepeatedAxisError(
                f"The axis {axis} appears twice.",
                where=where(axis.at),
                why="an axis shards one dim, or is replicated, or unreduced: it appears once in a sharding",
                fix=f"leave out one {axis}",
            )
        seen.add(axis[:3])
        by_name.setdefault(axis.name, []).append(axis)
        if before is not None and _mergeable(before, axis):
            assert before.pre is not None and before.size is not None and axis.size is not None
            size, full = before.size * axis.size, mesh.axis_by_name[axis.name].size
            whole = before.pre == 1 and size == full
            both = WrittenAxis(axis.name) if whole else WrittenAxis(axis.name, before.pre, size)
            is_part = before.pre >= 1 and size > 1 and full % (before.pre * size) == 0
            raise MergeableAxesError(
                f"The sub-axes {before} and {axis} are consecutive.",
                where=where(before.at),
                why=f"sub-axes are as big as possible, and together these two are {both}",
                fix=str(both) if is_part else _example_part(axis.name, full),
            )
        before = axis


def _mergeable(first: WrittenAxis, second: WrittenAxis) -> bool:
    if first.pre is None or first.size is None or second.pre is None:
        return False
    return first.name == second.name and first.pre * first.size == second.pre


def _check_order(mesh: BaseMesh, key: str, axes: Sequence[WrittenAxis], where: Where) -> None:
    for axis in axes:
        _check_name(mesh, axis, where)
    position = {name: index for index, name in enumerate(mesh.axis_names)}
    ordered = sorted(axes, key=lambda axis: (position[axis.name], *_extent(axis)))
    if ordered != list(axes):
        first = next(axis for axis, right in zip(axes, ordered, strict=True) if axis != right)
        raise AxisOrderError(
            f"The {key} axes {', '.join(map(str, axes))} are not in the order of the mesh.",
            where=where(first.at),
            why=f"the mesh is {_axes_text(mesh)}, and parts of one axis go by their pre-size",
            fix=f"{key}={{{', '.join(dict.fromkeys(map(str, ordered)))}}}",
        )


def _extent(axis: WrittenAxis) -> tuple[int, float]:
    return (1, inf) if axis.pre is None or axis.size is None else (axis.pre, axis.size)


def _check_parts(name: str, whole: int, used: list[WrittenAxis], where: Where) -> None:
    part = next((axis for axis in used if axis.pre is not None), None)
    full = next((axis for axis in used if axis.pre is None), None)
    if full is not None and part is not None:
        raise OverlapError(
            f"The axis {full} is used, and so is its part {part}.",
            where=where(part.at),
            why=f"{full} contains {part}",
            fix=f"leave out one of {full}, {part}",
        )
    before: WrittenAxis | None = None
    for axis in sorted(used, key=_extent):
        check_part(axis, whole, where)
        if before is not None:
            assert before.pre and before.size and axis.pre and axis.size
            if axis.pre < before.pre * before.size:
                raise _overlap(AxisRef(*before[:3], whole), AxisRef(*axis[:3], whole), where(axis.at))  # type: ignore[arg-type]
        before = axis


def check_part(axis: WrittenAxis, whole: int, where: Where) -> None:
    """Check that a sub-axis as written is a proper part of an axis of size ``whole``."""
    if axis.pre is None or axis.size is None:
        return
    fix = _example_part(axis.name, whole)
    if axis.pre < 1:
        raise SubAxisError(
            f"The sub-axis {axis} has pre-size {axis.pre}.",
            where=where(axis.at),
            why="the pre-size is the product of all sizes to its left, at least 1",
            fix=fix,
        )
    if axis.size <= 1:
        raise SubAxisError(
            f"The sub-axis {axis} has size {axis.size}.",
            where=where(axis.at),
            why="a sub-axis splits over at least 2 devices",
            fix=fix,
        )
    if whole % (axis.pre * axis.size):
        raise SubAxisError(
            f"The sub-axis {axis} is no part of {quoted(axis.name)}={whole}.",
            where=where(axis.at),
            why=f"pre-size * size is {axis.pre * axis.size}, which does not divide {whole}",
            fix=fix,
        )
    if axis.size == whole:
        raise SubAxisError(
            f"The sub-axis {axis} is all of {quoted(axis.name)}={whole}.",
            where=where(axis.at),
            why="a sub-axis is a proper part; the whole axis is written by its name",
            fix=quoted(axis.name),
        )


def _example_part(name: str, whole: int) -> str:
    factor = next((k for k in range(2, whole) if whole % k == 0), None)
    return quoted(name) if factor is None else f"{quoted(name)}:(1){factor}, or {quoted(name)}"


def _overlap(first: AxisRef, second: AxisRef, where: str) -> OverlapError:
    shared, left = first.overlap(second), first.prefix_without(second)
    return OverlapError(
        f"The sub-axes {first} and {second} overlap.",
        where=where,
        why=f"{shared} is part of both" if shared is not None else f"no reshape of {quoted(first.name)} has them both",
        fix=f"{left} in place of {first}" if left is not None else f"leave out one of {first}, {second}",
    )


def checked_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a tensor as a tuple of ints."""
    if type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape):
        return shape
    listed = isinstance(shape, Iterable) and not isinstance(shape, str | bytes)
    sizes = [size.__index__() if hasattr(size, "__index__") else -1 for size in shape] if listed else [-1]
    if any(size < 0 for size in sizes):
        raise ShapeError(
            f"{shape!r} is not a shape.",
            where=here(),
            why="a shape is a tuple of sizes, whole numbers of at least 0",
            fix=f"({shape},)" if isinstance(shape, int) and shape >= 0 else "(64, 64)",
        )
    return tuple(sizes)


def checked_count(value: Any, what: str) -> int:
    """A number of dims or axes."""
    if not hasattr(value, "__index__") or isinstance(value, bool) or value.__index__() < 0:
        raise ShardingError(
            f"{value!r} is no number of {what}.",
            where=here(),
            why="it is a whole number of at least 0",
            fix="2",
        )
    return int(value.__index__())


def checked_mesh(mesh: Any, taker: str) -> BaseMesh:
    """A mesh, which comes first."""
    if not isinstance(mesh, BaseMesh):
        raise ShardingError(
            f"{taker} cannot take {mesh!r} for a mesh.",
            where=here(),
            why="the mesh comes first, how it is used second",
            fix='mw.make_mesh((2, 4), ("x", "y"))',
        )
    return mesh


def rank_error(sharding: str, rank: int, shape: Sequence[int], where: str) -> RankError:
    """The error for a sharding of ``rank`` dims on a tensor of another rank."""
    return RankError(
        f"The sharding has {rank} dim{'s' * (rank != 1)} and the tensor {len(shape)}.",
        where=where,
        why=f"{sharding} says for each dim how it is sharded, and the shape is {tuple(shape)}",
        fix=f"write {len(shape)} dim sharding{'s' * (len(shape) != 1)}, {{}} for a dim that is not sharded",
    )


def _axes_text(mesh: BaseMesh) -> str:
    return mesh_text(tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), None)


def written(axis: AxisRef) -> WrittenAxis:
    """An axis as it would be written."""
    return WrittenAxis(axis.name) if axis.is_full else WrittenAxis(axis.name, axis.pre, axis.size)


def resolve(mesh: BaseMesh, axes: Iterable[WrittenAxis]) -> tuple[AxisRef, ...]:
    """The axes that were written, once they are checked."""
    found = []
    for axis in axes:
        full = mesh.axis_by_name[axis.name]
        found.append(full if axis.pre is None or axis.size is None else full.part(axis.pre, axis.pre * axis.size))
    return tuple(found)

"""The axes that a name stands for inside of a ``shard_map``: whole ones, or the parts they are cut into."""

from __future__ import annotations

from collections.abc import Iterable, Set
from math import prod
from typing import Any

from meshwright.api import direct
from meshwright.core.axis_names import AxisPart, axis_part
from meshwright.core.source import here
from meshwright.core.trace import Manual, state
from meshwright.errors import AxisNameError, MeshError


class AxisCutNeeded(Exception):
    """A part of an axis was named that the mesh is not cut at yet; ``shard_map`` catches it and starts again."""

    def __init__(self, name: str, before: int, size: int) -> None:
        super().__init__(name)
        self.cut = (name, before, size)


def _manual(op: str, axis_name: Any) -> Manual:
    if direct.state.place is not None:
        raise MeshError(
            f"{op} over {axis_name!r} is used in a kernel.",
            where=here(),
            why="the body of a kernel is run by each device on its own; devices exchange data by copies and signals",
            fix=f"lax.{op} on what pl.pallas_call returns, or pltpu.async_remote_copy in the kernel",
        )
    if state.manual is None:
        raise AxisNameError(
            f"{op} over {axis_name!r} is used outside of a shard_map.",
            where=here(),
            why="a collective is what the devices of a mesh compute together, each running the function of a shard_map",
            fix=f"mw.shard_map(f, mesh=mesh, in_specs=…, out_specs=…)(x), where f calls lax.{op};"
            f" over a batch, mw.vmap(f, axis_name={axis_name!r})(x)",
        )
    return state.manual


def resolve(
    op: str, axis_name: Any, ordered: bool = True, before: str = "x, ", after: str = ""
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The axes (whole ones, or the parts they are cut into) that a name stands for, from major to minor, and sizes.

    A function that is not ``ordered`` takes axes in any order. ``before`` and ``after`` them stand its other arguments,
    in errors that show a call.
    """

    def call(axes: str | tuple[str, ...]) -> str:
        return f"lax.{op}({before}{axes!r}{after})"

    manual = _manual(op, axis_name)
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise MeshError(
            f"{op} is given {axis_name!r} as its axis.",
            where=here(),
            why="an axis is named by a string, several by a tuple of strings",
            fix=call(next(iter(manual.axes))),
        )
    if isinstance(names, Set) and len(names) > 1:
        if ordered:
            raise MeshError(
                f"{op} is given the set {axis_name!r} as its axes.",
                where=here(),
                why="the first axis is the major one, and a set has no first",
                fix=call(tuple(name for name in manual.axes if name in names)),
            )
        names = sorted(names)
    found: list[str] = []
    for name in names:
        found += manual_axes(name, manual, op)
    repeated = next((axis for axis in found if found.count(axis) > 1), None)
    if repeated is not None:
        raise MeshError(
            f"{op} names the mesh axis {repeated!r} twice.",
            where=here(),
            why="the devices along an axis take part once",
            fix=call(_widest(names, manual, op)),
        )
    return tuple(found), tuple(manual.axes[axis] for axis in found)


def _widest(names: Iterable[str], manual: Manual, op: str) -> str | tuple[str, ...]:
    """The names without those that others of them contain."""
    axes = {name: set(manual_axes(name, manual, op)) for name in names}
    kept = tuple(name for name in axes if not any(axes[name] < other for other in axes.values()))
    return kept[0] if len(kept) == 1 else kept


def manual_axes(name: str, manual: Manual, op: str) -> tuple[str, ...]:
    """The manual axes that one name stands for."""
    if name in manual.axes:
        return (name,)
    if name in manual.parts:
        return manual.parts[name]
    whole, before, size = _part(name)
    known = tuple(dict.fromkeys(_part(axis)[0] for axis in manual.axes))
    if whole in known and before and (manual.mesh is None or whole not in manual.mesh.axis_names):
        why = f"{whole!r} is the axis of a vmap, and parts are of mesh axes"
    elif whole in known and before:
        sizes = [(_part(axis), manual.axes[axis]) for axis in manual.parts.get(whole, (whole,))]
        total = prod(n for _, n in sizes)
        if (before, size) == (1, total):
            return manual.parts.get(whole, (whole,))
        if total % (before * size) == 0 and size > 1:
            inside = tuple(
                axis
                for axis in manual.parts.get(whole, ())
                if _part(axis)[1] >= before and _part(axis)[1] * manual.axes[axis] <= before * size
            )
            if prod(manual.axes[axis] for axis in inside) == size:
                return inside
            raise AxisCutNeeded(whole, before, size)
        why = f"{whole!r} has size {total}, which has no part of size {size} after one of size {before}"
    elif manual.mesh is not None and whole in manual.mesh.axis_names:
        why = f"the mesh has it, but the function is written for {', '.join(known)} only"
    elif ":(" in name:
        why = "a part of an axis is written 'x:(before)size', with positive numbers"
    else:
        why = f"the axes here are {', '.join(known)}"
    raise AxisNameError(
        f"{op} names the mesh axis {name!r}, which is not there.",
        where=here(),
        why=why,
        fix=f"axis_names={{{', '.join(map(repr, (*known, whole)))}}} in the shard_map"
        if "the mesh has it" in why
        else " or ".join(map(repr, known)),
    )


def _part(name: str) -> AxisPart:
    """``x:(1)2`` as its axis, what lies before it, and its size; zeros for a whole axis."""
    return axis_part(name) or AxisPart(name, 0, 0)

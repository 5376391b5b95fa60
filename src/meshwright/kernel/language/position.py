"""Where the running body is on its mesh: ``lax.axis_index`` and ``lax.axis_size`` in a kernel."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from meshwright.api import direct
from meshwright.core.source import here
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import KernelTask, current


class TaskPosition:
    """The place of the running task: along a mesh axis, along several together, along the cores of a device."""

    def axis_index(self, axis_name: Any) -> Any:
        """The position along one axis, or along several, the first of them major."""
        task = current("lax.axis_index")
        position = 0
        for name in _names(task, axis_name, "axis_index", ordered=True):
            at, size = _along(task, name)
            position = position * size + at
        return direct.integer(position)

    def axis_size(self, axis_name: Any) -> int:
        """How many there are along one axis, or along several together."""
        task = current("lax.axis_size")
        count = 1
        for name in _names(task, axis_name, "axis_size", ordered=False):
            count *= _along(task, name)[1]
        return count


def _names(task: KernelTask, axis_name: Any, op: str, ordered: bool) -> list[str]:
    several = isinstance(axis_name, tuple | list | Set)
    names = list(axis_name) if several else [axis_name]
    why = ""
    if not all(isinstance(name, str) for name in names):
        why = "an axis is named by a string, several by a tuple of strings"
    elif isinstance(axis_name, Set) and len(names) > 1 and ordered:
        why = "the first axis is the major one, and a set has no first"
    elif len(set(names)) < len(names):
        why = "the devices along an axis take part once"
    if why:
        known = tuple(task.machine.mesh)
        raise KernelError(
            f"{op} is given {axis_name!r} as its axes, in a kernel.",
            where=here(),
            why=why,
            fix=f"lax.{op}({known if len(known) != 1 else known[0]!r})",
        )
    return names


def _along(task: KernelTask, name: str) -> tuple[int, int]:
    """A task's coordinate along an axis, and the axis's size."""
    machine = task.machine
    if name in machine.mesh:
        return task.coordinates[name], machine.mesh[name]
    if name == machine.core_axis:
        return task.core, machine.cores
    if name in machine.grid_names and task.grids:
        axis = machine.grid_names.index(name)
        return task.grids[0][0][axis], task.grids[0][1][axis]
    raise KernelError(
        f"A kernel asks for the mesh axis {name!r}.",
        where=here(),
        why=f"it runs over {', '.join(map(repr, machine.mesh)) or 'no axis'}",
        fix="call it in a shard_map over that axis",
    )

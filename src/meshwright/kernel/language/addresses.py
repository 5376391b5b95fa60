"""Which device a ``device_id`` names."""

from __future__ import annotations

from typing import Any

from meshwright.core.source import here
from meshwright.kernel.language.indexing import as_int
from meshwright.kernel.language.spaces import DeviceIdType
from meshwright.kernel.run.faults import DeviceIdError
from meshwright.kernel.run.tasks import KernelTask


def device_of(task: KernelTask, device_id: Any, kind: DeviceIdType = DeviceIdType.MESH) -> tuple[int, int]:
    """The device and core that ``device_id`` names, seen from a task."""
    machine = task.machine
    if device_id is None:
        return task.device, task.core
    if kind is DeviceIdType.LOGICAL:
        if isinstance(device_id, tuple | list | dict):
            raise _wrong(task, device_id, "a logical id is one number", "device_id_type=pltpu.DeviceIdType.MESH")
        return _checked(task, as_int(device_id), machine.size, device_id), task.core
    if isinstance(device_id, dict):
        return _by_axes(task, device_id)
    parts = list(device_id) if isinstance(device_id, tuple | list) else [device_id]
    if len(parts) != len(machine.sizes):
        raise _wrong(
            task,
            device_id,
            f"the mesh has {len(machine.sizes)} axes: {', '.join(machine.mesh)}",
            "one coordinate per axis, or a dict: device_id={'x': i}",
        )
    flat = 0
    for part, size in zip(parts, machine.sizes, strict=True):
        flat = flat * size + _checked(task, as_int(part), size, device_id)
    return flat, task.core


def _by_axes(task: KernelTask, device_id: dict[Any, Any]) -> tuple[int, int]:
    """Axes not named keep the task's own coordinates; joint axes share one number, the last running fastest."""
    machine = task.machine
    if len(device_id) == len(machine.mesh) == 1 and next(iter(device_id)) in machine.mesh:
        (value,) = device_id.values()
        return _checked(task, as_int(value), machine.size, device_id), task.core
    place = dict(task.coordinates)
    core = task.core
    for axes, value in device_id.items():
        if axes == machine.core_axis and axes not in machine.mesh:
            core = _checked(task, as_int(value), machine.cores, device_id)
            continue
        names = axes if isinstance(axes, tuple) else (axes,)
        unknown = [name for name in names if name not in machine.mesh]
        if unknown:
            known = ", ".join(repr(name) for name in machine.mesh) or "none"
            raise _wrong(
                task, device_id, f"{unknown[0]!r} is no axis of the mesh; its axes are {known}", "another axis"
            )
        size = 1
        for name in names:
            size *= machine.mesh[name]
        flat = _checked(task, as_int(value), size, device_id)
        for name in reversed(names):
            place[name] = flat % machine.mesh[name]
            flat //= machine.mesh[name]
    device = 0
    for name, size in machine.mesh.items():
        device = device * size + place[name]
    return device, core


def _checked(task: KernelTask, value: int, size: int, device_id: Any) -> int:
    if not 0 <= value < size:
        raise _wrong(task, device_id, f"{value} is not from 0 to {size - 1}", "lax.rem(my_id + 1, num_devices)")
    return value


def _wrong(task: KernelTask, device_id: Any, why: str, fix: str) -> DeviceIdError:
    return DeviceIdError(f"{task.name} names device {_show(device_id)}.", where=here(), why=why, fix=fix)


def _show(device_id: Any) -> str:
    if isinstance(device_id, dict):
        return "{" + ", ".join(f"{k!r}: {int(v)}" for k, v in device_id.items()) + "}"
    if isinstance(device_id, tuple | list):
        return "(" + ", ".join(str(int(v)) for v in device_id) + ")"
    return str(int(device_id))

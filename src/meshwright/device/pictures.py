"""Pictures of device programs: the tree of a device map, a program in the colours of its devices, Gantt charts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.chart.views import View
from meshwright.device.device_map import DeviceMap
from meshwright.device.function import Function
from meshwright.device.simulation import DeviceSimulation, numbers_text
from meshwright.errors import DeviceError
from meshwright.report.listing import Marked, listing_view
from meshwright.report.schedules import schedule_view
from meshwright.report.trees import shortened, tree_view
from meshwright.simulate.pipelines import Schedule

_TENSOR = re.compile(r"Tensor\[(?:\w+, )?\([^()]*\), ([^\]\s]+)\]")
_MOST_COLORS = 12  # more devices than that are told apart by their groups


def draw(what: Any, device_map: Any = None, *, by: str | None = None, width: int | None = None) -> View:
    """A picture of a device map, a program, a schedule or a simulation: print it, ``show()`` it, ``to_html(path)``.

    A map is a tree; a program its text, coloured by devices, or (``by="group"``) by the keys of ``device_map`` that
    they stand below; schedules and simulations are Gantt charts, of which ``width`` is the characters of a line.

    >>> from meshwright import dist
    >>> dist.draw(dist.DeviceMap({1: [1, 3], 2: [2, 4]}))
    4 devices, 2 levels
    ├─ 1
    │  ├─ 1
    │  └─ 3
    └─ 2
       ├─ 2
       └─ 4
    """
    if isinstance(what, DeviceSimulation):
        return what.chart().view(width)
    if isinstance(what, Schedule):
        return schedule_view(what)
    if isinstance(what, Function):
        return _draw_function(what, what.device_map if device_map is None else DeviceMap(device_map), by)
    if isinstance(what, DeviceMap | Mapping | Sequence) and not isinstance(what, str):
        return _draw_map(DeviceMap(what))
    raise DeviceError(
        f"There is no picture of a {type(what).__name__}.",
        why="a picture is drawn of a DeviceMap, a Function, a Schedule or a Simulation",
        fix="dist.draw(dist.DeviceMap({1: [1, 3], 2: [2, 4]}))",
    )


# Device maps


def _draw_map(devices: DeviceMap) -> View:
    count, depth = len(devices.all_devices()), devices.depth
    title = f"{count:,} device{'s' * (count != 1)}, {depth} level{'s' * (depth != 1)}"
    return tree_view(title, shortened(devices), len(devices))


# Programs


def _draw_function(fn: Function, device_map: DeviceMap | None, by: str | None) -> View:
    if by not in (None, "device", "group") or (by == "group" and device_map is None):
        raise DeviceError(
            "A program is coloured by its devices or by their groups.",
            why=f"by={by!r}" + ("" if device_map is not None else " and there is no device map"),
            fix='dist.draw(fn, device_map, by="group")',
        )
    text = str(fn).splitlines()
    found = dict.fromkeys(m[1] for line in text for m in _TENSOR.finditer(line))
    grouped = by == "group" or (by is None and device_map is not None and len(found) > _MOST_COLORS)
    group = _groups(device_map) if grouped and device_map is not None else {}
    keys = dict.fromkeys(group.get(device, device) for device in found)
    lines = []
    for line in text:
        parts = [(m.start(1), m.end(1), group.get(m[1], m[1])) for m in _TENSOR.finditer(line)]
        head = line.split(" = ")[0] if " = " in line else ""
        results = {key for start, _, key in parts if start < len(head)}
        lines.append(Marked(line, results.pop() if len(results) == 1 else None, tuple(parts)))
    members: dict[str, list[int]] = {}
    for device in found:
        if device.isdigit():
            members.setdefault(group.get(device, device), []).append(int(device))
    names = [_key_name(key, members.get(key, []), grouped) for key in keys]
    return listing_view(f"{fn.name} on its devices", lines, list(keys), names)


def _groups(device_map: DeviceMap) -> dict[str, str]:
    """For each device, the key of the map that it stands at or below."""
    found: dict[str, str] = {}
    for path in device_map.paths():
        found.setdefault(str(path[-1]), str(path[0]))
    return found


def _key_name(key: str, members: Sequence[int], grouped: bool) -> str:
    if key == "?":
        return "? a device that resolution finds"
    if not key.isdigit():
        return f"device {key}"
    if key == "0":
        return "device 0 (the host)"
    devices = sorted(members) or [int(key)]
    named = f"device{'s' * (len(devices) > 1)} {numbers_text(devices)}"
    return f"group {key}: {named}" if grouped else named

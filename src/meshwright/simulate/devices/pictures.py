"""Pictures of device programs: the tree of a device map, a program in the colours of its devices, Gantt charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.chart.views import View
from meshwright.device.device_map import DeviceMap
from meshwright.device.function import Function
from meshwright.errors import DeviceError
from meshwright.report.devices import device_listing
from meshwright.report.schedules import schedule_view
from meshwright.report.trees import shortened, tree_view
from meshwright.simulate.devices.simulation import DeviceSimulation
from meshwright.simulate.pipelines import Schedule


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
    groups: dict[str, str] = {}  # for each device, the key of the map that it stands at or below
    for path in device_map.paths() if device_map is not None and by != "device" else ():
        groups.setdefault(str(path[-1]), str(path[0]))
    return device_listing(f"{fn.name} on its devices", str(fn).splitlines(), groups, many=by is None)

"""What devices do and when: events, and the rows of a chart they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshwright.chart.amounts import time_text
from meshwright.chart.gantt import Chart, GanttBar, Lane
from meshwright.device.symmetry import SameDevices


class DeviceEvent(NamedTuple):
    """One op on one device; ``nbytes`` is what it makes there."""

    device: int
    name: str
    op: str
    start: float
    seconds: float
    communication: bool
    nbytes: int = 0


def chart_of(events: Sequence[DeviceEvent], seconds: float, same_devices: SameDevices) -> Chart:
    """A chart with two rows for each device, or for several that do the same at the same times."""
    per_device: dict[int, list[DeviceEvent]] = {}
    for event in events:
        if event.seconds:
            per_device.setdefault(event.device, []).append(event)
    groups: dict[tuple[object, ...], list[int]] = {}
    for device in sorted(per_device):
        what = tuple((e.op, e.start, e.seconds, e.communication, e.nbytes) for e in per_device[device])
        groups.setdefault(what, []).append(device)
    lanes = []
    for devices in groups.values():
        every = sorted({other for device in devices for other in same_devices.get(device, (device,))})
        owner = "host" if every == [0] else f"device{'s' * (len(every) > 1)} {numbers_text(every)}"
        for unit, talks in (("compute", False), ("links", True)):
            spans = sorted(
                GanttBar(e.start, e.seconds, e.name, e.op, e.nbytes)
                for e in per_device[devices[0]]
                if e.communication is talks
            )
            if spans:
                lanes.append(Lane(owner, unit, tuple(spans)))
    return Chart(f"{time_text(seconds)} on {_count(groups.values(), same_devices)}", seconds, tuple(lanes))


def _count(groups: Iterable[Sequence[int]], same_devices: SameDevices) -> str:
    number = len(
        {other for group in groups for device in group if device for other in same_devices.get(device, (device,))}
    )
    return f"{number:,} device{'s' * (number != 1)}"


def numbers_text(numbers: Sequence[int], most: int = 3) -> str:
    """Numbers in order, runs of them as ranges; of many runs the first, and how many numbers there are.

    >>> numbers_text([1, 2, 3, 7]), numbers_text(range(1, 40, 2))
    ('1-3, 7', '1, … (20)')
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts) if len(texts) <= most else f"{texts[0]}, … ({len(numbers):,})"

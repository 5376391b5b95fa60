"""Simulation of resolved programs: when each op runs, on which device, and what memory it takes.

`device.queues` finds out when each op runs and what memory holds then; this is what it found, and its pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any, NamedTuple, Protocol

from meshwright.chart.amounts import numbers_text, size_text, time_text
from meshwright.chart.gantt import Chart, Charted, GanttBar, Lane
from meshwright.chart.page import Cell, Figure, Part, table_part
from meshwright.device.device_map import Devices
from meshwright.device.function import DeviceEqn
from meshwright.device.symmetry import SameDevices, whole_of


class DeviceEvent(NamedTuple):
    """One op on one device; ``nbytes`` is what it makes there."""

    device: int
    name: str
    op: str
    start: float
    seconds: float
    communication: bool
    nbytes: int = 0


class Assumptions(Protocol):
    """What ops cost, and what may happen at once."""

    @property
    def overlap(self) -> bool: ...
    @property
    def reuses(self) -> bool: ...

    def seconds(self, eqn: DeviceEqn) -> dict[int, float]:
        """Time on each device that takes part."""
        ...

    def is_communication(self, eqn: DeviceEqn) -> bool: ...

    def links(self, eqn: DeviceEqn) -> tuple[Hashable, ...]:
        """What the op has for itself while it communicates, other than its devices."""
        ...

    def in_place(self, eqn: DeviceEqn) -> bool:
        """Whether the results take the memory of operands."""
        ...


class Role(NamedTuple):
    """What devices did: memory, busy time, and the events in order."""

    peak_bytes: dict[int, int]
    base_bytes: dict[int, int]
    busy_seconds: dict[int, float]
    link_seconds: dict[int, float]
    events: list[DeviceEvent]

    def moved(self, written: int, device: int) -> Role:
        """The same of one device, under the number of another."""

        def one(table: dict[int, Any]) -> dict[int, Any]:
            return {device: table[written]} if written in table else {}

        events = [event._replace(device=device) for event in self.events if event.device == written]
        return Role(one(self.peak_bytes), one(self.base_bytes), one(self.busy_seconds), one(self.link_seconds), events)


@dataclass
class RoleTable:
    """The devices that one stands for, in sets that did the same; what one set did is found when it is asked for."""

    sets: Mapping[int, Sequence[Devices]] = field(default_factory=dict)
    measure: Callable[[int, int], Role] | None = None
    known: dict[int, Role] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return RoleTable, ()  # what is asked for later is found from the program, which does not travel

    def others(self, written: int) -> list[tuple[int, Devices]]:
        """The sets that did not do the same as the device that stands for them, each with one of them."""
        return [(part.least, part) for part in self.sets.get(written, ())[1:]]

    def lead(self, device: int) -> tuple[int, int]:
        """The device that did the same as one, and the one that is written; itself where none stands for it."""
        for written, parts in self.sets.items():
            for n, part in enumerate(parts):
                if device in part:
                    return (part.least if n else written), written
        return device, device

    def of(self, device: int) -> Role:
        """What a device did that another stands for."""
        if device not in self.known:
            assert self.measure is not None
            self.known[device] = self.measure(device, self.lead(device)[1])
        return self.known[device]


class ByDevice(dict[int, Any]):
    """A number for each device that is simulated; those it stands for can be asked for, too."""

    def __init__(self, found: Mapping[int, Any], roles: RoleTable, name: str) -> None:
        super().__init__(found)
        self.roles, self.name = roles, name

    def __missing__(self, device: int) -> Any:
        lead, written = self.roles.lead(device)
        if lead == written:
            if lead == device:
                raise KeyError(device)
            return self[written]
        return getattr(self.roles.of(lead), self.name).get(lead, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@dataclass
class DeviceSimulation(Charted):
    """The outcome: ``seconds`` in all, memory and busy time per device, and the events in order.

    Where devices that do the same are simulated once, ``alike`` are those that each one stands for; what any of them
    did can be asked for: ``found.peak_bytes[2]``.

    >>> from meshwright import dist, hardware
    >>> fn = dist.parse("def f(w: Tensor[(64, 64), 0], x: Tensor[(64, 64), 0]): y = MatMul(x, w) z = tanh(y) return z")
    >>> found = dist.simulate(dist.data_parallel(fn, {"x": 0}), [1, 2], hardware.Topology("h100", 2), steady=True)
    >>> print(found.gantt(width=48))
    devices 1-2 compute |MMMMMMMMMMMMMMttttttt| 100%
                         0             14.7 ns
    M MatMul, t tanh, · idle
    """

    seconds: float
    peak_bytes: dict[int, int]
    base_bytes: dict[int, int]
    busy_seconds: dict[int, float]
    link_seconds: dict[int, float] = field(default_factory=dict)
    events: list[DeviceEvent] = field(default_factory=list)
    same_devices: SameDevices = field(default_factory=dict, repr=False, compare=False)
    roles: RoleTable = field(default_factory=lambda: RoleTable(), repr=False, compare=False)

    @classmethod
    def of(
        cls,
        seconds: float,
        found: Role,
        sets: Mapping[int, Sequence[Devices]] | None = None,
        measure: Callable[[int, int], Role] | None = None,
    ) -> DeviceSimulation:
        """The outcome of devices that are simulated; ``measure`` finds what another did that one stands for."""
        roles = RoleTable(sets or {}, measure)
        same_devices: SameDevices = {written: whole_of(parts) for written, parts in roles.sets.items()}
        return cls(
            seconds,
            ByDevice(found.peak_bytes, roles, "peak_bytes"),
            ByDevice(found.base_bytes, roles, "base_bytes"),
            ByDevice(found.busy_seconds, roles, "busy_seconds"),
            ByDevice(found.link_seconds, roles, "link_seconds"),
            found.events,
            same_devices if any(len(devices) > 1 for devices in same_devices.values()) else {},
            roles,
        )

    @property
    def bubble_fraction(self) -> float:
        """The part of all devices' time in which they do not compute; the host (device 0) counts if it is alone."""
        shares = self._shares()
        counted = {d: len(shares.get(d, (d,))) for d in {**self.busy_seconds, **shares}}
        counted = {device: count for device, count in counted.items() if device} or counted
        most = self.seconds * sum(counted.values())
        return 1 - sum(count * self.busy_seconds[d] for d, count in counted.items()) / most if most else 0.0

    def _shares(self) -> SameDevices:
        """Devices, one for each set that did the same, and the set."""
        found = dict(self.same_devices)
        for written, parts in self.roles.sets.items():
            found[written] = parts[0]
            found.update(self.roles.others(written))
        return found

    def agrees(self, each: DeviceSimulation) -> bool:
        """Whether every device does the same at the same pace as where each is simulated."""
        tables = ("peak_bytes", "busy_seconds", "link_seconds")
        return isclose(self.seconds, each.seconds) and all(
            isclose(getattr(self, name)[device], value)
            for name in tables
            for device, value in getattr(each, name).items()
        )

    @property
    def timeline(self) -> list[DeviceEvent]:
        return self.events

    # Pictures

    def page_figures(self) -> list[Figure]:
        most = max(self.peak_bytes.values(), default=0)
        return [
            ("in all", time_text(self.seconds), ""),
            ("idle", f"{self.bubble_fraction:.1%}", "of the devices' time"),
            ("memory", size_text(most), "the most that a device holds"),
        ]

    def page_parts(self) -> list[Part]:
        shares = self._shares()
        same: dict[tuple[str, ...], tuple[list[float], set[int]]] = {}  # by what is shown
        for device in {**self.busy_seconds, **shares}:
            sends = device in self.link_seconds or device not in self.busy_seconds  # the latter: as one that it is like
            links = self.link_seconds[device] if sends else 0.0
            busy, peak = self.busy_seconds[device], self.peak_bytes[device]
            texts = time_text(busy), time_text(links), size_text(peak)
            same.setdefault(texts, ([busy, links, peak], set()))[1].update(shares.get(device, (device,)))
        rows: list[list[Cell]] = [
            [(numbers_text(sorted(devices)), min(devices)), *zip(texts, figures, strict=True)]
            for texts, (figures, devices) in sorted(same.items(), key=lambda one: min(one[1][1]))
        ]
        return [table_part("Devices", ["devices", "computes", "sends and receives", "memory"], rows)]

    def chart(self) -> Chart:
        """The events as rows of a Gantt chart; devices that do the same share one."""
        others = [other for written in self.roles.sets for other, _ in self.roles.others(written)]
        events = self.events + [event for other in others for event in self.roles.of(other).events]
        return chart_of(events, self.seconds, self._shares())


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

"""Simulation of resolved programs: when each op runs, on which device, and what memory it takes.

Every device has a clock for compute and (where the assumptions say so) one for communication. An op starts when its
operands are there and the clocks it needs are free; equations are taken in program order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from meshwright.device.function import Eqn, Function, Value
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError


class Assumptions(Protocol):
    """What ops cost, and what may happen at once."""

    overlap: bool

    def seconds(self, eqn: Eqn) -> dict[int, float]:
        """Time on each device that takes part."""
        ...

    def is_communication(self, eqn: Eqn) -> bool: ...

    def in_place(self, eqn: Eqn) -> bool:
        """Whether the results take the memory of operands."""
        ...


class Event(NamedTuple):
    """One op on one device."""

    device: int
    name: str
    op: str
    start: float
    seconds: float
    communication: bool


@dataclass
class Simulation:
    """The outcome: ``seconds`` in all, memory and busy time per device, and the events in order."""

    seconds: float
    peak_bytes: dict[int, int]
    base_bytes: dict[int, int]
    busy_seconds: dict[int, float]
    events: list[Event] = field(default_factory=list)

    @property
    def bubble_fraction(self) -> float:
        """The part of all devices' time in which they do nothing."""
        return 1 - sum(self.busy_seconds.values()) / (self.seconds * len(self.busy_seconds)) if self.seconds else 0.0

    @property
    def timeline(self) -> list[Event]:
        return self.events


def _places(value: Value) -> list[tuple[int, int]]:
    """The devices a value is on, and the bytes it takes there."""
    if isinstance(value.type, Tensor):
        device = value.type.device.base
        if not isinstance(device, int):
            raise DeviceError(
                f"{value.name} is not on a device with a number.",
                why=f"it is {value.type}; a program is resolved before it is simulated",
                fix="dist.resolve(fn, device_map)",
            )
        return [(device, value.type.nbytes)]
    assert value.type is not None, value.name
    return [place for item in value.type.items for place in _places(Value(value.name, item))]


def run(fn: Function, assumptions: Assumptions, *, events: bool = True) -> Simulation:
    """Simulate a resolved program."""
    places: dict[Value, list[tuple[int, int]]] = {}
    by_type: dict[int, list[tuple[int, int]]] = {}
    uses: dict[Value, int] = {}
    for v in (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs)):
        found = by_type.get(id(v.type))
        if found is None:
            found = by_type[id(v.type)] = _places(v)
        places[v] = found
    for eqn in fn.eqns:
        for x in eqn.inputs:
            if x.__class__ is Value:
                uses[x] = uses.get(x, 0) + 1  # type: ignore[index, arg-type]
    clock: dict[int, float] = {}
    live: dict[int, int] = {}
    for v in fn.inputs:
        uses[v] = -1  # never released
        for device, nbytes in places[v]:
            live[device] = live.get(device, 0) + nbytes
    busy = dict.fromkeys(live, 0.0)
    wire: dict[int, float] = {} if assumptions.overlap else clock
    base, peak = dict(live), dict(live)
    done: dict[Value, float] = {}
    timeline: list[Event] = []
    for eqn in fn.eqns:
        values = eqn.values
        used = {device for v in (*values, *eqn.outputs) for device, _ in places[v]}
        costs = assumptions.seconds(eqn)
        talks = assumptions.is_communication(eqn)
        lanes = wire if talks else clock
        start = max([done.get(v, 0.0) for v in values] + [lanes.get(device, 0.0) for device in used], default=0.0)
        end = start
        for device in used:
            seconds = costs.get(device, 0.0)
            lanes[device] = start + seconds
            end = max(end, start + seconds)
            busy[device] = busy.get(device, 0.0) + (0.0 if talks and assumptions.overlap else seconds)
            if events:
                timeline.append(Event(device, eqn.outputs[0].name, eqn.op, start, seconds, talks))
        in_place = assumptions.in_place(eqn)
        for v in eqn.outputs:
            done[v] = end
            for device, nbytes in () if in_place else places[v]:
                live[device] = live.get(device, 0) + nbytes
                peak[device] = max(peak.get(device, 0), live[device])
        for v in values:
            uses[v] -= 1
            if not uses[v]:
                for device, nbytes in places[v]:
                    live[device] -= nbytes
    total = max([*clock.values(), *wire.values()], default=0.0)
    return Simulation(total, peak, base, busy, timeline)

"""Simulation of resolved programs: when each op runs, on which device, and what memory it takes.

Every device has a clock for compute and (where the assumptions say so) one for communication. An op starts when its
operands are there and the clocks it needs are free; equations are taken in program order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from meshwright.device.function import Eqn, Function, Number, Value
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


def _devices(values: Sequence[Any]) -> list[int]:
    found: dict[int, None] = {}
    for v in values:
        if isinstance(v, Value):
            for t in _tensors(v):
                if not isinstance(t.device.base, int):
                    raise DeviceError(
                        f"{v.name} is not on a device with a number.",
                        why=f"it is {t}; a program is resolved before it is simulated",
                        fix="dist.resolve(fn, device_map)",
                    )
                found[t.device.base] = None
    return list(found)


def _tensors(value: Value) -> list[Tensor]:
    if isinstance(value.type, Tensor):
        return [value.type]
    assert value.type is not None, value.name
    return [t for item in value.type.items for t in _tensors(Value("", item))]


def run(fn: Function, assumptions: Assumptions, *, events: bool = True) -> Simulation:
    """Simulate a resolved program."""
    clock: dict[int, float] = {}
    wire: dict[int, float] = {}
    done: dict[Value, float] = {}
    busy: dict[int, float] = {}
    live: dict[int, int] = {}
    for v in fn.inputs:
        for t in _tensors(v):
            (device,) = _devices([v]) if isinstance(v.type, Tensor) else (t.device.base,)
            assert isinstance(device, int)
            live[device] = live.get(device, 0) + t.nbytes
            busy.setdefault(device, 0.0)
    base = dict(live)
    peak = dict(live)
    inputs = set(fn.inputs)
    uses: dict[Value, int] = {}
    for eqn in fn.eqns:
        for v in eqn.values:
            uses[v] = uses.get(v, 0) + 1
    found: list[Event] = []
    for eqn in fn.eqns:
        used = _devices((*eqn.values, *eqn.outputs))
        costs = assumptions.seconds(eqn)
        talks = assumptions.is_communication(eqn)
        lanes = wire if talks and assumptions.overlap else clock
        start = max([done.get(v, 0.0) for v in eqn.values] + [lanes.get(d, 0.0) for d in used], default=0.0)
        if not assumptions.overlap:
            start = max([start, *(clock.get(d, 0.0) for d in used)])
        for device in used:
            seconds = costs.get(device, 0.0)
            lanes[device] = start + seconds
            if not talks or not assumptions.overlap:
                busy[device] = busy.get(device, 0.0) + seconds
            else:
                busy.setdefault(device, 0.0)
            if events:
                name = eqn.outputs[0].name if eqn.outputs else eqn.op
                found.append(Event(device, name, eqn.op, start, seconds, talks))
        end = start + max(costs.values(), default=0.0)
        for v in eqn.outputs:
            done[v] = end
        if not assumptions.in_place(eqn):
            for v in eqn.outputs:
                for t in _tensors(v):
                    device = t.device.base
                    assert isinstance(device, int)
                    live[device] = live.get(device, 0) + t.nbytes
                    peak[device] = max(peak.get(device, 0), live[device])
        for v in eqn.values:
            uses[v] -= 1
            if not uses[v] and v not in inputs:
                for t in _tensors(v):
                    device = t.device.base
                    assert isinstance(device, int)
                    live[device] -= t.nbytes
    total = max([*clock.values(), *wire.values()], default=0.0)
    return Simulation(total, peak, base, busy, found)


def number_of(x: object) -> bool:
    return isinstance(x, Number)

"""Simulation of resolved programs: when each op runs, on which device, and what memory it takes.

Every device has a clock for compute and (where the assumptions say so) one for communication. An op starts when its
operands are there and the clocks it needs are free; equations are taken in program order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from meshwright.device.function import Eqn, Function, Value
from meshwright.device.tensor_ops import is_elementwise
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError


class Assumptions(Protocol):
    """What ops cost, and what may happen at once."""

    overlap: bool
    reuses: bool

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


class _Fact(NamedTuple):
    costs: dict[int, float]
    talks: bool
    allocated: list[tuple[int, int]]


class _Facts:
    """What is to be known of equations; those without attributes that have the types of another are like it."""

    def __init__(self, assumptions: Assumptions) -> None:
        self.assumptions = assumptions
        self.known: dict[tuple[object, ...], _Fact] = {}
        self.placed: dict[int, list[tuple[int, int]]] = {}

    def places(self, value: Value) -> list[tuple[int, int]]:
        found = self.placed.get(id(value.type))
        if found is None:
            found = self.placed[id(value.type)] = _places(value)
        return found

    def of(self, eqn: Eqn) -> _Fact:
        if eqn.attributes and eqn.op != "allreduce":
            return self.made(eqn)
        # Types are alive as long as the program is, so that their identity is theirs alone.
        members = len(eqn.attributes.get("members", ()))
        key = (eqn.op, members, *[id(x.type) for x in eqn.values], 0, *[id(v.type) for v in eqn.outputs])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.made(eqn)
        return found

    def made(self, eqn: Eqn) -> _Fact:
        used = {device: 0.0 for v in (*eqn.values, *eqn.outputs) for device, _ in self.places(v)}
        used.update(self.assumptions.seconds(eqn))
        places = [] if self.assumptions.in_place(eqn) else [p for v in eqn.outputs for p in self.places(v)]
        return _Fact(used, self.assumptions.is_communication(eqn), places)


def _last_alike(eqn: Eqn, uses: dict[Value, int]) -> bool:
    """Whether an operand like the result is read for the last time."""
    result = eqn.outputs[0].type
    return any(uses[v] == 1 and v.type == result for v in eqn.values)


def run(fn: Function, assumptions: Assumptions, *, events: bool = True) -> Simulation:
    """Simulate a resolved program."""
    facts = _Facts(assumptions)
    reuses = assumptions.reuses
    uses: dict[Value, int] = {}
    for eqn in fn.eqns:
        for x in eqn.inputs:
            if x.__class__ is Value:
                uses[x] = uses.get(x, 0) + 1  # type: ignore[index, arg-type]
    for v in fn.outputs:
        uses[v] = uses.get(v, 0) + 1  # what is returned stays
    live: dict[int, int] = {}
    for v in fn.inputs:
        uses[v] = -1  # never released
        for device, nbytes in facts.places(v):
            live[device] = live.get(device, 0) + nbytes
    clock: dict[int, float] = {}
    busy = dict.fromkeys(live, 0.0)
    wire: dict[int, float] = {} if assumptions.overlap else clock
    base, peak = dict(live), dict(live)
    done: dict[Value, float] = {}
    timeline: list[Event] = []
    for eqn in fn.eqns:
        fact = facts.of(eqn)
        lanes = wire if fact.talks else clock
        start = 0.0
        for x in eqn.inputs:
            start = max(start, done.get(x, 0.0))  # type: ignore[arg-type]
        for device in fact.costs:
            start = max(start, lanes.get(device, 0.0))
        end = start
        for device, seconds in fact.costs.items():
            lanes[device] = finish = start + seconds
            end = max(end, finish)
            busy[device] = busy.get(device, 0.0) + (0.0 if fact.talks and assumptions.overlap else seconds)
            if events:
                timeline.append(Event(device, eqn.outputs[0].name, eqn.op, start, seconds, fact.talks))
        for v in eqn.outputs:
            done[v] = end
        # An elementwise op may write into an operand of the same size that nobody reads again.
        over = reuses and is_elementwise(eqn) and _last_alike(eqn, uses)
        for device, nbytes in fact.allocated:
            live[device] = now = live.get(device, 0) + nbytes
            if now - (nbytes if over else 0) > peak.get(device, 0):
                peak[device] = now - (nbytes if over else 0)
        for x in eqn.inputs:
            if x.__class__ is Value:
                uses[x] -= 1  # type: ignore[index]
                if not uses[x]:  # type: ignore[index]
                    for device, nbytes in facts.places(x):  # type: ignore[arg-type]
                        live[device] -= nbytes
    total = max([*clock.values(), *wire.values()], default=0.0)
    return Simulation(total, peak, base, busy, timeline)

"""When each op of a resolved program runs.

A device computes in program order. Where the assumptions say so, it communicates meanwhile: one message or collective
at a time, in the order in which they are ready, and so do links that several devices share. Otherwise all it does is in
program order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.liveness import DeviceMemory, Places, TimedMemory, remember
from meshwright.device.simulation import Assumptions, DeviceSimulation, Role
from meshwright.device.symmetry import Covers, Stack, device_of
from meshwright.device.tensor_ops import is_elementwise
from meshwright.device.timeline import DeviceEvent
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError


def _places(value: DeviceValue) -> Places:
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
    return [place for item in value.type.items for place in _places(DeviceValue(value.name, item))]


class _Fact(NamedTuple):
    costs: dict[int, float]
    talks: bool
    links: tuple[Hashable, ...]
    made: Places
    allocated: Places
    elementwise: bool


class _Facts:
    """What is to be known of equations; those with the same op, types and attributes are alike."""

    def __init__(self, assumptions: Assumptions) -> None:
        self.assumptions = assumptions
        self.known: dict[tuple[object, ...], _Fact] = {}
        self.placed: dict[int, Places] = {}

    def places(self, value: DeviceValue) -> Places:
        found = self.placed.get(id(value.type))
        if found is None:
            found = self.placed[id(value.type)] = _places(value)
        return found

    def of(self, eqn: DeviceEqn) -> _Fact:
        # Types are alive as long as the program is, so that their identity is theirs alone.
        types = [id(x.type) if x.__class__ is DeviceValue else x for x in eqn.inputs]  # type: ignore[union-attr]
        attributes = tuple(eqn.attributes.items()) if eqn.attributes else ()
        key = (eqn.op, *types, attributes, *[id(v.type) for v in eqn.outputs])
        try:
            found = self.known.get(key)
        except TypeError:  # an array among the attributes
            return self.made(eqn)
        if found is None:
            found = self.known[key] = self.made(eqn)
        return found

    def made(self, eqn: DeviceEqn) -> _Fact:
        assumptions = self.assumptions
        used = {device: 0.0 for v in (*eqn.values, *eqn.outputs) for device, _ in self.places(v)}
        used.update(assumptions.seconds(eqn))
        places = [p for v in eqn.outputs for p in self.places(v)]
        talks = assumptions.is_communication(eqn)
        allocated = [] if assumptions.in_place(eqn) else places
        elementwise = assumptions.reuses and is_elementwise(eqn)
        return _Fact(used, talks, assumptions.links(eqn) if talks else (), places, allocated, elementwise)


def _starts(fn: Function, facts: Sequence[_Fact]) -> list[float]:
    """When each equation starts where each device does one thing after the other."""
    queue: dict[int, float] = {}
    done: dict[object, float] = {}
    found = []
    for eqn, fact in zip(fn.eqns, facts, strict=True):
        start = 0.0
        for x in eqn.inputs:
            at = done.get(x) if x.__class__ is DeviceValue else None
            if at is not None and at > start:
                start = at
        for device in fact.costs:
            at = queue.get(device)
            if at is not None and at > start:
                start = at
        end = start
        for device, seconds in fact.costs.items():
            queue[device] = finish = start + seconds
            if finish > end:
                end = finish
        for v in eqn.outputs:
            done[v] = end
        found.append(start)
    return found


def _starts_overlapped(fn: Function, facts: Sequence[_Fact]) -> list[float]:
    """When each equation starts where devices compute and communicate at once."""
    waits, follows = _order(fn, facts)
    ready = [0.0] * len(fn.eqns)
    starts = [0.0] * len(fn.eqns)
    free: dict[Hashable, float] = {}  # when ports of devices and links are
    heap = [(0.0, 0.0, n) for n, left in enumerate(waits) if not left]  # when to try, since when it is ready
    heapify(heap)
    while heap:
        at, since, n = heappop(heap)
        costs, talks, links = facts[n][:3]
        most = max(costs.values(), default=0.0)
        if talks and most:
            later = max([free.get(unit, 0.0) for unit in (*costs, *links)])
            if later > at:
                heappush(heap, (later, since, n))
                continue
            free.update((device, at + seconds) for device, seconds in costs.items())
            free.update(dict.fromkeys(links, at + most))
        starts[n] = at
        for after, device in follows[n]:
            end = at + (most if device is None else costs[device])
            if end > ready[after]:
                ready[after] = end
            waits[after] -= 1
            if not waits[after]:
                heappush(heap, (ready[after], ready[after], after))
    return starts


def _order(fn: Function, facts: Sequence[_Fact]) -> tuple[list[int], list[list[tuple[int, int | None]]]]:
    """How many others each equation waits for, and who waits for it: for its results (None) or for a device of it."""
    waits = [0] * len(fn.eqns)
    follows: list[list[tuple[int, int | None]]] = [[] for _ in fn.eqns]
    made: dict[object, int] = {}
    last: dict[int, int] = {}
    for n, (eqn, fact) in enumerate(zip(fn.eqns, facts, strict=True)):
        for x in dict.fromkeys(eqn.values):
            if x in made:
                follows[made[x]].append((n, None))
                waits[n] += 1
        for device in () if fact.talks else fact.costs:
            if device in last:
                follows[last[device]].append((n, device))
                waits[n] += 1
            last[device] = n
        for v in eqn.outputs:
            made[v] = n
    return waits, follows


class _Timed(NamedTuple):
    """A program whose equations have their facts and starts."""

    fn: Function
    facts: Sequence[_Fact]
    starts: Sequence[float]


def _measured(
    timed: _Timed, assumptions: Assumptions, places: Callable[[DeviceValue], Places], *, events: bool
) -> Role:
    """Memory and busy time of each device, and the events in order."""
    memory = TimedMemory() if assumptions.overlap else DeviceMemory()
    for v in timed.fn.inputs:
        for device, nbytes in places(v):
            memory.live[device] = memory.live.get(device, 0) + nbytes
    base = memory.base()
    busy, linked = dict.fromkeys(base, 0.0), dict.fromkeys(base, 0.0)
    timeline: list[DeviceEvent] = []
    for eqn, fact, start in zip(timed.fn.eqns, timed.facts, timed.starts, strict=True):
        if fact.talks and assumptions.overlap:
            for device, seconds in fact.costs.items():
                linked[device] = linked.get(device, 0.0) + seconds
                busy.setdefault(device, 0.0)
        else:
            for device, seconds in fact.costs.items():
                busy[device] = busy.get(device, 0.0) + seconds
        if events:
            made = dict(fact.made)
            timeline += [
                DeviceEvent(device, eqn.outputs[0].name, eqn.op, start, seconds, fact.talks, made.get(device, 0))
                for device, seconds in fact.costs.items()
            ]
    remember(timed.fn, timed.facts, timed.starts, places, memory, assumptions.reuses)
    return Role(memory.peak(), base, busy, linked, timeline)


def _seen_by(device: int, written: int, timed: _Timed, covers: Covers) -> _Timed:
    """What a device does of that which another stands for: its equations, with the values that are on it."""

    def here(v: DeviceValue, stack: Stack) -> bool:
        return device_of(v) == written and device in covers.devices(written, stack)

    eqns, facts, starts = [], [], []
    for eqn, fact, start in zip(timed.fn.eqns, timed.facts, timed.starts, strict=True):
        stack = covers.done(eqn).get(written)
        if stack is None or device not in covers.devices(written, stack):
            continue
        taken = covers.taken[eqn.outputs[0]]
        inputs = tuple(x for x in eqn.inputs if not isinstance(x, DeviceValue) or here(x, taken))
        outputs = tuple(v for v in eqn.outputs if here(v, covers.values[v]))
        places = [p for p in fact.made if p[0] == written] if outputs else []
        costs = {d: seconds for d, seconds in fact.costs.items() if d == written}
        facts.append(fact._replace(costs=costs, made=places, allocated=places if fact.allocated else []))
        eqns.append(DeviceEqn(eqn.op, inputs, outputs or eqn.outputs, eqn.attributes))
        starts.append(start)
    held = tuple(v for v in timed.fn.inputs if here(v, covers.values.get(v, ())))
    returned = tuple(v for v in timed.fn.outputs if here(v, covers.output(v)))
    return _Timed(timed.fn.with_(inputs=held, eqns=tuple(eqns), outputs=returned), facts, starts)


def run(
    fn: Function,
    assumptions: Assumptions,
    covers: Covers | None = None,
    roles: Mapping[int, Sequence[frozenset[int]]] | None = None,
    *,
    events: bool = True,
) -> DeviceSimulation:
    """Simulate a resolved program; where devices stand for others, ``roles`` are those that do the same as them."""
    known = _Facts(assumptions)
    facts = [known.of(eqn) for eqn in fn.eqns]
    overlaps = assumptions.overlap and any(fact.talks for fact in facts)
    starts = _starts_overlapped(fn, facts) if overlaps else _starts(fn, facts)
    timed = _Timed(fn, facts, starts)
    ends = [start + max(fact.costs.values(), default=0.0) for fact, start in zip(facts, starts, strict=True)]
    found = _measured(timed, assumptions, known.places, events=events)
    if covers is None:
        return DeviceSimulation.of(max(ends, default=0.0), found)

    def role(device: int, written: int) -> Role:
        seen = _seen_by(device, written, timed, covers)

        def places(v: DeviceValue) -> Places:
            return [p for p in known.places(v) if p[0] == written]

        return _measured(seen, assumptions, places, events=events).moved(written, device)

    return DeviceSimulation.of(max(ends, default=0.0), found, roles or {}, role)

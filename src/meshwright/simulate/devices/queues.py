"""When each op of a resolved program runs.

A device computes in program order. Where the assumptions say so, it communicates meanwhile: one message or collective
at a time, in the order in which they are ready, and so do links that several devices share. Otherwise all it does is in
program order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from meshwright.device.device_map import Devices
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.ops import SEND, DeviceOp
from meshwright.device.symmetry import Covers, Stack, device_of
from meshwright.device.tensor_ops import is_elementwise
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError
from meshwright.ops.named import first_operand
from meshwright.simulate.clock import start_times
from meshwright.simulate.devices.simulation import Assumptions, DeviceEvent, DeviceSimulation, Role
from meshwright.simulate.lifetimes import Step, last_reads, lifetimes

Places = list[tuple[int, int]]  # devices, and the bytes there


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
    seconds: float
    units: dict[Any, float]
    elementwise: bool
    stored: Sequence[int]  # the operands in whose memory results are that take none, by number
    own: dict[int, float]


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
        talks = assumptions.is_communication(eqn)
        elementwise = assumptions.reuses and is_elementwise(eqn)
        seconds = max(used.values(), default=0.0)
        units: dict[Any, float] = {}
        if talks and assumptions.overlap and seconds:
            units = {**used, **dict.fromkeys(assumptions.links(eqn), seconds)}
        like = eqn.op.like if isinstance(eqn.op, DeviceOp) else first_operand
        stored = [like(len(eqn.inputs), n) for n in range(len(eqn.outputs))] if assumptions.in_place(eqn) else []
        return _Fact(used, talks, seconds, units, elementwise, stored, self.own(eqn, used))

    def own(self, eqn: DeviceEqn, used: dict[int, float]) -> dict[int, float]:
        """What each device sends itself: a message that stands for others waits for its turn among them."""
        if eqn.op is not SEND or "members" not in eqn.attributes:
            return used
        alone = {name: value for name, value in eqn.attributes.items() if name != "members"}
        return {**used, **self.assumptions.seconds(eqn.with_(attributes=alone))}


def _starts(fn: Function, facts: Sequence[_Fact], overlap: bool) -> list[float]:
    """When each equation starts, by the clock.

    What a device computes, and where it does one thing after the other all it does, is in program order. Messages and
    collectives that overlap take the ports of their devices, and links, in the order in which they are ready.
    """
    seconds = [fact.seconds for fact in facts]
    follows: list[list[tuple[int, float]]] = [[] for _ in facts]
    made: dict[object, int] = {}
    last: dict[int, int] = {}
    for n, (eqn, fact) in enumerate(zip(fn.eqns, facts, strict=True)):
        for x in eqn.inputs:
            before = made.get(x) if x.__class__ is DeviceValue else None
            if before is not None:
                follows[before].append((n, seconds[before]))
        if not (overlap and fact.talks):
            for device in fact.costs:
                before = last.get(device)
                if before is not None:
                    follows[before].append((n, facts[before].costs[device]))
                last[device] = n
        for v in eqn.outputs:
            made[v] = n
    return start_times(seconds, follows, [fact.units for fact in facts])


class _Timed(NamedTuple):
    """A program whose equations have their facts and starts."""

    fn: Function
    facts: Sequence[_Fact]
    starts: Sequence[float]


def _measured(
    timed: _Timed, assumptions: Assumptions, places: Callable[[DeviceValue], Places], *, events: bool
) -> Role:
    """Memory and busy time of each device, and the events in order."""
    base: dict[int, int] = {}
    for v in timed.fn.inputs:
        for device, nbytes in places(v):
            base[device] = base.get(device, 0) + nbytes
    busy, linked = dict.fromkeys(base, 0.0), dict.fromkeys(base, 0.0)
    timeline: list[DeviceEvent] = []
    for eqn, fact, start in zip(timed.fn.eqns, timed.facts, timed.starts, strict=True):
        if fact.talks and assumptions.overlap:
            for device, seconds in fact.own.items():
                linked[device] = linked.get(device, 0.0) + seconds
                busy.setdefault(device, 0.0)
        else:
            for device, seconds in fact.costs.items():
                busy[device] = busy.get(device, 0.0) + seconds
        if events:
            made = dict(p for v in eqn.outputs for p in places(v))
            timeline += [
                DeviceEvent(device, eqn.outputs[0].name, eqn.op.name, start, seconds, fact.talks, made.get(device, 0))
                for device, seconds in fact.costs.items()
            ]
    return Role(_peaks(timed, assumptions, places, base), base, busy, linked, timeline)


def _peaks(
    timed: _Timed, assumptions: Assumptions, places: Callable[[DeviceValue], Places], base: Mapping[int, int]
) -> dict[int, int]:
    """The most that each device holds: inputs all the time, a value from when its op starts until all readers end.

    What is freed at a time can be taken again at that time; where nothing overlaps, ops are one after the other.
    """
    fn, facts = timed.fn, timed.facts
    roots: dict[Any, Any] = {}  # for a value that has no memory of its own, the one in whose memory it is
    steps: list[Step[DeviceValue]] = []
    for eqn, fact in zip(fn.eqns, facts, strict=True):
        reads = [roots.get(v, v) for v in eqn.values]
        roots.update((v, roots.get(eqn.inputs[k], eqn.inputs[k])) for v, k in zip(eqn.outputs, fact.stored))
        steps.append((dict.fromkeys(reads), [v for v in eqn.outputs if v not in roots]))
    last = last_reads(steps, [roots.get(v, v) for v in fn.outputs])
    if not assumptions.reuses:  # what nobody reads stays
        last = {**{v: len(steps) for _, writes in steps for v in writes}, **last}
    clocked = assumptions.overlap
    starts: Sequence[float] = timed.starts if clocked else range(len(steps))
    read: dict[DeviceValue, float] = {}  # when the last op that reads a value so far ends

    def over(n: int, dying: list[DeviceValue], new: list[DeviceValue]) -> dict[DeviceValue, DeviceValue]:
        """An elementwise op writes over an operand like its result, unless a message that carries it is under way."""
        if not facts[n].elementwise:
            return {}
        once = [v for v in dying if v.type == new[0].type and fn.eqns[n].inputs.count(v) == 1]
        return dict(zip(new, [v for v in once[:1] if read.get(v, 0.0) <= starts[n]]))

    changes: dict[int, list[tuple[float, int]]] = {device: [] for device in base}
    for n, change in enumerate(lifetimes(steps, last, frozenset(fn.inputs), over)):
        end = starts[n] + (facts[n].seconds if clocked else 1)
        read.update((v, max(end, read.get(v, 0.0))) for v in (*steps[n][0], *steps[n][1]))
        for sign, values in ((1, change.taken), (-1, change.freed)):
            for v in values:
                for device, nbytes in places(v):
                    at = starts[n] if sign > 0 else read[v]
                    changes.setdefault(device, []).append((at, sign * nbytes))
    return {device: _peak(base.get(device, 0), of_device) for device, of_device in changes.items()}


def _peak(base: int, changes: list[tuple[float, int]]) -> int:
    return max(accumulate((change for _, change in sorted(changes)), initial=base))


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
        costs = {d: seconds for d, seconds in fact.costs.items() if d == written}
        stored = fact.stored if len(inputs) == len(eqn.inputs) else ()
        facts.append(fact._replace(costs=costs, seconds=max(costs.values(), default=0.0), stored=stored))
        eqns.append(DeviceEqn(eqn.op, inputs, eqn.outputs, eqn.attributes))
        starts.append(start)
    held = tuple(v for v in timed.fn.inputs if here(v, covers.values.get(v, ())))
    returned = tuple(v for v in timed.fn.outputs if here(v, covers.output(v)))
    return _Timed(timed.fn.with_(inputs=held, eqns=tuple(eqns), outputs=returned), facts, starts)


def run(
    fn: Function,
    assumptions: Assumptions,
    covers: Covers | None = None,
    roles: Mapping[int, Sequence[Devices]] | None = None,
    *,
    events: bool = True,
) -> DeviceSimulation:
    """Simulate a resolved program; where devices stand for others, ``roles`` are those that do the same as them."""
    known = _Facts(assumptions)
    facts = [known.of(eqn) for eqn in fn.eqns]
    starts = _starts(fn, facts, assumptions.overlap)
    timed = _Timed(fn, facts, starts)
    ends = [start + fact.seconds for fact, start in zip(facts, starts, strict=True)]
    found = _measured(timed, assumptions, known.places, events=events)
    if covers is None:
        return DeviceSimulation.of(max(ends, default=0.0), found)

    def role(device: int, written: int) -> Role:
        seen = _seen_by(device, written, timed, covers)

        def places(v: DeviceValue) -> Places:
            there = device in covers.devices(written, covers.values.get(v, ()))
            return [p for p in known.places(v) if p[0] == written] if there else []

        return _measured(seen, assumptions, places, events=events).moved(written, device)

    return DeviceSimulation.of(max(ends, default=0.0), found, roles or {}, role)

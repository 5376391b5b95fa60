"""Writing a spread program: scatters and broadcasts, pmaps, collectives, gathers.

Equations between collectives become one pmap. Where parameters are held in parts (`zero`), they are gathered in turn: a
pmap ends where the next parameter is needed, so that no more than about the largest one is whole at a time, and the
backward pass gathers them again. Likewise a gradient is reduced as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number
from meshwright.device.spread import COPY, Conversion, Planner, SpreadLevel, SpreadStep, Version
from meshwright.device.tensor_ops import localize, nbytes_of, params_of, signatures, tensor_of
from meshwright.device.types import UNKNOWN, Device, OnEach, Tuple


class SpreadWriter:
    """Turns a plan into equations; at stage 3 of zero, parameters are gathered one by one."""

    def __init__(self, planner: Planner, level: SpreadLevel) -> None:
        self.planner, self.body, self.level = planner, planner.body, level
        self.home = home_of(planner.body)
        self.eqns: list[DeviceEqn] = []
        self.tuples: dict[Version, DeviceValue] = {}
        self.ahead: dict[Version, DeviceValue] = {}
        self.late: dict[Version, Conversion] = {}
        self.reduced: set[Version] = set()
        converted = {c.source for c in planner.conversions}
        if planner.sharded > 1:
            self.reduced = {c.source for c in planner.conversions if c.op == "reduce_scatter"}
        if planner.sharded > 2:
            gathers = [c for c in planner.conversions if c.op == "allgather" and c.source in planner.entries]
            self.late = {c.target: c for c in gathers if c.target not in converted}
        self.after: dict[Version, list[int]] = {}  # the conversions of a version, by number
        for n, c in enumerate(planner.conversions):
            if c.target not in self.late:
                self.after.setdefault(c.source, []).append(n)
        self.kept = converted | {(v, planner.original[v]) for v in self.body.outputs if v in planner.original}
        self.segments = self._segments()
        self.needed = self._needed()

    def _segments(self) -> list[list[SpreadStep]]:
        """Steps between collectives: those of one depth, cut where more would be whole than the largest parameter."""
        limit = max((nbytes_of(v) for v, _ in (*self.late, *self.reduced)), default=0.0)
        depths = self._depths()
        of_depth: dict[int, list[SpreadStep]] = {}
        for step in self.planner.steps:
            of_depth.setdefault(depths[step], []).append(step)
        found: list[list[SpreadStep]] = []
        for depth in sorted(of_depth):
            found.append([])
            whole: set[Version] = set()
            unreduced: list[Version] = []
            for step in of_depth[depth]:
                more = self.late.keys() & step.read
                gathers = bool(whole) and not whole >= more and _nbytes(whole | more) > limit
                if gathers or (unreduced and _nbytes(unreduced) >= limit):
                    found.append([])
                    whole, unreduced = set(), []
                found[-1].append(step)
                whole |= more
                unreduced += self.reduced.intersection(step.results)
        return found

    def _depths(self) -> dict[SpreadStep, int]:
        """The depth of each step; what follows from inputs alone, such as a decayed moment, waits until it is used."""
        early: set[Version] = set(self.planner.entries)
        for step in self.planner.steps:
            if early.issuperset(step.read) and not self.kept.intersection(step.results):
                early.update(step.results)
        found: dict[SpreadStep, int] = {}
        first: dict[Version, int] = {}
        for step in reversed(self.planner.steps):
            uses = [first[v] for v in step.results if v in first]
            waits = uses and early.issuperset(step.results)
            depth = found[step] = max(step.depth, min(uses)) if waits else step.depth
            first.update({v: min(first.get(v, depth), depth) for v in step.read})
        return found

    def _needed(self) -> set[Version]:
        """Versions that leave the segment they are made in."""
        made = {v: n for n, steps in enumerate(self.segments) for step in steps for v in step.results}
        read = {(v, n) for n, steps in enumerate(self.segments) for step in steps for v in step.read}
        return self.kept | {v for v, n in read if made.get(v, n) != n}

    def write(self) -> Function:
        for version in self.planner.entries:
            self.spread_input(version)
        self.convert(self.planner.entries)
        for n, steps in enumerate(self.segments):
            used = self.gathered(n)
            for version in [v for v in self.late if v in self.tuples and v not in used]:
                del self.tuples[version]
            for version in used:
                if version not in self.tuples:
                    self.conversion(self.late[version])
            self.convert(self.segment(steps, [self.late[v].source for v in self.gathered(n + 1) if v not in used]))
        outputs = tuple(self.output(v) for v in self.body.outputs)
        return self.body.with_(eqns=tuple(self.eqns), outputs=outputs)

    def gathered(self, n: int) -> dict[Version, None]:
        """The parameters that a segment needs whole."""
        steps = self.segments[n] if n < len(self.segments) else []
        return {v: None for step in steps for v in step.read if v in self.late}

    def convert(self, made: Iterable[Version]) -> None:
        """Write the conversions of versions that are there now, in the order of the plan; one may build on another."""
        ready = [n for version in made for n in self.after.get(version, ())]
        heapify(ready)
        while ready:
            conversion = self.planner.conversions[heappop(ready)]
            self.conversion(conversion)
            for n in self.after.get(conversion.target, ()):
                heappush(ready, n)

    def named(self, version: Version) -> DeviceValue:
        """A version on all devices of the level."""
        local, parts = self.planner.local, self.level.parts
        if self.level.devices:
            found = Tuple(OnEach(local(version, UNKNOWN), self.level.devices))
        elif isinstance(parts, int):
            found = Tuple((local(version, UNKNOWN),) * parts)
        else:
            found = Tuple((local(version, UNKNOWN),), more=True)
        return DeviceValue(f"{version[0].name}s_{self.level.tag}", found)

    def spread_input(self, version: Version) -> None:
        value, layout = version
        out = self.tuples[version] = self.named(version)
        attributes: dict[str, Any] = {"dim": layout.dim} if layout.kind == "part" else {}
        attributes["device_keys"] = Keys(self.level.keys)
        if not isinstance(self.level.parts, int):
            attributes["parts"] = self.level.parts
        self.eqns.append(DeviceEqn("scatter" if layout.kind == "part" else "broadcast", (value,), (out,), attributes))

    def conversion(self, conversion: Conversion) -> None:
        op, source, target = conversion
        out = self.tuples[target] = self.named(target)
        attributes: dict[str, Any] = {"dim": (source if op == "allgather" else target)[1].dim}
        if op == "allreduce":
            attributes = {} if source[1].how == "sum" else {"reduce": source[1].how}
        self.eqns.append(DeviceEqn(op, (self.ahead.pop(source, self.tuples[source]),), (out,), attributes))

    def segment(self, steps: Sequence[SpreadStep], ahead: Sequence[Version]) -> Sequence[Version]:
        """One pmap, and the versions that leave it. Parts that are gathered for the next one pass through it, so that
        they are not gathered earlier."""
        leaving = [v for step in steps for v in step.results if v in self.needed]
        if not leaving:
            return leaving
        made = DeviceBody(self.planner, steps, self.level.variable)
        if not made.inputs:
            # A pmap runs on the devices of its operands; equations without any follow those of an input.
            carrier = next(iter(self.planner.entries), (self.body.inputs[0], COPY))
            if carrier not in self.tuples:
                self.spread_input(carrier)
            made.take(carrier)
        passed = [DeviceValue(f"{v[0].name}_next", self.planner.local(v, made.device)) for v in ahead]
        first = tuple(DeviceEqn("Identity", (made.take(v),), (out,)) for v, out in zip(ahead, passed, strict=True))
        body = made.function(leaving)
        body = body.with_(eqns=first + body.eqns, outputs=(*body.outputs, *passed))
        operands = tuple(self.tuples[v] for v in made.inputs)
        outs = [self.named(v) for v in (*leaving, *ahead)]
        self.tuples.update(zip(leaving, outs, strict=False))
        self.ahead.update(zip(ahead, outs[len(leaving) :], strict=True))
        self.eqns.append(DeviceEqn("pmap", operands, tuple(outs), {}, body))
        return leaving

    def output(self, value: DeviceValue) -> DeviceValue:
        layout = self.planner.original.get(value)
        if layout is None:
            return value
        if layout.kind == "summand" and (value, COPY) not in self.tuples:
            self.conversion(Conversion("allreduce", (value, layout), (value, COPY)))
        found = self.tuples[value, COPY if layout.kind == "summand" else layout]
        op, attributes = ("gather", {"dim": layout.dim}) if layout.kind == "part" else ("send", {})
        if op == "send" and not self.home.is_concrete:
            return found
        out = DeviceValue(f"{value.name}_{self.level.tag}", tensor_of(value).on(self.home))
        self.eqns.append(DeviceEqn(op, (found,), (out,), {**attributes, "to_device": self.home}))
        return out


def home_of(body: Function) -> Device:
    """The device that a body is given its inputs on, and returns its results to."""
    if body.variable is not None:
        return Device(body.variable)
    found = tensor_of(body.inputs[0]).device if body.inputs else Device(0)
    return found if found.is_concrete else Device(0)


def _nbytes(versions: Iterable[Version]) -> float:
    return sum(nbytes_of(value) for value, _ in versions)


class DeviceBody:
    """The equations of some steps on the device that a variable stands for."""

    def __init__(self, planner: Planner, steps: Sequence[SpreadStep], variable: str) -> None:
        self.planner, self.variable, self.device = planner, variable, Device(variable)
        self.values: dict[Version, DeviceValue] = {}
        self.inputs: dict[Version, DeviceValue] = {}
        self.eqns = tuple(self.equation(step) for step in steps)

    def make(self, version: Version) -> DeviceValue:
        found = self.values[version] = DeviceValue(version[0].name, self.planner.local(version, self.device))
        return found

    def take(self, version: Version) -> DeviceValue:
        """A version as an input, unless it is made here."""
        if version not in self.values:
            self.inputs[version] = self.make(version)
        return self.values[version]

    def equation(self, step: SpreadStep) -> DeviceEqn:
        operands = tuple(v if isinstance(v, Number) else self.take(v) for v in step.operands)
        results = tuple(self.make(v) for v in step.results)
        params: Mapping[str, Any] = params_of(step.eqn)
        if not step.whole:
            params = localize(step.eqn.op, params, signatures(operands), signatures(results))
        device = {"device": self.device} if "device" in step.eqn.attributes else {}
        return DeviceEqn(step.eqn.op, operands, results, {**params, **device})

    def function(self, outputs: Iterable[Version]) -> Function:
        """The body of a pmap or a call that gives these."""
        results = tuple(self.values[v] for v in outputs)
        return Function("", tuple(self.inputs.values()), self.eqns, results, None, self.variable)

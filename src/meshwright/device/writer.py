"""Writing a spread program: scatters and broadcasts, pmaps, collectives, gathers.

Equations between collectives become one pmap. Where parameters are held in parts (`zero`), they are gathered in turn: a
pmap ends where the next parameter is needed, so that no more than about the largest one is whole at a time, and the
backward pass gathers them again. Likewise a gradient is reduced as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.device.dims import divide
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number, Operand
from meshwright.device.spread import COPY, Conversion, Planner, SpreadLevel, SpreadSharding, SpreadStep, Version
from meshwright.device.tensor_ops import localize, nbytes_of, params_of, signatures, tensor_of
from meshwright.device.types import UNKNOWN, Device, Tensor, Tuple


class SpreadWriter:
    """Turns a plan into equations. ``sharded`` is the stage of zero: at 3, parameters are gathered one by one."""

    def __init__(
        self,
        body: Function,
        plan: Planner,
        original: Mapping[DeviceValue, SpreadSharding],
        level: SpreadLevel,
        *,
        sharded: int = 0,
    ) -> None:
        self.body, self.plan, self.original, self.level = body, plan, original, level
        self.eqns: list[DeviceEqn] = []
        self.tuples: dict[Version, DeviceValue] = {}
        self.ahead: dict[Version, DeviceValue] = {}
        used_on = {c.source for c in plan.conversions}
        self.late: dict[Version, Conversion] = {}
        self.reduced: set[Version] = set()
        if sharded > 1:
            self.reduced = {c.source for c in plan.conversions if c.op == "reduce_scatter"}
        if sharded > 2:
            gathers = [c for c in plan.conversions if c.op == "allgather" and c.source in plan.entries]
            self.late = {c.target: c for c in gathers if c.target not in used_on}
        self.waiting = [c for c in plan.conversions if c.target not in self.late]
        self.segments = self._segments()
        self.needed = self._needed()

    def _segments(self) -> list[list[SpreadStep]]:
        """Steps between collectives: those of one depth, cut where more would be whole than the largest parameter."""
        limit = max((nbytes_of(v) for v, _ in (*self.late, *self.reduced)), default=0.0)
        found: list[list[SpreadStep]] = []
        depths = self._depths()
        for depth in sorted(set(depths.values())):
            found.append([])
            whole: set[Version] = set()
            gathered = unreduced_bytes = 0.0
            for step in self.plan.steps:
                if depths[step] != depth:
                    continue
                more = {v for v in step.operands if not isinstance(v, Number) and v in self.late} - whole
                extra = sum(nbytes_of(v) for v, _ in more)
                if (gathered and extra and gathered + extra > limit) or (unreduced_bytes and unreduced_bytes >= limit):
                    found.append([])
                    more = {v for v in step.operands if not isinstance(v, Number) and v in self.late}
                    whole, gathered, unreduced_bytes = set(), 0.0, 0.0
                    extra = sum(nbytes_of(v) for v, _ in more)
                found[-1].append(step)
                whole |= more
                gathered += extra
                unreduced_bytes += sum(nbytes_of(v) for v, layout in step.results if (v, layout) in self.reduced)
        return found

    def _depths(self) -> dict[SpreadStep, int]:
        """The depth of each step; what follows from inputs alone, such as a decayed moment, waits until it is used."""
        steps = self.plan.steps
        kept = {c.source for c in self.plan.conversions}
        kept.update((v, self.original[v]) for v in self.body.outputs if v in self.original)
        early: dict[Version, bool] = {}
        for step in steps:
            operands = [v for v in step.operands if not isinstance(v, Number)]
            alone = all(early.get(v, v in self.plan.entries) for v in operands)
            early.update(dict.fromkeys(step.results, alone and not kept.intersection(step.results)))
        found: dict[SpreadStep, int] = {}
        first: dict[Version, int] = {}
        for step in reversed(steps):
            uses = [first[v] for v in step.results if v in first]
            waits = uses and all(early[v] for v in step.results)
            depth = found[step] = max(step.depth, min(uses)) if waits else step.depth
            for v in step.operands:
                if not isinstance(v, Number):
                    first[v] = min(first.get(v, depth), depth)
        return found

    def _needed(self) -> set[Version]:
        """Versions that leave the segment they are made in."""
        made = {v: n for n, steps in enumerate(self.segments) for step in steps for v in step.results}
        found = {c.source for c in self.plan.conversions}
        for n, steps in enumerate(self.segments):
            for step in steps:
                found.update(v for v in step.operands if not isinstance(v, Number) and made.get(v, n) != n)
        return found | {(v, self.original[v]) for v in self.body.outputs if v in self.original}

    def write(self) -> Function:
        for version in self.plan.entries:
            self.spread_input(version)
        self.convert()
        for n, steps in enumerate(self.segments):
            used = self.gathered(n)
            for version in [v for v in self.late if v in self.tuples and v not in used]:
                del self.tuples[version]
            for version in used:
                if version not in self.tuples:
                    self.conversion(self.late[version])
            self.segment(steps, [self.late[v].source for v in self.gathered(n + 1) if v not in used])
            self.convert()
        outputs = tuple(self.output(v) for v in self.body.outputs)
        return self.body.with_(eqns=tuple(self.eqns), outputs=outputs)

    def gathered(self, n: int) -> dict[Version, None]:
        """The parameters that a segment needs whole."""
        steps = self.segments[n] if n < len(self.segments) else []
        return {v: None for step in steps for v in step.operands if not isinstance(v, Number) and v in self.late}

    def convert(self) -> None:
        """Write the conversions whose source is there; one may build on another."""
        left = []
        for conversion in self.waiting:
            if conversion.source in self.tuples:
                self.conversion(conversion)
            else:
                left.append(conversion)
        self.waiting = left

    def local(self, version: Version, device: Device) -> Tensor:
        value, layout = version
        found = tensor_of(value).on(device)
        if layout.kind == "part":
            return found.resized(layout.dim, divide(found.shape[layout.dim], self.level.parts))
        return found

    def tuple_type(self, version: Version) -> Tuple:
        devices = [Device(d) for d in self.level.devices]
        if devices:
            return Tuple(tuple(self.local(version, d) for d in devices))
        if isinstance(self.level.parts, int):
            return Tuple((self.local(version, UNKNOWN),) * self.level.parts)
        return Tuple((self.local(version, UNKNOWN),), more=True)

    def named(self, version: Version) -> DeviceValue:
        return DeviceValue(f"{version[0].name}s_{self.level.tag}", self.tuple_type(version))

    def spread_input(self, version: Version) -> None:
        value, layout = version
        out = self.tuples[version] = self.named(version)
        attributes: dict[str, Any] = {"device_keys": Keys(self.level.keys)}
        if not isinstance(self.level.parts, int):
            attributes["parts"] = self.level.parts
        if layout.kind == "part":
            attributes = {"dim": layout.dim, **attributes}
        self.eqns.append(DeviceEqn("scatter" if layout.kind == "part" else "broadcast", (value,), (out,), attributes))

    def conversion(self, conversion: Conversion) -> None:
        out = self.tuples[conversion.target] = self.named(conversion.target)
        attributes: dict[str, Any] = {}
        if conversion.op == "allreduce":
            how = conversion.source[1].how
            attributes = {} if how == "sum" else {"reduce": how}
        elif conversion.op == "allgather":
            attributes = {"dim": conversion.source[1].dim}
        else:
            attributes = {"dim": conversion.target[1].dim}
        source = self.ahead.pop(conversion.source, self.tuples[conversion.source])
        self.eqns.append(DeviceEqn(conversion.op, (source,), (out,), attributes))

    def segment(self, steps: Sequence[SpreadStep], ahead: Sequence[Version]) -> None:
        """One pmap. Parts that are gathered for the next one pass through it, so that they are not gathered earlier."""
        device = Device(self.level.variable)
        made = DeviceBody(steps, self.local, device)
        leaving = [v for step in steps for v in step.results if v in self.needed]
        if not leaving:
            return
        if not made.inputs:
            # A pmap runs on the devices of its operands; equations without any follow those of an input.
            made.take(self.carrier())
        passed = {v: DeviceValue(f"{v[0].name}_next", self.local(v, device)) for v in ahead}
        first = tuple(DeviceEqn("Identity", (made.take(v),), (out,)) for v, out in passed.items())
        results = (*(made.values[v] for v in leaving), *passed.values())
        body = Function("", tuple(made.inputs.values()), first + made.eqns, results, None, self.level.variable)
        operands = tuple(self.tuples[v] for v in made.inputs)
        self.tuples.update({v: self.named(v) for v in leaving})
        self.ahead.update({v: self.named(v) for v in ahead})
        outs = (*(self.tuples[v] for v in leaving), *(self.ahead[v] for v in ahead))
        self.eqns.append(DeviceEqn("pmap", operands, outs, {}, body))

    def carrier(self) -> Version:
        if not self.plan.entries:
            version = (self.body.inputs[0], COPY)
            self.plan.entries[version] = None
            self.spread_input(version)
        return next(iter(self.plan.entries))

    def output(self, value: DeviceValue) -> DeviceValue:
        layout = self.original.get(value)
        if layout is None:
            return value
        found = self.tuples[value, layout]
        whole = tensor_of(value).on(self.level.home)
        if layout.kind == "part":
            out = DeviceValue(f"{value.name}_{self.level.tag}", whole)
            self.eqns.append(DeviceEqn("gather", (found,), (out,), {"dim": layout.dim, "to_device": self.level.home}))
            return out
        if layout.kind == "summand":
            if (value, COPY) not in self.tuples:
                self.conversion(Conversion("allreduce", (value, layout), (value, COPY), 0))
            found = self.tuples[value, COPY]
        if not self.level.home.is_concrete:
            return found
        out = DeviceValue(f"{value.name}_{self.level.tag}", whole)
        self.eqns.append(DeviceEqn("send", (found,), (out,), {"to_device": self.level.home}))
        return out


class DeviceBody:
    """The equations of some steps on a device; ``local`` says what a version is there."""

    def __init__(self, steps: Sequence[SpreadStep], local: Callable[[Version, Device], Tensor], device: Device) -> None:
        self.local, self.device = local, device
        self.values: dict[Version, DeviceValue] = {}
        self.inputs: dict[Version, DeviceValue] = {}
        self.eqns = tuple(self.equation(step) for step in steps)

    def take(self, version: Version) -> DeviceValue:
        """A version as an input, unless it is made here."""
        if version not in self.values:
            self.values[version] = self.inputs[version] = DeviceValue(version[0].name, self.local(version, self.device))
        return self.values[version]

    def equation(self, step: SpreadStep) -> DeviceEqn:
        operands = tuple(v if isinstance(v, Number) else self.take(v) for v in step.operands)
        for v in step.results:
            self.values[v] = DeviceValue(v[0].name, self.local(v, self.device))
        results = tuple(self.values[v] for v in step.results)
        return DeviceEqn(step.eqn.op, operands, results, self.attributes(step, operands, results))

    def attributes(
        self, step: SpreadStep, operands: Sequence[Operand], results: Sequence[DeviceValue]
    ) -> dict[str, Any]:
        given = params_of(step.eqn)
        kept = {"device": self.device} if "device" in step.eqn.attributes else {}
        whole = all(layout == COPY for _, layout in versions(step))
        if whole:
            return {**given, **kept}
        return {**localize(step.eqn.op, given, signatures(operands), signatures(results)), **kept}


def versions(step: SpreadStep) -> list[Version]:
    """What a step takes and gives."""
    return [v for v in step.operands if not isinstance(v, Number)] + list(step.results)

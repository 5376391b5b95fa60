"""Spreading a sequence of equations over the devices of one level.

Every value gets a layout: a copy on each device, a part of a dim on each, or a summand on each. Factor rules say which
parts an op needs and what it gives; where a layout does not fit, a collective converts it. Equations between
collectives become one pmap:

    a = MatMul(x, wA)                  ys = pmap(lambda d: lambda (x, wA, wB): {
    y = MatMul(a, wB)            ==>       a = MatMul(x, wA); y = MatMul(a, wB); return y
    return y                           }, (xs, wAs, wBs))
                                       y = allreduce(ys)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.core.factors import Dims, Factors
from meshwright.device.classes import Classes, Place, divides, leading
from meshwright.device.dims import Size, is_cut, sized
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.ops import DeviceOp, IndependentOperands
from meshwright.device.tensor_ops import is_elementwise, shares_of, tensor_of
from meshwright.device.types import Device


class SpreadSharding(NamedTuple):
    """``copy``, ``part`` of a dim, or ``summand`` under a reduction."""

    kind: str
    dim: int = 0
    how: str = "sum"


COPY = SpreadSharding("copy")


@dataclass(frozen=True)
class SpreadLevel:
    """The devices a body is spread over: how many, how they are looked up, and what to call things."""

    parts: Size
    keys: tuple[Any, ...]
    variable: str
    tag: str
    home: Device
    devices: tuple[int, ...] = ()


@dataclass
class SpreadPlan:
    """What each equation does on parts, and the conversions between."""

    steps: list[SpreadStep] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)
    depth: dict[Version, int] = field(default_factory=dict)
    made: set[Version] = field(default_factory=set)
    inputs: dict[Version, None] = field(default_factory=dict)


Version = tuple[DeviceValue, SpreadSharding]


class SpreadStep(NamedTuple):
    """An equation on parts."""

    eqn: DeviceEqn
    operands: tuple[Version | Number, ...]
    results: tuple[Version, ...]
    depth: int

    def __hash__(self) -> int:
        return hash(self.eqn)


class Conversion(NamedTuple):
    """A collective that gives a value another layout."""

    op: str
    source: Version
    target: Version
    depth: int


class Planner:
    """Walks a body forward and decides layouts."""

    def __init__(
        self, body: Function, classes: Classes, split: frozenset[Place], parts: Size, *, sharded: int = 0
    ) -> None:
        self.body, self.classes, self.split, self.parts = body, classes, split, parts
        self.sharded = sharded  # how much of an update is split: 1 states, 2 gradients, 3 parameters
        self.plan = SpreadPlan()
        self.original: dict[DeviceValue, SpreadSharding] = {}
        self.inputs = set(body.inputs)
        self.updates = self.update_equations() if sharded else frozenset()
        self.updated = {v for eqn in self.updates for v in eqn.values}
        for eqn in self.equations():
            self.step(eqn)
        for value in body.outputs:
            if value in self.inputs and value not in self.original:
                self.version(value, self.wanted(value))

    def equations(self) -> Iterable[DeviceEqn]:
        """The equations to plan, in order."""
        return self.body.eqns

    # Layouts of values

    def wanted(self, value: DeviceValue) -> SpreadSharding:
        """The layout a value has by its class."""
        shape = tensor_of(value).shape
        for dim in range(len(shape)):
            if self.classes.root((value, dim)) in self.split and divides(shape[dim], self.parts):
                return SpreadSharding("part", dim)
        return COPY

    def current(self, value: DeviceValue) -> SpreadSharding:
        return self.original.get(value) or self.wanted(value)

    def version(self, value: DeviceValue, layout: SpreadSharding) -> Version:
        """A value in a layout, converted if it has another."""
        found = (value, layout)
        if found in self.plan.depth:
            return found
        if value in self.inputs and value not in self.original:
            held = self.sharded >= 3 or value in self.updated
            first = (self.shard_of(value) if held and layout == COPY else None) or layout
            self.original[value] = first
            self.plan.inputs[value, first] = None
            self.plan.depth[value, first] = 0
            return self.version(value, layout)
        have = self.original[value]
        if have.kind == "part" and layout.kind == "part":
            return self.convert("own_part", self.version(value, COPY), found)
        if have.kind == "summand":
            if layout.kind == "part" and have.how == "sum" and self.sharded != 1:
                return self.convert("reduce_scatter", (value, have), found)
            if layout.kind == "part":
                return self.convert("own_part", self.version(value, COPY), found)
            return self.convert("allreduce", (value, have), found)
        return self.convert("allgather" if have.kind == "part" else "own_part", (value, have), found)

    def convert(self, op: str, source: Version, target: Version) -> Version:
        # What a segment makes leaves it as a tuple, so that a collective on it belongs to the next one.
        depth = self.plan.depth[source] + (source in self.plan.made)
        self.plan.depth[target] = depth
        self.plan.conversions.append(Conversion(op, source, target, depth))
        return target

    def shard_of(self, value: DeviceValue) -> SpreadSharding | None:
        shape = tensor_of(value).shape
        batched = any(self.classes.root((value, d)) in self.split for d in range(len(shape)))
        dims = [d for d, n in enumerate(shape) if divides(n, self.parts)]
        if batched or not dims:
            return None
        # A dim that no other level has cut is likelier to divide again.
        return SpreadSharding("part", next((d for d in dims if not is_cut(shape[d])), dims[0]))

    # Equations

    def step(self, eqn: DeviceEqn) -> None:
        rule = self.classes.rules[eqn]
        layouts, results = [COPY] * len(eqn.inputs), [COPY] * len(eqn.outputs)
        shares = shares_of(eqn) if rule is not None else ()
        found = {share: self.factor(eqn, rule, share) for share in shares if rule is not None}
        if not any(found.values()) and eqn not in self.updates and self.passes_sum(eqn, eqn.values):
            layouts = [self.current(x) if isinstance(x, DeviceValue) else COPY for x in eqn.inputs]
            self.emit(eqn, layouts, [SpreadSharding("summand")] * len(eqn.outputs))
            return
        for share, factor in found.items():
            assert rule is not None
            if factor is None and eqn in self.updates:
                factor = self.shard_factor(eqn, rule, share)
            if factor is None:
                continue
            for n in share.operands:
                layouts[n] = _place(rule.operands[n], factor) if isinstance(eqn.inputs[n], DeviceValue) else COPY
            for n in share.results:
                placed = _place(rule.results[n], factor)
                results[n] = placed if placed is not COPY else SpreadSharding("summand", how=rule.combine)
        self.emit(eqn, layouts, results)

    def emit(self, eqn: DeviceEqn, layouts: Sequence[SpreadSharding], results: Sequence[SpreadSharding]) -> None:
        operands: list[Version | Number] = []
        for x, layout in zip(eqn.inputs, layouts, strict=True):
            operands.append(self.version(x, layout) if isinstance(x, DeviceValue) else x)
        depth = max((self.plan.depth[v] for v in operands if not isinstance(v, Number)), default=0)
        made = []
        for value, layout in zip(eqn.outputs, results, strict=True):
            self.original[value] = layout
            self.plan.depth[value, layout] = depth
            self.plan.made.add((value, layout))
            made.append((value, layout))
        self.plan.steps.append(SpreadStep(eqn, tuple(operands), tuple(made), depth))

    def factor(self, eqn: DeviceEqn, rule: Factors, share: IndependentOperands) -> str | None:
        """The factor to split a share along: that of its result's class, or of an operand that is split already."""
        for n in share.results:
            layout = self.wanted(eqn.outputs[n])
            if layout.kind == "part":
                found = leading(rule.results[n], layout.dim, rule)
                if found is not None and self.allowed(found, eqn, rule, share):
                    return found
        for n in share.operands:
            x = eqn.inputs[n]
            layout = self.current(x) if isinstance(x, DeviceValue) else COPY
            if layout.kind == "part" and not (self.sharded and self.is_shard(x)):
                found = leading(rule.operands[n], layout.dim, rule)
                if found is not None and self.allowed(found, eqn, rule, share):
                    return found
        return None

    def is_shard(self, x: Operand) -> bool:
        return isinstance(x, DeviceValue) and x in self.inputs and self.wanted(x) == COPY

    def allowed(self, factor: str, eqn: DeviceEqn, rule: Factors, share: IndependentOperands) -> bool:
        if factor not in self.classes.splittable(eqn) or not divides(sized(rule.sizes[factor]), self.parts):
            return False
        for dims in (*rule.operands, *rule.results):
            for dim, names in enumerate(dims):
                if factor in names and leading(dims, dim, rule) != factor:
                    return False
        reduced = factor in rule.reduced
        everywhere = all(any(factor in names for names in rule.results[n]) for n in share.results)
        # The ops named here sum over a factor wherever a result lacks it, also one that another result has.
        return reduced or everywhere or isinstance(eqn.op, DeviceOp)

    def passes_sum(self, eqn: DeviceEqn, values: Sequence[DeviceValue]) -> bool:
        """Whether summands in give summands out: the op is linear in the operands that are summands."""
        summands = tuple(n for n, x in enumerate(eqn.inputs) if isinstance(x, DeviceValue) and self.is_summand(x))
        if not summands or any(self.current(x).kind == "part" for x in values):
            return False
        return self.classes.is_linear_in(eqn, summands)

    def is_summand(self, value: DeviceValue) -> bool:
        found = self.original.get(value)
        return found is not None and found.kind == "summand" and found.how == "sum"

    def update_equations(self) -> frozenset[DeviceEqn]:
        """The equations of updates: those after a reduction, and what only they use.

        That is a decayed moment, or a gradient times a learning rate, which could be reduced after as well as before.
        """
        steps = Planner(self.body, self.classes, self.split, self.parts).plan.steps
        if all(layout == COPY for step in steps for _, layout in (*_versions(step), *step.results)):
            return frozenset(self.body.eqns)  # the batch does not enter: the body is an update as a whole
        found = {step.eqn for step in steps if step.depth > 0}
        uses: dict[DeviceValue, list[DeviceEqn]] = {}
        for eqn in self.body.eqns:
            for v in eqn.values:
                uses.setdefault(v, []).append(eqn)
        for step in reversed(steps):
            layouts = [layout for _, layout in _versions(step)]
            whole = all(layout == COPY for layout in (*layouts, *(v[1] for v in step.results)))
            summands = [layout.kind for layout in layouts].count("summand") == 1 and is_elementwise(step.eqn)
            after = [eqn for v in step.eqn.outputs for eqn in uses.get(v, ())]
            if (whole or summands) and after and all(eqn in found for eqn in after):
                found.add(step.eqn)
        return frozenset(found)

    def shard_factor(self, eqn: DeviceEqn, rule: Factors, share: IndependentOperands) -> str | None:
        found = []
        for dims in (rule.results[n] for n in share.results):
            for dim in range(len(dims)):
                factor = leading(dims, dim, rule)
                if factor is not None and self.allowed(factor, eqn, rule, share) and factor not in rule.reduced:
                    found.append(factor)
        uncut = [factor for factor in found if not is_cut(sized(rule.sizes[factor]))]
        return next(iter(uncut or found), None)


def _versions(step: SpreadStep) -> list[Version]:
    return [v for v in step.operands if not isinstance(v, Number)]


def _place(dims: Dims, factor: str) -> SpreadSharding:
    for dim, names in enumerate(dims):
        if factor in names:
            return SpreadSharding("part", dim)
    return COPY

"""Spreading a sequence of equations over the devices of one level.

Every value gets a layout: a copy on each device, a part of a dim on each, or a summand on each. The partitioner says
which layouts of operands an equation runs on, and which its results come out in, on a mesh of one axis; where a value
has another, a collective converts it. Equations between collectives become one pmap:

    a = MatMul(x, wA)                  ys = pmap(lambda d: lambda (x, wA, wB): {
    y = MatMul(a, wB)            ==>       a = MatMul(x, wA); y = MatMul(a, wB); return y
    return y                           }, (xs, wAs, wBs))
                                       y = allreduce(ys)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshwright.core.dtypes import BOOL
from meshwright.core.factors import Dims, Factors
from meshwright.core.types import TensorType
from meshwright.device.classes import Classes, Place, divides, leading
from meshwright.device.device_map import Members
from meshwright.device.dims import Size, divide, is_cut, sized
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.tensor_ops import SYMBOL_SIZE, is_elementwise, shares_of, signatures, tensor_of
from meshwright.device.types import Device, Tensor
from meshwright.partition.choose import choose, numbered, question
from meshwright.partition.cost import Planning
from meshwright.partition.layouts import layout as sharding_of
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.named import TensorSharding


class SpreadSharding(NamedTuple):
    """``copy``, ``part`` of a dim, or ``summand`` under a reduction."""

    kind: str
    dim: int = 0
    how: str = "sum"


COPY = SpreadSharding("copy")
SUMMAND = SpreadSharding("summand")
# What makes a part or a copy of a value; from part to part, it is put together first.
CONVERSIONS = {
    ("part", "copy"): "allgather",
    ("copy", "part"): "own_part",
    ("summand", "copy"): "allreduce",
    ("summand", "part"): "reduce_scatter",
}
FOLLOWED = Planning(typed=True)  # an equation runs on its operands as they are, wherever it can
Version = tuple[DeviceValue, SpreadSharding]
Layouts = tuple[Sequence[SpreadSharding], Sequence[SpreadSharding]]


class SpreadLevel(NamedTuple):
    """The devices that bodies are spread over: how many, how they are looked up, and what to call things."""

    parts: Size
    keys: tuple[int | str, ...]
    variable: str
    tag: str
    devices: Members = ()


class SpreadStep(NamedTuple):
    """An equation on parts."""

    eqn: DeviceEqn
    operands: tuple[Version | Number, ...]
    results: tuple[Version, ...]
    depth: int

    def __hash__(self) -> int:
        return hash(self.eqn)

    @property
    def read(self) -> list[Version]:
        """The versions of values that it takes."""
        return [v for v in self.operands if not isinstance(v, Number)]

    @property
    def whole(self) -> bool:
        """Whether every device does the same."""
        return all(layout == COPY for _, layout in (*self.read, *self.results))


class Conversion(NamedTuple):
    """A collective that gives a value another layout."""

    op: str
    source: Version
    target: Version


class Planner:
    """Walks a body forward and asks for layouts: the steps, the conversions between, and the versions of inputs.

    ``split`` are the classes of dims that are held in parts; ``sharded`` is how much of an update is split as well:
    1 states, 2 gradients, 3 parameters. ``original`` is the layout in which a value is made.
    """

    def __init__(
        self, body: Function, classes: Classes, split: frozenset[Place], parts: Size, *, sharded: int = 0
    ) -> None:
        self.body, self.classes, self.split, self.parts, self.sharded = body, classes, split, parts, sharded
        self.mesh = AbstractMesh([parts if isinstance(parts, int) and parts > 1 else 2], ["devices"])
        self.steps: list[SpreadStep] = []
        self.conversions: list[Conversion] = []
        self.depth: dict[Version, int] = {}
        self.entries: dict[Version, None] = {}
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

    def current(self, x: Operand) -> SpreadSharding:
        """The layout an operand has; a parameter that is held in parts is gathered to be used."""
        if isinstance(x, Number):
            return COPY
        return (not (self.sharded and x in self.inputs) and self.original.get(x)) or self.wanted(x)

    def version(self, value: DeviceValue, layout: SpreadSharding) -> Version:
        """A value in a layout, converted if it has another."""
        found = (value, layout)
        if found in self.depth:
            return found
        if value in self.inputs and value not in self.original:
            held = self.sharded >= 3 or value in self.updated
            first = self.shard_of(value) if held and layout == COPY else layout
            self.original[value] = first
            self.entries[value, first] = None
            self.depth[value, first] = 0
            return self.version(value, layout)
        have = self.original[value]
        op = CONVERSIONS.get((have.kind, layout.kind))
        if op is None or (op == "reduce_scatter" and (have.how != "sum" or self.sharded == 1)):
            have, op = self.version(value, COPY)[1], "own_part"
        # What a segment makes leaves it as a tuple, so that a collective on it belongs to the next one.
        self.depth[found] = self.depth[value, have] + (value not in self.inputs and have == self.original[value])
        self.conversions.append(Conversion(op, (value, have), found))
        return found

    def local(self, version: Version, device: Device) -> Tensor:
        """What a version is on a device."""
        value, layout = version
        found = tensor_of(value).on(device)
        if layout.kind == "part":
            return found.resized(layout.dim, divide(found.shape[layout.dim], self.parts))
        return found

    def shard_of(self, value: DeviceValue, rule: Factors | None = None, dims: Dims = ()) -> SpreadSharding:
        """The part of a parameter, its gradient or its state that a device holds, where the batch does not split it; of
        a result with these dims by a rule, one that the equation may be split along."""
        shape = tensor_of(value).shape
        batched = any(self.classes.root((value, d)) in self.split for d in range(len(shape)))
        found = [SpreadSharding("part", d) for d, n in enumerate(shape) if divides(n, self.parts)]
        if rule is not None:
            found = [part for part in found if self.factors(rule, [dims], [part])]
        if batched or not found:
            return COPY
        # A dim that no other level has cut is likelier to divide again.
        return next((part for part in found if not is_cut(shape[part.dim])), found[0])

    # Equations

    def step(self, eqn: DeviceEqn) -> None:
        layouts, results = self.layouts(eqn)
        operands: list[Version | Number] = []
        for x, layout in zip(eqn.inputs, layouts, strict=True):
            operands.append(x if isinstance(x, Number) else self.version(x, layout))
        depth = max((self.depth[v] for v in operands if not isinstance(v, Number)), default=0)
        made = tuple(zip(eqn.outputs, results, strict=True))
        self.original.update(made)
        self.depth.update(dict.fromkeys(made, depth))
        self.steps.append(SpreadStep(eqn, tuple(operands), made, depth))

    def layouts(self, eqn: DeviceEqn) -> Layouts:
        """The layouts of an equation's operands and results; a question that was asked before is not asked again."""
        key = (eqn, *map(self.current, eqn.inputs), *map(self.wanted, eqn.outputs), self.parts, eqn in self.updates)
        found: Layouts | None = self.classes.answers.get(key)
        if found is None:
            found = self.classes.answers[key] = self.asked(eqn)
        return found

    def asked(self, eqn: DeviceEqn) -> Layouts:
        """What the partitioner says of an equation that may be split as the classes of its dims are."""
        rule, is_update = self.classes.rules[eqn], eqn in self.updates
        have, want = [self.current(x) for x in eqn.inputs], [self.wanted(v) for v in eqn.outputs]
        whole = [COPY] * len(have), [COPY] * len(want)
        if rule is None:
            return whole
        factors = self.factors(rule, rule.results, want) or self.factors(rule, rule.operands, have)
        if is_update and not factors:
            want = [self.shard_of(v, rule, dims) for v, dims in zip(eqn.outputs, rule.results, strict=True)]
            factors = self.factors(rule, rule.results, want)
        summands = tuple(n for n, layout in enumerate(have) if layout == SUMMAND)
        groups = self.classes.linear_in(eqn, summands) if summands and not factors and not is_update else []
        if not factors and not groups:
            return whole
        want = [SUMMAND] * len(want) if groups else want
        operands, results = ([self.type_of(*arg) for arg in signatures(xs)] for xs in (eqn.inputs, eqn.outputs))
        sizes = {name: self.number(sized(n)) for name, n in rule.sizes.items()}
        rule = rule._replace(sizes=sizes, guarded=frozenset(sizes) - factors)
        found = choose(
            question(
                self.mesh,
                numbered(rule, operands[0].dtype if operands else BOOL),
                groups,
                operands,
                results,
                [self.sharding(t, layout) for t, layout in zip(operands, have, strict=True)],
                [None if s == COPY else self.sharding(t, s) for t, s in zip(results, want, strict=True)],
                [1] * len(results),
                FOLLOWED,
            )
        )
        how = "sum" if groups else rule.combine
        layouts, made = ([_layout(s, how) for s in given] for given in (found.operands, found.results))
        for share in shares_of(eqn):
            for n in share.results:
                if made[n] == COPY and any(layouts[m].kind == "part" for m in share.operands):
                    made[n] = SUMMAND  # of a result that lacks a factor which another result has
        return layouts, made

    def factors(self, rule: Factors, tensors: Sequence[Dims], layouts: Sequence[SpreadSharding]) -> frozenset[str]:
        """The factors that some layouts split, of those that may be."""
        split = {leading(dims, s.dim, rule) for dims, s in zip(tensors, layouts, strict=True) if s.kind == "part"}
        return frozenset(f for f in rule.separable & split if divides(sized(rule.sizes[f]), self.parts))

    # Questions to the partitioner

    def number(self, size: Size) -> int:
        """The number that stands for a size; where a symbol decides, one that the devices divide."""
        if isinstance(size, int) and (size == 1 or self.parts == self.mesh.size):
            return size
        return self.mesh.size * (size if isinstance(size, int) else SYMBOL_SIZE)

    def type_of(self, shape: Sequence[Size], dtype: object) -> TensorType:
        return TensorType(tuple(map(self.number, shape)), dtype)  # type: ignore[arg-type]

    def sharding(self, t: TensorType, layout: SpreadSharding) -> TensorSharding:
        axes = self.mesh.axes
        dims = tuple(axes if layout.kind == "part" and layout.dim == d else () for d in range(t.ndim))
        return sharding_of(self.mesh, dims, axes if layout.kind == "summand" else (), layout.how)

    def update_equations(self) -> frozenset[DeviceEqn]:
        """The equations of updates: those after a reduction, and what only they use.

        That is a decayed moment, or a gradient times a learning rate, which could be reduced after as well as before.
        """
        steps = Planner(self.body, self.classes, self.split, self.parts).steps
        if all(step.whole for step in steps):
            return frozenset(self.body.eqns)  # the batch does not enter: the body is an update as a whole
        found = {step.eqn for step in steps if step.depth > 0}
        uses: dict[DeviceValue, list[DeviceEqn]] = {}
        for eqn in self.body.eqns:
            for v in eqn.values:
                uses.setdefault(v, []).append(eqn)
        for step in reversed(steps):
            kinds = [layout.kind for _, layout in step.read]
            summands = kinds.count("summand") == 1 and is_elementwise(step.eqn)
            after = [eqn for v in step.eqn.outputs for eqn in uses.get(v, ())]
            if (step.whole or summands) and after and all(eqn in found for eqn in after):
                found.add(step.eqn)
        return frozenset(found)


def _layout(sharding: TensorSharding, how: str) -> SpreadSharding:
    part = next((SpreadSharding("part", n) for n, dim in enumerate(sharding.dims) if dim.axes), None)
    return part or (SpreadSharding("summand", how=how) if sharding.unreduced else COPY)

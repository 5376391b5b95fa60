"""A program as decisions: groups of equations that are laid out together, and the values that go between them.

A product, a lookup, a sum of two values from different places can each be split in several ways; that is a decision.
What only follows from one (a chain of elementwise ops, a transpose, the mean of a row) belongs to its group. Where a
small value is made larger (a scale, broadcast), whoever reads it says in which layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from meshwright.core.facts import Across, Structure
from meshwright.core.op import No, is_contraction, is_elementwise
from meshwright.core.program import Atom, Eqn, Literal, Var
from meshwright.core.types import TensorType
from meshwright.simulate.tasks import TaskBlock

SMALLER = 4  # times: a value that is so much smaller than what is made of it is laid out as that is


@dataclass(eq=False)
class LaidValue:
    """A value of the program; of a scan's body, that of all its iterations. ``free``: devices make it by themselves."""

    type: TensorType
    step: LayoutStep | None = None
    place: int = 0  # among the results of its step
    free: bool = False
    stored: bool = False
    var: Var | None = None
    weight: int = 1  # of how many layers this one stands for, if one is read of many that are equal


class Products(NamedTuple):
    """What a kernel multiplies: the FLOPs, without those that it computes again, their dtype, and in how many ops."""

    flops: float
    dtype: str
    ops: int


@dataclass(eq=False)
class LayoutStep:
    """An equation, an argument, or what a scan does with rows and carries."""

    kind: str  # eqn, input, carry, row, stack
    inputs: list[LaidValue]
    outputs: list[LaidValue]
    times: int = 1
    eqn: Eqn | None = None
    seconds: float = 0.0  # of the kernel that ends with it, on one device
    products: Products | None = None  # in that kernel
    group: LayoutGroup | None = None
    main: int | None = 0  # the operand that it is laid out by; None if that is another value of its kernel
    kernel: int | None = None
    again: LaidValue | None = None  # what a carry becomes
    like: LaidValue | None = None  # the value whose layout it has, if that is none of its operands
    weight: int = 1


@dataclass(eq=False)
class LayoutGroup:
    """Steps that are laid out by the first of them. Those that play the same role in equal layers have one number."""

    number: int
    first: LayoutStep
    steps: list[LayoutStep]
    role: int = 0
    count: int = 1  # of groups that play its role, in the whole program


@dataclass(eq=False)
class LayoutGraph:
    """The groups of a program, its arguments, all steps in order, its results, and the value that each variable is."""

    groups: list[LayoutGroup]
    inputs: list[LaidValue]
    steps: list[LayoutStep]
    outputs: list[LaidValue]
    values: dict[Var, LaidValue]


class GraphReader:
    """Reads the tasks of a program of one device into a graph; ``repeated`` are the values of a layer that stands for
    ``layers`` of them."""

    def __init__(self, block: TaskBlock, repeated: Set[Var] = frozenset(), layers: int = 1) -> None:
        self.steps: list[LayoutStep] = []
        self.kernels = 0
        self.repeated, self.layers = repeated, layers
        self.values: dict[Var, LaidValue] = {}
        env: dict[Atom, LaidValue] = {}
        inputs = []
        for var in block.program.inputs:
            value = LaidValue(var.type, stored=True, weight=self.weight(var, 1))
            value.step = LayoutStep("input", [], [value], weight=value.weight)
            self.steps.append(value.step)
            env[var] = value
            inputs.append(value)
        self.read(block, env, 1, 1)
        groups = Grouping(self.steps).groups
        outputs = [self.value(atom, env) for atom in block.program.outputs]
        self.graph = LayoutGraph(groups, inputs, self.steps, outputs, self.values)

    def weight(self, var: Var, outer: int) -> int:
        return self.layers if var in self.repeated else outer

    def read(self, block: TaskBlock, env: dict[Atom, LaidValue], times: int, outer: int) -> None:
        program = block.program
        seconds: dict[int, float] = {}
        products: dict[int, Products] = {}
        kernels: dict[int, int] = {}
        bodies: dict[int, TaskBlock] = {}
        for kernel, task in zip(block.kernels.kernels, block.tasks, strict=True):
            last = next((e for e in kernel.eqns if is_product(e)), kernel.eqns[-1])
            seconds[id(last)] = task.cost.seconds
            if task.cost.matmul_flops and task.cost.dtype:
                flops = task.cost.matmul_flops - (task.cost.again_flops or 0.0)
                products[id(last)] = Products(flops, task.cost.dtype, sum(map(is_product, kernel.eqns)))
            if task.body is not None:
                bodies[id(kernel.eqns[-1])] = task.body
            if not kernel.alone:
                self.kernels += 1
                kernels.update((id(e), self.kernels) for e in kernel.eqns)
        stored = {v for kernel in block.kernels.kernels for v in kernel.writes}
        for var, _ in program.constants:
            env[var] = LaidValue(var.type, free=True)
        for eqn in program.eqns:
            body = bodies.get(id(eqn))
            if body is not None and eqn.op.structure is Structure.ROWS:
                self.scan(eqn, body, env, times, self.weight(eqn.outputs[0], outer) if eqn.outputs else outer)
                continue
            given = [self.value(atom, env) for atom in eqn.inputs]
            free = all(x.free for x in given) and not eqn.op.effects
            step = LayoutStep("eqn", given, [], times, eqn, seconds.get(id(eqn), 0.0), products.get(id(eqn)))
            step.kernel = kernels.get(id(eqn))
            for n, var in enumerate(eqn.outputs):
                step.weight = self.weight(var, outer)
                env[var] = LaidValue(var.type, step, n, free, var in stored, var, step.weight)
                step.outputs.append(env[var])
            if not free:
                self.steps.append(step)
        self.values.update((var, value) for var, value in env.items() if isinstance(var, Var))

    def value(self, atom: Atom, env: Mapping[Atom, LaidValue]) -> LaidValue:
        return LaidValue(atom.type, free=True) if isinstance(atom, Literal) else env[atom]

    def scan(self, eqn: Eqn, body: TaskBlock, env: dict[Atom, LaidValue], times: int, weight: int) -> None:
        consts, carried, length = eqn.params["consts"], eqn.params["carry"], eqn.params["length"]
        inner: dict[Atom, LaidValue] = {}
        carries = []
        for n, (atom, var) in enumerate(zip(eqn.inputs, body.program.inputs, strict=True)):
            outer = self.value(atom, env)
            if n < consts:
                inner[var] = outer
                continue
            kind = "carry" if n < consts + carried else "row"
            count = times if kind == "carry" else times * length
            step = LayoutStep(kind, [outer], [], count, weight=weight)
            inner[var] = LaidValue(var.type, step, stored=kind == "carry", var=var, weight=weight)
            step.outputs = [inner[var]]
            self.steps.append(step)
            if kind == "carry":
                carries.append(step)
        self.read(body, inner, times * length, weight)
        for n, (atom, var) in enumerate(zip(body.program.outputs, eqn.outputs, strict=True)):
            found = self.value(atom, inner)
            if n < carried:
                carries[n].again = found
                env[var] = carries[n].outputs[0]
                continue
            step = LayoutStep("stack", [found], [], times, weight=weight)
            env[var] = LaidValue(var.type, step, stored=True, weight=weight)
            step.outputs = [env[var]]
            self.steps.append(step)


class Grouping:
    """Puts steps into groups, one after the other."""

    def __init__(self, steps: Sequence[LayoutStep]) -> None:
        self.merged: dict[int, LayoutGroup] = {}
        self.begun: dict[Any, LayoutStep] = {}  # the first decision of each kernel on values of a shape
        self.made: list[LayoutGroup] = []
        self.read = Counter(value for step in steps for value in step.inputs)
        for step in steps:
            self.add(step)
        self.join_updates(steps)
        self.groups = [g for g in self.made if self.find(g) is g]
        for number, group in enumerate(self.groups):
            group.number = number
        for step in steps:
            step.group = self.find(step.group) if step.group is not None else None

    def find(self, group: LayoutGroup) -> LayoutGroup:
        while id(group) in self.merged:
            group = self.merged[id(group)]
        return group

    def of(self, value: LaidValue) -> LayoutGroup | None:
        """The group that lays a value out; None for what its readers lay out."""
        step = value.step
        return None if step is None or step.group is None else self.find(step.group)

    def begin(self, step: LayoutStep) -> None:
        group = LayoutGroup(len(self.made), step, [step])
        self.made.append(group)
        step.group = group

    def add(self, step: LayoutStep) -> None:
        decides = step.kind == "eqn" and (is_product(step.eqn) or not _is_plain(step.eqn))
        if step.kind in ("input", "carry") or decides or self.stacks_sums(step):
            self.begin(step)
            return
        if _is_adapter(step):
            return
        read = {n: g for n, x in enumerate(step.inputs) if (g := self.of(x)) is not None}
        if not read:  # what it reads is laid out by its readers: so is it, unless it belongs to no argument
            if any(self.source(x) is not None for x in step.inputs):
                self.begin(step)
            return
        large = max(x.type.nbytes for x in step.inputs)
        wide = [n for n in read if step.inputs[n].type.nbytes * SMALLER > large] or list(read)
        groups = {id(read[n]): read[n] for n in wide}
        shape = step.outputs[0].type.shape
        own = [n for n in wide if read[n].first.kind == "input" and step.inputs[n].type.shape == shape]
        main: int | None
        if len(groups) > 1 and own:  # an update: it is laid out as the parameter is
            main, group = own[0], read[own[0]]
            for other in (read[n] for n in own[1:]):
                if other is not group and other.first.outputs[0].type.shape == group.first.outputs[0].type.shape:
                    self.merge(other, group)
        elif len(groups) == 1:
            main = max(wide, key=lambda n: step.inputs[n].type.nbytes)
            group = read[main]
        else:
            known = self.begun.setdefault((step.kernel, shape), step)
            if known is step or step.kernel is None or not _is_elementwise(step):
                self.begin(step)
                return
            assert known.group is not None
            main, group, step.like = None, self.find(known.group), known.outputs[0]
        step.group, step.main = group, main
        self.find(group).steps.append(step)

    def join_updates(self, steps: Sequence[LayoutStep]) -> None:
        """Put what is made of a gradient for the update of one parameter alone (its square, say) where the update is: a
        gradient that is a partial sum is summed once, into the layout of the parameter."""
        readers: dict[LaidValue, list[LayoutStep]] = {}
        for step in steps:
            for value in (*step.inputs, *([step.again] if step.again is not None else [])):
                readers.setdefault(value, []).append(step)
        joined: dict[LayoutStep, LayoutGroup] = {}
        for step in reversed(steps):
            if step.group is None or self.find(step.group).first is step or not _is_elementwise(step):
                continue
            group, shape = self.find(step.group), step.outputs[0].type.shape
            into = {id(g): g for r in readers.get(step.outputs[0], []) if (g := joined.get(r) or self.group(r))}
            if len(into) != 1 or len(step.outputs) != 1 or id(group) in into:
                continue
            (other,) = into.values()
            if other.first.kind == "input" and other.first.outputs[0].type.shape == shape:
                joined[step] = other
        for step in reversed(steps):
            if step in joined:
                assert step.group is not None
                self.find(step.group).steps.remove(step)
                step.group, step.main, step.like = joined[step], None, joined[step].first.outputs[0]
                step.group.steps.insert(1, step)

    def group(self, step: LayoutStep) -> LayoutGroup | None:
        return None if step.group is None else self.find(step.group)

    def stacks_sums(self, step: LayoutStep) -> bool:
        """Whether a loop stacks what a product makes for nobody else: a gradient, which may be a partial sum of which
        each device keeps a part."""
        made = step.inputs[0].step if step.kind == "stack" else None
        group = self.of(step.inputs[0]) if made is not None else None
        return group is not None and is_product(group.first.eqn) and self.read[step.inputs[0]] == 1

    def source(self, value: LaidValue) -> LayoutGroup | None:
        step = value.step
        while step is not None and step.group is None and step.inputs:
            step = step.inputs[0].step
        return None if step is None or step.group is None else self.find(step.group)

    def merge(self, group: LayoutGroup, into: LayoutGroup) -> None:
        into = self.find(into)
        self.merged[id(group)] = into
        into.steps += group.steps


def _is_adapter(step: LayoutStep) -> bool:
    """Whether a step makes a small value larger: then its readers lay it out."""
    if step.kind != "eqn" or len(step.inputs) != 1:
        return False
    return step.inputs[0].type.nbytes * SMALLER <= step.outputs[0].type.nbytes


def is_product(eqn: Eqn | None) -> bool:
    if eqn is None or isinstance(eqn.op.factors, No) or eqn.op.structure is not None:
        return False
    return is_contraction(eqn.op, [a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)


def _is_elementwise(step: LayoutStep) -> bool:
    return step.eqn is not None and is_elementwise(step.eqn)


def _is_plain(eqn: Eqn | None) -> bool:
    """Whether parts of the results are made of the same parts of the operands."""
    return eqn is not None and not isinstance(eqn.op.factors, No) and eqn.op.split.across not in _LOOKED_UP


_LOOKED_UP = (Across.READ, Across.WRITTEN, Across.CONVOLVED)


def read_graph(block: TaskBlock, repeated: Set[Var] = frozenset(), layers: int = 1) -> LayoutGraph:
    """The graph of a program's tasks on one device; ``repeated`` are the values of a layer that stands for so many."""
    return GraphReader(block, repeated, layers).graph


def alive_at_peak(graph: LayoutGraph) -> list[LaidValue]:
    """The values that are in memory where there are most bytes on one device: arguments, and what is read again."""
    last: dict[LaidValue, int] = {}
    for n, step in reversed(list(enumerate(graph.steps))):
        end = max([n, *(last.get(x, n) for x in step.outputs if not x.stored)])
        for value in (*step.inputs, *([step.again] if step.again is not None else [])):
            last[value] = max(last.get(value, 0), end)
    last.update(dict.fromkeys(graph.inputs, len(graph.steps)))
    bytes_at = [0] * (len(graph.steps) + 1)
    spans = []
    for n, step in enumerate(graph.steps):
        for value in step.outputs:
            if value.stored:
                spans.append((n, last.get(value, n), value))
                nbytes = value.weight * value.type.nbytes
                bytes_at[n] += nbytes
                if last.get(value, n) + 1 < len(bytes_at):
                    bytes_at[last.get(value, n) + 1] -= nbytes
    totals = list(accumulate(bytes_at))
    peak = totals.index(max(totals))
    return [value for first, end, value in spans if first <= peak <= end]

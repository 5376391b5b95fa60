"""The program of one device, written out from the places of values along one axis of a mesh.

`BatchDims` says it for parts of the batch, a choice of ways (`layout/solve`) for an axis along which anything is split.
What is written here is simulated and not run: types are those of a device, collectives stand where places differ.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshwright.core.factors import pointwise
from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import Op
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.types import TensorType
from meshwright.ops.collective import all_gather, all_to_all, pscatter, psum, psum_scatter
from meshwright.search.batch_dims import SUM, WHOLE, BatchDims, asked_places
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutGroup, LayoutStep
from meshwright.search.layout.model import LayoutModel
from meshwright.sharding.named import TensorSharding
from meshwright.simulate.tasks import TaskBlock

DATA, MODEL = "data", "model"
sum_of_parts = replace(psum, factors=pointwise, fusion=Fusion.ALONE)  # that a value is split does not matter to it


class AxisPlaces(Protocol):
    """Where the values of a program are along an axis: a dim, `WHOLE` or `SUM`, and where steps need their operands."""

    axis: str
    sums: bool  # whether they are taken; a device that has all has nothing to add up

    def place(self, value: LaidValue) -> int: ...
    def floats(self, value: LaidValue) -> bool: ...
    def needs(self, step: LayoutStep) -> Sequence[int]: ...
    def local(self, t: TensorType, place: int) -> TensorType: ...
    def move(self, have: int, need: int) -> tuple[Op, dict[str, object]]: ...


@dataclass(eq=False)
class WrittenBody:
    """A program, or the body of a loop, as it is written: the values there are, in each place, and equations."""

    parent: WrittenBody | None = None
    versions: dict[tuple[LaidValue, int], Var] = field(default_factory=dict)
    eqns: list[Eqn] = field(default_factory=list)
    floating: set[LaidValue] = field(default_factory=set)  # what is made where it is needed
    captured: list[tuple[Var, Var]] = field(default_factory=list)  # of the body around it, as which here
    constants: dict[Var, object] = field(default_factory=dict)


class Writer:
    """Writes the program of one device. ``marked`` are some values of the block's program, and then of the new one."""

    def __init__(self, block: TaskBlock, graph: LayoutGraph, places: AxisPlaces, marked: Collection[Var] = ()) -> None:
        self.of_marked = {graph.values[v] for v in marked if v in graph.values}
        self.marked: set[Var] = set()
        self.graph, self.places = graph, places
        self.literals: dict[LaidValue, Literal] = {}  # that a loop is given
        body = WrittenBody()
        inputs = []
        for value in graph.inputs:
            inputs.append(self.define(body, value, places.place(value)))
        self.write(block, body)
        outputs = [self.result(body, atom) for atom in block.program.outputs]
        self.program = Program(tuple(inputs), tuple(body.eqns), tuple(outputs), tuple(body.constants.items()))

    def define(self, body: WrittenBody, value: LaidValue, place: int) -> Var:
        var = body.versions[value, place] = Var(self.places.local(value.type, place))
        if value in self.of_marked:
            self.marked.add(var)
        return var

    def result(self, body: WrittenBody, atom: Atom) -> Atom:
        if isinstance(atom, Literal):
            return atom
        value = self.graph.values[atom]
        place = WHOLE if self.places.floats(value) else self.places.place(value)
        return self.get(body, atom, value, WHOLE if place == SUM else place)

    def write(self, block: TaskBlock, body: WrittenBody) -> None:
        bodies = {
            id(kernel.eqns[-1]): task.body
            for kernel, task in zip(block.kernels.kernels, block.tasks, strict=True)
            if task.body is not None and kernel.eqns[-1].op.structure is Structure.ROWS
        }
        for var, array in block.program.constants:
            body.constants[var] = array
            body.versions[self.graph.values[var], WHOLE] = var
        for eqn in block.program.eqns:
            inner = bodies.get(id(eqn))
            if inner is not None:
                self.scan(eqn, inner, body)
            elif eqn.outputs:
                value = self.graph.values[eqn.outputs[0]]
                if self.places.floats(value):
                    body.floating.update(self.graph.values[v] for v in eqn.outputs)
                else:
                    assert value.step is not None
                    places = [self.places.place(self.graph.values[v]) for v in eqn.outputs]
                    self.equation(body, value.step, self.places.needs(value.step), places)

    def equation(self, body: WrittenBody, step: LayoutStep, needs: Sequence[int], places: Sequence[int]) -> None:
        eqn = step.eqn
        assert eqn is not None
        inputs = [
            self.get(body, atom, value, need) for atom, value, need in zip(eqn.inputs, step.inputs, needs, strict=True)
        ]
        outputs = [self.define(body, value, place) for value, place in zip(step.outputs, places, strict=True)]
        params = eqn.op.localize(eqn.params, [a.type for a in inputs], [v.type for v in outputs])
        body.eqns.append(Eqn(eqn.op, inputs, params, outputs, eqn.source))

    def get(self, body: WrittenBody, atom: Atom, value: LaidValue, need: int) -> Atom:
        """A value in a place."""
        if isinstance(atom, Literal) or value in self.literals:
            return self.literals.get(value, atom)
        found = body.versions.get((value, need))
        if found is not None:
            return found
        if body.parent is not None and not self.made_in(body, value):
            outer = self.get(body.parent, atom, value, need)
            assert isinstance(outer, Var)
            inner = self.define(body, value, need)
            body.captured.append((outer, inner))
            return inner
        if self.places.floats(value):
            return self.made_again(body, atom, value, need)
        have = self.places.place(value)
        if (have, need) == (SUM, WHOLE) and not self.places.sums:
            body.versions[value, need] = body.versions[value, have]
            return body.versions[value, need]
        op, params = self.places.move(have, need)
        source = value.step.eqn.source if value.step is not None and value.step.eqn is not None else None
        made = self.define(body, value, need)
        body.eqns.append(Eqn(op, [body.versions[value, have]], params, [made], source))
        return made

    def made_in(self, body: WrittenBody, value: LaidValue) -> bool:
        return value in body.floating or (value, self.places.place(value)) in body.versions

    def made_again(self, body: WrittenBody, atom: Var, value: LaidValue, need: int) -> Atom:
        """What devices make by themselves, in the part that is needed."""
        step = value.step
        if step is None:  # a constant
            found = self.define(body, value, need)
            body.constants[found] = body.constants[body.versions[value, WHOLE]]
            return found
        needs = asked_places(step, need)
        if needs is None:
            whole = self.get(body, atom, value, WHOLE)
            op, params = self.places.move(WHOLE, need)
            found = self.define(body, value, need)
            body.eqns.append(Eqn(op, [whole], params, [found], None))
            return found
        others = [need if n == value.place else WHOLE for n in range(len(step.outputs))]
        self.equation(body, step, needs, others)
        return body.versions[value, need]

    def scan(self, eqn: Eqn, block: TaskBlock, body: WrittenBody) -> None:
        consts, carried = eqn.params["consts"], eqn.params["carry"]
        inner = WrittenBody(body)
        given: list[Atom] = []
        inputs: list[Var] = []
        carries = []
        for n, (atom, var) in enumerate(zip(eqn.inputs, block.program.inputs, strict=True)):
            if n < consts:
                if isinstance(atom, Literal):
                    self.literals[self.graph.values[var]] = atom
                continue
            value = self.graph.values[var]
            step = value.step
            assert step is not None
            given.append(self.get(body, atom, step.inputs[0], self.places.needs(step)[0]))
            place = self.places.place(value)
            inputs.append(self.define(inner, value, place))
            carries.append(place)
        self.write(block, inner)
        outputs: list[Atom] = []
        results = []
        for n, (atom, var) in enumerate(zip(block.program.outputs, eqn.outputs, strict=True)):
            value = self.graph.values[var]
            found = self.graph.values[atom] if isinstance(atom, Var) else value
            if n < carried:
                outputs.append(self.get(inner, atom, found, carries[n]))
                results.append(Var(self.places.local(value.type, carries[n])))
                body.versions[value, carries[n]] = results[-1]
            else:
                assert value.step is not None
                outputs.append(self.get(inner, atom, found, self.places.needs(value.step)[0]))
                results.append(self.define(body, value, self.places.place(value)))
        own = Program(
            (*(v for _, v in inner.captured), *inputs),
            tuple(inner.eqns),
            tuple(outputs),
            tuple(inner.constants.items()),
        )
        params = {**eqn.params, "body": own, "consts": len(inner.captured)}
        body.eqns.append(Eqn(eqn.op, [*(v for v, _ in inner.captured), *given], params, results, eqn.source))


def moved(axis: str, size: int, have: int, need: int) -> tuple[Op, dict[str, object]]:
    """The op that brings a value along an axis from one place into another, and its params."""
    sizes: dict[str, object] = {"axes": (axis,), "sizes": (size,)}
    if have == SUM:
        return (sum_of_parts, {"axes": (axis,)}) if need == WHOLE else (psum_scatter, {**sizes, "dim": need})
    if have == WHOLE:
        return pscatter, {**sizes, "dim": need}
    if need == WHOLE:
        return all_gather, {**sizes, "dim": have}
    return all_to_all, {**sizes, "split": need, "concat": have}


@dataclass(eq=False)
class BatchPlaces:
    """The places of values where a device has so many samples of those that a step was traced with."""

    dims: BatchDims
    traced: int
    rows: int
    sums: bool = True
    axis: str = DATA

    def place(self, value: LaidValue) -> int:
        return self.dims.place(value)

    def floats(self, value: LaidValue) -> bool:
        return value.free

    def needs(self, step: LayoutStep) -> Sequence[int]:
        return self.dims.needs[step]

    def local(self, t: TensorType, place: int) -> TensorType:
        if place < 0 or self.rows == self.traced:
            return t
        return t.with_(shape=(*t.shape[:place], t.shape[place] * self.rows // self.traced, *t.shape[place + 1 :]))

    def move(self, have: int, need: int) -> tuple[Op, dict[str, object]]:
        return moved(self.axis, 1, have, need)


class ChosenPlaces:
    """The places of values along the axis of a mesh that a choice of ways gives."""

    def __init__(self, model: LayoutModel, ways: Sequence[int], graph: LayoutGraph) -> None:
        (self.axis,), (self.size,) = model.mesh.axis_names, model.mesh.axis_sizes
        self.groups, self.ways, self.sums = model.groups, ways, True
        self.known: dict[LayoutGroup, dict[LayoutStep, int]] = {}
        self.needed: list[dict[LayoutStep, list[int]]] = []
        for role, group in enumerate(model.groups):
            found: dict[LayoutStep, list[int]] = {}
            for _, layouts, step in group.needs:
                found.setdefault(step, []).append(place_in(layouts[ways[role]]))
            self.needed.append(found)
        self.loose: dict[LaidValue, int] = {}  # of rows of what devices make by themselves: as they are first needed
        for step in graph.steps:
            for value, need in zip(step.inputs, self.needs(step)):
                self._ask(value, need)

    def _ask(self, value: LaidValue, need: int) -> None:
        step = value.step
        while step is not None and step.group is None and need >= 0:
            if step.kind == "eqn" and len(step.inputs) == 1 and not value.free:
                places = asked_places(step, need)
                need = places[0] if places is not None else WHOLE
            elif step.kind in ("row", "stack") and not (step.kind == "stack" and need == 0):
                need = self.loose.setdefault(value, need) + (1 if step.kind == "row" else -1)
            else:
                return
            value = step.inputs[0]
            step = value.step

    def floats(self, value: LaidValue) -> bool:
        step = value.step
        return value.free or (step is not None and step.group is None and step.kind == "eqn")

    def _counterpart(self, step: LayoutStep) -> LayoutStep:
        """The step of the group that was looked at for this role."""
        group = step.group
        assert group is not None
        chosen = self.groups[group.role].group
        if group is chosen:
            return step
        if group not in self.known:
            self.known[group] = {one: n for n, one in enumerate(group.steps)}
        return chosen.steps[self.known[group][step]]

    def place(self, value: LaidValue) -> int:
        step = value.step
        if step is None or step.group is None:
            return self.loose.get(value, WHOLE)
        role = step.group.role
        like = self._counterpart(step).outputs[value.place]
        return place_in(self.groups[role].layouts[like][self.ways[role]])

    def needs(self, step: LayoutStep) -> Sequence[int]:
        if step.group is None:
            place = self.place(step.outputs[0]) if step.kind in ("row", "stack") else WHOLE
            return [place + (1 if step.kind == "row" else -1) if place >= 0 else WHOLE] * len(step.inputs)
        return self.needed[step.group.role].get(self._counterpart(step), [])

    def local(self, t: TensorType, place: int) -> TensorType:
        return t if place < 0 else t.with_(shape=(*t.shape[:place], t.shape[place] // self.size, *t.shape[place + 1 :]))

    def move(self, have: int, need: int) -> tuple[Op, dict[str, object]]:
        return moved(self.axis, self.size, have, need)


def place_in(layout: TensorSharding) -> int:
    """The place of a value in a layout on a mesh of one axis."""
    if layout.unreduced:
        return SUM
    return next((d for d, dim in enumerate(layout.dims) if dim.axes), WHOLE)

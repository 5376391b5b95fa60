"""A traced training step as a search needs it: the work of every equation on one device of a grid, from factor rules.

What an equation does on a device follows from the same plans that `data_parallel`, `horizontal_parallel` and
`pipeline_parallel` write programs from; here they are only costed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.tracing import make_program
from meshwright.core import tree
from meshwright.core.dtypes import DType
from meshwright.core.program import Program
from meshwright.device.choose import choose_classes
from meshwright.device.classes import Classes, Place, divides
from meshwright.device.from_program import from_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand, print_attribute
from meshwright.device.phases import cut_by_cost, forward_equations, loss_of, place_backward
from meshwright.device.spread import COPY, Planner, SpreadSharding, Version
from meshwright.device.tensor_ops import Arg, contracts, cost, localize, tensor_of
from meshwright.device.transforms import named_classes
from meshwright.device.typing import typed
from meshwright.errors import MeshwrightError, ShapeError

SHARED, FORWARD, BACKWARD, WEIGHTS, TAIL = range(5)
SEGMENTS = 16  # of the forward pass, each of which is computed again where activations are not kept


class StageOfEqns(NamedTuple):
    """Which stage and phase each equation belongs to; ``segment`` are the parts of the forward pass kept apart."""

    stage: np.ndarray
    phase: np.ndarray
    segment: np.ndarray


class Spread(NamedTuple):
    """The horizontal plan for a number of devices: layouts of values, and who talks after which equation."""

    plan: Planner | None
    layouts: dict[DeviceValue, SpreadSharding]
    talks: tuple[tuple[int, str, DeviceValue], ...]


class Traced:
    """A training step for `grid_search`, costed from its equations; ``batch`` names the inputs that have a batch dim.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import dist
    >>> def step(ws, x):
    ...     loss = lambda ws: mnp.mean((mnp.tanh(x @ ws[0]) @ ws[1]) ** 2)
    ...     value, gradient = mw.value_and_grad(loss)(ws)
    ...     return value, [w - 0.1 * g for w, g in zip(ws, gradient)]
    >>> model = dist.traced(step, [mnp.ones((64, 256)), mnp.ones((256, 64))], mnp.ones((32, 64)))
    >>> found = dist.grid_search(model, mw.hardware.Topology("h100", 4), batch=256)
    >>> found.best.strategy.devices, model.divides(4), model.divides(3)
    (4, True, False)
    """

    def __init__(self, function: Function, batch: Mapping[str, int]) -> None:
        self.function = typed(function)
        self.batch = dict(batch)
        self.rows = self._rows()
        self.key = sha256(f"{function}{sorted(self.batch.items())}".encode()).hexdigest()[:16]
        self._spreads: dict[int, Spread | None] = {}
        self._cuts: dict[tuple[int, int], StageOfEqns] = {}
        self.known: dict[tuple[object, ...], Any] = {}  # what plans have found
        loop = next((eqn for eqn in self.function.eqns if _has_region(eqn)), None)
        if loop is not None:
            raise MeshwrightError(
                f"The step has a {loop.op}.",
                why="an equation with a program inside is not split over devices",
                fix="write the layers out, one after the other: Config(scan=False) in the examples",
            )
        if loss_of(self.function) is None:
            raise MeshwrightError(
                "The step returns no loss.",
                why="the first result without dims is the loss, and there is none",
                fix="return loss, new_params",
            )

    def __repr__(self) -> str:
        return f"Traced({self.function.name!r}, {len(self.function.eqns)} equations, {self.key})"

    def __reduce__(self) -> tuple[Callable[..., Traced], tuple[str, bytes]]:
        """Processes that have the model already do not read it again."""
        return _restored, (self.key, pickle.dumps((self.function, self.batch)))

    def _rows(self) -> int:
        sizes = {}
        for name, dim in self.batch.items():
            value = self.function.input(name)
            shape = tensor_of(value).shape if value is not None else ()
            if not 0 <= dim < len(shape) or not isinstance(shape[dim], int):
                raise ShapeError(
                    f"The batch has no dim {dim} of {name}.", why=f"its shape is {shape}", fix=f"{name}: 0"
                )
            sizes[name] = shape[dim]
        if len(set(sizes.values())) != 1:
            raise ShapeError(
                "The parts of the batch differ in size.",
                why=", ".join(f"{name} has {size}" for name, size in sizes.items()) or "there is no batch",
                fix="arrays whose first dims are equal",
            )
        found = next(iter(sizes.values()))
        assert isinstance(found, int)
        return found

    # The program, cut along the batch

    @cached_property
    def classes(self) -> Classes:
        return Classes(self.function)

    @cached_property
    def batch_classes(self) -> frozenset[Place]:
        return named_classes(self.function, self.batch, [self.function], self.classes, None)

    @cached_property
    def planner(self) -> Planner:
        parts = next((n for n in (2, 3, 5, 7) if self.rows % n == 0), self.rows)
        return Planner(self.function, self.classes, self.batch_classes, parts)

    @cached_property
    def whole(self) -> bool:
        """Whether an equation needs the whole batch on one device."""
        return any(c.op != "allreduce" for c in self.planner.conversions)

    @cached_property
    def separable(self) -> bool:
        """Whether microbatches can run one after the other: nothing in their midst needs all of them."""
        late = (s for s in self.planner.steps if s.depth > 0)
        return not self.whole and all(
            v[1] == COPY for s in late for v in (*s.operands, *s.results) if not isinstance(v, Number)
        )

    @cached_property
    def kinds(self) -> list[str]:
        """For each equation whether it runs once before the microbatches, for each of them, or once after."""
        if not self.separable:  # there is one microbatch, and all of the step is for it
            return ["micro"] * len(self.function.eqns)
        found = []
        for step in self.planner.steps:
            plain = all(v[1] == COPY for v in (*step.operands, *step.results) if not isinstance(v, Number))
            found.append("tail" if step.depth > 0 and plain else "shared" if plain else "micro")
        return found

    @cached_property
    def number(self) -> dict[DeviceValue, int]:
        """The equation that makes each value."""
        return {v: n for n, eqn in enumerate(self.function.eqns) for v in eqn.outputs}

    @cached_property
    def sums(self) -> tuple[DeviceValue, ...]:
        """What is summed over the batch: gradients, the loss, and what else is there of all samples."""
        return tuple(c.source[0] for c in self.planner.conversions if c.op == "allreduce")

    @cached_property
    def forward(self) -> list[DeviceEqn]:
        micro = [eqn for eqn, kind in zip(self.function.eqns, self.kinds, strict=True) if kind == "micro"]
        return forward_equations(self.function, micro)

    @cached_property
    def most_stages(self) -> int:
        """A stage has one product at least."""
        return max(1, sum(map(contracts, self.forward))) if self.separable else 1

    def cut(self, stages: int, segments: int) -> StageOfEqns:
        """The stages of a pipeline by cost, as `pipeline_parallel` cuts them, and segments of each."""
        key = stages, segments
        if key not in self._cuts:
            self._cuts[key] = self._cut(stages, segments)
        return self._cuts[key]

    def _cut(self, stages: int, segments: int) -> StageOfEqns:
        eqns, kinds = self.function.eqns, self.kinds
        parts = min(stages * segments, len(self.forward))
        fine = cut_by_cost(self.forward, parts)
        coarse = {eqn: part * stages // parts for eqn, part in fine.items()}
        if segments == 1:
            coarse = cut_by_cost(self.forward, stages)
        backward = [eqn for eqn, kind in zip(eqns, kinds, strict=True) if kind == "micro" and eqn not in coarse]
        placed = {**coarse, **place_backward(coarse, backward, stages)}
        stage, phase = np.zeros(len(eqns), int), np.zeros(len(eqns), int)
        segment = np.array([fine.get(eqn, 0) for eqn in eqns])
        first: dict[DeviceValue, int] = {}
        for n in reversed(range(len(eqns))):
            eqn = eqns[n]
            if kinds[n] == "micro":
                stage[n] = placed[eqn]
                for v in eqn.values:
                    first[v] = min(first.get(v, stages), placed[eqn])
            elif kinds[n] == "shared":  # on the stage that needs it first
                stage[n] = min((first[v] for v in eqn.outputs if v in first), default=0)
                for v in eqn.values:
                    first[v] = min(first.get(v, stages), int(stage[n]))
        for n, eqn in enumerate(eqns):
            if kinds[n] == "tail":  # where what it reads is made
                stage[n] = min((stage[self.number[v]] for v in eqn.values if v in self.number), default=0)
            phase[n] = {"tail": TAIL, "shared": SHARED}.get(kinds[n], FORWARD if eqn in coarse else BACKWARD)
        self._split_backward(stage, phase)
        return StageOfEqns(stage, phase, segment)

    def _split_backward(self, stage: np.ndarray, phase: np.ndarray) -> None:
        """Weight gradients are what no other stage waits for."""
        readers: dict[DeviceValue, list[int]] = {}
        for n, eqn in enumerate(self.function.eqns):
            for v in eqn.values:
                readers.setdefault(v, []).append(n)
        for n in reversed(range(len(phase))):
            if phase[n] == BACKWARD:
                after = [m for v in self.function.eqns[n].outputs for m in readers.get(v, ()) if phase[m] != TAIL]
                waited = any(stage[m] != stage[n] or phase[m] == BACKWARD for m in after)
                phase[n] = BACKWARD if waited else WEIGHTS

    # The program, cut horizontally

    def divides(self, horizontal: int) -> bool:
        return self.spread(horizontal) is not None

    def spread(self, horizontal: int) -> Spread | None:
        """How the program is split over so many devices, None where it cannot be."""
        if horizontal not in self._spreads:
            self._spreads[horizontal] = self._spread(horizontal)
        return self._spreads[horizontal]

    def _spread(self, horizontal: int) -> Spread | None:
        if horizontal == 1:
            return Spread(None, {}, ())
        split = self._split(horizontal)
        if not split:
            return None
        planner = Planner(self.function, self.classes, split, horizontal)
        talks = [
            (self.number[c.source[0]], c.op, c.source[0])
            for c in planner.conversions
            if c.op != "own_part" and c.source[0] in self.number
        ]
        return Spread(planner, planner.original, tuple(talks))

    def _split(self, horizontal: int) -> frozenset[Place]:
        """The classes that are split: the same for all numbers of devices by which the same dims divide."""
        inputs = {self.classes.root((v, d)) for v in self.function.inputs for d in range(len(tensor_of(v).shape))}
        uneven = {
            root
            for (v, d), root in self.classes.members()
            if tensor_of(v).shape[d] != 1 and not divides(tensor_of(v).shape[d], horizontal)
        }
        key = ("split", frozenset(inputs - self.batch_classes - uneven))
        if key not in self.known:
            self.known[key] = choose_classes([self.function], self.classes, horizontal, self.batch_classes, known=True)
        found: frozenset[Place] = self.known[key]
        return found

    # Sizes on one device

    @cached_property
    def values(self) -> dict[DeviceValue, int]:
        """The values of the program, numbered."""
        return {v: n for n, v in enumerate((*self.function.inputs, *self.number))}

    @cached_property
    def _scales(self) -> dict[DeviceValue, tuple[bool, ...]]:
        """Which dims of each value are as long as the batch is."""
        return {
            v: tuple(self.classes.root((v, d)) in self.batch_classes for d in range(len(tensor_of(v).shape)))
            for v in self.values
        }

    def shape(self, value: DeviceValue, rows: int, horizontal: int, layout: SpreadSharding) -> tuple[int, ...]:
        """The shape of a value on a device."""
        sizes: list[Any] = list(tensor_of(value).shape)
        for d, scales in enumerate(self._scales[value]):
            if scales:
                sizes[d] = sizes[d] * rows // self.rows
        if layout.kind == "part":
            sizes[layout.dim] //= horizontal
        return tuple(sizes)

    @cached_property
    def _bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of each value as traced, and how many of its dims are as long as the batch is."""
        types = [tensor_of(v) for v in self.values]
        return np.array([t.nbytes for t in types], float), np.array([sum(self._scales[v]) for v in self.values])

    def nbytes(self, rows: int, horizontal: int) -> np.ndarray:
        """The bytes of each value on a device."""
        spread = self.spread(horizontal)
        assert spread is not None
        whole, scales = self._bytes
        parts = [horizontal if spread.layouts.get(v, COPY).kind == "part" else 1 for v in self.values]
        found: np.ndarray = whole * (rows / self.rows) ** scales / np.array(parts)
        return found

    @cached_property
    def _attributes(self) -> list[str]:
        """The attributes of each equation, to tell equations apart."""
        return [
            ",".join(f"{k}={print_attribute(v)}" for k, v in eqn.attributes.items() if k != "value")
            for eqn in self.function.eqns
        ]

    def stage_groups(self, horizontal: int) -> tuple[list[int], list[int]]:
        """Equations that do the same on a device: for each its group, and the first of each group."""
        key = ("stage_groups", horizontal)
        if key not in self.known:
            groups: dict[tuple[object, ...], int] = {}
            firsts: list[int] = []
            found = []
            for n, eqn in enumerate(self.function.eqns):
                what = (eqn.op, self._attributes[n], *map(self._described, (*eqn.inputs, *eqn.outputs)))
                layouts = tuple(x if isinstance(x, Number) else x[1] for x in self._versions(n, horizontal))
                group = groups.setdefault((*what, layouts if horizontal > 1 else ()), len(groups))
                if group == len(firsts):
                    firsts.append(n)
                found.append(group)
            self.known[key] = found, firsts
        known: tuple[list[int], list[int]] = self.known[key]
        return known

    def _described(self, x: Operand) -> tuple[object, ...]:
        t = tensor_of(x)
        return (t.shape, t.dtype, () if isinstance(x, Number) else self._scales[x])

    def _versions(self, n: int, horizontal: int) -> tuple[Version | Number, ...]:
        spread = self.spread(horizontal)
        assert spread is not None
        step = (spread.plan or self.planner).steps[n]
        return (*step.operands, *step.results)

    def work(self, n: int, rows: int, horizontal: int) -> tuple[float, float, DType]:
        """The operations and bytes of an equation on a device, and the dtype it computes in."""
        eqn = self.function.eqns[n]
        dtype = tensor_of(eqn.outputs[0]).dtype
        if eqn.op == "constant":
            return 0.0, 0.0, dtype
        types: list[Arg] = [
            ((), x.dtype)
            if isinstance(x, Number)
            else (self.shape(x[0], rows, horizontal, x[1] if horizontal > 1 else COPY), tensor_of(x[0]).dtype)
            for x in self._versions(n, horizontal)
        ]
        args, outs = types[: len(eqn.inputs)], types[len(eqn.inputs) :]
        params = {k: v for k, v in eqn.attributes.items() if k != "device"}
        found = cost(eqn.op, args, outs, localize(eqn.op, params, args, outs))
        return found.flops, found.nbytes, dtype


def _has_region(eqn: DeviceEqn) -> bool:
    return any(isinstance(value, Program) for value in eqn.attributes.values())


_RESTORED: dict[str, Traced] = {}


def _restored(key: str, data: bytes) -> Traced:
    if key not in _RESTORED:
        function, batch = pickle.loads(data)
        _RESTORED[key] = Traced(function, batch)
    return _RESTORED[key]


def traced(step: Callable[..., Any] | Program, params: Any, batch: Any) -> Traced:
    """A training step, ``step(params, batch)`` with the loss as its first result, for `grid_search`.

    Arrays may be of shapes alone (`mw.ShapeDtypeStruct`). The first dim of each array of ``batch`` is the batch; how
    long it is here does not matter.

    >>> import meshwright as mw
    >>> from meshwright import dist
    >>> step = lambda w, x: (((x @ w) ** 2).sum(), w)
    >>> dist.traced(step, mw.ShapeDtypeStruct((4, 4), "float32"), mw.ShapeDtypeStruct((8, 4), "float32")).rows
    8
    """
    program = step if isinstance(step, Program) else make_program(step)(params, batch)
    held, given = len(tree.leaves(params)), len(tree.leaves(batch))
    names = [*(f"p{n}" for n in range(held)), *(f"b{n}" for n in range(given))]
    name = getattr(step, "__name__", "step")
    fn = from_program(program, names, name=name if name.isidentifier() else "step")
    return Traced(fn, {f"b{n}": 0 for n in range(given)})

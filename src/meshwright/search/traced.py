"""A traced training step as a search needs it: what a device does and holds with so many samples, in so many parts.

The step is read once. With fewer samples, or split along an axis of devices, it is the program of a device
(`written_out`), whose kernels are those that `mw.simulate` finds; `step_units` says what of it belongs to which layer.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from meshwright.arrays.tracing import ShapeDtypeStruct, leaf_type, make_program
from meshwright.core import tree
from meshwright.core.program import Program, Var
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.hardware.machines import machine_for
from meshwright.partition.cost import DEFAULT_CHIP
from meshwright.propagate.own_regions import own_regions
from meshwright.propagate.project import shapes_of
from meshwright.search.batch_dims import BatchDims, leading, splits
from meshwright.search.layout.graph import LayoutGraph, LayoutStep, read_graph
from meshwright.search.layout.step import check_for_one_device
from meshwright.search.layout.ways import split_rule
from meshwright.search.step_units import UnitReader, is_product
from meshwright.search.traced_on import StepOnMachine, on_machine
from meshwright.search.written_out import DATA, BatchPlaces, Writer
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.machine import Machine
from meshwright.simulate.tasks import TaskBlock, TaskReader
from meshwright.transform.layers import equal_layers
from meshwright.transform.simplify import cse, dce
from meshwright.transform.stack import inline_calls

SEVERAL = 8  # samples that a step is traced with, if it is given one


class _Read(NamedTuple):
    """The step on one device as it was traced: its tasks, their values, and which dims of these are the batch."""

    block: TaskBlock
    graph: LayoutGraph
    dims: BatchDims


class WrittenStep(NamedTuple):
    """The program of a device with so many samples, and the values of its layer that stands for others."""

    program: Program
    marked: frozenset[Var]


class Traced:
    """A training step for `grid_search`, costed from its kernels; ``batch`` are the inputs that have a batch dim.

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

    marked: frozenset[Var]
    count: int
    donated: tuple[bool, ...]

    def __init__(
        self,
        program: Program,
        batch: Sequence[int],
        name: str = "step",
        again: Callable[[int], Traced] | None = None,
    ) -> None:
        whole = cse(dce(own_regions(inline_calls(program, shard_maps=False))))
        self._take(whole, tuple(batch), name)
        check_for_one_device(whole, "a search looks for the mesh", "mw.simulate of the step")
        short = equal_layers(whole)
        if short is not None:
            number = {n: k for k, n in enumerate(short.inputs)}
            self.program, self.batch = short.program, tuple(number[n] for n in batch)
            self.marked, self.count = short.repeated, short.removed + 1
            self.donated = tuple(self.donated[n] for n in short.inputs)
        self.again = again

    def _take(self, program: Program, batch: tuple[int, ...], name: str) -> None:
        self.program, self.batch, self.name = program, batch, name
        self.marked = frozenset()
        self.count = 1
        self.rows = _rows(program, batch)
        self.donated = _donated(program, batch)
        self._at: dict[int, Traced] = {}
        self.known: dict[tuple[object, ...], Any] = {}  # what plans have found
        loss = next((a for a in program.outputs if not a.type.shape and a not in program.inputs), None)
        if loss is None:
            raise MeshwrightError(
                "The step returns no loss.",
                why="the first result without dims is the loss, and there is none",
                fix="return loss, new_params",
            )

    @cached_property
    def key(self) -> str:
        """What tells the step from others."""
        return sha256(f"{self.program}{self.batch}{self.count}{len(self.marked)}".encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Traced({self.name!r}, {len(self.program.eqns)} equations, {self.key})"

    def __reduce__(self) -> tuple[Callable[..., Traced], tuple[str, bytes]]:
        """Processes that have the model already do not read it again."""
        others = {rows: (one.program, one.batch) for rows, one in self._at.items()}
        state = (self.program, self.batch, self.name, self.marked, self.count, self.donated, others)
        return _restored, (self.key, pickle.dumps(state))

    def at(self, batch: int) -> Traced:
        """The step for a batch: itself, unless it needs the whole batch at once, and was traced with another."""
        if batch == self.rows or not self.whole:
            return self
        if batch not in self._at:
            if self.again is None:
                raise ShapeError(
                    f"The step was traced with a batch of {self.rows}, and not with {batch}.",
                    why=_why_whole(self.read.dims.whole),
                    fix=f"dist.traced(step, params, batch) with a batch of {batch}",
                )
            self._at[batch] = self.again(batch)
        return self._at[batch]

    # What it is, whatever the machine

    @cached_property
    def read(self) -> _Read:
        block = TaskReader(Machine(machine_for(DEFAULT_CHIP, {}, "step"), {})).block(self.program)
        graph = read_graph(block)
        return _Read(block, graph, BatchDims(graph, self.batch))

    @property
    def whole(self) -> bool:
        """Whether an equation needs the whole batch on one device."""
        return self.read.dims.whole is not None

    @property
    def separable(self) -> bool:
        """Whether microbatches can run one after the other: nothing in their midst needs all of them."""
        return self.read.dims.separable

    @cached_property
    def most_stages(self) -> int:
        """A stage has one product at least."""
        if not self.separable:
            return 1
        program, marked = self.written(self.rows)
        block = TaskReader(Machine(machine_for(DEFAULT_CHIP, {DATA: 2}, "step"), {DATA: 2})).block(program)
        return len(self.units(block, marked).units.order)

    def units(self, block: TaskBlock, marked: frozenset[Var]) -> UnitReader:
        """The units of the step on a device that has it as these tasks."""
        program = block.program
        loss = next(a for a in program.outputs if not a.type.shape)
        return UnitReader(block, [program.inputs[n] for n in self.batch], loss, marked, self.count, self.separable)

    def divides(self, tensor: int) -> bool:
        """Whether a product can be split over so many devices, and not along the batch."""
        return tensor == 1 or any(splits(step, tensor, batch) for step, batch in self._products)

    @cached_property
    def _products(self) -> list[tuple[LayoutStep, int | None]]:
        """The products of the step, and the factor of each that is the batch."""
        found = []
        for step in self.read.graph.steps:
            if step.eqn is not None and is_product([step.eqn]):
                shapes, _ = shapes_of(split_rule(step).rule)
                places = [self.read.dims.place(x) for x in step.inputs]
                of_batch = [leading(shapes[n], place) for n, place in enumerate(places) if place >= 0]
                found.append((step, of_batch[0] if of_batch else None))
        return found

    def written(self, rows: int, sums: bool = True) -> WrittenStep:
        """The program of a device that has so many samples; with sums over the batch, if there are others."""
        if self.whole:
            return WrittenStep(self.program, self.marked)
        key = ("written", rows, sums)
        if key not in self.known:
            read = self.read
            writer = Writer(read.block, read.graph, BatchPlaces(read.dims, self.rows, rows, sums), self.marked)
            self.known[key] = WrittenStep(writer.program, frozenset(writer.marked))
        found: WrittenStep = self.known[key]
        return found

    def on(self, costs: OnTopology, rows: int, tensor: int, sums: bool) -> StepOnMachine:
        """What a device of a machine does and holds with so many samples, if so many share each."""
        key = ("on", costs.key, rows, tensor, sums)
        if key not in self.known:
            self.known[key] = on_machine(self, costs, rows, tensor, sums)
        found: StepOnMachine = self.known[key]
        return found

    def is_read(self, costs: OnTopology, rows: int, tensor: int) -> bool:
        """Whether what a device does and holds is known."""
        return ("on", costs.key, rows, tensor, True) in self.known


_RESTORED: dict[str, Traced] = {}


def _restored(key: str, data: bytes) -> Traced:
    if key not in _RESTORED:
        program, batch, name, marked, count, donated, others = pickle.loads(data)
        found = _RESTORED[key] = Traced.__new__(Traced)
        found._take(program, batch, name)
        found.marked, found.count, found.donated, found.again = marked, count, donated, None
        found._at = {rows: Traced(*one) for rows, one in others.items()}
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
    name = getattr(step, "__name__", "step")
    held, given = len(tree.leaves(params)), len(tree.leaves(batch))
    numbers = range(held, held + given)
    if isinstance(step, Program):
        return Traced(step, numbers, name)

    def at(rows: int) -> Traced:
        def resized(x: Any) -> ShapeDtypeStruct:
            t = leaf_type(x)
            return ShapeDtypeStruct((rows, *t.shape[1:]), t.dtype)

        return Traced(make_program(step)(params, tree.map(resized, batch)), numbers, name, at)

    if any(leaf_type(x).shape[:1] == (1,) for x in tree.leaves(batch)):
        return at(SEVERAL)  # of one sample it does not show which dims are the batch
    return Traced(make_program(step)(params, batch), numbers, name, at)


def _rows(program: Program, batch: Sequence[int]) -> int:
    """The length of the batch."""
    sizes = {}
    for k, n in enumerate(batch):
        shape = program.inputs[n].type.shape
        if not shape:
            raise ShapeError(f"The batch has no dim 0 of b{k}.", why=f"its shape is {shape}", fix=f"b{k}: 0")
        sizes[f"b{k}"] = shape[0]
    if len(set(sizes.values())) != 1:
        raise ShapeError(
            "The parts of the batch differ in size.",
            why=", ".join(f"{name} has {size}" for name, size in sizes.items()) or "there is no batch",
            fix="arrays whose first dims are equal",
        )
    return int(next(iter(sizes.values())))


def _donated(program: Program, batch: Sequence[int]) -> tuple[bool, ...]:
    """Which inputs results may be written over: all that the step returns anew, in their order."""
    mine = [(v.type.shape, v.type.dtype) for n, v in enumerate(program.inputs) if n not in batch]
    made = [(a.type.shape, a.type.dtype) for a in program.outputs]
    anew = bool(mine) and any(made[n : n + len(mine)] == mine for n in range(len(made) - len(mine) + 1))
    return tuple(anew and n not in batch for n in range(len(program.inputs)))


def _why_whole(step: LayoutStep | None) -> str:
    where = step.eqn.source if step is not None and step.eqn is not None else None
    return f"an equation puts the samples together{f', at {where}' if where else ''}"

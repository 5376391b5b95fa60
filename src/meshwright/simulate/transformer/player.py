"""Machines, each with what programs took on it: a layer that comes again on a machine, or on one whose axes lie alike,
costs nothing to ask about."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

from meshwright.core.program import Eqn, Program, Var
from meshwright.core.types import TensorType
from meshwright.hardware.machines import machine_for
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.simulate.machine import Machine
from meshwright.simulate.schedule import ITERATIONS, Scheduler
from meshwright.simulate.tasks import TaskBlock, TaskReader, spoken
from meshwright.simulate.transformer import regions
from meshwright.simulate.transformer.strategy import Strategy
from meshwright.transform.regions.scan import scan as scan_op

Hardware = Any


class Player:
    """A machine with the tasks and times of the programs that were played on it."""

    known: ClassVar[OrderedDict[Any, tuple[Program, float]]] = OrderedDict()

    def __init__(self, topology: Topology, axes: Mapping[str, int], mode: str, overlap: str, flash: bool) -> None:
        self.machine, self.flash = Machine(topology, axes, mode), flash
        self.reader, self.scheduler = TaskReader(self.machine, flash=flash), Scheduler(overlap)
        self.loops: dict[tuple[int, int], Program] = {}
        self.key = (topology.chip, topology.shape, topology.wrap, topology.slices, mode, overlap, flash)
        self.places = {axis: (size, repr(self.machine.topology.mapping[axis])) for axis, size in axes.items()}

    def block(self, program: Program) -> TaskBlock:
        return self.reader.block(program)

    def seconds(self, program: Program, length: int | None = None) -> float:
        """How long a program takes, or a loop of so many iterations of it, wherever its axes lie as they do here."""
        places = tuple((axis, *self.places[axis]) for axis in sorted(spoken(program)))
        key = (id(program), length, self.key, places)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = (program, self.played(program, length))
            if len(self.known) > 1 << 14:
                self.known.popitem(last=False)
        return found[1]

    def played(self, program: Program, length: int | None) -> float:
        if length is None:
            return self.scheduler.schedule(self.block(program)).seconds
        few = min(length, ITERATIONS + 1)  # each iteration beyond takes as long as the last of these
        found = self.scheduler.schedule(self.block(self.loop(program, few)))
        more = next((event.seconds / event.rest for event in found.events if event.rest and event.depth == 1), 0.0)
        return found.seconds + (length - few) * more

    def loop(self, body: Program, length: int) -> Program:
        """The loop over layers."""
        found = self.loops.get((id(body), length))
        if found is None:
            found = self.loops[id(body), length] = loop_program(body, length)
        return found


def loop_program(body: Program, length: int) -> Program:
    """The program that is a loop with one value that is carried."""

    def stacked(t: TensorType) -> Var:
        return Var(t.with_(shape=(length, *t.shape)))

    inputs = (Var(body.inputs[0].type), *(stacked(v.type) for v in body.inputs[1:]))
    outputs = (Var(body.out_types[0]), *(stacked(t) for t in body.out_types[1:]))
    params = {"body": body, "consts": 0, "carry": 1, "length": length, "reverse": False}
    return Program(inputs, (Eqn(scan_op, inputs, params, outputs),), outputs)


_PLAYERS: dict[Any, Player] = {}


def player(hardware: Hardware, shape: TransformerShape, strategy: Strategy, mode: str, overlap: str) -> Player:
    """The machine for a strategy's mesh."""
    topology = machine_for(hardware, strategy.mesh, "strategy")
    kv = regions.kv_heads(shape)
    axes = {name: size for name, size in strategy.mesh.items() if name == "pipeline"} | regions.mesh_of(strategy, kv)[0]
    axes = axes or dict(topology.mesh or {})
    key = (topology.chip, topology.shape, topology.wrap, topology.slices, repr(topology.mapping), tuple(axes.items()),
           mode, overlap, strategy.flash)  # fmt: skip
    found = _PLAYERS.get(key)
    if found is None:
        if len(_PLAYERS) > 256:
            _PLAYERS.clear()
        found = _PLAYERS[key] = Player(topology, axes, mode, overlap, strategy.flash)
    return found

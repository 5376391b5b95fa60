"""Pipelines on meshes: each stage is a mesh of its own, its tasks are programs there, and values are sent between.

A task is an equation of the pipeline: a `call` on a stage, or what stands between the calls. Its flat equations become
one ``shard_map`` over the mesh of a stage. A device above the stages (the host, or the device of a replica that holds a
pipeline) has no mesh: what it holds stays on the stage that made it, what it computes is computed there. So the sum of
a gradient over replicas runs between the devices of the stage that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.device_put import device_put
from meshwright.compile.jit import jit
from meshwright.device import ops
from meshwright.device.blocks import BlockLayout, BlockProgram, Lead, MeshWalk
from meshwright.device.device_map import DeviceMap, Members
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.walk import Group, Item, Scope, flat_values, home_of
from meshwright.errors import DeviceError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding


class StageIndex(tuple[tuple[int, int], ...]):
    """A stage: levels of the device map, and the index on each."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"stage {'.'.join(str(index) for _, index in self)}"


Slot = tuple[DeviceValue, StageIndex | None]  # a value of the flat program, and the stage where it is; None: outside


@dataclass(frozen=True, eq=False)
class StageMove:
    """An array is laid out on a stage."""

    name: str
    stage: StageIndex
    target: StageIndex
    sharding: NamedSharding
    input: Slot
    output: Slot

    @property
    def reads(self) -> tuple[Slot, ...]:
        return (self.input,)

    def run(self, values: dict[Slot, Any]) -> None:
        values[self.output] = device_put(values[self.input], self.sharding)


class Put(StageMove):
    """An input comes to a stage."""

    def __str__(self) -> str:
        return f"{self.stage}: put {self.name} {self.sharding.spec}"


class StageSend(StageMove):
    """A value goes from one stage to another."""

    def __str__(self) -> str:
        return f"{self.stage}: send {self.name} to {self.target} {self.sharding.spec}"


@dataclass(frozen=True, eq=False)
class StageRun:
    """A program runs on the mesh of a stage; ``jitted`` is that program, one for all tasks that do the same."""

    names: tuple[str, ...]
    stage: StageIndex
    jitted: Any
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    reads: tuple[Slot, ...]
    outputs: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"{self.stage}: run {', '.join(self.names)}"

    def run(self, values: dict[Slot, Any]) -> None:
        found = self.jitted(*(values[n] for n in self.reads))
        values.update(zip(self.outputs, found, strict=True))


class StageArray(NamedTuple):
    """An array between programs.

    ``place`` is the stage it is made on; None for an input, and for what a ``maker`` computes of inputs alone: that is
    computed on every stage that needs it.
    """

    name: str
    layout: BlockLayout = BlockLayout()
    place: StageIndex | None = None
    maker: tuple[BlockProgram, tuple[str, ...]] | None = None


class StagePlan(MeshWalk):
    """Walks a pipeline and writes what runs on its stages, in order.

    A task is an equation with its flat equations; ``results`` say where each output is, and its leading dims.
    """

    def __init__(
        self, fn: Function, device_map: DeviceMap, sizes: Mapping[str, int], axes: Mapping[Members, str], mesh: Mesh
    ) -> None:
        super().__init__(fn, device_map, sizes, axes)
        self.mesh = mesh
        self.actions: list[StageMove | StageRun] = []
        self.meshes: dict[StageIndex, Mesh] = {}
        self.programs: dict[Any, Any] = {}
        self.inside, self.within = False, StageIndex()
        self.arrays = {x: StageArray(v.name) for v, x in zip(fn.inputs, flat_values(self.inputs), strict=True)}
        self.there: set[Slot] = {(x, None) for x in self.arrays}
        self.made_by: dict[DeviceValue, DeviceEqn] = {}
        self.run()
        self.results = [self._returned(v.name, item) for v, item in zip(fn.outputs, self.outputs, strict=True)]

    # Tasks

    def append(self, eqn: DeviceEqn, taken: Members, made: Members) -> None:
        super().append(eqn, taken, made)
        self.made_by.update(dict.fromkeys(eqn.outputs, eqn))

    def may_send(self, device: int, scope: Scope) -> bool:
        return super().may_send(device, scope) or (not self.inside and self.stage(device, scope) is not None)

    def eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        if self.inside:
            return super().eqn(eqn, scope)
        items = [self.known(v, scope) for v in eqn.values]
        place, start, within = self.place(eqn, items, scope), len(self.eqns), self.within
        nested = eqn.body is not None and has_stages(eqn.body)
        self.inside = eqn.body is not None and not nested
        if nested and eqn.op is ops.CALL:  # a stage that is a pipeline itself
            self.within = self.stage(home_of(items), scope) or within
        outs = super().eqn(eqn, scope)
        if not nested:
            self._add(eqn, items, outs, self.eqns[start:], place)
        self.inside, self.within = False, within
        return outs

    def stage(self, device: int, scope: Scope) -> StageIndex | None:
        """The stage that a device is; None for one above the stages."""
        below = self.map("a stage").below(scope.path) if scope.path is not None else None
        if scope.path is None or below is None or device not in below:
            return None
        return StageIndex((*self.within, (len(scope.path), below.keys().index(device))))

    def place(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> StageIndex | None:
        """The stage of the device that an equation runs on; None for one above stages, which do what it does."""
        if not items or isinstance(items[0], Group) or eqn.op is ops.GATHER:
            return None
        above = super().may_send(home_of(items), scope) and eqn.op is not ops.CALL
        return None if above else self.stage(home_of(items), scope)

    # Programs

    def _add(
        self,
        eqn: DeviceEqn,
        items: Sequence[Item],
        outs: Sequence[Item],
        flat: Sequence[DeviceEqn],
        place: StageIndex | None,
    ) -> None:
        """Write a task on its stage: that of its device, or for a device above stages, that of its operands."""
        block = self._block(items, flat, tuple(dict.fromkeys(flat_values(outs))))
        made = [x.place for x in map(self.arrays.__getitem__, block.fn.inputs) if x.place is not None]
        inside = [p for p in made if place is None or p[: len(place)] == place]
        named = {x: v.name for v, item in zip(eqn.outputs, outs, strict=True) for x in flat_values([item])}
        here = place if eqn.op is ops.CALL or not inside else inside[0]
        self._make(block, named, here, tuple(v.name for v in eqn.outputs))

    def _block(
        self,
        items: Sequence[Item],
        eqns: Sequence[DeviceEqn],
        outs: tuple[DeviceValue, ...],
        returned: Sequence[Lead] | None = None,
    ) -> BlockProgram:
        """Equations as a program of the arrays that their operands are, or are parts of."""
        sources: dict[DeviceValue, StageArray] = {}
        moves: dict[DeviceValue, DeviceEqn] = {}
        for v in flat_values(items):
            chain = []
            while v not in self.arrays:
                chain.append(self.made_by[v])
                (v,) = chain[-1].values
            sources[v] = self.arrays[v]
            moves |= {eqn.outputs[0]: eqn for eqn in reversed(chain)}
        fn = Function("task", tuple(sources), (*moves.values(), *eqns), outs)
        return BlockProgram(fn, self.along, [x.layout for x in sources.values()], returned)

    def _make(
        self, block: BlockProgram, named: Mapping[DeviceValue, str], place: StageIndex | None, names: tuple[str, ...]
    ) -> None:
        maker = None if place is not None else (block, names)
        for v, layout in zip(block.outputs, block.outs, strict=True):
            self.arrays[v] = StageArray(named[v], layout, place, maker)
        if block.outputs and place is not None:
            self._emit(block, names, place)

    def _emit(self, block: BlockProgram, names: tuple[str, ...], place: StageIndex) -> None:
        """Write a program at a stage, after what it needs there."""
        steps = [self.along[eqn.outputs[0]] for eqn in block.fn.eqns if eqn.outputs[0] in self.along]
        across = {axis for axis, _ in steps} & {self.mesh.axis_names[level] for level, _ in place}
        if across:
            raise DeviceError(
                f"{names[0]} is spread over the stages of a pipeline.",
                why=f"they lie along {min(across)}, and each has a mesh of its own",
                fix="a level of the device map for the stages alone, such as dist.DeviceMap.grid(2, 4) of two stages",
            )
        reads = tuple(self._fetch(v, place, layout) for v, layout in block.ins.items())
        mesh, key = self._mesh(place), (block.key, place)
        if key not in self.programs:
            self.programs[key] = jit(block.on(mesh))
        outputs = tuple((v, place) for v in block.outputs)
        self.there.update(outputs)
        ins, outs = (tuple(x.on(mesh) for x in layouts) for layouts in (block.ins.values(), block.outs))
        self.actions.append(StageRun(names, place, self.programs[key], ins, outs, reads, outputs))

    def _fetch(self, value: DeviceValue, place: StageIndex, layout: BlockLayout) -> Slot:
        """Where a value is found on a stage: it is put, made or sent there once."""
        array, slot = self.arrays[value], (value, place)
        if slot not in self.there and array.maker is not None:
            self._emit(*array.maker, place)
        elif slot not in self.there:
            sharding = layout.on(self._mesh(place))
            kind = Put if array.place is None else StageSend
            self.actions.append(kind(array.name, array.place or place, place, sharding, (value, array.place), slot))
            self.there.add(slot)
        return slot

    def _mesh(self, place: StageIndex) -> Mesh:
        """The mesh of a stage: the axes of its pipelines have size 1."""
        if place not in self.meshes:
            grid = self.mesh.device_ids
            for level, index in place:
                grid = np.take(grid, [index], axis=level)
            self.meshes[place] = Mesh(grid, self.mesh.axis_names)
        return self.meshes[place]

    def _returned(self, name: str, item: Item) -> tuple[Slot, Lead, NamedSharding]:
        v, lead = self.output(item)
        block = self._block([v], (), (v,), [lead])
        source, steps, _ = block.views[v]
        if not steps and self.arrays[source].layout.lead == lead:
            v = source
        else:
            self._make(block, {v: name}, self.arrays[source].place, (name,))
        array = self.arrays[v]
        place = array.place or next(iter(self.meshes), StageIndex())
        return self._fetch(v, place, array.layout), lead, array.layout.on(self._mesh(place))


def has_stages(fn: Function) -> bool:
    """Whether a program calls stages: bodies that run on single devices."""
    return any(eqn.op is ops.CALL for eqn in fn.eqns) or any(map(has_stages, fn.bodies()))

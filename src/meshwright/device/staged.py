"""Pipelines on meshes: each stage is a mesh of its own, its tasks are programs there, and values are sent between.

A task is an equation of the pipeline: a `call` on a stage, or what stands between the calls. Its flat equations become
one ``shard_map`` over the mesh of a stage. A device above the stages (the host, or the device of a replica that holds a
pipeline) has no mesh: what it holds stays on the stage that made it, what it computes is computed there. So the sum of
a gradient over replicas runs between the devices of the stage that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.device_put import device_put
from meshwright.compile.jit import jit
from meshwright.core.facts import Structure
from meshwright.device import ops
from meshwright.device.blocks import BlockProgram, Lead, Step, Steps, spec_of
from meshwright.device.device_map import DeviceMap
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.symmetry import Members, device_of
from meshwright.device.walk import Group, Item, Scope, Walk, flat_values, home_of
from meshwright.errors import DeviceError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding


class StageIndex(tuple[tuple[int, int], ...]):
    """A stage: levels of the device map, and the index on each."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"stage {'.'.join(str(index) for _, index in self)}"


class StageTask(NamedTuple):
    """An equation between or on stages: its flat equations, what it takes and gives, and the stage of its device."""

    eqn: DeviceEqn
    flat: tuple[DeviceEqn, ...]
    items: Sequence[Item]
    outs: Sequence[Item]
    place: StageIndex | None


class MeshWalk(Walk):
    """Walks the first replica of each pmap, which stands for all of them, and notes the tasks of a pipeline.

    ``along`` says which equations put or join values along a mesh axis, by their first result.
    """

    def __init__(
        self, fn: Function, device_map: DeviceMap, sizes: Mapping[str, int], axes: Mapping[Members, str]
    ) -> None:
        self.axes = axes
        self.along: dict[DeviceValue, Step] = {}
        self.tasks: list[StageTask] = []
        self.inside = not has_stages(fn)
        self.within = StageIndex()
        super().__init__(fn, device_map, sizes)

    def targets(self, eqn: DeviceEqn, scope: Scope) -> tuple[Sequence[int], bool]:
        return super().targets(eqn, scope)[0], True

    def append(self, eqn: DeviceEqn, taken: Members, made: Members) -> None:
        super().append(eqn, taken, made)
        group = made or taken or tuple(map(device_of, eqn.values))
        if len(set(group)) > 1:
            if not (made or taken) or group not in self.axes:
                raise _no_group(eqn.op, group)
            _, dim = self.along.get(eqn.values[0], ("", 0))  # of an element of a split: the dim of the split
            self.along[eqn.outputs[0]] = self.axes[group], eqn.attributes.get("dim", dim)

    def eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        items = [self.known(v, scope) for v in eqn.values]
        self.check(eqn, items, scope)
        if self.inside:
            return super().eqn(eqn, scope)
        place, start, within = self.place(eqn, items, scope), len(self.eqns), self.within
        self.inside = eqn.body is None or not has_stages(eqn.body)
        if eqn.op is ops.CALL and not self.inside:  # a stage that is a pipeline itself
            self.within = self.stage(home_of(items), scope) or within
        outs = super().eqn(eqn, scope)
        if self.inside:
            self.tasks.append(StageTask(eqn, tuple(self.eqns[start:]), items, outs, place))
        self.inside, self.within = False, within
        return outs

    def homes(self, scope: Scope) -> set[int]:
        return set(map(device_of, flat_values(self.inputs))) if scope.home is None else {scope.home}

    def check(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> None:
        """Refuse what one device of a group would do without the others."""
        sends = eqn.op is ops.SEND and "to_device" in eqn.attributes
        to = self.device(eqn.attributes["to_device"], scope) if sends else None
        if to is not None and to not in self.homes(scope) and (self.inside or self.stage(to, scope) is None):
            raise DeviceError(
                f"A send to device {to} is no mesh program.",
                why="one device of a mesh would do what the others do not",
                fix="scatter or broadcast over the devices of a group, or dist.execute(fn, inputs, device_map)",
            )
        taken = eqn.op is ops.ITEM and isinstance(items[0], Group) and items[0].members
        if taken or (eqn.op.structure is Structure.MOVE and len(eqn.outputs) > 1):
            raise DeviceError(
                f"One element of what {eqn.op} takes or gives is no mesh program.",
                why="it is on one device, and the devices of a mesh all run the same",
                fix="use the tuple as a whole: a pmap over it, or a gather",
            )

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
        home = home_of(items)
        return self.stage(home, scope) if eqn.op is ops.CALL or home not in self.homes(scope) else None


@dataclass(frozen=True, eq=False)
class StageMove:
    """An array is laid out on a stage."""

    name: str
    stage: StageIndex
    target: StageIndex
    sharding: NamedSharding
    input: int
    output: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.input,)

    def run(self, values: dict[int, Any]) -> None:
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
    reads: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.stage}: run {', '.join(self.names)}"

    def run(self, values: dict[int, Any]) -> None:
        found = self.jitted(*(values[n] for n in self.reads))
        values.update(zip(self.outputs, found, strict=True))


class StageArray(NamedTuple):
    """An array between programs.

    ``place`` is the stage it is made on; None for an input, and for what a ``maker`` computes of inputs alone: that is
    computed on every stage that needs it.
    """

    name: str
    lead: Lead = ()
    cut: Steps = ()
    place: StageIndex | None = None
    maker: tuple[BlockProgram, tuple[str, ...]] | None = None


class StageResult(NamedTuple):
    """An output of the program: where it is found, and how many leading dims are tuples."""

    slot: int
    levels: int
    sharding: NamedSharding


class StagePlan:
    """What runs on the stages of a pipeline, in order."""

    def __init__(self, fn: Function, walk: MeshWalk, mesh: Mesh) -> None:
        self.walk, self.mesh = walk, mesh
        self.actions: list[StageMove | StageRun] = []
        self.meshes: dict[StageIndex, Mesh] = {}
        self.programs: dict[Any, Any] = {}
        self.arrays = {x: StageArray(v.name) for v, x in zip(fn.inputs, walk.flat.inputs, strict=True)}
        self.slots: dict[tuple[DeviceValue, StageIndex | None], int] = {}
        for v in walk.flat.inputs:
            self._slot(v, None)
        self.made_by = {v: eqn for eqn in walk.eqns for v in eqn.outputs}
        for task in walk.tasks:
            self._add(task)
        self.results = [self._returned(v, x) for v, x in zip(fn.outputs, walk.outputs, strict=True)]

    def _block(self, items: Sequence[Item], eqns: Sequence[DeviceEqn], outs: Any, returned: Any = None) -> BlockProgram:
        """Equations as a program of the arrays that their operands are, or are parts of."""
        sources: dict[DeviceValue, None] = {}
        moves: dict[DeviceValue, DeviceEqn] = {}
        for v in flat_values(items):
            chain = []
            while v not in self.arrays:
                chain.append(self.made_by[v])
                (v,) = chain[-1].values
            sources[v] = None
            moves |= {eqn.outputs[0]: eqn for eqn in reversed(chain)}
        found = Function("task", tuple(sources), (*moves.values(), *eqns), outs)
        arrays = [self.arrays[v] for v in sources]
        leads, cuts = [x.lead for x in arrays], [x.cut for x in arrays]
        return BlockProgram(found, self.walk.along, self.mesh.axis_names, leads, cuts, returned)

    def _add(self, task: StageTask) -> None:
        """Write a task on its stage: that of its device, or for a device above stages, that of its operands."""
        names = [v.name for v, item in zip(task.eqn.outputs, task.outs, strict=True) for _ in flat_values([item])]
        block = self._block(task.items, task.flat, flat_values(task.outs))
        made = [x.place for x in map(self.arrays.__getitem__, block.fn.inputs) if x.place is not None]
        inside = [place for place in made if task.place is None or place[: len(task.place)] == task.place]
        place = task.place if task.eqn.op is ops.CALL or not inside else inside[0]
        named = dict(zip(block.fn.outputs, names, strict=True))
        self._make(block, named, place, tuple(v.name for v in task.eqn.outputs))

    def _make(
        self, block: BlockProgram, named: Mapping[DeviceValue, str], place: StageIndex | None, names: tuple[str, ...]
    ) -> None:
        maker = None if place is not None else (block, names)
        for v, lead, cut in zip(block.outputs, block.out_leads, block.out_cuts, strict=True):
            self.arrays[v] = StageArray(named[v], lead, cut, place, maker)
        if block.outputs and place is not None:
            self._emit(block, names, place)

    def _emit(self, block: BlockProgram, names: tuple[str, ...], place: StageIndex) -> None:
        """Write a program at a stage, after what it needs there."""
        inputs = [self._fetch(v, place, block.entry[v]) for v in block.fn.inputs]
        mesh, key = self._mesh(place), (block.key, place)
        if key not in self.programs:
            self.programs[key] = jit(block.on(mesh))
        outputs = [self._slot(v, place) for v in block.outputs]
        ins, outs = (tuple(NamedSharding(mesh, spec) for spec in specs) for specs in (block.in_specs, block.out_specs))
        self.actions.append(StageRun(names, place, self.programs[key], ins, outs, tuple(inputs), tuple(outputs)))

    def _slot(self, value: DeviceValue, place: StageIndex | None) -> int:
        return self.slots.setdefault((value, place), len(self.slots))

    def _mesh(self, place: StageIndex) -> Mesh:
        """The mesh of a stage: the axes of its pipelines have size 1."""
        if place not in self.meshes:
            grid = self.mesh.device_ids
            for level, index in place:
                grid = np.take(grid, [index], axis=level)
            self.meshes[place] = Mesh(grid, self.mesh.axis_names)
        return self.meshes[place]

    def _fetch(self, value: DeviceValue, place: StageIndex, cut: Steps) -> int:
        """Where a value is found on a stage: it is put, made or sent there once."""
        array = self.arrays[value]
        if (value, place) not in self.slots and array.maker is not None:
            self._emit(*array.maker, place)
        elif (value, place) not in self.slots:
            sharding = NamedSharding(self._mesh(place), spec_of(cut, array.lead))
            here, kind = self.slots[value, array.place], Put if array.place is None else StageSend
            there = self._slot(value, place)
            self.actions.append(kind(array.name, array.place or place, place, sharding, here, there))
        return self.slots[value, place]

    def _returned(self, value: DeviceValue, item: Item) -> StageResult:
        v, lead = output_of(item, self.walk.axes)
        block = self._block([v], (), (v,), [lead])
        source, steps = block.parts[block.at(v)]
        if not steps and self.arrays[source].lead == lead:
            v = source
        else:
            self._make(block, {v: value.name}, self.arrays[source].place, (value.name,))
        array = self.arrays[v]
        place = array.place or next(iter(self.meshes), StageIndex())
        slot = self._fetch(v, place, array.cut)
        return StageResult(slot, len(lead), NamedSharding(self._mesh(place), spec_of(array.cut, lead)))


def has_stages(fn: Function) -> bool:
    """Whether a program calls stages: bodies that run on single devices."""
    return any(eqn.op is ops.CALL for eqn in fn.eqns) or any(map(has_stages, fn.bodies()))


def output_of(item: Item, axes: Mapping[Members, str]) -> tuple[DeviceValue, Lead]:
    """The flat value that an output is on one device, and the axes of the tuples around it."""
    lead: list[str | None] = []
    while isinstance(item, Group):
        if not item.same and not item.members:
            raise _no_group("return", map(device_of, flat_values([item])))
        lead += [] if item.same else [axes.get(item.members)]
        item = item.items[0]
    return item, tuple(lead)


def _no_group(op: object, devices: Iterable[int]) -> DeviceError:
    return DeviceError(
        f"The devices of a {op} are no group of the device map.",
        why=f"they are {', '.join(map(str, devices))}; along a mesh axis are the devices of one group, in order",
        fix="a device map that has them as a group, and device_keys=[] or [d] instead of devices",
    )

"""Pipelines on meshes: each stage is a mesh of its own, its tasks are programs there, and values are sent between.

The walk goes down to where the stages are. A `call` on a stage, and every equation between the calls, becomes one
``shard_map`` over the mesh of a stage. A device above the stages (the host, or the device of a replica that holds a
pipeline) has no mesh: what it holds stays on the stage that made it, what it computes is computed there. So the sum of
a gradient over replicas runs between the devices of the stage that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from meshwright.api.shard_map import shard_map
from meshwright.arrays.device_put import device_put
from meshwright.compile.jit import jit
from meshwright.device.blocks import BlockDomain, JoinedValue, OneForAll, ScatteredValue, Steps, Varying, spec_of
from meshwright.device.device_map import DeviceMap
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.machine import DeviceMachine, Group, Item, Leaf, Members, Scope, first_leaf
from meshwright.device.ops import RETURN, is_structural
from meshwright.device.tensor_ops import is_elementwise, tensor_of
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


class StageIndex(tuple[tuple[int, int], ...]):
    """A stage: levels of the device map, and the index on each."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"stage {'.'.join(str(index) for _, index in self)}"


@dataclass(frozen=True, eq=False)
class StageArray:
    """An array between programs.

    ``lead`` are axes along which devices hold different values, one leading dim each. ``place`` is the stage it is made
    on; None for an input, and for what is computed of inputs alone: that is computed on every stage that needs it.
    """

    name: str
    lead: tuple[str | None, ...] = ()
    place: StageIndex | None = None
    maker: int | StageTask | None = None


@dataclass(eq=False)
class StageTask:
    """An equation as a program: what it takes, how that is cut, and what it gives."""

    eqn: DeviceEqn
    scope: Scope
    items: tuple[Item, ...]
    sources: tuple[StageArray, ...]
    key: Any
    cut: Steps = ()  # what an elementwise op computes on parts, as all its operands are cut
    entry: tuple[Steps, ...] = ()
    made: tuple[StageArray, ...] = ()
    specs: tuple[PartitionSpec, ...] = ()
    outs: list[Item] = field(default_factory=list)

    @property
    def in_specs(self) -> tuple[PartitionSpec, ...]:
        return tuple(PartitionSpec(*x.lead, *spec_of(steps)) for x, steps in zip(self.sources, self.entry, strict=True))


@dataclass(frozen=True, eq=False)
class Put:
    """An input is laid out on a stage."""

    input: int
    name: str
    stage: StageIndex
    sharding: NamedSharding
    output: int

    def __str__(self) -> str:
        return f"{self.stage}: put {self.name} {self.sharding.spec}"

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    def run(self, inputs: Sequence[Any], values: dict[int, Any]) -> None:
        values[self.output] = device_put(inputs[self.input], self.sharding)


@dataclass(frozen=True, eq=False)
class StageSend:
    """A value goes from one stage to another."""

    name: str
    stage: StageIndex
    target: StageIndex
    sharding: NamedSharding
    input: int
    output: int

    def __str__(self) -> str:
        return f"{self.stage}: send {self.name} to {self.target} {self.sharding.spec}"

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.input,)

    def run(self, inputs: Sequence[Any], values: dict[int, Any]) -> None:
        values[self.output] = device_put(values[self.input], self.sharding)


@dataclass(frozen=True, eq=False)
class StageRun:
    """A program runs on the mesh of a stage; ``jitted`` is that program, one for all tasks that do the same."""

    names: tuple[str, ...]
    stage: StageIndex
    jitted: Any
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.stage}: run {', '.join(self.names)}"

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inputs

    def run(self, inputs: Sequence[Any], values: dict[int, Any]) -> None:
        found = self.jitted(*(values[n] for n in self.inputs))
        for n, y in zip(self.outputs, found, strict=True):
            values[n] = y


Action = Put | StageSend | StageRun


@dataclass(frozen=True)
class StageResult:
    """An output of the program: where it is found, and how many leading dims are tuples."""

    slot: int
    levels: int
    sharding: NamedSharding


class Staged(OneForAll):
    """Walks a program down to its stages and writes what runs there, in order."""

    def __init__(
        self, mesh: Mesh, axes: Mapping[Members, str], device_map: DeviceMap, sizes: Mapping[str, int]
    ) -> None:
        super().__init__(BlockDomain(axes, (), None), device_map, sizes, frozenset())
        self.mesh, self.axes, self.map = mesh, axes, device_map
        self.actions: list[Action] = []
        self.stages: dict[StageIndex, Mesh] = {}
        self.within = StageIndex()
        self.slots: dict[tuple[StageArray, StageIndex], int] = {}
        self.count = 0
        self.specs: dict[StageArray, PartitionSpec] = {}
        self.cuts: dict[StageArray, Steps] = {}
        self.programs: dict[Any, Any] = {}

    def plan(self, fn: Function) -> tuple[StageResult, ...]:
        """Write the actions of a function, and say where its outputs are."""
        items = []
        for n, v in enumerate(fn.inputs):
            assert isinstance(v.type, Tensor)
            assert isinstance(v.type.device.base, int)
            items.append(Leaf(ScatteredValue(StageArray(v.name, maker=n)), v.type.device.base))
        self.homes = frozenset(x.device for x in items)
        scope = Scope(sizes=dict(self.sizes))
        outs = self._body(fn, items, scope)
        return tuple(self._returned(v, item, scope) for v, item in zip(fn.outputs, outs, strict=True))

    # Stages

    def _stage(self, device: int, scope: Scope) -> StageIndex | None:
        """The stage that a device is; None for one above the stages."""
        below = self.map.below(scope.path) if scope.path is not None else None
        keys = below.keys() if below is not None else ()
        if scope.path is None or device not in keys:
            return None
        return StageIndex((*self.within, (len(scope.path), keys.index(device))))

    def mesh_of(self, place: StageIndex) -> Mesh:
        """The mesh of a stage: the axes of its pipelines have size 1."""
        found = self.stages.get(place)
        if found is None:
            grid = self.mesh.device_ids
            for level, index in place:
                grid = np.take(grid, [index], axis=level)
            found = self.stages[place] = Mesh(grid, self.mesh.axis_names)
        return found

    # Equations

    def _eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        if eqn.body is not None and has_stages(eqn.body):
            return self._pipeline(eqn, scope) if eqn.op == "call" else self._pmap(eqn, scope)
        if eqn.op == "send" and "to_device" in eqn.attributes:
            device = self.device(eqn.attributes["to_device"], scope)
            if self._stage(device, scope) is not None:
                return DeviceMachine._eqn(self, eqn, scope)
        if eqn.op in ("send", "scatter", "broadcast", "item", "tuple"):
            return super()._eqn(eqn, scope)
        task = self._task(eqn, scope, [self._value(v, scope) for v in eqn.values])
        for item in task.outs:
            self._touch(item)
        return task.outs

    def _pipeline(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        """A stage that is a pipeline itself."""
        place = self._stage(self._device(eqn, scope), scope)
        before, self.within = self.within, place if place is not None else self.within
        outs = self._call(eqn, scope)
        self.within = before
        return outs

    def _device(self, eqn: DeviceEqn, scope: Scope) -> int:
        items = [self._value(v, scope) for v in eqn.values]
        return first_leaf(next((x for x in items if isinstance(x, Leaf)), items[0])).device

    def _where(self, eqn: DeviceEqn, scope: Scope, sources: Sequence[StageArray]) -> StageIndex | None:
        """The stage an equation runs on: that of its device, or for a device above stages, that of its operands."""
        made = [x.place for x in sources if x.place is not None]
        found = None
        if eqn.values and eqn.op not in ("return", "gather") and isinstance(scope.values[eqn.values[0]], Leaf):
            device = self._device(eqn, scope)
            above = device in (list(scope.variables.values())[-1:] if scope.variables else self.homes)
            found = self._stage(device, scope) if eqn.op == "call" or not above else None
        if found is None:
            return next(iter(made), None)
        inside = [place for place in made if place[: len(found)] == found]
        return next(iter(inside), found) if eqn.op != "call" else found

    # Tasks

    def _task(
        self, eqn: DeviceEqn, scope: Scope, items: Sequence[Item], lead: tuple[str | None, ...] | None = None
    ) -> StageTask:
        sources: dict[StageArray, int] = {}
        cut = self._cut(eqn, items)

        def numbered(x: Leaf) -> Leaf:
            n = sources.setdefault(x.data.source, len(sources))
            return Leaf(ScatteredValue(n, x.data.steps + cut), x.device)

        inner = tuple(_each(item, numbered) for item in items)
        place = self._where(eqn, scope, tuple(sources))
        frame = Scope(dict(scope.variables), dict(scope.paths), scope.path, dict(scope.sizes))
        key = self._key(eqn, frame, inner, tuple(sources), lead, cut)
        task = StageTask(eqn, frame, inner, tuple(sources), key, cut)
        domain = BlockDomain(self.axes, (), None, [frozenset(a for a in x.lead if a) for x in sources])
        outs = self._walk(task, domain)
        scope.sizes.update(frame.sizes)
        task.entry = tuple(common(sorted(domain.wanted.get(n, {()}))) for n in range(len(sources)))
        made: list[StageArray] = []
        specs: list[PartitionSpec] = []
        late = task if place is None else None

        def handle(x: Leaf, name: str) -> Leaf:
            data = x.data
            if isinstance(data, ScatteredValue):  # it comes in and goes out
                return Leaf(ScatteredValue(task.sources[data.source], data.steps), x.device)
            steps: Steps = tuple(reversed(data.steps)) if isinstance(data, JoinedValue) else ()
            varying: Varying = data.data - {axis for axis, _ in steps} if isinstance(data, JoinedValue) else data
            axes = lead if lead is not None else tuple(a for a in self.mesh.axis_names if a in varying)
            made.append(StageArray(name, axes, place, late))
            specs.append(PartitionSpec(*axes, *spec_of(steps)))
            self.cuts[made[-1]] = steps
            return Leaf(ScatteredValue(made[-1]), x.device)

        names = [v.name for v in eqn.outputs] or [v.name for v in eqn.values]
        task.outs = [_each(item, partial(handle, name=name)) for item, name in zip(outs, names, strict=True)]
        task.made, task.specs = tuple(made), tuple(specs)
        self.specs.update(zip(made, specs, strict=True))
        if place is not None:
            self._emit(task, place)
        return task

    def _walk(self, task: StageTask, domain: BlockDomain) -> list[Item]:
        if task.eqn.op == "return":
            return [_each(item, lambda x: Leaf(domain.read(x), x.device)) for item in task.items]
        machine = OneForAll(domain, self.map, self.sizes, self.homes)
        task.scope.values = dict(zip(task.eqn.values, task.items, strict=True))
        outs = machine._eqn(task.eqn, task.scope)
        if not task.cut:
            return outs
        joined = tuple(reversed(task.cut))
        return [_each(item, lambda x: Leaf(JoinedValue(x.data, joined), x.device)) for item in outs]

    def _cut(self, eqn: DeviceEqn, items: Sequence[Item]) -> Steps:
        """How all operands of an elementwise op or a sum are cut by the programs that made them."""
        if eqn.op != "allreduce" and not (not is_structural(eqn.op) and is_elementwise(eqn)):
            return ()
        parts = [first_leaf(item).data for item in items]
        cuts = {self.cuts.get(part.source, ()) for part in parts}
        shapes = {tensor_of(v).shape if v.type is not None else None for v in eqn.values} - {None}
        plain = not any(part.steps for part in parts) and len(shapes) == 1
        return cuts.pop() if len(cuts) == 1 and plain else ()

    def _key(
        self, eqn: DeviceEqn, scope: Scope, items: Sequence[Item], sources: Sequence[StageArray], lead: Any, cut: Steps
    ) -> tuple[Any, ...]:
        """Equal for tasks that are one program: microbatches of a stage, sums of one shape."""
        operands = tuple((x.value, x.dtype) if isinstance(x, Number) else None for x in eqn.inputs)
        what: Any = id(eqn.body)
        if eqn.body is None:
            what = tuple(sorted(eqn.attributes.items(), key=lambda pair: pair[0]))
            try:
                hash(what)
            except TypeError:  # an array among them
                what = id(eqn)
        outs = tuple(str(v.type) for v in eqn.outputs)
        inputs = tuple(eqn.values.index(v) for v in eqn.values)
        places = tuple(scope.variables.items())
        leads = tuple(x.lead for x in sources)
        return eqn.op, what, operands, inputs, outs, places, tuple(items), leads, lead, cut

    def _emit(self, task: StageTask, place: StageIndex) -> None:
        """Write a task at a stage, after what it needs there."""
        if not task.made:
            return
        specs = task.in_specs
        inputs = tuple(self._fetch(x, place, spec) for x, spec in zip(task.sources, specs, strict=True))
        mesh = self.mesh_of(place)
        key = task.key, place
        if key not in self.programs:
            self.programs[key] = jit(self._program(task, mesh))
        outputs = tuple(self._slot(x, place) for x in task.made)
        self.actions.append(
            StageRun(
                tuple(v.name for v in task.eqn.outputs) or tuple(x.name for x in task.made),
                place,
                self.programs[key],
                tuple(NamedSharding(mesh, spec) for spec in specs),
                tuple(NamedSharding(mesh, spec) for spec in task.specs),
                inputs,
                outputs,
            )
        )

    def _program(self, task: StageTask, mesh: Mesh) -> Any:
        """The function of a task: whole arrays in, whole arrays out."""
        leads = [len(x.lead) for x in task.sources]
        outs = [len(x.lead) for x in task.made]

        def block(*blocks: Any) -> list[Any]:
            inputs = [x.reshape(x.shape[n:]) for x, n in zip(blocks, leads, strict=True)]
            found: list[Any] = []

            def leave(x: Leaf) -> Leaf:
                if not isinstance(x.data, ScatteredValue):
                    found.append(x.data.data if isinstance(x.data, JoinedValue) else x.data)
                return x

            for item in self._walk(task, BlockDomain(self.axes, task.entry, inputs)):
                _each(item, leave)
            return [y.reshape((1,) * n + y.shape) for y, n in zip(found, outs, strict=True)]

        return shard_map(block, mesh=mesh, in_specs=task.in_specs, out_specs=list(task.specs))

    def _slot(self, source: StageArray, place: StageIndex) -> int:
        self.slots[source, place] = self.count
        self.count += 1
        return self.count - 1

    def _fetch(self, source: StageArray, place: StageIndex, spec: PartitionSpec) -> int:
        """Where a value is found on a stage: it is put, made or sent there once."""
        found = self.slots.get((source, place))
        if found is not None:
            return found
        sharding = NamedSharding(self.mesh_of(place), spec)
        if isinstance(source.maker, StageTask):
            self._emit(source.maker, place)
            return self.slots[source, place]
        slot = self._slot(source, place)
        if isinstance(source.maker, int):
            self.actions.append(Put(source.maker, source.name, place, sharding, slot))
        else:
            assert source.place is not None
            have = self.slots[source, source.place]
            self.actions.append(StageSend(source.name, source.place, place, sharding, have, slot))
        return slot

    # Outputs

    def _returned(self, value: DeviceValue, item: Item, scope: Scope) -> StageResult:
        eqn = DeviceEqn(RETURN, (value,), ())
        axes: list[str | None] = []
        while isinstance(item, Group):
            if not item.same and not item.members:
                devices = ", ".join(str(first_leaf(x).device) for x in item.items)
                raise DeviceError(
                    f"The devices of {value.name} are no group of the device map.",
                    why=f"they are {devices}; along a mesh axis are the devices of one group, in order",
                    fix=f"gather({value.name}, dim=0, to_device=0), and return that",
                )
            if not item.same:
                axes.append(self.domain.axis(eqn, item.members))
            item = item.items[0]
        lead = tuple(axes)
        part: ScatteredValue = item.data
        if part.steps or part.source.lead != lead:
            task = self._task(eqn, scope, [item], lead)
            part = first_leaf(task.outs[0]).data
        source: StageArray = part.source
        place = source.place if source.place is not None else next(iter(self.stages), StageIndex())
        spec = self.specs.get(source, PartitionSpec())
        slot = self._fetch(source, place, spec)
        return StageResult(slot, len(lead), NamedSharding(self.mesh_of(place), spec))


def has_stages(fn: Function) -> bool:
    """Whether a program calls stages: bodies that run on single devices."""
    return any(eqn.op == "call" for eqn in fn.eqns) or any(map(has_stages, fn.bodies()))


def common(wanted: Sequence[Steps]) -> Steps:
    """The cuts that all uses of an input begin with."""
    same = takewhile(lambda steps: len(set(steps)) == 1, zip(*wanted, strict=False))
    return tuple(steps[0] for steps in same)


def _each(item: Item, change: Callable[[Leaf], Leaf]) -> Item:
    if isinstance(item, Leaf):
        return change(item)
    return Group(tuple(_each(inner, change) for inner in item.items), item.same, item.members)

"""Device programs as mesh programs: the levels of a regular device map are the axes of a mesh, or of one per stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.arrays.tracing import ShapeDtypeStruct, leaf_value, make_program
from meshwright.compile.compiled import Compiled
from meshwright.compile.jit import jit
from meshwright.core.program import Program
from meshwright.device.blocks import BlockProgram, MeshWalk, no_group
from meshwright.device.device_map import DeviceMap, Members, as_members
from meshwright.device.dims import bind
from meshwright.device.execute import arranged, array_sizes
from meshwright.device.from_program import takes_program
from meshwright.device.function import Function
from meshwright.device.resolve import as_device_map, resolve
from meshwright.device.staged import Slot, StageMove, StagePlan, StageRun, StageSend, has_stages
from meshwright.device.tensor_ops import tensor_of
from meshwright.device.types import Tuple
from meshwright.device.walk import symbols_of
from meshwright.errors import DeviceError, ShapeError
from meshwright.sharding.mesh import Mesh


class OnMesh:
    """A device program on a mesh: called with whole arrays, in the order of its inputs or by their names."""

    def __init__(self, source: Function, device_map: DeviceMap, sizes: Mapping[str, int]) -> None:
        self.source, self.device_map, self.sizes = source, device_map, dict(sizes)
        self.mesh = _mesh(device_map)
        self._axes = _groups(device_map, self.mesh.axis_names)
        self._walks: dict[Any, Any] = {}
        for v in source.inputs:
            if isinstance(v.type, Tuple):
                raise DeviceError(
                    f"The input {v.name} is a tuple.",
                    why="an input of a mesh program is one array, and its sharding says how it is cut",
                    fix=f"{v.name}: Tensor[…, 0], and scatter({v.name}, dim=0, device_keys=[]) in the program",
                )

    def _planned(self, sizes: Mapping[str, int]) -> Any:
        """What is run for inputs of these sizes; devices named one by one must be groups in every replica."""
        key = tuple(sorted(sizes.items()))
        if key not in self._walks:
            for eqn in resolve(self.source, self.device_map, fold=True, **sizes).eqns:
                devices = as_members([*eqn.attributes.get("devices", ())])
                if len(devices) > 1 and devices not in self._axes:
                    raise no_group(devices, self.device_map, repr(eqn))
            given = (self.source, self.device_map, sizes, self._axes)
            self._walks[key] = StagePlan(*given, self.mesh) if has_stages(self.source) else _block(MeshWalk(*given))
        return self._walks[key]

    def _fitted(self, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        """Inputs as values, and what is run for the sizes they give to symbols, which must be those of the program."""
        values = [leaf_value(x, f"the input {v.name}") for v, x in zip(self.source.inputs, inputs, strict=True)]
        sizes = array_sizes(self.source, values)
        for name, n in self.sizes.items():
            if sizes.get(name, n) != n:
                raise ShapeError(
                    f"{name} is {sizes[name]} in the inputs, and {n} in the mesh program.",
                    why=f"it was made by dist.to_mesh(…, {name}={n})",
                    fix=f"dist.to_mesh(…, {name}={sizes[name]})",
                )
        return values, self._planned(sizes)

    def _ordered(self, inputs: Sequence[Any], by_name: Mapping[str, Any]) -> list[Any]:
        return arranged(self.source, inputs, by_name, self.device_map)[0]

    def _structs(self) -> list[ShapeDtypeStruct]:
        """The inputs' types, whose sizes must be known."""
        unknown = sorted(symbols_of(self.source) - set(self.sizes))
        if unknown:
            raise ShapeError(
                f"The size {unknown[0]} of the mesh program is not known.",
                why="a traced program has numbers as sizes",
                fix=f"dist.to_mesh(fn, device_map, {', '.join(f'{name}=8' for name in unknown)})",
            )
        types = map(tensor_of, self.source.inputs)
        return [ShapeDtypeStruct(tuple(bind(n, self.sizes) for n in t.shape), t.dtype) for t in types]  # type: ignore[misc]


class MeshProgram(OnMesh):
    """A device program as one ``shard_map``.

    ``mesh`` has one axis per level of the device map, ``in_shardings`` and ``out_shardings`` say how inputs and outputs
    are cut, ``function`` is what runs under ``jit``.
    """

    def __init__(self, source: Function, device_map: DeviceMap, sizes: Mapping[str, int]) -> None:
        super().__init__(source, device_map, sizes)
        block: BlockProgram = self._planned(sizes)
        self.in_shardings = tuple(x.on(self.mesh) for x in block.ins.values())
        self.out_shardings = tuple(x.on(self.mesh) for x in block.outs)
        self._jitted = jit(self.function)

    def __repr__(self) -> str:
        specs = [f"{v.name}: {s.spec}" for v, s in zip(self.source.inputs, self.in_shardings, strict=True)]
        outs = ", ".join(str(s.spec) for s in self.out_shardings)
        return f"MeshProgram({self.mesh}, {', '.join(specs)} -> {outs})"

    def function(self, *inputs: Any) -> Any:
        """The program as a function to trace: ``mw.jit``, ``mw.grad`` and ``mw.make_program`` take it."""
        values, block = self._fitted(inputs)
        found = zip(block.on(self.mesh)(*values), block.outs, strict=True)
        return _unpacked([_tuples(y, len(layout.lead)) for y, layout in found])

    def __call__(self, *inputs: Any, **by_name: Any) -> Any:
        return self._jitted(*self._ordered(inputs, by_name))

    @cached_property
    def program(self) -> Program:
        """The traced program, one shard_map; the sizes of its inputs must be known."""
        return make_program(self.function)(*self._structs())


class MeshPipeline(OnMesh):
    """A pipeline as programs on the meshes of its stages, with sends between them.

    ``mesh`` is that of the whole device map, ``meshes`` are those of the stages: parts of it. ``actions`` say what is
    done, in order: an input is put on a stage (``Put``), a program runs there (``Run``), a value is sent to another
    stage (``Send``).
    """

    def __init__(self, source: Function, device_map: DeviceMap, sizes: Mapping[str, int]) -> None:
        super().__init__(source, device_map, sizes)
        plan: StagePlan = self._planned(sizes)
        self.meshes = {str(place): plan.meshes[place] for place in sorted(plan.meshes)}
        self.actions = tuple(plan.actions)
        self.out_shardings = tuple(sharding for _, _, sharding in plan.results)

    def __repr__(self) -> str:
        stages = "; ".join(f"{stage}: {mesh}" for stage, mesh in self.meshes.items())
        kinds = [type(action) for action in self.actions]
        return f"MeshPipeline({stages}; {kinds.count(StageRun)} programs, {kinds.count(StageSend)} sends)"

    def __str__(self) -> str:
        return "\n".join(map(str, self.actions))

    def __call__(self, *inputs: Any, **by_name: Any) -> Any:
        given, plan = self._fitted(self._ordered(inputs, by_name))
        values = {(v, None): x for v, x in zip(plan.flat.inputs, given, strict=True)}
        left = Counter(
            [slot for action in plan.actions for slot in action.reads] + [slot for slot, _, _ in plan.results]
        )
        for action in plan.actions:
            action.run(values)
            for slot in action.reads:
                left[slot] -= 1
                if not left[slot]:
                    del values[slot]  # what nobody reads again is let go
        return _unpacked([_tuples(values[slot], len(lead)) for slot, lead, _ in plan.results])

    @cached_property
    def compiled(self) -> tuple[tuple[StageRun, Compiled], ...]:
        """Every run with what it runs, as ``jit(…).lower(…).compile()`` gives it; the sizes of inputs must be known.

        Runs that do the same share it: it says which collectives there are, and ``mw.simulate`` takes it.
        """
        inputs = self._planned(self.sizes).flat.inputs
        values: dict[Slot, ShapeDtypeStruct] = {(v, None): x for v, x in zip(inputs, self._structs(), strict=True)}
        known: dict[Any, Compiled] = {}
        found = []
        for action in self.actions:
            args = [values[slot] for slot in action.reads]
            if isinstance(action, StageMove):
                values[action.output] = ShapeDtypeStruct(args[0].shape, args[0].dtype, sharding=action.sharding)
                continue
            key = (id(action.jitted), *((x.type, x.sharding) for x in args))
            if key not in known:
                known[key] = action.jitted.lower(*args).compile()
            types = known[key].global_program.out_types
            for slot, type, sharding in zip(action.outputs, types, action.out_shardings, strict=True):
                values[slot] = ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding)
            found.append((action, known[key]))
        return tuple(found)


@takes_program
def to_mesh(fn: Function, device_map: Any = None, **sizes: int) -> MeshProgram | MeshPipeline:
    """A device program on a regular device map as a mesh program: one ``shard_map`` over a mesh.

    Level n of the map is the mesh axis ``d``, ``dd``, ``ddd``, …; devices stand in the mesh as in the map, numbered by
    their rank. Scatters of inputs become input shardings, gathers of outputs output shardings, collectives those of
    ``mw.lax``. Each stage of a pipeline has a mesh of its own, and its tasks are programs there; the result is then a
    `MeshPipeline`. Irregular maps are refused.

    >>> from meshwright import dist
    >>> import numpy as np
    >>> fn = dist.parse("def f(x: Tensor[(B, F), 0], w: Tensor[(F, H), 0]): y = MatMul(x, w) return y")
    >>> fn = dist.horizontal_parallel(dist.data_parallel(fn, {"x": 0}), {"x": 0}, ["d"])
    >>> program = dist.to_mesh(fn, {1: [1, 3], 2: [2, 4]})
    >>> program
    MeshProgram(<["d"=2, "dd"=2], device_ids=[0, 2, 1, 3]>, x: P('d',), w: P(None, 'dd') -> P('d', 'dd'))
    >>> program(np.ones((4, 3), "f4"), np.ones((3, 2), "f4")).tolist()
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    found = as_device_map(device_map, fn)
    if found is None:
        raise DeviceError(
            "There is no device map.",
            why="its levels are the axes of the mesh",
            fix="dist.to_mesh(fn, {1: [1, 3], 2: [2, 4]})",
        )
    return (MeshPipeline if has_stages(fn) else MeshProgram)(fn, found, sizes)


def _block(walk: MeshWalk) -> BlockProgram:
    outs, leads = zip(*map(walk.output, walk.run().outputs), strict=True)
    return BlockProgram(walk.flat.with_(outputs=outs), walk.along, returned=leads)


def _mesh(device_map: DeviceMap) -> Mesh:
    fans = device_map.fan_outs
    if fans is None:
        raise DeviceError(
            f"The device map {device_map} is no mesh.",
            why="its groups differ in size or depth, and an axis of a mesh has one size",
            fix="a regular map, such as dist.DeviceMap.grid(2, 4), or dist.execute(fn, inputs, device_map)",
        )
    leaves = [path[-1] for path in device_map.paths() if len(path) == len(fans)]
    rank = {device: n for n, device in enumerate(sorted(leaves))}
    grid = np.array([rank[device] for device in leaves]).reshape(fans)
    return Mesh(grid, tuple("d" * (n + 1) for n in range(len(fans))))


def _groups(device_map: DeviceMap, names: Sequence[str]) -> dict[Members, str]:
    """The mesh axis that each group of devices lies along."""
    found: dict[Members, str] = {}
    for path in ((), *device_map.paths()):
        below = device_map.below(path)
        if below is not None and len(below.keys()) > 1:
            found.setdefault(below.keys(), names[len(path)])
    return found


def _unpacked(found: Sequence[Any]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


def _tuples(x: Any, levels: int) -> Any:
    return tuple(_tuples(x[n], levels - 1) for n in range(x.shape[0])) if levels else x

"""Flat programs as the code of one device of a mesh: what scatters and collectives are along mesh axes.

On a regular map, the devices of a group do the same, so that the first of them is walked for all: a value inside k
pmaps is a value that varies over the first k mesh axes and is the same along the others. A scatter of an input is put
off until it is known how every use wants it, a gather until something needs the whole: what is left of them are the
specs of inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from meshwright.api.shard_map import shard_map
from meshwright.core.facts import Structure
from meshwright.device import ops
from meshwright.device.device_map import DeviceMap, Members
from meshwright.device.execute import TRACED
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.symmetry import device_of
from meshwright.device.tensor_ops import is_elementwise, tensor_of
from meshwright.device.walk import Group, Item, Scope, Walk, flat_values
from meshwright.errors import DeviceError
from meshwright.lax import collectives
from meshwright.numpy.reductions import all as every
from meshwright.numpy.reductions import any as some
from meshwright.numpy.reductions import prod
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec

Step = tuple[str, int]  # a mesh axis, and the dim that is cut or joined along it
Steps = tuple[Step, ...]
Lead = tuple[str | None, ...]  # axes along which devices hold different values, one leading dim each


class MeshWalk(Walk):
    """Walks the first replica of each pmap, which stands for all of them.

    ``axes`` are the mesh axes that groups of devices lie along; ``along`` says which equations put or join values along
    one, by their first result.
    """

    def __init__(
        self, fn: Function, device_map: DeviceMap, sizes: Mapping[str, int], axes: Mapping[Members, str]
    ) -> None:
        super().__init__(fn, device_map, sizes)
        self.axes = axes
        self.along: dict[DeviceValue, Step] = {}

    def targets(self, eqn: DeviceEqn, scope: Scope) -> tuple[Members, bool]:
        return super().targets(eqn, scope)[0], True

    def append(self, eqn: DeviceEqn, taken: Members, made: Members) -> None:
        super().append(eqn, taken, made)
        group = made or taken
        if not group and len(set(map(device_of, eqn.values))) > 1:
            raise no_group(tuple(map(device_of, eqn.values)), self.device_map)
        if len(group) > 1:
            _, dim = self.along.get(eqn.values[0], ("", 0))  # of an element of a split: the dim of the split
            self.along[eqn.outputs[0]] = self.axes[group], eqn.attributes.get("dim", dim)

    def eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        """The results of an equation that does not make one device of a group do what the others do not."""
        first = scope.values.get(eqn.values[0]) if eqn.values else None
        if eqn.op is ops.SEND and "to_device" in eqn.attributes:
            to = self.device(eqn.attributes["to_device"], scope)
            if not self.may_send(to, scope):
                raise DeviceError(
                    f"A send to device {to} is no mesh program.",
                    why="one device of a mesh would do what the others do not",
                    fix="scatter or broadcast over the devices of a group, or dist.execute(fn, inputs, device_map)",
                )
        taken = eqn.op is ops.ITEM and isinstance(first, Group) and first.members
        if taken or (eqn.op.structure is Structure.MOVE and len(eqn.outputs) > 1):
            raise DeviceError(
                f"One element of what {eqn.op} takes or gives is no mesh program.",
                why="it is on one device, and the devices of a mesh all run the same",
                fix="use the tuple as a whole: a pmap over it, or a gather",
            )
        return super().eqn(eqn, scope)

    def may_send(self, device: int, scope: Scope) -> bool:
        """Whether a device is that of the body, or of an input."""
        return device == scope.home or (scope.home is None and device in map(device_of, flat_values(self.inputs)))

    def output(self, item: Item) -> tuple[DeviceValue, Lead]:
        """The value that an output is on one device, and the axes of the tuples around it."""
        lead: list[str | None] = []
        while isinstance(item, Group):
            if not item.same and not item.members:
                raise no_group(tuple(map(device_of, flat_values([item]))), self.device_map)
            lead += [] if item.same else [self.axes.get(item.members)]
            item = item.items[0]
        return item, tuple(lead)


def no_group(devices: Members, device_map: DeviceMap | None, where: str = "") -> DeviceError:
    """What is said of devices that do not lie along a mesh axis."""
    return DeviceError(
        f"The devices {', '.join(map(str, devices))} are no group of the device map.",
        where=where,
        why=f"the map is {device_map}, and along a mesh axis are the devices of one group, in order",
        fix="a device map that has them as a group, or device_keys=[] or [d] instead of devices",
    )


class BlockLayout(NamedTuple):
    """How an array lies on a mesh: its leading dims are devices that hold different values, the rest is cut in steps.

    >>> BlockLayout((), (("d", 0), ("dd", 1), ("ddd", 0))).spec, BlockLayout(("d",), (("dd", 0),)).spec
    (P(('d', 'ddd'), 'dd'), P('d', 'dd'))
    """

    lead: Lead = ()
    cut: Steps = ()

    @property
    def spec(self) -> PartitionSpec:
        dims = range(max((dim for _, dim in self.cut), default=-1) + 1)
        return PartitionSpec(*self.lead, *(tuple(axis for axis, d in self.cut if d == dim) for dim in dims))

    def on(self, mesh: Mesh) -> NamedSharding:
        return NamedSharding(mesh, self.spec)


class BlockView(NamedTuple):
    """What is left of a value: a source that is cut in steps, or joined in them."""

    source: DeviceValue
    steps: Steps = ()
    joined: bool = False


class BlockProgram:
    """A flat program on a mesh: a function of whole arrays, and how these are cut.

    ``along`` says along which axis an equation puts or joins values, by its first result. ``given`` is how the programs
    that made the inputs leave them: elementwise ops and sums are done on such parts. ``returned`` are the leading dims
    of outputs; without it they are the axes that an output varies along, and outputs that are only parts of inputs are
    left out.
    """

    def __init__(
        self,
        fn: Function,
        along: Mapping[DeviceValue, Step],
        given: Sequence[BlockLayout] | None = None,
        returned: Sequence[Lead] | None = None,
    ) -> None:
        self.fn, self.along = fn, along
        given = [BlockLayout() for _ in fn.inputs] if given is None else given
        self.views = {v: BlockView(v) for v in fn.inputs}
        self.varying = {v: frozenset(filter(None, x.lead)) for v, x in zip(fn.inputs, given, strict=True)}
        self.wanted: dict[DeviceValue, set[Steps]] = {v: set() for v in fn.inputs}
        self.eqns: list[DeviceEqn] = []
        for eqn in fn.eqns:
            self._add(eqn)
        self.outputs = fn.outputs if returned is not None else tuple(v for v in fn.outputs if not self.is_part(v))
        own: list[Lead] = [tuple(sorted(self.varying[v])) for v in self.outputs]
        self.left: list[BlockView] = []
        self.outs: list[BlockLayout] = []
        for v, lead in zip(self.outputs, own if returned is None else returned, strict=True):
            view = self.views[v]
            apart = view.joined and not (returned and lead)
            self._want(view.source if apart else v)
            self.left.append(self.views[view.source] if apart else view)
            self.outs.append(BlockLayout(lead, view.steps[::-1] if apart else ()))
        entry = [common(sorted(self.wanted[v] or {()})) for v in fn.inputs]
        if len({x.cut for x in given}) == 1 and self._is_pointwise():
            entry = [x.cut for x in given]
            self.outs = [BlockLayout(x.lead, entry[0]) for x in self.outs]
        self.ins = {v: BlockLayout(x.lead, cut) for v, x, cut in zip(fn.inputs, given, entry, strict=True)}

    @property
    def key(self) -> Any:
        """Equal for programs that do the same, such as those of microbatches."""
        steps = tuple(self.along.get(eqn.outputs[0]) for eqn in self.fn.eqns)
        return self.fn.with_(outputs=self.outputs), steps, *self.ins.values(), *self.outs

    def is_part(self, value: DeviceValue) -> bool:
        """Whether a value is an input, or a part of one."""
        view = self.views[value]
        return view.source in self.wanted and not view.joined

    def _want(self, value: DeviceValue) -> None:
        """Note how a value is used that is a part of an input."""
        if self.is_part(value):
            self.wanted[self.views[value].source].add(self.views[value].steps)

    def _add(self, eqn: DeviceEqn) -> None:
        op, out, step = eqn.op, eqn.outputs[0], self.along.get(eqn.outputs[0])
        varying: frozenset[str] = frozenset().union(*(self.varying[x] for x in eqn.values))
        self.views.update({v: BlockView(v) for v in eqn.outputs})
        alone = ops.is_structural(op) and len(eqn.inputs) == len(eqn.outputs) == 1
        if alone and (step is None or op in (ops.BROADCAST, ops.SPLIT)):  # what it takes is what it gives
            self.views[out] = self.views[eqn.values[0]]
        elif step is not None:
            first, view = eqn.values[0], self.views[eqn.values[0]]
            joins = op in (ops.GATHER, ops.ALLREDUCE, ops.ALLGATHER)
            varying = varying - {step[0]} if joins else varying | {step[0]}
            if op is ops.GATHER:
                self._want(first)
                view = view if view.joined else BlockView(first, (), True)
            if op is ops.GATHER or (op in (ops.SCATTER, ops.ITEM) and self.is_part(first)):
                self.views[out] = view._replace(steps=(*view.steps, step))
        if self.views[out].source is out:
            self.eqns.append(eqn)
            for x in eqn.values:
                self._want(x)
        self.varying.update(dict.fromkeys(eqn.outputs, varying))

    def _is_pointwise(self) -> bool:
        """Whether all that is computed can be on any equal parts of whole inputs."""
        plain = all(wanted == {()} for wanted in self.wanted.values())
        shapes = {tensor_of(x).shape for eqn in self.eqns for x in eqn.values}
        ready = all(eqn.op is ops.ALLREDUCE or is_elementwise(eqn) for eqn in self.eqns)
        return plain and ready and len(shapes) == 1 and not any(view.joined for view in self.views.values())

    def on(self, mesh: Mesh) -> Any:
        """The program as a function of whole arrays."""
        specs = tuple(x.spec for x in self.ins.values())
        return shard_map(self._block, mesh=mesh, in_specs=specs, out_specs=[x.spec for x in self.outs])

    def _block(self, *blocks: Any) -> list[Any]:
        """What one device does."""
        given = zip(self.ins.items(), blocks, strict=True)
        values = {BlockView(v): x.reshape(x.shape[len(layout.lead) :]) for (v, layout), x in given}

        def read(view: BlockView) -> Any:
            if view not in values:
                base = self.views[view.source] if view.joined else BlockView(view.source)
                done = 0 if view.joined else len(self.ins[view.source].cut)
                found = read(base)
                for axis, dim in view.steps[done:]:
                    found = (_JOIN if view.joined else _CUT)(found, axis, axis=dim)
                values[view] = found
            return values[view]

        for eqn in self.eqns:
            args = [x if isinstance(x, Number) else read(self.views[x]) for x in eqn.inputs]
            step = self.along.get(eqn.outputs[0])
            found = TRACED.results(eqn, args) if step is None else [_collective(eqn, args[0], *step)]
            values.update(zip(map(BlockView, eqn.outputs), found, strict=True))
        outs = zip(map(read, self.left), self.outs, strict=True)
        return [y.reshape((1,) * len(layout.lead) + y.shape) for y, layout in outs]


def _collective(eqn: DeviceEqn, x: Any, axis: str, dim: int) -> Any:
    if eqn.op is ops.ALLREDUCE:
        return _REDUCE[eqn.attributes.get("reduce", "sum")](x, axis)
    if eqn.op is ops.REDUCE_SCATTER:
        return collectives.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
    return _JOIN(x, axis, axis=dim) if eqn.op is ops.ALLGATHER else _CUT(x, axis, axis=dim)


def _all(function: Callable[..., Any], x: Any, axis: str) -> Any:
    return function(_JOIN(x[None], axis), axis=0)


_CUT, _JOIN = collectives.pscatter, collectives.all_gather_invariant
_REDUCE: dict[str, Callable[[Any, str], Any]] = {
    "sum": collectives.psum,
    "mean": collectives.pmean,
    "max": collectives.pmax,
    "min": collectives.pmin,
    "prod": partial(_all, prod),
    "or": partial(_all, some),
    "and": partial(_all, every),
}


def common(wanted: Sequence[Steps]) -> Steps:
    """The cuts that all uses of an input begin with."""
    same = takewhile(lambda steps: len(set(steps)) == 1, zip(*wanted, strict=False))
    return tuple(steps[0] for steps in same)

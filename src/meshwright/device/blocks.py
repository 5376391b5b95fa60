"""A device program as the code of one device of a mesh: what scatters, pmaps and collectives are along mesh axes.

On a regular map, the replicas of a pmap do the same, so that one of them is walked for all: a value inside k pmaps is a
value that varies over the first k mesh axes and is the same along the others. A scatter of an input is put off until it
is known how every use wants it, a gather until something needs the whole: what is left of them are the specs of inputs
and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from meshwright.device.device_map import DeviceMap
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.machine import DeviceMachine, Group, Item, Leaf, Members, Scope, leaf
from meshwright.device.ops import RETURN, DeviceOp, registered
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError
from meshwright.lax import collectives
from meshwright.lax.elementwise import erf
from meshwright.lax.shapes import concatenate
from meshwright.lax.shapes import split as split_dim
from meshwright.numpy.arithmetic import maximum, square
from meshwright.numpy.creation import asarray
from meshwright.numpy.mathematics import exp, sqrt
from meshwright.numpy.order import where
from meshwright.numpy.products import matmul
from meshwright.numpy.reductions import all as every
from meshwright.numpy.reductions import any as some
from meshwright.numpy.reductions import max as most
from meshwright.numpy.reductions import mean, prod
from meshwright.numpy.reductions import sum as total
from meshwright.sharding.spec import PartitionSpec

Steps = tuple[tuple[str, int], ...]  # a mesh axis and the dim that is cut or joined along it, in order
_FUNCTIONS = SimpleNamespace(
    asarray=asarray,
    matmul=matmul,
    maximum=maximum,
    square=square,
    where=where,
    sqrt=sqrt,
    exp=exp,
    erf=erf,
    max=most,
    sum=total,
    mean=mean,
)
_REDUCE: dict[str, Callable[[Any, str], Any]] = {
    "sum": collectives.psum,
    "mean": collectives.pmean,
    "max": collectives.pmax,
    "min": collectives.pmin,
    "prod": lambda x, axis: prod(collectives.all_gather_invariant(x[None], axis), axis=0),
    "or": lambda x, axis: some(collectives.all_gather_invariant(x[None], axis), axis=0),
    "and": lambda x, axis: every(collectives.all_gather_invariant(x[None], axis), axis=0),
}


@dataclass(frozen=True)
class ScatteredValue:
    """What comes in from outside, or the part of it that scatters have left on each device."""

    source: Any
    steps: Steps = ()


class JoinedValue:
    """A value whose parts are still on their devices: ``steps`` join them, the first first."""

    def __init__(self, data: Any, steps: Steps) -> None:
        self.data, self.steps = data, steps
        self.whole: Any = None


def spec_of(steps: Iterable[tuple[str, int]]) -> PartitionSpec:
    """The spec of what is cut in these steps, the first the outermost.

    >>> spec_of([("d", 0), ("dd", 1), ("ddd", 0)])
    P(('d', 'ddd'), 'dd')
    """
    axes: dict[int, list[str]] = {}
    for axis, dim in steps:
        axes.setdefault(dim, []).append(axis)
    entries = [axes.get(dim, []) for dim in range(max(axes, default=-1) + 1)]
    return PartitionSpec(*(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries))


@dataclass(frozen=True)
class Output:
    """An output: its spec; where it is a tuple of different tensors, its first ``levels`` dims are tuples."""

    spec: PartitionSpec
    levels: int = 0


Varying = frozenset[str]  # the mesh axes along which devices hold different values


def compute(eqn: DeviceEqn, data: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    """The results of a tensor op on traced values and numbers."""
    values = [asarray(x.value, x.dtype) if isinstance(x, Number) else x for x in data]
    op = registered(eqn.op)
    found = op.evaluate(_FUNCTIONS, *values, **params) if isinstance(op, DeviceOp) else op(*values, **params)
    return found if isinstance(found, tuple | list) else (found,)


class BlockDomain:
    """The domain of one device's blocks.

    Without ``inputs`` nothing is computed: specs are found, and in place of a block stands what it varies along. Inputs
    vary along the axes they are cut along, and those that ``varying`` says.
    """

    def __init__(
        self,
        axes: Mapping[Members, str],
        entry: Sequence[Steps],
        inputs: Sequence[Any] | None,
        varying: Sequence[Varying] = (),
    ) -> None:
        self.axes, self.entry, self.inputs, self.varying = axes, entry, inputs, varying
        self.wanted: dict[int, set[Steps]] = {}
        self.cut: dict[ScatteredValue, Any] = {}

    def axis(self, eqn: DeviceEqn, members: Members) -> str | None:
        """The mesh axis that devices lie along, None for a single one."""
        if len(members) == 1:
            return None
        found = self.axes.get(tuple(members))
        if found is None:
            raise _not_a_group(eqn, members)
        return found

    def read(self, x: Leaf) -> Any:
        """What a device holds of a value."""
        data = x.data
        if isinstance(data, ScatteredValue):
            self.wanted.setdefault(data.source, set()).add(data.steps)
            if self.inputs is None:
                outside = self.varying[data.source] if self.varying else frozenset()
                return outside.union(axis for axis, _ in data.steps)
            if data not in self.cut:
                block = self.inputs[data.source]
                for axis, dim in data.steps[len(self.entry[data.source]) :]:
                    block = collectives.pscatter(block, axis, axis=dim)
                self.cut[data] = block
            return self.cut[data]
        if isinstance(data, JoinedValue):
            if data.whole is None:
                data.whole = data.data
                for axis, dim in data.steps:
                    if self.inputs is None:
                        data.whole = data.whole - {axis}
                    else:
                        data.whole = collectives.all_gather_invariant(data.whole, axis, axis=dim)
            return data.whole
        return data

    def along(
        self, eqn: DeviceEqn, xs: Sequence[Leaf], members: Members, function: Callable[[Any, str], Any], *, differ: bool
    ) -> list[Leaf]:
        """A collective of one value, along the axis that its members lie along; do its results ``differ`` there?"""
        if len(xs) > 1:
            raise _not_a_group(eqn, tuple(x.device for x in xs))
        axis, data = self.axis(eqn, members), self.read(xs[0])
        if axis is not None and self.inputs is None:
            data = data | {axis} if differ else data - {axis}
        elif axis is not None:
            data = function(data, axis)
        return [Leaf(data, xs[0].device)]

    def compute(
        self, eqn: DeviceEqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int
    ) -> list[Leaf]:
        if self.inputs is None:
            varying: Varying = frozenset().union(*(self.read(x) for x in args if isinstance(x, Leaf)))
            return [Leaf(varying, device) for _ in eqn.outputs]
        data = [x if isinstance(x, Number) else self.read(x) for x in args]
        return [Leaf(y, device) for y in compute(eqn, data, params)]

    def scatter(self, eqn: DeviceEqn, x: Leaf, dim: int, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        axis, data = self.axis(eqn, tuple(devices)), x.data
        if axis is not None and isinstance(data, ScatteredValue):
            data = ScatteredValue(data.source, (*data.steps, (axis, dim)))
        elif axis is not None:
            data = self.read(x)
            data = data | {axis} if self.inputs is None else collectives.pscatter(data, axis, axis=dim)
        return [Leaf(data, devices[0])]

    def broadcast(self, eqn: DeviceEqn, x: Leaf, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        self.axis(eqn, tuple(devices))
        return [Leaf(x.data, devices[0])]

    def gather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf:
        if len(xs) > 1:
            if len({x.device for x in xs}) > 1:
                raise _not_a_group(eqn, tuple(x.device for x in xs))
            data = [self.read(x) for x in xs]
            return Leaf(frozenset().union(*data) if self.inputs is None else concatenate(data, dim), device)
        axis, first = self.axis(eqn, members), xs[0].data
        if axis is None:
            return Leaf(first, device)
        if isinstance(first, JoinedValue):
            return Leaf(JoinedValue(first.data, (*first.steps, (axis, dim))), device)
        return Leaf(JoinedValue(self.read(xs[0]), ((axis, dim),)), device)

    def allreduce(self, eqn: DeviceEqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]:
        return self.along(eqn, xs, members, _REDUCE[how], differ=False)

    def allgather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        whole = partial(collectives.all_gather_invariant, axis=dim)
        return self.along(eqn, xs, members, whole, differ=False)

    def reduce_scatter(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        part = partial(collectives.psum_scatter, scatter_dimension=dim, tiled=True)
        return self.along(eqn, xs, members, part, differ=True)

    def own_part(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        if isinstance(xs[0].data, ScatteredValue) and len(xs) == 1:
            return self.scatter(eqn, xs[0], dim, members, folded=True)
        return self.along(eqn, xs, members, partial(collectives.pscatter, axis=dim), differ=True)

    def send(self, eqn: DeviceEqn, x: Leaf, device: int) -> Leaf:
        return Leaf(x.data, device)

    def split(self, eqn: DeviceEqn, x: Leaf, dim: int, parts: int) -> list[Leaf]:
        data = self.read(x)
        if self.inputs is None:
            return [Leaf(data, x.device)] * parts
        return [Leaf(part, x.device) for part in split_dim(data, [data.shape[dim] // parts] * parts, dim)]

    def annotate(self, value: DeviceValue, item: Item, scope: Scope) -> None:
        pass

    def output(self, eqn: DeviceEqn, item: Item) -> tuple[Any, Output]:
        """An output as it leaves a device, and how the devices' are put together."""
        axes = []
        while isinstance(item, Group) and not item.same:
            if not item.members:
                raise _not_a_group(eqn, tuple(leaf(x, eqn).device for x in item.items))
            axes.append(self.axis(eqn, item.members))
            item = item.items[0]
        x = leaf(item, eqn)
        if not axes:
            if isinstance(x.data, JoinedValue):
                return x.data.data, Output(spec_of(reversed(x.data.steps)))
            return self.read(x), Output(PartitionSpec())
        data = self.read(x)
        if self.inputs is not None:
            data = data.reshape((1,) * len(axes) + data.shape)
        return data, Output(PartitionSpec(*axes), len(axes))


class OneForAll(DeviceMachine):
    """Walks the first replica of each pmap, which stands for all of them."""

    domain: BlockDomain

    def __init__(
        self, domain: BlockDomain, device_map: DeviceMap, sizes: Mapping[str, int], homes: frozenset[int]
    ) -> None:
        super().__init__(domain, device_map, sizes)
        self.homes = homes

    def targets(self, eqn: DeviceEqn, scope: Scope) -> tuple[Sequence[int], bool]:
        return super().targets(eqn, scope)[0], True

    def _eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        if eqn.op == "send":
            to = self.device(eqn.attributes["to_device"], scope) if "to_device" in eqn.attributes else None
            homes = {list(scope.variables.values())[-1]} if scope.variables else self.homes
            if to is not None and to not in homes:
                raise DeviceError(
                    f"A send to device {to} is no mesh program.",
                    why="one device of a mesh would do what the others do not",
                    fix="scatter or broadcast over the devices of a group, or dist.execute(fn, inputs, device_map)",
                )
        if eqn.op in ("item", "scatter", "broadcast", "own_part", "allreduce", "allgather", "reduce_scatter"):
            group = scope.values.get(eqn.values[0]) if eqn.values else None
            taken = eqn.op == "item" and isinstance(group, Group) and bool(group.members)
            if taken or len(eqn.outputs) > 1:
                raise DeviceError(
                    f"One element of what {eqn.op} takes or gives is no mesh program.",
                    why="it is on one device, and the devices of a mesh all run the same",
                    fix="use the tuple as a whole: a pmap over it, or a gather",
                )
        return super()._eqn(eqn, scope)


def outputs(
    fn: Function,
    device_map: DeviceMap,
    axes: Mapping[Members, str],
    entry: Sequence[Steps],
    sizes: Mapping[str, int],
    inputs: Sequence[Any] | None,
) -> tuple[list[Any], list[Output], BlockDomain]:
    """Walk a program as one device: its outputs there, how they are put together, and the walk."""
    domain = BlockDomain(axes, entry, inputs)
    items = []
    for n, v in enumerate(fn.inputs):
        assert isinstance(v.type, Tensor)
        assert isinstance(v.type.device.base, int)
        items.append(Leaf(ScatteredValue(n), v.type.device.base))
    homes = frozenset(x.device for x in items)
    found = OneForAll(domain, device_map, sizes, homes).run(fn, items)
    eqn = DeviceEqn(RETURN, fn.outputs, ())
    pairs = [domain.output(eqn, item) for item in found]
    return [data for data, _ in pairs], [out for _, out in pairs], domain


def _not_a_group(eqn: DeviceEqn, devices: Members) -> DeviceError:
    return DeviceError(
        f"The devices of a {eqn.op} are no group of the device map.",
        why=f"they are {', '.join(map(str, devices))}; along a mesh axis are the devices of one group, in order",
        fix="a device map that has them as a group, and device_keys=[] or [d] instead of devices",
    )

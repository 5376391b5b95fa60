"""Flat programs as the code of one device of a mesh: what scatters and collectives are along mesh axes.

On a regular map, the devices of a group do the same, so that the first of them is walked for all: a value inside k
pmaps is a value that varies over the first k mesh axes and is the same along the others. A scatter of an input is put
off until it is known how every use wants it, a gather until something needs the whole: what is left of them are the
specs of inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from meshwright.api.shard_map import shard_map
from meshwright.device import ops
from meshwright.device.execute import TRACED
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.tensor_ops import is_elementwise, tensor_of
from meshwright.lax import collectives
from meshwright.numpy.reductions import all as every
from meshwright.numpy.reductions import any as some
from meshwright.numpy.reductions import prod
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.spec import PartitionSpec

Step = tuple[str, int]  # a mesh axis, and the dim that is cut or joined along it
Steps = tuple[Step, ...]
Lead = tuple[str | None, ...]  # axes along which devices hold different values, one leading dim each
Varying = frozenset[str]  # the mesh axes along which devices hold different values


def _all(function: Callable[..., Any]) -> Callable[[Any, str], Any]:
    return lambda x, axis: function(collectives.all_gather_invariant(x[None], axis), axis=0)


_REDUCE: dict[str, Callable[[Any, str], Any]] = {
    "sum": collectives.psum,
    "mean": collectives.pmean,
    "max": collectives.pmax,
    "min": collectives.pmin,
    "prod": _all(prod),
    "or": _all(some),
    "and": _all(every),
}


def spec_of(steps: Iterable[Step], lead: Lead = ()) -> PartitionSpec:
    """The spec of what is cut in these steps, the first the outermost, below its leading dims.

    >>> spec_of([("d", 0), ("dd", 1), ("ddd", 0)])
    P(('d', 'ddd'), 'dd')
    """
    axes: dict[int, list[str]] = {}
    for axis, dim in steps:
        axes.setdefault(dim, []).append(axis)
    entries = [axes.get(dim, []) for dim in range(max(axes, default=-1) + 1)]
    return PartitionSpec(*lead, *(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries))


class BlockProgram:
    """A flat program on a mesh: a function of whole arrays, and how these are cut.

    ``along`` says along which axis an equation puts or joins values, by its first result. ``leads`` are the leading
    dims of inputs, ``cuts`` how the programs that made them leave them: elementwise ops and sums are done on such
    parts. ``returned`` are the leading dims of outputs; without it they are the axes that an output varies along, and
    outputs that are only parts of inputs are left out.
    """

    def __init__(
        self,
        fn: Function,
        along: Mapping[DeviceValue, Step],
        axes: Sequence[str],
        leads: Sequence[Lead] | None = None,
        cuts: Sequence[Steps] = (),
        returned: Sequence[Lead] | None = None,
    ) -> None:
        self.fn, self.along = fn, along
        self.leads = tuple(leads or ((),) * len(fn.inputs))
        self.same: dict[DeviceValue, DeviceValue] = {}  # for what is elsewhere only: what it is
        self.parts: dict[DeviceValue, tuple[DeviceValue, Steps]] = {v: (v, ()) for v in fn.inputs}
        self.joins: dict[DeviceValue, tuple[DeviceValue, Steps]] = {}
        self.varying = {v: frozenset(a for a in lead if a) for v, lead in zip(fn.inputs, self.leads, strict=True)}
        self.wanted: dict[DeviceValue, set[Steps]] = {v: set() for v in fn.inputs}
        self.eqns: list[DeviceEqn] = []
        for eqn in fn.eqns:
            self._add(eqn)
        values = fn.outputs if returned is not None else [v for v in dict.fromkeys(fn.outputs) if not self.is_part(v)]
        self.outputs = tuple(values)
        own = [tuple(a for a in axes if a in self.varying[v]) for v in values]
        self.out_leads: list[Lead] = [*(returned if returned is not None else own)]
        found = [self._joined(v, whole=bool(returned and lead)) for v, lead in zip(values, self.out_leads, strict=True)]
        self.left = [v for v, _ in found]
        entry = [common(sorted(self.wanted[v] or {()})) for v in fn.inputs]
        self.out_cuts = [tuple(reversed(steps)) for _, steps in found]
        if len(set(cuts)) == 1 and self._is_pointwise():
            entry, self.out_cuts = [*cuts], [cuts[0]] * len(values)
        self.entry = dict(zip(fn.inputs, entry, strict=True))
        self.in_specs = tuple(spec_of(steps, lead) for lead, steps in zip(self.leads, entry, strict=True))
        self.out_specs = tuple(spec_of(steps, lead) for lead, steps in zip(self.out_leads, self.out_cuts, strict=True))

    @property
    def key(self) -> Any:
        """Equal for programs that do the same, such as those of microbatches."""
        steps = tuple(self.along.get(eqn.outputs[0]) for eqn in self.fn.eqns)
        return self.fn.with_(outputs=self.outputs), steps, self.leads, self.in_specs, self.out_specs

    def at(self, value: DeviceValue) -> DeviceValue:
        return self.same.get(value, value)

    def is_part(self, value: DeviceValue) -> bool:
        """Whether a value is an input, or a part of one."""
        return self.at(value) in self.parts

    def want(self, value: DeviceValue) -> None:
        """Note how a value is used that is a part of an input."""
        source, steps = self.parts.get(self.at(value), (value, ()))
        if source in self.wanted:
            self.wanted[source].add(steps)

    def _add(self, eqn: DeviceEqn) -> None:
        op, out, step = eqn.op, eqn.outputs[0], self.along.get(eqn.outputs[0])
        first = self.at(eqn.values[0]) if eqn.values else out
        varying: Varying = frozenset().union(*(self.varying[x] for x in eqn.values))
        moves = ops.is_structural(op) and len(eqn.inputs) == len(eqn.outputs) == 1
        if moves and (step is None or op in (ops.BROADCAST, ops.SPLIT)):
            self.same[out] = first
        elif step is not None and op in (ops.SCATTER, ops.ITEM) and first in self.parts:
            self.parts[out] = self.parts[first][0], (*self.parts[first][1], step)
            varying |= {step[0]}
        elif step is not None and op is ops.GATHER:
            parts, steps = self._joined(first)
            self.joins[out] = parts, (*steps, step)
            varying -= {step[0]}
        else:
            self.eqns.append(eqn)
            for x in eqn.values:
                self.want(x)
            if step is not None:
                varying = varying - {step[0]} if op in (ops.ALLREDUCE, ops.ALLGATHER) else varying | {step[0]}
        self.varying.update(dict.fromkeys(eqn.outputs, varying))

    def _joined(self, value: DeviceValue, *, whole: bool = False) -> tuple[DeviceValue, Steps]:
        """What a value is joined of, and how."""
        found = (value, ()) if whole else self.joins.get(self.at(value), (value, ()))
        self.want(found[0])
        return found

    def _is_pointwise(self) -> bool:
        """Whether all that is computed can be on any equal parts of whole inputs."""
        plain = all(wanted == {()} for wanted in self.wanted.values()) and not self.joins
        shapes = {tensor_of(x).shape for eqn in self.eqns for x in eqn.values}
        ready = all(eqn.op is ops.ALLREDUCE or is_elementwise(eqn) for eqn in self.eqns)
        return plain and ready and len(shapes) == 1

    def on(self, mesh: Mesh) -> Any:
        """The program as a function of whole arrays."""
        return shard_map(self._block, mesh=mesh, in_specs=self.in_specs, out_specs=list(self.out_specs))

    def _block(self, *blocks: Any) -> list[Any]:
        """What one device does."""
        own = [x.reshape(x.shape[len(lead) :]) for x, lead in zip(blocks, self.leads, strict=True)]
        given = dict(zip(self.fn.inputs, own, strict=True))
        values: dict[Any, Any] = {}

        def read(value: DeviceValue) -> Any:
            value = self.at(value)
            key = self.parts.get(value, value)
            if key in values:
                return values[key]
            if value in self.parts:
                source, steps = self.parts[value]
                found = given[source]
                for axis, dim in steps[len(self.entry[source]) :]:
                    found = collectives.pscatter(found, axis, axis=dim)
            else:
                source, steps = self.joins[value]
                found = read(source)
                for axis, dim in steps:
                    found = collectives.all_gather_invariant(found, axis, axis=dim)
            values[key] = found
            return found

        for eqn in self.eqns:
            args = [x if isinstance(x, Number) else read(x) for x in eqn.inputs]
            step = self.along.get(eqn.outputs[0])
            found = TRACED.results(eqn, args) if step is None else [_collective(eqn, args[0], *step)]
            values.update(zip(eqn.outputs, found, strict=True))
        outs = [read(v) for v in self.left]
        return [y.reshape((1,) * len(lead) + y.shape) for y, lead in zip(outs, self.out_leads, strict=True)]


def _collective(eqn: DeviceEqn, x: Any, axis: str, dim: int) -> Any:
    if eqn.op is ops.ALLREDUCE:
        return _REDUCE[eqn.attributes.get("reduce", "sum")](x, axis)
    if eqn.op is ops.ALLGATHER:
        return collectives.all_gather_invariant(x, axis, axis=dim)
    if eqn.op is ops.REDUCE_SCATTER:
        return collectives.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
    return collectives.pscatter(x, axis, axis=dim)


def common(wanted: Sequence[Steps]) -> Steps:
    """The cuts that all uses of an input begin with."""
    same = takewhile(lambda steps: len(set(steps)) == 1, zip(*wanted, strict=False))
    return tuple(steps[0] for steps in same)

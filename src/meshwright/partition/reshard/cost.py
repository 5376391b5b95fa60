"""How long the steps of a reshard plan take on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from meshwright.hardware.collectives import collective_seconds
from meshwright.hardware.machines import machine_for
from meshwright.hardware.placement import Span
from meshwright.hardware.topology import Topology
from meshwright.partition.reshard.blocks import BlockExchange
from meshwright.partition.reshard.sketch import View, digits_of, major_dim, sizes_of
from meshwright.partition.reshard.steps import AllGather, AllToAll, Permute, ReduceScatter, ReshardStep, Rounds
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.mesh import BaseMesh


def topology_for(hardware: Any, mesh: BaseMesh) -> Topology:
    """A machine on which the mesh lies: as given, laid on the one given, or one made of the chip named."""
    return machine_for(hardware, mesh.shape, "plan")


def step_seconds(step: ReshardStep, local_bytes: float, unit_bytes: int, topology: Topology) -> float:
    """The modelled time of a step on arrays of ``local_bytes`` a device; blocks count in ``unit_bytes``."""
    if not step.collectives:
        return 0.0
    axes, refined = refined_for(step.axes, topology)
    if isinstance(step, BlockExchange):
        each = step.group * unit_bytes
        return sum(
            count * collective_seconds("permute", prod(shape) * each, refined, axes, shift=None)
            for shape, count in step.missing.counts
        )
    if isinstance(step, Permute | Rounds):
        size = local_bytes * step.group / step.collectives
        return step.collectives * collective_seconds("permute", size, refined, axes, shift=None)
    size = local_bytes * step.group if isinstance(step, AllGather | AllToAll) else local_bytes
    return collective_seconds(step.kind, size, refined, axes)


def copied(steps: Sequence[ReshardStep], views: Sequence[View]) -> int:
    """Elements that a device reads and writes between collectives: slices, and what these need side by side.

    What comes between two collectives is one pass over memory, as large as its result.
    """
    passes, last = 0, 0
    for step, before, after in zip(steps, views, views[1:], strict=False):
        if not step.collectives:
            last = prod(sizes_of(after))
            continue
        turned = _turned(step, before, after)
        passes += prod(sizes_of(before)) if turned.before else last
        last = prod(sizes_of(after)) if turned.after else 0
    return 2 * (passes + last)


class _Turned(NamedTuple):
    """Whether the digits of an array are brought into another order before a collective, and after it."""

    before: bool
    after: bool


def _turned(step: ReshardStep, before: View, after: View) -> _Turned:
    if isinstance(step, AllGather):
        return _Turned(False, major_dim(step.parts, after) is None)
    if isinstance(step, ReduceScatter):
        return _Turned(major_dim(step.parts, before) is None, False)
    if isinstance(step, AllToAll):
        splits, joins = [swap.split for swap in step.swaps], [swap.join for swap in step.swaps]
        if major_dim(splits, before) is not None and major_dim(joins, after) is not None:
            return _Turned(False, False)
        kept = [place for place in digits_of(before) if place not in splits]
        return _Turned(digits_of(before) != [*splits, *kept], digits_of(after) != [*joins, *kept])
    return _Turned(isinstance(step, Rounds | BlockExchange), isinstance(step, Rounds | BlockExchange))


def refined_for(axes: Axes, topology: Topology) -> tuple[tuple[str, ...] | None, Topology]:
    """The machine with a mesh that has these parts of axes as axes."""
    if not axes:
        return None, topology
    if all(axis.is_full for axis in axes):
        return tuple(axis.name for axis in axes), topology
    spans = {axis.short(): spans_of_part(topology.mapping[axis.name], axis) for axis in axes}
    mesh = {axis.short(): axis.size for axis in axes}
    if any(prod(span.size for span in spans[name]) != size for name, size in mesh.items()):
        return tuple(dict.fromkeys(axis.name for axis in axes)), topology  # as costly as the whole axes
    on = Topology(topology.chip, topology.shape, mesh=mesh, mapping=spans, wrap=topology.wrap, slices=topology.slices)
    return tuple(mesh), on


def spans_of_part(spans: tuple[Span, ...], axis: AxisRef) -> tuple[Span, ...]:
    """The spans of chips on which a part of an axis lies, if the axis lies on these."""
    found: list[Span] = []
    below = 1
    first, last = axis.post, axis.post * axis.size
    for span in reversed(spans):
        low, high = max(first, below), min(last, below * span.size)
        if low < high:
            if low % below or high % low or (below * span.size) % high:
                return spans  # it is no part of the machine's axes
            found.insert(0, Span(span.axis, high // low, span.stride * (low // below)))
        below *= span.size
    return tuple(found)

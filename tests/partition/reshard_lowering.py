"""The steps of a reshard plan as code for one device, in the ops of any library that has collectives over named axes.

Every device runs the same code; what differs is its coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any, Protocol

from meshwright.partition.reshard.blocks import BlockExchange, BlockRound
from meshwright.partition.reshard.pairs import block_pairs, permute_pairs
from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.partition.reshard.sketch import View
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    DigitOfDim,
    Expand,
    LocalSlice,
    Mask,
    Permute,
    Recut,
    ReduceScatter,
    ReshardStep,
    Rounds,
    Select,
)
from meshwright.sharding.axes import Axes, AxisRef

Value = Any  # an array of the library
Index = Any  # an integer of the library, or of Python


class LocalOps(Protocol):
    """What the code of one device is made of."""

    def coordinate(self, axis: AxisRef) -> Index:
        """The device's coordinate along an axis or a part of one."""

    def all_of(self, conditions: Sequence[Any]) -> Any:
        """Whether all conditions hold."""

    def look_up(self, table: Sequence[int], index: Index) -> Index:
        """The entry of a table of constants."""

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """The dims in another order."""

    def fitted(self, x: Value, shape: Sequence[int]) -> Value:
        """Cropped or padded with anything, at the ends of the dims."""

    def filled(self, like: Value, shape: Sequence[int], reduction: str | None) -> Value:
        """An array of what changes nothing when it is reduced; of anything if there is no reduction."""

    def take(self, x: Value, starts: Sequence[Index], sizes: Sequence[int]) -> Value:
        """A box of an array."""

    def put(self, x: Value, part: Value, starts: Sequence[Index]) -> Value:
        """An array with a box replaced."""

    def where(self, condition: Any, x: Value, y: Value) -> Value:
        """One array or the other."""

    def all_gather(self, x: Value, axes: Axes) -> Value:
        """The arrays of all devices along the axes, in a new first dim."""

    def all_to_all(self, x: Value, axes: Axes) -> Value:
        """The first dim, of the size of the group, is given out, and its place taken by what the others give."""

    def all_reduce(self, x: Value, axes: Axes, reduction: str) -> Value:
        """The reduced array."""

    def reduce_scatter(self, x: Value, axes: Axes, reduction: str) -> Value:
        """The entry of the first dim, of the size of the group, that is the device's own, reduced."""

    def permute(self, x: Value, pairs: Sequence[tuple[int, int]]) -> Value:
        """What the device's source sends, by positions on the mesh; anything if it has none."""


def lower_plan(plan: ReshardPlan, x: Value, ops: LocalOps) -> Value:
    """The target shard of a device, given its source shard."""
    code = _Code(plan, ops)
    x = ops.fitted(x, _sizes(plan.views[0]))
    for index, step in enumerate(plan.steps):
        before, after = plan.views[index], plan.views[index + 1]
        if isinstance(step, BlockExchange):
            x = ops.fitted(code.blocks(step, x), _sizes(after))
        elif isinstance(step, Recut):
            x = ops.fitted(x, _sizes(after))
        else:
            x = ops.reshape(code.run(step, ops.reshape(x, _flat(before)), before, after), _sizes(after))
    return ops.fitted(x, plan.target.local_shape(plan.shape))


def _flat(view: View) -> list[int]:
    return [digit.size for dim in view for digit in dim]


def _sizes(view: View) -> list[int]:
    return [prod(digit.size for digit in dim) for dim in view]


def _axis(view: View, position: DigitOfDim) -> int:
    """Where a digit stands among all digits of a view."""
    before = sum(len(dim) for dim in view[: position.dim])
    return before + [digit.digit for digit in view[position.dim]].index(position.digit)


class _Code:
    """The code of one device, step by step, on arrays with one dim for each digit."""

    def __init__(self, plan: ReshardPlan, ops: LocalOps) -> None:
        self.plan, self.mesh, self.ops = plan, plan.mesh, ops

    def run(self, step: ReshardStep, x: Value, before: View, after: View) -> Value:
        ops = self.ops
        if isinstance(step, LocalSlice):
            return self.taken(
                x, {_axis(before, part.position): ops.coordinate(part.axis) for part in step.parts}, before
            )
        if isinstance(step, AllGather):
            gathered = ops.reshape(ops.all_gather(x, step.axes), [axis.size for axis in step.axes] + _flat(before))
            return self.from_front(gathered, [_axis(after, part.position) for part in step.parts])
        if isinstance(step, ReduceScatter):
            x = self.to_front(x, [_axis(before, part.position) for part in step.parts], before)
            return ops.reduce_scatter(x, step.axes, step.reduction)
        if isinstance(step, AllReduce):
            return ops.all_reduce(x, step.axes, step.reduction)
        if isinstance(step, AllToAll):
            x = self.to_front(x, [_axis(before, swap.split) for swap in step.swaps], before)
            x = ops.all_to_all(x, step.axes)
            positions = [_axis(after, swap.join) for swap in step.swaps]
            rest = [size for index, size in enumerate(_flat(after)) if index not in positions]
            return self.from_front(ops.reshape(x, [axis.size for axis in step.axes] + rest), positions)
        if isinstance(step, Permute):
            moved = ops.permute(x, permute_pairs(self.mesh, step))
            return ops.where(self.agreeing(step.cycles), x, moved)
        if isinstance(step, Rounds):
            return self.rounds(step, x, before, after)
        return self.to_reduce(step, x, after)

    def to_reduce(self, step: ReshardStep, x: Value, after: View) -> Value:
        """Steps after which a sum is unreduced."""
        ops, reduction = self.ops, self.plan.target.reduction
        if isinstance(step, Expand):
            starts: list[Index] = [0] * len(_flat(after))
            shape = _flat(after)
            for part in step.parts:
                starts[_axis(after, part.position)] = ops.coordinate(part.axis)
                shape[_axis(after, part.position)] = 1
            return ops.put(ops.filled(x, _flat(after), reduction), ops.reshape(x, shape), starts)
        nothing = ops.filled(x, _flat(after), reduction)
        if isinstance(step, Select):
            pairs = zip(step.axes, step.onto, strict=True)
            return ops.where(ops.all_of([ops.coordinate(a) == ops.coordinate(b) for a, b in pairs]), x, nothing)
        assert isinstance(step, Mask)
        if reduction in ("max", "min"):
            return x  # of equal values each is the largest and the smallest
        return ops.where(ops.all_of([ops.coordinate(axis) == 0 for axis in step.axes]), x, nothing)

    def agreeing(self, cycles: Sequence[Axes]) -> Any:
        """Whether the device has equal coordinates along the axes of each cycle."""
        pairs = [(axes[0], axis) for axes in cycles for axis in axes[1:]]
        return self.ops.all_of([self.ops.coordinate(one) == self.ops.coordinate(other) for one, other in pairs])

    def taken(self, x: Value, at: dict[int, Index], view: View) -> Value:
        """One value of some digits."""
        shape = _flat(view)
        starts = [at.get(index, 0) for index in range(len(shape))]
        box = self.ops.take(x, starts, [1 if index in at else size for index, size in enumerate(shape)])
        return self.ops.reshape(box, [size for index, size in enumerate(shape) if index not in at])

    def to_front(self, x: Value, positions: list[int], view: View) -> Value:
        """Some digits as one first dim."""
        shape = _flat(view)
        rest = [index for index in range(len(shape)) if index not in positions]
        front = prod(shape[index] for index in positions)
        return self.ops.reshape(self.ops.transpose(x, positions + rest), [front] + [shape[index] for index in rest])

    def from_front(self, x: Value, positions: list[int]) -> Value:
        """The first dims at these places, the others around them."""
        count = len(positions)
        order, rest = {position: index for index, position in enumerate(positions)}, iter(range(count, x.ndim))
        return self.ops.transpose(x, [order[index] if index in order else next(rest) for index in range(x.ndim)])

    def rounds(self, step: Rounds, x: Value, before: View, after: View) -> Value:
        ops = self.ops
        result = ops.filled(x, _flat(after), None)
        for round in step.rounds():
            at, starts = {}, [0] * len(_flat(after))
            for path, shift in zip(step.paths, round.shifts, strict=True):
                first, last = path.axes[0], path.axes[-1]
                at[_axis(before, path.split)] = (ops.coordinate(last) + shift) % first.size
                starts[_axis(after, path.join)] = (ops.coordinate(first) - shift) % first.size
            part = self.taken(x, at, before)
            moved = ops.permute(part, permute_pairs(self.mesh, step, round))
            if not any(round.shifts):
                moved = ops.where(self.agreeing([*step.cycles, *(path.axes for path in step.paths)]), part, moved)
            joined = {_axis(after, path.join) for path in step.paths}
            shape = [1 if index in joined else size for index, size in enumerate(_flat(after))]
            result = ops.put(result, ops.reshape(moved, shape), starts)
        return result

    def blocks(self, step: BlockExchange, x: Value) -> Value:
        ops, units = self.ops, self.plan.units
        result = ops.filled(x, [size * unit for size, unit in zip(step.shape, units, strict=True)], None)
        number = reduce(lambda found, axis: found * axis.size + ops.coordinate(axis), step.over, 0)
        for round in (*step.rounds, *step.copies):
            sizes = [size * unit for size, unit in zip(round.shape, units, strict=True)]
            part = ops.take(x, self.offsets(round, step, number, "source", "take"), sizes)
            if round in step.rounds:
                part = ops.permute(part, [pair[1:] for pair in block_pairs(self.mesh, step, round)])
            having = [0] * step.devices
            for send in round.sends:
                having[send.target] = 1
            placed = ops.put(result, part, self.offsets(round, step, number, "target", "put"))
            result = ops.where(ops.look_up(having, number) == 1, placed, result)
        return result

    def offsets(self, round: BlockRound, step: BlockExchange, number: Index, end: str, field: str) -> list[Index]:
        """Where the device's box begins, from a table for each dim."""
        found = []
        for dim, unit in enumerate(self.plan.units):
            table = [0] * step.devices
            for send in round.sends:
                table[getattr(send, end)] = getattr(send, field)[dim] * unit
            found.append(self.ops.look_up(table, number))
        return found

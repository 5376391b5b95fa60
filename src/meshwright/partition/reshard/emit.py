"""A reshard plan as equations of a local program: what `reshard_run` does to the arrays of all devices, said by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Value
from meshwright.core.trace import Array, make_varying
from meshwright.core.types import TensorType, union
from meshwright.ops.basic import add, broadcast_scalar, convert, reshape
from meshwright.ops.choice import select
from meshwright.ops.collective import (
    all_gather_invariant,
    all_to_all,
    permuted,
    pmax,
    pmin,
    ppermute,
    pscatter,
    psum,
    psum_scatter,
)
from meshwright.ops.elementwise import eq, rem, sub
from meshwright.ops.gathering import gather
from meshwright.ops.indexing import dynamic_slice, dynamic_update_slice
from meshwright.ops.reduction import reduce_prod
from meshwright.ops.shape import pad, slice_
from meshwright.partition.blocks import identity, index_along, scalar
from meshwright.partition.reshard.blocks import BlockExchange
from meshwright.partition.reshard.pairs import block_ends, receivers
from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.partition.reshard.sketch import View, digits_of, major_dim, sizes_of
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    DigitOfDim,
    Expand,
    LocalSlice,
    Mask,
    OnParts,
    Permute,
    PlacedDigit,
    Recut,
    ReduceScatter,
    ReshardStep,
    Rounds,
    Select,
)
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.mesh import AbstractMesh, BaseMesh

Names = Callable[[AxisRef], tuple[tuple[str, int], ...]]  # the axes of the program that make up an axis, with sizes


def emit_plan(plan: ReshardPlan, x: Value, names: Names) -> Value:
    """The local value in the target sharding, from that in the source sharding."""
    emitter = _Emitter(plan, names)
    x = _fit(x, sizes_of(plan.views[0]))
    for index, step in enumerate(plan.steps):
        x = emitter.step(step, x, plan.views[index], plan.views[index + 1])
    return _fit(x, plan.target.local_shape(plan.shape))


def _open_shape(view: View) -> tuple[int, ...]:
    return tuple(digit.size for dim in view for digit in dim)


def _fit(x: Value, shape: tuple[int, ...]) -> Value:
    """``x`` cropped, or padded with zeros, to a shape."""
    if x.shape == shape:
        return x
    limits = tuple(map(min, x.shape, shape))
    if limits != x.shape:
        x = slice_(x, starts=(0,) * x.ndim, limits=limits, strides=(1,) * x.ndim)
    if limits != shape:
        high = tuple(n - m for n, m in zip(shape, limits, strict=True))
        zero = scalar(0, x.dtype, x.type.weak)
        x = pad(x, zero, low=(0,) * x.ndim, high=high, interior=(0,) * x.ndim)
    return x


class _Emitter:
    def __init__(self, plan: ReshardPlan, names: Names) -> None:
        self.plan = plan
        self.names = names

    def axes(self, axes: Sequence[AxisRef]) -> dict[str, Any]:
        """The params ``axes`` and ``sizes`` of a collective."""
        found = [pair for axis in axes for pair in self.names(axis)]
        return {"axes": tuple(name for name, _ in found), "sizes": tuple(size for _, size in found)}

    def index(self, axes: Sequence[AxisRef]) -> Value:
        """A device's coordinate along axes taken together."""
        return index_along(pair for axis in axes for pair in self.names(axis))

    def varying(self, x: Value, axes: Sequence[AxisRef]) -> Value:
        return make_varying(x, union((x.type.varying, self.axes(axes)["axes"])))

    def step(self, step: ReshardStep, x: Value, before: View, after: View) -> Value:
        if isinstance(step, BlockExchange):
            return self.blocks(step, x)
        if isinstance(step, Recut):
            return _fit(x, sizes_of(after))
        if x.dtype == dtypes.BOOL and isinstance(step, AllReduce | ReduceScatter):
            number = self.step(step, convert(x, dtype=dtypes.INT32, weak=False), before, after)
            return convert(number, dtype=dtypes.BOOL, weak=False)  # all is the least of them, any the largest
        tiled = self.tiled(step, x, before, after)
        if tiled is not None:
            return tiled
        x = _shaped(x, _open_shape(before))
        rule: Callable[..., Value] = getattr(self, type(step).__name__.lower())
        return _shaped(rule(step, x, before, after), sizes_of(after))

    def tiled(self, step: ReshardStep, x: Value, before: View, after: View) -> Value | None:
        """A step on whole dims, where the digits it works on are the major ones of their dims."""
        if isinstance(step, AllGather):
            dim = major_dim(step.parts, after)
            if dim is not None:
                return all_gather_invariant(self.varying(x, step.axes), **self.axes(step.axes), dim=dim)
        elif isinstance(step, ReduceScatter) and step.reduction == "sum":
            dim = major_dim(step.parts, before)
            if dim is not None:
                return psum_scatter(self.varying(x, step.axes), **self.axes(step.axes), dim=dim)
        elif isinstance(step, AllToAll):
            split = major_dim([swap.split for swap in step.swaps], before)
            join = major_dim([swap.join for swap in step.swaps], after)
            if split is not None and join is not None:
                x = self.varying(x, step.axes)
                return all_to_all(x, **self.axes(step.axes), split=split, concat=join)
        elif isinstance(step, LocalSlice):
            return self.sliced(step.parts, x, before)
        return None

    def sliced(self, parts: Sequence[PlacedDigit], x: Value, before: View) -> Value | None:
        """Whole dims cut by all their axes at once, where devices hold the same and the digits are the major ones."""
        by_dim = {part.dim: [other for other in parts if other.dim == part.dim] for part in parts}
        if set(self.axes([part.axis for part in parts])["axes"]) & set(x.type.varying):
            return None
        if any(major_dim(found, before) is None for found in by_dim.values()):
            return None
        for dim, found in by_dim.items():
            x = pscatter(x, **self.axes([part.axis for part in found]), dim=dim)
        return x

    # Local steps

    def localslice(self, step: OnParts, x: Value, before: View, after: View) -> Value:
        order = digits_of(before)
        for part in step.parts:
            dim = order.index(part.position)
            params = self.axes([part.axis])
            if not set(params["axes"]) & set(x.type.varying):
                x = pscatter(x, **params, dim=dim)
            else:
                starts = [self.index([part.axis]) if d == dim else 0 for d in range(x.ndim)]
                sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
                x = dynamic_slice(x, *indices(starts), sizes=sizes)
        return x

    def expand(self, step: Expand, x: Value, before: View, after: View) -> Value:
        order, placed = digits_of(after), {part.position: part.axis for part in step.parts}
        shape = _open_shape(after)
        x = _shaped(x, tuple(1 if position in placed else n for position, n in zip(order, shape, strict=True)))
        starts = [self.index([placed[position]]) if position in placed else 0 for position in order]
        whole = broadcast_scalar(_identity(x, self.plan.target.reduction), shape)
        return dynamic_update_slice(whole, x, *indices(starts))

    def mask(self, step: Mask, x: Value, before: View, after: View) -> Value:
        if step.reduction in ("max", "min"):
            return self.varying(x, step.axes)
        first = eq(self.index(step.axes), 0)
        return select(broadcast_scalar(first, x.shape), x, broadcast_scalar(_identity(x, step.reduction), x.shape))

    def select(self, step: Select, x: Value, before: View, after: View) -> Value:
        same = eq(self.index(step.axes), self.index(step.onto))
        empty = broadcast_scalar(_identity(x, self.plan.target.reduction), x.shape)
        return select(broadcast_scalar(same, x.shape), x, empty)

    # Collectives

    def allgather(self, step: AllGather, x: Value, before: View, after: View) -> Value:
        sizes = tuple(part.axis.size for part in step.parts)
        rows = self.varying(_shaped(x, (1, *x.shape)), step.axes)
        rows = all_gather_invariant(rows, **self.axes(step.axes), dim=0)
        rows = _shaped(rows, (*sizes, *x.shape))
        return _arranged(rows, [part.position for part in step.parts] + digits_of(before), after)

    def allreduce(self, step: AllReduce, x: Value, before: View, after: View) -> Value:
        return self.reduced(x, step.axes, step.reduction)

    def reduced(self, x: Value, axes: Axes, reduction: str) -> Value:
        params = self.axes(axes)
        x = self.varying(x, axes)
        if reduction == "prod":
            rows = all_gather_invariant(_shaped(x, (1, *x.shape)), **params, dim=0)
            return reduce_prod(rows, axes=(0,))
        return {"sum": psum, "max": pmax, "min": pmin}[reduction](x, axes=params["axes"])

    def reducescatter(self, step: ReduceScatter, x: Value, before: View, after: View) -> Value:
        if step.reduction != "sum":
            return self.localslice(step, self.reduced(x, step.axes, step.reduction), before, after)
        order = digits_of(before)
        front = [order.index(part.position) for part in step.parts]
        rest = [d for d in range(x.ndim) if d not in front]
        x = permuted(self.varying(x, step.axes), front + rest)
        shape = tuple(x.shape[len(front) :])
        x = _shaped(x, (prod(x.shape[: len(front)]), *shape))
        return psum_scatter(x, **self.axes(step.axes), dim=0)

    def alltoall(self, step: AllToAll, x: Value, before: View, after: View) -> Value:
        order = digits_of(before)
        front = [order.index(swap.split) for swap in step.swaps]
        rest = [d for d in range(x.ndim) if d not in front]
        x = permuted(self.varying(x, step.axes), front + rest)
        sizes, shape = x.shape[: len(front)], x.shape[len(front) :]
        x = _shaped(x, (prod(sizes), *shape))
        x = all_to_all(x, **self.axes(step.axes), split=0, concat=0)
        x = _shaped(x, (*sizes, *shape))
        return _arranged(x, [swap.join for swap in step.swaps] + [order[d] for d in rest], after)

    def permute(self, step: Permute, x: Value, before: View, after: View) -> Value:
        mesh, params = self.involved(step.axes)
        pairs = tuple(enumerate(receivers(mesh, step).tolist()))
        return ppermute(make_varying(x, union((x.type.varying, params["axes"]))), **params, permutation=pairs)

    def involved(self, axes: Axes) -> tuple[BaseMesh, dict[str, Any]]:
        """The whole axes that some axes are parts of, as a mesh, and the axes of the program that make them up."""
        assert self.plan.mesh is not None
        found = {axis.name for axis in axes}
        whole = [axis for axis in self.plan.mesh.axes if axis.name in found]
        mesh = AbstractMesh(tuple(a.size for a in whole), tuple(a.name for a in whole))
        return mesh, self.axes(whole)

    def rounds(self, step: Rounds, x: Value, before: View, after: View) -> Value:
        mesh, params = self.involved(step.axes)
        x = make_varying(x, union((x.type.varying, params["axes"])))
        order, target = digits_of(before), digits_of(after)
        whole: Value = make_varying(broadcast_scalar(_identity(x, "sum"), _open_shape(after)), x.type.varying)
        for round in step.rounds():
            starts: list[Any] = [0] * x.ndim
            ends: list[Any] = [0] * whole.ndim
            for path, shift in zip(step.paths, round.shifts, strict=True):
                size = path.axes[0].size
                starts[order.index(path.split)] = rem(add(self.index([path.axes[-1]]), shift), size)
                ends[target.index(path.join)] = rem(add(sub(self.index([path.axes[0]]), shift), size), size)
            split = {order.index(path.split) for path in step.paths}
            part = dynamic_slice(
                x, *indices(starts), sizes=tuple(1 if d in split else n for d, n in enumerate(x.shape))
            )
            pairs = tuple(enumerate(receivers(mesh, step, round).tolist()))
            part = ppermute(part, **params, permutation=pairs)
            joined = {path.join for path in step.paths}
            part = _shaped(part, tuple(1 if p in joined else n for p, n in zip(target, whole.shape, strict=True)))
            whole = dynamic_update_slice(whole, part, *indices(ends))
        return whole

    def blocks(self, step: BlockExchange, x: Value) -> Value:
        """Cells between blocks that do not line up: where each device takes and puts them is read from tables."""
        mesh, params = self.involved(step.over)
        units = self.plan.units
        x = make_varying(x, union((x.type.varying, params["axes"])))
        shape = tuple(size * unit for size, unit in zip(step.shape, units, strict=True))
        whole: Value = make_varying(broadcast_scalar(_identity(x, "sum"), shape), x.type.varying)
        position = self.index(mesh.axes)
        for round in (*step.rounds, *step.copies):
            cell = tuple(n * unit for n, unit in zip(round.shape, units, strict=True))
            take = np.zeros((mesh.size, len(shape)), np.int32)
            put, takes_part = np.zeros_like(take), np.zeros(mesh.size, bool)
            ends = block_ends(mesh, step, round)
            take[ends.sender] = (np.array([send.take for send in round.sends]) * units)[ends.send]
            put[ends.receiver] = (np.array([send.put for send in round.sends]) * units)[ends.send]
            takes_part[ends.receiver] = True
            pairs = list(zip(ends.sender.tolist(), ends.receiver.tolist(), strict=True))
            part = dynamic_slice(x, *_row(take, position), sizes=cell)
            if any(sender != receiver for sender, receiver in pairs):
                part = ppermute(part, **params, permutation=tuple(sorted(pairs)))
            at = _row(put, position)
            now = dynamic_slice(whole, *at, sizes=cell)
            mine = _shaped(_row(takes_part[:, None].astype(np.int32), position)[0], ())
            part = select(broadcast_scalar(eq(mine, 1), cell), part, now)
            whole = dynamic_update_slice(whole, part, *at)
        return whole


def _arranged(x: Value, positions: Sequence[DigitOfDim], after: View) -> Value:
    """``x``, whose dims are the digits ``positions``, with its dims in the order of a view."""
    return permuted(x, [positions.index(position) for position in digits_of(after)])


def _shaped(x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else reshape(x, shape=shape)


def indices(starts: Sequence[Any]) -> list[Value]:
    """Start indices of one dtype; numbers stand for themselves."""
    return [
        Array(np.asarray(start, np.int32), TensorType((), np.dtype("int32"))) if isinstance(start, int) else start
        for start in starts
    ]


def _row(table: Any, position: Value) -> list[Value]:
    """The entries of one row of a table."""
    values = Array(table, TensorType(table.shape, table.dtype))
    row = gather(
        values, _shaped(position, (1, 1)), offset_dims=(1,), collapsed_dims=(0,), operand_batch_dims=(),
        indices_batch_dims=(), start_index_map=(0,), slice_sizes=(1, table.shape[1]), mode="clip",
    )  # fmt: skip
    found = []
    for n in range(table.shape[1]):
        one = slice_(row, starts=(0, n), limits=(1, n + 1), strides=(1, 1))
        found.append(_shaped(one, ()))
    return found


def _identity(x: Value, reduction: str) -> Value:
    """What changes nothing when it is reduced with others, as a scalar of ``x``'s dtype."""
    return scalar(identity(x.dtype, reduction), x.dtype, x.type.weak)

"""Reading and writing at indices into a dim that is split.

Each device reads what it holds and zeros elsewhere, so that the sum over all is what was asked for; it writes what
falls into its block. Where the updates of a scatter are split, each device combines its own, and
the results are partial.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across
from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import add, broadcast_in_dim, broadcast_scalar, convert, mul
from meshwright.ops.choice import clamp, select
from meshwright.ops.elementwise import and_, eq, ge, le, sub
from meshwright.ops.gathering import fill_value
from meshwright.ops.index_windows import Windows
from meshwright.ops.reduction import reduce_and
from meshwright.ops.shape import pad, slice_along
from meshwright.partition.blocks import block_start, filled_where, identity, part_index, scalar, without_padding
from meshwright.partition.choose import Choice
from meshwright.partition.layouts import READ, local_type
from meshwright.partition.localize import RULES, Localizer, Version
from meshwright.partition.rules.strategies import BlockStrategy, cheapest, nothing
from meshwright.sharding.axes import Axes

# Indices


def _wide(x: Value) -> Value:
    """Indices of a dtype that also holds those before the first."""
    dtype = dtypes.INT64 if x.dtype.itemsize == 8 else dtypes.INT32
    return x if x.dtype == dtype else convert(x, dtype=dtype, weak=False)


def _vector(numbers: list[int], dtype: Any, shape: Shape) -> Value:
    row = np.asarray(numbers, dtype)
    return broadcast_in_dim(Array(row, TensorType(row.shape, row.dtype)), shape=shape, dims=(len(shape) - 1,))


def _inside(indices: Value, last: list[int]) -> Value:
    """Which index vectors begin a window that lies within the whole operand, for each of their components."""
    shape = indices.shape
    low, high = (_vector(row, indices.dtype, shape) for row in ([0] * len(last), last))
    inside = and_(ge(indices, low), le(indices, high))
    inside = reduce_and(inside, axes=(len(shape) - 1,))
    return broadcast_in_dim(inside, shape=shape, dims=tuple(range(len(shape) - 1)))


def _reachable(last: list[int], dtype: Any) -> list[int]:
    """The last places where windows begin, as far as indices of a dtype reach."""
    highest = int(np.iinfo(dtype).max)
    return [max(0, min(n, highest)) for n in last]


def _shifted(indices: Value, last: list[int], starts: list[Value | None], clipped: bool) -> Value:
    """Index vectors into a device's block; those of windows elsewhere are outside of it.

    ``last`` are the last places where a window begins in the whole operand, ``starts`` where the block does.
    """
    shape = indices.shape
    last = _reachable(last, indices.dtype)
    inside = None if clipped else _inside(indices, last)
    low, high = (_vector(row, indices.dtype, shape) for row in ([0] * len(last), last))
    found = _wide(clamp(low, indices, high))
    for k, start in enumerate(starts):
        if start is not None:
            mine = _vector([int(n == k) for n in range(len(last))], found.dtype, shape)
            found = sub(found, mul(mine, convert(start, dtype=found.dtype, weak=False)))
    return found if inside is None else filled_where(inside, found, -1)


def _block_starts(
    local: Localizer, windows: Windows, x: TensorType, choice: Choice, dims: list[int]
) -> list[Value | None]:
    """For each component of an index vector, where a device's block begins along the dim it indexes, if that is split
    and one of ``dims``."""
    layout = choice.operands[0]
    shape = layout.local_shape(x.shape)
    return [block_start(local.names, layout.dims[d].axes, shape[d]) if d in dims else None for d in windows.index_map]


# gather


def gather_factors(eqn: Eqn) -> tuple[Factors, list[int]] | None:
    """The factor rule of a gather each of whose devices reads what it holds, and the dims that it reads at indices."""
    x = eqn.inputs[0].type
    windows, sizes = Windows.of_gather(eqn.params), eqn.params["slice_sizes"]
    factors = eqn.op.factors([a.type for a in eqn.inputs], [eqn.outputs[0].type], eqn.params)  # type: ignore[operator]
    read = [d for d in windows.index_map if sizes[d] == 1 < x.shape[d]]
    named = {name for d in read for name in factors.operands[0][d]} & factors.reduced
    return (factors._replace(guarded=factors.guarded - named, combine=READ), read) if named else None


def _gather(local: Localizer, eqn: Eqn) -> list[Version]:
    x, result = eqn.inputs[0].type, eqn.outputs[0].type
    windows, sizes = Windows.of_gather(eqn.params), eqn.params["slice_sizes"]
    found = gather_factors(eqn)
    if found is None:
        return cheapest(local, eqn, [])
    factors, read = found

    def run(choice: Choice) -> list[Version]:
        split = [d for d in read if choice.operands[0].dims[d].axes]
        if not split:
            return local.chosen(eqn, choice)
        values = local.operands(eqn, choice)
        mode = eqn.params["mode"]
        last = [x.shape[d] - sizes[d] for d in windows.index_map]
        starts = _block_starts(local, windows, x, choice, split)
        clipped = mode in ("clip", "promise")
        indices = _shifted(values[1], last, starts, clipped)
        types = [local_type(a.type, s) for a, s in zip(eqn.inputs, choice.operands, strict=True)]
        local_result = local_type(result, choice.results[0])
        params = eqn.op.localize({**eqn.params, "mode": "clip"}, types, [local_result])
        out = eqn.op(values[0], indices, **params)
        others = tuple(r for r in range(out.ndim) if r not in windows.window_dims)

        def everywhere(inside: Value) -> Value:
            return broadcast_in_dim(reduce_and(inside, axes=(inside.ndim - 1,)), shape=out.shape, dims=others)

        # One device reads an element, or what stands for those outside of the whole; all others add nothing to it.
        empty = identity(x.dtype, READ)
        mine = everywhere(_inside(indices, [values[0].shape[d] - params["slice_sizes"][d] for d in windows.index_map]))
        out = filled_where(mine, out, empty)
        if mode == "fill" or (mode == "zero" and dtypes.is_inexact(x.dtype)):
            first = _is_first(local, [axis for d in split for axis in choice.operands[0].dims[d].axes])
            fill = fill_value(x.dtype) if mode == "fill" else 0
            number = select(first, scalar(fill, x.dtype), scalar(empty, x.dtype))
            whole = _inside(values[1], _reachable(last, values[1].dtype))
            out = select(everywhere(whole), out, broadcast_scalar(number, out.shape))
        return [Version(choice.results[0], out)]

    return cheapest(local, eqn, [BlockStrategy(factors, nothing, run)])


def _is_first(local: Localizer, axes: list[Any]) -> Value:
    """Whether a device is the first along axes."""
    return eq(part_index(local.names, tuple(axes)), 0)


# Scatters


def scatter_factors(eqn: Eqn) -> tuple[Factors, list[int]]:
    """The factor rule of a scatter each of whose devices writes into what it holds, or combines the updates it holds;
    and the dims that it writes at indices."""
    x, indices, updates = (a.type for a in eqn.inputs)
    windows = Windows.of_scatter(eqn.params)
    factors = eqn.op.factors([x, indices, updates], [x], eqn.params)  # type: ignore[operator]
    sizes = windows.sizes(x.ndim, updates.shape)
    written = [d for d in windows.index_map if sizes[d] == 1 < x.shape[d]]
    free = {name for d in written for name in factors.operands[0][d]} | factors.reduced
    return factors._replace(guarded=factors.guarded - free, replicated=factors.replicated - free), written


def _scatter(local: Localizer, eqn: Eqn) -> list[Version]:
    x, indices, updates = (a.type for a in eqn.inputs)
    windows = Windows.of_scatter(eqn.params)
    factors = eqn.op.factors([x, indices, updates], [x], eqn.params)  # type: ignore[operator]
    sizes = windows.sizes(x.ndim, updates.shape)
    freed, written = scatter_factors(eqn)
    combined = factors.combine
    apart = [
        (n, windows_dim)
        for n, windows_dim in enumerate(u for u in range(updates.ndim) if u not in windows.window_dims)
        if n not in windows.indices_batch
    ]

    def run(choice: Choice) -> list[Version]:
        into, vectors, put = local.operands(eqn, choice)
        params = dict(eqn.params)
        if any(choice.operands[0].dims[d].axes for d in written):
            last = [x.shape[d] - sizes[d] for d in windows.index_map]
            starts = _block_starts(local, windows, x, choice, written)
            vectors = _shifted(vectors, last, starts, params["mode"] == "clip")
            params["mode"] = "drop"
        split: list[Any] = []
        for n, u in apart:
            axes: Axes = choice.operands[1].dims[n].axes
            split.extend(axes)
            place = (u, axes, updates.shape[u])
            put = without_padding(local.names, put, [place], identity(x.dtype, combined))
        if split and combined in ("sum", "prod"):  # which count the operand once
            first = broadcast_scalar(_is_first(local, split), into.shape)
            into = filled_where(first, into, identity(x.dtype, combined))
        out = eqn.op(into, vectors, put, **params)
        return [Version(choice.results[0], out)]

    in_place = local.choice(eqn, freed)
    if not in_place.brought:  # among which are partial sums that are as cheap to take, whatever reads them
        return run(in_place)
    strategies = [BlockStrategy(factors, nothing, run), BlockStrategy(freed, nothing, run)]
    return cheapest(local, eqn, strategies, plain=False)


# dynamic_slice and dynamic_update_slice


def _start_in_block(local: Localizer, start: Value, room: int, axes: Axes, block: int, margin: int) -> Value:
    """Where a window begins, counted from ``margin`` before a device's block; in the whole, ``room`` is the last."""
    limit = min(room, int(np.iinfo(start.dtype).max))
    start = _wide(clamp(scalar(0, start.dtype), start, scalar(limit, start.dtype)))
    begin = block_start(local.names, axes, block)
    return add(sub(start, convert(begin, dtype=start.dtype, weak=False)), margin)


def _with_margin(x: Value, dim: int, margin: int) -> Value:
    """A block between margins that add nothing to what others read there."""
    around = tuple(margin if d == dim else 0 for d in range(x.ndim))
    return pad(x, scalar(identity(x.dtype, READ), x.dtype), low=around, high=around, interior=(0,) * x.ndim)


def _dynamic_slice(local: Localizer, eqn: Eqn) -> list[Version]:
    types, result = [a.type for a in eqn.inputs], eqn.outputs[0].type
    x = types[0]
    build = FactorBuilder(types, [result])
    cut = [d for d, (n, kept) in enumerate(zip(x.shape, result.shape, strict=True)) if n != kept]
    for d, n in enumerate(x.shape):
        if d in cut:
            build.add(n, (0, d), kind="reduced")
            build.add(result.shape[d], (len(types), d), kind="replicated")
        else:
            build.add(n, (0, d), (len(types), d))

    def run(choice: Choice) -> list[Version]:
        value, *starts = local.operands(eqn, choice)
        sizes = choice.results[0].local_shape(result.shape)
        for d in cut:
            axes = choice.operands[0].dims[d].axes
            if axes:
                block, kept = value.shape[d], sizes[d]
                starts[d] = _start_in_block(local, starts[d], x.shape[d] - kept, axes, block, kept)
                value = _with_margin(value, d, kept)
        return [Version(choice.results[0], eqn.op(value, *starts, sizes=sizes))]

    return cheapest(local, eqn, [BlockStrategy(build.build(READ), nothing, run)] if cut else [])


def _dynamic_update_slice(local: Localizer, eqn: Eqn) -> list[Version]:
    types, result = [a.type for a in eqn.inputs], eqn.outputs[0].type
    x, update = types[:2]
    factors = eqn.op.factors(types, [result], eqn.params)  # type: ignore[operator]
    partly = [d for d, (n, k) in enumerate(zip(x.shape, update.shape, strict=True)) if n != k]
    free = {name for d in partly for name in factors.operands[0][d]}

    def run(choice: Choice) -> list[Version]:
        value, put, *starts = local.operands(eqn, choice)
        split = [d for d in partly if choice.operands[0].dims[d].axes]
        blocks = value.shape
        for d in split:
            axes, size = choice.operands[0].dims[d].axes, put.shape[d]
            starts[d] = _start_in_block(local, starts[d], x.shape[d] - size, axes, blocks[d], size)
            value = _with_margin(value, d, size)
        value = eqn.op(value, put, *starts)
        for d in split:
            value = slice_along(value, d, put.shape[d], put.shape[d] + blocks[d])
        return [Version(choice.results[0], value)]

    strategy = BlockStrategy(factors._replace(guarded=factors.guarded - free), nothing, run)
    return cheapest(local, eqn, [strategy] if partly else [])


RULES.update(
    {
        Across.READ: _gather,
        Across.WRITTEN: _scatter,
        Across.READ_AT: _dynamic_slice,
        Across.WRITTEN_AT: _dynamic_update_slice,
    }
)

"""Ops along a split dim that need one number, or a few, of each block: running reductions, positions of extremes, the
largest elements. Each device takes its own; those of all are gathered and combined."""

from __future__ import annotations

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder
from meshwright.core.facts import Across
from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.core.trace import make_varying
from meshwright.core.types import TensorType, union
from meshwright.ops.basic import add, broadcast_in_dim, convert, reshape
from meshwright.ops.collective import all_gather, all_gather_invariant
from meshwright.ops.elementwise import gt, lt
from meshwright.ops.reduction import reduce_max, reduce_min
from meshwright.ops.shape import concatenate, iota, slice_along
from meshwright.ops.sorting import take_along
from meshwright.partition.blocks import along, block_start, filled_where, identity, part_index, without_padding
from meshwright.partition.choose import Choice
from meshwright.partition.localize import RULES, Localizer, Version
from meshwright.partition.rules.strategies import BlockStrategy, cheapest, parts
from meshwright.sharding.axes import Axes


def _gathered(local: Localizer, x: Value, axes: Axes, dim: int, why: str, invariant: bool) -> Value:
    """The blocks of all devices along axes, joined along a dim."""
    pairs = [pair for axis in axes for pair in local.names(axis)]
    names, sizes = tuple(name for name, _ in pairs), tuple(size for _, size in pairs)
    x = make_varying(x, union((x.type.varying, names)))
    op = all_gather_invariant if invariant else all_gather
    shape = (*x.shape[:dim], parts(axes) * x.shape[dim], *x.shape[dim + 1 :])
    with local.because(why, TensorType(shape, x.dtype)):
        return op(x, axes=names, sizes=sizes, dim=dim)


# Running reductions


def _running(local: Localizer, eqn: Eqn) -> list[Version]:
    """Each device's prefixes, combined with the total of the blocks before."""
    x, op = eqn.inputs[0].type, eqn.op
    axis, backward = eqn.params["axis"], eqn.params["reverse"]
    factors = op.factors([x], [x], eqn.params)  # type: ignore[operator]
    neutral = identity(x.dtype, op.split.combine)

    def extra(choice: Choice) -> float:
        layout = choice.operands[0]
        block = layout.local_shape(x.shape)
        row = x.with_(shape=(*block[:axis], 1, *block[axis + 1 :])).nbytes
        return float((parts(layout.dims[axis].axes) - 1) * row)

    def run(choice: Choice) -> list[Version]:
        axes = choice.operands[0].dims[axis].axes
        if not axes:
            return local.chosen(eqn, choice)
        value = local.operands(eqn, choice)[0]
        if backward:
            value = without_padding(local.names, value, [(axis, axes, x.shape[axis])], neutral)
        own = op(value, **eqn.params)
        size = own.shape[axis]
        total = slice_along(own, axis, 0, 1) if backward else slice_along(own, axis, size - 1, size)
        rows = _gathered(
            local, total, axes, axis, f"{op.name} goes on from the totals of other blocks", invariant=False
        )
        count, here = rows.shape[axis], part_index(local.names, axes)
        number = iota(dtype=dtypes.INT32, shape=(count,), dim=0)
        before = gt(number, here) if backward else lt(number, here)
        rows = filled_where(along(before, axis, rows.shape), rows, neutral)
        sums = op(rows, **eqn.params)
        others = slice_along(sums, axis, 0, 1) if backward else slice_along(sums, axis, count - 1, count)
        pair = [reshape(own, shape=(1, *own.shape)), _repeated(others, own.shape)]
        joined = op(concatenate(*pair, dim=0), axis=0, reverse=False)
        out = reshape(slice_along(joined, 0, 1, 2), shape=own.shape)
        return [Version(choice.results[0], out)]

    named = set(factors.operands[0][axis])
    strategy = BlockStrategy(factors._replace(replicated=factors.replicated - named), extra, run)
    return cheapest(
        local, eqn, [strategy] if x.size and local.best(eqn.inputs[0], unreduced=True).dims[axis].axes else []
    )


def _repeated(x: Value, shape: tuple[int, ...]) -> Value:
    return broadcast_in_dim(x, shape=(1, *shape), dims=tuple(range(1, x.ndim + 1)))


# Positions


def _position(local: Localizer, eqn: Eqn) -> list[Version]:
    """The extremes of all blocks and where they stand; the first of the best wins."""
    x, result, op = eqn.inputs[0].type, eqn.outputs[0].type, eqn.op
    axis, dtype = eqn.params["axis"], eqn.params["dtype"]
    combine = op.split.combine
    factors = op.factors([x], [result], eqn.params)  # type: ignore[operator]

    def extra(choice: Choice) -> float:
        size = choice.results[0].local_shape(result.shape)
        row = x.with_(shape=size).nbytes + TensorType(size, dtypes.INT32).nbytes
        return float((parts(choice.operands[0].dims[axis].axes) - 1) * row)

    def run(choice: Choice) -> list[Version]:
        axes = choice.operands[0].dims[axis].axes
        if not axes:
            return local.chosen(eqn, choice)
        value = local.operands(eqn, choice)[0]
        padding = identity(x.dtype, combine)
        value = without_padding(local.names, value, [(axis, axes, x.shape[axis])], padding)
        own = op(value, axis=axis, dtype=dtypes.INT32)
        own = add(own, block_start(local.names, axes, value.shape[axis]))
        extreme = (reduce_max if combine == "max" else reduce_min)(value, axes=(axis,))
        why = f"{op.name} compares the extremes of all blocks"
        rows = [_gathered(local, reshape(v, shape=(1, *v.shape)), axes, 0, why, invariant=True) for v in (extreme, own)]
        best = op(rows[0], axis=0, dtype=dtypes.INT32)
        out = take_along(rows[1], reshape(best, shape=(1, *best.shape)), 0)
        out = reshape(out, shape=best.shape)
        return [Version(choice.results[0], convert(out, dtype=dtype, weak=False))]

    named = set(factors.operands[0][axis])
    strategy = BlockStrategy(factors._replace(replicated=factors.replicated - named), extra, run)
    return cheapest(
        local, eqn, [strategy] if x.size and local.best(eqn.inputs[0], unreduced=True).dims[axis].axes else []
    )


# The largest


def _top_k(local: Localizer, eqn: Eqn) -> list[Version]:
    """The largest of each block are candidates; among equal ones those of earlier blocks come first."""
    x, k = eqn.inputs[0].type, eqn.params["k"]
    results = [v.type for v in eqn.outputs]
    dim = x.ndim - 1
    build = FactorBuilder([x], results)
    for d, n in enumerate(x.shape[:-1]):
        build.add(n, (0, d), (1, d), (2, d))
    build.add(x.shape[dim], (0, dim))
    build.add(k, (1, dim), (2, dim), kind="replicated")

    def taken(choice: Choice) -> int:
        block: int = choice.operands[0].local_shape(x.shape)[dim]
        return block if block < k else int(k)

    def extra(choice: Choice) -> float:
        shape = (*choice.results[0].local_shape(results[0].shape)[:-1], taken(choice))
        row = x.with_(shape=shape).nbytes + TensorType(shape, dtypes.INT32).nbytes
        return float((parts(choice.operands[0].dims[dim].axes) - 1) * row)

    def run(choice: Choice) -> list[Version]:
        axes = choice.operands[0].dims[dim].axes
        if not axes:
            return local.chosen(eqn, choice)
        value = local.operands(eqn, choice)[0]
        value = without_padding(local.names, value, [(dim, axes, x.shape[dim])], identity(x.dtype, "max"))
        found, where = eqn.op(value, k=taken(choice))
        where = add(where, block_start(local.names, axes, value.shape[dim]))
        why = f"top_k compares the {taken(choice)} largest of all blocks"
        rows = [_gathered(local, v, axes, dim, why, invariant=True) for v in (found, where)]
        best, at = eqn.op(rows[0], k=k)
        outs = best, take_along(rows[1], at, dim)
        return [Version(s, v) for s, v in zip(choice.results, outs, strict=True)]

    return cheapest(local, eqn, [BlockStrategy(build.build(), extra, run)] if x.shape[dim] > 1 and k else [])


RULES.update({Across.RUNNING: _running, Across.EXTREME: _position, Across.LARGEST: _top_k})

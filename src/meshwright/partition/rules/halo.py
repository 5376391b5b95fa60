"""Cutting, joining, padding and turning around along a split dim: blocks of the result are made of what neighbours
hold of the operands."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.factors import FactorBuilder
from meshwright.core.facts import Across
from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.ops.choice import select
from meshwright.ops.elementwise import ge
from meshwright.partition.blocks import along, global_indices, identity, part_index, scalar
from meshwright.partition.choose import Choice
from meshwright.partition.layouts import READ, local_type
from meshwright.partition.localize import RULES, Localizer, Version
from meshwright.partition.rules.fetch import fetch, fetch_bytes, fetch_whole, padded, window_at
from meshwright.partition.rules.strategies import BlockStrategy, cheapest, is_split, nothing, parts


class Need:
    """The windows that devices need of an operand along one dim: ``length`` elements from ``starts`` on."""

    def __init__(self, dim: int, starts: Sequence[int], length: int) -> None:
        self.dim, self.starts, self.length = dim, tuple(starts), length


def needed_bytes(t: TensorType, needs: Sequence[Need]) -> float:
    """The bytes that a device receives when its block of type ``t`` becomes its windows, one dim after the other."""
    total = 0.0
    for need in needs:
        total += fetch_bytes(t, need.dim, need.starts, need.length)
        t = t.with_(shape=(*t.shape[: need.dim], need.length, *t.shape[need.dim + 1 :]))
    return total


# slice


def _slice_needs(eqn: Eqn, cut: Sequence[int], choice: Choice) -> list[Need]:
    """The window of the operand that each device's results come from, along the dims that are cut."""
    result, starts, strides = eqn.outputs[0].type, eqn.params["starts"], eqn.params["strides"]
    found = []
    for d in cut:
        axes = choice.operands[0].dims[d].axes
        if axes:
            block = choice.results[0].local_shape(result.shape)[d]
            first = [starts[d] + i * block * strides[d] for i in range(parts(axes))]
            found.append(Need(d, first, (block - 1) * strides[d] + 1))
    return found


def _slice(local: Localizer, eqn: Eqn) -> list[Version]:
    x, result = eqn.inputs[0].type, eqn.outputs[0].type
    starts, limits, strides = (eqn.params[name] for name in ("starts", "limits", "strides"))
    factors = eqn.op.factors([x], [result], eqn.params)  # type: ignore[operator]
    cut = [d for d, (n, m) in enumerate(zip(x.shape, result.shape, strict=True)) if n != m]
    if not result.size or not is_split(local, eqn, cut):
        return cheapest(local, eqn, [])
    summed = FactorBuilder([x], [result])
    for d, n in enumerate(x.shape):
        if d in cut:
            summed.add(n, (0, d), kind="reduced")
            summed.add(result.shape[d], (1, d), kind="replicated")
        else:
            summed.add(n, (0, d), (1, d))

    def moved(choice: Choice) -> list[Version]:
        value = local.operands(eqn, choice)[0]
        low, high = list(starts), list(limits)
        for d, n in enumerate(value.shape):
            if d not in cut:
                low[d], high[d] = 0, n
        for need in _slice_needs(eqn, cut, choice):
            d, axes = need.dim, choice.operands[0].dims[need.dim].axes
            why = f"slice cuts dim {d}, which is split"
            value = fetch(local, value, d, x.shape[d], axes, need.starts, need.length, None, why)
            low[d], high[d] = 0, need.length
        out = eqn.op(value, starts=tuple(low), limits=tuple(high), strides=tuple(strides))
        return [Version(choice.results[0], out)]

    def as_partial_sums(choice: Choice) -> list[Version]:
        """Each device has those of the results that it holds, and what adds nothing for the others."""
        value = local.operands(eqn, choice)[0]
        low, high = list(starts), list(limits)
        for d, n in enumerate(value.shape):
            axes = choice.operands[0].dims[d].axes
            if d not in cut:
                low[d], high[d] = 0, n
            elif axes:
                span = (result.shape[d] - 1) * strides[d] + 1
                first = [starts[d] - i * n + span for i in range(parts(axes))]
                first = [max(0, min(at, n + span)) for at in first]
                value = padded(value, scalar(identity(x.dtype, READ), x.dtype), d, span, span)
                value = window_at(value, d, first, span, part_index(local.names, axes))
                low[d], high[d] = 0, span
        out = eqn.op(value, starts=tuple(low), limits=tuple(high), strides=tuple(strides))
        return [Version(choice.results[0], out)]

    free = {name for d in cut for name in factors.operands[0][d]}
    strategies = [
        BlockStrategy(
            factors._replace(guarded=factors.guarded - free),
            lambda choice: needed_bytes(local_type(x, choice.operands[0]), _slice_needs(eqn, cut, choice)),
            moved,
        ),
        BlockStrategy(summed.build(READ), nothing, as_partial_sums),
    ]
    return cheapest(local, eqn, strategies)


# pad


def _pad(local: Localizer, eqn: Eqn) -> list[Version]:
    x, result = eqn.inputs[0].type, eqn.outputs[0].type
    low, high, interior = (eqn.params[name] for name in ("low", "high", "interior"))
    factors = eqn.op.factors([x, eqn.inputs[1].type], [result], eqn.params)  # type: ignore[operator]
    touched = [
        d for d, n in enumerate(x.shape) if (low[d], high[d]) != (0, 0) or (interior[d] and n > 1)
    ]  # fmt: skip
    if not x.size or not result.size or not is_split(local, eqn, touched):
        return cheapest(local, eqn, [])

    def needs(choice: Choice) -> list[Need]:
        found = []
        for d in touched:
            axes, step = choice.operands[0].dims[d].axes, interior[d] + 1
            if axes:
                block = choice.results[0].local_shape(result.shape)[d]
                first = [i * block - low[d] for i in range(parts(axes))]
                length = max((at + block - 1) // step - at // step for at in first) + 1
                found.append(Need(d, [at // step for at in first], length))
        return found

    def run(choice: Choice) -> list[Version]:
        value, fill = local.operands(eqn, choice)
        rest = [list(low), list(high), list(interior)]
        for need in needs(choice):
            d = need.dim
            axes, step, block = (
                choice.operands[0].dims[d].axes,
                interior[d] + 1,
                choice.results[0].local_shape(result.shape)[d],
            )
            why = f"pad shifts dim {d}, which is split"
            value = fetch(local, value, d, x.shape[d], axes, need.starts, need.length, fill, why)
            if step > 1:
                value = padded(value, fill, d, 0, step - 1 + block, step - 1)
                offsets = [i * block - low[d] - at * step for i, at in enumerate(need.starts)]
                value = window_at(value, d, offsets, block, part_index(local.names, axes))
            for side in rest:
                side[d] = 0
        if any(map(any, rest)):
            value = eqn.op(value, fill, low=tuple(rest[0]), high=tuple(rest[1]), interior=tuple(rest[2]))
        return [Version(choice.results[0], value)]

    free = {name for d in touched for name in factors.operands[0][d]}
    strategy = BlockStrategy(
        factors._replace(guarded=factors.guarded - free),
        lambda choice: needed_bytes(local_type(x, choice.operands[0]), needs(choice)),
        run,
    )
    return cheapest(local, eqn, [strategy])


# reverse


def _reverse(local: Localizer, eqn: Eqn) -> list[Version]:
    x = eqn.inputs[0].type
    factors = eqn.op.factors([x], [x], eqn.params)  # type: ignore[operator]
    dims = eqn.params["dims"]
    if not x.size or not is_split(local, eqn, dims):
        return cheapest(local, eqn, [])

    def needs(choice: Choice) -> list[Need]:
        found = []
        for d in dims:
            axes = choice.operands[0].dims[d].axes
            if axes:
                block = choice.operands[0].local_shape(x.shape)[d]
                first = [x.shape[d] - (i + 1) * block for i in range(parts(axes))]
                found.append(Need(d, first, block))
        return found

    def run(choice: Choice) -> list[Version]:
        value = local.operands(eqn, choice)[0]
        for need in needs(choice):
            axes = choice.operands[0].dims[need.dim].axes
            why = f"reverse turns dim {need.dim} around, which is split"
            value = fetch(local, value, need.dim, x.shape[need.dim], axes, need.starts, need.length, None, why)
        return [Version(choice.results[0], eqn.op(value, dims=dims))]

    strategy = BlockStrategy(
        factors._replace(guarded=factors.guarded - factors.permuted),
        lambda choice: needed_bytes(local_type(x, choice.operands[0]), needs(choice)),
        run,
    )
    return cheapest(local, eqn, [strategy])


# concatenate


def _concatenate(local: Localizer, eqn: Eqn) -> list[Version]:
    """A block of the result is a window of every operand; of those that stick in, each place takes the right one."""
    types, result, dim = [a.type for a in eqn.inputs], eqn.outputs[0].type, eqn.params["dim"]
    if len(types) == 1 or not result.size or not is_split(local, eqn, [dim]):
        return cheapest(local, eqn, [])
    build = FactorBuilder(types, [result])
    split = [
        n
        for n, atom in enumerate(eqn.inputs)
        if local.best(atom, unreduced=True).dims[dim].axes and types[n].shape[dim] > 1
    ]
    for d, size in enumerate(result.shape):
        if d != dim:
            build.add(size, *((n, d) for n in range(len(types) + 1)))
    build.add(result.shape[dim], *((n, dim) for n in split), (len(types), dim))
    for n, t in enumerate(types):
        if n not in split:
            build.add(t.shape[dim], (n, dim), kind="replicated")
    offsets = [sum(t.shape[dim] for t in types[:n]) for n in range(len(types))]

    def need(choice: Choice, n: int) -> Need:
        axes = choice.results[0].dims[dim].axes
        block = choice.results[0].local_shape(result.shape)[dim]
        return Need(dim, [i * block - offsets[n] for i in range(parts(axes))], block)

    def extra(choice: Choice) -> float:
        if not choice.results[0].dims[dim].axes:
            return 0.0
        return sum(needed_bytes(local_type(types[n], choice.operands[n]), [need(choice, n)]) for n in split)

    def run(choice: Choice) -> list[Version]:
        values = local.operands(eqn, choice)
        axes = choice.results[0].dims[dim].axes
        if not axes:
            return [Version(choice.results[0], eqn.op(*values, dim=dim))]
        here = global_indices(local.names, axes, choice.results[0].local_shape(result.shape)[dim])
        out: Value | None = None
        for n, value in enumerate(values):
            size = types[n].shape[dim]
            if not size:
                continue
            window = need(choice, n)
            if n in split:
                why = f"concatenate joins along dim {dim}, which is split"
                piece = fetch(local, value, dim, size, axes, window.starts, window.length, None, why)
            else:
                piece = fetch_whole(local, value, dim, axes, window.starts, window.length, None)
            after = None if out is None else along(ge(here, offsets[n]), dim, piece.shape)
            out = piece if after is None else select(after, piece, out)
        return [Version(choice.results[0], out)]

    return cheapest(local, eqn, [BlockStrategy(build.build(), extra, run)])


RULES.update({Across.CUT: _slice, Across.PADDED: _pad, Across.REVERSED: _reverse, Across.JOINED: _concatenate})

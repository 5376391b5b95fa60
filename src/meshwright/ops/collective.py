"""Collectives: what devices along mesh axes compute together, each beside its dual.

    name                  variance             example, with the axis i of size 8          transpose
    psum                  varying → invariant  f32[3]{j}  = psum f32[3]{i,j}               pbroadcast
    pbroadcast            invariant → varying  f32[3]{i}  = pbroadcast f32[3]              psum
    all_gather            varying → varying    f32[16]{i} = all_gather f32[2]{i}           psum_scatter
    psum_scatter          varying → varying    f32[2]{i}  = psum_scatter f32[16]{i}        all_gather
    all_gather_invariant  varying → invariant  f32[16]    = all_gather_invariant f32[2]{i} pscatter
    pscatter              invariant → varying  f32[2]{i}  = pscatter f32[16]               all_gather_invariant
    all_to_all            varying → varying    f32[16]{i} = all_to_all f32[16]{i}          all_to_all
    ppermute              varying → varying    f32[3]{i}  = ppermute f32[3]{i}             ppermute
    pinvariant            varying → invariant  f32[3]     = pinvariant f32[3]{i}           device 0 has all of it
    pmax, pmin            varying → invariant
    axis_index            → varying            i32[]{i}   = axis_index

``axes`` run from major to minor, ``sizes`` are theirs. Gathers and scatters are tiled: they join or cut ``dim``.
``pinvariant`` is of what all devices hold the same although its type says that it may differ.

``stack`` rules say what a collective is when the devices along one of its axes are the rows of one array: sums and
rearrangements of rows. A value that is the same on all devices has no rows, so ``pbroadcast`` is nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.facts import Fusion, Memory, Structure
from meshwright.core.op import Cost, Linearity, No, Op, Types, Value, define_op
from meshwright.core.program import Params, Program
from meshwright.core.source import here
from meshwright.core.trace import Array, make_varying, set_pbroadcast
from meshwright.core.types import TensorType, Variance, union
from meshwright.errors import MeshwrightError, ShardingError, VarianceError
from meshwright.ops.basic import (
    Derivatives,
    add,
    broadcast_in_dim,
    broadcast_scalar,
    convert,
    linear_jvp,
    move_dim,
    mul,
    reduce_sum,
    reshape,
    transpose,
    zeros,
    zeros_like,
)
from meshwright.ops.choice import select
from meshwright.ops.elementwise import div, eq
from meshwright.ops.gathering import gather
from meshwright.ops.reduction import reduce_max, reduce_min
from meshwright.ops.rules import bad_operands, traffic, zero_jvp
from meshwright.ops.shape import concatenate, iota, slice_

Axes = tuple[str, ...]
NO_FACTORS = No("it works across devices, inside of what was partitioned by hand")


def need_varying(op: str, x: TensorType, axes: Axes) -> None:
    """Refuse an operand that is the same on all devices along one of the axes."""
    missing = tuple(axis for axis in axes if axis not in x.varying)
    if missing:
        name = missing[0] if len(missing) == 1 else missing
        raise VarianceError(
            f"{op} over {', '.join(axes)} cannot take {x.short()}.",
            where=here(),
            why=f"it is the same on all devices along {', '.join(missing)}, and {op} takes a value that varies",
            fix=f"lax.{op}(lax.pbroadcast(x, {name!r}), …) if a copy from each device is meant, or leave the {op} out",
        )


def _need_invariant(op: str, x: TensorType, axes: Axes, instead: str) -> None:
    found = tuple(axis for axis in axes if axis in x.varying)
    if found:
        raise VarianceError(
            f"{op} over {', '.join(axes)} cannot take {x.short()}.",
            where=here(),
            why=f"it varies over {', '.join(found)}, and {op} takes a value that is the same on all devices",
            fix=instead,
        )


def _check_axes(op: str, axes: Axes, sizes: tuple[int, ...] | None = None) -> None:
    """Refuse axes that are named twice, and sizes that are not theirs."""
    if len(set(axes)) == len(axes) and (sizes is None or (len(sizes) == len(axes) and all(n > 0 for n in sizes))):
        return
    raise ShardingError(
        f"{op} over {', '.join(axes) or 'no axes'} cannot be.",
        where=here(),
        why="an axis is named twice" if len(set(axes)) < len(axes) else f"the sizes of these axes are given as {sizes}",
        fix="name each mesh axis once, with its size",
    )


def _without(x: TensorType, axes: Axes) -> Axes:
    return tuple(axis for axis in x.varying if axis not in axes)


def _alone(xp: Any, *args: Any, **params: Any) -> Any:
    raise MeshwrightError(
        "A collective cannot run by itself.",
        why="it is what the devices of a mesh compute together",
        fix="mw.shard_map(f, mesh=mesh, in_specs=…, out_specs=…)(x), where f uses it",
    )


def _cost(flops_of: Callable[[TensorType], float]) -> Callable[[Types, Types, Params], Cost]:
    return lambda operands, results, params: Cost(flops_of(operands[0]), traffic(operands, results))


_move_cost = _cost(lambda x: 0.0)
_add_cost = _cost(lambda x: float(x.size))


def _batch_same(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """A collective that does not look at dims."""
    return [op(args[0], **params)], [True]


def _batch_dims(*names: str) -> Callable[..., tuple[list[Value], list[bool]]]:
    """A collective whose params name dims, which stand one further right in a batch."""

    def rule(
        op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
    ) -> tuple[list[Value], list[bool]]:
        return [op(args[0], **{**params, **{name: params[name] + 1 for name in names}})], [True]

    return rule


def _collective(name: str, **rules: Any) -> Op:
    """An op across devices: its type rule decides what varies, and nothing partitions it further."""
    given = {"linear": Linearity.MOVES, "jvp": linear_jvp, "batch": _batch_same, "cost": _move_cost, **rules}
    given = {"factors": NO_FACTORS, "variance": Variance.OWN, "evaluate": _alone, "samples": lambda: [], **given}
    return define_op(name, **given)


def _rest(params: Params, axis: str) -> dict[str, Any]:
    """The params of the same collective without one of its axes."""
    kept = [n for n, other in enumerate(params["axes"]) if other != axis]
    rest = {**params, "axes": tuple(params["axes"][n] for n in kept)}
    if "sizes" in params:
        rest["sizes"] = tuple(params["sizes"][n] for n in kept)
    return rest


def _one(params: Params, axis: str) -> dict[str, Any]:
    """The params of the same collective over one of its axes."""
    sizes = dict(zip(params["axes"], params["sizes"], strict=True))
    return {**params, "axes": (axis,), "sizes": (sizes[axis],)}


def scaled(x: Value, factor: int) -> Value:
    """``x`` times a whole number."""
    return mul(x, factor)


# psum and pbroadcast


def _psum_type(x: TensorType, *others: TensorType, axes: Axes) -> TensorType | tuple[TensorType, ...]:
    """One sum, or several taken at once."""
    _check_axes("psum", axes)
    found = tuple(_sum_type(one, axes) for one in (x, *others))
    return found if len(found) > 1 else found[0]


def _sum_type(x: TensorType, axes: Axes) -> TensorType:
    if x.dtype == dtypes.BOOL:
        raise bad_operands("psum", [x], "a sum of bools is not a bool", "x.astype('int32') first")
    need_varying("psum", x, axes)
    return x.with_(varying=_without(x, axes))


def sum_rows(x: Value, dim: int = 0) -> Value:
    """The sum of what devices hold: nothing is added to it, not even 0.0."""
    return reduce_sum(x, axes=(dim,), **({"bare": True} if dtypes.is_inexact(x.dtype) else {}))


def _psum_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    total = sum_rows(x) if stacked else scaled(x, size)
    rest = _rest(params, axis)
    return (psum(total, **rest) if rest["axes"] else total), False


def _psum_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    outs = op(*primals, **params)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    return outs, [None if t is None else psum(t, **params) for t in tangents]


def _psum_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    outs = op(*args, **params)
    return list(outs) if isinstance(outs, tuple) else [outs], list(batched)


psum: Op = _collective(
    "psum",
    memory=Memory.IN_PLACE,
    collective="all_reduce",
    linear=Linearity.ADDS,
    type=_psum_type,
    jvp=_psum_jvp,
    transpose=lambda op, cts, inputs, params: [None if ct is None else pbroadcast(ct, **params) for ct in cts],
    batch=_psum_batch,
    stack=_psum_stack,
    cost=_add_cost,
)


def _pbroadcast_type(x: TensorType, axes: Axes) -> TensorType:
    _check_axes("pbroadcast", axes)
    _need_invariant("pbroadcast", x, axes, "leave the pbroadcast out: the value varies already")
    return x.with_(varying=union((x.varying, axes)))


def _pbroadcast_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    rest = _rest(params, axis)
    return (pbroadcast(x, **rest) if rest["axes"] else x), stacked


pbroadcast: Op = _collective(
    "pbroadcast",
    structure=Structure.VARYING,
    fusion=Fusion.VIEW,
    type=_pbroadcast_type,
    transpose=lambda op, cts, inputs, params: [psum(cts[0], **params)],
    stack=_pbroadcast_stack,
    cost=lambda operands, results, params: Cost(0.0, 0.0),
)
set_pbroadcast(pbroadcast)

# pinvariant: what is known to be the same on all devices, by those who partition programs, is typed so


def _pinvariant_type(x: TensorType, axes: Axes, sizes: tuple[int, ...]) -> TensorType:
    need_varying("pinvariant", x, axes)
    return x.with_(varying=_without(x, axes))


def _pinvariant_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    rest, x = _rest(params, axis), first_row(x) if stacked else x
    return (pinvariant(x, **rest) if rest["axes"] else x), False


def _pinvariant_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Any], params: Params
) -> list[Value | None]:
    """The value is that of the first device, whose cotangent is all of it; those of the others are nothing."""
    ct, axes = cts[0], params["axes"]
    assert ct is not None
    first = broadcast_scalar(eq(axis_index(**params), 0), ct.shape)
    return [select(first, pbroadcast(ct, axes=axes), zeros_like(ct))]


pinvariant: Op = _collective(
    "pinvariant",
    fusion=Fusion.VIEW,
    type=_pinvariant_type,
    transpose=_pinvariant_transpose,
    stack=_pinvariant_stack,
    cost=lambda operands, results, params: Cost(0.0, 0.0),
)

# Gathers and scatters: all_gather and psum_scatter, all_gather_invariant and pscatter


def _joined(op: str, x: TensorType, dim: int, factor: int) -> tuple[int, ...]:
    if not 0 <= dim < x.ndim:
        raise bad_operands(op, [x], f"it has no dim {dim}", f"axis between 0 and {x.ndim - 1}")
    return (*x.shape[:dim], x.shape[dim] * factor, *x.shape[dim + 1 :])


def _cut(op: str, x: TensorType, dim: int, parts: int) -> tuple[int, ...]:
    if not 0 <= dim < x.ndim:
        raise bad_operands(op, [x], f"it has no dim {dim}", f"a dim between 0 and {x.ndim - 1}")
    if x.shape[dim] % parts:
        raise bad_operands(
            op,
            [x],
            f"dim {dim} of size {x.shape[dim]} is not cut into {parts} equal parts, one for each device",
            f"a dim whose size is a multiple of {parts}",
        )
    return (*x.shape[:dim], x.shape[dim] // parts, *x.shape[dim + 1 :])


def rows_to_dim(x: Value, dim: int) -> Value:
    """Rows joined along a dim, which is counted without the rows."""
    x = move_dim(x, 0, dim)
    shape = x.shape
    return reshape(x, shape=(*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))


def dim_to_rows(x: Value, dim: int, count: int) -> Value:
    """A dim cut into rows, in front."""
    shape = x.shape
    x = reshape(x, shape=(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))
    return move_dim(x, dim, 0)


def repeated(x: Value, dim: int, count: int) -> Value:
    """``count`` copies joined along a dim."""
    shape = (*x.shape[:dim], count, *x.shape[dim:])
    x = broadcast_in_dim(x, shape=shape, dims=tuple(d for d in range(len(shape)) if d != dim))
    return reshape(x, shape=(*shape[:dim], count * shape[dim + 1], *shape[dim + 2 :]))


def _gather_type(op: str, invariant: bool) -> Callable[..., TensorType]:
    def rule(x: TensorType, axes: Axes, sizes: tuple[int, ...], dim: int) -> TensorType:
        _check_axes(op, axes, sizes)
        need_varying(op, x, axes)
        varying = _without(x, axes) if invariant else x.varying
        return x.with_(shape=_joined(op, x, dim, prod(sizes)), varying=varying)

    return rule


def _scatter_type(op: str, summed: bool) -> Callable[..., TensorType]:
    def rule(x: TensorType, axes: Axes, sizes: tuple[int, ...], dim: int) -> TensorType:
        _check_axes(op, axes, sizes)
        if summed:
            need_varying(op, x, axes)
        else:
            _need_invariant(op, x, axes, "lax.psum_scatter(x, …) sums what differs and scatters the sum")
        return x.with_(shape=_cut(op, x, dim, prod(sizes)), varying=union((x.varying, axes)))

    return rule


def _in_turn(
    op: Callable[[], Op], alone: Callable[..., tuple[Value, bool]], outermost_first: bool
) -> Callable[..., tuple[Value, bool]]:
    """The stack rule of a collective over several axes: over one after the other."""

    def rule(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
        axes = params["axes"]
        for other in axes if outermost_first else reversed(axes):
            if other == axis:
                x, stacked = alone(size, x, stacked, params)
            elif stacked:
                found, _ = op().batch(op(), size, [x], [True], _one(params, other))  # type: ignore[operator]
                x = found[0]
            else:
                x = op()(x, **_one(params, other))
        return x, stacked

    return rule


def _gather_stack(size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    return (rows_to_dim(x, params["dim"]) if stacked else repeated(x, params["dim"], size)), False


def _sum_scatter_stack(size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    total = sum_rows(x) if stacked else scaled(x, size)
    return dim_to_rows(total, params["dim"], size), True


def _scatter_stack(size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    return dim_to_rows(first_row(x) if stacked else x, params["dim"], size), True


def permuted(x: Value, order: Sequence[int]) -> Value:
    """``x`` with its dims in another order."""
    return x if list(order) == sorted(order) else transpose(x, permutation=tuple(order))


def first_row(x: Value) -> Value:
    """The first of equal rows."""
    row = slice_(x, starts=(0,) * x.ndim, limits=(1, *x.shape[1:]), strides=(1,) * x.ndim)
    return reshape(row, shape=x.shape[1:])


all_gather: Op = _collective(
    "all_gather",
    collective="all_gather",
    type=_gather_type("all_gather", invariant=False),
    transpose=lambda op, cts, inputs, params: [psum_scatter(cts[0], **params)],
    batch=_batch_dims("dim"),
    stack=_in_turn(lambda: all_gather, _gather_stack, outermost_first=False),
)

psum_scatter: Op = _collective(
    "psum_scatter",
    collective="reduce_scatter",
    linear=Linearity.ADDS,
    type=_scatter_type("psum_scatter", summed=True),
    transpose=lambda op, cts, inputs, params: [all_gather(cts[0], **params)],
    batch=_batch_dims("dim"),
    stack=_in_turn(lambda: psum_scatter, _sum_scatter_stack, outermost_first=True),
    cost=_add_cost,
)

all_gather_invariant: Op = _collective(
    "all_gather_invariant",
    collective="all_gather",
    type=_gather_type("all_gather_invariant", invariant=True),
    transpose=lambda op, cts, inputs, params: [pscatter(cts[0], **params)],
    batch=_batch_dims("dim"),
    stack=_in_turn(lambda: all_gather_invariant, _gather_stack, outermost_first=False),
)

pscatter: Op = _collective(
    "pscatter",
    fusion=Fusion.CHEAP,
    type=_scatter_type("pscatter", summed=False),
    transpose=lambda op, cts, inputs, params: [all_gather_invariant(cts[0], **params)],
    batch=_batch_dims("dim"),
    stack=_in_turn(lambda: pscatter, _scatter_stack, outermost_first=True),
)

# all_to_all: cut the dim `split`, give each device its part, and join what comes along the dim `concat`


def _all_to_all_type(x: TensorType, axes: Axes, sizes: tuple[int, ...], split: int, concat: int) -> TensorType:
    _check_axes("all_to_all", axes, sizes)
    need_varying("all_to_all", x, axes)
    cut = x.with_(shape=_cut("all_to_all", x, split, prod(sizes)))
    return cut.with_(shape=_joined("all_to_all", cut, concat, prod(sizes)))


def _all_to_all_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    split, concat, sizes = params["split"], params["concat"], params["sizes"]
    if not stacked:
        x = broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
    # x: [rows, …, cut, …] → one dim per axis, in front of what it was cut from: [rows, …, *sizes, part, …]
    rows, *shape = x.shape
    n = len(sizes)
    x = reshape(x, shape=(rows, *shape[:split], *sizes, shape[split] // prod(sizes), *shape[split + 1 :]))
    for number, other in enumerate(params["axes"]):
        at = 1 + split + number
        if other == axis:  # the rows of part r go to device r: rows and parts change places
            order = list(range(x.ndim))
            order[0], order[at] = at, 0
            x = permuted(x, order)
        else:
            x = all_to_all(x, axes=(other,), sizes=(sizes[number],), split=at, concat=at)
    # [rows, …, *sizes, part, …] → the dims that say where a part came from, in front of the dim it is joined along
    sources = list(range(1 + split, 1 + split + n))
    others = [d for d in range(1, x.ndim) if d not in sources]
    order = [0, *others[:concat], *sources, *others[concat:]]
    x = permuted(x, order)
    shape = list(x.shape)
    joined = prod(shape[1 + concat : 2 + concat + n])
    return reshape(x, shape=(*shape[: 1 + concat], joined, *shape[2 + concat + n :])), True


all_to_all: Op = _collective(
    "all_to_all",
    collective="all_to_all",
    type=_all_to_all_type,
    transpose=lambda op, cts, inputs, params: [
        op(cts[0], **{**params, "split": params["concat"], "concat": params["split"]})
    ],
    batch=_batch_dims("split", "concat"),
    stack=_all_to_all_stack,
)

# ppermute: ``permutation`` holds (source, target) pairs of positions; a device that is no target gets zeros


def _ppermute_type(
    x: TensorType, axes: Axes, sizes: tuple[int, ...], permutation: tuple[tuple[int, int], ...]
) -> TensorType:
    _check_axes("ppermute", axes, sizes)
    need_varying("ppermute", x, axes)
    count = prod(sizes)
    for side, ends in (("source", [s for s, _ in permutation]), ("target", [t for _, t in permutation])):
        wrong = [p for p in ends if not 0 <= p < count]
        if wrong or len(set(ends)) != len(ends):
            raise bad_operands(
                "ppermute",
                [x],
                f"the positions along {', '.join(axes)} are 0 to {count - 1}, and {wrong[0]} is a {side}"
                if wrong
                else f"{next(p for p in ends if ends.count(p) > 1)} is a {side} twice",
                f"perm=[(i, (i + 1) % {count}) for i in range({count})]",
            )
    return x


def _ppermute_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    axes, sizes = params["axes"], params["sizes"]
    source_of = {target: source for source, target in params["permutation"]}
    if not stacked and len(source_of) == prod(sizes) and len(axes) == 1:
        return x, False
    if not stacked:
        x = broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
    sources = [source_of.get(target, -1) for target in range(prod(sizes))]
    if len(axes) == 1:
        return _rows(x, sources), True
    # Along the other axes the rows are gathered; each device then takes those it is the target of.
    rest = _rest(params, axis)
    wide = reshape(x, shape=(1, *x.shape))
    wide = all_gather(wide, axes=rest["axes"], sizes=rest["sizes"], dim=0)
    at = axes.index(axis)
    grid = np.asarray(sources).reshape(sizes)
    coordinates = np.stack(np.unravel_index(np.maximum(grid, 0), sizes))
    others = [n for n in range(len(axes)) if n != at]
    flat = np.zeros_like(grid)
    for n in others:
        flat = flat * sizes[n] + coordinates[n]
    flat = np.where(grid < 0, -1, flat * size + coordinates[at])
    table = np.moveaxis(flat, at, -1).reshape(-1, size).astype(np.int32)  # [other devices, rows]
    mine = _row_of(table, rest)
    rows = reshape(wide, shape=(wide.shape[0] * size, *wide.shape[2:]))
    return _take(rows, mine, "zero"), True


def _row_of(table: Any, params: Params) -> Value:
    """The row of a table that belongs to a device's position along several axes."""
    position: Value | None = None
    for axis, size in zip(params["axes"], params["sizes"], strict=True):
        index = axis_index(axes=(axis,), sizes=(size,))
        position = index if position is None else add(scaled(position, size), index)
    values = Array(table, TensorType(table.shape, table.dtype))
    index = reshape(position, shape=(1, 1))
    row = gather(
        values, index, offset_dims=(1,), collapsed_dims=(0,), operand_batch_dims=(), indices_batch_dims=(),
        start_index_map=(0,), slice_sizes=(1, table.shape[1]), mode="clip",
    )  # fmt: skip
    return reshape(row, shape=(table.shape[1],))


def _take(x: Value, rows: Value, mode: str) -> Value:
    """The rows of ``x`` at ``rows``."""
    return gather(
        x, reshape(rows, shape=(*rows.shape, 1)), offset_dims=tuple(range(1, x.ndim)), collapsed_dims=(0,),
        operand_batch_dims=(), indices_batch_dims=(), start_index_map=(0,), slice_sizes=(1, *x.shape[1:]), mode=mode,
    )  # fmt: skip


_MOST_RUNS = 8


def _rows(x: Value, sources: Sequence[int]) -> Value:
    """Row ``sources[t]`` at place ``t``, zeros for -1: runs of consecutive rows are copied as one."""
    runs: list[list[int]] = []
    for source in sources:
        follows = runs and source == (runs[-1][-1] + 1 if runs[-1][-1] >= 0 else -1)
        if follows:
            runs[-1].append(source)
        else:
            runs.append([source])
    if len(runs) > _MOST_RUNS:
        index = np.asarray(sources, np.int32)
        return _take(x, Array(index, TensorType(index.shape, index.dtype)), "zero")
    parts = []
    for run in runs:
        if run[0] < 0:
            parts.append(zeros(x.type.with_(shape=(len(run), *x.shape[1:]))))
        else:
            limits = (run[0] + len(run), *x.shape[1:])
            parts.append(slice_(x, starts=(run[0], *[0] * (x.ndim - 1)), limits=limits, strides=(1,) * x.ndim))
    return parts[0] if len(parts) == 1 else concatenate(*parts, dim=0)


ppermute: Op = _collective(
    "ppermute",
    collective="permute",
    type=_ppermute_type,
    transpose=lambda op, cts, inputs, params: [
        op(cts[0], **{**params, "permutation": tuple(sorted((t, s) for s, t in params["permutation"]))})
    ],
    stack=_ppermute_stack,
)

# pmax and pmin


def _extreme_type(op: str) -> Callable[..., TensorType]:
    def rule(x: TensorType, axes: Axes) -> TensorType:
        _check_axes(op, axes)
        need_varying(op, x, axes)
        return x.with_(varying=_without(x, axes))

    return rule


def _extreme_derivative(t: Value, out: Value, x: Value, axes: Axes) -> Value:
    """The tangents where the extreme is taken, shared equally between ties."""
    here_ = convert(eq(x, out), dtype=x.dtype, weak=False)
    return psum(mul(t, div(here_, make_varying(psum(here_, axes=axes), here_.type.varying))), axes=axes)


def _extreme_stack(
    op: Callable[[], Op], reduce: Op, axis: str, size: int, x: Value, stacked: bool, params: Params
) -> tuple[Value, bool]:
    rest = _rest(params, axis)
    x = reduce(x, axes=(0,)) if stacked else x
    return (op()(x, **rest) if rest["axes"] else x), False


def _extreme(name: str, reduce: Op, op: Callable[[], Op]) -> Op:
    return _collective(
        name,
        memory=Memory.IN_PLACE,
        collective="all_reduce",
        type=_extreme_type(name),
        linear=Linearity.NONE,
        jvp=Derivatives(_extreme_derivative),
        transpose=No("an extreme is not linear"),
        stack=partial(_extreme_stack, op, reduce),
        cost=_add_cost,
    )


pmax: Op = _extreme("pmax", reduce_max, lambda: pmax)
pmin: Op = _extreme("pmin", reduce_min, lambda: pmin)

# finish_sum: outside of a shard_map, a partial sum becomes the sum


def _finish_type(x: TensorType, axes: Axes) -> TensorType:
    return x.with_(unreduced=tuple(axis for axis in x.unreduced if axis not in axes))


finish_sum: Op = _collective(
    "finish_sum",
    structure=Structure.SUMMED,
    type=_finish_type,
    transpose=lambda op, cts, inputs, params: [cts[0]],
    evaluate=lambda xp, x, axes: x,
    cost=_add_cost,
)

# axis_index


def _axis_index_type(axes: Axes, sizes: tuple[int, ...]) -> TensorType:
    _check_axes("axis_index", axes, sizes)
    return TensorType((), dtypes.INT32, varying=tuple(sorted(axes)))


def _axis_index_stack(axis: str, size: int, x: Value, stacked: bool, params: Params) -> tuple[Value, bool]:
    """The position along several axes is a number with a digit for each; that along one of them is the row."""
    place: Value | None = None
    for other, count in zip(params["axes"], params["sizes"], strict=True):
        rows = other == axis
        digit = iota(dtype=dtypes.INT32, shape=(size,), dim=0) if rows else axis_index(axes=(other,), sizes=(count,))
        place = digit if place is None else add(scaled(place, count), digit)
    return place, True


axis_index: Op = _collective(
    "axis_index",
    fusion=Fusion.CHEAP,
    type=_axis_index_type,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=No("it has no operands"),
    batch=No("it has no operands"),
    cost=lambda operands, results, params: Cost(0.0, 0.0),
    stack=_axis_index_stack,
)


SILENT = (pbroadcast, pinvariant, pscatter, axis_index)  # nothing is sent


def meets(program: Program, axis: str) -> bool:
    """Whether the devices along an axis wait for each other anywhere in the program; in a kernel they may."""
    return any(
        (eqn.op.stack is not None and eqn.op not in SILENT and axis in eqn.params["axes"])
        or (eqn.op.name == "pallas_call" and _whole(axis) in {_whole(name) for name, _ in eqn.params["mesh"]})
        or any(meets(region, axis) for _, region in eqn.regions())
        for eqn in program.eqns
    )


def _whole(axis: str) -> str:
    """The axis of a mesh that an axis is, or is a part of."""
    from meshwright.sharding.spec import read_axis  # few programs have a kernel

    return read_axis(axis).name

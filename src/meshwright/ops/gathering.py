"""gather and scatter_add, each the other's transpose, and the rules that all scatters share.

``ops.index_windows`` says what the windows are that they read and write, and what the modes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Unpack

import numpy as np

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.linearity import Does, LinearGroup, linear_in
from meshwright.core.op import Cost, Linear, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import zeros
from meshwright.ops.index_windows import (
    GatherParams,
    ScatterParams,
    Windows,
    check_windows,
    plan_windows,
    window_starts,
    windows_inside,
)
from meshwright.ops.rules import bad_operands
from meshwright.ops.shape import batch_first

_GATHER_MODES = ("clip", "fill", "zero", "promise")
_SCATTER_MODES = ("clip", "drop", "promise")
# The mode that reads, or writes, exactly the windows that the other op wrote, or read.
_READING = {"clip": "clip", "drop": "zero", "promise": "promise"}
_WRITING = {"clip": "clip", "fill": "drop", "zero": "drop", "promise": "promise"}

# Types and values of gathers and scatters


@lru_cache(maxsize=4096)
def _gather_type(x: TensorType, indices: TensorType, **params: Unpack[GatherParams]) -> TensorType:
    types, sizes, windows = (x, indices), params["slice_sizes"], Windows.of_gather(params)
    rank = max(indices.ndim - 1, 0) + len(windows.window_dims)
    check_windows("gather", types, windows, rank, params["mode"], _GATHER_MODES)
    if len(sizes) != x.ndim or any(not 0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)):
        raise bad_operands("gather", types, f"windows of {sizes} do not fit into {x.shape}", f"slice_sizes={x.shape}")
    along = windows.along(x.ndim)
    if any(u is None and n != 1 for u, n in zip(along, sizes, strict=True)):
        raise bad_operands(
            "gather",
            types,
            f"windows of {sizes} have more than one element along a collapsed or batch dim",
            f"slice_sizes={tuple(1 if u is None else n for u, n in zip(along, sizes, strict=True))}",
        )
    return TensorType(_gathered_shape(x.ndim, indices.shape, params), x.dtype, x.weak)


def _gathered_shape(x_rank: int, indices: Shape, params: Any) -> Shape:
    """The shape of what a gather reads: the dims of windows, and between them those of index vectors."""
    along = Windows.of_gather(params).along(x_rank)
    offsets = {u: n for u, n in zip(along, params["slice_sizes"], strict=True) if u is not None}
    batch = iter(indices[:-1])
    rank = len(indices) - 1 + len(offsets)
    return tuple(offsets[r] if r in offsets else next(batch) for r in range(rank))


def scatter_type(op: str, allowed: Sequence[dtypes.DType]) -> Callable[..., TensorType]:
    """The type rule of a scatter: that of its operand."""

    @lru_cache(maxsize=4096)
    def rule(x: TensorType, indices: TensorType, updates: TensorType, **params: Unpack[ScatterParams]) -> TensorType:
        types, windows = (x, indices, updates), Windows.of_scatter(params)
        check_windows(op, types, windows, updates.ndim, params["mode"], _SCATTER_MODES)
        if updates.dtype != x.dtype or x.dtype not in allowed:
            taken = ", ".join(map(dtypes.short_name, allowed))
            why = f"{op} takes an operand and updates of one dtype: {taken}"
            raise bad_operands(op, types, why, "updates.astype(x.dtype)")
        batch = tuple(n for u, n in enumerate(updates.shape) if u not in windows.window_dims)
        if batch != indices.shape[:-1]:
            raise bad_operands(
                op,
                types,
                f"there are {indices.shape[:-1]} index vectors and {batch} windows in the updates",
                f"mnp.broadcast_to(updates, …) to {indices.shape[:-1]} windows",
            )
        sizes = windows.sizes(x.ndim, updates.shape)
        along = windows.along(x.ndim)
        if any(n > size for n, size, u in zip(sizes, x.shape, along, strict=True) if u is not None):
            raise bad_operands(op, types, f"windows of {sizes} do not fit into {x.shape}", "smaller updates")
        return x if x.weak == updates.weak else x.with_(weak=False)

    return rule


def fill_value(dtype: dtypes.DType) -> Any:
    """What mode ``fill`` reads out of bounds."""
    if dtypes.is_inexact(dtype):
        return float("nan")
    if dtype == dtypes.BOOL:
        return True
    if dtype == dtypes.KEY:
        return np.array(((0xFFFFFFFF, 0xFFFFFFFF),), dtypes.KEY)
    info = dtypes.integer_limits(dtype)
    return int(info.min) if info.min < 0 else int(info.max)


def _gather_evaluate(xp: Any, x: Any, indices: Any, **params: Any) -> Any:
    plan = plan_windows(Windows.of_gather(params), x.shape, indices.shape, params["slice_sizes"])
    mode = params["mode"]
    valid = windows_inside(xp, plan, indices) if mode in ("fill", "zero") else None
    fill = fill_value(x.dtype) if mode == "fill" else 0
    if plan.dims:
        out = xp.gather_windows(x, window_starts(xp, plan, indices), plan.dims, plan.sizes, valid, fill)
    else:
        out = xp.broadcast_to(x, plan.batch + x.shape)
        if valid is not None:
            inside = xp.reshape(valid, plan.batch + (1,) * x.ndim)
            out = xp.where(inside, out, xp.asarray(fill, dtype=x.dtype))
    return xp.permute_dims(out[plan.squeeze], plan.back)


def scatter_evaluate(how: str) -> Callable[..., Any]:
    """Evaluation of the scatter that combines by ``how``."""

    def evaluate(xp: Any, x: Any, indices: Any, updates: Any, **params: Any) -> Any:
        windows = Windows.of_scatter(params)
        plan = plan_windows(windows, x.shape, indices.shape, windows.sizes(x.ndim, updates.shape))
        clipped = params["mode"] == "clip" and not plan.empty
        valid = None if clipped else windows_inside(xp, plan, indices)
        ordered = xp.permute_dims(updates, plan.order)[plan.expand]
        return xp.scatter_windows(x, window_starts(xp, plan, indices), plan.dims, ordered, how, valid, params["unique"])

    return evaluate


# gather


def _gather_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Whole window dims and batch dims pass. An indexed dim may stay split: each device reads what it holds, zeros
    elsewhere, and the sum of all is the result; its indices must be shifted for that."""
    build = FactorBuilder(operands, results)
    windows, x = Windows.of_gather(params), operands[0]
    batch_of = dict(zip(windows.indices_batch, windows.operand_batch, strict=True))
    dim_along = {u: d for d, u in enumerate(windows.along(x.ndim)) if u is not None}
    batch = 0
    for r, size in enumerate(results[0].shape):
        if r not in dim_along:
            places = [(1, batch), (2, r)]
            if batch in batch_of:
                places.insert(0, (0, batch_of[batch]))
            build.add(size, *places)
            batch += 1
            continue
        d = dim_along[r]
        if size == x.shape[d]:
            build.add(size, (0, d), (2, r))
        elif size == 1:
            build.add(x.shape[d], (0, d), kind="reduced", guarded=True)
            build.add(1, (2, r), kind="replicated")
        else:
            build.add(x.shape[d], (0, d), (2, r), kind="replicated", blocked=True)
    for d in windows.dropped:
        build.add(x.shape[d], (0, d), kind="reduced" if x.shape[d] > 1 else "replicated", guarded=x.shape[d] > 1)
    build.add(operands[1].shape[-1], (1, operands[1].ndim - 1), kind="replicated")
    return build.build()


def _gather_groups(operands: Types, results: Types, params: Params) -> tuple[LinearGroup, ...]:
    """What mode ``fill`` reads out of bounds is added up with the rest: NaN stays NaN, and integers do not stay."""
    filled = params["mode"] == "fill" and not dtypes.is_inexact(operands[0].dtype)
    return () if filled else (LinearGroup((0,), Does.MOVES),)


def _gather_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    x, indices = primals
    out = op(x, indices, **params)
    if tangents[0] is None:
        return [out], [None]
    mode = "zero" if params["mode"] == "fill" else params["mode"]
    return [out], [op(tangents[0], indices, **{**params, "mode": mode})]


def _gather_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, indices = inputs
    scatter = Windows.of_gather(params).scatter(_WRITING[params["mode"]], unique=False)
    return [scatter_add(zeros(x.type), indices, cts[0], **scatter), None]


def _gather_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    windows, sizes = Windows.of_gather(params), params["slice_sizes"]
    if not batched[1]:
        windows, sizes = windows.in_batch_of_operands(), (size, *sizes)
    elif not batched[0]:
        windows = windows.in_batch_of_indices()
    else:
        windows, sizes = windows.in_batch(), (1, *sizes)
    return [op(*args, **windows.gather(sizes, params["mode"]))], [True]


def _gather_localize(params: Params, operands: Types, results: Types) -> Params:
    along = Windows.of_gather(params).along(operands[0].ndim)
    return {**params, "slice_sizes": tuple(1 if u is None else results[0].shape[u] for u in along)}


def _gather_samples() -> list[Sample]:
    rows = Windows((2,), (0,), (), (), (0,))
    blocks = Windows((0, 2), (1,), (), (), (2, 1))
    beside = Windows((2,), (2,), (0,), (0,), (2,))
    crossed = Windows((0,), (), (0, 2), (1, 0), (1,))
    whole = Windows((1, 2), (), (), (), (1, 0))
    none = Windows((1, 2), (), (), (), ())
    element = Windows((), (0,), (), (), (0,))
    scalar = Windows((), (0, 1), (), (), (0, 1))

    def sample(x: Shape, indices: Shape, params: dict[str, Any], low: int, high: int, dtype: Any = None) -> Sample:
        return Sample((Operand(x, dtype), Operand(indices, dtypes.INT32, low, high)), params)

    return [
        sample((5, 4), (2, 3, 1), rows.gather((1, 4), "clip"), -2, 7),
        sample((5, 4), (2, 3, 1), rows.gather((1, 4), "fill"), 0, 4),
        sample((5, 4), (2, 3, 1), rows.gather((1, 4), "zero"), -2, 7),
        sample((5, 4), (2, 3, 1), rows.gather((1, 4), "promise"), 0, 4),
        *(sample((5, 4), (2, 3, 1), rows.gather((1, 4), "fill"), -2, 7, t) for t in (dtypes.INT32, dtypes.UINT8)),
        sample((4, 3, 6), (5, 2), blocks.gather((4, 1, 3), "clip"), -1, 5),
        sample((4, 3, 6), (5, 2), blocks.gather((2, 1, 3), "zero"), -1, 5),
        sample((3, 4, 5), (3, 2, 1), beside.gather((1, 4, 1), "clip"), -1, 6),
        sample((3, 4, 2), (2, 3, 1), crossed.gather((1, 2, 1), "zero"), -1, 4),
        sample((4, 3), (2, 2), whole.gather((1, 3), "zero"), -1, 3),
        sample((2, 3), (4, 0), none.gather((2, 2), "clip"), 0, 0),
        sample((2, 3), (2,), scalar.gather((1, 1), "clip"), 0, 2),
        Sample((Operand((5,)), Operand((4, 1), dtypes.UINT8, 0, 9)), element.gather((1,), "clip")),
    ]


gather: Op = define_op(
    "gather",
    type=_gather_type,
    factors=_gather_factors,
    linear=_gather_groups,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    split=Split(Across.READ),
    fusion=Fusion.ELEMENTWISE,
    evaluate=_gather_evaluate,
    cost=lambda operands, results, params: Cost(0.0, float(2 * results[0].nbytes + operands[1].nbytes)),
    localize=_gather_localize,
    samples=_gather_samples,
)


def read_windows(x: Value, indices: Value, **params: Any) -> Value:
    """A gather whose windows may be larger than the array if nothing is read: the result has no elements then."""
    if any(n > size for n, size in zip(params["slice_sizes"], x.shape, strict=True)):
        shape = _gathered_shape(x.ndim, indices.shape, params)
        if 0 in shape:
            return zeros(TensorType(shape, x.dtype, x.type.weak))
    return gather(x, indices, **params)


# scatter_add, and the rules of all scatters


def scatter_factors(
    kind: str = "reduced", combine: str = "sum", once: bool = False
) -> Callable[[Types, Types, Params], Factors]:
    """The factor rule of a scatter; ``kind`` is that of the dims of index vectors that are not batch dims.

    ``once``: the operand takes part in the combination, so that it must stand on one of the devices only.
    """

    def rule(operands: Types, results: Types, params: Params) -> Factors:
        build = FactorBuilder(operands, results)
        windows, (x, _, updates) = Windows.of_scatter(params), operands
        batch_of = dict(zip(windows.indices_batch, windows.operand_batch, strict=True))
        dim_along = {u: d for d, u in enumerate(windows.along(x.ndim)) if u is not None}
        batch = 0
        for u, size in enumerate(updates.shape):
            if u in dim_along:
                d = dim_along[u]
                if size == x.shape[d]:
                    build.add(size, (0, d), (2, u), (3, d))
                else:
                    build.add(x.shape[d], (0, d), (3, d), kind="replicated")
                    build.add(size, (2, u), kind="replicated")
                continue
            if batch in batch_of:
                d = batch_of[batch]
                build.add(size, (0, d), (1, batch), (2, u), (3, d))
            else:
                build.add(size, (1, batch), (2, u), kind=kind, guarded=once)
            batch += 1
        for d in windows.dropped:
            build.add(x.shape[d], (0, d), (3, d), guarded=x.shape[d] > 1)
        build.add(operands[1].shape[-1], (1, operands[1].ndim - 1), kind="replicated")
        return build.build(combine, fillable=True)

    return rule


def scatter_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """One scatter into a batch of operands: a whole window dim more, or with batched indices, a batch dim more."""
    windows = Windows.of_scatter(params)
    x, indices, updates = args
    x, updates = batch_first(x, batched[0], size), batch_first(updates, batched[2], size)
    windows = windows.in_batch() if batched[1] else windows.in_batch_of_operands()
    return [op(x, indices, updates, **windows.scatter(params["mode"], params["unique"]))], [True]


def scatter_cost(flops: float) -> Callable[[Types, Types, Params], Cost]:
    """``flops`` per update; the operand is updated in place, so what is not updated is not touched."""

    def rule(operands: Types, results: Types, params: Params) -> Cost:
        _, indices, updates = operands
        return Cost(flops * updates.size, float(3 * updates.nbytes + indices.nbytes))

    return rule


def read_back(x: Value, indices: Value, updates: TensorType, params: Params) -> Value:
    """The windows of ``x`` that a scatter of ``updates`` with these params writes; zeros where it writes nothing."""
    if 0 in x.shape:
        return zeros(updates.with_(dtype=x.dtype))
    windows = Windows.of_scatter(params)
    sizes = windows.sizes(x.ndim, updates.shape)
    return read_windows(x, indices, **windows.gather(sizes, _READING[params["mode"]]))


def _scatter_add_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    x, indices, _ = primals
    out, (t, _, t_updates) = op(*primals, **params), tangents
    if t_updates is None:
        return [out], [t]
    return [out], [op(zeros(x.type) if t is None else t, indices, t_updates, **params)]


def _scatter_add_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, indices, updates = inputs
    return [
        cts[0] if isinstance(x, Linear) else None,
        None,
        read_back(cts[0], indices, updates.type, params) if isinstance(updates, Linear) else None,
    ]


def _distinct_rows(arrays: list[Any]) -> list[Any]:
    """Index vectors made distinct by counting up along the first dim of indices."""
    x, indices, updates = arrays
    count = np.arange(indices.shape[0], dtype=indices.dtype).reshape(-1, *(1,) * (indices.ndim - 1))
    return [x, np.broadcast_to(count, indices.shape).copy(), updates]


def scatter_samples(*, repeated: dtypes.DType | None = None) -> list[Sample]:
    """Scatters with distinct and with repeated indices; the latter at the dtype ``repeated``, if given."""
    rows = Windows((1,), (0,), (), (), (0,))
    grid = Windows((2,), (0,), (), (), (0,))
    blocks = Windows((0, 2), (1,), (), (), (2, 1))
    beside = Windows((2,), (2,), (0,), (0,), (2,))
    crossed = Windows((0,), (), (0, 2), (1, 0), (1,))
    element = Windows((), (0,), (), (), (0,))
    scalar = Windows((), (0, 1), (), (), (0, 1))

    def sample(x: Shape, indices: Shape, updates: Shape, params: dict[str, Any], low: int, high: int) -> Sample:
        dtype = None if params["unique"] else repeated
        index = Operand(indices, dtypes.INT32, low, high)
        prepare = _distinct_rows if params["unique"] else None
        return Sample((Operand(x, dtype), index, Operand(updates, dtype)), params, prepare)

    return [
        sample((5, 4), (3, 1), (3, 4), rows.scatter("clip", True), 0, 4),
        sample((2, 4), (3, 1), (3, 4), rows.scatter("drop", True), 0, 4),
        sample((5, 4), (6, 1), (6, 4), rows.scatter("promise", False), 0, 4),
        sample((5, 4), (2, 3, 1), (2, 3, 4), grid.scatter("drop", False), -2, 7),
        sample((4, 3, 6), (5, 2), (4, 5, 3), blocks.scatter("drop", False), -1, 5),
        sample((4, 3, 6), (5, 2), (2, 5, 3), blocks.scatter("drop", False), 0, 2),
        sample((3, 4, 5), (3, 2, 1), (3, 2, 4), beside.scatter("drop", False), -1, 6),
        sample((3, 4, 2), (2, 3, 1), (2, 2, 3), crossed.scatter("drop", False), -1, 4),
        sample((2, 3), (2,), (), scalar.scatter("drop", False), 0, 1),
        sample((5,), (6, 1), (6,), element.scatter("clip", False), 0, 4),
    ]


scatter_add: Op = define_op(
    "scatter_add",
    type=scatter_type("scatter_add", dtypes.NUMBERS),
    factors=scatter_factors(once=True),
    linear=linear_in(0, 2, does=Does.ADDS),
    jvp=_scatter_add_jvp,
    transpose=_scatter_add_transpose,
    batch=scatter_batch,
    split=Split(Across.WRITTEN),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=scatter_evaluate("add"),
    cost=scatter_cost(1.0),
    dtypes=dtypes.NUMBERS,
    samples=scatter_samples,
)

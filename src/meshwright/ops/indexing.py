"""Reading and writing at places known only when the program runs.

``dynamic_slice`` and ``dynamic_update_slice`` have one window, which begins at scalar operands and is moved into bounds
where it would stick out; ``gather`` and the scatters have many.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.linearity import Does, linear_in
from meshwright.core.op import Cost, Linear, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import convert, reshape, zeros
from meshwright.ops.gathering import gather, scatter_add
from meshwright.ops.index_windows import Windows
from meshwright.ops.rules import bad_operands, keep_weak, linear_in_first_jvp, move_cost
from meshwright.ops.scattering import scatter_max, scatter_min, scatter_mul, scatter_set
from meshwright.ops.shape import batch_first, concatenate

__all__ = [
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_set",
]


def _check_starts(op: str, types: Types, x: TensorType, starts: Types) -> None:
    if len(starts) != x.ndim or any(t.ndim or not dtypes.is_integer(t.dtype) for t in starts):
        raise bad_operands(
            op,
            types,
            f"a window of a rank-{x.ndim} array begins at {x.ndim} integer scalars",
            f"mw.lax.{op}(x, …) with one mnp.int32 start per dim",
        )


def _index_vectors(starts: Sequence[Value], batched: Sequence[bool], size: int) -> Value:
    """The starts of a batch as index vectors: one row per example, one column per dim."""
    given = {x.dtype for x in starts}
    wide = any(dtype in (dtypes.INT64, dtypes.UINT32, dtypes.UINT64) for dtype in given)
    dtype = given.pop() if len(given) == 1 else dtypes.INT64 if wide else dtypes.INT32
    alike = [x if x.dtype == dtype else convert(x, dtype=dtype, weak=False) for x in starts]
    columns = [reshape(batch_first(x, b, size), shape=(size, 1)) for x, b in zip(alike, batched, strict=True)]
    return concatenate(*columns, dim=1)


def _first(like: Sequence[Value]) -> Value:
    return zeros(TensorType((), like[0].dtype if like else dtypes.INT32))


# dynamic_slice


def _dynamic_slice_type(x: TensorType, *starts: TensorType, sizes: Shape) -> TensorType:
    _check_starts("dynamic_slice", (x, *starts), x, starts)
    if len(sizes) != x.ndim or any(not 0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)):
        raise bad_operands("dynamic_slice", (x, *starts), f"a slice of {sizes} does not fit", f"sizes={x.shape}")
    return keep_weak(x, sizes)


def _dynamic_slice_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim, (size, kept) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        places = ((0, dim), (len(operands), dim))
        if size == kept:
            build.add(size, *places)
        else:
            build.add(size, *places, kind="replicated", blocked=True)
    return build.build()


def _dynamic_slice_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, *starts = inputs
    return [dynamic_update_slice(zeros(x.type), cts[0], *starts), *[None] * len(starts)]


def _dynamic_slice_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    x, *starts = args
    sizes = params["sizes"]
    if not any(batched[1:]):
        return [op(x, _first(starts), *starts, sizes=(size, *sizes))], [True]
    indices = _index_vectors(starts, batched[1:], size)
    rank = len(starts)
    windows = Windows(tuple(range(rank)), (), (), (), tuple(range(rank)))
    windows = windows.in_batch() if batched[0] else windows.in_batch_of_indices()
    if batched[0]:
        sizes = (1, *sizes)
    return [gather(x, indices, **windows.gather(sizes, "clip"))], [True]


_STARTS = (Operand((), dtypes.INT32, -2, 7), Operand((), dtypes.INT32, -2, 7))

dynamic_slice: Op = define_op(
    "dynamic_slice",
    type=_dynamic_slice_type,
    factors=_dynamic_slice_factors,
    linear=linear_in(0, does=Does.MOVES),
    jvp=linear_in_first_jvp,
    transpose=_dynamic_slice_transpose,
    batch=_dynamic_slice_batch,
    split=Split(Across.READ_AT),
    evaluate=lambda xp, x, *starts, sizes: xp.dynamic_slice(x, starts, sizes),
    cost=move_cost,
    localize=lambda params, operands, results: {"sizes": results[0].shape},
    samples=lambda: [
        Sample((Operand((4, 5)), *_STARTS), {"sizes": (2, 3)}),
        Sample((Operand((4, 6)), *_STARTS), {"sizes": (4, 2)}),
        Sample((Operand((4, 6)), *_STARTS), {"sizes": (4, 6)}),
        Sample((Operand((5,)), Operand((), dtypes.UINT8, 0, 9)), {"sizes": (2,)}),
        Sample((Operand(()),), {"sizes": ()}),
    ],
)

# dynamic_update_slice


def _dynamic_update_slice_type(x: TensorType, update: TensorType, *starts: TensorType) -> TensorType:
    types = (x, update, *starts)
    _check_starts("dynamic_update_slice", types, x, starts)
    if update.dtype != x.dtype:
        raise bad_operands("dynamic_update_slice", types, "array and update differ in dtype", "update.astype(x.dtype)")
    if update.ndim != x.ndim or any(n > size for n, size in zip(update.shape, x.shape, strict=True)):
        raise bad_operands(
            "dynamic_update_slice", types, "the update does not fit into the array", "an update of the array's rank"
        )
    return x if x.weak == update.weak else x.with_(weak=False)


def _dynamic_update_slice_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Along dims that are written in part, what is written and what it is written into move between neighbours."""
    build = FactorBuilder(operands, results)
    result = len(operands)
    for dim, (size, written) in enumerate(zip(operands[0].shape, operands[1].shape, strict=True)):
        if size == written:
            build.add(size, (0, dim), (1, dim), (result, dim))
        else:
            build.add(size, (0, dim), (result, dim), kind="permuted")
            build.add(written, (1, dim), kind="permuted")
    return build.build()


def _dynamic_update_slice_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    x, update, *starts = primals
    out, (t, t_update) = op(*primals), tangents[:2]
    if t is None and t_update is None:
        return [out], [None]
    t = zeros(x.type) if t is None else t
    return [out], [op(t, zeros(update.type) if t_update is None else t_update, *starts)]


def _dynamic_update_slice_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, (x, update, *starts) = cts[0], inputs
    return [
        op(ct, zeros(update.type), *starts) if isinstance(x, Linear) else None,
        dynamic_slice(ct, *starts, sizes=update.type.shape) if isinstance(update, Linear) else None,
        *[None] * len(starts),
    ]


def _dynamic_update_slice_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    x, update, *starts = args
    x, update = batch_first(x, batched[0], size), batch_first(update, batched[1], size)
    if not any(batched[2:]):
        return [op(x, update, _first(starts), *starts)], [True]
    rank = len(starts)
    windows = Windows(tuple(range(rank)), (), (), (), tuple(range(rank))).in_batch()
    indices = _index_vectors(starts, batched[2:], size)
    return [scatter_set(x, indices, update, **windows.scatter("clip", unique=True))], [True]


def _dynamic_update_slice_cost(operands: Types, results: Types, params: Params) -> Cost:
    """The array is updated in place: the update is read and written."""
    return Cost(0.0, 2.0 * operands[1].nbytes)


dynamic_update_slice: Op = define_op(
    "dynamic_update_slice",
    type=_dynamic_update_slice_type,
    factors=_dynamic_update_slice_factors,
    linear=linear_in(0, 1, does=Does.MOVES),
    jvp=_dynamic_update_slice_jvp,
    transpose=_dynamic_update_slice_transpose,
    batch=_dynamic_update_slice_batch,
    split=Split(Across.WRITTEN_AT),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=lambda xp, x, update, *starts: xp.dynamic_update_slice(x, update, starts),
    cost=_dynamic_update_slice_cost,
    samples=lambda: [
        Sample((Operand((4, 5)), Operand((2, 3)), *_STARTS)),
        Sample((Operand((4, 6)), Operand((4, 2)), *_STARTS)),
        Sample((Operand((4, 6)), Operand((4, 6)), *_STARTS)),
        Sample((Operand((5,)), Operand((2,)), Operand((), dtypes.UINT8, 0, 9))),
        Sample((Operand(()), Operand(()))),
    ],
)

"""Sorting, and the largest elements of rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Split
from meshwright.core.op import Cost, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import TensorType
from meshwright.ops.basic import pointwise_batch, reshape
from meshwright.ops.gathering import read_windows
from meshwright.ops.rules import bad_operands, check_dtype, keep_weak, not_linear, traffic
from meshwright.ops.shape import iota


def take_along(x: Value, places: Value, dim: int) -> Value:
    """Along ``dim``, the elements of ``x`` at ``places``, which has the shape of the result."""
    others = tuple(d for d in range(x.ndim) if d != dim)
    return read_windows(
        x,
        reshape(places, shape=(*places.shape, 1)),
        offset_dims=(),
        collapsed_dims=(dim,),
        operand_batch_dims=others,
        indices_batch_dims=others,
        start_index_map=(dim,),
        slice_sizes=(1,) * x.ndim,
        mode="promise",
    )


# sort


def _sort_type(first: TensorType, *others: TensorType, dim: int, num_keys: int) -> tuple[TensorType, ...]:
    types = (first, *others)
    if any(t.dtype == dtypes.KEY for t in types[:num_keys]):
        raise bad_operands("sort", types, "random keys have no order", "sort by random.bits(key), which has")
    if any(t.shape != types[0].shape for t in types):
        raise bad_operands("sort", types, "arrays sorted together have one shape", "mnp.broadcast_to(x, y.shape)")
    if not 0 <= dim < types[0].ndim:
        raise bad_operands("sort", types, f"there is no dim {dim}", f"dim between 0 and {types[0].ndim - 1}")
    if not 1 <= num_keys <= len(types):
        raise bad_operands(
            "sort", types, f"{num_keys} of {len(types)} arrays cannot be keys", f"num_keys between 1 and {len(types)}"
        )
    return tuple(keep_weak(t, t.shape) for t in types)


def _sort_factors(operands: Types, results: Types, params: Params) -> Factors:
    """All dims pass but the sorted one, which must be whole; alone among dims of size 1 it is not propagated."""
    build = FactorBuilder(operands, results)
    shape, dim = operands[0].shape, params["dim"]
    alone = all(n == 1 for d, n in enumerate(shape) if d != dim)
    for d, size in enumerate(shape):
        places = [(tensor, d) for tensor in range(2 * len(operands))]
        build.add(size, *places, kind="replicated" if d == dim else "", blocked=d == dim and alone)
    return build.build()


def _sort_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Sort the places along, and rearrange the tangents as the values were."""
    dim = params["dim"]
    *outs, places = op(*primals, iota(dtype=dtypes.INT32, shape=primals[0].shape, dim=dim), **params)
    return outs, [None if t is None else take_along(t, places, dim) for t in tangents]


def _sort_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    return pointwise_batch(op, size, args, batched, {**params, "dim": params["dim"] + 1})


def _keys(xp: Any, x: Any) -> list[Any]:
    """Arrays that NumPy orders as XLA orders ``x``: NaN last, -0.0 beside 0.0, complex by real, then imaginary part."""
    if dtypes.is_complex(x.dtype):
        return [xp.real(x), xp.imag(x)]
    return [_sortable(xp, x)]


def _sortable(xp: Any, x: Any) -> Any:
    return xp.astype(x, dtypes.FLOAT32) if dtypes.is_float(x.dtype) and x.dtype.itemsize <= 2 else x


def _sort_evaluate(xp: Any, *arrays: Any, dim: int, num_keys: int) -> tuple[Any, ...]:
    first = arrays[0]
    if len(arrays) == 1 and not dtypes.is_complex(first.dtype):
        # Among floats, stability tells -0.0 from 0.0; equal integers are the same.
        ordered = xp.sort(_sortable(xp, first), axis=dim, stable=dtypes.is_float(first.dtype))
        return (xp.astype(ordered, first.dtype),)
    keys = [key for x in arrays[:num_keys] for key in _keys(xp, x)]
    order = xp.argsort(keys[-1], axis=dim, stable=True)
    for key in reversed(keys[:-1]):  # the most significant last, each keeping the order so far among equals
        sorted_key = xp.take_along_axis(key, order, axis=dim)
        order = xp.take_along_axis(order, xp.argsort(sorted_key, axis=dim, stable=True), axis=dim)
    return tuple(xp.take_along_axis(x, order, axis=dim) for x in arrays)


def _sort_cost(operands: Types, results: Types, params: Params) -> Cost:
    """A comparison of each element per halving of the sorted dim."""
    n = operands[0].shape[params["dim"]]
    return Cost(operands[0].size * log2(max(n, 2)) * params["num_keys"], traffic(operands, results))


def _sort_samples() -> list[Sample]:
    digits = Operand((3, 6), dtypes.INT32, 0, 2)
    return [
        Sample((Operand((3, 4)),), {"dim": 1, "num_keys": 1}),
        Sample((Operand((3, 4)),), {"dim": 0, "num_keys": 1}),
        Sample((Operand((5,)), Operand((5,), dtypes.FLOAT32)), {"dim": 0, "num_keys": 1}),
        Sample((digits, Operand((3, 6))), {"dim": 1, "num_keys": 1}),
        Sample((digits, Operand((3, 6)), Operand((3, 6))), {"dim": 1, "num_keys": 2}),
        Sample((Operand((1, 4)),), {"dim": 1, "num_keys": 1}),
    ]


sort: Op = define_op(
    "sort",
    type=_sort_type,
    factors=_sort_factors,
    linear=Linearity.NONE,
    jvp=_sort_jvp,
    transpose=not_linear("sort"),
    batch=_sort_batch,
    fusion=Fusion.ALONE,
    evaluate=_sort_evaluate,
    cost=_sort_cost,
    samples=_sort_samples,
)

# top_k

_ORDERED = (dtypes.BOOL, *dtypes.INTEGERS, *dtypes.FLOATS)


def _top_k_type(x: TensorType, k: int) -> tuple[TensorType, TensorType]:
    check_dtype("top_k", [x], x.dtype, _ORDERED)
    if x.ndim == 0 or not 0 <= k <= x.shape[-1]:
        rows = "a scalar has no rows" if x.ndim == 0 else f"its rows have {x.shape[-1]} elements, not {k}"
        raise bad_operands("top_k", [x], rows, f"k={x.shape[-1] if x.ndim else 1} on a row of that length")
    shape = (*x.shape[:-1], k)
    return keep_weak(x, shape), TensorType(shape, dtypes.INT32)


def _top_k_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    *rows, last = operands[0].shape
    for dim, size in enumerate(rows):
        build.add(size, (0, dim), (1, dim), (2, dim))
    dim = len(rows)
    build.add(last, (0, dim), (1, dim), (2, dim), kind="replicated", blocked=True)
    return build.build()


def _top_k_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    values, places = op(*primals, **params)
    t = tangents[0]
    return [values, places], [None if t is None else take_along(t, places, t.ndim - 1), None]


def _top_k_cost(operands: Types, results: Types, params: Params) -> Cost:
    """One pass over the rows, and a heap of k."""
    return Cost(operands[0].size * log2(max(params["k"], 2)), traffic(operands, results))


top_k: Op = define_op(
    "top_k",
    type=_top_k_type,
    factors=_top_k_factors,
    linear=Linearity.NONE,
    jvp=_top_k_jvp,
    transpose=not_linear("top_k"),
    batch=lambda op, size, args, batched, params: (list(op(*args, **params)), [True, True]),
    split=Split(Across.LARGEST),
    fusion=Fusion.ALONE,
    evaluate=lambda xp, x, k: xp.top_k(x, k),
    cost=_top_k_cost,
    dtypes=_ORDERED,
    samples=lambda: [
        Sample((Operand((3, 6)),), {"k": 2}),
        Sample((Operand((5,)),), {"k": 5}),
        Sample((Operand((2, 4)),), {"k": 1}),
    ],
)

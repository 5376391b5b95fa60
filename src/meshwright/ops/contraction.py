"""dot_general; the other contraction, convolution, comes from ``convolution``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Fusion, Memory
from meshwright.core.op import Cost, Linear, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import OutSharding, Shape, TensorType
from meshwright.ops.basic import Derivatives, move_dim, transpose
from meshwright.ops.convolution import conv_general_dilated
from meshwright.ops.layout import as_primal
from meshwright.ops.rules import bad_operands, traffic

__all__ = ["blas_layout", "conv_general_dilated", "dot_general", "free_dims"]

DimPairs = tuple[tuple[int, ...], tuple[int, ...]]  # dims of the left operand, and those of the right they meet

# dot_general


def free_dims(ndim: int, *used: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of a rank-``ndim`` operand that are in none of ``used``."""
    return tuple(d for d in range(ndim) if not any(d in dims for dims in used))


@lru_cache(maxsize=1024)
def _result_dtype(x: DType, y: DType, wanted: DType | None) -> DType | None:
    """The dtype of a dot of ``x`` and ``y`` asked to return ``wanted``, or None where there is none."""
    for kind in ((dtypes.BOOL,), dtypes.INTEGERS, dtypes.FLOATS, dtypes.COMPLEXES):
        if x in kind and y in kind:
            if wanted is None:
                # FLOATS are ordered by range, so that the higher one holds the values of both. Of integers it is the
                # wider one, and the signed one of two that are as wide.
                if kind is dtypes.INTEGERS:
                    return max(x, y, key=lambda d: (d.itemsize, d in dtypes.SIGNED))
                return max(x, y, key=kind.index)
            floats = dtypes.FLOATS if kind is dtypes.INTEGERS else ()
            return wanted if wanted in kind + floats else None
    return None


def _dot_type(
    x: TensorType,
    y: TensorType,
    contract: DimPairs,
    batch: DimPairs,
    dtype: DType | None,
    out_sharding: OutSharding | None = None,
) -> TensorType:
    result = _result_dtype(x.dtype, y.dtype, dtype)
    if result is None:
        raise bad_operands(
            "dot_general",
            [x, y],
            "its operands are both integers, both floats or both complex"
            + (f", and do not give {dtypes.short_name(dtype)}" if dtype is not None else ""),
            "x.astype(y.dtype)" if dtype is None else f"mnp.matmul(x, y).astype('{dtype.name}')",
        )
    for label, (xs, ys) in (("contract", contract), ("batch", batch)):
        inside = all(0 <= d < x.ndim for d in xs) and all(0 <= d < y.ndim for d in ys)
        if len(xs) != len(ys) or not inside or any(x.shape[d] != y.shape[e] for d, e in zip(xs, ys, strict=True)):
            raise bad_operands(
                "dot_general",
                [x, y],
                f"{label} pairs dims {xs} of the left with dims {ys} of the right, which differ in number or size",
                "pair dims of equal size, e.g. contract=((1,), (0,)) for a matrix product",
            )
    if len(set(contract[0] + batch[0])) < len(contract[0] + batch[0]) or len(set(contract[1] + batch[1])) < len(
        contract[1] + batch[1]
    ):
        raise bad_operands("dot_general", [x, y], "a dim is named twice", "name each dim once, in contract or in batch")
    shape = (
        *(x.shape[d] for d in batch[0]),
        *(x.shape[d] for d in free_dims(x.ndim, contract[0], batch[0])),
        *(y.shape[d] for d in free_dims(y.ndim, contract[1], batch[1])),
    )
    return TensorType(shape, result, x.weak and y.weak)


def _dot_factors(operands: Types, results: Types, params: Params) -> Factors:
    x, y = operands
    (xc, yc), (xb, yb) = params["contract"], params["batch"]
    build = FactorBuilder(operands, results)
    out = 0
    for d, e in zip(xb, yb, strict=True):
        build.add(x.shape[d], (0, d), (1, e), (2, out))
        out += 1
    for operand, dims in ((0, free_dims(x.ndim, xc, xb)), (1, free_dims(y.ndim, yc, yb))):
        for d in dims:
            build.add(operands[operand].shape[d], (operand, d), (2, out))
            out += 1
    for d, e in zip(xc, yc, strict=True):
        build.add(x.shape[d], (0, d), (1, e), kind="reduced")
    return build.build("or" if results[0].dtype == dtypes.BOOL else "sum")


def _dot_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, y = inputs
    (xc, yc), (xb, yb) = params["contract"], params["batch"]
    if isinstance(x, Linear):
        return [_dot_cotangent(cts[0], x.type, y, (xc, yc), (xb, yb), params["dtype"], own_first=True), None]
    assert isinstance(y, Linear)
    return [None, _dot_cotangent(cts[0], y.type, x, (yc, xc), (yb, xb), params["dtype"], own_first=False)]


def _dot_cotangent(
    ct: Value,
    own: TensorType,
    other: Value,
    contract: DimPairs,
    batch: DimPairs,
    dtype: DType | None,
    own_first: bool,
) -> Value:
    """The cotangent of one operand: the result's cotangent contracted with the other operand's free dims.

    Both operand orders compute it; the one whose result has the operand's own dim order, or at least its last dim, is
    taken. If both have, the cotangent stands where the operand stood.
    """
    # Batch dims in the order they have in `own`; `ct` has them first, in the order of the params.
    by_own = sorted(range(len(batch[0])), key=batch[0].__getitem__)
    ct_batch, other_batch = tuple(by_own), tuple(batch[1][n] for n in by_own)
    own_free, other_free = free_dims(own.ndim, contract[0], batch[0]), free_dims(other.ndim, contract[1], batch[1])
    start = len(by_own) + (len(own_free) if own_first else 0)
    ct_contract = tuple(range(start, start + len(other_free)))
    # What is left of `other` are its contracted dims, in its own order.
    met = dict(zip(contract[1], contract[0], strict=True))
    own_contract = tuple(met[d] for d in sorted(contract[1]))
    own_batch = tuple(batch[0][n] for n in by_own)
    orders = {True: own_batch + own_free + own_contract, False: own_batch + own_contract + own_free}

    def fit(ct_left: bool) -> tuple[bool, bool]:
        order = orders[ct_left]
        return order != tuple(range(own.ndim)), order[-1:] != (own.ndim - 1,)

    ct_left = own_first if fit(True) == fit(False) else fit(True) < fit(False)
    if ct_left:
        operands, pairs, batches = (ct, other), (ct_contract, other_free), (ct_batch, other_batch)
    else:
        operands, pairs, batches = (other, ct), (other_free, ct_contract), (other_batch, ct_batch)
    order = orders[ct_left]
    asked = as_primal(own, (ct.type, other.type), order)
    if dtype is not None or _result_dtype(ct.dtype, other.dtype, None) != own.dtype:  # else it need not be said
        dtype = own.dtype
    out = dot_general(*operands, contract=pairs, batch=batches, dtype=dtype, **asked)
    if order == tuple(range(own.ndim)):
        return out
    return transpose(out, permutation=tuple(order.index(d) for d in range(own.ndim)))


def _with_batch(params: Params, position: int) -> Params:
    """The params of a dot that has the batch as one more dim of its result."""
    rest = {"dtype": params["dtype"]}
    if params.get("out_sharding") is not None:
        spec, mesh = params["out_sharding"]
        entries = list(spec.partitions) + [None] * (position - len(spec.partitions))
        rest["out_sharding"] = (spec.update([*entries[:position], spec.UNCONSTRAINED, *entries[position:]]), mesh)
    return rest


def _dot_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    x, y = args
    x_batched, y_batched = batched
    (xc, yc), (xb, yb) = params["contract"], params["batch"]
    xc, xb = (tuple(d + x_batched for d in dims) for dims in (xc, xb))
    yc, yb = (tuple(d + y_batched for d in dims) for dims in (yc, yb))
    if x_batched and y_batched:
        return [op(x, y, contract=(xc, yc), batch=((0, *xb), (0, *yb)), **_with_batch(params, 0))], [True]
    # The batch of one operand is one more free dim of it, the first of that operand's.
    x_free, y_free = x.ndim - len(xc) - len(xb), y.ndim - len(yc) - len(yb)
    if y_batched and not xb and (x_free == 0 or y_free == 1):
        # With the batched operand on the left the batch comes out first, and nothing else changes places.
        return [op(y, x, contract=(yc, xc), batch=((), ()), **_with_batch(params, 0))], [True]
    position = len(xb) + (0 if x_batched else x_free)
    out = op(x, y, contract=(xc, yc), batch=(xb, yb), **_with_batch(params, position))
    return [move_dim(out, position, 0)], [True]


def _dot_cost(operands: Types, results: Types, params: Params) -> Cost:
    contracted = prod(operands[0].shape[d] for d in params["contract"][0])
    per_point = 8.0 if dtypes.is_complex(results[0].dtype) else 2.0
    return Cost(per_point * results[0].size * contracted, traffic(operands, results))


class _Plan:
    """How a dot_general is a matmul: the permutation of each operand (None: as it is) and how its dims group."""

    __slots__ = ("batch", "x_free", "x_groups", "x_order", "y_free", "y_groups", "y_order")

    def __init__(self, x_ndim: int, y_ndim: int, contract: DimPairs, batch: DimPairs, by_left: bool) -> None:
        # Any order of the contracted dims will do: the one that the larger operand has needs no copy of it.
        pairs = sorted(zip(*contract, strict=True), key=lambda pair: pair[0 if by_left else 1])
        xc, yc = tuple(d for d, _ in pairs), tuple(e for _, e in pairs)
        self.batch = len(batch[0])
        self.x_free, self.y_free = free_dims(x_ndim, xc, batch[0]), free_dims(y_ndim, yc, batch[1])
        self.x_order, self.x_groups = self._arrange(batch[0], self.x_free, xc)
        self.y_order, self.y_groups = self._arrange(batch[1], yc, self.y_free)

    def _arrange(
        self, batch: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, int | None]:
        order = batch + rows + columns
        grouped = len(rows) != 1 or len(columns) != 1
        return (None if order == tuple(range(len(order))) else order), (self.batch + len(rows) if grouped else None)


_plan = lru_cache(maxsize=4096)(_Plan)


def _as_matrices(xp: Any, x: Any, order: tuple[int, ...] | None, batch: int, split: int | None) -> Any:
    """``x`` as batch dims and two more, in a layout that BLAS takes; copied only if it has another one."""
    if order is not None:
        x = xp.permute_dims(x, order)
    if split is not None:
        shape = x.shape
        x = xp.reshape(x, (*shape[:batch], prod(shape[batch:split]), prod(shape[split:])))
    return blas_layout(x) if x.__class__ is np.ndarray else x


def blas_layout(x: Any) -> Any:
    """A NumPy array whose last two dims are a matrix that BLAS takes as it is, transposed or not; else a copy."""
    if not x.flags.c_contiguous:
        (rows, columns), (row, column), item = x.shape[-2:], x.strides[-2:], x.itemsize
        by_rows = column == item and row >= columns * item
        by_columns = row == item and column >= rows * item
        if not (by_rows or by_columns or rows == 1 or columns == 1):
            return np.ascontiguousarray(x)
    return x


@lru_cache(maxsize=1024)
def _compute_dtype(x: DType, y: DType, result: DType) -> DType:
    """The dtype to compute a dot in: 8- and 16-bit floats are summed in f32 and rounded once."""
    if result == dtypes.BOOL:
        return dtypes.FLOAT32
    if dtypes.is_integer(result):
        return result
    if dtypes.is_complex(result):
        return dtypes.COMPLEX128 if dtypes.COMPLEX128 in (x, y, result) else dtypes.COMPLEX64
    exact = dtypes.FLOAT64 in (x, y, result) or any(dtypes.is_integer(d) and d.itemsize > 2 for d in (x, y))
    return dtypes.FLOAT64 if exact else dtypes.FLOAT32


@lru_cache(maxsize=1024)
def _is_matmul(x: DType, y: DType, x_rank: int, y_rank: int, contract: DimPairs, dtype: DType | None) -> bool:
    """Whether a dot is the product of two matrices in their own dtype, a float that products are computed in."""
    return x == y == (dtype or x) and x.char in "fdFD" and x_rank == y_rank == 2 and contract == ((1,), (0,))


def _dot_evaluate(
    xp: Any, x: Any, y: Any, contract: DimPairs, batch: DimPairs, dtype: DType | None, out_sharding: Any = None
) -> Any:
    if _is_matmul(x.dtype, y.dtype, x.ndim, y.ndim, contract, dtype) and x.shape[1] > 1:
        return (
            xp.matmul(blas_layout(x), blas_layout(y)) if x.__class__ is y.__class__ is np.ndarray else xp.matmul(x, y)
        )
    result = _result_dtype(x.dtype, y.dtype, dtype)
    assert result is not None
    compute = _compute_dtype(x.dtype, y.dtype, result)
    if x.dtype != compute:
        x = xp.astype(x, compute)
    if y.dtype != compute:
        y = xp.astype(y, compute)
    plan = _plan(x.ndim, y.ndim, contract, batch, x.size >= y.size)
    left = _as_matrices(xp, x, plan.x_order, plan.batch, plan.x_groups)
    right = _as_matrices(xp, y, plan.y_order, plan.batch, plan.y_groups)
    if left.shape[-1] == 1:
        out = left * right
    elif compute.kind in "iu" and left.__class__ is np.ndarray:
        out = _integer_matmul(left, right)
    else:
        out = xp.matmul(left, right)
    if plan.x_groups is not None or plan.y_groups is not None:
        free = tuple(x.shape[d] for d in plan.x_free) + tuple(y.shape[d] for d in plan.y_free)
        out = xp.reshape(out, left.shape[: plan.batch] + free)
    if result != compute:
        out = out != 0 if result == dtypes.BOOL else xp.astype(out, result)
    return out


def _integer_matmul(x: Any, y: Any) -> Any:
    """The product of integer matrices: through floats, and so through BLAS, where those hold every sum exactly."""
    depth = x.shape[-1]
    if x.size * y.shape[-1] < 1 << 15:
        return np.matmul(x, y)
    largest = [max(int(a.max()), -int(a.min()), 1) for a in (x, y)]
    bound = largest[0] * largest[1] * depth
    if bound >= 1 << 53:
        return np.matmul(x, y)
    through = np.float32 if bound < 1 << 24 else np.float64
    return np.matmul(x.astype(through), y.astype(through)).astype(np.int64).astype(x.dtype)


def _dot_samples() -> list[Sample]:
    def sample(x: Shape, y: Shape, contract: DimPairs, batch: DimPairs = ((), ()), dtype: Any = None) -> Sample:
        return Sample((Operand(x), Operand(y)), {"contract": contract, "batch": batch, "dtype": dtype})

    mixed = [
        Sample((Operand((2, 4), x), Operand((4, 3), y)), {"contract": ((1,), (0,)), "batch": ((), ()), "dtype": result})
        for x, y, result in (
            (dtypes.BFLOAT16, dtypes.BFLOAT16, dtypes.FLOAT32),
            (dtypes.FLOAT32, dtypes.BFLOAT16, None),
            (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.BFLOAT16),
            (dtypes.INT8, dtypes.INT8, dtypes.INT32),
            (dtypes.INT8, dtypes.INT8, dtypes.FLOAT32),
        )
    ]
    return [
        sample((2, 4), (4, 3), ((1,), (0,))),
        sample((4, 2), (3, 4), ((0,), (1,))),
        sample((4,), (4,), ((0,), (0,))),
        sample((3, 4), (4,), ((1,), (0,))),
        sample((2,), (3,), ((), ())),
        sample((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
        sample((2, 3, 4, 5), (2, 6, 4, 5), ((3,), (3,)), ((0, 2), (0, 2))),
        sample((2, 3, 4), (4, 2, 5), ((2, 0), (0, 1))),
        sample((3, 2, 4), (4, 5, 2), ((2,), (0,)), ((1,), (2,))),
        sample((2, 3, 4, 2), (2, 3, 2), ((1,), (1,)), ((3, 0), (0, 2))),
        sample((2, 3), (2, 3), ((), ()), ((0, 1), (0, 1))),
        sample((), (2,), ((), ())),
        sample((2, 1), (1, 3), ((1,), (0,))),
        *mixed,
    ]


dot_general: Op = define_op(
    "dot_general",
    word="matmul",
    type=_dot_type,
    factors=_dot_factors,
    linear=Linearity.EACH,
    jvp=Derivatives(
        lambda t, out, x, y, **params: dot_general(t, y, **params),
        lambda t, out, x, y, **params: dot_general(x, t, **params),
    ),
    transpose=_dot_transpose,
    batch=_dot_batch,
    fusion=Fusion.CONTRACTION,
    memory=Memory.FRESH,
    evaluate=_dot_evaluate,
    cost=_dot_cost,
    samples=_dot_samples,
)

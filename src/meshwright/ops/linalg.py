"""Fourier transforms, the Cholesky factor and triangular solves."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod
from typing import Any, TypedDict, Unpack

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Fusion
from meshwright.core.op import Cost, Linear, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import add, broadcast_in_dim, linear_jvp, mul, neg, reshape, transpose
from meshwright.ops.contraction import dot_general
from meshwright.ops.elementwise import conj, eq, ge, select
from meshwright.ops.rules import bad_operands, check_dtype, not_linear, traffic
from meshwright.ops.shape import batch_first, iota

# What LAPACK and FFT libraries compute in.
DTYPES = (dtypes.FLOAT32, dtypes.FLOAT64, dtypes.COMPLEX64, dtypes.COMPLEX128)

# fft

_COMPLEX_OF = {dtypes.FLOAT32: dtypes.COMPLEX64, dtypes.FLOAT64: dtypes.COMPLEX128}


def _fft_type(x: TensorType, kind: str, lengths: Shape) -> TensorType:
    if kind not in ("fft", "ifft", "rfft", "irfft"):
        raise bad_operands("fft", [x], f"there is no kind {kind!r}", "kind='fft', 'ifft', 'rfft' or 'irfft'")
    check_dtype(f"fft of kind {kind}", [x], x.dtype, tuple(_COMPLEX_OF) if kind == "rfft" else dtypes.COMPLEXES)
    rank = len(lengths)
    if rank > x.ndim or any(n < 1 for n in lengths):
        raise bad_operands("fft", [x], f"{lengths} are not lengths of its last dims", f"lengths={x.shape[-1:]}")
    dims = tuple(x.shape[x.ndim - rank :])
    half = (*lengths[:-1], lengths[-1] // 2 + 1) if lengths else ()
    expected = half if kind == "irfft" else tuple(lengths)
    if dims != expected:
        raise bad_operands(
            "fft", [x], f"{kind} of lengths {lengths} needs last dims {expected}", "slice or pad it first"
        )
    result = {"rfft": half, "irfft": tuple(lengths)}.get(kind, dims)
    dtype = {"rfft": _COMPLEX_OF.get(x.dtype), "irfft": dtypes.real_part(x.dtype)}.get(kind, x.dtype)
    return TensorType((*x.shape[: x.ndim - rank], *result), dtype)  # type: ignore[arg-type]


def _fft_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Transformed dims are whole on each device; the last one, where it changes size, is not propagated along."""
    build = FactorBuilder(operands, results)
    whole = operands[0].ndim - len(params["lengths"])
    for dim, (n, m) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        build.add(n, (0, dim), (1, dim), kind="replicated" if dim >= whole else "", blocked=n != m)
    return build.build()


def _halves(ct: Value, length: int, inner: float, outer: float) -> Value:
    """Weights along the last dim of half a spectrum: ``outer`` where a frequency is its own mirror image.

    Of a real signal, the frequencies 0 and (for an even length) length / 2 stand in the spectrum once, others twice.
    """
    size = length // 2 + 1
    line = np.full(size, inner)
    line[0] = outer
    if length % 2 == 0:
        line[-1] = outer
    weights = Array(line.astype(ct.dtype), TensorType((size,), ct.dtype))
    return mul(ct, broadcast_in_dim(weights, shape=ct.shape, dims=(ct.ndim - 1,)))


def _fft_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """The matrix of ``fft`` is symmetric; those of the real kinds are each other's transposes but for weights."""
    kind, lengths, ct = params["kind"], params["lengths"], cts[0]
    if kind in ("fft", "ifft") or not lengths:
        return [op(ct, **params)]
    total = float(prod(lengths))
    if kind == "rfft":  # Re Σ ct_k exp(-2πi k n / N): the mirrored half of the spectrum brings each term once more
        return [op(_halves(conj(ct), lengths[-1], total / 2, total), kind="irfft", lengths=lengths)]
    return [_halves(conj(op(ct, kind="rfft", lengths=lengths)), lengths[-1], 2 / total, 1 / total)]


def _fft_evaluate(xp: Any, x: Any, kind: str, lengths: Shape) -> Any:
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    if not axes:
        return {"rfft": lambda: xp.astype(x, _COMPLEX_OF[x.dtype]), "irfft": lambda: xp.real(x)}.get(kind, lambda: x)()
    if kind in ("fft", "ifft"):
        return (xp.fft.fftn if kind == "fft" else xp.fft.ifftn)(x, axes=axes)
    return (xp.fft.rfftn if kind == "rfft" else xp.fft.irfftn)(x, s=lengths, axes=axes)


def _fft_cost(operands: Types, results: Types, params: Params) -> Cost:
    """5 N log2 N per transform, half of it between real and complex."""
    n = prod(params["lengths"])
    largest = max(operands[0].size, results[0].size)
    real = 0.5 if params["kind"] in ("rfft", "irfft") else 1.0
    return Cost(5.0 * real * largest * log2(max(n, 2)), traffic(operands, results))


def _fft_samples() -> list[Sample]:
    found = []
    for wide in (True, False):
        complexes, floats = (dtypes.COMPLEXES[wide], (dtypes.FLOAT32, dtypes.FLOAT64)[wide])
        found += [
            Sample((Operand((3, 4), complexes),), {"kind": "fft", "lengths": (4,)}),
            Sample((Operand((3, 5), complexes),), {"kind": "ifft", "lengths": (3, 5)}),
            Sample((Operand((2, 6), floats),), {"kind": "rfft", "lengths": (6,)}),
            Sample((Operand((3, 5), floats),), {"kind": "rfft", "lengths": (3, 5)}),
            Sample((Operand((2, 3, 4), complexes),), {"kind": "irfft", "lengths": (3, 6)}),
            Sample((Operand((2, 3), complexes),), {"kind": "irfft", "lengths": (5,)}),
        ]
    return found


fft: Op = define_op(
    "fft",
    type=_fft_type,
    factors=_fft_factors,
    linear=Linearity.JOINTLY,
    jvp=linear_jvp,
    transpose=_fft_transpose,
    batch=lambda op, size, args, batched, params: ([op(*args, **params)], [True]),
    fusion=Fusion.ALONE,
    evaluate=_fft_evaluate,
    cost=_fft_cost,
    dtypes=DTYPES,
    samples=_fft_samples,
)

# cholesky


def check_square(op: str, types: Types, x: TensorType, allowed: Sequence[DType]) -> None:
    check_dtype(op, types, x.dtype, allowed)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise bad_operands(op, types, f"{x.short()} is not a matrix or a stack of square matrices", "x @ x.mT is one")


def _cholesky_type(x: TensorType) -> TensorType:
    check_square("cholesky", [x], x, DTYPES)
    return TensorType(x.shape, x.dtype)


def _cholesky_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim, size in enumerate(operands[0].shape):
        build.add(size, (0, dim), (1, dim), kind="replicated" if dim >= operands[0].ndim - 2 else "")
    return build.build()


def flip(x: Value) -> Value:
    """The transposed matrices."""
    return transpose(x, permutation=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def triangle(x: Value, lower: bool, diagonal: float) -> Value:
    """``x`` with zeros outside one triangle and ``diagonal`` times its diagonal."""
    square = (x.shape[-2], x.shape[-1])
    rows, columns = (iota(dtype=dtypes.INT32, shape=square, dim=dim) for dim in (0, 1))
    inside = ge(rows, columns) if lower else ge(columns, rows)
    one, zero, special = (Array(np.asarray(n, x.dtype), TensorType((), x.dtype)) for n in (1.0, 0.0, diagonal))
    one, zero, special = (broadcast_in_dim(n, shape=square, dims=()) for n in (one, zero, special))
    weights = select(eq(rows, columns), special, select(inside, one, zero))
    return mul(x, broadcast_in_dim(weights, shape=x.shape, dims=(x.ndim - 2, x.ndim - 1)))


def matmul(x: Value, y: Value) -> Value:
    batch = tuple(range(x.ndim - 2))
    return dot_general(x, y, contract=((x.ndim - 1,), (y.ndim - 2,)), batch=(batch, batch), dtype=None)


def _cholesky_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """From dA = dL Lᴴ + L dLᴴ: L⁻¹ dL is the lower triangle, half its diagonal, of L⁻¹ dA L⁻ᴴ."""
    out, t = op(*primals), tangents[0]
    assert t is not None
    symmetric = mul(add(t, conj(flip(t)) if dtypes.is_complex(t.dtype) else flip(t)), 0.5)
    flags = {"lower": True, "unit_diagonal": False}
    right = triangular_solve(out, symmetric, left_side=False, transpose_a=True, conjugate_a=True, **flags)
    both = triangular_solve(out, right, left_side=True, transpose_a=False, conjugate_a=False, **flags)
    return [out], [matmul(out, triangle(both, lower=True, diagonal=0.5))]


def _cholesky_evaluate(xp: Any, x: Any) -> Any:
    flipped = xp.matrix_transpose(x)
    return xp.cholesky((x + (xp.conj(flipped) if dtypes.is_complex(x.dtype) else flipped)) / 2)


def _positive_definite(arrays: list[Any]) -> list[Any]:
    x = arrays[0]
    product = x @ np.conj(x.mT) + 2 * np.eye(x.shape[-1])
    return [product.astype(x.dtype)]


cholesky: Op = define_op(
    "cholesky",
    type=_cholesky_type,
    factors=_cholesky_factors,
    linear=Linearity.NONE,
    jvp=_cholesky_jvp,
    transpose=not_linear("cholesky"),
    batch=lambda op, size, args, batched, params: ([op(*args)], [True]),
    fusion=Fusion.ALONE,
    evaluate=_cholesky_evaluate,
    cost=lambda operands, results, params: Cost(
        operands[0].size * operands[0].shape[-1] / 3.0, traffic(operands, results)
    ),
    dtypes=DTYPES,
    samples=lambda: [
        Sample((Operand((3, 3)),), {}, _positive_definite),
        Sample((Operand((2, 4, 4)),), {}, _positive_definite),
        Sample((Operand((2, 2, 1, 1)),), {}, _positive_definite),
    ],
)

# triangular_solve


class SolveFlags(TypedDict):
    """How a triangular system is written."""

    left_side: bool
    lower: bool
    transpose_a: bool
    conjugate_a: bool
    unit_diagonal: bool


def _solve_type(a: TensorType, b: TensorType, **flags: Unpack[SolveFlags]) -> TensorType:
    types = [a, b]
    check_square("triangular_solve", types, a, dtypes.INEXACT)
    if b.dtype != a.dtype:
        raise bad_operands("triangular_solve", types, "the operands differ in dtype", "a.astype(b.dtype)")
    side = -2 if flags["left_side"] else -1
    if b.ndim != a.ndim or b.shape[:-2] != a.shape[:-2] or b.shape[side] != a.shape[-1]:
        raise bad_operands(
            "triangular_solve",
            types,
            f"dim {side} of b must have size {a.shape[-1]}, and the dims before the last two must be equal",
            f"left_side={not flags['left_side']}, or mnp.broadcast_to(a, …)",
        )
    return TensorType(b.shape, b.dtype)


def _solve_factors(operands: Types, results: Types, params: Params) -> Factors:
    """In a x = b, rows of ``a`` go with ``b`` and columns with ``x``; what is solved for must be whole."""
    build = FactorBuilder(operands, results)
    rank = operands[0].ndim
    for dim in range(rank - 2):
        build.add(operands[0].shape[dim], (0, dim), (1, dim), (2, dim))
    solved, free = (rank - 2, rank - 1) if params["left_side"] else (rank - 1, rank - 2)
    rows = rank - 2 if params["left_side"] != params["transpose_a"] else rank - 1
    columns = 2 * rank - 3 - rows
    n = operands[0].shape[-1]
    for dim in (rank - 2, rank - 1):
        if dim == solved:
            build.add(n, (0, rows), (1, dim), kind="replicated")
        else:
            build.add(operands[1].shape[free], (1, free), (2, free), kind="replicated")
    build.add(n, (0, columns), (2, solved), kind="replicated")
    return build.build()


def _solve_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """From A x = b: A dx = db - dA x, where dA has A's triangle."""
    (a, b), (t_a, t_b) = primals, tangents
    out = op(a, b, **params)
    right = t_b
    if t_a is not None:
        t_a = triangle(t_a, params["lower"], diagonal=0.0 if params["unit_diagonal"] else 1.0)
        t_a = flip(t_a) if params["transpose_a"] else t_a
        t_a = conj(t_a) if params["conjugate_a"] and dtypes.is_complex(t_a.dtype) else t_a
        moved = neg(matmul(t_a, out) if params["left_side"] else matmul(out, t_a))
        right = moved if right is None else add(right, moved)
    return [out], [None if right is None else op(a, right, **params)]


def _solve_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """Linear in ``b``: the inverse of the transposed matrix."""
    return [None, op(inputs[0], cts[0], **{**params, "transpose_a": not params["transpose_a"]})]


def _solve_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """One matrix for a whole batch has all its right-hand sides side by side."""
    a, b = args
    if batched[0] or a.ndim > 2:
        return [op(batch_first(a, batched[0], size), batch_first(b, batched[1], size), **params)], [True]
    if not params["left_side"]:
        rows, n = b.shape[1:]
        return [reshape(op(a, reshape(b, shape=(size * rows, n)), **params), shape=b.shape)], [True]
    n, columns = b.shape[1:]
    side_by_side = reshape(transpose(b, permutation=(1, 0, 2)), shape=(n, size * columns))
    out = reshape(op(a, side_by_side, **params), shape=(n, size, columns))
    return [transpose(out, permutation=(1, 0, 2))], [True]


def _solve_evaluate(
    xp: Any, a: Any, b: Any, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    dtype = b.dtype
    if dtype.itemsize < 4:
        a, b = xp.astype(a, dtypes.FLOAT32), xp.astype(b, dtypes.FLOAT32)
    if conjugate_a and dtypes.is_complex(dtype):
        a = xp.conj(a)
    if transpose_a == left_side:  # x a = b is aᵀ xᵀ = bᵀ
        a, lower = xp.matrix_transpose(a), not lower
    b = b if left_side else xp.matrix_transpose(b)
    out = xp.solve_triangular(a, b, lower, unit_diagonal)
    out = out if left_side else xp.matrix_transpose(out)
    return xp.astype(out, dtype) if dtype.itemsize < 4 else out


def _solve_samples() -> list[Sample]:
    def sample(a: Shape, b: Shape, flags: str) -> Sample:
        given = {name: flag == "1" for name, flag in zip(SolveFlags.__annotations__, flags, strict=True)}
        return Sample((Operand(a), Operand(b)), given, _well_conditioned)

    return [
        sample((3, 3), (3, 2), "11000"),
        sample((3, 3), (2, 3), "00000"),
        sample((4, 4), (4, 3), "10110"),
        sample((3, 3), (4, 3), "01101"),
        sample((2, 3, 3), (2, 3, 4), "11011"),
        sample((2, 3, 3), (2, 2, 3), "00110"),
        sample((1, 1), (1, 1), "11000"),
    ]


def _well_conditioned(arrays: list[Any]) -> list[Any]:
    a, b = arrays
    return [(a + 4 * np.eye(a.shape[-1])).astype(a.dtype), b]


triangular_solve: Op = define_op(
    "triangular_solve",
    type=_solve_type,
    factors=_solve_factors,
    linear=Linearity.NONE,
    jvp=_solve_jvp,
    transpose=_solve_transpose,
    batch=_solve_batch,
    fusion=Fusion.ALONE,
    evaluate=_solve_evaluate,
    cost=lambda operands, results, params: Cost(
        float(results[0].size * operands[0].shape[-1]), traffic(operands, results)
    ),
    dtypes=dtypes.INEXACT,
    samples=_solve_samples,
)

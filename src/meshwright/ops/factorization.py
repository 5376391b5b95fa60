"""Factorizations of matrices: LU, QR, eigenvalues and singular values, each of all matrices in the last two dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Fusion, Memory
from meshwright.core.op import Cost, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import add, broadcast_in_dim, convert, mul
from meshwright.ops.contraction import dot_general
from meshwright.ops.elementwise import complex as complex_of
from meshwright.ops.elementwise import conj, div, eq, imag, real, select, sub
from meshwright.ops.linalg import DTYPES, check_square, flip, matmul, triangle, triangular_solve
from meshwright.ops.rules import bad_operands, check_dtype, not_linear, traffic
from meshwright.ops.shape import concatenate, iota, slice_

REALS = (dtypes.FLOAT32, dtypes.FLOAT64)

# Parts that the rules have in common


def _check_matrix(op: str, x: TensorType) -> None:
    check_dtype(op, [x], x.dtype, DTYPES)
    if x.ndim < 2:
        raise bad_operands(op, [x], f"{x.short()} is not a matrix or a stack of matrices", "x[None], which is one row")


def _batch(op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params) -> Any:
    outs = op(*args, **params)
    return list(outs), [True] * len(outs)


def _factors(operands: Types, results: Types, params: Params) -> Factors:
    """Matrices of a stack are apart; one is whole on each device."""
    build = FactorBuilder(operands, results)
    lead = operands[0].ndim - 2
    for dim in range(lead):
        build.add(operands[0].shape[dim], *((n, dim) for n in range(1 + len(results))))
    for n, t in enumerate((operands[0], *results)):
        for dim in range(lead, t.ndim):
            build.add(t.shape[dim], (n, dim), kind="replicated")
    return build.build()


def _cost(times: float) -> Callable[[Types, Types, Params], Cost]:
    def cost(operands: Types, results: Types, params: Params) -> Cost:
        return Cost(times * operands[0].size * min(operands[0].shape[-2:]), traffic(operands, results))

    return cost


def _adjoint(x: Value) -> Value:
    return conj(flip(x)) if dtypes.is_complex(x.dtype) else flip(x)


def _real(x: Value) -> Value:
    return real(x) if dtypes.is_complex(x.dtype) else x


def _as(x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else convert(x, dtype=dtype, weak=False)


def _rows(line: Value, shape: Shape) -> Value:
    """``line`` along the last dim, repeated along the one before."""
    return broadcast_in_dim(line, shape=shape, dims=(*range(len(shape) - 2), len(shape) - 1))


def _columns(line: Value, shape: Shape) -> Value:
    """``line`` along the dim before the last, repeated along the last."""
    return broadcast_in_dim(line, shape=shape, dims=tuple(range(len(shape) - 1)))


def _on_diagonal(shape: Shape) -> Value:
    rows, columns = (iota(dtype=dtypes.INT32, shape=tuple(shape[-2:]), dim=dim) for dim in (0, 1))
    return broadcast_in_dim(eq(rows, columns), shape=tuple(shape), dims=(len(shape) - 2, len(shape) - 1))


def _filled(x: Value, number: float) -> Value:
    one = Array(np.asarray(number, x.dtype), TensorType((), x.dtype))
    return broadcast_in_dim(one, shape=x.shape, dims=())


def _diagonal(x: Value) -> Value:
    """The diagonals of square matrices."""
    kept = select(_on_diagonal(x.shape), x, _filled(x, 0.0))
    ones = Array(np.ones(x.shape[-1], x.dtype), TensorType((x.shape[-1],), x.dtype))
    return dot_general(kept, ones, contract=((x.ndim - 1,), (0,)), batch=((), ()), dtype=None)


def _differences(line: Value, shape: Shape) -> Value:
    """One over ``line[j] - line[i]`` at row i and column j, and zero on the diagonal."""
    gap = sub(_rows(line, shape), _columns(line, shape))
    diagonal = _on_diagonal(shape)
    return select(diagonal, _filled(gap, 0.0), div(_filled(gap, 1.0), select(diagonal, _filled(gap, 1.0), gap)))


# lu


def _lu_type(x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    _check_matrix("lu", x)
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    return (
        TensorType(x.shape, x.dtype),
        TensorType((*lead, min(m, n)), dtypes.INT32),
        TensorType((*lead, m), dtypes.INT32),
    )


def _bordered(x: Value, size: int, rows: bool) -> Value:
    """A triangle of fewer columns (or rows) than ``size`` made square by those of the identity."""
    have = x.shape[-1] if rows else x.shape[-2]
    if have == size:
        return x
    identity = np.eye(size, dtype=x.dtype)
    rest = identity[:, have:] if rows else identity[have:]
    border = Array(rest, TensorType(rest.shape, x.dtype))
    shape = (*x.shape[:-2], *rest.shape)
    return concatenate(
        x, broadcast_in_dim(border, shape=shape, dims=(x.ndim - 2, x.ndim - 1)), dim=x.ndim - (1 if rows else 2)
    )


def _part(x: Value, rows: int, columns: int) -> Value:
    """The first rows and columns of matrices."""
    limits = (*x.shape[:-2], rows, columns)
    return slice_(x, starts=(0,) * x.ndim, limits=limits, strides=(1,) * x.ndim)


def _lu_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """From P dA = dL U + L dU: of M = L⁻¹ P dA U⁻¹, the part below the diagonal is L⁻¹ dL and the rest dU U⁻¹."""
    (out, pivots, order), t = op(*primals), tangents[0]
    assert t is not None
    m, n = out.shape[-2:]
    k = min(m, n)
    below, above = triangle(_part(out, m, k), lower=True, diagonal=0.0), _part(out, k, n)
    lower = _bordered(below, m, rows=True) if m > k else below
    upper = _bordered(triangle(above, lower=False, diagonal=1.0), n, rows=False)
    chosen = eq(_columns(order, (*out.shape[:-2], m, m)), _row_numbers((*out.shape[:-2], m, m)))
    moved = matmul(_as(chosen, t.dtype), t)
    flags = {"transpose_a": False, "conjugate_a": False}
    solved = triangular_solve(lower, moved, left_side=True, lower=True, unit_diagonal=True, **flags)
    solved = triangular_solve(upper, solved, left_side=False, lower=False, unit_diagonal=False, **flags)
    unit = select(_on_diagonal(lower.shape), _filled(lower, 1.0), lower)
    d_lower = matmul(unit, triangle(solved, lower=True, diagonal=0.0))
    d_upper = matmul(triangle(solved, lower=False, diagonal=1.0), upper)
    return [out, pivots, order], [add(d_lower, d_upper), None, None]


def _row_numbers(shape: Shape) -> Value:
    return iota(dtype=dtypes.INT32, shape=tuple(shape), dim=len(shape) - 1)


def _samples(*shapes: Shape) -> Callable[[], list[Sample]]:
    return lambda: [Sample((Operand(shape),), {}, _apart) for shape in shapes]


def _apart(arrays: list[Any]) -> list[Any]:
    """Matrices whose eigenvalues and singular values are well apart, so that their derivatives are not large."""
    x = arrays[0]
    m, n = x.shape[-2:]
    spread = np.zeros((m, n))
    for i in range(min(m, n)):
        spread[i, i] = 2.0 + 1.5 * i
    return [(0.3 * x + spread).astype(x.dtype)]


lu: Op = define_op(
    "lu",
    type=_lu_type,
    factors=_factors,
    linear=Linearity.NONE,
    jvp=_lu_jvp,
    transpose=not_linear("lu"),
    batch=_batch,
    fusion=Fusion.ALONE,
    memory=Memory.FRESH,
    evaluate=lambda xp, x: xp.lu(x),
    cost=_cost(1.0),
    dtypes=DTYPES,
    samples=_samples((3, 3), (2, 4, 4), (4, 2), (2, 3, 5), (2, 1, 1)),
)

# qr


def _qr_type(x: TensorType, full: bool) -> tuple[TensorType, TensorType]:
    _check_matrix("qr", x)
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    k = m if full else min(m, n)
    return TensorType((*lead, m, k), x.dtype), TensorType((*lead, k, n), x.dtype)


def _qr_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """With C = Qᴴ dA R⁻¹, Qᴴ dQ is the antisymmetric matrix with C's part below the diagonal; dR R⁻¹ is the rest."""
    (q, r), t = op(*primals, **params), tangents[0]
    assert t is not None
    m, n = primals[0].shape[-2:]
    if m < n or (params["full"] and m != n):
        raise bad_operands(
            "the derivative of qr",
            [primals[0].type],
            "it is of matrices with no more columns than rows, into as many columns",
            "mnp.linalg.qr(x, mode='reduced') of a tall matrix",
        )
    flags = {"transpose_a": False, "conjugate_a": False, "unit_diagonal": False}
    scaled = triangular_solve(r, t, left_side=False, lower=False, **flags)
    inner = matmul(_adjoint(q), scaled)
    below = triangle(inner, lower=True, diagonal=0.0)
    turn = sub(below, _adjoint(below))
    if dtypes.is_complex(t.dtype):
        phase = select(_on_diagonal(inner.shape), inner, _filled(inner, 0.0))
        turn = add(turn, complex_of(_filled(real(phase), 0.0), imag(phase)))
    dq = add(matmul(q, sub(turn, inner)), scaled)
    return [q, r], [dq, matmul(sub(inner, turn), r)]


qr: Op = define_op(
    "qr",
    type=_qr_type,
    factors=_factors,
    linear=Linearity.NONE,
    jvp=_qr_jvp,
    transpose=not_linear("qr"),
    batch=_batch,
    fusion=Fusion.ALONE,
    memory=Memory.FRESH,
    evaluate=lambda xp, x, full: xp.qr(x, full),
    cost=_cost(2.0),
    dtypes=DTYPES,
    samples=lambda: [
        Sample((Operand(shape),), {"full": full}, _apart)
        for shape, full in (((3, 3), False), ((2, 4, 3), False), ((3, 3), True), ((2, 1, 1), False))
    ],
)

# eigh


def _eigh_type(x: TensorType) -> tuple[TensorType, TensorType]:
    check_square("eigh", [x], x, DTYPES)
    return TensorType(x.shape, x.dtype), TensorType(x.shape[:-1], dtypes.real_part(x.dtype))


def _eigh_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Of Vᴴ dA V, the diagonal is dλ, and the rest over the differences of eigenvalues is Vᴴ dV."""
    (v, w), t = op(*primals), tangents[0]
    assert t is not None
    t = mul(add(t, _adjoint(t)), 0.5)
    inner = matmul(_adjoint(v), matmul(t, v))
    gaps = _as(_differences(w, v.shape), v.dtype)
    return [v, w], [matmul(v, mul(gaps, inner)), _real(_diagonal(inner))]


def _eigh_evaluate(xp: Any, x: Any) -> Any:
    flipped = xp.matrix_transpose(x)
    return xp.eigh((x + (xp.conj(flipped) if dtypes.is_complex(x.dtype) else flipped)) / 2)


eigh: Op = define_op(
    "eigh",
    type=_eigh_type,
    factors=_factors,
    linear=Linearity.NONE,
    jvp=_eigh_jvp,
    transpose=not_linear("eigh"),
    batch=_batch,
    fusion=Fusion.ALONE,
    memory=Memory.FRESH,
    evaluate=_eigh_evaluate,
    cost=_cost(9.0),
    dtypes=REALS,  # vectors of complex matrices are given up to a phase
    samples=_samples((3, 3), (2, 4, 4), (2, 1, 1)),
)

# svd


def _svd_type(x: TensorType, full: bool, vectors: bool) -> tuple[TensorType, ...]:
    _check_matrix("svd", x)
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    k = min(m, n)
    s = TensorType((*lead, k), dtypes.real_part(x.dtype))
    if not vectors:
        return (s,)
    left, right = (m, n) if full else (k, k)
    return s, TensorType((*lead, m, left), x.dtype), TensorType((*lead, right, n), x.dtype)


def _svd_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Of P = Uᴴ dA V, the diagonal is ds; dU and dV turn by P's symmetric parts over differences of squares of s."""
    (x,), t = primals, tangents[0]
    assert t is not None
    m, n = x.shape[-2:]
    if params["full"] and params["vectors"] and m != n:
        raise bad_operands(
            "the derivative of svd",
            [x.type],
            "full_matrices=True asks for vectors that no equation fixes",
            "mnp.linalg.svd(x, full_matrices=False)",
        )
    s, u, vh = op(x, full=False, vectors=True)
    v = _adjoint(vh)
    inner = matmul(_adjoint(u), matmul(t, v))
    ds = _real(_diagonal(inner))
    if not params["vectors"]:
        return [s], [ds]
    shape = inner.shape
    squares = _as(_differences(mul(s, s), shape), u.dtype)
    wide, tall = _as(_rows(s, shape), u.dtype), _as(_columns(s, shape), u.dtype)
    right, left = mul(inner, wide), mul(tall, inner)
    turn_u, turn_v = mul(squares, add(right, _adjoint(right))), mul(squares, add(left, _adjoint(left)))
    if dtypes.is_complex(u.dtype):  # a phase, which is put on the left
        phase = div(mul(sub(inner, _adjoint(inner)), 0.5), wide)
        turn_u = add(turn_u, select(_on_diagonal(shape), phase, _filled(phase, 0.0)))
    du, dv = matmul(u, turn_u), matmul(v, turn_v)
    if m > n:
        moved = matmul(t, v)
        du = add(du, _over(sub(moved, matmul(u, matmul(_adjoint(u), moved))), s))
    if n > m:
        moved = matmul(_adjoint(t), u)
        dv = add(dv, _over(sub(moved, matmul(v, matmul(_adjoint(v), moved))), s))
    return [s, u, vh], [ds, du, _adjoint(dv)]


def _over(x: Value, s: Value) -> Value:
    """Columns divided by singular values; zero ones leave them as they are."""
    zero = eq(s, Array(np.zeros((), s.dtype), TensorType((), s.dtype)))
    kept = select(zero, _filled(s, 1.0), s)
    return div(x, _as(_rows(kept, x.shape), x.dtype))


svd: Op = define_op(
    "svd",
    type=_svd_type,
    factors=_factors,
    linear=Linearity.NONE,
    jvp=_svd_jvp,
    transpose=not_linear("svd"),
    batch=_batch,
    fusion=Fusion.ALONE,
    memory=Memory.FRESH,
    evaluate=lambda xp, x, full, vectors: xp.svd(x, full, vectors),
    cost=_cost(20.0),
    dtypes=REALS,  # vectors of complex matrices are given up to a phase
    samples=lambda: [
        Sample((Operand(shape),), {"full": full, "vectors": vectors}, _apart)
        for shape, full, vectors in (
            ((3, 3), False, True), ((2, 4, 3), False, True), ((3, 5), False, True), ((3, 3), True, True),
            ((2, 3, 4), False, False),
        )
    ],
)  # fmt: skip

# eig


def _eig_type(x: TensorType) -> tuple[TensorType, TensorType]:
    check_square("eig", [x], x, DTYPES)
    dtype = dtypes.COMPLEX64 if dtypes.real_part(x.dtype) == dtypes.FLOAT32 else dtypes.COMPLEX128
    return TensorType(x.shape[:-1], dtype), TensorType(x.shape, dtype)


def _eig_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Of V⁻¹ dA V, the diagonal is dλ, and the rest over the differences of eigenvalues is V⁻¹ dV, up to lengths."""
    (w, v), t = op(*primals), tangents[0]
    assert t is not None
    inner = solve(v, matmul(_as(t, v.dtype), v))
    moved = matmul(v, mul(_differences(w, v.shape), inner))
    along = _as(real(_diagonal(matmul(_adjoint(v), moved))), v.dtype)
    return [w, v], [_diagonal(inner), sub(moved, mul(v, _rows(along, v.shape)))]


def solve(a: Value, b: Value) -> Value:
    """``x`` with ``a x = b``, for square matrices and as many right-hand sides as columns of ``b``."""
    factors, _, order = lu(a)
    n = a.shape[-1]
    shape = (*a.shape[:-2], n, n)
    chosen = _as(eq(_columns(order, shape), _row_numbers(shape)), b.dtype)
    flags = {"left_side": True, "transpose_a": False, "conjugate_a": False}
    first = triangular_solve(factors, matmul(chosen, b), lower=True, unit_diagonal=True, **flags)
    return triangular_solve(factors, first, lower=False, unit_diagonal=False, **flags)  # type: ignore[no-any-return]


eig: Op = define_op(
    "eig",
    type=_eig_type,
    factors=_factors,
    linear=Linearity.NONE,
    jvp=_eig_jvp,
    transpose=not_linear("eig"),
    batch=_batch,
    fusion=Fusion.ALONE,
    memory=Memory.FRESH,
    evaluate=lambda xp, x: xp.eig(x),
    cost=_cost(25.0),
    dtypes=(dtypes.FLOAT64,),  # vectors are given up to a phase, which is LAPACK's of this width
    samples=_samples((3, 3), (2, 4, 4), (2, 1, 1)),
)

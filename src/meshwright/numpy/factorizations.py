"""Solving, determinants, eigenvalues and singular values, as ``jax.numpy.linalg`` has them."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.operands import ArrayLike, axis_of, convert, inexact, promoted_values, value
from meshwright.arrays.static import one_of, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import creation, logic, mathematics, products, reductions, shapes
from meshwright.numpy.arithmetic import divide, multiply
from meshwright.numpy.order import where
from meshwright.ops import basic, factorization


class QRResult(NamedTuple):
    """The factors of ``qr``."""

    Q: Any
    R: Any


class EighResult(NamedTuple):
    """The results of ``eigh``."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """The results of ``eig``."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """The results of ``svd``."""

    U: Any
    S: Any
    Vh: Any


class SlogdetResult(NamedTuple):
    """The results of ``slogdet``."""

    sign: Any
    logabsdet: Any


def matrices(x: ArrayLike, name: str, square: bool = False) -> Value:
    """A stack of matrices of floats or complex numbers that LAPACK computes with, or an error."""
    found = inexact(value(x))
    if found.ndim < 2 or (square and found.shape[-1] != found.shape[-2]):
        raise ShapeError(
            f"mnp.linalg.{name} cannot take {found.type.short()}.",
            where=here(),
            why=f"it takes a {'square ' if square else ''}matrix, or a stack of them",
            fix="x @ x.mT is one" if found.ndim >= 2 else "x[None], a matrix of one row",
        )
    return convert(found, dtypes.FLOAT32) if found.dtype.itemsize < 4 else found


def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Columns of length 1 at right angles to each other, and the upper triangle that makes ``a`` of them.

    >>> import meshwright.numpy as mnp
    >>> q, r = qr(mnp.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> mnp.round(q @ r, 4)
    Array([[3., 1.],
           [4., 2.]], dtype=float32)
    """
    mode = one_of(mode, ["reduced", "complete", "full", "r"], "mode of mnp.linalg.qr")
    q, r = factorization.qr(matrices(a, "qr"), full=mode in ("complete", "full"))
    return r if mode == "r" else QRResult(q, r)


def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """The eigenvalues of Hermitian matrices, increasing, and their eigenvectors as columns.

    >>> import meshwright.numpy as mnp
    >>> eigh(mnp.array([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    Array([1., 2.], dtype=float32)
    """
    triangle = one_of("L" if UPLO is None else UPLO, ["L", "U"], "UPLO of mnp.linalg.eigh")
    x = matrices(a, "eigh", square=True)
    if not static_flag(symmetrize_input, "symmetrize_input of mnp.linalg.eigh"):
        half = creation.tril(x) if triangle == "L" else creation.triu(x)
        rest = creation.tril(x, -1) if triangle == "L" else creation.triu(x, 1)
        x = basic.add(half, logic.conjugate(shapes.matrix_transpose(rest)))
    vectors, values = factorization.eigh(x)
    return EighResult(values, vectors)


def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Value:
    """The eigenvalues of Hermitian matrices, increasing."""
    return eigh(a, UPLO, symmetrize_input).eigenvalues  # type: ignore[no-any-return]


def eig(a: ArrayLike) -> EigResult:
    """The eigenvalues of any square matrices and their eigenvectors as columns, in complex numbers.

    >>> import meshwright.numpy as mnp
    >>> eig(mnp.array([[0.0, -1.0], [1.0, 0.0]])).eigenvalues.imag.tolist()
    [1.0, -1.0]
    """
    return EigResult(*factorization.eig(matrices(a, "eig", square=True)))


def eigvals(a: ArrayLike) -> Value:
    """The eigenvalues of any square matrices, as complex numbers."""
    return eig(a).eigenvalues  # type: ignore[no-any-return]


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """The singular values, decreasing, and the vectors on both sides: ``u @ diag(s) @ vh`` is ``a``.

    >>> import meshwright.numpy as mnp
    >>> svd(mnp.array([[0.0, 3.0], [2.0, 0.0]])).S
    Array([3., 2.], dtype=float32)
    """
    full = static_flag(full_matrices, "full_matrices of mnp.linalg.svd")
    vectors = static_flag(compute_uv, "compute_uv of mnp.linalg.svd")
    x = matrices(a, "svd", square=static_flag(hermitian, "hermitian of mnp.linalg.svd"))
    found = factorization.svd(x, full=full, vectors=vectors)
    low, high = (0, found[0].shape[-1]) if subset_by_index is None else subset_by_index
    if subset_by_index is not None:
        if full and vectors and (low, high) != (0, found[0].shape[-1]):
            raise ShapeError(
                "mnp.linalg.svd is given full_matrices=True and a subset.",
                where=here(),
                why="vectors without a singular value belong to no subset",
                fix="full_matrices=False",
            )
        found = (found[0][..., low:high], *((found[1][..., low:high], found[2][..., low:high, :]) if vectors else ()))
    return SVDResult(found[1], found[0], found[2]) if vectors else found[0]


def svdvals(x: ArrayLike, /) -> Value:
    """The singular values, decreasing."""
    return svd(x, compute_uv=False)  # type: ignore[no-any-return]


def _sides(a: ArrayLike, b: ArrayLike, name: str) -> tuple[Value, Value, bool]:
    """A matrix and right-hand sides as stacks of one shape; whether the right-hand side is a vector."""
    x, y = promoted_values(a, b, inexact=True)
    x = matrices(x, name, square=True)
    y = convert(y, x.dtype)
    vector = y.ndim == 1
    if vector:
        y = basic.reshape(y, shape=(*y.shape, 1))
    if y.ndim < 2 or y.shape[-2] != x.shape[-1]:
        raise ShapeError(
            f"mnp.linalg.{name} cannot take {x.type.short()} and {value(b).type.short()}.",
            where=here(),
            why=f"the matrix has {x.shape[-1]} columns, and the right-hand side has to have as many rows",
            fix="b.T, or b[..., None] for a stack of vectors",
        )
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x = shapes.broadcast_to(x, (*lead, *x.shape[-2:]))
    return x, shapes.broadcast_to(y, (*lead, *y.shape[-2:])), vector


def solve(a: ArrayLike, b: ArrayLike) -> Value:
    """The solution ``x`` of ``a x = b``; a ``b`` of one dim is a vector.

    >>> import meshwright.numpy as mnp
    >>> solve(mnp.array([[2.0, 0.0], [0.0, 4.0]]), mnp.array([2.0, 4.0]))
    Array([1., 1.], dtype=float32)
    """
    x, y, vector = _sides(a, b, "solve")
    found = factorization.solve(x, y)
    return basic.reshape(found, shape=found.shape[:-1]) if vector else found


def inv(a: ArrayLike) -> Value:
    """The inverses of square matrices.

    >>> import meshwright.numpy as mnp
    >>> inv(mnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    x = matrices(a, "inv", square=True)
    return factorization.solve(x, shapes.broadcast_to(creation.eye(x.shape[-1], dtype=x.dtype), x.shape))


def _pivoted(a: ArrayLike, name: str) -> tuple[Value, Value]:
    """The diagonal of the upper factor, and the sign of the exchanges of rows."""
    lu, pivots, _ = factorization.lu(matrices(a, name, square=True))
    places = creation.arange(pivots.shape[-1], dtype=pivots.dtype)
    odd = reductions.sum(logic.not_equal(pivots, places), -1) % 2
    return creation.diagonal(lu, 0, -2, -1), convert(1 - 2 * odd, lu.dtype)


def det(a: ArrayLike) -> Value:
    """The determinants of square matrices.

    >>> import meshwright.numpy as mnp
    >>> float(det(mnp.array([[2.0, 1.0], [1.0, 3.0]])))
    5.0
    """
    x = matrices(a, "det", square=True)
    if x.shape[-1] == 1:
        return basic.reshape(x, shape=x.shape[:-2])
    if x.shape[-1] == 2:
        return x[..., 0, 0] * x[..., 1, 1] - x[..., 0, 1] * x[..., 1, 0]  # type: ignore[index]
    if x.shape[-1] == 3:  # whose derivative is there where the determinant is zero, too
        rows = [[x[..., i, j] for j in range(3)] for i in range(3)]  # type: ignore[index]
        minors = [rows[1][i] * rows[2][j] - rows[1][j] * rows[2][i] for i, j in ((1, 2), (0, 2), (0, 1))]
        return rows[0][0] * minors[0] - rows[0][1] * minors[1] + rows[0][2] * minors[2]
    diagonal, sign = _pivoted(x, "det")
    return multiply(sign, reductions.prod(diagonal, -1))


def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """The sign of determinants, and the logarithm of what is left of them.

    >>> import meshwright.numpy as mnp
    >>> sign, log = slogdet(-mnp.eye(3))
    >>> float(sign), float(log)
    (-1.0, 0.0)
    """
    one_of("lu" if method is None else method, ["lu", "qr"], "method of mnp.linalg.slogdet")
    diagonal, sign = _pivoted(a, "slogdet")
    size = logic.absolute(diagonal)
    signs = divide(diagonal, convert(size, diagonal.dtype)) if dtypes.is_complex(diagonal.dtype) else _sign(diagonal)
    return SlogdetResult(multiply(sign, reductions.prod(signs, -1)), reductions.sum(mathematics.log(size), -1))


def _sign(x: Value) -> Value:
    return where(logic.less(x, 0), -1.0, where(logic.equal(x, 0), 0.0, 1.0)).astype(x.dtype)  # type: ignore[attr-defined]


def _cutoff(s: Value, given: Any, shape: tuple[int, ...]) -> Any:
    """Below which singular values count as zero."""
    if given is None:
        given = float(np.finfo(s.dtype).eps) * max(shape[-2:])
    return multiply(creation.asarray(given)[..., None], reductions.max(s, -1, keepdims=True, initial=0))  # type: ignore[index]


def pinv(
    a: ArrayLike, rtol: ArrayLike | None = None, hermitian: bool = False, *, rcond: ArrayLike | None = None
) -> Value:
    """The matrices that solve least squares: of a square regular one, its inverse.

    >>> import meshwright.numpy as mnp
    >>> pinv(mnp.array([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    x = matrices(a, "pinv", square=static_flag(hermitian, "hermitian of mnp.linalg.pinv"))
    if 0 in x.shape:
        return creation.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    given = rtol if rtol is not None else rcond
    u, s, vh = svd(x, full_matrices=False)
    given = 10.0 * max(x.shape[-2:]) * float(np.finfo(s.dtype).eps) if given is None else given
    kept = logic.greater(s, _cutoff(s, given, x.shape))
    inverse = where(kept, divide(1.0, where(kept, s, 1.0)), 0.0)
    adjoint = logic.conjugate(shapes.matrix_transpose(u))
    scaled = multiply(shapes.expand_dims(inverse, -1), adjoint)
    return products.matmul(logic.conjugate(shapes.matrix_transpose(vh)), scaled)


def matrix_rank(
    M: ArrayLike, rtol: ArrayLike | None = None, *, hermitian: bool = False, tol: ArrayLike | None = None
) -> Value:
    """How many singular values are not zero.

    >>> import meshwright.numpy as mnp
    >>> int(matrix_rank(mnp.ones((3, 4))))
    1
    """
    x = matrices(M, "matrix_rank")
    static_flag(hermitian, "hermitian of mnp.linalg.matrix_rank")
    s = svd(x, compute_uv=False)
    bound = creation.asarray(tol)[..., None] if tol is not None else _cutoff(s, rtol, x.shape)  # type: ignore[index]
    return reductions.sum(logic.greater(s, bound), -1)


def cond(x: ArrayLike, p: Any = None) -> Value:
    """The norm of matrices times that of their inverses: by how much solving can magnify an error.

    >>> import meshwright.numpy as mnp
    >>> float(cond(mnp.array([[4.0, 0.0], [0.0, 2.0]])))
    2.0
    """
    from_values = p is None or p in (2, -2)
    a = matrices(x, "cond", square=not from_values)
    if from_values:
        s = svd(a, compute_uv=False)
        found = divide(s[..., -1], s[..., 0]) if p == -2 else divide(s[..., 0], s[..., -1])
    else:
        found = multiply(_norm(a, p), _norm(inv(a), p))
    empty = reductions.any(logic.isnan(a), (-2, -1))
    return where(logic.logical_and(logic.isnan(found), logic.logical_not(empty)), np.inf, found)


def _norm(x: Value, p: Any) -> Value:
    size = logic.absolute(x)
    if p == "fro":
        return mathematics.sqrt(reductions.sum(multiply(size, size), (-2, -1)))
    sums = reductions.sum(size, -2 if abs(p) == 1 else -1)
    return reductions.max(sums, -1) if p > 0 else reductions.min(sums, -1)


def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = False) -> tuple[Any, ...]:
    """The ``x`` for which ``a x`` is nearest to ``b``, with the residuals, the rank of ``a`` and its singular values.

    >>> import meshwright.numpy as mnp
    >>> x, residuals, rank, s = lstsq(mnp.array([[1.0], [1.0]]), mnp.array([1.0, 3.0]))
    >>> round(float(x[0]), 4), int(rank)
    (2.0, 1)
    """
    x, y = promoted_values(a, b, inexact=True)
    if x.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ShapeError(
            f"mnp.linalg.lstsq cannot take {x.type.short()} and {y.type.short()}.",
            where=here(),
            why="it takes a matrix, and a vector or a matrix of as many rows",
            fix="mw.vmap(mnp.linalg.lstsq)(a, b) for stacks of them",
        )
    x = matrices(x, "lstsq")
    vector = y.ndim == 1
    right = convert(basic.reshape(y, shape=(*y.shape, 1)) if vector else y, x.dtype)
    u, s, vh = svd(x, full_matrices=False)
    limit = float(np.finfo(s.dtype).eps) * max(x.shape) if rcond is None else rcond
    limit = float(np.finfo(s.dtype).eps) if limit < 0 else limit
    kept = logic.greater_equal(s, multiply(limit, s[0])) if s.shape[0] else logic.greater(s, 0)
    rank = reductions.sum(kept)
    safe = shapes.expand_dims(where(kept, s, 1.0), -1)
    inner = products.matmul(logic.conjugate(u).T, right)  # type: ignore[attr-defined]
    scaled = where(shapes.expand_dims(kept, -1), divide(inner, safe), 0.0)
    found = products.matmul(logic.conjugate(vh).T, scaled)  # type: ignore[attr-defined]
    difference = logic.absolute(right - products.matmul(x, found))  # type: ignore[operator]
    residuals = reductions.sum(multiply(difference, difference), 0)
    if static_flag(numpy_resid, "numpy_resid of mnp.linalg.lstsq") and (
        x.shape[0] <= x.shape[1] or int(rank) < x.shape[1]  # type: ignore[call-overload]
    ):
        residuals = creation.zeros(0, residuals.dtype)
    return basic.reshape(found, shape=found.shape[:1]) if vector else found, residuals, rank, s


def tensorinv(a: ArrayLike, ind: int = 2) -> Value:
    """The inverse of ``a`` as a map from its last dims to its first ``ind`` ones.

    >>> import meshwright.numpy as mnp
    >>> tensorinv(mnp.eye(4).reshape(2, 2, 4), ind=2).shape
    (4, 2, 2)
    """
    x = inexact(value(a))
    count = static_int(ind, "ind of mnp.linalg.tensorinv")
    rows, columns = x.shape[:count], x.shape[count:]
    if count < 1 or prod(rows) != prod(columns):
        raise ShapeError(
            f"mnp.linalg.tensorinv cannot take {x.type.short()} with ind={count}.",
            where=here(),
            why="the first ind dims have as many elements together as the others",
            fix="ind=2, for two of four dims",
        )
    return basic.reshape(inv(basic.reshape(x, shape=(prod(rows), prod(rows)))), shape=(*columns, *rows))


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Any = None) -> Value:
    """The ``x`` whose product with ``a``, over all dims of ``x``, is ``b``.

    >>> import meshwright.numpy as mnp
    >>> tensorsolve(mnp.eye(4).reshape(2, 2, 4), mnp.ones((2, 2))).shape
    (4,)
    """
    x, y = promoted_values(a, b, inexact=True)
    if axes is not None:
        moved = [axis_of(axis, x.ndim, "mnp.linalg.tensorsolve") for axis in axes]
        x = shapes.transpose(x, [d for d in range(x.ndim) if d not in moved] + moved)
    shape = x.shape[y.ndim :]
    if prod(shape) != y.size:
        raise ShapeError(
            f"mnp.linalg.tensorsolve cannot take {x.type.short()} and {y.type.short()}.",
            where=here(),
            why=f"the dims of a after those of b have {prod(shape)} elements, and b has {y.size}",
            fix="mnp.linalg.solve(a, b) for matrices",
        )
    found = solve(basic.reshape(x, shape=(y.size, y.size)), basic.reshape(y, shape=(y.size,)))
    return basic.reshape(found, shape=shape)

"""``scipy.linalg`` by JAX's names and arguments: what ``meshwright.numpy.linalg`` has, and more factorizations.

``overwrite_a`` and ``check_finite`` are taken and change nothing: no array is overwritten, and no number looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, promoted_values, value
from meshwright.arrays.static import one_of, static_flag, static_size
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax import linalg as _factorizations
from meshwright.numpy import abs as _abs
from meshwright.numpy import (
    arange,
    astype,
    atleast_2d,
    concatenate,
    conj,
    expand_dims,
    eye,
    floor,
    log2,
    matmul,
    maximum,
    ravel,
    swapaxes,
    take_along_axis,
    tril,
    triu,
    where,
    zeros,
)
from meshwright.numpy import linalg as _linalg

__all__ = [
    "block_diag",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "circulant",
    "det",
    "eigh",
    "expm",
    "hilbert",
    "inv",
    "lu",
    "lu_factor",
    "lu_solve",
    "polar",
    "qr",
    "solve",
    "solve_triangular",
    "svd",
    "toeplitz",
]


def cholesky(a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Value:
    """The triangular factor of positive definite matrices, by default the upper one.

    >>> import meshwright.numpy as mnp
    >>> cholesky(mnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 1.0], [0.0, 2.0]]
    """
    return _linalg.cholesky(a, upper=not static_flag(lower, "lower of cholesky"))


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Value, bool]:
    """The triangular factor of positive definite matrices, and which one it is, as ``cho_solve`` takes them."""
    return cholesky(a, lower), lower


def cho_solve(
    c_and_lower: tuple[ArrayLike, bool], b: ArrayLike, overwrite_b: bool = False, check_finite: bool = True
) -> Value:
    """The solution of ``a x = b`` from what ``cho_factor`` gives for ``a``.

    >>> import meshwright.numpy as mnp
    >>> cho_solve(cho_factor(mnp.array([[4.0, 2.0], [2.0, 5.0]])), mnp.array([6.0, 7.0])).tolist()
    [1.0, 1.0]
    """
    return _linalg.cho_solve((c_and_lower[0], bool(c_and_lower[1])), b)


def solve_triangular(
    a: ArrayLike, b: ArrayLike, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, debug: Any = None, check_finite: bool = True,
) -> Value:  # fmt: skip
    """The solution of ``a x = b`` for triangular ``a``; ``trans`` "T" or "C" turns ``a`` over.

    >>> import meshwright.numpy as mnp
    >>> solve_triangular(mnp.array([[2.0, 0.0], [1.0, 1.0]]), mnp.array([2.0, 3.0]), lower=True).tolist()
    [1.0, 2.0]
    """
    one_of(trans, (0, 1, 2, "N", "T", "C"), "trans of solve_triangular")
    return _linalg.triangular_solve(
        a, b, left_side=True, lower=lower, unit_diagonal=unit_diagonal,
        transpose_a=trans not in (0, "N"), conjugate_a=trans in (2, "C"),
    )  # fmt: skip


def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Value, Value]:
    """Both triangles of ``a`` with its rows exchanged, in one matrix, and which rows were."""
    both, pivots, _ = _factorizations.lu(a)
    return both, pivots


def lu_solve(
    lu_and_piv: tuple[ArrayLike, ArrayLike], b: ArrayLike, trans: int = 0, overwrite_b: bool = False,
    check_finite: bool = True,
) -> Value:  # fmt: skip
    """The solution of ``a x = b`` from what ``lu_factor`` gives for ``a``; with ``trans`` 1 of ``a.T``, with 2 of its
    conjugate.

    >>> import meshwright.numpy as mnp
    >>> lu_solve(lu_factor(mnp.array([[1.0, 2.0], [2.0, 1.0]])), mnp.array([5.0, 4.0])).tolist()
    [1.0, 2.0]
    """
    one_of(trans, (0, 1, 2), "trans of lu_solve")
    both, right = promoted_values(lu_and_piv[0], b, inexact=True)
    order = _factorizations.lu_pivots_to_permutation(lu_and_piv[1], both.shape[-1])
    vector = right.ndim == both.ndim - 1
    x = expand_dims(right, -1) if vector else right
    options = {"left_side": True, "conjugate_a": trans == 2}
    if trans == 0:
        x = take_along_axis(x, expand_dims(order, -1), -2)
        x = _linalg.triangular_solve(both, x, lower=True, unit_diagonal=True, **options)
        x = _linalg.triangular_solve(both, x, **options)
    else:
        x = _linalg.triangular_solve(both, x, transpose_a=True, **options)
        x = _linalg.triangular_solve(both, x, lower=True, unit_diagonal=True, transpose_a=True, **options)
        x = take_along_axis(x, expand_dims(order.argsort(-1), -1), -2)
    return x[..., 0] if vector else x  # type: ignore[index,no-any-return]


def lu(a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """``p``, ``l`` and ``u`` with ``p @ l @ u == a``; with ``permute_l``, ``p @ l`` and ``u``.

    >>> import meshwright.numpy as mnp
    >>> p, l, u = lu(mnp.array([[1.0, 2.0], [2.0, 1.0]]))
    >>> p.tolist(), u.tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [0.0, 1.5]])
    """
    both, _, order = _factorizations.lu(a)
    rows, columns = both.shape[-2:]
    size = min(rows, columns)
    kept: Any = both
    low = tril(kept[..., :, :size], -1) + eye(rows, size, dtype=both.dtype)
    high = triu(kept[..., :size, :])
    places: Any = order
    moved = astype(arange(rows)[:, None] == places[..., None, :], _real_dtype(both))
    return (matmul(moved, low), high) if static_flag(permute_l, "permute_l of lu") else (moved, low, high)


def _real_dtype(x: Value) -> Any:
    """The dtype of the absolute values of ``x``."""
    return np.dtype(x.dtype).type(0).real.dtype if x.dtype.kind == "c" else x.dtype


def solve(
    a: ArrayLike, b: ArrayLike, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    debug: bool = False, check_finite: bool = True, assume_a: str = "gen",
) -> Value:  # fmt: skip
    """The solution of ``a x = b``; ``assume_a="pos"`` says that ``a`` is positive definite."""
    one_of(assume_a, ("gen", "sym", "her", "pos"), "assume_a of solve")
    return cho_solve(cho_factor(a, lower), b) if assume_a == "pos" else _linalg.solve(a, b)


def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Value:
    """The inverse of matrices."""
    return _linalg.inv(a)


def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Value:
    """The determinants of matrices."""
    return _linalg.det(a)


def eigh(
    a: ArrayLike, b: ArrayLike | None = None, lower: bool = True, eigvals_only: bool = False,
    overwrite_a: bool = False, overwrite_b: bool = False, turbo: bool = True, eigvals: None = None, type: int = 1,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """The eigenvalues of Hermitian matrices, and their eigenvectors."""
    if b is not None or eigvals is not None or type != 1:
        raise ShapeError(
            "eigh is given b=, eigvals= or a type= other than 1.",
            where=here(),
            why="it solves a v = w v, for all of the eigenvalues",
            fix="eigh(a), after a change of variables by cholesky(b)",
        )
    half = "L" if static_flag(lower, "lower of eigh") else "U"
    if static_flag(eigvals_only, "eigvals_only of eigh"):
        return _linalg.eigvalsh(a, half)
    w, v = _linalg.eigh(a, half)
    return w, v


def svd(
    a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False,
    check_finite: bool = True, lapack_driver: str = "gesdd",
) -> Any:  # fmt: skip
    """The singular values of matrices, and the vectors on both sides."""
    found: Any = _linalg.svd(a, full_matrices, compute_uv)
    return tuple(found) if compute_uv else found


def qr(
    a: ArrayLike, overwrite_a: bool = False, lwork: Any = None, mode: str = "full", pivoting: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """``q`` and ``r`` with ``q @ r == a``, of modes "full", "economic" and "r"; with ``pivoting``, of ``a[:, p]``, and
    ``p``."""
    one_of(mode, ("full", "economic", "r"), "mode of qr")
    found = _factorizations.qr(a, pivoting=pivoting, full_matrices=mode != "economic")
    return found[1:] if mode == "r" else found


def polar(
    a: ArrayLike, side: str = "right", *, method: str = "qdwh", eps: Any = None, max_iterations: Any = None
) -> Any:
    """A unitary ``u`` and a positive ``p`` with ``u @ p == a``, or with ``side="left"`` ``p @ u``."""
    one_of(side, ("right", "left"), "side of polar")
    x = value(a)
    u, s, v = _linalg.svd(x, False)
    unitary = matmul(u, v)
    middle: Any = s
    if side == "left":
        return unitary, matmul(u * middle[..., None, :], conj(swapaxes(u, -1, -2)))
    return unitary, matmul(conj(swapaxes(v, -1, -2)) * middle[..., None, :], v)


_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Value:
    """The exponential of square matrices, by the quotient of two polynomials and squaring (Higham 2005); NaN where more
    squarings than ``max_squarings`` are needed.

    >>> import meshwright.numpy as mnp
    >>> expm(mnp.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    (a,) = promoted_values(A, inexact=True)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(
            f"expm cannot take {a.type.short()}.",
            where=here(),
            why="it takes a square matrix, or a stack of them",
            fix="mnp.exp(x) is the exponential of each element",
        )
    most = static_size(max_squarings, "max_squarings of expm")
    single = a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1) < 8
    norms: Any = _abs(a).sum(-2).max(-1)
    # Below this norm the quotient is right to the last place, in f32 (where it has order 7) by less.
    times = maximum(0, floor(log2(norms / (3.925724783138660 if single else 5.371920351148152))) + 1)
    x: Any = a / (2.0 ** astype(times, norms.dtype))[..., None, None]
    identity = eye(a.shape[-1], dtype=a.dtype)
    b = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0) if single else _PADE
    second = matmul(x, x)
    odd: Any = b[1] * identity
    even: Any = b[0] * identity
    power: Any = identity
    for n in range(2, len(b), 2):
        power = matmul(power, second)
        even = even + b[n] * power
        if n + 1 < len(b):
            odd = odd + b[n + 1] * power
    odd = matmul(x, odd)
    quotient = (
        solve_triangular(even - odd, even + odd) if static_flag(upper_triangular, "upper_triangular of expm")
        else _linalg.solve(even - odd, even + odd)
    )  # fmt: skip
    found: Any = quotient
    for n in range(most):
        found = where((n < times)[..., None, None], matmul(found, found), found)
    return where((times > most)[..., None, None], np.nan, found)  # type: ignore[no-any-return]


def block_diag(*arrs: ArrayLike) -> Value:
    """Matrices along the diagonal of a larger one, with zeros beside them.

    >>> block_diag(1.0, [[2.0, 3.0]]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 3.0]]
    """
    if not arrs:
        return zeros((1, 0))
    blocks = [atleast_2d(x) for x in promoted_values(*arrs)]
    wrong = next((x for x in blocks if x.ndim != 2), None)
    if wrong is not None:
        raise ShapeError(
            f"block_diag cannot take {wrong.type.short()}.", where=here(), why="blocks are matrices", fix="x[0]"
        )
    width, rows, before = sum(x.shape[1] for x in blocks), [], 0
    for x in blocks:
        after = width - before - x.shape[1]
        rows.append(concatenate([zeros((x.shape[0], before), x.dtype), x, zeros((x.shape[0], after), x.dtype)], 1))
        before += x.shape[1]
    return concatenate(rows)


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Value:
    """The matrix whose diagonals are constant: ``c`` is its first column and ``r`` its first row, but for the corner.

    >>> toeplitz([1, 2, 3], [0, 4]).tolist()
    [[1, 4], [2, 1], [3, 2]]
    """
    first, column = (c, c) if r is None else (r, c)
    x, y = promoted_values(ravel(column), ravel(conj(first) if r is None else first))
    rows, columns = x.size, y.size
    places = np.arange(rows)[:, None] - np.arange(columns)[None, :]
    both: Any = concatenate([y[:0:-1], x])  # type: ignore[index]
    return both[places + columns - 1]  # type: ignore[no-any-return]


def circulant(c: ArrayLike) -> Value:
    """The square matrix whose columns are ``c``, each moved on by one."""
    x: Any = ravel(c)
    return x[(np.arange(x.size)[:, None] - np.arange(x.size)[None, :]) % x.size]  # type: ignore[no-any-return]


def hilbert(n: int, dtype: DTypeLike = None) -> Value:
    """The matrix of ``1 / (row + column + 1)``."""
    size = static_size(n, "n of hilbert")
    places = arange(size)
    found: Any = 1.0 / (places[:, None] + places[None, :] + 1)
    return astype(found, found.dtype if dtype is None else dtype)  # type: ignore[no-any-return]

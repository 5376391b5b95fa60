"""Matrix factorizations and solves that answer NaN or infinity where NumPy raises."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Up to this size LAPACK's general solver, for which an upper triangle is already factored, beats splitting in two.
_DIRECT = 64


def cholesky(x: Array) -> Array:
    """The lower factor of each matrix, read from its lower triangle; NaN where a matrix is not positive definite."""
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        flat = x.reshape(-1, *x.shape[-2:])
        return np.stack([_cholesky_or_nan(matrix) for matrix in flat]).reshape(x.shape)


def _cholesky_or_nan(matrix: Array) -> Array:
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return np.tril(np.full_like(matrix, np.nan))


def solve_triangular(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    """``x`` with ``a @ x = b``, where only the lower (or upper) triangle of ``a`` is read."""
    n = a.shape[-1]
    if lower:  # seen from its last row and column, a lower triangle is an upper one
        return solve_triangular(a[..., ::-1, ::-1], b[..., ::-1, :], False, unit_diagonal)[..., ::-1, :]
    a = np.triu(a, 1 if unit_diagonal else 0)
    if unit_diagonal:
        a = a + np.eye(n, dtype=a.dtype)
    regular = np.diagonal(a, axis1=-2, axis2=-1).all() and np.isfinite(a).all()
    return _solve_upper(a, b) if regular else _substitute(a, b)


def _solve_upper(a: Array, b: Array) -> Array:
    n = a.shape[-1]
    if n <= _DIRECT:
        # Elimination meets zeros below the diagonal, so it neither swaps rows nor rounds.
        return np.linalg.solve(a, b)
    half = n // 2
    bottom = _solve_upper(a[..., half:, half:], b[..., half:, :])
    top = _solve_upper(a[..., :half, :half], b[..., :half, :] - a[..., :half, half:] @ bottom)
    return np.concatenate([top, bottom], axis=-2)


def _substitute(a: Array, b: Array) -> Array:
    """Back substitution row by row: it divides by zeros, and keeps infinities where they belong."""
    x = b.copy()
    with np.errstate(all="ignore"):
        for row in range(a.shape[-1] - 1, -1, -1):
            known = a[..., row : row + 1, row + 1 :] @ x[..., row + 1 :, :]
            x[..., row, :] = (x[..., row, :] - known[..., 0, :]) / a[..., row, row, None]
    return x


_PANEL = 32  # columns that are factored together before the rest of the matrix is updated


def lu(x: Array) -> tuple[Array, Array, Array]:
    """The factors of each matrix with rows exchanged: both triangles in one, the exchanges, the order of the rows."""
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    a = x.reshape(-1, m, n).copy()
    count, k = len(a), min(m, n)
    pivots = np.zeros((count, k), np.int32)
    order = np.broadcast_to(np.arange(m, dtype=np.int32), (count, m)).copy()
    every = np.arange(count)
    for start in range(0, k, _PANEL):
        stop = min(start + _PANEL, k)
        for j in range(start, stop):
            pivot = j + np.argmax(np.abs(a[:, j:, j]), axis=1)
            pivots[:, j] = pivot
            for whole in (a, order):
                here, there = whole[:, j].copy(), whole[every, pivot].copy()
                whole[:, j], whole[every, pivot] = there, here
            head = a[:, j, j, None]
            a[:, j + 1 :, j] /= np.where(head == 0, 1, head)
            a[:, j + 1 :, j + 1 : stop] -= a[:, j + 1 :, j, None] * a[:, None, j, j + 1 : stop]
        if stop < n:
            a[:, start:stop, stop:] = solve_triangular(
                a[:, start:stop, start:stop], a[:, start:stop, stop:], True, True
            )
            a[:, stop:, stop:] -= a[:, stop:, start:stop] @ a[:, start:stop, stop:]
    return a.reshape(x.shape), pivots.reshape(*lead, k), order.reshape(*lead, m)


def _or_nan(function: Any, x: Array) -> Any:
    """What ``function`` makes of each matrix; NaN of those on which NumPy gives up, such as ones with NaNs."""
    try:
        return function(x)
    except np.linalg.LinAlgError:
        flat = x.reshape(-1, *x.shape[-2:])
        clean = np.eye(*x.shape[-2:], dtype=x.dtype)
        kept = [matrix if np.isfinite(matrix).all() else clean for matrix in flat]
        bad = np.array([not np.isfinite(matrix).all() for matrix in flat]).reshape(x.shape[:-2])
        found = function(np.stack(kept).reshape(x.shape))
        return tuple(
            np.where(bad.reshape(*bad.shape, *[1] * (y.ndim - bad.ndim)), y.dtype.type(np.nan), y) for y in found
        )


def qr(x: Array, full: bool) -> tuple[Array, Array]:
    """Columns of length 1 at right angles, and the upper triangle that makes the matrix of them."""
    found = np.linalg.qr(x, "complete" if full else "reduced")
    return found.Q, found.R


def eigh(x: Array) -> tuple[Array, Array]:
    """The eigenvectors, as columns, and the increasing eigenvalues of Hermitian matrices, read from lower triangles."""
    found = _or_nan(lambda x: tuple(np.linalg.eigh(x, "L")), x)
    return found[1], found[0]


def svd(x: Array, full: bool, vectors: bool) -> tuple[Array, ...]:
    """The singular values, decreasing, and the vectors on both sides where they are asked for: ``(s, u, vh)``."""
    if not vectors:
        return _or_nan(lambda x: (np.linalg.svd(x, compute_uv=False),), x)  # type: ignore[no-any-return]
    u, s, vh = _or_nan(lambda x: tuple(np.linalg.svd(x, full)), x)
    return s, u, vh


def eig(x: Array) -> tuple[Array, Array]:
    """The eigenvalues and the eigenvectors, as columns of length 1, of any matrices: complex numbers."""
    dtype = np.result_type(x.dtype, np.complex64)
    values, vectors = _or_nan(lambda x: tuple(np.linalg.eig(x)), x)
    return values.astype(dtype), vectors.astype(dtype)

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

"""``jax.scipy.linalg`` here and in JAX: values, dtypes and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as theirs
import numpy as np
import pytest

import meshwright.jax as mj
import meshwright.jax.numpy as mnp
import meshwright.jax.scipy.linalg as ours

RANDOM = np.random.default_rng(0)
A = RANDOM.normal(size=(2, 4, 4)).astype(np.float32)
S = (A @ A.transpose(0, 2, 1) + np.eye(4)).astype(np.float32)
B = RANDOM.normal(size=(2, 4, 3)).astype(np.float32)
C = RANDOM.normal(size=(4, 3)).astype(np.float32)
Z = (A[0] + 1j * A[1]).astype(np.complex64)

CALLS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda m: (m.cholesky(S), m.cholesky(S, lower=True)),
    "cho_solve": lambda m: (
        m.cho_solve(m.cho_factor(S[0]), B[0]), m.cho_solve(m.cho_factor(S[0], lower=True), B[0, :, 0]),
    ),
    "solve_triangular": lambda m: (
        m.solve_triangular(A[0], B[0]), m.solve_triangular(Z, B[0], trans=2),
        m.solve_triangular(A[0], B[0], trans="T", lower=True, unit_diagonal=True),
    ),
    "lu": lambda m: (*m.lu(A[0]), *m.lu(C), *m.lu(C.T), *m.lu(A[0], permute_l=True), *m.lu_factor(A)),
    "lu_solve": lambda m: (
        m.lu_solve(m.lu_factor(A[0]), B[0]), m.lu_solve(m.lu_factor(A[0]), B[0, :, 0], trans=1),
        m.lu_solve(m.lu_factor(Z), B[0] + 0j, trans=2),
    ),
    "solve": lambda m: (m.solve(A, B), m.solve(S[0], B[0], assume_a="pos"), m.inv(A), m.det(A)),
    "eigh": lambda m: (m.eigh(S[0], eigvals_only=True), abs(m.eigh(S[0])[1])),
    "svd": lambda m: (m.svd(C, compute_uv=False), *map(abs, m.svd(C, full_matrices=False))),
    "qr": lambda m: (*map(abs, m.qr(C, mode="r")), *map(abs, m.qr(C, mode="economic")), *map(abs, m.qr(A[0]))),
    "polar": lambda m: m.polar(A[0]),
    "expm": lambda m: (m.expm(A[0]), m.expm(A * 3), m.expm(Z), m.expm(np.triu(A[0]), upper_triangular=True)),
    "expm of large": lambda m: m.expm(A[0] * 100, max_squarings=3),
    "block_diag": lambda m: (
        m.block_diag(A[0], 1.0, C), m.block_diag(np.array([1, 2]), np.array([[3.0]], np.float32)), m.block_diag(),
    ),
    "toeplitz": lambda m: (m.toeplitz(C[:, 0], C[1]), m.toeplitz(Z[0])),
    "hilbert": lambda m: m.hilbert(4),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_that_of_jax_gives(name: str) -> None:
    actual, expected = (found if isinstance(found := CALLS[name](m), tuple) else (found,) for m in (ours, theirs))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        wanted = np.asarray(other)
        assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape)
        largest = max(1.0, float(np.nanmax(np.abs(wanted), initial=1.0)))
        np.testing.assert_allclose(np.asarray(one), wanted, rtol=2e-4, atol=2e-5 * largest)


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "expm": lambda m, n, a: m.expm(a).sum(),
    "lu": lambda m, n, a: (m.lu(a)[1] ** 2).sum(),
    "cho_solve": lambda m, n, a: m.cho_solve(m.cho_factor(a @ a.T + n.eye(4)), B[0]).sum(),
    "lu_solve": lambda m, n, a: m.lu_solve(m.lu_factor(a), B[0]).sum(),
    "block_diag": lambda m, n, a: (m.block_diag(a, a[0]) ** 2).sum(),
    "toeplitz": lambda m, n, a: (m.toeplitz(a[0], a[1]) ** 2 * A[0]).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_derivative_is_that_of_jax(name: str) -> None:
    actual = np.asarray(mj.jit(mj.grad(lambda a: LOSSES[name](ours, mnp, a)))(A[0]))
    expected = np.asarray(jax.jit(jax.grad(lambda a: LOSSES[name](theirs, jnp, a)))(A[0]))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_stacks_of_matrices_are_taken_one_by_one() -> None:
    p, low, high = ours.lu(A)
    np.testing.assert_allclose(np.asarray(p @ low @ high), A, atol=1e-6)


def test_what_is_not_taken_is_said() -> None:
    with pytest.raises(TypeError) as error:
        ours.expm(C)
    assert "\n".join(line for line in str(error.value).splitlines() if "at:" not in line) == (
        "expm cannot take f32[4,3].\n"
        "  why:  it takes a square matrix, or a stack of them\n"
        "  fix:  mnp.exp(x) is the exponential of each element"
    )
    with pytest.raises(TypeError, match="eigh is given b=") as error:
        ours.eigh(S[0], S[0])
    with pytest.raises(AttributeError, match="schur is not part of"):
        ours.schur(A)

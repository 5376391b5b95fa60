"""Linear algebra beyond the samples: matrices larger than a block, singular and not positive definite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax import lax

from meshwright.ops.linalg import cholesky, fft, triangular_solve

FLAGS = {"left_side": True, "lower": True, "transpose_a": False, "conjugate_a": False, "unit_diagonal": False}


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_a_solve_larger_than_a_block_is_that_of_jax(left_side: bool, lower: bool, unit_diagonal: bool) -> None:
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((2, 150, 150)) / 150 + np.eye(150)).astype(np.float32)
    b = rng.standard_normal((2, 150, 7) if left_side else (2, 7, 150)).astype(np.float32)
    flags = {**FLAGS, "left_side": left_side, "lower": lower, "unit_diagonal": unit_diagonal}
    ours = triangular_solve(a, b, **flags).data
    np.testing.assert_allclose(ours, lax.linalg.triangular_solve(a, b, **flags), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lower", [True, False])
def test_a_singular_solve_divides_by_zero(lower: bool) -> None:
    a = np.array([[1.0, 2.0, 3.0], [4.0, 0.0, 5.0], [6.0, 7.0, 8.0]], np.float32)
    b = np.array([[1.0], [2.0], [3.0]], np.float32)
    flags = {**FLAGS, "lower": lower}
    np.testing.assert_array_equal(triangular_solve(a, b, **flags).data, lax.linalg.triangular_solve(a, b, **flags))


def test_an_infinity_stays_in_its_triangle() -> None:
    a = np.array([[1.0, np.nan], [np.inf, 1.0]], np.float32)
    b = np.array([[1.0], [2.0]], np.float32)
    np.testing.assert_array_equal(triangular_solve(a, b, **FLAGS).data, [[1.0], [-np.inf]])


def test_only_the_matrices_without_a_cholesky_factor_are_nan() -> None:
    x = np.stack([4 * np.eye(2), -np.eye(2), 9 * np.eye(2)]).astype(np.float32)
    expected: Any = lax.linalg.cholesky(x)
    np.testing.assert_array_equal(cholesky(x).data, expected)


def test_cholesky_takes_the_symmetric_part() -> None:
    x = np.array([[4.0, 2.0], [0.0, 5.0]], np.float32)
    np.testing.assert_allclose(cholesky(x).data, np.linalg.cholesky((x + x.T) / 2), rtol=1e-6)


@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
def test_a_transform_of_no_dims_changes_at_most_the_dtype(kind: str) -> None:
    x = np.array([1.0, -2.0], np.float32)
    x = x if kind == "rfft" else x + 1j * x[::-1]
    out = fft(x, kind=kind, lengths=())
    np.testing.assert_array_equal(out.data, x.real if kind == "irfft" else x)
    assert out.data.dtype == out.dtype == (np.float32 if kind == "irfft" else np.complex64)

"""Solutions whose derivatives follow from the equation, against JAX's and against differentiating through."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as mjax

RANDOM = np.random.default_rng(1)
MATRIX = (RANDOM.standard_normal((4, 4)) + 4 * np.eye(4)).astype("f")
SIDE = RANDOM.standard_normal(4).astype("f")


def dense(p: Any) -> Any:
    """A solver of any linear function."""
    return lambda product, b: p.numpy.linalg.solve(p.jacobian(product)(b), b)


def descent(p: Any) -> Any:
    """A solver by a loop, which cannot be differentiated backwards."""

    def solve(product: Any, b: Any) -> Any:
        going = lambda state: (state[1] < 200) & (p.numpy.abs(b - product(state[0])).max() > 1e-6)
        return p.lax.while_loop(going, lambda s: (s[0] + 0.2 * (b - product(s[0])), s[1] + 1), (0 * b, 0))[0]

    return solve


def test_a_linear_system_and_its_derivatives() -> None:
    for solver in (dense, descent):
        slopes = []
        for p in (jax, mjax):

            def loss(a: Any, b: Any, p: Any = p, solver: Any = solver) -> Any:
                x = p.lax.custom_linear_solve(lambda x: a @ x, b, solver(p), solver(p))
                return p.numpy.sum(p.numpy.sin(x))

            slopes.append(p.jit(p.value_and_grad(loss, (0, 1)))(MATRIX, SIDE))
        (their_value, theirs), (our_value, ours) = slopes
        np.testing.assert_allclose(our_value, their_value, rtol=1e-4)
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


def test_a_system_with_more_beside_its_solution() -> None:
    def loss(p: Any, b: Any) -> Any:
        solve = lambda product, b: (dense(p)(product, b), 7)
        x, seven = p.lax.custom_linear_solve(lambda x: (MATRIX + MATRIX.T) @ x, b, solve, symmetric=True, has_aux=True)
        return p.numpy.sum(x**2) + 0 * seven

    ours, theirs = mjax.grad(lambda b: loss(mjax, b))(SIDE), jax.grad(lambda b: loss(jax, b))(SIDE)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_solver_that_closes_over_the_matrix_and_second_derivatives() -> None:
    found = []
    for p in (jax, mjax):

        def loss(a: Any, p: Any = p) -> Any:
            solve = lambda _, b: p.numpy.linalg.solve(a, b)
            back = lambda _, b: p.numpy.linalg.solve(a.T, b)
            return p.numpy.sum(p.lax.custom_linear_solve(lambda x: a @ x, SIDE, solve, back) ** 3)

        slope = p.grad(loss)
        found.append((slope(MATRIX), p.grad(lambda a: p.numpy.sum(slope(a) ** 2))(MATRIX)))  # noqa: B023
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_root_and_its_derivative() -> None:
    def newton(p: Any) -> Any:
        return lambda f, x: p.lax.fori_loop(0, 30, lambda n, x: x - 0.3 * f(x), x)

    def root(p: Any, a: Any) -> Any:
        x = p.lax.custom_root(lambda x: p.numpy.tanh(x) + x - a, 0 * a, newton(p), lambda g, y: dense(p)(g, y))
        return p.numpy.sum(x * x)

    ours, theirs = mjax.grad(lambda a: root(mjax, a))(SIDE), jax.grad(lambda a: root(jax, a))(SIDE)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_system_without_its_transposed_solver_is_refused_where_it_is_needed() -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        mw.grad(lambda b: mw.lax.custom_linear_solve(lambda x: MATRIX @ x, b, dense(mjax)).sum())(SIDE)
    assert error.value.what == "lax.custom_linear_solve has no derivative here."
    assert error.value.fix is not None and error.value.fix.startswith("transpose_solve=solve")

"""``from_jax`` of functions whose primitives are compositions here: gamma samples, Bessel functions, factorizations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw

X = np.random.default_rng(0).uniform(0.2, 3.0, (4, 4)).astype("f")

FUNCTIONS = {
    "gamma": lambda x: jax.random.gamma(jax.random.key(1), x),
    "dirichlet of keys in a batch": lambda x: jax.vmap(lambda k: jax.random.dirichlet(k, x[0]))(
        jax.random.split(jax.random.key(2), 3)
    ),
    "reduce_xor": lambda x: jax.lax.reduce_xor(x.astype("int32"), (0,)),
    "igamma": lambda x: jax.lax.igamma(x, x + 1),
    "betainc": lambda x: jax.lax.betainc(x, x + 1, x / 4),
    "bessel": lambda x: jax.lax.bessel_i0e(x) + jax.lax.bessel_i1e(x),
    "zeta": lambda x: jax.lax.zeta(x + 1, x),
    "qr with pivoting": lambda x: jax.lax.linalg.qr(x, pivoting=True)[1],
    "householder_product": lambda x: jax.lax.linalg.householder_product(x, x[0]),
    "tridiagonal_solve": lambda x: jax.lax.linalg.tridiagonal_solve(x[0], x[1] + 4, x[2], x),
    "approx_max_k": lambda x: jax.lax.approx_max_k(x, 2)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_read_from_jax_has_its_values(name: str) -> None:
    f: Any = FUNCTIONS[name]
    np.testing.assert_allclose(mw.jit(mw.interop.jax.from_jax(f))(X), f(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gamma", "igamma", "bessel"])
def test_a_function_read_from_jax_has_its_derivative(name: str) -> None:
    f: Any = FUNCTIONS[name]
    ours = mw.grad(lambda x: mw.interop.jax.from_jax(f)(x).sum())(X)
    np.testing.assert_allclose(ours, jax.grad(lambda x: f(x).sum())(X), rtol=5e-3, atol=1e-3)

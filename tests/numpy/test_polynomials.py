"""Polynomials, windows and further distributions against JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as ours
import meshwright.numpy as mnp

P, Q = np.array([1.0, -2.0, 3.0], np.float32), np.array([2.0, 1.0], np.float32)
X = np.linspace(0, 2, 9, dtype=np.float32)
CALLS: dict[str, Any] = {
    "polyadd": lambda n: n.polyadd(P, Q),
    "polysub": lambda n: n.polysub(Q, P),
    "polymul": lambda n: n.polymul(P, Q),
    "polyder": lambda n: [n.polyder(P), n.polyder(P, 2)],
    "polyint": lambda n: [n.polyint(P), n.polyint(P, 2, k=np.array([1.0, 2.0], np.float32))],
    "poly": lambda n: n.poly(P),
    "polyval": lambda n: [n.polyval(P, X), n.polyval(np.stack([P, P + 1], 1), 0.5), n.polyval(P[:, None] + X, X)],
    "polyfit": lambda n: n.polyfit(X, np.sin(X), 3),
    "weighted": lambda n: n.polyfit(X, np.stack([np.sin(X), X**2], 1), 2, w=X + 1),
    "windows": lambda n: [n.bartlett(5), n.blackman(6), n.hamming(5), n.hanning(4), n.kaiser(5, 3.0)],
    "matvec": lambda n: [n.matvec(np.ones((2, 4, 3), np.float32), P), n.vecmat(P, np.ones((3, 2), np.float32))],
}
MEAN, COV = np.array([1.0, 2.0], np.float32), np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)
DRAWN: dict[str, tuple[Any, ...]] = {
    "lognormal": (0.5, (4,)),
    "rayleigh": (2.0, (4,)),
    "pareto": (3.0, (4,)),
    "weibull_min": (1.5, 2.0, (4,)),
    "maxwell": ((4,),),
    "double_sided_maxwell": (MEAN, 2.0),
    "triangular": (0.0, 1.0, 3.0, (4,)),
    "wald": (MEAN, (3, 2)),
    "geometric": (0.3, (6,)),
    "multivariate_normal": (MEAN, COV, (3,)),
    "orthogonal": (3, (2,)),
}


def close(actual: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_jax(name: str):
    close(CALLS[name](mnp), CALLS[name](jnp))


@pytest.mark.parametrize("name", DRAWN)
def test_samples_are_those_of_jax(name: str):
    close(
        getattr(mw.random, name)(mw.random.key(3), *DRAWN[name]),
        getattr(jax.random, name)(jax.random.key(3), *DRAWN[name]),
    )


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
def test_segments(name: str):
    ids = np.array([0, 0, 2, 1, 2, 5, 9, 1, 1])
    close(getattr(ours.ops, name)(X, ids, 7), getattr(jax.ops, name)(X, ids, 7))
    whole = np.arange(9)
    close(getattr(ours.ops, name)(whole, ids), getattr(jax.ops, name)(whole, ids))


def test_a_ragged_product_is_that_of_each_group():
    rows, weights = (
        np.arange(24.0, dtype=np.float32).reshape(6, 4) / 9,
        np.arange(24.0, dtype=np.float32).reshape(3, 4, 2),
    )
    sizes = np.array([2, 0, 3], np.int32)
    f = lambda j: lambda x, w: (j.lax.ragged_dot(x, w, sizes)[:5] ** 2).sum()
    close(ours.lax.ragged_dot(rows, weights, sizes)[:5], jax.lax.ragged_dot(rows, weights, sizes)[:5])
    close(ours.grad(f(ours), (0, 1))(rows, weights / 20), jax.grad(f(jax), (0, 1))(rows, weights / 20))

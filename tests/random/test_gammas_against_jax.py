"""Gamma samples and what is made of them, Poisson and binomial numbers: those of ``jax.random``, and their slopes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

# A call of the package's `random`, and by how much its numbers may be off.
SAMPLES = {
    "gamma": (lambda r, k: r.gamma(k, np.array([0.1, 0.7, 1.0, 3.0, 50.0], "f"), (400, 5)), 1e-5),
    "gamma above 1": (lambda r, k: r.gamma(k, 3.0, (2000,)), 1e-6),
    "gamma of bf16": (lambda r, k: r.gamma(k, 2.0, (500,), "bfloat16"), 0.0),
    "loggamma": (lambda r, k: r.loggamma(k, np.array([0.01, 0.7, 3.0], "f"), (400, 3)), 1e-5),
    "beta": (lambda r, k: r.beta(k, 0.5, np.array([1.0, 2.0], "f"), (400, 2)), 1e-5),
    "dirichlet": (lambda r, k: r.dirichlet(k, np.array([0.5, 1.0, 2.0], "f"), (400,)), 1e-5),
    "chisquare": (lambda r, k: r.chisquare(k, 3.0, (400,)), 1e-5),
    "f": (lambda r, k: r.f(k, 3.0, 4.0, (400,)), 1e-5),
    "t": (lambda r, k: r.t(k, 3.0, (2000,)), 0.0),
    "generalized_normal": (lambda r, k: r.generalized_normal(k, 1.5, (400,)), 1e-5),
    "ball": (lambda r, k: r.ball(k, 3, shape=(400,)), 1e-5),
    "poisson": (lambda r, k: r.poisson(k, np.array([0.0, 0.5, 3.0, 9.0, 20.0, 200.0], "f"), (400, 6)), 0.0),
    "binomial": (
        lambda r, k: r.binomial(
            k, np.array([0, 5, 10, 100, 1000], "f"), np.array([0.3, 1.0, 0.3, 0.5, 0.9], "f"), (400, 5)
        ),
        0.0,
    ),
    "multinomial": (lambda r, k: r.multinomial(k, 50, np.tile(np.array([0.2, 0.3, 0.5], "f"), (100, 1))), 0.0),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_those_of_jax(name: str) -> None:
    draw, within = SAMPLES[name]
    theirs = np.asarray(draw(jax.random, jax.random.key(11)))
    ours = np.asarray(draw(mw.random, mw.random.key(11)))
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    ours, theirs = ours.astype("f"), theirs.astype("f")
    if within:
        np.testing.assert_allclose(ours, theirs, rtol=within, atol=within)
    else:
        np.testing.assert_array_equal(ours, theirs)


def test_samples_are_the_same_on_a_mesh() -> None:
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    place = mw.NamedSharding(mesh, mw.P("x", "y"))
    a = np.linspace(0.2, 5, 64, dtype="f").reshape(8, 8)
    key = mw.random.key(5)
    for draw in (mw.random.gamma, mw.random.poisson):
        alone = np.asarray(draw(key, a))
        spread = mw.jit(lambda a, draw=draw: draw(key, a))(mw.device_put(a, place))
        np.testing.assert_array_equal(np.asarray(spread), alone)


def test_slopes_are_those_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """In f64: in f32 those of JAX are right to two digits at places."""
    monkeypatch.setattr(mw.config, "enable_x64", True)
    a = np.array([0.3, 1.0, 4.0])
    for draw in (
        lambda r, k, a: r.gamma(k, a).sum(),
        lambda r, k, a: r.loggamma(k, a).sum(),
        lambda r, k, a: r.dirichlet(k, a, (4,))[:, 0].sum(),
        lambda r, k, a: r.beta(k, a, 2 * a).sum(),
        lambda r, k, a: r.t(k, a, (3,)).sum(),
    ):
        with jax.enable_x64(True):
            theirs = np.asarray(jax.grad(lambda a, draw=draw: draw(jax.random, jax.random.key(2), a))(a))
        ours = mw.grad(lambda a, draw=draw: draw(mw.random, mw.random.key(2), a))(a)
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


def test_keys_in_a_batch_have_the_samples_they_have_alone() -> None:
    keys = mw.random.split(mw.random.key(1), 4)
    together = mw.vmap(lambda k: mw.random.gamma(k, 0.6, (5,)))(keys)
    for n in range(4):
        np.testing.assert_array_equal(together[n], mw.random.gamma(keys[n], 0.6, (5,)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_samples_are_those_of_jax(seed: int) -> None:
    random: Any = np.random.default_rng(seed)
    a = np.exp(random.uniform(-3, 5, (64,))).astype("f")
    key, their_key = mw.random.key(seed), jax.random.key(seed)
    ours, theirs = (np.asarray(r.gamma(k, a, (500, 64))) for r, k in ((mw.random, key), (jax.random, their_key)))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-7)
    ours, theirs = (np.asarray(r.poisson(k, a, (500, 64))) for r, k in ((mw.random, key), (jax.random, their_key)))
    assert (ours == theirs).mean() > 0.9995  # above a rate of 10, lgamma's last digit decides about few of them


def test_parameters_that_do_not_broadcast():
    with pytest.raises(mw.errors.ShapeError) as error:
        mw.random.beta(mw.random.key(0), mnp.ones(2), mnp.ones(3))
    assert error.value.what == "beta cannot spread a f32[2] and b f32[3] over one shape."
    assert error.value.fix == "give the parameters one shape, or sizes of 1"
    with pytest.raises(mw.errors.ShapeError) as error:
        mw.random.triangular(mw.random.key(0), mnp.zeros(2), 0.5, 1.0, shape=(3,))
    assert error.value.what == "triangular cannot spread left f32[2] over shape (3,)."

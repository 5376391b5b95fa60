"""Functions of flax, equinox and optax read here, against JAX itself (`make flax` installs them; elsewhere skipped)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.interop.jax import from_jax, register_containers

linen = pytest.importorskip("flax.linen", reason="flax is not installed: make flax")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: make flax")
optax = pytest.importorskip("optax", reason="optax is not installed: make flax")
equinox = pytest.importorskip("equinox", reason="equinox is not installed: make flax")
KEY = jax.random.key(0)


def images() -> Any:
    return np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def rows() -> Any:
    return np.random.default_rng(1).normal(size=(4, 6, 8)).astype(np.float32)


class Residual(linen.Module):  # type: ignore[misc,name-defined]
    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.Conv(8, (3, 3))(x)
        y = linen.relu(linen.BatchNorm(use_running_average=True)(y))
        return linen.Dense(5)((linen.Conv(8, (3, 3), (2, 2))(y) + linen.avg_pool(y, (2, 2), (2, 2))).mean((1, 2)))


class Recurrent(linen.Module):  # type: ignore[misc,name-defined]
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.RNN(linen.OptimizedLSTMCell(8))(x)


class Encoder(linen.Module):  # type: ignore[misc,name-defined]
    @linen.compact
    def __call__(self, x: Any) -> Any:
        layer = linen.remat(linen.MultiHeadDotProductAttention)(num_heads=2)
        x = x + layer(linen.LayerNorm()(x))
        x = linen.Dropout(0.5, deterministic=False)(x, rng=jax.random.key(3))
        return linen.Dense(8)(linen.gelu(linen.RMSNorm()(x)))


class Perceptron(nnx.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.second = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(self.second(nnx.silu(self.first(x))) + x)


def of_linen(module: Any, x: Any) -> tuple[Callable[..., Any], Any, Any]:
    return lambda params, x: module.apply(params, x), module.init(KEY, x), x


def of_nnx(module: Any, x: Any) -> tuple[Callable[..., Any], Any, Any]:
    definition, state = nnx.split(module)
    return lambda state, x: nnx.merge(definition, state)(x), state, x


def of_equinox(module: Any, x: Any) -> tuple[Callable[..., Any], Any, Any]:
    params, static = equinox.partition(module, equinox.is_inexact_array)
    return lambda params, x: jax.vmap(equinox.combine(params, static))(x), params, x


MODELS: dict[str, Callable[[], tuple[Callable[..., Any], Any, Any]]] = {
    "a residual network of linen": lambda: of_linen(Residual(), images()),
    "an LSTM of linen": lambda: of_linen(Recurrent(), rows()),
    "an encoder of linen": lambda: of_linen(Encoder(), rows()),
    "a perceptron of nnx": lambda: of_nnx(Perceptron(), rows()),
    "attention of nnx": lambda: of_nnx(nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)), rows()),
    "a perceptron of equinox": lambda: of_equinox(equinox.nn.MLP(8, 4, 16, 2, key=KEY), rows()[:, 0]),
    "a norm of equinox": lambda: of_equinox(equinox.nn.LayerNorm((6, 8)), rows()),
    "a convolution of equinox": lambda: of_equinox(
        equinox.nn.Conv2d(8, 4, 3, key=KEY), np.random.default_rng(2).normal(size=(2, 8, 6, 6)).astype(np.float32)
    ),
}


def close(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    function, params, x = MODELS[name]()
    close(from_jax(function)(params, x), jax.jit(function)(params, x))
    loss = lambda params, x: jnp.mean(function(params, x) ** 2)
    expected = jax.jit(jax.grad(loss))(params, x)
    close(from_jax(jax.grad(loss))(params, x), expected)
    register_containers(params)
    close(mw.jit(mw.grad(from_jax(loss)))(params, x), expected)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adafactor", "lion", "lamb", "rmsprop", "clipped", "sign"])
def test_optimizers(name: str) -> None:
    optimizer = {
        "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(optax.linear_schedule(0.1, 0, 9))),
        "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
        "sign": lambda: optax.sign_sgd(0.1),
    }.get(name, lambda: getattr(optax, name)(0.1))()
    params = {"w": jnp.asarray(rows()[0]), "b": jnp.ones(8)}
    state = optimizer.init(params)

    def step(params: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.mean((x @ p["w"].T + p["b"].sum()) ** 2))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    ours, theirs = (params, state), (params, state)
    for _ in range(3):
        ours, theirs = from_jax(step)(*ours, rows()[1]), jax.jit(step)(*theirs, rows()[1])
        close(ours, theirs)

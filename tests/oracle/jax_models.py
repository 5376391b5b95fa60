"""Modules that JAX makes of models: with a mesh, a few shardings, loops, scans and manual regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))


def array(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, PartitionSpec(*spec)))


def lowered(function: Callable[..., Any], *args: Any) -> str:
    """The module of a function, for any machine."""
    return str(jax.jit(function).trace(*args).lower(lowering_platforms=("tpu",)).as_text())


def _layer(x: Any, p: dict[str, Any]) -> Any:
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    q, k, v = (jnp.einsum("bsd,dnh->bsnh", h, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bsnh,btnh->bnst", q, k) / 4.0
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
    x = x + jnp.einsum("bnst,btnh,nhd->bsd", weights, v, p["o"])
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def _layer_shapes() -> dict[str, Any]:
    heads = {name: array((32, 4, 8), None, "y", None) for name in ("q", "k", "v")}
    return {**heads, "o": array((4, 8, 32)), "up": array((32, 64), None, "y"), "down": array((64, 32), "y", None)}


def transformer(layers: int, gradient: bool) -> str:
    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens]
        for p in params["layers"]:
            x = _layer(x, p)
        logits = x @ params["embed"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
        return -picked.mean()

    params = {"embed": array((64, 32), "y", None), "layers": [_layer_shapes() for _ in range(layers)]}
    tokens = array((8, 16), "x", None, dtype=jnp.int32)
    return lowered(jax.grad(loss) if gradient else loss, params, tokens)


def scanned() -> str:
    """The layers in one loop, their parameters stacked."""

    def loss(params: Any, x: Any) -> Any:
        out, _ = jax.lax.scan(lambda x, p: (_layer(x, p), None), x, params)
        return out.sum()

    def stacked(t: Any) -> Any:
        return array((3, *t.shape), None, *t.sharding.spec)

    return lowered(jax.grad(loss), {k: stacked(v) for k, v in _layer_shapes().items()}, array((8, 16, 32), "x"))


def mlp() -> str:
    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jax.nn.relu(x @ w)
        return (x**2).sum()

    return lowered(jax.grad(loss), [array((32, 64), None, "y"), array((64, 32))], array((16, 32), "x", None))


def convolutional() -> str:
    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.mean()

    ws = [array((8, 3, 3, 3), "y"), array((16, 8, 3, 3), None, "y")]
    return lowered(jax.grad(loss), ws, array((8, 3, 16, 16), "x"))


def mixture() -> str:
    """Each token goes to the expert that fits it best."""

    def apply(gate: Any, experts: Any, x: Any) -> Any:
        weights = jax.nn.softmax(x @ gate)
        best, place = jax.lax.top_k(weights, 2)
        chosen = jax.nn.one_hot(place, gate.shape[-1]) * best[..., None]
        outs = jnp.einsum("td,edf->tef", x, experts)
        return jnp.einsum("tke,tef->tf", chosen, outs)

    return lowered(apply, array((32, 8)), array((8, 32, 16), "y"), array((64, 32), "x", None))


def manual() -> str:
    """A manual region with a collective in it, inside an automatic program."""

    def inside(x: Any) -> Any:
        return jax.lax.psum(jnp.sin(x), "x")

    def apply(x: Any, w: Any) -> Any:
        spec = PartitionSpec("x", None)
        y = jax.shard_map(inside, mesh=MESH, in_specs=spec, out_specs=PartitionSpec(None, None), axis_names={"x"})(
            x @ w
        )
        return jnp.cos(y) + 1

    return lowered(apply, array((16, 32), "x", None), array((32, 8), None, "y"))


def constrained() -> str:
    def apply(x: Any, w: Any) -> Any:
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, PartitionSpec("y", "x")))
        y = jax.lax.fori_loop(0, 4, lambda i, v: v * 2 + i, y)
        return jax.lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y)

    return lowered(apply, array((16, 32), "x", None), array((32, 8)))


MODELS: dict[str, Callable[[], str]] = {
    "mlp": mlp,
    "convolutional": convolutional,
    "mixture": mixture,
    "scanned": scanned,
    "manual": manual,
    "constrained": constrained,
    "transformer": lambda: transformer(1, False),
    "transformer gradient": lambda: transformer(1, True),
    "4 layers": lambda: transformer(4, False),
    "4 layers gradient": lambda: transformer(4, True),
}
DEEP: dict[str, Callable[[], str]] = {
    "40 layers": lambda: transformer(40, False),
    "40 layers gradient": lambda: transformer(40, True),
}

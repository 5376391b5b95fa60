"""A mixture of experts in plain JAX: routing, ragged products, and experts on devices of their own by shard_map."""

import argparse
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 64, 16, 32, 8, 2


def init(key):
    keys = jax.random.split(key, 5)
    return {
        "in": jax.random.normal(keys[0], (WIDTH, WIDTH)) * WIDTH**-0.5,
        "router": jax.random.normal(keys[1], (WIDTH, EXPERTS)) * WIDTH**-0.5,
        "w1": jax.random.normal(keys[2], (EXPERTS, WIDTH, HIDDEN)) * WIDTH**-0.5,
        "w2": jax.random.normal(keys[3], (EXPERTS, HIDDEN, WIDTH)) * HIDDEN**-0.5,
        "out": jax.random.normal(keys[4], (WIDTH,)) * WIDTH**-0.5,
    }


def route(x, router):
    """The experts of each token, and the weight of each."""
    weights, experts = lax.top_k(jax.nn.softmax(x @ router, axis=-1), CHOSEN)
    return weights / jnp.sum(weights, axis=-1, keepdims=True), experts


def experts_of(x, w1, w2, experts, first, count):
    """What the experts from ``first`` on make of the tokens that chose them, sorted by expert; zero for all others."""
    local = experts.reshape(-1) - first
    key = jnp.where((local >= 0) & (local < count), local, count)
    order = jnp.argsort(key, stable=True)
    sizes = jnp.bincount(key, length=count + 1)[:count]
    mine = (key[order] < count)[:, None]  # what a ragged product makes of rows of no group is nobody's business
    rows = jnp.where(mine, jnp.repeat(x, CHOSEN, axis=0)[order], 0.0)
    hidden = jnp.where(mine, jax.nn.gelu(lax.ragged_dot(rows, w1, sizes)), 0.0)
    out = jnp.where(mine, lax.ragged_dot(hidden, w2, sizes), 0.0)
    return jnp.zeros_like(out).at[order].set(out)


def on_one_device(x, w1, w2, experts):
    return experts_of(x, w1, w2, experts, 0, EXPERTS)


def expert_parallel(mesh, batch, axis):
    """Tokens go to all devices of the expert axis, each of which has some of the experts; results are summed."""

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(batch), P(axis), P(axis), P(batch)), out_specs=P(batch))
    def layer(x, w1, w2, experts):
        count = w1.shape[0]
        first = lax.axis_index(axis) * count
        x = lax.pcast(x, axis, to="varying")  # each device makes something else of it
        return lax.psum(experts_of(x, w1, w2, experts, first, count), axis)

    return layer


def loss(params, x, target, layer):
    h = jnp.tanh(x @ params["in"])
    weights, experts = route(h, params["router"])
    out = layer(h, params["w1"], params["w2"], experts).reshape(-1, CHOSEN, WIDTH)
    h = h + jnp.sum(out * weights[..., None], axis=1)
    return jnp.mean(jnp.square(h @ params["out"] - target))


def run(shape=(), explicit=False):
    """The loss and every gradient."""
    params = init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (TOKENS, WIDTH))
    target = jax.random.normal(jax.random.key(2), (TOKENS,))
    layer = on_one_device
    if shape:
        names = ("data", "expert") if len(shape) == 2 else ("pod", "data", "expert")
        batch = names[:-1] if len(names) > 2 else names[0]
        kind = AxisType.Explicit if explicit else AxisType.Auto
        mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))
        layer = expert_parallel(mesh, batch, "expert")
        specs = {"in": P(), "router": P(), "w1": P("expert"), "w2": P("expert"), "out": P()}
        params = {name: jax.device_put(w, NamedSharding(mesh, specs[name])) for name, w in params.items()}
        x, target = (jax.device_put(a, NamedSharding(mesh, P(batch))) for a in (x, target))
    step = jax.jit(jax.value_and_grad(functools.partial(loss, layer=layer)))
    value, grads = step(params, x, target)
    return jax.device_get({"loss": value, "grads": grads})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs="*", default=[])
    parser.add_argument("--explicit", action="store_true")
    args = parser.parse_args()
    for path, leaf in jax.tree_util.tree_leaves_with_path(run(tuple(args.mesh), args.explicit)):
        print(jax.tree_util.keystr(path), leaf.shape, float(jnp.sum(jnp.abs(leaf))))

"""A vision transformer with flax.nnx and optax's adamw, trained for a few steps."""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

IMAGE, PATCH, WIDTH, HEADS, LAYERS, CLASSES = 16, 4, 32, 4, 2, 10


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    def __init__(self, rngs):
        self.patches = nnx.Conv(3, WIDTH, (PATCH, PATCH), strides=(PATCH, PATCH), rngs=rngs)
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (1, (IMAGE // PATCH) ** 2, WIDTH)) * 0.02)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, WIDTH) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(axis=1))


def run(shape=(), steps=3):
    """The losses and the parameters after some steps."""
    model = ViT(nnx.Rngs(0))
    graph, state = nnx.split(model)
    images = jax.random.normal(jax.random.key(1), (8, IMAGE, IMAGE, 3))
    labels = jax.random.randint(jax.random.key(2), (8,), 0, CLASSES)
    tx = optax.adamw(1e-3)
    params = nnx.to_pure_dict(state)
    if shape:
        mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        wide = lambda w: P(None, "model") if w.ndim == 2 and w.shape[1] % shape[1] == 0 else P()
        params = jax.tree.map(lambda w: jax.device_put(w, NamedSharding(mesh, wide(w))), params)
        images, labels = (jax.device_put(a, NamedSharding(mesh, P("data"))) for a in (images, labels))
    moments = tx.init(params)

    def loss(params):
        nnx.replace_by_pure_dict(state, params)
        logits = nnx.merge(graph, state)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params, moments):
        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = tx.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, value

    losses = []
    for _ in range(steps):
        params, moments, value = step(params, moments)
        losses.append(float(value))
    return {"losses": losses, "params": jax.device_get(params)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs="*", default=[])
    for path, leaf in jax.tree_util.tree_leaves_with_path(run(tuple(parser.parse_args().mesh))):
        print(jax.tree_util.keystr(path), float(jnp.sum(jnp.abs(jnp.asarray(leaf)))))

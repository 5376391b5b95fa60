"""A vision transformer in flax.nnx, trained by optax's adamw, with its matmuls split over devices."""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

IMAGE, PATCH, WIDTH, HEADS, DEPTH, CLASSES, BATCH, STEPS = 16, 4, 32, 4, 2, 10, 16, 3


class Layouts:
    """How activations of a mesh are split: the batch over some axes, hidden features over another, if there are any."""

    def __init__(self, batch=None, model=None):
        self.batch, self.model = batch, model

    def out(self, *spec):
        return None if self.batch is None else P(self.batch, *spec)


class Attention(nnx.Module):
    def __init__(self, layouts, rngs):
        self.layouts = layouts
        # A bias of keys adds the same to all scores of a query, so that softmax takes no notice of it.
        self.q, self.k, self.v = (nnx.Linear(WIDTH, WIDTH, use_bias=n != 1, rngs=rngs) for n in range(3))
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (f(x).reshape(heads) for f in (self.q, self.k, self.v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nnx.softmax(scores), v)
        return self.out(mixed.reshape(x.shape), out_sharding=self.layouts.out())


class Block(nnx.Module):
    def __init__(self, layouts, rngs):
        self.layouts = layouts
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = Attention(layouts, rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))), out_sharding=self.layouts.out())


class ViT(nnx.Module):
    def __init__(self, layouts, rngs):
        patches = (IMAGE // PATCH) ** 2
        self.patch = nnx.Conv(3, WIDTH, (PATCH, PATCH), strides=(PATCH, PATCH), padding="VALID", rngs=rngs)
        self.position = nnx.Param(jax.random.normal(rngs.params(), (1, patches, WIDTH)) * 0.02)
        self.blocks = nnx.List([Block(layouts, rngs) for _ in range(DEPTH)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images):
        x = self.patch(images)
        x = x.reshape(x.shape[0], -1, WIDTH) + self.position[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(axis=1))


def spec_of(path, model):
    """Attention and the MLP are split over hidden features: the first matmul by columns, the second by rows."""
    names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    columns = any(name in names for name in ("q", "k", "v", "up"))
    rows = "down" in names or ("out" in names and "attention" in names)
    if "kernel" in names and (columns or rows):
        return P(None, model) if columns else P(model, None)
    return P(model) if columns and "bias" in names else P()


def loss_of(model, images, labels):
    losses = optax.softmax_cross_entropy(model(images), jax.nn.one_hot(labels, CLASSES))
    return losses.mean()


@nnx.jit
def train_step(model, optimizer, images, labels):
    value, grads = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, grads)
    return value, grads


def run(shape=(), explicit=False):
    """The losses of some steps, the gradients of the first one, and the parameters after the last."""
    names = ("data", "model") if len(shape) == 2 else ("pod", "data", "model")
    batch = names[:-1] if len(shape) > 2 else names[0]
    layouts = Layouts(batch, names[-1]) if shape and explicit else Layouts()
    model = ViT(layouts, nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (BATCH, IMAGE, IMAGE, 3))
    labels = jax.random.randint(jax.random.key(2), (BATCH,), 0, CLASSES)
    if shape:
        kind = AxisType.Explicit if explicit else AxisType.Auto
        mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))
        state = nnx.state(model)
        places = jax.tree_util.tree_map_with_path(lambda path, _: NamedSharding(mesh, spec_of(path, names[-1])), state)
        nnx.update(model, jax.device_put(state, places))
        images, labels = (jax.device_put(a, NamedSharding(mesh, P(batch))) for a in (images, labels))
        jax.set_mesh(mesh)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3, weight_decay=1e-2), wrt=nnx.Param)
    losses, first = [], None
    for _ in range(STEPS):
        value, grads = train_step(model, optimizer, images, labels)
        losses.append(value)
        first = grads if first is None else first
    plain = {"grads": nnx.to_pure_dict(first), "params": nnx.to_pure_dict(nnx.state(model, nnx.Param))}
    return jax.device_get({"losses": losses, **plain})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs="*", default=[])
    parser.add_argument("--explicit", action="store_true")
    parser.add_argument("--save", help="a file for all numbers")
    args = parser.parse_args()
    found = jax.tree_util.tree_leaves_with_path(run(tuple(args.mesh), args.explicit))
    for path, leaf in found:
        print(jax.tree_util.keystr(path), leaf.shape, float(jnp.sum(jnp.abs(leaf))))
    if args.save:
        import numpy as np

        np.savez(args.save, **{jax.tree_util.keystr(path): leaf for path, leaf in found})

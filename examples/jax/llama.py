"""A Llama-like decoder in plain JAX: grouped queries, rotary positions, a KV cache, decoding, int8 weights."""

import argparse
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

VOCAB, LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LENGTH = 64, 2, 32, 8, 4, 8, 64, 16


def init(key):
    def weight(key, *shape):
        return jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5

    keys = jax.random.split(key, 9)
    return {
        "embed": jax.random.normal(keys[0], (VOCAB, WIDTH)) * 0.02,
        "layers": {
            "wq": weight(keys[1], LAYERS, WIDTH, HEADS * HEAD),
            "wk": weight(keys[2], LAYERS, WIDTH, KV_HEADS * HEAD),
            "wv": weight(keys[3], LAYERS, WIDTH, KV_HEADS * HEAD),
            "wo": weight(keys[4], LAYERS, HEADS * HEAD, WIDTH),
            "gate": weight(keys[5], LAYERS, WIDTH, HIDDEN),
            "up": weight(keys[6], LAYERS, WIDTH, HIDDEN),
            "down": weight(keys[7], LAYERS, HIDDEN, WIDTH),
            "norm1": jnp.ones((LAYERS, WIDTH)),
            "norm2": jnp.ones((LAYERS, WIDTH)),
        },
        "norm": jnp.ones((WIDTH,)),
    }


def specs(data, model):
    column, row = P(None, None, model), P(None, model, None)
    return {
        "embed": P(None, None),
        "layers": {
            "wq": column,
            "wk": column,
            "wv": column,
            "wo": row,
            "gate": column,
            "up": column,
            "down": row,
            "norm1": P(),
            "norm2": P(),
        },
        "norm": P(),
    }


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def rope(x, positions):
    half = x.shape[-1] // 2
    freqs = 1e4 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None] * freqs
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)


def product(x, w, out=None):
    if isinstance(w, tuple):  # int8 and scales
        w = w[0].astype(x.dtype) * w[1]
    return jnp.einsum("btd,df->btf", x, w, out_sharding=out) if out is not None else jnp.einsum("btd,df->btf", x, w)


def attention(q, k, v, mask):
    b, t, h, d = q.shape
    q = q.reshape(b, t, k.shape[2], h // k.shape[2], d)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / jnp.sqrt(d)
    scores = jnp.where(mask, scores, -1e9)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, axis=-1), v)
    return out.reshape(b, t, h * d)


def block(x, layer, positions, cache, start, shard):
    b, t, _ = x.shape
    h = rms_norm(x, layer["norm1"])
    q = rope(product(h, layer["wq"]).reshape(b, t, HEADS, HEAD), positions)
    k = rope(product(h, layer["wk"]).reshape(b, t, KV_HEADS, HEAD), positions)
    v = product(h, layer["wv"]).reshape(b, t, KV_HEADS, HEAD)
    if cache is None:
        mask = positions[:, None, None, :, None] >= positions[:, None, None, None, :]
    else:
        cache = (
            lax.dynamic_update_slice_in_dim(cache[0], k, start, 1),
            lax.dynamic_update_slice_in_dim(cache[1], v, start, 1),
        )
        k, v = cache
        mask = jnp.arange(k.shape[1])[None, None, None, None, :] <= positions[:, None, None, :, None]
    x = x + product(attention(q, k, v, mask), layer["wo"], shard)
    h = rms_norm(x, layer["norm2"])
    x = x + product(jax.nn.silu(product(h, layer["gate"])) * product(h, layer["up"]), layer["down"], shard)
    return x, cache


def forward(params, tokens, shard=None, caches=None, start=0):
    x = params["embed"][tokens] if shard is None else params["embed"].at[tokens].get(out_sharding=shard)
    positions = jnp.broadcast_to(start + jnp.arange(tokens.shape[1]), tokens.shape)

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def body(x, layer):
        layer, cache = layer
        return block(x, layer, positions, cache, start, shard)

    x, caches = lax.scan(body, x, (params["layers"], caches))
    logits = rms_norm(x, params["norm"]) @ params["embed"].T
    return logits, caches


def loss(params, tokens, shard=None):
    logits, _ = forward(params, tokens[:, :-1], shard)
    picked = jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(tokens[:, 1:], VOCAB), axis=-1)
    return -jnp.mean(picked)


def quantize(params):
    def one(path, w):
        if path[-1].key.startswith("norm"):
            return w
        scale = jnp.max(jnp.abs(w), axis=-2, keepdims=True) / 127
        return jnp.round(w / scale).astype(jnp.int8), scale

    return {**params, "layers": jax.tree_util.tree_map_with_path(one, params["layers"])}


def generate(params, prompt, steps):
    caches = (jnp.zeros((LAYERS, prompt.shape[0], LENGTH, KV_HEADS, HEAD)),) * 2
    logits, caches = jax.jit(forward)(params, prompt, None, caches, 0)
    token = jnp.argmax(logits[:, -1], -1)

    def step(carry, n):
        token, caches = carry
        logits, caches = forward(params, token[:, None], None, caches, prompt.shape[1] + n)
        return (jnp.argmax(logits[:, -1], -1), caches), (token, logits[:, -1])

    _, (tokens, logits) = jax.jit(lambda c: lax.scan(step, c, jnp.arange(steps)))((token, caches))
    return tokens.T, logits


def run(shape=(), explicit=False):
    """The loss, every gradient, a step of SGD, and what is generated from int8 weights."""
    params = init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (8, LENGTH + 1), 0, VOCAB)
    shard = None
    step = jax.value_and_grad(loss)
    if shape:
        names = ("data", "model") if len(shape) == 2 else ("pod", "data", "model")
        batch = names[:-1] if len(names) > 2 else names[0]
        kind = AxisType.Explicit if explicit else AxisType.Auto
        mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))
        place = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
        params = jax.tree.map(place, params, specs("data", "model"), is_leaf=lambda x: isinstance(x, jax.Array))
        tokens = place(tokens, P(batch))
        if explicit:
            shard = NamedSharding(mesh, P(batch, None, None))
    value, grads = jax.jit(functools.partial(step, shard=shard))(params, tokens)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    found = {"loss": value, "grads": grads, "new": jax.jit(functools.partial(loss, shard=shard))(new, tokens)}
    if not explicit:
        generated, logits = generate(quantize(params), tokens[:, :8], 4)
        found |= {"tokens": generated, "logits": logits}
    return jax.device_get(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs="*", default=[])
    parser.add_argument("--explicit", action="store_true")
    args = parser.parse_args()
    found = run(tuple(args.mesh), args.explicit)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        print(jax.tree_util.keystr(path), leaf.shape, float(jnp.sum(jnp.abs(jnp.asarray(leaf, jnp.float32)))))

"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU, cross-entropy.

python examples/transformer.py
"""

from dataclasses import dataclass
from functools import partial

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    vocab: int = 64
    dim: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 64
    scan: bool = False  # one layer's program, run over stacked parameters
    checkpoint: bool = False  # recompute a layer in the backward pass instead of remembering it


def init(key, config):
    """Parameters: the layers' are stacked along a first dim of size ``layers``."""
    head_dim = config.dim // config.heads
    shapes = {
        "wq": (config.dim, config.heads, head_dim),
        "wk": (config.dim, config.kv_heads, head_dim),
        "wv": (config.dim, config.kv_heads, head_dim),
        "wo": (config.heads, head_dim, config.dim),
        "gate": (config.dim, config.hidden),
        "up": (config.dim, config.hidden),
        "down": (config.hidden, config.dim),
    }
    keys = mw.random.split(key, len(shapes) + 1)
    layers = {
        name: mw.random.normal(k, (config.layers, *shape)) * config.dim**-0.5
        for k, (name, shape) in zip(keys, shapes.items())
    }
    layers["attention_norm"] = mnp.ones((config.layers, config.dim))
    layers["mlp_norm"] = mnp.ones((config.layers, config.dim))
    return {
        "embed": mw.random.normal(keys[-1], (config.vocab, config.dim)) * 0.1,
        "layers": layers,
        "norm": mnp.ones(config.dim),
    }


def rms_norm(x, scale):
    return x * lax.rsqrt(mnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rotate(x, positions):
    """Rotary position embedding of x: [batch, sequence, heads, head_dim]."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-mnp.arange(half, dtype=mnp.float32) / half)
    angles = positions[:, None].astype(mnp.float32) * frequencies
    sin, cos = mnp.sin(angles)[None, :, None, :], mnp.cos(angles)[None, :, None, :]
    left, right = x[..., :half], x[..., half:]
    return mnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def attention(layer, x, config):
    length = x.shape[1]
    positions = mnp.arange(length)
    q = rotate(mnp.einsum("bld,dhk->blhk", x, layer["wq"]), positions)
    k = rotate(mnp.einsum("bld,dhk->blhk", x, layer["wk"]), positions)
    v = mnp.einsum("bld,dhk->blhk", x, layer["wv"])
    groups = config.heads // config.kv_heads
    q = q.reshape(*q.shape[:2], config.kv_heads, groups, q.shape[-1])
    scores = mnp.einsum("bqhgk,bshk->bhgqs", q, k) * q.shape[-1] ** -0.5
    causal = positions[:, None] >= positions[None, :]
    weights = mw.nn.softmax(mnp.where(causal, scores, -1e9), axis=-1)
    mixed = mnp.einsum("bhgqs,bshk->bqhgk", weights, v)
    return mnp.einsum("blhk,hkd->bld", mixed.reshape(*x.shape[:2], config.heads, -1), layer["wo"])


def block(x, layer, config):
    x = x + attention(layer, rms_norm(x, layer["attention_norm"]), config)
    y = rms_norm(x, layer["mlp_norm"])
    return x + (mw.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def forward(params, tokens, config):
    """Logits for each next token."""
    x = params["embed"][tokens]
    step = partial(block, config=config)
    if config.checkpoint:
        step = mw.checkpoint(step)
    if config.scan:
        x, _ = lax.scan(lambda x, layer: (step(x, layer), None), x, params["layers"])
    else:
        for n in range(config.layers):
            x = step(x, mw.tree.map(lambda w, n=n: w[n], params["layers"]))
    return rms_norm(x, params["norm"]) @ params["embed"].T


def loss(params, tokens, config):
    """Mean cross-entropy of predicting each token from those before it."""
    logits = forward(params, tokens[:, :-1], config)
    log_probs = mw.nn.log_softmax(logits, axis=-1)
    picked = mnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
    return -mnp.mean(picked)


def make_batch(key, config, batch=4, length=16):
    return mw.random.randint(key, (batch, length), 0, config.vocab)


def train_step(params, batch, config, rate=0.1):
    value, gradient = mw.value_and_grad(loss)(params, batch, config)
    return value, mw.tree.map(lambda p, g: p - rate * g, params, gradient)


def main():
    config = Config(scan=True)
    params = init(mw.random.key(0), config)
    batch = make_batch(mw.random.key(1), config)
    step = mw.jit(train_step, static_argnames="config")
    for n in range(10):
        value, params = step(params, batch, config=config)
        print(f"step {n}: loss {float(value):.4f}")


if __name__ == "__main__":
    main()

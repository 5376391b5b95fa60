"""A language model of the shape of GPT-2: learned positions, LayerNorm, attention, GELU, tied embeddings.

python examples/gpt.py
meshwright search examples/gpt.py --chips 64 --chip h100
"""

from dataclasses import dataclass
from functools import partial

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    vocab: int = 64
    length: int = 16
    dim: int = 32
    layers: int = 2
    heads: int = 4
    dtype: str = "float32"
    scan: bool = False  # one layer's program, run over stacked parameters
    checkpoint: bool = False  # recompute a layer in the backward pass instead of remembering it


# What a search is for. The vocabulary is a multiple of 128, as large tables of GPT-2's 50,257 words are padded.
model = Config(vocab=50304, length=1024, dim=768, layers=12, heads=12, dtype="bfloat16")


def init(key, config):
    """Parameters: those of each layer stand apart, so that a pipeline can keep them on the stage that needs them."""
    dim = config.dim
    shapes = {"qkv": (dim, 3, config.heads, dim // config.heads), "out": (config.heads, dim // config.heads, dim)}
    shapes |= {"up": (dim, 4 * dim), "down": (4 * dim, dim)}

    def layer(key):
        keys = mw.random.split(key, len(shapes))
        weights = {name: normal(k, shape, 0.02) for k, (name, shape) in zip(keys, shapes.items())}
        biases = {f"{name}_bias": zeros(shape[1:] if name == "qkv" else shape[-1:]) for name, shape in shapes.items()}
        return {**weights, **biases, "attention_norm": norm(), "mlp_norm": norm()}

    def normal(key, shape, scale):
        return (mw.random.normal(key, shape) * scale).astype(config.dtype)

    def zeros(shape):
        return mnp.zeros(shape, config.dtype)

    def norm():
        return {"scale": mnp.ones(dim, config.dtype), "bias": zeros((dim,))}

    words, places, *keys = mw.random.split(key, config.layers + 2)
    return {
        "embed": normal(words, (config.vocab, dim), 0.02),
        "positions": normal(places, (config.length, dim), 0.01),
        "layers": [layer(key) for key in keys],
        "norm": norm(),
    }


def layer_norm(x, norm):
    x = x - mnp.mean(x, axis=-1, keepdims=True)
    return x * lax.rsqrt(mnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * norm["scale"] + norm["bias"]


def attention(layer, x):
    q, k, v = (mnp.einsum("bld,dhk->blhk", x, layer["qkv"][:, n]) + layer["qkv_bias"][n] for n in range(3))
    scores = mnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5
    places = mnp.arange(x.shape[1])
    weights = mw.nn.softmax(mnp.where(places[:, None] >= places, scores, -1e9), axis=-1)
    mixed = mnp.einsum("bhqs,bshk->bqhk", weights, v)
    return mnp.einsum("blhk,hkd->bld", mixed, layer["out"]) + layer["out_bias"]


def block(x, layer):
    x = x + attention(layer, layer_norm(x, layer["attention_norm"]))
    y = mw.nn.gelu(layer_norm(x, layer["mlp_norm"]) @ layer["up"] + layer["up_bias"])
    return x + y @ layer["down"] + layer["down_bias"]


def forward(params, tokens, config):
    """Logits for each next token."""
    x = params["embed"][tokens] + params["positions"][: tokens.shape[1]]
    step = mw.checkpoint(block) if config.checkpoint else block
    if config.scan:
        stacked = mw.tree.map(lambda *layers: mnp.stack(layers), *params["layers"])
        x, _ = lax.scan(lambda x, layer: (step(x, layer), None), x, stacked)
    else:
        for layer in params["layers"]:
            x = step(x, layer)
    return layer_norm(x, params["norm"]) @ params["embed"].T


def loss(params, tokens, config):
    """Mean cross-entropy of predicting each token from those before it."""
    logits = forward(params, tokens[:, :-1], config).astype(mnp.float32)
    log_probs = mw.nn.log_softmax(logits, axis=-1)
    picked = mnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
    return -mnp.mean(picked)


def make_batch(key, config, batch=4):
    return mw.random.randint(key, (batch, config.length + 1), 0, config.vocab)


def train_step(params, batch, config, rate=0.1):
    value, gradient = mw.value_and_grad(loss)(params, batch, config)
    return value, mw.tree.map(lambda p, g: p - rate * g, params, gradient)


def main():
    config = Config(scan=True)
    params = init(mw.random.key(0), config)
    batch = make_batch(mw.random.key(1), config)
    step = mw.jit(partial(train_step, config=config))
    for n in range(10):
        value, params = step(params, batch)
        print(f"step {n}: loss {float(value):.4f}")


if __name__ == "__main__":
    main()

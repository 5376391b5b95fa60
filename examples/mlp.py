"""A multilayer perceptron trained to fit random targets.

python examples/mlp.py
"""

from dataclasses import dataclass

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    inputs: int = 8
    dim: int = 32
    layers: int = 3
    outputs: int = 4
    scan: bool = False
    checkpoint: bool = False


def init(key, config):
    first, hidden, last = mw.random.split(key, 3)
    return {
        "first": mw.random.normal(first, (config.inputs, config.dim)) * config.inputs**-0.5,
        "hidden": {
            "w": mw.random.normal(hidden, (config.layers, config.dim, config.dim)) * config.dim**-0.5,
            "b": mnp.zeros((config.layers, config.dim)),
        },
        "last": mw.random.normal(last, (config.dim, config.outputs)) * config.dim**-0.5,
    }


def hidden_layer(x, layer):
    return mw.nn.gelu(x @ layer["w"] + layer["b"])


def forward(params, x, config):
    x = mnp.tanh(x @ params["first"])
    step = mw.checkpoint(hidden_layer) if config.checkpoint else hidden_layer
    if config.scan:
        x, _ = lax.scan(lambda x, layer: (step(x, layer), None), x, params["hidden"])
    else:
        for n in range(config.layers):
            x = step(x, mw.tree.map(lambda w, n=n: w[n], params["hidden"]))
    return x @ params["last"]


def loss(params, batch, config):
    inputs, targets = batch
    return mnp.mean((forward(params, inputs, config) - targets) ** 2)


def make_batch(key, config, batch=16):
    inputs, targets = mw.random.split(key)
    return mw.random.normal(inputs, (batch, config.inputs)), mw.random.normal(targets, (batch, config.outputs))


def train_step(params, batch, config, rate=0.1):
    value, gradient = mw.value_and_grad(loss)(params, batch, config)
    return value, mw.tree.map(lambda p, g: p - rate * g, params, gradient)


def main():
    config = Config()
    params = init(mw.random.key(0), config)
    batch = make_batch(mw.random.key(1), config)
    step = mw.jit(train_step, static_argnames="config")
    for n in range(10):
        value, params = step(params, batch, config=config)
        print(f"step {n}: loss {float(value):.4f}")


if __name__ == "__main__":
    main()

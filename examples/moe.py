"""A mixture of experts: each token is sent to its top-k experts, each of which takes a limited number of tokens.

python examples/moe.py
"""

from dataclasses import dataclass

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    dim: int = 16
    hidden: int = 32
    experts: int = 4
    top_k: int = 2
    capacity: int = 12
    layers: int = 2
    scan: bool = False
    checkpoint: bool = False


def init(key, config):
    router, up, down = mw.random.split(key, 3)
    shape = (config.layers, config.experts, config.dim, config.hidden)
    return {
        "router": mw.random.normal(router, (config.layers, config.dim, config.experts)) * config.dim**-0.5,
        "up": mw.random.normal(up, shape) * config.dim**-0.5,
        "down": mw.random.normal(down, (*shape[:2], config.hidden, config.dim)) * config.hidden**-0.5,
    }


def route(router, x, config):
    """Which expert and which of its slots each token takes, and with what weight."""
    probs = mw.nn.softmax(x @ router, axis=-1)
    weights, experts = lax.top_k(probs, config.top_k)
    weights = weights / mnp.sum(weights, axis=-1, keepdims=True)
    chosen = mw.nn.one_hot(experts, config.experts, dtype=mnp.int32)  # [token, choice, expert]
    order = mnp.cumsum(chosen.reshape(-1, config.experts), axis=0).reshape(chosen.shape)
    slots = mnp.sum(order * chosen, axis=-1) - 1
    fits = slots < config.capacity
    balance = config.experts * mnp.sum(mnp.mean(probs, axis=0) * mnp.mean(chosen[:, 0].astype(mnp.float32), axis=0))
    return weights * fits, experts, mnp.where(fits, slots, config.capacity), balance


def moe_layer(x, layer, config):
    weights, experts, slots, balance = route(layer["router"], x, config)
    buffers = mnp.zeros((config.experts, config.capacity, config.dim), x.dtype)
    sent = mnp.broadcast_to(x[:, None, :], (*experts.shape, config.dim))
    buffers = buffers.at[experts, slots].add(sent, mode="drop")
    hidden = mw.nn.silu(mnp.einsum("ecd,edh->ech", buffers, layer["up"]))
    results = mnp.einsum("ech,ehd->ecd", hidden, layer["down"])
    received = results.at[experts, slots].get(mode="fill", fill_value=0)
    return x + mnp.einsum("tk,tkd->td", weights, received), balance


def forward(params, x, config):
    def step(x, layer):
        return moe_layer(x, layer, config)

    if config.checkpoint:
        step = mw.checkpoint(step)
    if config.scan:
        x, balance = lax.scan(step, x, params)
        return x, mnp.sum(balance)
    total = 0.0
    for n in range(config.layers):
        x, balance = step(x, mw.tree.map(lambda w, n=n: w[n], params))
        total = total + balance
    return x, total


def loss(params, batch, config):
    inputs, targets = batch
    out, balance = forward(params, inputs, config)
    return mnp.mean((out - targets) ** 2) + 0.01 * balance


def make_batch(key, config, batch=16):
    inputs, targets = mw.random.split(key)
    return mw.random.normal(inputs, (batch, config.dim)), mw.random.normal(targets, (batch, config.dim))


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

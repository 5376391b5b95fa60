"""A small residual convolutional network for images.

python examples/convnet.py
"""

from dataclasses import dataclass

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


@dataclass(frozen=True)
class Config:
    channels: int = 8
    layers: int = 2
    classes: int = 5
    size: int = 12
    scan: bool = False
    checkpoint: bool = False


def init(key, config):
    stem, blocks, head = mw.random.split(key, 3)
    width = config.channels
    return {
        "stem": mw.random.normal(stem, (3, 3, 3, width)) * 0.2,
        "blocks": {
            "w": mw.random.normal(blocks, (config.layers, 3, 3, width, width)) * (9 * width) ** -0.5,
            "scale": mnp.ones((config.layers, width)),
        },
        "head": mw.random.normal(head, (width, config.classes)) * width**-0.5,
    }


def conv(x, w, stride=1):
    """Images are [batch, height, width, channel]; the output keeps the size (over the stride)."""
    return lax.conv_general_dilated(
        x, w, window_strides=(stride, stride), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normalize(x, scale):
    mean = mnp.mean(x, axis=(1, 2), keepdims=True)
    variance = mnp.var(x, axis=(1, 2), keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale


def block(x, layer):
    return x + mw.nn.relu(normalize(conv(x, layer["w"]), layer["scale"]))


def max_pool(x):
    return lax.reduce_window(x, -mnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def forward(params, images, config):
    x = max_pool(mw.nn.relu(conv(images, params["stem"])))
    step = mw.checkpoint(block) if config.checkpoint else block
    if config.scan:
        x, _ = lax.scan(lambda x, layer: (step(x, layer), None), x, params["blocks"])
    else:
        for n in range(config.layers):
            x = step(x, mw.tree.map(lambda w, n=n: w[n], params["blocks"]))
    return mnp.mean(x, axis=(1, 2)) @ params["head"]


def loss(params, batch, config):
    images, labels = batch
    log_probs = mw.nn.log_softmax(forward(params, images, config))
    return -mnp.mean(mnp.sum(log_probs * mw.nn.one_hot(labels, config.classes), axis=-1))


def make_batch(key, config, batch=4):
    images, labels = mw.random.split(key)
    return (
        mw.random.normal(images, (batch, config.size, config.size, 3)),
        mw.random.randint(labels, (batch,), 0, config.classes),
    )


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

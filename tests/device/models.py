"""Programs that transforms are tested on, with inputs and the values they must keep."""

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from examples import transformer

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist


class Model(NamedTuple):
    function: dist.Function
    inputs: list[np.ndarray]
    batch: dict[str, int]
    expected: tuple[np.ndarray, ...]


def _model(function: Any, args: tuple[Any, ...], names: list[str], batch: dict[str, int]) -> Model:
    fn = dist.from_program(mw.make_program(function)(*args), names)
    inputs = [np.asarray(x) for x in mw.tree.leaves(args)]
    expected = tuple(np.asarray(x) for x in mw.tree.leaves(function(*args)))
    return Model(fn, inputs, batch, expected)


def _weights(dims: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((a, b)).astype("f4") / a**0.5 for a, b in pairwise(dims)]


@cache
def chain() -> Model:
    """A product of matrices."""
    weights = _weights([4, 8, 12, 8, 4])
    x = np.random.default_rng(1).standard_normal((8, 4)).astype("f4")

    def product(ws: Any, x: Any) -> Any:
        for w in ws:
            x = x @ w
        return x

    return _model(product, (weights, x), ["w0", "w1", "w2", "w3", "x"], {"x": 0})


@cache
def mlp_training() -> Model:
    """A step of stochastic gradient descent with momentum."""
    weights = _weights([4, 8, 12, 8, 4])
    moments = [np.full_like(w, 0.1) for w in weights]
    rng = np.random.default_rng(1)
    x, t = (rng.standard_normal((8, 4)).astype("f4") for _ in range(2))

    def loss(ws: Any, x: Any, t: Any) -> Any:
        for w in ws:
            x = mnp.maximum(x @ w, 0)
        return mnp.mean((x - t) ** 2)

    def step(ws: Any, ms: Any, x: Any, t: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(ws, x, t)
        ms = [0.9 * m + g for m, g in zip(ms, gradient, strict=True)]
        return value, [w - 0.1 * m for w, m in zip(ws, ms, strict=True)], ms

    names = [f"w{n}" for n in range(4)] + [f"m{n}" for n in range(4)] + ["x", "t"]
    return _model(step, (weights, moments, x, t), names, {"x": 0, "t": 0})


@cache
def transformer_training(layers: int = 2) -> Model:
    """A step of the example transformer: attention, gated MLPs, embeddings, cross-entropy."""
    config = transformer.Config(vocab=16, dim=8, layers=layers, heads=4, kv_heads=2, hidden=16)
    params = transformer.init(mw.random.key(0), config)
    batch = transformer.make_batch(mw.random.key(1), config, batch=8, length=6)
    count = len(mw.tree.leaves(params))
    names = [*(f"p{n}" for n in range(count)), "tokens"]
    return _model(lambda p, b: transformer.train_step(p, b, config), (params, batch), names, {"tokens": 0})


MODELS = {"chain": chain, "mlp": mlp_training, "transformer": transformer_training}


def check(model: Model, fn: dist.Function, device_map: Any) -> None:
    """The program on its devices computes what the sequential one does, and its text reads back."""
    found = dist.execute(fn, model.inputs, device_map)
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(model.expected)
    for x, y in zip(found, model.expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)


def transformed(fn: dist.Function, letter: str, keys: list[str], batch: dict[str, int]) -> dist.Function:
    """One level of a stack of transforms: data, horizontal, pipeline parallelism, or a stage of zero."""
    if letter == "D":
        return dist.data_parallel(fn, batch, keys)
    if letter == "H":
        return dist.horizontal_parallel(fn, batch, keys)
    if letter == "P":
        return dist.pipeline_parallel(fn, 2, 2, "1f1b", batch, keys)
    return dist.zero(fn, batch, int(letter), keys)

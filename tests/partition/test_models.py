"""The example models on a mesh: ten train steps give what they give on one device, under every usual layout."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import P

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import load

MESH = mw.make_mesh((2, 2), ("data", "model"))
Rule = Callable[[str, tuple[int, ...]], P]


def last_even(axis: str, shape: tuple[int, ...], skip: int = 0) -> P:
    """The last dim that the axis divides, split over it."""
    size = MESH.shape[axis]
    for dim in reversed(range(skip, len(shape))):
        if shape[dim] % size == 0 and shape[dim] > 1:
            return P(*[axis if d == dim else None for d in range(len(shape))])
    return P()


def fully(name: str, shape: tuple[int, ...]) -> P:
    """Two dims, one for each axis, where there are two."""
    even = [d for d in range(len(shape)) if shape[d] % 2 == 0 and shape[d] > 1]
    if len(even) < 2:
        return last_even("data", shape)
    return P(*["data" if d == even[-2] else "model" if d == even[-1] else None for d in range(len(shape))])


LAYOUTS: dict[str, Rule] = {
    "data parallel": lambda name, shape: P(),
    "tensor parallel": lambda name, shape: last_even("model", shape),
    "fully sharded": lambda name, shape: last_even("data", shape),
    "fully sharded and tensor parallel": fully,
}
MODELS = {
    "mlp": {},
    "convnet": {},
    "moe": {},
    "transformer": {},
    "transformer, scanned": {"scan": True},
    "transformer, scanned and recomputed": {"scan": True, "checkpoint": True},
}


def setting(name: str) -> tuple[Any, Any, Any, Any]:
    module = load(name.split(",")[0])
    config = module.Config(**MODELS[name])
    params = module.init(mw.random.key(0), config)
    return module, config, params, module.make_batch(mw.random.key(1), config)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_ten_train_steps(name: str, layout: str) -> None:
    module, config, params, batch = setting(name)
    step = mw.jit(module.train_step, static_argnames="config")

    def place(path: str, x: Any) -> mw.Array:
        spec = LAYOUTS[layout](path, x.shape)
        return mw.device_put(x, mw.NamedSharding(MESH, spec))  # type: ignore[no-any-return]

    placed = mw.tree.map(lambda x: place("", x), params)
    shardings = mw.tree.map(lambda x: x.sharding, placed)
    split = mw.tree.map(lambda x: mw.device_put(x, mw.NamedSharding(MESH, P("data"))), batch)
    on_mesh = mw.jit(module.train_step, static_argnames="config", out_shardings=(None, shardings))
    losses = []
    for _ in range(10):
        loss, params = step(params, batch, config=config)
        same, placed = on_mesh(placed, split, config=config)
        losses.append((float(loss), float(same)))
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    for x, y, sharding in zip(*map(mw.tree.leaves, (params, placed, shardings)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-3, atol=2e-4)
        assert y.sharding.is_equivalent_to(sharding, y.ndim)

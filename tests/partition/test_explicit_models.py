"""The example models in Explicit mode: data parallel as they are, fully sharded with a line that gathers parameters."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import P

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
from twins import load

MESH = mw.make_mesh((2, 2), ("data", "model"), axis_types=(mw.AxisType.Explicit,) * 2)
MODELS = {
    "mlp": {},
    "convnet": {},
    "transformer": {},
    "transformer, scanned and recomputed": {"scan": True, "checkpoint": True},
}


@pytest.fixture(autouse=True)
def _on_the_mesh() -> Iterator[None]:
    with mw.set_mesh(MESH):
        yield


def setting(name: str) -> tuple[Any, Any, Any, Any]:
    module = load(name.split(",")[0])
    config = module.Config(**MODELS[name])
    return module, config, module.init(mw.random.key(0), config), module.make_batch(mw.random.key(1), config)


def split(shape: tuple[int, ...]) -> P:
    """The last dim that the axis divides, split over it."""
    dims = [d for d, n in enumerate(shape) if n % 2 == 0 and n > 1]
    return P(*["data" if dims and d == dims[-1] else None for d in range(len(shape))])


@pytest.mark.parametrize("sharded", [False, True], ids=["data parallel", "fully sharded"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, sharded: bool) -> None:
    module, config, params, batch = setting(name)

    def loss(params: Any, batch: Any) -> Any:
        return module.loss(mw.reshard(params, P()) if sharded else params, batch, config)

    want = mw.jit(mw.value_and_grad(lambda params, batch: module.loss(params, batch, config)))(params, batch)
    placed = mw.tree.map(lambda x: mw.device_put(x, split(x.shape) if sharded else P()), params)
    data = mw.tree.map(lambda x: mw.device_put(x, P("data")), batch)
    compiled = mw.jit(mw.value_and_grad(loss)).lower(placed, data).compile()
    got = compiled(placed, data)
    for x, y in zip(*map(mw.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-3, atol=1e-4)
    for gradient, param in zip(*map(mw.tree.leaves, (got[1], placed)), strict=True):
        assert gradient.type is param.type, "a gradient lies as its parameter"
        assert gradient.sharding.is_equivalent_to(param.sharding, param.ndim)
    assert any(c.kind in ("all_reduce", "reduce_scatter") for c in compiled.collectives)

"""The example models on a mesh: ten train steps give what they give on one device, under every usual layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import P
from tests.partition.models import LAYOUTS, by_name, load

MESH = mw.make_mesh((2, 2), ("data", "model"))
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "convnet": {},
    "moe": {},
    "transformer": {},
    "transformer, scanned": {"scan": True},
    "transformer, scanned and recomputed": {"scan": True, "checkpoint": True},
}
ONLY = {
    "fully sharded, activations by batch": ("mlp", "convnet", "transformer"),
    "sequence parallel": ("transformer",),
    "expert parallel": ("moe",),
}
QUICK = ("data parallel", "tensor parallel", "fully sharded", "fully sharded and tensor parallel")  # with loops, too
CASES = [
    pytest.param(name, layout, marks=[pytest.mark.slow] * (layout not in QUICK and "," in name))
    for name in MODELS
    for layout in LAYOUTS
    if name.split(",")[0] in ONLY.get(layout, name)
]


@pytest.mark.parametrize("name, layout", CASES)
def test_ten_train_steps(name: str, layout: str) -> None:
    model, chosen = name.split(",")[0], LAYOUTS[layout]
    module, changed = load(model), load(model)
    if chosen.prepare is not None:
        chosen.prepare(changed, MESH)
    config = module.Config(**MODELS[name])
    params = module.init(mw.random.key(0), config)
    batch = module.make_batch(mw.random.key(1), config)
    if layout == "sequence parallel":
        batch = module.make_batch(mw.random.key(1), config, length=17)  # 16 tokens and those after them

    def place(name: str, x: Any) -> Any:
        return mw.device_put(x, mw.NamedSharding(MESH, P(*chosen.spec(model, name, x.shape))))

    placed = by_name(place, params)
    shardings = mw.tree.map(lambda x: x.sharding, placed)
    split = mw.tree.map(lambda x: mw.device_put(x, mw.NamedSharding(MESH, P(chosen.batch))), batch)
    step = mw.jit(module.train_step, static_argnames="config")
    on_mesh = mw.jit(changed.train_step, static_argnames="config", out_shardings=(None, shardings))
    losses = []
    for _ in range(10):
        loss, params = step(params, batch, config=config)
        same, placed = on_mesh(placed, split, config=config)
        losses.append((float(loss), float(same)))
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    for x, y, sharding in zip(*map(mw.tree.leaves, (params, placed, shardings)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-3, atol=2e-4)
        assert y.sharding.is_equivalent_to(sharding, y.ndim)

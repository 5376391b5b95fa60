"""The example models on a mesh: ten train steps give what they give on one device, under every usual layout."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from tests.partition.models import LAYOUTS, MODELS, USUAL, load, setting

ONLY = {
    "fully sharded, activations by batch": ("mlp", "convnet", "transformer"),
    "sequence parallel": ("transformer",),
    "expert parallel": ("moe",),
}
CASES = [
    pytest.param(name, layout, marks=[pytest.mark.slow] * (layout not in USUAL and "," in name))
    for name in MODELS
    for layout in LAYOUTS
    if name.split(",")[0] in ONLY.get(layout, name)
]


@pytest.mark.parametrize("name, layout", CASES)
def test_ten_train_steps(name: str, layout: str) -> None:
    found = setting(name, layout)
    step, on_mesh = mw.jit(load(name.split(",")[0]).train_step, static_argnames="config"), found.step
    params, placed, losses = found.params, found.placed, []
    for _ in range(10):
        loss, params = step(params, found.batch, config=found.config)
        same, placed = on_mesh(placed, found.split, config=found.config)
        losses.append((float(loss), float(same)))
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    for x, y, before in zip(*map(mw.tree.leaves, (params, placed, found.placed)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-3, atol=2e-4)
        assert y.sharding.is_equivalent_to(before.sharding, y.ndim)

"""What all devices hold is there once, however many devices there are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

DEVICES = 512


def _peak(width: int, hidden: int, jit: bool) -> tuple[float, Any, dict[str, Any]]:
    """The most memory held during forward and gradient of a data parallel loss, in units of the parameters."""
    mesh = mw.make_mesh((DEVICES,), ("batch",))

    def loss(params: dict[str, Any], x: Any) -> Any:
        h = mnp.tanh(x @ params["in"] + params["bias"])
        return lax.pmean(((h @ params["out"] - x) ** 2).mean(), "batch")

    mapped = mw.shard_map(loss, mesh=mesh, in_specs=(mw.P(), mw.P("batch")), out_specs=mw.P())
    step = mw.value_and_grad(mapped)
    step = mw.jit(step) if jit else step
    random = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return mnp.asarray(random.standard_normal(shape, np.float32) / np.float32(width))

    params, x = {"in": array(width, hidden), "bias": array(hidden), "out": array(hidden, width)}, array(DEVICES, width)
    size = sum(p.size * 4 for p in params.values())
    tracemalloc.start()
    try:
        value, gradient = step(params, x)
        peak = size + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak / size, value, gradient


def _check(width: int, hidden: int, jit: bool) -> None:
    peak, value, gradient = _peak(width, hidden, jit)
    assert np.isfinite(float(value))
    assert {name: g.shape for name, g in gradient.items()} == {
        "in": (width, hidden), "bias": (hidden,), "out": (hidden, width)
    }  # fmt: skip
    assert peak < 3.0, f"{peak:.2f} times the parameters"


@pytest.mark.parametrize("jit", [False, True])
def test_ten_million_parameters_on_512_devices(jit: bool) -> None:
    _check(2048, 2560, jit)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_hundred_million_parameters_on_512_devices(jit: bool) -> None:
    _check(4096, 12288, jit)

"""Runs a kernel on all devices of a mesh: one list of arrays per device in, one out; and what tests of kernels use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as pl
from meshwright import tree

F32 = mnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
debugs = pytest.mark.parametrize("debug", [None, pl.Debug(schedules=8)], ids=["plain", "debug"])


def out(*shape: int, dtype: Any = F32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)


def on_devices(
    call: Callable[..., Any], mesh: dict[str, int], inputs: Sequence[Sequence[Any]]
) -> list[list[np.ndarray]]:
    """Run ``pl.pallas_call(…)`` on all devices of a mesh, in a jitted shard_map over all its axes."""
    rows = mw.P(tuple(mesh))

    def body(*blocks: Any) -> Any:
        return tuple(out[None] for out in tree.leaves(call(*(block[0] for block in blocks))))

    stacked = [np.stack([row[n] for row in inputs]) for n in range(len(inputs[0]))]
    devices = mw.make_mesh(tuple(mesh.values()), tuple(mesh))
    found = mw.jit(mw.shard_map(body, mesh=devices, in_specs=rows, out_specs=rows))(*stacked)
    return [[np.asarray(out)[device] for out in found] for device in range(len(inputs))]

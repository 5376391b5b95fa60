"""Runs a kernel on the devices of a mesh: one list of arrays per device in, one out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright as mw
from meshwright import tree


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

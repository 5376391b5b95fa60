"""Reshard plans as local programs: the same arrays as the plan carried out device by device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import meshwright as mw
from meshwright.api.axis_names import manual_axes
from meshwright.api.shard_map import shard_map
from meshwright.core.trace import state
from meshwright.partition.reshard.emit import emit_plan
from meshwright.partition.reshard.plan import plan_reshard
from meshwright.sharding import enumerate_shardings
from meshwright.sharding.mesh import make_mesh

MESHES = {"2x2": (2, 2), "2x4": (2, 4), "2x3": (2, 3), "2x2x2": (2, 2, 2)}


def check(mesh, shape, source, target) -> None:  # type: ignore[no-untyped-def]
    plan = plan_reshard(shape, "f32", source, target)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def body(block):  # type: ignore[no-untyped-def]
        manual = state.manual
        found = emit_plan(
            plan, block, lambda axis: tuple((n, manual.axes[n]) for n in manual_axes(axis.short(), manual, "reshard"))
        )
        wanted = [axis for entry in target.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]
        names = [part for axis in wanted for part in manual_axes(axis, manual, "reshard")]
        extra[:] = [axis for axis in found.type.varying if axis not in names]
        return found

    extra: list[str] = []
    run = shard_map(body, mesh=mesh, in_specs=source.spec, out_specs=target.spec)
    try:
        out = run(x)
    except mw.MeshwrightError:
        spec = target.spec.update(replicated=extra)
        out = shard_map(body, mesh=mesh, in_specs=source.spec, out_specs=spec)(x)
    np.testing.assert_array_equal(np.asarray(out), x)


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("rank", [1, 2])
def test_every_pair_of_shardings(name: str, rank: int) -> None:
    sizes = MESHES[name]
    mesh = make_mesh(sizes, ("x", "y", "z")[: len(sizes)])
    shape = (int(np.prod(sizes)) * 2,) * rank
    every = list(enumerate_shardings(mesh, rank, compound=True))
    pairs = list(product(every, every))
    rng = np.random.default_rng(0)
    for n in rng.permutation(len(pairs))[:60]:
        check(mesh, shape, *pairs[n])

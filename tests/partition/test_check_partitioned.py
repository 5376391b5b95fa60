"""Every example through ``mw.check_partitioned``: its loss and gradients on a mesh are those on one device.

It is tried in the layouts that models are trained in, and in random ones.
"""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

import meshwright as mw
from meshwright import P
from tests.partition.models import load, setting
from tests.partition.test_models import CASES

EXAMPLES = sorted(
    path.stem for path in pathlib.Path(__file__).parents[2].glob("examples/*.py") if "\ndef loss(" in path.read_text()
)
MESHES = ((2, 2), (4, 1), (2, 3), (6,), (1, 1), (2, 2, 2))


def placed(x: Any, mesh: mw.Mesh, draw: random.Random) -> Any:
    """An array in a layout of which nobody asks whether it is a good one; a dim may be split unevenly."""
    free = [name for name in mesh.axis_names if draw.random() < 0.6]
    draw.shuffle(free)
    dims: list[list[str]] = [[] for _ in x.shape]
    for name in free if x.ndim else ():
        dims[draw.randrange(x.ndim)].append(name)
    return mw.device_put(x, mw.NamedSharding(mesh, P(*map(tuple, dims))))


def check(example: str, shape: tuple[int, ...], seed: int, **config: Any) -> None:
    module, draw = load(example), random.Random(seed)
    mesh = mw.make_mesh(shape, ("a", "b", "c")[: len(shape)])
    chosen = module.Config(**config)
    params, batch = module.init(mw.random.key(0), chosen), module.make_batch(mw.random.key(1), chosen)
    params, batch = mw.tree.map(lambda x: placed(x, mesh, draw), (params, batch))
    mw.check_partitioned(lambda params, batch: module.loss(params, batch, chosen), params, batch)


def test_all_examples_are_here() -> None:
    assert {"convnet", "gpt", "mlp", "moe", "transformer"} <= set(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_in_random_layouts(example: str) -> None:
    check(example, MESHES[0], 0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_in_many_random_layouts(example: str, shape: tuple[int, ...]) -> None:
    scans = "scan" in load(example).Config.__dataclass_fields__
    for seed in range(100, 120):
        check(example, shape, seed, **({"scan": True, "checkpoint": seed % 4 == 1} if scans and seed % 2 else {}))


@pytest.mark.parametrize(
    "name, layout", [*CASES[::2], *(pytest.param(*case.values, marks=pytest.mark.slow) for case in CASES[1::2])]
)
def test_a_model_in_a_layout(name: str, layout: str) -> None:
    found = setting(name, layout)
    mw.check_partitioned(
        lambda params, batch: found.module.loss(params, batch, found.config), found.placed, found.split
    )

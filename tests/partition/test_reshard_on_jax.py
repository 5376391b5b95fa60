"""Plans turned into the code of one device and run by JAX: every kind of step, and random pairs."""

from __future__ import annotations

import random
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import ShardingError
from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.sharding.space import enumerate_shardings
from meshwright.sharding.text_command import read_mesh, read_spec
from tests.partition.reshard_on_jax import compiled, run_on_jax
from tests.partition.resharding import factors, random_sharding, shards, whole


def check_on_jax(plan: ReshardPlan) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, plan.shape)
    after = run_on_jax(plan, shards(x, plan.source, rng))
    assert (whole(after, plan.target, plan.shape) == x).all(), plan


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "kinds"),
    [
        ("x=2,y=4", (16, 16), "x", "None,y", ["LocalSlice", "AllGather"]),
        ("x=2,y=4", (8, 16), "(x,y)", "None,(y,x)", ["AllToAll"]),
        ("x=2,y=2", (8, 8), "x,y", "y", ["Permute", "AllGather"]),
        ("x=2,y=2,z=2", (8, 8, 8), "None,x,y", "x,y", ["Rounds"]),
        ("x=2,y=3", (12, 6), "x,y", "y,x", ["Blocks"]),
        ("x=2,y=4", (5, 6), "x", "(x,y)", ["Blocks"]),
        ("x=2,y=4", (7, 9), "x,y", "y", None),
        ("x=2,y=4", (16, 16), "None,x,unreduced={y}", "y,x", ["ReduceScatter"]),
        ("x=2,y=4", (16, 16), "None,x,unreduced={y}", "None,x", ["AllReduce"]),
        ("x=2,y=4", (16, 16), "unreduced={y}", "None", ["LocalSlice", "ReduceScatter", "AllGather"]),
        ("x=2,y=4", (16, 16), "x", "unreduced={x,y}", ["Expand", "Mask"]),
        ("x=2,y=2", (8, 8), "y", "x,unreduced={y}", ["Select"]),
    ],
)
def test_each_kind_of_step(
    mesh: str, shape: tuple[int, ...], source: str, target: str, kinds: list[str] | None
) -> None:
    on = read_mesh(mesh)
    plan = mw.plan_reshard(shape, "i32", read_spec(source, on, shape), read_spec(target, on, shape))
    assert kinds is None or [type(step).__name__ for step in plan.steps] == kinds
    check_on_jax(plan)


def random_plans(seed: int) -> list[ReshardPlan]:
    rng, found = random.Random(seed), []
    while len(found) < 40:
        devices = rng.choice([4, 6, 8])
        shapes = [factors(rng, devices) for _ in range(2)]
        meshes = [mw.make_mesh(sizes, tuple("abc"[: len(sizes)])) for sizes in shapes]
        rank = rng.randint(1, 3)
        shape = tuple(rng.choice((24, 12, 8, 7, 5)) for _ in range(rank))
        try:
            plan = mw.plan_reshard(shape, "i32", *(random_sharding(rng, mesh, rank, sums=True) for mesh in meshes))
        except ShardingError:
            continue
        found += [plan] if plan.steps else []
    return found


def moved_bytes() -> Any:
    """The function of the benchmark that reads what a compiled module moves."""
    path = Path(__file__).parents[2] / "benchmarks" / "hlo_bytes.py"
    found = spec_from_file_location("hlo_bytes", path)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.moved_bytes


@pytest.mark.parametrize("sizes", [(2, 4), (2, 3), (2, 2, 2)])
def test_xla_compiles_a_plan_to_just_its_collectives(sizes: tuple[int, ...]) -> None:
    mesh = mw.make_mesh(sizes, ("x", "y", "z")[: len(sizes)])
    every, count = enumerate_shardings(mesh, 2, compound=True), moved_bytes()
    for one, other in random.Random(0).sample(list(product(every, every)), 12):
        plan = mw.plan_reshard((24, 24), "i32", one, other)
        text = compiled(plan).as_text()
        assert count(text, mesh.size) == (plan.total_bytes, plan.num_collectives), plan


def test_some_random_plans() -> None:
    for plan in islice(random_plans(0), 8):
        check_on_jax(plan)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_random_plans(seed: int) -> None:
    for plan in random_plans(seed):
        check_on_jax(plan)

"""Random pairs of shardings: parts of axes, compound axes, other meshes and orders of the same devices, sums."""

from __future__ import annotations

import random
from math import lcm

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import ShardingError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.partition.resharding import check, lacking, random_mesh, random_sharding

SIZES = (48, 24, 12, 8, 7, 6, 5, 1, 0)
OTHER_MESH = "A sum cannot stay unreduced on a mesh that cuts the devices differently."


def random_pair(rng: random.Random, sums: bool) -> tuple[tuple[int, ...], TensorSharding, TensorSharding]:
    count = rng.choice([4, 6, 8, 12, 16, 24])
    mesh = random_mesh(rng, count)
    other = mesh if rng.random() < 0.6 else random_mesh(rng, count)
    rank = rng.randint(1, 3)
    shape = tuple(rng.choice(SIZES if rank < 3 else SIZES[1:]) for _ in range(rank))
    return shape, random_sharding(rng, mesh, rank, sums), random_sharding(rng, other, rank, sums)


def run_without_sums(seed: int, count: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    for _ in range(count):
        shape, one, other = random_pair(rng, sums=False)
        plan = mw.plan_reshard(shape, "f32", one, other)
        lacks = lacking(plan)
        assert (plan.lower_bound_bytes, plan.total_lower_bound_bytes) == (max(lacks), sum(lacks)), plan
        if all(n % lcm(a, b) == 0 for n, a, b in zip(shape, one.shards, other.shards, strict=True)):
            assert (plan.bytes_received_per_device, plan.total_bytes) == (max(lacks), sum(lacks)), plan
            assert not plan.exceeds_memory, plan
        check(plan, numbers)


def run_with_sums(seed: int, count: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    refused = 0
    for _ in range(count):
        shape, one, other = random_pair(rng, sums=True)
        try:
            plan = mw.plan_reshard(shape, "f32", one, other)
        except ShardingError as error:
            assert error.what == OTHER_MESH
            refused += 1
            continue
        assert plan.total_bytes >= plan.total_lower_bound_bytes, plan
        assert plan.bytes_received_per_device >= plan.lower_bound_bytes, plan
        check(plan, numbers)
    assert refused < count / 5


def test_random_pairs() -> None:
    run_without_sums(1, 1000)


def test_random_pairs_that_owe_sums() -> None:
    run_with_sums(2, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 8))
def test_many_random_pairs(seed: int) -> None:
    run_without_sums(seed, 4000)
    run_with_sums(seed, 4000)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_other_reductions(reduction: str) -> None:
    rng, numbers = random.Random(0), np.random.default_rng(0)
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    for _ in range(300):
        one, other = (random_sharding(rng, mesh, 2, sums=True) for _ in range(2))
        sides = [TensorSharding(mesh, side.dims, (), side.unreduced, reduction) for side in (one, other)]
        check(mw.plan_reshard((8, 16), "i32", *sides), numbers)


def test_a_mesh_of_one_device_needs_nothing() -> None:
    mesh = mw.make_mesh((1, 1), ("x", "y"))
    one = mw.sharding.SingleDeviceSharding(mesh.devices[0, 0])
    plan = mw.plan_reshard((3, 5), "f32", one, mw.NamedSharding(mesh, mw.P("x", "y")))
    assert plan.steps == () and plan.total_bytes == plan.total_lower_bound_bytes == 0 and plan.peak_bytes == 60
    check(plan, np.random.default_rng(0))


def test_a_sharding_on_no_mesh_in_particular_is_on_the_others() -> None:
    mesh = mw.make_mesh((2,), ("x",))
    anywhere = TensorSharding(Mesh([], ()), [None, None])
    assert [
        step.kind for step in mw.plan_reshard((4, 4), "f32", anywhere, mw.NamedSharding(mesh, mw.P("x"))).steps
    ] == ["slice"]
    assert mw.plan_reshard((), "f32", mw.NamedSharding(mesh, mw.P()), mw.NamedSharding(mesh, mw.P())).steps == ()

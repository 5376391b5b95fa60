"""Every ordered pair of shardings on small meshes: right, at the lower bound, within memory."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

import meshwright as mw
from meshwright.sharding.space import enumerate_shardings
from tests.partition.resharding import check, lacking

EVEN = [((2, 2), 1), ((2, 2), 2), ((2, 2), 3), ((2, 4), 1), ((2, 4), 2), ((2, 4), 3), ((2, 3), 1), ((2, 3), 2),
        ((2, 3), 3), ((4, 4), 1), ((4, 4), 2), ((4, 4), 3), ((2, 2, 2), 1), ((2, 2, 2), 2)]  # fmt: skip


def pairs(sizes: tuple[int, ...], dims: int) -> list[tuple[mw.NamedSharding, mw.NamedSharding]]:
    mesh = mw.make_mesh(sizes, ("x", "y", "z")[: len(sizes)])
    every = enumerate_shardings(mesh, dims, compound=True)
    return list(product(every, every))


def at_the_bound(sizes: tuple[int, ...], dims: int) -> None:
    """No device receives a byte that it does not lack, and no array in between is larger than both ends."""
    rng = np.random.default_rng(0)
    shape = {1: (48,), 2: (48, 96), 3: (48, 12, 24) if sizes == (2, 3) else (16, 32, 16)}[dims]
    for one, other in pairs(sizes, dims):
        plan = mw.plan_reshard(shape, "f32", one, other)
        lacks = lacking(plan)
        assert plan.total_bytes == plan.total_lower_bound_bytes == sum(lacks), plan
        assert plan.bytes_received_per_device == plan.lower_bound_bytes == max(lacks), plan
        assert plan.peak_bytes == max(plan.local_bytes[0], plan.local_bytes[-1]) and not plan.exceeds_memory
        assert plan.in_flight_bytes <= max(plan.local_bytes[0], plan.local_bytes[-1])
        check(mw.plan_reshard(tuple(n // 4 for n in shape), "i32", one, other), rng) if dims == 3 else check(plan, rng)


@pytest.mark.parametrize(("sizes", "dims"), EVEN)
def test_even_pairs_move_what_is_lacking_and_no_more(sizes: tuple[int, ...], dims: int) -> None:
    at_the_bound(sizes, dims)


@pytest.mark.slow
def test_even_pairs_of_three_dims_on_three_axes() -> None:
    at_the_bound((2, 2, 2), 3)


# Sums: the share of pairs above the bound, and the worst of them.
SUMS = {
    ((2, 2), 1): (0.08, 1.25),
    ((2, 2), 2): (0.052, 1.25),
    ((2, 4), 2): (0.052, 1.125),
    ((4, 4), 2): (0.052, 1.125),
    ((2, 2, 2), 1): (0.1875, 1.25),
}


@pytest.mark.parametrize(("sizes", "dims"), SUMS)
def test_sums_take_the_fewest_messages_or_nearly(sizes: tuple[int, ...], dims: int) -> None:
    mesh = mw.make_mesh(sizes, ("x", "y", "z")[: len(sizes)])
    every = enumerate_shardings(mesh, dims, compound=True)
    ratios = []
    for one, other in product(every, every):
        free = [axis.name for axis in mesh.unused(a for dim in one.to_tensor_sharding(dims).dims for a in dim.axes)]
        for count in range(1, len(free) + 1):
            for axes in combinations(free, count):
                owing = mw.NamedSharding(mesh, one.spec.update(unreduced=axes))
                plan = mw.plan_reshard((96,) * dims, "f32", owing, other)
                assert plan.total_bytes >= plan.total_lower_bound_bytes and not plan.exceeds_memory
                ratios.append(plan.total_bytes / plan.total_lower_bound_bytes)
    share, worst = sum(ratio > 1 for ratio in ratios) / len(ratios), max(ratios)
    assert share <= SUMS[sizes, dims][0] and worst == SUMS[sizes, dims][1], (share, worst)


# Blocks that reach over an array's end are moved with their padding: so much more than is lacking, at most.
UNEVEN = {
    ((2, 2), (5,)): (1.60, 1.20),
    ((2, 2), (7, 8)): (1.14, 1.14),
    ((2, 4), (5, 6)): (2.40, 1.60),
    ((2, 4), (7,)): (1.14, 1.00),
    ((2, 4), (63, 62)): (1.05, 1.07),
    ((2, 3), (7, 8)): (2.86, 1.67),
    ((2, 3), (47, 95)): (1.03, 1.03),
    ((4, 4), (7,)): (2.40, 2.14),
    ((4, 4), (255,)): (1.00, 1.00),
    ((2, 2, 2), (5,)): (2.00, 1.40),
    ((2, 2, 2), (61,)): (1.05, 1.00),
}


@pytest.mark.parametrize(("sizes", "shape"), UNEVEN)
def test_uneven_pairs_move_padding_besides(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    totals, worst = [1.0], [1.0]
    for one, other in pairs(sizes, len(shape)):
        plan = mw.plan_reshard(shape, "f32", one, other)
        lacks = lacking(plan)
        assert plan.total_lower_bound_bytes == sum(lacks) and plan.lower_bound_bytes == max(lacks)
        assert plan.total_bytes >= sum(lacks) and plan.bytes_received_per_device >= max(lacks)
        assert plan.total_bytes == 0 or sum(lacks) > 0, f"padding alone is moved: {plan}"
        if sum(lacks):
            totals.append(plan.total_bytes / sum(lacks))
            worst.append(plan.bytes_received_per_device / max(lacks))
        check(plan, rng)
    most = UNEVEN[sizes, shape]
    assert max(totals) <= most[0] + 0.005 and max(worst) <= most[1] + 0.005, (max(totals), max(worst))

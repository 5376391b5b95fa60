"""Every ordered pair of shardings on small meshes: right, at the lower bound, within memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.sharding_space import enumerate_shardings
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

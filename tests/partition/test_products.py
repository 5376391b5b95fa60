"""Products in all layouts: the choice beside every assignment of the mesh's parts to the factors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations, product

import pytest

import meshwright as mw
from meshwright.core.types import tensor
from meshwright.ops.contraction import dot_general
from meshwright.partition.choose import Assignment, _choice, _owed, choose, question, rule_of
from meshwright.partition.layouts import closed
from meshwright.sharding import enumerate_shardings

MESH = mw.make_mesh((2, 4), ("x", "y"))
LAYOUTS = [closed(s.to_tensor_sharding(2)) for s in enumerate_shardings(MESH, 2, compound=True)]
REGIMES = {"cube": (64, 64, 64), "long rows": (512, 64, 64), "long sum": (64, 2048, 64)}
PARAMS = (("contract", ((1,), (0,))), ("batch", ((), ())), ("dtype", None))


def assignments() -> Iterator[Assignment]:
    x, y = MESH.axes
    for spots in product([None, 0, 1, 2], repeat=3):
        groups: dict[int, list] = {}  # type: ignore[type-arg]
        for atom, spot in zip((x, *y.split(2, 2)), spots, strict=True):
            if spot is not None:
                groups.setdefault(spot, []).append(atom)
        for orders in product(*map(permutations, groups.values())):
            yield dict(zip(groups, orders, strict=True))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("count", [40, pytest.param(1331, marks=pytest.mark.slow)])
def test_the_best_of_all_assignments_is_chosen(regime: str, count: int) -> None:
    rows, inner, columns = REGIMES[regime]
    a, b, c = (tensor(shape, "float32") for shape in ((rows, inner), (inner, columns), (rows, columns)))
    rule = rule_of(dot_general, (a, b), (c,), PARAMS)
    every, worse = list(assignments()), 0
    for left, right, out in random.Random(0).sample(list(product(LAYOUTS, repeat=3)), count):
        asked = question(MESH, rule, dot_general.linear, (a, b), (c,), (left, right), (out,), (1,))
        found = [_choice(asked, one, owed) for one in every for owed in _owed(asked, one)]
        best = min(choice.cost for choice in found if choice is not None)
        worse += choose(asked).cost > best * (1 + 1e-9)
    assert worse <= count * 0.05

"""Meshes whose axes have several primes (6, 12), or one device: random programs on arrays in random parts of them.

Parts of such an axis need not nest: 6 devices are 2 x 3 and 3 x 2. Whatever a program regroups its arrays into, it is
compiled in seconds, and computes what it computes on one device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from tests.ops.drawing import rng
from tests.partition.placing import placed, placement
from tests.partition.regrouping import write as write_regrouping
from tests.partition.test_random_programs import REVERSE, backward
from tests.time_limit import within
from tests.transform.random_programs import Drawn, write

MESHES = [(6,), (12,), (2, 6), (6, 2), (3, 4), (1, 4), (6, 1), (2, 1, 3), (1, 1), (10,), (3, 6)]
SECONDS = 30


def drawn(seed: int) -> Drawn:
    choices = rng("programs on any mesh", seed).bytes(300)
    return write(choices, REVERSE, 1, 6) if seed % 4 == 3 else write_regrouping(choices, 8)


def assert_close(found: Any, expected: Any, what: str) -> None:
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), what
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-3, atol=2e-3, err_msg=what)


def check(seed: int, gradient: bool) -> None:
    one, generator = drawn(seed), rng("placements", seed)
    sizes = MESHES[generator.integers(len(MESHES))]
    mesh = mw.make_mesh(sizes, tuple("xyz"[: len(sizes)]))
    program, arrays = one.on(mw), one.arrays()
    there = [placed(mesh, x, generator) for x in arrays]
    expected = mw.jit(program)(*arrays)
    outs: Any = tuple(mw.NamedSharding(mesh, placement(mesh, x.ndim, generator)) for x in expected)
    outs = outs if generator.integers(2) else None
    what = f"{seed}: {one!r} on {[x.sharding for x in there]} -> {outs}"
    with within(SECONDS):
        assert_close(mw.jit(program, out_shardings=outs)(*there), expected, what)
    if gradient and one.floats:
        slopes = backward(one, arrays)
        with within(SECONDS):
            assert_close(mw.jit(slopes)(*there), mw.jit(slopes)(*arrays), f"gradient of {what}")


@pytest.mark.parametrize("seed", range(40))
def test_programs(seed: int) -> None:
    check(seed, gradient=seed % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 30))
def test_many_programs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check(seed, gradient=seed % 2 == 0)

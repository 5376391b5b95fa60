"""Loops on a mesh: what every step would gather is gathered once, before the loop."""

from __future__ import annotations

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.testing import assert_comms

MESH = mw.make_mesh((4,), ("x",))


def test_a_constant_is_gathered_before_the_loop() -> None:
    def power(x: mw.Array, w: mw.Array) -> mw.Array:
        return lax.fori_loop(0, 6, lambda i, x: mnp.tanh(x @ w), x)  # type: ignore[no-any-return]

    rng = np.random.default_rng(0)
    rows = mw.NamedSharding(MESH, P("x"))
    x = mw.device_put(rng.normal(size=(4096, 8)).astype(np.float32), rows)
    w = mw.device_put(rng.normal(size=(8, 8)).astype(np.float32), rows)
    compiled = mw.jit(power, out_shardings=rows).lower(x, w).compile()
    assert_comms(compiled, exact=True, all_gather=1)
    expected = np.asarray(x)
    for _ in range(6):
        expected = np.tanh(expected @ np.asarray(w))
    np.testing.assert_allclose(np.asarray(compiled(x, w)), expected, rtol=1e-5, atol=1e-6)


def test_devices_that_are_alone_along_an_axis_decide_for_themselves() -> None:
    def function(x: mw.Array, y: mw.Array) -> object:
        chosen = lax.cond(x[0, 0] > 0, lambda x, y: x * y, lambda x, y: x - x.sum(0) * y, x, y)
        left = lax.while_loop(lambda c: c[0] < chosen[1, 1], lambda c: (c[0] + 1.0, c[1] * y.mean()), (0.0, y))
        return chosen, left

    y = np.arange(4, dtype=np.float32)
    for sizes in ((1, 1), (1, 4), (2, 2)):
        mesh = mw.make_mesh(sizes, ("x", "y"))
        for start in (-1.0, 1.0):
            x = np.full((4, 4), start, np.float32)
            placed = mw.device_put(x, mw.NamedSharding(mesh, P("x", "y")))
            found, expected = mw.jit(function)(placed, mnp.array(y)), mw.jit(function)(mnp.array(x), mnp.array(y))
            for one, other in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)


def test_what_a_loop_carries_is_split_as_what_it_becomes() -> None:
    def recurrent(w: mw.Array, x: mw.Array) -> mw.Array:
        return lax.scan(lambda h, row: (mnp.tanh(h @ w + row), None), mnp.zeros((16, 8)), x)[0]  # type: ignore[no-any-return]

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=(5, 16, 8)).astype(np.float32)
    whole, rows = mw.NamedSharding(MESH, P()), mw.NamedSharding(MESH, P(None, "x"))
    compiled = mw.jit(recurrent, in_shardings=(whole, rows)).lower(w, x).compile()
    assert_comms(compiled, exact=True)
    expected = np.zeros((16, 8), np.float32)
    for row in x:
        expected = np.tanh(expected @ w + row)
    np.testing.assert_allclose(np.asarray(compiled(w, x)), expected, rtol=1e-5, atol=1e-6)

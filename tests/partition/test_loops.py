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

"""Seed 001, AllReduce and ReduceScatter: a sum left open by one op and taken by ``reshard`` is communication."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

MESH = mw.make_mesh((2, 2), ("x", "y"), axis_types=mw.AxisType.Explicit)
LEFT = np.arange(64, dtype=np.float32).reshape(8, 8)
RIGHT = LEFT[::-1] - 7

COLLECTIVES = {
    mw.P(): ["all_reduce"],
    mw.P("x"): ["reduce_scatter"],
    mw.P(None, "x"): ["reduce_scatter"],
    mw.P("y"): ["all_reduce"],
    mw.P("x", "y"): ["reduce_scatter"],
    mw.P(unreduced={"x"}): [],
}


@pytest.mark.parametrize("spec", COLLECTIVES)
@pytest.mark.parametrize("given", ["operands", "summands"])
def test_what_jit_returns_is_summed_as_its_type_says(spec, given):
    """AllReduce_x(A[I, K]{U_x}) -> A[I, K]: types, shardings and HLO agree, and the numbers are NumPy's."""
    with mw.set_mesh(MESH):
        a = mw.device_put(LEFT, mw.P(None, "x"))
        b = mw.device_put(RIGHT, mw.P("x", None))

        def product(a, b):
            return mnp.dot(a, b, out_sharding=mw.P(unreduced={"x"}))

        args = (a, b) if given == "operands" else (mw.jit(product)(a, b),)
        f = (lambda a, b: mw.reshard(product(a, b), spec)) if given == "operands" else lambda u: mw.reshard(u, spec)
        compiled = mw.jit(f).lower(*args).compile()
        found = compiled(*args)
    unreduced_axes = set(spec.unreduced)
    assert [one.kind for one in compiled.collectives] == COLLECTIVES[spec]
    assert set(found.sharding.spec.unreduced) == set(mw.typeof(found).unreduced) == unreduced_axes
    assert ("all-reduce" in compiled.as_text() or "reduce-scatter" in compiled.as_text()) is not bool(unreduced_axes)
    np.testing.assert_array_equal(np.asarray(found), LEFT @ RIGHT)

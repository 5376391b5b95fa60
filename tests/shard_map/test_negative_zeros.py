"""Sums over devices add nothing to what devices hold, not even 0.0, which would make 0.0 of -0.0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((4,), ("i",))


def negative_zeros(columns: int, dtype: str) -> Any:
    """Rows of -0.0, but for one number and one 0.0."""
    zero = np.asarray(mnp.zeros((), dtype))
    found = np.full((4, columns), -zero)
    found[1, 0], found[2, 1] = 2.0, zero
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize("columns", [8, 1 << 18], ids=["small", "large"])  # large sums are taken by BLAS
def test_a_sum_over_devices_adds_no_zero(columns: int, dtype: str, x64: None) -> None:
    def sums(x: Any) -> Any:
        return lax.psum(x, "i"), lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)

    both = mw.shard_map(sums, mesh=MESH, in_specs=P("i"), out_specs=(P(), P(None, "i")))
    for total in mw.jit(both)(negative_zeros(columns, dtype)):
        row = np.asarray(total)[0]
        assert row[0] == 2.0
        assert row[1] == 0.0
        for part in (row.real, row.imag) if np.iscomplexobj(row) else (row,):
            assert not np.signbit(part[1])
            assert np.signbit(part[2:]).all()


def test_what_is_owed_a_sum_on_its_way_out_and_in_again_is_what_it_was() -> None:
    partial_sum = P(unreduced={"i"})
    out = mw.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=partial_sum)
    again = mw.shard_map(lambda x: x, mesh=MESH, in_specs=partial_sum, out_specs=partial_sum)
    row = np.asarray(mw.jit(lambda x: again(out(x)))(negative_zeros(4, "float32")))[0]
    np.testing.assert_array_equal(row, [2.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(np.signbit(row), [False, False, True, True])


def test_a_sum_over_a_dim_starts_from_zero_as_elsewhere() -> None:
    assert not np.signbit(np.asarray(mnp.sum(mnp.array([-0.0, -0.0]))))
    assert not np.signbit(np.sum(np.array([-0.0, -0.0])))

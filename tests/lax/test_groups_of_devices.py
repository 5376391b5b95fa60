"""Collectives among groups of devices, against JAX under ``vmap``; rows sent in different numbers, against a loop."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as mjax

EVEN = [[0, 3], [1, 2]]
UNEVEN = [[0, 3, 1], [2]]

CALLS = {
    "psum": lambda p, x: p.lax.psum(x, "i", axis_index_groups=EVEN),
    "psum of groups that differ in size": lambda p, x: p.lax.psum(x, "i", axis_index_groups=UNEVEN),
    "pmean": lambda p, x: p.lax.pmean(x, "i", axis_index_groups=EVEN),
    "pmax": lambda p, x: p.lax.pmax(x, "i", axis_index_groups=EVEN),
    "pmin": lambda p, x: p.lax.pmin(x, "i", axis_index_groups=UNEVEN),
    "all_gather": lambda p, x: p.lax.all_gather(x, "i", axis_index_groups=EVEN, axis=1),
    "tiled all_gather": lambda p, x: p.lax.all_gather(x, "i", axis_index_groups=EVEN, axis=1, tiled=True),
    "psum_scatter": lambda p, x: p.lax.psum_scatter(x, "i", scatter_dimension=1, axis_index_groups=EVEN),
    "tiled psum_scatter": lambda p, x: p.lax.psum_scatter(x, "i", axis_index_groups=EVEN, tiled=True),
    "all_to_all": lambda p, x: p.lax.all_to_all(x, "i", 1, 0, axis_index_groups=EVEN),
    "tiled all_to_all": lambda p, x: p.lax.all_to_all(x, "i", 0, 1, axis_index_groups=EVEN, tiled=True),
}
GROUPS_WITHOUT_JAX = {"psum of groups that differ in size", "pmin"}


def by_hand(name: str, x: Any) -> Any:
    """What JAX has no batching rule for: groups of different sizes."""
    combine = np.sum if name.startswith("psum") else np.min
    return np.stack([combine(x[next(group for group in UNEVEN if n in group)], 0) for n in range(4)])


@pytest.mark.parametrize("name", CALLS)
def test_groups_of_devices_are_those_of_jax(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 4, 2)).astype("f")
    call = CALLS[name]
    try:
        theirs = by_hand(name, x) if name in GROUPS_WITHOUT_JAX else jax.vmap(lambda x: call(jax, x), axis_name="i")(x)
    except NotImplementedError as error:
        pytest.skip(f"JAX: {error}")
    np.testing.assert_allclose(mjax.vmap(lambda x: call(mjax, x), axis_name="i")(x), theirs, rtol=1e-6)
    mesh = mw.make_mesh((2, 4), ("x", "i"))
    body = lambda x: call(mjax, x[0])[None]
    mapped = mw.shard_map(body, mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i"))
    np.testing.assert_allclose(mw.jit(mapped)(x), theirs, rtol=1e-6)


def test_groups_that_leave_a_device_out_are_refused() -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        mw.vmap(lambda x: mw.lax.psum(x, "i", axis_index_groups=[[0, 1], [2]]), axis_name="i")(np.ones(4, "f"))
    assert str(error.value).startswith("psum cannot take axis_index_groups=[[0, 1], [2]].")
    assert error.value.fix == "axis_index_groups=[[0, 2], [1, 3]]"


def test_rows_in_different_numbers_go_where_they_are_sent() -> None:
    random = np.random.default_rng(3)
    devices, rows = 4, 9
    x = random.standard_normal((devices, rows, 2)).astype("f")
    sizes = random.integers(0, 3, (devices, devices))  # [sender, receiver]
    begins = np.cumsum(sizes, 1) - sizes
    targets = np.cumsum(sizes, 0) - sizes
    wanted = np.zeros((devices, rows, 2), "f")
    for s in range(devices):
        for r in range(devices):
            for n in range(sizes[s, r]):
                wanted[r, targets[s, r] + n] = x[s, begins[s, r] + n]
    mesh = mw.make_mesh((devices,), ("i",))

    def send(x: Any, begins: Any, sizes: Any, targets: Any, arriving: Any) -> Any:
        out = mjax.lax.ragged_all_to_all(
            x[0], mjax.numpy.zeros_like(x[0]), begins[0], sizes[0], targets[0], arriving[0], axis_name="i"
        )
        return out[None]

    f = mw.jit(mw.shard_map(send, mesh=mesh, in_specs=(mw.P("i"),) * 5, out_specs=mw.P("i")))
    arguments = [np.asarray(a, "int32") for a in (begins, sizes, targets, sizes.T)]
    np.testing.assert_array_equal(f(x, *arguments), wanted)
    weights = random.standard_normal(wanted.shape).astype("f")
    slope = mw.grad(lambda x: (f(x, *arguments) * weights).sum())(x)
    back = np.zeros_like(x)
    for s in range(devices):
        for r in range(devices):
            for n in range(sizes[s, r]):
                back[s, begins[s, r] + n] = weights[r, targets[s, r] + n]
    np.testing.assert_array_equal(slope, back)


def test_what_one_device_has_and_rows_in_another_order() -> None:
    x = np.arange(8.0, dtype="f").reshape(4, 2)
    for call in (
        lambda p, x: p.lax.pbroadcast(x, "i", 2),
        lambda p, x: p.lax.pshuffle(x, "i", [1, 3, 0, 2]),
    ):
        theirs = jax.vmap(lambda x, call=call: call(jax, x), axis_name="i")(x)
        np.testing.assert_array_equal(mjax.vmap(lambda x, call=call: call(mjax, x), axis_name="i")(x), theirs)
    square = np.arange(16.0, dtype="f").reshape(4, 4)
    theirs = jax.vmap(lambda x: jax.lax.pswapaxes(x, "i", 0), axis_name="i")(square)
    np.testing.assert_array_equal(mjax.vmap(lambda x: mjax.lax.pswapaxes(x, "i", 0), axis_name="i")(square), theirs)

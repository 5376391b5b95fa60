"""Axes that partitioning cuts into parts: what a device of a shard_map reads off its position does not change.

On a mesh of 4 x 2, an array that is split over the second axis comes to a shard_map over the first by way of its
halves, so the mesh is cut there. Answers are written in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.pallas as pl
import meshwright.pallas.tpu as pltpu
from meshwright import P, lax
from meshwright.core.check import check
from meshwright.core.trace import run
from meshwright.sharding import enumerate_shardings
from tests.partition.device_by_device import run_by_device

MESH = mw.make_mesh((4, 2), ("i", "z"))
X = np.arange(32, dtype=np.float32).reshape(8, 4) + 1
PLACES = [P("z"), P("i:(2)2", "i:(1)2"), P(None, ("z", "i")), P(("i:(2)2", "z", "i:(1)2"))]
OTHERS = [*(s.spec for s in enumerate_shardings(MESH, 2, compound=True)), P("i:(1)2"), P(None, ("i:(2)2", "i:(1)2"))]
BLOCKS = X.reshape(4, 2, 4)  # of the devices along i
BOTH = X.reshape(4, 2, 1, 4)  # along i, then z


def on(x: Any, spec: Any, mesh: Any = MESH) -> Any:
    return mw.device_put(x, mw.NamedSharding(mesh, spec))


def along(f: Callable[[int], Any]) -> np.ndarray[Any, Any]:
    """What the devices along i return, joined."""
    return np.concatenate([f(i) for i in range(4)]).astype(np.float32)


def over(f: Callable[[int, int], Any]) -> np.ndarray[Any, Any]:
    """What all devices return, joined along i, then z."""
    return np.concatenate([f(i, z) for i in range(4) for z in range(2)]).astype(np.float32)


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
EIGHT = [(n, (n + 3) % 8) for n in range(8)]

# By name: the body, the axes that its argument and its result are split over, and the answer.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "axis_index": (lambda x: x + lax.axis_index("i"), "i", along(lambda i: BLOCKS[i] + i)),
    "axis_index of both": (
        lambda x: x + lax.axis_index(("i", "z")), ("i", "z"), over(lambda i, z: BOTH[i, z] + 2 * i + z)),
    "axis_index of both, the other way": (
        lambda x: x + lax.axis_index(("z", "i")), ("i", "z"), over(lambda i, z: BOTH[i, z] + 4 * z + i)),
    "axis_size": (lambda x: x * lax.axis_size("i"), "i", 4 * X),
    "dynamic_slice": (
        lambda x: lax.dynamic_slice_in_dim(x, lax.axis_index("i"), 1, 1) * mnp.ones((2, 4)), "i",
        along(lambda i: np.repeat(BLOCKS[i][:, i : i + 1], 4, 1))),
    "dynamic_update_slice": (
        lambda x: lax.dynamic_update_slice_in_dim(x, mnp.zeros((2, 1)), lax.axis_index("i"), 1), "i",
        along(lambda i: BLOCKS[i] * (np.arange(4) != i))),
    "indexing": (lambda x: x[:, lax.axis_index("i")][:, None] * mnp.ones((2, 4)), "i",
                 along(lambda i: np.repeat(BLOCKS[i][:, i : i + 1], 4, 1))),
    "switch": (lambda x: lax.switch(lax.axis_index("i"), [lambda x, n=n: x * n for n in range(4)], x), "i",
               along(lambda i: BLOCKS[i] * i)),
    "cond": (lambda x: lax.cond(lax.axis_index("i") == 2, lambda: x, lambda: -x), "i",
             along(lambda i: BLOCKS[i] * (1 if i == 2 else -1))),
    "cond on data": (lambda x: lax.cond(x.sum() > 100, lambda: x, lambda: -x), "i",
                     along(lambda i: BLOCKS[i] * (1 if BLOCKS[i].sum() > 100 else -1))),
    "fori_loop": (lambda x: lax.fori_loop(0, 3, lambda t, c: c + lax.axis_index("i"), x), "i",
                  along(lambda i: BLOCKS[i] + 3 * i)),
    "while_loop": (
        lambda x: lax.while_loop(lambda c: c[0] < lax.axis_index("i"), lambda c: (c[0] + 1, c[1] * 2), (0, x))[1], "i",
        along(lambda i: BLOCKS[i] * 2**i)),
    "scan": (lambda x: lax.scan(lambda c, t: (c + t * lax.axis_index("i"), None), x, mnp.arange(3.0))[0], "i",
             along(lambda i: BLOCKS[i] + 3 * i)),
    "scan over rows": (lambda x: lax.scan(lambda c, r: (c + r, c * r), mnp.zeros(4), x)[1], "i",
                       along(lambda i: np.stack([0 * BLOCKS[i][0], BLOCKS[i][0] * BLOCKS[i][1]]))),
    "a sum in a loop": (lambda x: lax.fori_loop(0, 2, lambda t, c: c + lax.psum(x, "i"), x), "i",
                        along(lambda i: BLOCKS[i] + 2 * BLOCKS.sum(0))),
    "ppermute": (lambda x: lax.ppermute(x, "i", RING), "i", along(lambda i: BLOCKS[i - 1])),
    "ppermute of some": (lambda x: lax.ppermute(x, "i", [(3, 1)]), "i", along(lambda i: BLOCKS[3] * (i == 1))),
    "ppermute over both": (lambda x: lax.ppermute(x, ("i", "z"), EIGHT), ("i", "z"),
                           over(lambda i, z: BOTH.reshape(8, 1, 4)[2 * i + z - 3])),
    "ppermute over both, the other way": (
        lambda x: lax.ppermute(x, ("z", "i"), EIGHT), ("i", "z"),
        over(lambda i, z: BOTH.transpose(1, 0, 2, 3).reshape(8, 1, 4)[4 * z + i - 3])),
    "all_gather": (lambda x: lax.all_gather(x, "i")[2:4] + x, "i", along(lambda i: BLOCKS[i] + BLOCKS[1])),
    "all_gather over both, the other way": (
        lambda x: lax.all_gather(x, ("z", "i"))[5:6] + x, ("i", "z"), over(lambda i, z: BOTH[i, z] + BOTH[1, 1])),
    "psum_scatter": (lambda x: lax.psum_scatter(mnp.concatenate([x] * 2) * lax.axis_index("i"), "i"), "i",
                     along(lambda i: sum(n * BLOCKS[n] for n in range(4))[i % 2][None])),
    "all_to_all": (lambda x: lax.all_to_all(x, "i", 1, 1), "i",
                   along(lambda i: np.stack([BLOCKS[n][:, i] for n in range(4)], 1))),
    "pscatter": (lambda x: lax.pscatter(lax.psum(x, "i"), "i", axis=1) * mnp.ones((2, 4)), "i",
                 along(lambda i: np.repeat(BLOCKS.sum(0)[:, i : i + 1], 4, 1))),
    "psum": (lambda x: lax.psum(x, "i") + x, "i", along(lambda i: BLOCKS.sum(0) + BLOCKS[i])),
    "pmax": (lambda x: lax.pmax(x, "i") + x, "i", along(lambda i: BLOCKS.max(0) + BLOCKS[i])),
    "iota by position": (lambda x: x + mnp.arange(4) * lax.axis_index("i"), "i",
                         along(lambda i: BLOCKS[i] + np.arange(4) * i)),
    "random numbers": (
        lambda x: x + mw.random.uniform(mw.random.fold_in(mw.random.key(7), lax.axis_index("i")), (2, 4)), "i",
        along(lambda i: BLOCKS[i] + np.asarray(jax.random.uniform(jax.random.fold_in(jax.random.key(7), i), (2, 4))))),
}  # fmt: skip


@pytest.mark.parametrize("places", [PLACES, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"])
@pytest.mark.parametrize("name", CASES)
def test_positions_do_not_depend_on_where_an_argument_comes_from(name: str, places: list[Any]) -> None:
    body, axes, expected = CASES[name]
    f = mw.shard_map(body, mesh=MESH, in_specs=P(axes), out_specs=P(axes))
    for spec in places:
        np.testing.assert_allclose(np.asarray(mw.jit(f)(on(X, spec))), expected, rtol=1e-6, err_msg=str(spec))


def test_the_program_of_one_device_reads_positions_that_way_too() -> None:
    f = mw.shard_map(lambda x: x * 0 + lax.axis_index("i"), mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    for spec in (P("z"), P("i:(1)2"), P(None, ("z", "i"))):
        program = mw.jit(f).lower(on(X, spec)).compile()._executable.placed.program
        (found,) = run_by_device(check(program), [X])
        np.testing.assert_array_equal(found[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])


def test_gradients_of_what_a_position_chooses() -> None:
    """Each expert has its own row of the bias: its gradient is counted once."""

    def experts(x: Any, bias: Any) -> Any:
        mine = lax.dynamic_slice_in_dim(bias, lax.axis_index("i"), 1, 0)
        return mnp.tanh(x * 0.1 + mine)

    f = mw.shard_map(experts, mesh=MESH, in_specs=(P("i"), P()), out_specs=P("i"))
    bias = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    slope = 1 - np.tanh(BLOCKS * 0.1 + bias[:, None]) ** 2
    gradient = mw.jit(mw.grad(lambda x, bias: f(x, bias).sum(), argnums=(0, 1)))
    for spec in (P("z"), P("i"), P("i:(2)2"), P(None, "z")):
        for there in (P(), P("z"), P(None, "i")):
            found = gradient(on(X, spec), on(bias, there))
            np.testing.assert_allclose(np.asarray(found[0]), 0.1 * slope.reshape(8, 4), rtol=1e-4)
            np.testing.assert_allclose(np.asarray(found[1]), slope.sum(1), rtol=1e-4)


@pytest.mark.parametrize("spec", [P("z"), P("i:(1)2"), P(("z", "i")), P(None, "z")])
def test_a_partitioned_program_can_be_differentiated(spec: Any) -> None:
    """Also where it says that a value is the same on all devices."""
    f = mw.shard_map(
        lambda x: mnp.sin(x * 0.1) * lax.axis_index("i") + lax.psum(x, "i"),
        mesh=MESH,
        in_specs=P("i"),
        out_specs=P("i"),
    )
    program = mw.jit(f).lower(on(X, spec)).compile()._executable.placed.program
    weights = np.cos(X)
    found = mw.grad(lambda x: (run(program, [x])[0] * weights).sum())(mnp.asarray(X))
    position = np.repeat(np.arange(4), 2)[:, None]
    total = np.tile(weights.reshape(4, 2, 4).sum(0), (4, 1))
    np.testing.assert_allclose(
        np.asarray(found), 0.1 * np.cos(X * 0.1) * position * weights + total, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("spec", PLACES, ids=str)
def test_one_shard_map_inside_of_another(spec: Any) -> None:
    def inner(x: Any) -> Any:
        return lax.ppermute(x, "z", [(0, 1), (1, 0)]) + lax.axis_index(("z", "i")) * lax.psum(1, ("i", "z"))

    def outer(x: Any) -> Any:
        inside = mw.shard_map(inner, in_specs=P("z"), out_specs=P("z"), axis_names={"z"})
        return lax.fori_loop(0, 2, lambda t, c: inside(c), x) + lax.axis_index("i")

    f = mw.shard_map(outer, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    expected = over(lambda i, z: BOTH[i, z] + 8 * (4 * z + i) + 8 * (4 * (1 - z) + i) + i)
    np.testing.assert_allclose(np.asarray(mw.jit(f)(on(X, spec))), expected)


# Kernels


def _stamped(x: Any) -> Any:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + lax.axis_index("i")

    return pl.pallas_call(kernel, out_shape=mw.ShapeDtypeStruct(x.shape, x.dtype, vma={"i"}))(x)


def _passed_on(x: Any) -> Any:
    def kernel(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        to = {"i": (lax.axis_index("i") + 1) % 4, "z": lax.axis_index("z")}
        copy = pltpu.make_async_remote_copy(
            src_ref=x_ref, dst_ref=o_ref, send_sem=sent, recv_sem=received, device_id=to,
            device_id_type=pl.DeviceIdType.MESH,
        )  # fmt: skip
        copy.start()
        copy.wait()

    call = pl.pallas_call(
        kernel,
        out_shape=mw.ShapeDtypeStruct(x.shape, x.dtype, vma={"i"}),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        in_specs=[pl.BlockSpec(memory_space=pltpu.ANY)],
        out_specs=pl.BlockSpec(memory_space=pltpu.ANY),
    )
    return call(x)


KERNELS = {
    "position": (_stamped, along(lambda i: BLOCKS[i] + i)),
    "position, in a loop": (
        lambda x: lax.fori_loop(0, 2, lambda _, c: _stamped(c), x), along(lambda i: BLOCKS[i] + 2 * i)),
    "copies to others": (_passed_on, along(lambda i: BLOCKS[i - 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_know_their_devices(name: str) -> None:
    body, expected = KERNELS[name]
    f = mw.shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    for spec in (P("i"), P("z"), P("i:(1)2"), P("i:(2)2", "z"), P(None, ("z", "i"))):
        step = mw.jit(f)
        np.testing.assert_array_equal(np.asarray(step(on(X, spec))), expected, err_msg=str(spec))
        assert mw.simulate(step.lower(on(X, spec)).compile(), "tpu v5e").seconds > 0


def test_a_kernel_written_for_some_axes() -> None:
    f = mw.shard_map(_stamped, mesh=MESH, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    for spec in (P("i"), P("z"), P("i:(1)2"), P("i:(2)2", "z"), P(None, ("z", "i"))):
        np.testing.assert_array_equal(np.asarray(mw.jit(f)(on(X, spec))), KERNELS["position"][1])


# Parts that the user wrote


def test_a_part_in_the_body_with_the_whole_axis_in_the_spec() -> None:
    four = mw.make_mesh((4,), ("x",))
    x = np.arange(8, dtype=np.float32)
    halves = x.reshape(2, 2, 2)
    cases = {
        "sum over the major half": (lambda v: lax.psum(v, "x:(1)2"), P("x:(2)2"), halves.sum(0).reshape(-1)),
        "sum over the minor half": (lambda v: lax.psum(v, "x:(2)2"), P("x:(1)2"), halves.sum(1).reshape(-1)),
        "position in a half": (
            lambda v: v + lax.axis_index("x:(2)2"), P("x"), np.add(halves, [[[0], [1]]]).reshape(-1)),
        "halves in turn": (
            lambda v: v + 10 * lax.axis_index(("x:(2)2", "x:(1)2")), P("x"),
            (halves + 10 * np.array([[[0], [2]], [[1], [3]]])).reshape(-1)),
    }  # fmt: skip
    for name, (body, out, expected) in cases.items():
        f = mw.shard_map(body, mesh=four, in_specs=P("x"), out_specs=out)
        for spec in (P("x"), P("x:(1)2"), P("x:(2)2"), P(), P(("x:(2)2", "x:(1)2"))):
            found = mw.jit(f)(on(x, spec, four))
            np.testing.assert_array_equal(np.asarray(found), expected, err_msg=f"{name} {spec}")

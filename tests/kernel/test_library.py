"""The kernels of ``pallas.ops`` against ``lax`` on 2 to 16 devices, over many schedules, with no race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import ops
from meshwright.pallas import tpu as pltpu

few = pytest.mark.parametrize("devices", [2, 3, 4, 5, 7, 8])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 4, size=shape).astype(np.float32)


def on_ring(function: Any, devices: int, *arrays: Any) -> np.ndarray:
    """A row of each array to every device, a row of the result from each."""
    rows = mw.P("x")
    mapped = mw.shard_map(
        lambda *blocks: function(*(block[0] for block in blocks))[None],
        mesh=mw.make_mesh((devices,), ("x",)), in_specs=rows, out_specs=rows,
    )  # fmt: skip
    return np.asarray(mw.jit(mapped)(*arrays))


def attend(q: Any, k: Any, v: Any, causal: bool) -> np.ndarray:
    scores = np.einsum("...id,...jd->...ij", q, k, dtype=np.float64) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("...ij,...jd->...id", weights / weights.sum(-1, keepdims=True), v)


# Name, the kernel, what lax says, the shapes that each device has.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "right permute": (
        lambda x, debug: ops.right_permute(x, "x", debug=debug),
        lambda x: lax.ppermute(x, "x", [(i, (i + 1) % lax.axis_size("x")) for i in range(lax.axis_size("x"))]),
        lambda n: [(3, 5)],
    ),
    "all-gather": (
        lambda x, debug: ops.all_gather(x, "x", debug=debug),
        lambda x: lax.all_gather(x, "x", tiled=False),
        lambda n: [(3, 5)],
    ),
    "all-gather both ways": (
        lambda x, debug: ops.all_gather(x, "x", bidirectional=True, debug=debug),
        lambda x: lax.all_gather(x, "x", tiled=False),
        lambda n: [(3, 5)],
    ),
    "reduce-scatter": (
        lambda x, debug: ops.reduce_scatter(x, "x", debug=debug),
        lambda x: lax.psum_scatter(x, "x", tiled=False),
        lambda n: [(n, 3, 5)],
    ),
    "reduce-scatter both ways": (
        lambda x, debug: ops.reduce_scatter(x, "x", bidirectional=True, debug=debug),
        lambda x: lax.psum_scatter(x, "x", tiled=False),
        lambda n: [(n, 3, 5)],
    ),
    "all-reduce": (
        lambda x, debug: ops.all_reduce(x, "x", debug=debug), lambda x: lax.psum(x, "x"), lambda n: [(3, 5)]
    ),
    "all-reduce both ways": (
        lambda x, debug: ops.all_reduce(x, "x", bidirectional=True, debug=debug),
        lambda x: lax.psum(x, "x"),
        lambda n: [(3, 5)],
    ),
    "all-to-all": (
        lambda x, debug: ops.all_to_all(x, "x", debug=debug),
        lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
        lambda n: [(n, 3, 5)],
    ),
    **{
        f"all-gather matmul{' both ways' * two}{' fused' * fused}": (
            lambda x, y, debug, two=two, fused=fused: ops.all_gather_matmul(
                x, y, "x", tiles=(2, 8, 8), bidirectional=two, fused=fused, debug=debug
            ),
            lambda x, y: lax.all_gather(x, "x", axis=1, tiled=True) @ y,
            lambda n: [(4, 8), (8 * n, 8)],
        )
        for two in (False, True)
        for fused in (False, True)
    },
    **{
        f"matmul reduce-scatter{' both ways' * two}": (
            lambda x, y, debug, two=two: ops.matmul_reduce_scatter(
                x, y, "x", tiles=(2, 8, 8), bidirectional=two, debug=debug
            ),
            lambda x, y: lax.psum_scatter(x @ y, "x", tiled=True),
            lambda n: [(2 * n, 8), (8, 8)],
        )
        for two in (False, True)
    },
    "ragged all-to-all": (
        lambda x, debug: ops.ragged_all_to_all(
            x, mnp.full((3 * lax.axis_size("x"), 2), -1.0), *_ragged(lax.axis_size("x")), "x", debug=debug
        ),
        lambda x: _ragged_reference(x, lax.axis_size("x")),
        lambda n: [(3 * n, 2)],
    ),
    **{
        f"ring attention{' causal' * causal}": (
            lambda q, k, v, debug, causal=causal: ops.ring_attention(q, k, v, "x", causal=causal, debug=debug),
            lambda q, k, v, causal=causal: _attention(q, k, v, causal),
            lambda n: [(2, 4, 8)] * 3,
        )
        for causal in (False, True)
    },
    **{
        f"ring attention{' causal' * causal}, backward": (
            lambda q, k, v, debug, causal=causal: _pulled_back(
                lambda q, k, v: ops.ring_attention(q, k, v, "x", causal=causal, debug=debug), q, k, v
            ),
            lambda q, k, v, causal=causal: _pulled_back(lambda q, k, v: _attention(q, k, v, causal), q, k, v),
            lambda n: [(2, 4, 8)] * 3,
        )
        for causal in (False, True)
    },
    "all-gather matmul, backward": (
        lambda x, y, debug: _pulled_back(
            lambda x, y: ops.all_gather_matmul(x, y, "x", tiles=(2, 8, 8), fused=True, debug=debug), x, y
        ),
        lambda x, y: _pulled_back(lambda x, y: lax.all_gather(x, "x", axis=1, tiled=True) @ y, x, y),
        lambda n: [(4, 6), (6 * n, 5)],
    ),
    "ragged all-to-all, backward": (
        lambda x, y, debug: _pulled_back(
            lambda x, y: ops.ragged_all_to_all(x, y, *_ragged(lax.axis_size("x")), "x", debug=debug), x, y
        ),
        lambda x, y: _pulled_back(lambda x, y: _ragged_reference(x, lax.axis_size("x"), y), x, y),
        lambda n: [(3 * n, 2), (3 * n, 2)],
    ),
    "matmul reduce-scatter, backward": (
        lambda x, y, debug: _pulled_back(
            lambda x, y: ops.matmul_reduce_scatter(x, y, "x", tiles=(2, 8, 8), bidirectional=True, debug=debug), x, y
        ),
        lambda x, y: _pulled_back(lambda x, y: lax.psum_scatter(x @ y, "x", tiled=True), x, y),
        lambda n: [(2 * n, 6), (6, 5)],
    ),
}  # fmt: skip


def _pulled_back(function: Any, *operands: Any) -> Any:
    """The cotangents of the operands, in one array, of a cotangent that differs between elements and devices."""
    out, pull = mw.vjp(function, *operands)
    cotangent = mnp.arange(out.size).reshape(out.shape) % 5 - 2.0 + lax.axis_index("x") % 3
    return mnp.concatenate([mnp.ravel(one) for one in pull(cotangent)])


def _rows_sent(n: int) -> np.ndarray:
    """How many rows device i sends to device j."""
    return (np.arange(n)[:, None] * 2 + np.arange(n)) % 4 % 3


def _ragged(n: int) -> list[Any]:
    """Of this device: where rows for each start, how many they are, where they go, and how many come."""
    sent = _rows_sent(n)
    tables = (np.cumsum(sent, 1) - sent, sent, np.cumsum(sent, 0) - sent, sent.T)
    return [mnp.asarray(table.astype(np.int32))[lax.axis_index("x")] for table in tables]


def _ragged_reference(x: Any, n: int, rest: Any = -1.0) -> Any:
    sent = _rows_sent(n)
    source = np.zeros((n, 3 * n), np.int32)
    came = np.zeros((n, 3 * n), bool)
    for j in range(n):
        rows = [i * 3 * n + sent[i, :j].sum() + k for i in range(n) for k in range(sent[i, j])]
        source[j, : len(rows)], came[j, : len(rows)] = rows, True
    every = lax.all_gather(x, "x", tiled=True)
    me = lax.axis_index("x")
    return mnp.where(mnp.asarray(came)[me][:, None], every[mnp.asarray(source)[me]], rest)


def _attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """All keys on all devices."""
    keys, values = (lax.all_gather(a, "x", axis=1, tiled=True) for a in (k, v))
    scores = q @ mnp.swapaxes(keys, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        row = lax.broadcasted_iota(mnp.int32, scores.shape, 1) + lax.axis_index("x") * q.shape[-2]
        scores = mnp.where(lax.broadcasted_iota(mnp.int32, scores.shape, 2) <= row, scores, -mnp.inf)
    return mw.nn.softmax(scores, axis=-1) @ values


def check(name: str, devices: int, debug: pl.Debug | None) -> None:
    kernel, reference, shapes = CASES[name]
    arrays = [numbers(devices, *shape) for shape in shapes(devices)]
    found = on_ring(lambda *blocks: kernel(*blocks, debug), devices, *arrays)
    expected = on_ring(reference, devices, *arrays)
    if "attention" in name:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 if "backward" in name else 1e-5)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", CASES)
@few
def test_a_kernel_does_what_lax_does_without_races(name, devices):
    check(name, devices, pl.Debug())


@pytest.mark.parametrize("name", CASES)
def test_over_64_schedules(name):
    check(name, 3, pl.Debug(schedules=64))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("devices", [2, 4, 5, 7, 8, 16])
def test_over_64_schedules_on_more_devices(name, devices):
    check(name, devices, pl.Debug(schedules=64, seed=devices))


@pytest.mark.parametrize("name", CASES)
def test_on_one_device(name):
    if "permute" not in name:
        check(name, 1, pl.Debug())


@pytest.mark.parametrize("name", CASES)
def test_on_sixteen_devices(name):
    check(name, 16, None)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("tiles", [(8, 6, 16), (32, 32, 32), (5, 7, 9)])
def test_collective_products_by_other_tiles(devices, tiles):
    x, y = numbers(devices, 8 * devices, 12), numbers(devices, 12 * devices, 24)
    for options in ({}, {"bidirectional": True}, {"fused": True}, {"bidirectional": True, "fused": True}):
        found = on_ring(lambda x, y, o=options: ops.all_gather_matmul(x, y, "x", tiles=tiles, **o), devices, x, y)
        np.testing.assert_array_equal(found, [np.concatenate(list(x), axis=1) @ each for each in y])
        if "fused" not in options:
            blocks = y[:, :12]
            found = on_ring(
                lambda x, y, o=options: ops.matmul_reduce_scatter(x, y, "x", tiles=tiles, **o), devices, x, blocks
            )
            np.testing.assert_array_equal(found, np.einsum("dik,dkj->ij", x, blocks).reshape(found.shape))


@pytest.mark.parametrize("shape", [(128, 64, 32), (100, 70, 50), (8, 200, 9), (1, 1, 1), (33, 16, 65)])
def test_matmul_by_tiles_that_need_not_fit(shape):
    m, k, n = shape
    x, y = numbers(m, k), numbers(k, n)
    np.testing.assert_array_equal(ops.matmul(x, y, tiles=(32, 16, 32), debug=pl.Debug()), x @ y)


def test_the_derivative_of_a_product():
    x, y = numbers(5, 7), numbers(7, 9)
    for one, other in zip(
        *(mw.grad(lambda x, y, f=f: mnp.sin(f(x, y)).sum(), argnums=(0, 1))(x, y) for f in (ops.matmul, mnp.matmul)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_matmul_sums_in_float32():
    x = mnp.full((8, 4096), 0.01, mnp.bfloat16)
    found = ops.matmul(x, mnp.ones((4096, 8), mnp.bfloat16))
    assert found.dtype == mnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float32), 4096 * float(x[0, 0]), rtol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [((2, 3, 64, 16), (2, 3, 64, 16)), ((32, 8), (50, 8)), ((4, 33, 8), (4, 33, 8))])
def test_flash_attention(shape, causal):
    q, k = (numbers(*s) / 4 for s in shape)
    v = numbers(*shape[1]) + 1
    found = ops.flash_attention(q, k, v, causal=causal, blocks=(16, 16), debug=pl.Debug())
    np.testing.assert_allclose(found, attend(q, k, v, causal), rtol=1e-5, atol=1e-5)


def test_one_device_over_64_schedules():
    many = pl.Debug(schedules=64)
    x, y = numbers(12, 8), numbers(8, 12)
    np.testing.assert_array_equal(ops.matmul(x, y, tiles=(4, 4, 4), debug=many), x @ y)
    q, k, v = numbers(2, 8, 4), numbers(2, 12, 4), numbers(2, 12, 4)
    found = ops.flash_attention(q, k, v, blocks=(4, 4), debug=many)
    np.testing.assert_allclose(found, attend(q, k, v, False), rtol=1e-5, atol=1e-5)


def test_a_2d_mesh_has_rings_along_each_axis():
    mesh = mw.make_mesh((2, 4), ("data", "x"))
    spec = mw.P(("data", "x"))

    def map_(f: Any) -> Any:
        return mw.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)

    x = numbers(16, 4)
    found = map_(
        lambda x: ops.all_reduce(ops.all_reduce(x, "x", debug=pl.Debug()), "data", bidirectional=True, debug=True)
    )(x)
    np.testing.assert_array_equal(found, np.tile(x.reshape(8, 2, 4).sum(0), (8, 1)))


@pytest.mark.slow
def test_a_ring_all_gather_of_64_devices():
    x = numbers(64, 8, 16)
    found = on_ring(lambda x: ops.all_gather(x, "x", debug=pl.Debug()), 64, x)
    np.testing.assert_array_equal(found, np.broadcast_to(x, (64, 64, 8, 16)))


@pytest.mark.slow
def test_an_all_reduce_of_256_devices_on_a_torus_and_on_one_ring():
    x = numbers(256, 8, 32)
    rows = mw.P(("y", "x"))

    def torus(x: Any) -> Any:
        return ops.all_reduce(ops.all_reduce(x, "x", debug=pl.Debug()), "y", debug=True)

    mesh = mw.make_mesh((16, 16), ("y", "x"))
    found = mw.jit(mw.shard_map(torus, mesh=mesh, in_specs=rows, out_specs=rows))(x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))
    found = on_ring(lambda x: ops.all_reduce(x, "x", debug=pl.Debug()), 256, x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


def test_rows_that_cannot_be_scattered_evenly():
    with pytest.raises(mw.MeshwrightError, match="5 rows are scattered over 2 devices"):
        on_ring(lambda x, y: ops.matmul_reduce_scatter(x, y, "x"), 2, numbers(2, 5, 4), numbers(2, 4, 4))


WRONG_OPERANDS = {
    "A product of float32[3, 4] and float32[5, 6].": lambda a: ops.matmul(a(3, 4), a(5, 6)),
    "A product of float32[3, 0] and float32[0, 6].": lambda a: ops.matmul(a(3, 0), a(0, 6)),
    "A product of float32[3, 4] and int32[4, 6].": lambda a: ops.matmul(a(3, 4), a(4, 6).astype(mnp.int32)),
    "The tiles of a product are (0, 1, 1).": lambda a: ops.matmul(a(3, 4), a(4, 6), tiles=(0, 1, 1)),
    "A product of float32[4, 2] and float32[2, 4], the left side being shared by 2 devices.": lambda a: (
        ops.all_gather_matmul(a(4, 2), a(2, 4), "x")
    ),
    "A product of float32[4, 2] and float32[3, 4].": lambda a: ops.matmul_reduce_scatter(a(4, 2), a(3, 4), "x"),
    "reduce_scatter of an array of shape (3, 2) over 2 devices.": lambda a: ops.reduce_scatter(a(3, 2), "x"),
    "all_to_all of an array of shape (3, 2) over 2 devices.": lambda a: ops.all_to_all(a(3, 2), "x"),
    "Attention of q [5, 4] to k [5, 3] and v [5, 4].": lambda a: ops.flash_attention(a(5, 4), a(5, 3), a(5, 4)),
    "Attention of q [5, 4] to k [5, 4] and v [6, 4].": lambda a: ops.ring_attention(a(5, 4), a(5, 4), a(6, 4), "x"),
}


@pytest.mark.parametrize("text", WRONG_OPERANDS)
def test_operands_that_do_not_fit(text):
    with pytest.raises(pltpu.KernelError) as caught:
        on_ring(lambda x: WRONG_OPERANDS[text](lambda *shape: mnp.ones(shape)), 2, numbers(2, 1))
    assert caught.value.what == text
    assert caught.value.where.startswith("test_library.py:") and caught.value.why and caught.value.fix


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_products_are_summed_in_no_less_than_their_dtype(dtype):
    big = 2**24 if dtype is np.int32 else 1
    small = 1 if dtype is np.int32 else 1j
    x = np.array([[big, small]] * 2, dtype)
    y = np.ones((2, 2), dtype)
    np.testing.assert_array_equal(ops.matmul(x, y), x @ y)


LINEAR = {
    "permute": (
        lambda x: ops.right_permute(x, "x"),
        lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]),
    ),
    "all-gather": (lambda x: ops.all_gather(x, "x"), lambda x: lax.all_gather(x, "x", tiled=False)),
    "reduce-scatter": (lambda x: ops.reduce_scatter(x, "x"), lambda x: lax.psum_scatter(x, "x", tiled=False)),
    "all-reduce": (lambda x: ops.all_reduce(x, "x"), lambda x: lax.psum(x, "x")),
    "all-to-all": (lambda x: ops.all_to_all(x, "x"), lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_derivatives_of_collectives_are_those_of_lax(name):
    x = numbers(4, 4, 3)

    def gradient(function: Any) -> np.ndarray:
        def loss(x: Any) -> Any:
            def row(block: Any) -> Any:
                out = mnp.sin(function(block[0]))
                weights = 1.0 + lax.axis_index("x") + mnp.arange(out.size).reshape(out.shape)
                return (out * weights).sum()[None]

            mesh = mw.make_mesh((4,), ("x",))
            return mw.shard_map(row, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))(x).sum()

        return np.asarray(mw.grad(loss)(x))

    np.testing.assert_allclose(*map(gradient, LINEAR[name]), rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 32, 8), (2, 20, 8)])
def test_the_derivative_of_flash_attention(shape, causal):
    args = [np.random.default_rng(n).normal(size=shape).astype(np.float32) for n in range(3)]

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = mnp.einsum("hqd,hkd->hqk", q, k) / np.sqrt(shape[-1])
        if causal:
            scores = mnp.where(np.tri(shape[1], dtype=bool), scores, -mnp.inf)
        return mnp.einsum("hqk,hkd->hqd", mw.nn.softmax(scores, axis=-1), v)

    def flash(q: Any, k: Any, v: Any) -> Any:
        return ops.flash_attention(q, k, v, causal=causal, blocks=(8, 8), debug=pl.Debug())

    expected, found = (mw.grad(lambda *a, f=f: mnp.sin(f(*a)).sum(), argnums=(0, 1, 2))(*args) for f in (plain, flash))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[3, 0, 9, 4], [0, 0, 0, 0], [16, 0, 0, 4], [5, 5, 5, 5], [1, 2, 3, 4]])
def test_a_grouped_product_and_its_derivatives(sizes):
    x, w = numbers(20, 8), numbers(4, 8, 12)
    ends = np.cumsum(sizes)

    def plain(x: Any, w: Any) -> Any:
        rows = [x[end - size : end] @ w[g] for g, (end, size) in enumerate(zip(ends, sizes, strict=True))]
        return mnp.concatenate([*rows, mnp.zeros((20 - ends[-1], 12))])

    def grouped(x: Any, w: Any) -> Any:
        return ops.grouped_matmul(x, w, mnp.array(sizes), tiles=(6, 8), debug=pl.Debug(schedules=2))

    np.testing.assert_array_equal(grouped(x, w), plain(x, w))
    expected, found = (mw.grad(lambda *a, f=f: mnp.sin(f(*a)).sum(), argnums=(0, 1))(x, w) for f in (plain, grouped))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_sum_over_a_torus():
    x = numbers(6, 7, 5)
    spec = mw.P(("x", "y"))
    for both in (False, True):
        f = lambda x, both=both: ops.all_reduce(x, ("x", "y"), bidirectional=both, debug=pl.Debug(schedules=4))
        found = mw.shard_map(f, mesh=mw.make_mesh((2, 3), ("x", "y")), in_specs=spec, out_specs=spec)(x)
        np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))

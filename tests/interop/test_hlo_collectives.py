"""Every collective of a hand-written device program: as HLO of one device and as StableHLO of all, both run by XLA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright import pallas as pl
from tests.interop import hlo_by_xla
from tests.interop.test_hlo_models import KINDS

MESH = mw.make_mesh((2, 4), ("x", "y"))
BOTH = P("x", "y")
CASES: dict[str, tuple[Callable[[Any], Any], P, P, dict[str, int]]] = {
    "psum": (lambda a: lax.psum(a, "x"), BOTH, P(None, "y"), {"all-reduce": 1}),
    "psum over both": (lambda a: lax.psum(a, ("x", "y")), BOTH, P(), {"all-reduce": 1}),
    "several at once": (lambda a: sum(lax.psum((a, a * 2), "y")), BOTH, P("x"), {"all-reduce": 1}),
    "pmax": (lambda a: lax.pmax(a, "y"), BOTH, P("x"), {"all-reduce": 1}),
    "pmin": (lambda a: lax.pmin(a, ("y", "x")), BOTH, P(), {"all-reduce": 1}),
    "all_gather": (lambda a: lax.all_gather(a, "y", axis=1, tiled=True), BOTH, BOTH, {"all-gather": 1}),
    "all_gather, minor axis first": (
        lambda a: lax.all_gather(a, ("y", "x"), axis=0, tiled=True),
        BOTH,
        BOTH,
        {"all-gather": 1},
    ),
    "psum_scatter": (
        lambda a: lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True),
        BOTH,
        BOTH,
        {"reduce-scatter": 1},
    ),
    "all_to_all": (lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), BOTH, BOTH, {"all-to-all": 1}),
    "all_to_all along one dim": (lambda a: lax.all_to_all(a, "y", 0, 0, tiled=True), BOTH, BOTH, {"all-to-all": 1}),
    "all_to_all over both": (lambda a: lax.all_to_all(a, ("y", "x"), 0, 1, tiled=True), BOTH, BOTH, {"all-to-all": 1}),
    "ppermute": (
        lambda a: lax.ppermute(a, "y", [(i, (i + 1) % 4) for i in range(4)]),
        BOTH,
        BOTH,
        {"collective-permute": 1},
    ),
    "ppermute to some": (lambda a: lax.ppermute(a, "x", [(1, 0)]), BOTH, BOTH, {"collective-permute": 1}),
    "axis_index": (lambda a: a + lax.axis_index("y") * 10 + lax.axis_index("x"), BOTH, BOTH, {}),
    "axis_index of both": (lambda a: a + lax.axis_index(("y", "x")), BOTH, BOTH, {}),
    "in a loop": (
        lambda a: lax.fori_loop(0, 3, lambda i, v: v + lax.ppermute(v, "y", [(i, (i + 1) % 4) for i in range(4)]), a),
        BOTH,
        BOTH,
        {"collective-permute": 1},
    ),
    "in a scan": (
        lambda a: lax.scan(lambda c, r: (c + lax.pmax(r.sum(), ("x", "y")), c * r), a.sum() * 0, a)[1],
        BOTH,
        BOTH,
        {"all-reduce": 1},
    ),
}


def whole(parts: list[np.ndarray[Any, Any]], x: mw.Array) -> None:
    for part, shard in zip(parts, x.addressable_shards, strict=True):
        block = np.asarray(shard.data)
        kept = part[tuple(slice(n) for n in block.shape)]  # without padding
        np.testing.assert_allclose(kept, block, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_collective(name: str) -> None:
    body, in_specs, out_specs, counts = CASES[name]
    a = mw.device_put(mw.random.normal(mw.random.key(0), (16, 32)), mw.NamedSharding(MESH, in_specs))
    function = mw.jit(
        mw.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs),
        out_shardings=mw.NamedSharding(MESH, out_specs),
    )
    lowered = function.lower(a)
    compiled = lowered.compile()
    expected = compiled(a)
    assert hlo_by_xla.count_collectives(compiled.as_text()) == counts
    assert hlo_by_xla.count_collectives(compiled.as_text(iota=False)) == counts
    shards = [[np.asarray(shard.data) for shard in a.addressable_shards]]
    for iota in (True, False):
        whole(hlo_by_xla.run(compiled.as_text(iota=iota), shards)[0], expected)
    devices = jax.sharding.Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("x", "y"))
    sharding = jax.sharding.NamedSharding(devices, jax.P(*in_specs))
    whole(hlo_by_xla.run_partitioned(lowered.as_text(), devices, [sharding], [np.asarray(a)])[0], expected)


def test_an_op_without_hlo() -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        double = pl.pallas_call(lambda x, y: y.__setitem__(..., 2 * x[...]), mw.ShapeDtypeStruct((3,), "float32"))
        mw.jit(lambda x: double(x)).lower(mnp.ones(3)).compile().as_text()
    what, where, why, fix = str(error.value).splitlines()
    assert what == "pallas_call cannot be written as HLO."
    assert where.startswith("  at:   test_hlo_collectives.py:")
    assert why == "  why:  no HLO instructions are known that do the same"
    assert fix == "  fix:  compiled.program.to_text() writes every op"


def test_a_mesh_in_another_order_has_partitions_by_position() -> None:
    mesh = mw.Mesh(np.array([3, 0, 2, 1]).reshape(2, 2), ("x", "y"))
    a = mw.device_put(mnp.arange(16.0).reshape(4, 4), mw.NamedSharding(mesh, P("x", "y")))
    lowered = mw.jit(lambda a: a.sum(0), out_shardings=mw.NamedSharding(mesh, P("y"))).lower(a)
    assert 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n' in lowered.as_text()
    compiled = lowered.compile()
    assert "replica_groups=[2,2]<=[2,2]T(1,0)" in compiled.as_text()
    assert "replica_groups={{0,2},{1,3}}" in compiled.as_text(iota=False)
    blocks = [np.arange(16.0, dtype=np.float32).reshape(4, 4)[i : i + 2, j : j + 2] for i in (0, 2) for j in (0, 2)]
    (found,) = hlo_by_xla.run(compiled.as_text(), [blocks])
    np.testing.assert_array_equal(np.concatenate(found[:2]), np.asarray(a).sum(0))


def test_dims_that_do_not_divide_are_padded_blocks() -> None:
    mesh = mw.make_mesh((4,), ("x",))
    a = mw.device_put(mnp.arange(10.0), mw.NamedSharding(mesh, P("x")))
    compiled = mw.jit(lambda a: mnp.cumsum(a) + a[::-1]).lower(a).compile()
    text = compiled.as_text()
    assert (
        hlo_by_xla.parsed(text).to_string().startswith("HloModule jit__lambda_, entry_computation_layout={(f32[3]{0})")
    )
    padded = np.pad(np.arange(10.0, dtype=np.float32), (0, 2)).reshape(4, 3)
    (found,) = hlo_by_xla.run(text, [list(padded)])
    np.testing.assert_allclose(np.concatenate(found)[:10], np.asarray(compiled(a)))


def check_reshards(shape: tuple[int, ...], pairs: list[tuple[Any, Any]]) -> None:
    a = mw.random.normal(mw.random.key(0), shape)
    for source, target in pairs:
        placed = mw.device_put(a, source)
        compiled = mw.jit(lambda a: a, out_shardings=target).lower(placed).compile()
        text = compiled.as_text()
        counts = dict(Counter(KINDS[c.kind] for c in compiled.collectives))
        assert hlo_by_xla.count_collectives(text) == counts, (source, target)
        size = compiled.program.in_types[0].shape
        blocks = [np.asarray(shard.data) for shard in placed.addressable_shards]
        padded = [np.pad(x, [(0, n - m) for n, m in zip(size, x.shape, strict=True)]) for x in blocks]
        (found,) = hlo_by_xla.run(text, [padded])
        whole(found, compiled(placed))


def reshards(mesh: mw.Mesh, rank: int) -> list[tuple[Any, Any]]:
    layouts = list(mw.sharding.enumerate_shardings(mesh, rank, compound=True))
    return [(source, target) for source in layouts for target in layouts if source != target]


def test_some_reshards() -> None:
    check_reshards((8, 16), reshards(MESH, 2)[::11])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((2, 2), (8, 4)), ((2, 3), (6, 12)), ((2, 4), (16, 8)), ((2, 2), (5, 7)), ((2, 3), (4, 5)), ((2, 4), (7, 12))],
)
def test_every_reshard(sizes: tuple[int, int], shape: tuple[int, int]) -> None:
    mesh = mw.make_mesh(sizes, ("x", "y"))
    check_reshards(shape, reshards(mesh, 2))

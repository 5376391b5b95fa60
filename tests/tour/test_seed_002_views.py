"""Seed 002, multiple logical meshes "with an arbitrary assignment for the same set of devices": meshes of which none is
made of the axes of another. 2x3 beside 3x2, devices in reverse, any permutation of them: arguments, constraints,
results and hand-written parts on different ones are reshards, equal placements are free, and NumPy has the numbers.
"""

from __future__ import annotations

from math import prod
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

A = mw.Mesh(np.arange(6).reshape(2, 3), ("x", "y"))
B = mw.Mesh(np.arange(6).reshape(3, 2), ("a", "b"))
BACK = mw.Mesh(np.arange(6)[::-1].reshape(2, 3), ("x", "y"))
X = np.arange(36, dtype=np.float32).reshape(6, 6)
W = X % 7 - 3


def put(x: Any, mesh: mw.Mesh, *spec: Any) -> Any:
    return mw.device_put(x, mw.NamedSharding(mesh, mw.P(*spec)))


def kinds(compiled: Any) -> list[tuple[str, int]]:
    return [(one.kind, one.bytes_received_per_device) for one in compiled.collectives]


def test_a_constraint_on_devices_in_reverse_is_one_permute():
    there = mw.NamedSharding(BACK, mw.P("x", "y"))
    compiled = mw.jit(lambda x: lax.with_sharding_constraint(x, there)).lower(put(X, A, "x", "y")).compile()
    assert kinds(compiled) == [("permute", X.nbytes // 6)]
    found = compiled(put(X, A, "x", "y"))
    assert found.sharding == there
    np.testing.assert_array_equal(found, X)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])


@pytest.mark.parametrize("other", [B, BACK], ids=["3x2", "reversed"])
def test_what_stays_on_its_mesh_moves_nothing(other):
    args = put(X, A, "x", "y"), put(W, other, *other.axis_names)
    compiled = mw.jit(lambda x, y: (mnp.tanh(x) * 2, (y + 1).T * y.T)).lower(*args).compile()
    assert compiled.collectives == []
    first, second = compiled(*args)
    assert first.sharding == args[0].sharding
    assert second.sharding.is_equivalent_to(mw.NamedSharding(other, mw.P(*other.axis_names[::-1])), 2)
    np.testing.assert_allclose(first, np.tanh(X) * 2, rtol=1e-6)
    np.testing.assert_array_equal(second, (W + 1).T * W.T)


def test_equal_placements_on_unrelated_meshes_are_free():
    whole = put(X, A)
    columns = mw.Mesh(np.arange(6).reshape(3, 2), ("a", "b"))
    flat = mw.Mesh(np.arange(6), ("f",))
    args = whole, put(W, columns, ("a", "b")), put(W, flat, "f"), put(W, A, ("x", "y"))
    compiled = mw.jit(lambda w, x, y, z: x + y * z + w).lower(*args).compile()
    assert compiled.collectives == []
    np.testing.assert_array_equal(compiled(*args), W + W * W + X)


def test_a_result_asked_for_on_another_mesh_is_resharded_to_it():
    for mesh, spec in ((B, mw.P("b", "a")), (BACK, mw.P(None, ("y", "x"))), (B, mw.P("a", None))):
        there = mw.NamedSharding(mesh, spec)
        found = mw.jit(lambda x, y: x @ y, out_shardings=there)(put(X, A, "x", "y"), put(W, A, "y"))
        assert found.sharding == there
        np.testing.assert_array_equal(found, X @ W)


def test_a_shard_map_over_another_mesh_takes_its_arguments_there():
    def sums(x: Any) -> Any:
        return mw.shard_map(lambda x: lax.psum(x.sum(0), "a"), mesh=B, in_specs=mw.P("a"), out_specs=mw.P())(x)

    compiled = mw.jit(sums).lower(put(X, A, "x", "y")).compile()
    assert kinds(compiled)[-1] == ("all_reduce", 32) and {kind for kind, _ in kinds(compiled)[:-1]} == {"permute"}
    np.testing.assert_array_equal(compiled(put(X, A, "x", "y")), X.sum(0))

    def both(x: Any) -> Any:
        rows = mw.shard_map(lambda x: x * (1 + lax.axis_index("x")), mesh=A, in_specs=mw.P("x"), out_specs=mw.P("x"))
        return sums(x) + rows(x)

    expected = X.sum(0) + np.concatenate([X[:3], 2 * X[3:]])
    for mesh in (A, B, BACK):
        np.testing.assert_array_equal(mw.jit(both)(put(X, mesh, mesh.axis_names[0])), expected)


def test_what_is_simulated_and_explained_is_on_the_mesh_of_the_collectives():
    whole = lambda q: lax.psum(q * (1.0 + lax.axis_index("x")), "x")
    wide, tall = (mw.Mesh(np.arange(6).reshape(shape), ("x", "y")) for shape in ((2, 3), (3, 2)))
    f = mw.jit(mw.shard_map(whole, mesh=wide, in_specs=mw.P(), out_specs=mw.P()))
    on = [f.lower(put(np.ones((512, 512), np.float32), mesh)).compile() for mesh in (wide, tall)]
    assert [compiled.mesh for compiled in on] == [wide, wide]
    assert on[0].simulate("tpu v5e").seconds == on[1].simulate("tpu v5e").seconds
    assert on[0].explain() == on[1].explain()
    there = mw.NamedSharding(mw.Mesh(np.array([3, 1, 0, 2, 5, 4]), ("z",)), mw.P("z"))
    moved = mw.jit(lambda x: lax.with_sharding_constraint(x, there).sum(0)).lower(put(X, A, "y", "x")).compile()
    assert "it is constrained to P('z',)" in moved.explain()


def test_other_devices_are_refused():
    x, other = put(X, A, "x"), mw.Mesh(np.arange(6, 12), ("x",))
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(lambda x: lax.with_sharding_constraint(x, mw.NamedSharding(other, mw.P("x"))))(x)
    assert caught.value.what == "One program names two meshes."
    assert caught.value.why.endswith(", which has other devices")


def test_a_sum_is_not_left_open_over_another_mesh():
    there = mw.NamedSharding(BACK, mw.P(unreduced={"x"}))
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(lambda x: lax.with_sharding_constraint(x @ x, there))(put(X, A, "x", "y"))
    assert caught.value.what == (
        'A value cannot be left unreduced over x of <["x"=2, "y"=3], device_ids=[5, 4, 3, 2, 1, 0]>.'
    )
    assert caught.value.why == 'the program runs on <["x"=2, "y"=3]>, and sums that are open are over its axes'
    assert caught.value.fix == "mw.NamedSharding(mesh, mw.P()), which takes the sum"


# Random programs

COUNTS = {6: [(6,), (2, 3), (3, 2)], 8: [(8,), (2, 4), (4, 2), (2, 2, 2)], 12: [(12,), (3, 4), (2, 6), (2, 3, 2)]}


def random_mesh(random: Random, devices: int) -> mw.Mesh:
    order = list(range(devices))
    kind = random.randrange(4)
    if kind == 1:
        order.reverse()
    elif kind > 1:
        random.shuffle(order)
    sizes = random.choice(COUNTS[devices])
    names = random.sample("pqrstuvw", len(sizes)) if random.random() < 0.7 else ["x", "y", "z"][: len(sizes)]
    return mw.Mesh(np.array(order).reshape(sizes), tuple(names))


def random_sharding(random: Random, meshes: list[mw.Mesh], rank: int) -> mw.NamedSharding:
    mesh = random.choice(meshes)
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in random.sample(mesh.axis_names, len(mesh.axis_names)):
        place = random.randrange(rank + 1)
        if place < rank:
            dims[place].append(axis)
    return mw.NamedSharding(mesh, mw.P(*(tuple(axes) or None for axes in dims)))


def step(random: Random, meshes: list[mw.Mesh]) -> tuple[Any, Any]:
    """A function of two values of one square shape and their length, for Meshwright and for NumPy."""
    there = random_sharding(random, meshes, 2)
    mesh = random.choice(meshes)
    axis = random.choice(mesh.axis_names)

    def by_hand(x: Any) -> Any:
        return mw.shard_map(lambda x: x + lax.psum(x, axis), mesh=mesh, in_specs=mw.P(), out_specs=mw.P())(x)

    def loop(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, c: lax.with_sharding_constraint(c * 0.5 + y, there), x)

    def branch(x: Any, y: Any) -> Any:
        return lax.cond(x.sum() > y.sum(), lambda: lax.with_sharding_constraint(x, there) + y, lambda: x - y)

    choices = [
        (lambda x, y: x @ y / len(x), lambda x, y: x @ y / len(x)),
        (lambda x, y: lax.with_sharding_constraint(x, there) - y, lambda x, y: x - y),
        (lambda x, y: mnp.tanh(x) * y.T, lambda x, y: np.tanh(x) * y.T),
        (lambda x, y: x - mnp.sum(y, 0) / len(x), lambda x, y: x - np.sum(y, 0) / len(x)),
        (lambda x, y: mnp.cumsum(x, 1) / len(x) + y, lambda x, y: np.cumsum(x, 1) / len(x) + y),
        (lambda x, y: mnp.concatenate([x, y])[3 : 3 + len(x)], lambda x, y: np.concatenate([x, y])[3 : 3 + len(x)]),
        (lambda x, y: by_hand(x) - y, lambda x, y: x + x * mesh.shape[axis] - y),
        (loop, lambda x, y: (x * 0.5 + y) * 0.5 + y),
        (branch, lambda x, y: x + y if x.sum() > y.sum() else x - y),
        (lambda x, y: lax.with_sharding_constraint(mnp.maximum(x, y), there), np.maximum),
        (lambda x, y: mnp.reshape(mnp.reshape(x, (-1,)) * 2, x.shape) + y[::-1], lambda x, y: x * 2 + y[::-1]),
    ]
    return random.choice(choices)


def run_one(random: Random) -> int:
    """One random program on meshes of the same devices; how many collectives it has."""
    devices = random.choice(list(COUNTS))
    meshes = [random_mesh(random, devices) for _ in range(random.randint(2, 3))]
    n = random.choice([devices, devices, 2 * devices, devices + 1])
    steps = [step(random, meshes) for _ in range(random.randint(1, 4))]

    def program(which: int) -> Any:
        def f(x: Any, y: Any) -> Any:
            for one in steps:
                x, y = one[which](x, y), x
            return x, y

        return f

    x, y = (np.random.default_rng(random.randrange(1 << 30)).normal(size=(n, n)).astype(np.float32) for _ in range(2))
    args = [put(v, s.mesh, *s.spec.partitions) for v in (x, y) for s in [random_sharding(random, meshes, 2)]]
    outs = tuple(random_sharding(random, meshes, 2) if random.random() < 0.5 else None for _ in range(2))
    compiled = mw.jit(program(0), out_shardings=outs).lower(*args).compile()
    found = compiled(*args)
    for actual, expected, asked in zip(found, program(1)(x, y), outs, strict=True):
        assert asked is None or actual.sharding.is_equivalent_to(asked, 2)
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=2e-4, atol=2e-4)
    assert prod(compiled.program.in_types[0].shape) <= n * n
    return len(compiled.collectives)


def test_random_programs_on_random_views_of_the_same_devices():
    random = Random(0)
    assert sum(run_one(random) for _ in range(25)) > 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_random_programs_on_random_views_of_the_same_devices_again(seed):
    random = Random(seed)
    assert sum(run_one(random) for _ in range(80)) > 80


# Explicit axes: types say which mesh a value is on

E_A, E_B = (mw.Mesh(m.device_ids, m.axis_names, axis_types=(mw.AxisType.Explicit,) * 2) for m in (A, B))


def test_values_on_two_explicit_meshes_go_their_own_ways_and_meet_by_reshard():
    x, y = put(X, E_A, "x", "y"), put(W, E_B, "a", "b")
    there = mw.NamedSharding(E_B, mw.P("a", "b"))

    def f(x: Any, y: Any) -> Any:
        return mnp.tanh(x) * 2, mw.reshard(x, there) - y.T.T, y + 1

    compiled = mw.jit(f).lower(x, y).compile()
    assert {one.kind for one in compiled.collectives} == {"permute"}
    first, second, third = compiled(x, y)
    assert [str(mw.typeof(v)) for v in (first, second, third)] == ["float32[6@x,6@y]", *["float32[6@a,6@b]"] * 2]
    np.testing.assert_allclose(first, np.tanh(X) * 2, rtol=1e-6)
    np.testing.assert_array_equal(second, X - W)
    np.testing.assert_array_equal(third, W + 1)
    program = mw.jit(f).lower(x, y).program
    assert str(program).startswith("mesh(x=2, y=3)\nmesh(a=3, b=2)\n") and mw.parse_program(str(program)) == program
    slope = mw.jit(mw.grad(lambda x: mnp.sum(mw.reshard(x, there) ** 2)))(x)
    assert str(mw.typeof(slope)) == "float32[6@x,6@y]"
    np.testing.assert_array_equal(slope, 2 * X)
    captured = mw.jit(lambda x: mw.reshard(x, there) + y)(x)  # from outside
    np.testing.assert_array_equal(captured, X + W)


def test_a_reshard_to_another_explicit_mesh_is_a_constraint_on_it_in_the_text():
    pytest.importorskip("jaxlib")
    there = mw.NamedSharding(E_B, mw.P("a", "b"))
    text = mw.jit(lambda x: mw.reshard(x, there)).lower(put(X, E_A, "x", "y")).as_text()
    assert '<@mesh_0, [{"a"}, {"b"}]>' in text and "sdy.sharding_constraint %arg0" in text


def test_explicit_meshes_that_types_do_not_tell_apart_are_refused():
    back = mw.Mesh(BACK.device_ids, BACK.axis_names, axis_types=(mw.AxisType.Explicit,) * 2)
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(lambda x: mw.reshard(x, mw.NamedSharding(back, mw.P("x"))))(put(X, E_A, "x", "y"))
    assert caught.value.what == "One program names two meshes."
    assert caught.value.why.endswith(", and types do not tell the two apart")
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(mnp.add)(put(X, E_A, "x", "y"), put(W, E_B, "a", "b"))
    assert caught.value.what == "add cannot take f32[6@x,6@y], f32[6@a,6@b]."
    assert caught.value.why == 'they are on different meshes, <["x"=2, "y"=3]> and <["a"=3, "b"=2]>'


def explicit_one(random: Random) -> None:
    """A random chain of ops, with reshards between two Explicit meshes of the same devices in any order."""
    devices = random.choice([6, 8])
    order = random.sample(range(devices), devices)
    shapes = random.sample([s for s in COUNTS[devices] if len(s) == 2], 2)
    orders = (list(range(devices)), order)
    meshes = [
        mw.Mesh(np.array(ids).reshape(sizes), tuple(names), axis_types=(mw.AxisType.Explicit,) * 2)
        for ids, sizes, names in zip(orders, shapes, ("xy", "ab"), strict=True)
    ]
    n = 2 * devices
    plan = [(random.randrange(4), random_sharding(random, meshes, 2)) for _ in range(random.randint(1, 4))]

    def f(xp: Any) -> Any:
        def run(v: Any) -> Any:
            for kind, there in plan:
                if kind == 0:
                    v = xp.tanh(v) + 1
                elif kind == 1:
                    v = v.T * 2
                elif kind == 2:
                    v = v - xp.sum(v, 0, keepdims=True) / n
                v = mw.reshard(v, there) if xp is mnp else v
            return v

        return run

    x = np.random.default_rng(random.randrange(1 << 30)).normal(size=(n, n)).astype(np.float32)
    start = random_sharding(random, meshes, 2)
    placed = mw.device_put(x, start)
    found = mw.jit(f(mnp))(placed)
    np.testing.assert_allclose(found, f(np)(x), rtol=1e-4, atol=1e-4)
    assert found.sharding.is_equivalent_to(plan[-1][1], 2)
    slope = mw.jit(mw.grad(lambda v: mnp.sum(f(mnp)(v) ** 2)))(placed)
    expected = mw.grad(lambda v: mnp.sum(f(np_like)(v) ** 2))(x)
    np.testing.assert_allclose(slope, expected, rtol=1e-3, atol=1e-3)
    assert slope.sharding.is_equivalent_to(start, 2)


np_like = SimpleNamespace(tanh=mnp.tanh, sum=mnp.sum)  # without reshards


def test_random_programs_on_two_explicit_meshes():
    random = Random(0)
    for _ in range(20):
        explicit_one(random)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_random_programs_on_two_explicit_meshes_again(seed):
    random = Random(seed)
    for _ in range(80):
        explicit_one(random)

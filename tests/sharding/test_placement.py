"""Which part of a tensor each device holds: against brute force, for any mesh, sub-axes, device orders and sizes."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from meshwright.errors import MeshwrightError, ShardingError
from meshwright.sharding import placement
from meshwright.sharding.mesh import Mesh, make_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.placement import Digit, order_steps, through
from meshwright.sharding.spec import P
from tests.sharding import brute_force
from tests.sharding.random_shardings import divisors, random_sharding

COUNTS = (1, 2, 4, 6, 8, 12, 16, 18, 24)


def factored(rng: random.Random, count: int) -> tuple[int, ...]:
    sizes, left = [], count
    while left > 1:
        sizes.append(rng.choice(divisors(left)))
        left //= sizes[-1]
    return tuple(sizes) or (1,)


def random_order(rng: random.Random, count: int) -> list[int] | None:
    """None, digits of 0, …, n - 1 that change places, or anything."""
    kind = rng.randrange(5)
    if kind < 2:
        return None
    if kind < 4:
        sizes = factored(rng, count)
        turn = rng.sample(range(len(sizes)), len(sizes))
        return np.arange(count).reshape(sizes).transpose(turn).ravel().tolist()
    return rng.sample(range(count), count)


def random_mesh(rng: random.Random, count: int) -> Mesh:
    sizes = factored(rng, count)
    return make_mesh(sizes, tuple("abcdefg"[: len(sizes)]), devices=random_order(rng, count))


def random_pair(rng: random.Random) -> tuple[TensorSharding, TensorSharding]:
    """Two shardings of the same rank over as many devices; often the second is the first said on another mesh."""
    count, rank = rng.choice(COUNTS), rng.randrange(1, 4)
    mesh = random_mesh(rng, count)
    other = random_mesh(rng, count if rng.random() < 0.95 else rng.choice(COUNTS))
    if rng.random() < 0.2:
        other = Mesh(other.device_ids.ravel()[np.argsort(other.device_ids.ravel())], "all")
    one = random_sharding(rng, mesh, rank, cut=0.5)
    if rng.random() < 0.6:
        try:
            return one, TensorSharding.from_hlo(one.to_hlo(), other, rank)
        except MeshwrightError:
            pass
    return one, random_sharding(rng, other, rank, cut=0.5)


def compare_pairs(count: int, seed: int) -> int:
    rng, same = random.Random(seed), 0
    for _ in range(count):
        one, other = random_pair(rng)
        expected = brute_force.same_placement(one, other)
        assert one.is_equivalent_to(other) == other.is_equivalent_to(one) == expected, (
            one.mesh,
            one,
            other.mesh,
            other,
        )
        same += expected
    return same


def test_equivalence_is_brute_force_equality_of_placement():
    assert compare_pairs(1000, seed=0) > 250


@pytest.mark.slow
def test_equivalence_on_twenty_thousand_pairs_across_meshes():
    assert compare_pairs(20_000, seed=1) > 5_000


def test_equivalence_is_an_equivalence():
    rng = random.Random(2)
    for _ in range(150):
        rank = rng.randrange(1, 3)
        found = [random_sharding(rng, random_mesh(rng, 4), rank, cut=0.5) for _ in range(8)]
        table = np.array([[a.is_equivalent_to(b) for b in found] for a in found])
        assert table.diagonal().all() and (table == table.T).all()
        assert (table == (table.astype(int) @ table > 0)).all()


def test_device_orders_of_digits_are_compared_without_listing_devices(monkeypatch):
    def listed(*_):
        raise AssertionError("devices were listed")

    monkeypatch.setattr(placement, "_table", listed)
    one = Mesh(np.arange(512).reshape(8, 64).T, ("x", "y"))
    other = Mesh.parse('<["a"=8, "b"=64]>')
    assert TensorSharding(one, ["x", "y"]).is_equivalent_to(TensorSharding(other, ["b", "a"]))
    assert not TensorSharding(one, ["x", "y"]).is_equivalent_to(TensorSharding(other, ["a:(1)4", "a:(4)2"]))


def test_meshes_too_large_to_list_are_compared():
    one = Mesh.parse(f'<["x"={2**40}, "y"={3**20}]>')
    other = Mesh.parse(f'<["a"={2**30}, "b"={2**10 * 3**5}, "c"={3**15}]>')
    left = TensorSharding(one, ["x", "y"])
    assert left.is_equivalent_to(TensorSharding(other, [("a", "b:(1)1024"), ("b:(1024)243", "c")]))
    assert not left.is_equivalent_to(TensorSharding(other, [("a", "b:(1)1024"), ("c", "b:(1024)243")]))
    assert left.to_hlo() == f"{{devices=[{2**40},{3**20}]<=[{2**40 * 3**20}]}}"


def test_equivalence_looks_at_sums_and_not_at_what_may_be_decided_later():
    mesh, flat = Mesh.parse('<["x"=2, "y"=4]>'), Mesh.parse('<["d"=8]>')

    def on(mesh, text):
        return TensorSharding.parse(f"sharding<@mesh, {text}>", mesh)

    assert on(mesh, '[{"x", ?}p1, {?}], replicated={"y"}').is_equivalent_to(on(mesh, '[{"x"}, {}]'))
    assert on(mesh, '[{}], unreduced={"x"}').is_equivalent_to(on(flat, '[{}], unreduced={"d":(1)2}'))
    assert not on(mesh, '[{}], unreduced={"x"}').is_equivalent_to(on(mesh, "[{}]"))
    assert not on(mesh, '[{}], unreduced={"x"}').is_equivalent_to(on(mesh, '[{}], unreduced=max{"x"}'))
    assert on(mesh, '[{}], unreduced={"x", "y"}').is_equivalent_to(on(flat, '[{}], unreduced={"d"}'))
    assert not on(mesh, "[{}]").is_equivalent_to(on(mesh, "[{}, {}]"))


def test_one_device_and_no_device():
    alone, other = (Mesh.parse(f"<[], device_ids=[{k}]>") for k in (0, 3))
    whole = TensorSharding(alone, [])
    assert whole.is_equivalent_to(TensorSharding(alone, [])) and not whole.is_equivalent_to(TensorSharding(other, []))
    assert whole.is_equivalent_to(TensorSharding(Mesh.parse('<["x"=1]>'), ["x", None]))
    assert whole.local_shape((3, 4)) == (3, 4) and whole.padding((3, 4)) == (0, 0) and whole.type_dims((3,)) == ["3"]
    assert {d.id: i for d, i in TensorSharding(other, []).devices_indices_map((3,)).items()} == {3: (slice(None),)}
    empty = TensorSharding(Mesh.parse("<[]>"), [None, None])
    assert empty.is_equivalent_to(NamedSharding(make_mesh((2,), ("x",)), P()), 2)
    assert not empty.is_equivalent_to(NamedSharding(make_mesh((2,), ("x",)), P("x")), 2)
    assert empty.devices_indices_map((3, 4)) == {}


def test_each_device_holds_its_block_whatever_the_size():
    rng = random.Random(3)
    for _ in range(150):
        rank = rng.randrange(1, 4)
        sharding = random_sharding(rng, random_mesh(rng, rng.choice(COUNTS[:6])), rank, cut=0.5)
        shape = tuple(rng.choice([0, 1, 2, 3, 5, 7, 8, 12]) for _ in range(rank))
        array = np.arange(prod(shape)).reshape(shape)
        expected = brute_force.held(sharding, shape)
        found = {device.id: array[index] for device, index in sharding.devices_indices_map(shape).items()}
        assert found.keys() == expected.keys()
        local = sharding.local_shape(shape)
        assert tuple(p // s for p, s in zip(sharding.padded_shape(shape), sharding.shards, strict=True)) == local
        for device, part in expected.items():
            if part.size or prod(shape):
                assert np.array_equal(found[device].ravel(), part.ravel()), (sharding, shape, device)
            assert all(a <= b for a, b in zip(found[device].shape, local, strict=True))
        covered = np.concatenate([part.ravel() for part in found.values()])
        assert set(covered.tolist()) == set(range(prod(shape)))


def test_a_dim_smaller_than_its_axes_leaves_devices_with_nothing():
    sharding = TensorSharding(Mesh.parse('<["x"=8]>'), ["x"])
    indices = [index[0] for index in sharding.devices_indices_map((3,)).values()]
    assert indices == [slice(0, 1), slice(1, 2), slice(2, 3)] + [slice(3, 3)] * 5
    assert sharding.local_shape((3,)) == (1,) and sharding.padding((3,)) == (5,)


def test_orders_that_permute_digits_are_found():
    assert order_steps((0, 2, 1, 3)) is not None and order_steps((3, 2, 1, 0)) is None
    assert order_steps(tuple(range(12))) == ((1, 12, 1),)
    rng = random.Random(4)
    for _ in range(200):
        sizes = factored(rng, rng.choice(COUNTS))
        turn = rng.sample(range(len(sizes)), len(sizes))
        order = np.arange(prod(sizes)).reshape(sizes).transpose(turn).ravel()
        steps = order_steps(tuple(order.tolist()))
        assert steps is not None
        for step in steps:
            moved = through((Digit(step.stride, step.size),), steps)
            assert moved is not None
            values = placement.block_numbers(moved, order)
            assert np.array_equal(values, np.arange(len(order)) // step.stride % step.size)


def test_sub_axes_that_no_reshape_has_both_are_placed_by_their_definition():
    mesh = Mesh.parse('<["y"=12]>')
    odd = TensorSharding(mesh, ["y:(1)2", "y:(3)2"])
    assert odd.is_equivalent_to(odd) and brute_force.same_placement(odd, odd)
    assert not odd.is_equivalent_to(TensorSharding(mesh, ["y:(1)2", "y:(2)2"]))
    found = {d.id: i for d, i in odd.devices_indices_map((2, 2)).items()}
    expected = {d: tuple(slice(b, b + 1) for b in block) for d, (block, _) in brute_force.blocks(odd).items()}
    assert found == expected
    with pytest.raises(ShardingError, match="no tiles"):
        odd.to_hlo()


def test_rank_is_checked():
    mesh = make_mesh((2, 4), ("x", "y"))
    for call in (
        lambda: TensorSharding(mesh, ["x"]).local_shape((4, 4)),
        lambda: NamedSharding(mesh, P("x", "y")).shard_shape((4,)),
        lambda: NamedSharding(mesh, P("x", "y")).devices_indices_map((4,)),
        lambda: NamedSharding(mesh, P("x", "y")).is_equivalent_to(NamedSharding(mesh, P()), 1),
        lambda: NamedSharding(mesh, P("x", "y")).type_dims((4,)),
    ):
        with pytest.raises(ShardingError, match="dim"):
            call()

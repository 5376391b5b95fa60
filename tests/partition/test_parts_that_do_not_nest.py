"""Parts of one axis that no mesh has together: of 6 devices, the 2 halves and the 3 thirds."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.partition.cuts import Cuts
from meshwright.sharding.axes import AxisRef
from meshwright.testing import assert_comms
from tests.time_limit import within

SIX = mw.make_mesh((6,), ("x",))
HALVES, THIRDS = "x:(1)2", "x:(1)3"


def on(x: Any, *spec: Any, mesh: Any = SIX) -> Any:
    return mw.device_put(np.asarray(x, np.float32), mw.NamedSharding(mesh, P(*spec)))


# Cuts, by trying all ways to cut


def chains(n: int) -> list[frozenset[int]]:
    """All ways to cut an axis of n devices, each as the places where it is cut: numbers that divide each other."""
    inner = [d for d in range(2, n) if n % d == 0]
    found = []
    for count in range(len(inner) + 1):
        for places in combinations(inner, count):
            at = (1, *places, n)
            if all(b % a == 0 for a, b in pairwise(at)):
                found.append(frozenset(at))
    return found


@pytest.mark.parametrize("n", [2, 4, 6, 8, 12, 30, 36])
def test_a_part_fits_if_there_is_a_way_to_cut_at_all_parts(n: int) -> None:
    mesh = mw.make_mesh((n,), ("x",))
    every = [AxisRef("x", a, b // a, n) for a in range(1, n) for b in range(a + 1, n + 1)
             if n % b == 0 and b % a == 0]  # fmt: skip
    ways = chains(n)
    generator = np.random.default_rng(n)
    for _ in range(60):
        cuts, ends = Cuts(mesh), {1, n}
        for axis in (every[k] for k in generator.permutation(len(every))[:6]):
            wanted = ends | {axis.pre, axis.next}
            possible = any(wanted <= way for way in ways)
            assert cuts.fits(axis) == possible
            if possible:
                cuts, ends = cuts.at(axis), wanted
        places = sorted(ends)
        assert cuts.axes == tuple((AxisRef("x", a, b // a, n).short(), b // a) for a, b in pairwise(places))
        for axis in every:
            if {axis.pre, axis.next} <= ends:
                assert np.prod([size for _, size in cuts.names(axis)]) == axis.size


# Programs


def test_a_program_that_needs_both() -> None:
    def both(a: Any) -> Any:
        return a.reshape(2, 3, 4).sum(1), a.reshape(3, 2, 4).sum(1)

    a = np.arange(24, dtype=np.float32).reshape(6, 4)
    for spec in ((("x"),), (HALVES,), (THIRDS,), (None, HALVES), (None, "x:(3)2"), ("x:(2)3", HALVES)):
        with within(10):
            halves, thirds = mw.jit(both)(on(a, *spec))
        np.testing.assert_array_equal(np.asarray(halves), a.reshape(2, 3, 4).sum(1))
        np.testing.assert_array_equal(np.asarray(thirds), a.reshape(3, 2, 4).sum(1))


def test_arguments_in_parts_that_do_not_nest_are_gathered_and_explained() -> None:
    a, b, c = (np.random.default_rng(n).normal(size=s) for n, s in enumerate([(6, 2), (2, 6), (6, 9)]))
    step = mw.jit(lambda a, b, c: a @ b @ c)
    there = on(a, THIRDS), on(b, HALVES), on(c, "x:(2)3", HALVES)
    with within(10):
        np.testing.assert_allclose(np.asarray(step(*there)), a @ b @ c, rtol=1e-4)
    compiled = step.lower(*there).compile()
    rows = [one for one in compiled.collectives if "do not nest" in one.why]
    assert [(one.kind, one.bytes_received_per_device) for one in rows] == [
        ("all_gather", 5 * 24),
        ("all_gather", 5 * 40),
    ]
    assert rows[0].why == "it comes in parts of an axis that do not nest with those of others"
    assert "do not nest" in compiled.explain()
    with mw.no_implicit_comms(), pytest.raises(mw.MeshwrightError, match="that nobody wrote"):
        step(*there)


def test_uneven_arguments_in_parts_that_do_not_nest() -> None:
    a, b = np.arange(35.0).reshape(7, 5), np.arange(45.0).reshape(9, 5)
    with within(10):
        found = mw.jit(lambda a, b: a @ b.T)(on(a, THIRDS, "x:(3)2"), on(b, HALVES, "x:(2)3"))
    np.testing.assert_allclose(np.asarray(found), a @ b.T)


def test_results_in_parts_that_do_not_nest() -> None:
    a = np.arange(36.0).reshape(6, 6)
    places = (
        mw.NamedSharding(SIX, P(HALVES)),
        mw.NamedSharding(SIX, P(THIRDS)),
        mw.NamedSharding(SIX, P(None, "x:(3)2")),
    )
    step = mw.jit(lambda a: (a + 1, a * 2, a.T), out_shardings=places)
    for spec in (("x",), (HALVES,), (THIRDS,), ()):
        with within(10):
            found = step(on(a, *spec))
        for x, y, place in zip(found, (a + 1, a * 2, a.T), places, strict=True):
            np.testing.assert_array_equal(np.asarray(x), y)
            assert x.sharding.is_equivalent_to(place, 2)


def test_what_one_program_returns_another_takes() -> None:
    """Nobody wrote a part of an axis here."""
    a = np.arange(24, dtype=np.float32).reshape(6, 4)
    halves = mw.jit(lambda a: a.reshape(2, 3, 4).sum(1))(on(a, "x"))
    thirds = mw.jit(lambda a: a.reshape(3, 2, 4).sum(1))(on(a, "x"))
    assert halves.sharding != thirds.sharding
    with within(10):
        found = mw.jit(lambda h, t: h.sum() * t)(halves, thirds)
    np.testing.assert_array_equal(np.asarray(found), a.sum() * a.reshape(3, 2, 4).sum(1))


def test_constraints_in_parts_that_do_not_nest() -> None:
    def f(a: Any) -> Any:
        with mw.set_mesh(SIX):
            b = lax.with_sharding_constraint(mnp.sin(a), P(HALVES))
            return lax.with_sharding_constraint(b * b, P(THIRDS)) + b

    a = np.linspace(0, 1, 36, dtype=np.float32).reshape(6, 6)
    for spec in (("x",), (HALVES,), (THIRDS,)):
        with within(10):
            np.testing.assert_allclose(np.asarray(mw.jit(f)(on(a, *spec))), np.sin(a) ** 2 + np.sin(a), rtol=1e-6)


def test_two_shard_maps_in_parts_that_do_not_nest() -> None:
    """The first is written for one device of the cut mesh; the second becomes what it is on whole arrays."""
    first = mw.shard_map(lambda v: lax.psum(v, HALVES), mesh=SIX, in_specs=P("x"), out_specs=P("x:(2)3"))
    second = mw.shard_map(
        lambda v: lax.psum(v * lax.axis_index(THIRDS), THIRDS), mesh=SIX, in_specs=P("x"), out_specs=P("x:(3)2")
    )
    x = np.arange(12, dtype=np.float32)
    expected = (
        x.reshape(2, 3, 2).sum(0).reshape(-1),
        np.einsum("ijk,i->jk", x.reshape(3, 2, 2), np.arange(3)).reshape(-1),
    )
    for spec in (("x",), (HALVES,), (THIRDS,), ()):
        with within(10):
            found = mw.jit(lambda x: (first(x), second(x)))(on(x, *spec))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)
    gradient = mw.jit(mw.grad(lambda x: mnp.sin(first(x)).sum() + mnp.cos(second(x)).sum()))
    plain = mw.grad(lambda x: mnp.sin(first(x)).sum() + mnp.cos(second(x)).sum())
    np.testing.assert_allclose(np.asarray(gradient(on(x, "x"))), np.asarray(plain(mnp.asarray(x))), rtol=1e-5)


def test_partial_sums_in_parts_that_do_not_nest_are_summed() -> None:
    def partial_sum(part: str, size: int) -> Any:
        f = mw.shard_map(lambda v: v, mesh=SIX, in_specs=P(part), out_specs=P(sum=part), axis_names={"x"})
        return f(mnp.arange(float(size)))

    a, b = partial_sum(HALVES, 4), partial_sum(THIRDS, 6)
    with within(10):
        found = mw.jit(lambda a, b: (mw.reshard(a, P()), mw.reshard(b, P())))(a, b)
    np.testing.assert_array_equal(np.asarray(found[0]), np.arange(4.0).reshape(2, 2).sum(0))
    np.testing.assert_array_equal(np.asarray(found[1]), np.arange(6.0).reshape(3, 2).sum(0))


def test_a_mesh_that_is_not_cut_moves_nothing_more() -> None:
    """An axis of 8 has no parts that do not nest."""
    eight = mw.make_mesh((8,), ("x",))
    a, b = on(np.ones((8, 8)), "x:(1)2", mesh=eight), on(np.ones((8, 8)), "x:(1)4", mesh=eight)
    compiled = mw.jit(lambda a, b: a + b, out_shardings=mw.NamedSharding(eight, P("x:(1)4"))).lower(a, b).compile()
    assert_comms(compiled, all_gather=0, all_to_all=0, permute=0, all_reduce=0)

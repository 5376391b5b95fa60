"""What cannot be partitioned is an error that says what to write instead; messages are compared whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((2, 2), ("x", "y"))
EXPLICIT = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)


def put(shape: tuple[int, ...], *spec: Any, mesh: mw.Mesh = MESH) -> Any:
    return mw.device_put(mnp.ones(shape), mw.NamedSharding(mesh, P(*spec)))


def message(function: Callable[..., Any], *args: Any) -> str:
    """The error of a call, without the line that it shows."""
    with pytest.raises(mw.MeshwrightError) as error:
        function(*args)
    text = str(error.value)
    assert re.search(r"^  at:   test_errors\.py:\d+", text, re.M), text
    return re.sub(r"^  at: .*\n", "", text, flags=re.M)


def test_an_ambiguous_sum_in_explicit_mode() -> None:
    a, b = put((8, 4), None, "x", mesh=EXPLICIT), put((4, 6), "x", mesh=EXPLICIT)
    assert message(mw.jit(lambda a, b: a @ b), a, b) == (
        "The layout of dot_general of f32[8,4@x], f32[4@x,6] is ambiguous.\n"
        "  why:  it sums over dim 1 of operand 0 and dim 0 of operand 1, both split over x: the sum can go to all "
        "devices, or each can take a part of it\n"
        "  fix:  out_sharding=mw.P(None, None) for all of it, out_sharding=mw.P('x', None) for a part on each device"
    )
    for spec in (P(None, None), P("x", None)):
        with mw.set_mesh(EXPLICIT):
            done = mw.jit(lambda a, b, spec=spec: mnp.matmul(a, b, out_sharding=spec))(a, b)
        np.testing.assert_array_equal(np.asarray(done), np.full((8, 6), 4.0))


@pytest.mark.parametrize("spec", [("x", "x"), (("x", "y", "x"),), (None, ("y", "x"), "x")])
def test_an_axis_used_twice(spec: Any) -> None:
    assert message(lambda: mw.jit(lambda a: a, out_shardings=mw.NamedSharding(MESH, P(*spec)))) == (
        'The axis "x" appears twice.\n'
        "  why:  an axis shards one dim, or is replicated, or unreduced: it appears once in a sharding\n"
        '  fix:  leave out one "x"'
    )


def test_two_meshes_for_arguments_and_results() -> None:
    far = mw.make_mesh((4,), ("z",), devices=[4, 5, 6, 7])
    expected = (
        "The arguments and results of one program are on different meshes.\n"
        '  why:  one is on <["x"=2, "y"=2]>, another on <["z"=4], device_ids=[4, 5, 6, 7]>\n'
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all"
    )
    a, b = put((4, 4), "x"), put((4, 4), "z", mesh=far)
    assert message(mw.jit(lambda a, b: a + b), a, b) == expected
    assert message(mw.jit(lambda a: a, out_shardings=mw.NamedSharding(far, P("z"))), a) == expected
    moved = mw.device_put(b, mw.NamedSharding(MESH, P("x")))
    np.testing.assert_array_equal(np.asarray(mw.jit(lambda a, b: a + b)(a, moved)), np.full((4, 4), 2.0))


def test_two_meshes_inside_of_a_program() -> None:
    far = mw.make_mesh((4,), ("z",), devices=[4, 5, 6, 7])
    constrained = mw.jit(lambda a: lax.with_sharding_constraint(a, mw.NamedSharding(far, P("z"))))
    assert message(constrained, put((4, 4), "x")) == (
        "One program names two meshes.\n"
        '  why:  it runs on <["x"=2, "y"=2]>, and a constraint in it is about <["z"=4], device_ids=[4, 5, 6, 7]>, '
        "which has other devices\n"
        "  fix:  mw.NamedSharding(mesh, spec) with one mesh for all, or two jitted functions"
    )


def test_two_sets_of_devices_for_a_plan() -> None:
    pair = mw.NamedSharding(mw.make_mesh((2,), ("x",)), P("x"))
    assert message(mw.plan_reshard, (4,), "f32", mw.NamedSharding(MESH, P("x")), pair) == (
        "An array cannot be resharded from one set of devices to another.\n"
        "  why:  the source is on 4 devices, the target on 2 devices\n"
        "  fix:  mw.device_put(x, dst) copies an array to other devices"
    )


def test_an_unreduced_value_used_where_sums_do_not_pass() -> None:
    a, b = put((4, 4), None, "x", mesh=EXPLICIT), put((4, 4), "x", mesh=EXPLICIT)
    partial = mw.NamedSharding(EXPLICIT, P(None, None, unreduced={"x"}))
    partial_sum = lambda a, b: mnp.matmul(a, b, out_sharding=partial)
    assert message(mw.jit(lambda a, b: mnp.tanh(partial_sum(a, b))), a, b) == (
        "tanh cannot take f32[4,4]{U:x}.\n"
        "  why:  each device holds a summand of an unreduced value, and tanh of the sum is not the sum of tanh\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )
    assert message(mw.jit(lambda a, b: partial_sum(a, b) * partial_sum(a, b)), a, b) == (
        "mul cannot take f32[4,4]{U:x}, f32[4,4]{U:x}.\n"
        "  why:  each device holds a summand of an unreduced value, and mul takes one operand that is a partial sum\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )
    chosen = np.eye(4, dtype=bool)
    assert message(mw.jit(lambda a, b: mw.lax.select(chosen, partial_sum(a, b), mnp.zeros((4, 4)))), a, b) == (
        "select cannot take bool[4,4], f32[4,4]{U:x}, f32[4,4].\n"
        "  why:  each device holds a summand of an unreduced value, and select takes operands 1 and 2 that are "
        "partial sums over the same axes, and no others\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )
    assert message(mw.jit(lambda a, b: partial_sum(a, b) - 1), a, b) == (
        "sub cannot take f32[4,4]{U:x}, ~f32[].\n"
        "  why:  each device holds a summand of an unreduced value, and sub takes operands that are partial sums "
        "over the same axes\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )
    assert message(mw.jit(lambda a, b: 1 / partial_sum(a, b)), a, b) == (
        "div cannot take ~f32[], f32[4,4]{U:x}.\n"
        "  why:  each device holds a summand of an unreduced value, and div is linear in its first operand alone\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )
    with mw.set_mesh(EXPLICIT):
        done = mw.jit(lambda a, b: mnp.tanh(mw.reshard(partial_sum(a, b), P())))(a, b)
    np.testing.assert_allclose(np.asarray(done), np.tanh(np.full((4, 4), 4.0)), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("again", [lambda x: x + 1, mw.jit(lambda x: x * 2), np.asarray])
def test_a_donated_buffer_used_again(again: Callable[[Any], Any], compiled: bool) -> None:
    x = put((4, 4), "x")
    f: Any = mw.jit(lambda x: x * 2, donate_argnums=0)
    (f.lower(x).compile() if compiled else f)(x)
    assert message(again, x) == (
        "This array float32[4,4] has no contents any more.\n"
        "  why:  it was donated to a jitted function, which may overwrite it, or deleted\n"
        "  fix:  use the function's result instead, or do not donate this argument"
    )


def test_shardings_of_the_wrong_rank() -> None:
    x = put((4, 4), "x")
    on = lambda *spec: mw.NamedSharding(MESH, P(*spec))
    assert message(mw.jit(lambda x: x.sum(0), out_shardings=on("x", "y")), x) == (
        "A result float32[4] cannot go out as P('x', 'y').\n"
        "  why:  the spec has 2 dims, the result 1\n"
        "  fix:  out_shardings=mw.P('x',)"
    )
    assert message(mw.jit(lambda x: x, in_shardings=(on("x", None, "y"),)), x) == (
        "An array of shape (4, 4) cannot be put onto P('x', None, 'y').\n"
        "  why:  the sharding has 3 dims, the array 2\n"
        "  fix:  mw.P('x', None)"
    )
    done = mw.jit(lambda x: x.sum(0), out_shardings=on("x"))(x)
    np.testing.assert_array_equal(np.asarray(done), np.full(4, 4.0))

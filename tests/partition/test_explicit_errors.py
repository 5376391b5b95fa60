"""Explicit axes: what is ambiguous, or cannot be, is an error that says what to write. Messages are compared whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.ops.window import select_and_scatter_add

EXPLICIT = mw.AxisType.Explicit
MESH = mw.make_mesh((2, 2), ("x", "y"), axis_types=(EXPLICIT,) * 2)


def put(shape: tuple[int, ...], *spec: Any, mesh: mw.Mesh = MESH) -> Any:
    return mw.device_put(mnp.ones(shape), mw.NamedSharding(mesh, P(*spec)))


def message(f: Callable[..., Any], *args: Any) -> str:
    """The error of a call, without the line it shows."""
    with pytest.raises(mw.MeshwrightError) as error:
        f(*args)
    text = str(error.value)
    assert re.search(r"^  at:   test_explicit_errors\.py:\d+", text, re.M), text
    return re.sub(r"^  at: .*\n", "", text, flags=re.M)


def both(f: Callable[..., Any], *args: Any) -> str:
    """The error of a call computed at once, which is that of the traced one."""
    found = message(f, *args)
    assert message(mw.jit(f), *args) == found
    return found


def test_operands_split_differently() -> None:
    assert both(lambda a, b: a + b, put((8, 4), "x"), put((8, 4), "y")) == (
        "The layout of add of f32[8@x,4], f32[8@y,4] is ambiguous.\n"
        "  why:  dim 0 of operand 0 is split over x, and dim 0 of operand 1, which goes with it, over y\n"
        "  fix:  lay operand 1, f32[8@y,4], out otherwise: mw.reshard(x, mw.P('x', None))"
    )
    assert both(lambda a, b: a + b, put((8, 4), ("x", "y")), put((8, 4), "x")) == (
        "The layout of add of f32[8@(x,y),4], f32[8@x,4] is ambiguous.\n"
        "  why:  dim 0 of operand 0 is split over x, y, and dim 0 of operand 1, which goes with it, over x\n"
        "  fix:  lay operand 1, f32[8@x,4], out otherwise: mw.reshard(x, mw.P(('x', 'y'), None))"
    )


def test_an_axis_used_twice() -> None:
    assert both(lambda a, b: a * b, put((8, 4), "x"), put((8, 4), None, "x")) == (
        "The layout of mul of f32[8@x,4], f32[8,4@x] is ambiguous.\n"
        "  why:  x splits dim 0 of operand 0 and dim 1 of operand 1, and would split two dims of the result: an axis "
        "splits one dim\n"
        "  fix:  lay operand 1, f32[8,4@x], out otherwise: mw.reshard(x, mw.P(None, None))"
    )
    assert both(lambda a, b: a @ b, put((8, 4), "x"), put((4, 8), None, "x")) == (
        "The layout of dot_general of f32[8@x,4], f32[4,8@x] is ambiguous.\n"
        "  why:  x splits dim 0 of operand 0 and dim 1 of operand 1, and would split two dims of the result: an axis "
        "splits one dim\n"
        "  fix:  lay operand 1, f32[4,8@x], out otherwise: mw.reshard(x, mw.P(None, None))"
    )


def test_a_sum_over_what_both_operands_are_split_along() -> None:
    assert both(lambda a, b: a @ b, put((8, 4), None, "x"), put((4, 6), "x", "y")) == (
        "The layout of dot_general of f32[8,4@x], f32[4@x,6@y] is ambiguous.\n"
        "  why:  it sums over dim 1 of operand 0 and dim 0 of operand 1, both split over x: the sum can go to all "
        "devices, or each can take a part of it\n"
        "  fix:  out_sharding=mw.P(None, 'y') for all of it, out_sharding=mw.P('x', 'y') for a part on each device"
    )
    assert both(lambda a, b: a @ b, put((8, 4), None, "x"), put((4, 6), "y")) == (
        "The layout of dot_general of f32[8,4@x], f32[4@y,6] is ambiguous.\n"
        "  why:  it sums over dim 1 of operand 0, split over x, and dim 0 of operand 1, split over y\n"
        "  fix:  lay operand 1, f32[4@y,6], out otherwise: mw.reshard(x, mw.P('x', None))"
    )


def test_an_axis_that_splits_what_is_summed_over_and_something_else() -> None:
    product = lambda a, b: mnp.tensordot(a, b, 2)
    assert both(product, put((4, 6), "x"), put((4, 6), None, "x")) == (
        "The layout of dot_general of f32[4@x,6], f32[4,6@x] is ambiguous.\n"
        "  why:  x splits dim 0 of operand 0, which it sums over, and dim 1 of operand 1: devices along an axis sum "
        "over one dim, and then hold the same\n"
        "  fix:  lay operand 0, f32[4@x,6], out otherwise: mw.reshard(x, mw.P(None, None))"
    )


@pytest.mark.parametrize("axis", ["x", "y"])
def test_split_rows_by_numbers(axis: str) -> None:
    rows = mw.device_put(mnp.array([3, 1, 0, 2]), mw.NamedSharding(MESH, P(axis)))
    uses: dict[str, list[Callable[..., Any]]] = {
        "x[…]": [lambda a, i: a[i], lambda a, i: a[i, 1:3], lambda a, i: a[i, i], lambda a, i: a[mnp.array([1, 5])]],
        "x.at[…].get": [
            lambda a, i: a.at[i].get(mode="fill", fill_value=0),
            lambda a, i: mnp.take(a, i, axis=0, mode="wrap"),
        ],
        "mnp.take_along_axis": [lambda a, i: mnp.take_along_axis(a, i[:, None], 0)],
        "x.at[…].set": [lambda a, i: a.at[i].set(1.0), lambda a, i: a.at[0].set(1.0)],
        "x.at[…].add": [lambda a, i: a.at[i].add(1.0, mode="drop")],
        "x.at[…].max": [lambda a, i: a.at[i].max(1.0)],
    }
    for named, functions in uses.items():
        instead = named if named.startswith("x.at") else "x.at[…].get"
        for f in functions:
            assert both(f, put((8, 4), "x"), rows) == (
                f"The layout of {named} of f32[8@x,4] is ambiguous.\n"
                "  why:  dim 0, along which it is indexed, is split over x\n"
                f"  fix:  {instead}(…, out_sharding=mw.P(…))"
            )
    with mw.set_mesh(MESH):
        assert str(mw.typeof(put((8, 4), "x").at[rows].get(out_sharding=P(axis, None)))) == f"float32[4@{axis},4]"
        assert str(mw.typeof(put((8, 4), "x").at[rows].max(1.0, out_sharding=P("x", None)))) == "float32[8@x,4]"


def test_what_is_put_into_windows_is_split_as_they_are() -> None:
    windows = {"window": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0))}
    dilations = {"base_dilation": (1, 1), "window_dilation": (1, 1)}
    put_back = lambda slopes, x: select_and_scatter_add(slopes, x, select="max", **windows, **dilations)
    assert both(put_back, put((4, 2), None, "y"), put((8, 4), "x")) == (
        "The layout of select_and_scatter_add of f32[4,2@y], f32[8@x,4] is ambiguous.\n"
        "  why:  dim 0 of operand 1 is split over x, and dim 0 of operand 0, which goes with it, over nothing\n"
        "  fix:  lay operand 0, f32[4,2@y], out otherwise: mw.reshard(x, mw.P('x', 'y'))"
    )


def test_parts_of_a_dim_that_do_not_line_up_with_those_of_a_merged_one() -> None:
    assert both(lambda a: a.reshape(12), put((3, 4), "x")) == (
        "The layout of reshape of f32[3@x,4] is ambiguous.\n"
        "  why:  dim 0 of its operand is split over x, and no dim of the result can be split as it is\n"
        "  fix:  mw.reshard(x, mw.P(None, None))"
    )


def test_what_the_errors_say_helps() -> None:
    with mw.set_mesh(MESH):
        a, b = put((8, 4), None, "x"), put((4, 6), "x", "y")
        for spec in (P(None, "y"), P("x", "y")):
            assert mnp.matmul(a, b, out_sharding=spec).shape == (8, 6)
        assert (put((8, 4), "x") + mw.reshard(put((8, 4), "y"), P("x", None))).shape == (8, 4)
        assert mnp.cumsum(mw.reshard(put((8, 4), "x", "y"), P(None, "y")), 0).shape == (8, 4)


def test_dims_that_cannot_stay_split() -> None:
    stuck = "is split over x, and no dim of the result can be split as it is\n  fix:  mw.reshard(x, mw.P(None, 'y'))"
    x = put((8, 4), "x", "y")
    assert both(lambda a: mnp.cumsum(a, 0), x) == (
        f"The layout of cumsum of f32[8@x,4@y] is ambiguous.\n  why:  dim 0 of its operand {stuck}"
    )
    assert both(lambda a: mnp.sort(a, 0), x) == (
        f"The layout of sort of f32[8@x,4@y] is ambiguous.\n  why:  dim 0 of its operand {stuck}"
    )
    assert both(lambda a: lax.slice(a, (0, 0), (1, 4)), x) == (
        f"The layout of slice of f32[8@x,4@y] is ambiguous.\n  why:  dim 0 of its operand {stuck}"
    )
    assert both(lambda a: a[0], x) == (
        "The layout of x[…] of f32[8@x,4@y] is ambiguous.\n"
        "  why:  dim 0, along which it is indexed, is split over x\n"
        "  fix:  x.at[…].get(…, out_sharding=mw.P(…))"
    )
    assert both(lambda a: a.reshape(32), put((8, 4), None, "x")) == (
        "The layout of reshape of f32[8,4@x] is ambiguous.\n"
        "  why:  dim 1 of its operand is split over x, and no dim of the result can be split as it is\n"
        "  fix:  mw.reshard(x, mw.P(None, None))"
    )
    assert both(lambda a: a.reshape(3, 4), put((12,), ("x", "y"))) == (
        "The layout of reshape of f32[12@(x,y)] is ambiguous.\n"
        "  why:  dim 0 of its operand is split over x, y, and no dim of the result can be split as it is\n"
        "  fix:  mw.reshard(x, mw.P(None,))"
    )


def test_carries_and_branches_keep_their_layout() -> None:
    x = put((8, 4), "x")
    assert both(lambda a: lax.scan(lambda c, _: (c + a, None), mnp.zeros((8, 4)), None, length=2)[0], x) == (
        "The body of scan changes the layout of its carry: it takes float32[8,4] and returns float32[8@x,4].\n"
        "  why:  every step must return a carry of the type it was given, and the layout over Explicit axes is part of "
        "it\n"
        "  fix:  start from mw.reshard(carry, mw.P('x', None)), or return mw.reshard(carry, mw.P(None, None))"
    )
    assert both(lambda a: lax.scan(lambda c, r: (c, r), 0.0, a)[1], x) == (
        "scan cannot take the rows of float32[8@x,4].\n"
        "  why:  dim 0 is split over devices, and every step needs its row on all of them\n"
        "  fix:  mw.reshard(xs, mw.P(None, None))"
    )
    assert both(lambda a: lax.cond(True, lambda a: a, lambda a: mnp.ones((8, 4)), a), x) == (
        "The branches of cond return different layouts.\n"
        "  why:  result 0 is float32[8,4] in branch 0 and float32[8@x,4] in branch 1\n"
        "  fix:  mw.reshard(x, mw.P(None, None)) in the branches where it is another"
    )


def test_different_meshes() -> None:
    other = mw.make_mesh((2, 2), ("a", "b"), axis_types=(EXPLICIT,) * 2)
    far = mw.make_mesh((2, 2), ("x", "y"), axis_types=(EXPLICIT,) * 2, devices=[4, 5, 6, 7])
    assert message(lambda a, b: a + b, put((8, 4), "x"), put((8, 4), "a", mesh=other)) == (
        "add cannot take f32[8@x,4], f32[8@a,4].\n"
        '  why:  they are on different meshes, <["x"=2, "y"=2]> and <["a"=2, "b"=2]>\n'
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all"
    )
    assert message(lambda a, b: a + b, put((8, 4), "x"), put((8, 4), "x", mesh=far)) == (
        "add cannot take f32[8@x,4], f32[8@x,4].\n"
        '  why:  they are on different meshes, <["x"=2, "y"=2]> and <["x"=2, "y"=2], device_ids=[4, 5, 6, 7]>\n'
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all"
    )
    auto = mw.make_mesh((2, 2), ("x", "y"))
    assert message(mw.jit(lambda a, b: a + b), put((8, 4), "x"), put((8, 4), "x", mesh=auto)) == (
        "The arguments and results of one program are on different meshes.\n"
        "  why:  one is on Mesh('x': 2, 'y': 2, axis_types=(Explicit, Explicit)), another on Mesh('x': 2, 'y': 2, "
        "axis_types=(Auto, Auto))\n"
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all"
    )
    assert message(mw.jit(lambda a, b: a + b), put((8, 4), "x"), put((8, 4), "a", mesh=other)) == (
        "add cannot take f32[8@x,4], f32[8@a,4].\n"
        '  why:  they are on different meshes, <["x"=2, "y"=2]> and <["a"=2, "b"=2]>\n'
        "  fix:  mw.device_put(x, mw.NamedSharding(mesh, spec)) with one mesh for all"
    )


def test_an_open_sum_used_as_if_it_were_taken() -> None:
    a, b = put((8, 4), None, "x"), put((4, 8), "x")

    def f(a: Any, b: Any) -> Any:
        return mnp.exp(mnp.dot(a, b, out_sharding=mw.NamedSharding(MESH, P(unreduced={"x"}))))

    assert both(f, a, b) == (
        "exp cannot take f32[8,8]{U:x}.\n"
        "  why:  each device holds a summand of an unreduced value, and exp of the sum is not the sum of exp\n"
        "  fix:  sum it first: mw.reshard(x, mw.P())"
    )

    def g(a: Any, b: Any) -> Any:
        return mnp.dot(a, b, out_sharding=mw.NamedSharding(MESH, P("x", unreduced={"y"})))

    assert both(g, a, b) == (
        "The layout of dot_general of f32[8,4@x], f32[4@x,8] is ambiguous.\n"
        "  why:  out_sharding leaves the sum over y open, and y does not split what both operands are summed over\n"
        "  fix:  leave it out: out_sharding=mw.P('x', None)"
    )


def test_a_donated_array_has_no_contents() -> None:
    x = put((8, 4), "x")
    mw.jit(lambda x: x * 2, donate_argnums=0)(x)
    assert message(lambda: x + 1) == (
        "This array float32[8@x,4] has no contents any more.\n"
        "  why:  it was donated to a jitted function, which may overwrite it, or deleted\n"
        "  fix:  use the function's result instead, or do not donate this argument"
    )


def test_out_shardings_of_the_wrong_rank() -> None:
    f = mw.jit(lambda x: x.sum(0), out_shardings=mw.NamedSharding(MESH, P("x", "y")))
    assert message(f, put((8, 4), "x")) == (
        "A result float32[4] cannot go out as P('x', 'y').\n"
        "  why:  the spec has 2 dims, the result 1\n"
        "  fix:  out_shardings=mw.P('x',)"
    )


def test_out_sharding_of_the_wrong_rank() -> None:
    spec = mw.NamedSharding(MESH, P("x", None, None))
    assert both(lambda a, b: mnp.dot(a, b, out_sharding=spec), put((8, 4), "x"), put((4, 6))) == (
        "A product of 2 dims cannot be sharded as P('x', None, None).\n"
        "  why:  the spec has 3 dims\n"
        "  fix:  out_sharding=mw.P('x', None)"
    )


def test_compiled_functions_take_what_they_were_compiled_for() -> None:
    compiled = mw.jit(lambda x: x * 2).lower(put((8, 4), "x")).compile()
    assert message(compiled, put((8, 4), "y")) == (
        "This compiled function cannot take (float32[8@y,4]).\n"
        "  why:  it was compiled for (float32[8@x,4])\n"
        "  fix:  f(*args) compiles for what it is given"
    )
    assert str(mw.typeof(compiled(np.ones((8, 4), np.float32)))) == "float32[8@x,4]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "program(a: f32[8@x]) { return a }",
            "a dim is split over an axis, and no mesh is given: mesh(x=2, y=4) before the program",
        ),
        ("mesh(x=2) program(a: f32[8@y]) { return a }", "the mesh has the axes x, and not y"),
        ("mesh(x=2) program(a: f32[8@x,4@x]) { return a }", "x splits two dims"),
        ("mesh(x=4) program(a: f32[8@x:(3)2]) { return a }", "x:(3)2 is no part of the axis"),
        ("mesh(x=2, x=2) program(a: f32[8@x]) { return a }", 'Two axes of the mesh are named "x".'),
        ("mesh(x=0) program(a: f32[8@x]) { return a }", 'The mesh axis "x" has size 0.'),
    ],
)
def test_text_that_is_no_program(text: str, why: str) -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        mw.parse_program(text)
    assert error.value.why == why

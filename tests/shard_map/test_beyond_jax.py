"""Programs that are right and that JAX 0.10 cannot run or differentiate, against the same computed without devices.

nested_*                        the gradient of a nested shard_map does not lower: residuals are placed along axes
                                that the outer one holds already
*_closing_over_a_whole_value    the gradient sums over devices inside of a branch that only some of them take, and
                                they wait for each other forever
untiled_all_to_all_*            the gradient has another type than the operand
gathered_result                 a gathered value is typed as varying, and may not leave by P()
extremes                        pmax and pmin have no derivative
owed_sums                       no spec says that a result is the sum of what devices return
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from tests.shard_map.counterparts import Case, Kit, check_case


def nested_shard_maps(k: Kit) -> Any:
    """The outer map is written for i, the inner for j."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P("i"), k.P()), outs=k.P("i"), names={"i"})
    def f(x: Any, w: Any) -> Any:
        @k.map(ins=(k.P(None, "j"), k.P("j")), outs=k.P(), names={"j"})
        def inner(x: Any, w: Any) -> Any:
            return k.lax.psum(k.np.sin(x) @ w, "j")

        return inner(x, w) * k.lax.psum(x.sum(), "i")

    return f


def nested_shard_maps_plain(k: Kit) -> Any:
    return lambda x, w: (k.np.sin(x) @ w) * x.sum()


def nested_meeting_on_both_axes(k: Kit) -> Any:
    """The inner map sums over axes of both."""

    @k.map(mesh=k.mesh(i=2, j=4), ins=(k.P("i"), k.P()), outs=k.P("i"), names={"i"})
    def f(x: Any, w: Any) -> Any:
        @k.map(ins=(k.P(None, "j"), k.P(None, "j")), outs=k.P(None, "j"), names={"j"})
        def inner(x: Any, w: Any) -> Any:
            return k.np.tanh(k.lax.psum(x, "i") * w.sum()) + k.lax.psum(x.sum(), ("i", "j")) * k.lax.axis_index("j")

        return inner(x, k.np.sin(w)) + x

    return f


def nested_meeting_on_both_axes_plain(k: Kit) -> Any:
    def f(x: Any, w: Any) -> Any:
        halves = x.reshape(2, 4, 4).sum(0)
        one = k.np.tanh(halves * k.np.sin(w).sum(0)) + x.sum() * k.np.arange(4)
        return k.np.concatenate([one, one]) + x

    return f


def nested_closing_over_the_outer_block(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=2, j=4), ins=(k.P("i"), k.P()), outs=k.P("i"), names={"i"})
    def f(x: Any, w: Any) -> Any:
        scale = x.sum()

        @k.map(ins=k.P(None, "j"), outs=k.P(None, "j"), names={"j"})
        def inner(y: Any) -> Any:
            return k.np.sin(y) * scale + k.lax.psum(w.sum() * y, "j")

        return inner(x)

    return f


def nested_closing_over_the_outer_block_plain(k: Kit) -> Any:
    def f(x: Any, w: Any) -> Any:
        parts = [
            k.np.sin(b) * b.sum() + k.np.repeat((w.sum() * b).sum(1, keepdims=True), 4, axis=1) for b in (x[:4], x[4:])
        ]
        return k.np.concatenate(parts)

    return f


def three_nested(k: Kit) -> Any:
    @k.map(mesh=k.mesh(a=2, b=2, c=2), ins=k.P("a"), outs=k.P("a"), names={"a"})
    def f(x: Any) -> Any:
        @k.map(ins=k.P(None, "b"), outs=k.P(None, "b"), names={"b"})
        def g(y: Any) -> Any:
            @k.map(ins=k.P(None, None, "c"), outs=k.P(), names={"c"})
            def h(z: Any) -> Any:
                return k.lax.psum(k.np.sin(z) * k.lax.psum(z.sum(), ("a", "b")), "c").sum(2)

            return h(y[:, :, None] * k.np.arange(4.0)) * y

        return g(x)

    return f


def three_nested_plain(k: Kit) -> Any:
    def f(x: Any) -> Any:
        z = x[:, :, None] * k.np.arange(4.0)
        sums = k.np.repeat(z.reshape(*x.shape, 2, 2).sum((0, 1, 3)), 2)
        return (k.np.sin(z) * sums).sum(2) * x

    return f


def nested_in_a_scan(k: Kit) -> Any:
    """The inner map stands in a loop of the outer one, and is batched from outside."""

    def whole(x: Any, w: Any) -> Any:
        @k.map(mesh=k.mesh(i=2, j=2), ins=(k.P("i"), k.P()), outs=k.P("i"), names={"i"})
        def f(x: Any, w: Any) -> Any:
            @k.map(ins=(k.P(None, "j"), k.P()), outs=k.P(None, "j"), names={"j"})
            def inner(x: Any, row: Any) -> Any:
                return k.np.tanh(x * row + k.lax.psum(x.sum(), ("j", "i")))

            return k.lax.scan(lambda c, row: (inner(c, row), None), x, w)[0]

        return f(x, w)

    return k.package.vmap(whole, in_axes=(0, None))


def nested_in_a_scan_plain(k: Kit) -> Any:
    def whole(x: Any, w: Any) -> Any:
        for n in range(3):
            x = k.np.tanh(x * w[n] + x.sum())
        return x

    return k.package.vmap(whole, in_axes=(0, None))


def cond_closing_over_a_whole_value(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return k.lax.cond(x.sum() > 0, lambda x: k.np.sin(x) * w, lambda x: x**3 - w.sum(), x)

    return f


def cond_closing_over_a_whole_value_plain(k: Kit) -> Any:
    def f(x: Any, w: Any) -> Any:
        return k.np.where(x.sum(1, keepdims=True) > 0, k.np.sin(x) * w, x**3 - w.sum())

    return f


def switch_closing_over_a_whole_value(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P(("i", "j")), k.P()), outs=k.P(("i", "j")))
    def f(x: Any, w: Any) -> Any:
        branches = [lambda x: x * 2 + w, lambda x: k.np.sin(x) + w * w, lambda x: x * w]
        return k.lax.switch(k.lax.axis_index("i") % 3, branches, x)

    return f


def switch_closing_over_a_whole_value_plain(k: Kit) -> Any:
    def f(x: Any, w: Any) -> Any:
        found = [x * 2 + w, k.np.sin(x) + w * w, x * w]
        return k.np.stack([found[(n // 2) % 3][n] for n in range(8)])

    return f


def cond_in_a_scan_closing_over_a_whole_value(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P())
    def f(x: Any, ws: Any) -> Any:
        def step(c: Any, w: Any) -> Any:
            return k.lax.cond(c.sum() > 0, lambda c: k.np.tanh(c * w), lambda c: c + w * ws.sum(), c), None

        return k.lax.psum(k.lax.scan(step, x, ws)[0].sum(), "i")

    return f


def cond_in_a_scan_closing_over_a_whole_value_plain(k: Kit) -> Any:
    def f(x: Any, ws: Any) -> Any:
        for n in range(3):
            x = k.np.where(x.sum(1, keepdims=True) > 0, k.np.tanh(x * ws[n]), x + ws[n] * ws.sum())
        return x.sum()

    return f


def untiled_all_to_all(k: Kit, axes: Any, split: int, concat: int) -> Any:
    @k.map(mesh=k.mesh(x=2, y=2), ins=k.P(("x", "y")), outs=k.P(("x", "y")))
    def f(x: Any) -> Any:
        return k.lax.all_to_all(k.np.sin(x[0]), axes, split, concat, tiled=False)[None] * (
            1.0 + k.lax.axis_index(("x", "y"))
        )

    return f


def untiled_all_to_all_plain(k: Kit, axes: Any, split: int, concat: int) -> Any:
    names = (axes,) if isinstance(axes, str) else axes

    def f(x: Any) -> Any:
        x = k.np.sin(x)
        devices = list(itertools.product(range(2), range(2)))
        outs = []
        for n, device in enumerate(devices):
            me = dict(zip("xy", device, strict=True))
            place = int("".join(str(me[a]) for a in names), 2)
            parts = []
            for source in range(2 ** len(names)):
                at = {**me, **dict(zip(names, map(int, f"{source:0{len(names)}b}"), strict=True))}
                parts.append(k.np.take(x[devices.index((at["x"], at["y"]))], place, axis=split))
            outs.append(k.np.stack(parts, axis=concat) * (1.0 + n))
        return k.np.stack(outs)

    return f


def gathered_result(k: Kit) -> Any:
    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P("x", "y"), k.P()), outs=(k.P(), k.P("x")))
    def f(x: Any, w: Any) -> Any:
        y = k.lax.all_gather_invariant(k.np.sin(x) * w[0], "y", axis=1, tiled=True)
        return k.lax.all_gather_invariant(y, "x", axis=0, tiled=True) * w[1], y @ y.T

    return f


def gathered_result_plain(k: Kit) -> Any:
    def f(x: Any, w: Any) -> Any:
        y = k.np.sin(x) * w[0]
        return y * w[1], k.np.concatenate([half @ half.T for half in (y[:4], y[4:])])

    return f


def extremes(k: Kit) -> Any:
    @k.map(mesh=k.mesh(x=2, y=4), ins=k.P(("x", "y")), outs=(k.P(), k.P("x")))
    def f(x: Any) -> Any:
        return k.lax.pmax(k.np.sin(x), ("x", "y")), k.lax.pmin(x * x, "y") * k.lax.pmax(x, "y")

    return f


def extremes_plain(k: Kit) -> Any:
    def f(x: Any) -> Any:
        parts = x.reshape(2, 4, 3)
        return k.np.sin(x).max(0, keepdims=True), (parts * parts).min(1) * parts.max(1)

    return f


def owed_sums(k: Kit) -> Any:
    spec = mw.P("x", sum="y") if not k.is_jax else None

    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P("x", "y"), k.P("y")), outs=spec)
    def f(x: Any, w: Any) -> Any:
        return k.np.sin(x) @ w

    @k.map(mesh=k.mesh(x=2, y=4), ins=spec, outs=k.P("x"))
    def g(y: Any) -> Any:
        return k.lax.psum(y, "y")

    return lambda x, w: k.np.sin(g(f(x, w)))


def owed_sums_plain(k: Kit) -> Any:
    return lambda x, w: k.np.sin(k.np.sin(x) @ w)


def _case(build: Any, args: list[Any], orders: int = 1) -> Case:
    return Case(build.__name__, build, args, orders, globals()[f"{build.__name__}_plain"])


def _untiled(axes: Any, split: int, concat: int) -> Case:
    count = 2 if isinstance(axes, str) else 4
    shape = tuple(count if d == split else 3 for d in range(3))
    return Case(
        f"untiled_all_to_all_{'_'.join(axes)}_{split}_{concat}",
        lambda k: untiled_all_to_all(k, axes, split, concat),
        [(4, *shape)],
        1,
        lambda k: untiled_all_to_all_plain(k, axes, split, concat),
    )


CASES = [
    _case(nested_shard_maps, [(8, 4), (4, 4)], orders=2),
    _case(nested_meeting_on_both_axes, [(8, 4), (2, 4)]),
    _case(nested_closing_over_the_outer_block, [(8, 4), (4, 4)]),
    _case(three_nested, [(4, 4)]),
    _case(nested_in_a_scan, [(3, 4, 4), (3, 1)]),
    _case(cond_closing_over_a_whole_value, [(8, 3), (3,)], orders=2),
    _case(switch_closing_over_a_whole_value, [(8, 3), (3,)]),
    _case(cond_in_a_scan_closing_over_a_whole_value, [(8, 3), (3, 3)]),
    *[_untiled("y", split, concat) for split, concat in itertools.product(range(3), repeat=2)],
    *[_untiled(axes, split, concat) for axes in (("x", "y"), ("y", "x")) for split, concat in ((0, 2), (2, 1), (1, 1))],
    _case(gathered_result, [(8, 8), (2,)]),
    _case(extremes, [(8, 3)]),
    _case(owed_sums, [(4, 8), (8, 3)]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_to_the_same_without_devices(case: Case, x64: None) -> None:
    check_case(case)


def test_a_tie_is_shared_between_the_devices_that_have_it() -> None:
    mesh = mw.make_mesh((4,), ("i",))
    f = mw.shard_map(lambda x: mw.lax.pmax(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    gradient = mw.grad(lambda x: f(x)[0])(np.array([1.0, 3.0, 3.0, 0.0], np.float32))
    assert gradient.tolist() == [0.0, 0.5, 0.5, 0.0]

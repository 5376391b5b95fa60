"""Loops and branches in which some values vary over devices and others do not, against ``jax.shard_map``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shard_map.counterparts import Case, Cases, Kit, check_case

CASES = Cases()


@CASES.add((8, 3), (3,), orders=2)
def scan_whose_carry_becomes_varying(k: Kit) -> Any:
    """Zeros are the same everywhere until something is added to them."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            return c * w + k.np.sin(x[0] * t), c.sum()

        start = k.vary(k.np.zeros(3), "i")
        c, sums = k.lax.scan(step, start, k.np.arange(4.0))
        return (c + sums.sum())[None]

    return f


@CASES.add((8, 3), (3,), (2,))
def scan_whose_carries_infect_each_other(k: Kit) -> Any:
    """b becomes varying through a only in the second round, c through b in the third."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P("i"), k.P(), k.P("j")), outs=(k.P("i"), k.P("i"), k.P(("i", "j"))))
    def f(x: Any, w: Any, z: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            a, b, c = carry
            return (a + x[0], k.np.sin(b + a * 0.1), c * 0.5 + b * z[0]), None

        a, b, c = w, w * 2, w * 3
        if k.is_jax:
            a, b, c = k.vary(a, "i"), k.vary(b, "i"), k.vary(c, "i", "j")
        (a, b, c), _ = k.lax.scan(step, (a, b, c), None, length=4)
        return a[None], b[None], c[None]

    return f


@CASES.add((8, 3), (3, 3))
def scan_with_a_carry_that_stays_whole(k: Kit) -> Any:
    """A psum in the body: the carry is the same on all devices throughout, and leaves by P()."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=(k.P(), k.P("i")))
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            mine = k.np.tanh(x[0] * c.sum() + t)
            return k.lax.psum(mine, "i") @ w * 0.1, mine

        c, seen = k.lax.scan(step, k.np.ones(3), k.np.arange(3.0))
        return c, seen.sum(0)[None]

    return f


@CASES.add((8, 5), (3, 5))
def reverse_scan_over_rows(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P(("i", "j")), k.P()), outs=(k.P(("i", "j")), k.P(("j", "i"))))
    def f(x: Any, rows: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            c = c * r + x[0]
            return c, c * c

        c, ys = k.lax.scan(step, x[0], rows, reverse=True)
        return c[None], ys.sum(0)[None]

    return f


@CASES.add((8, 3), ())
def cond_on_a_predicate_that_varies(k: Kit) -> Any:
    """Each device takes its own branch. What both branches read varies, as JAX cannot differentiate others."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, s: Any) -> Any:
        s = k.vary(s, "i")
        return k.lax.cond(x.sum() > 0, lambda x: k.np.sin(x) * s, lambda x: x**3 - s, x)

    return f


@CASES.add((8, 3), (3,))
def cond_on_a_predicate_that_all_share(k: Kit) -> Any:
    """Collectives may stand in a branch that all devices take."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        total = k.lax.psum(x.sum(), "i")
        return k.lax.cond(
            total > 0, lambda x: x * k.lax.psum(x, "i"), lambda x: k.lax.ppermute(x, "i", [(0, 1), (1, 0)]) * w, x
        )

    return f


@CASES.add((8, 3), (3,))
def cond_with_branches_of_different_variance(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        flag = k.lax.psum(x.sum(), "i") > -100.0
        return k.lax.cond(flag, lambda: k.vary(k.np.sin(w), "i"), lambda: x[0] * 1.0)[None] + x

    return f


@CASES.add((8, 3), (3,))
def switch_by_position(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        w = k.vary(w, "i")
        branches = [lambda x: x * 2 + w, lambda x: k.np.sin(x), lambda x: x * w]
        return k.lax.switch(k.lax.axis_index("i") % 3, branches, x)

    return f


@CASES.add((8, 2), orders=0)
def while_loop_of_different_lengths(k: Kit) -> Any:
    """Devices leave the loop at their own time."""

    @k.map(mesh=k.mesh(i=8), ins=k.P("i"), outs=(k.P("i"), k.P("i")))
    def f(x: Any) -> Any:
        start = (k.vary(k.np.zeros((), "int32"), "i"), x)
        n, y = k.lax.while_loop(lambda c: (c[1] ** 2).sum() < 9.0, lambda c: (c[0] + 1, c[1] * 1.5 + 0.1), start)
        return n[None], y

    return f


@CASES.add((8, 2), orders=0)
def while_loop_that_ends_for_all_at_once(k: Kit) -> Any:
    """The condition is a psum: all devices agree, and meet in the body, too."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=k.P(("i", "j")), outs=k.P(("i", "j")))
    def f(x: Any) -> Any:
        def body(c: Any) -> Any:
            y, _ = c
            y = y * 1.5 + k.lax.ppermute(y, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]) * 0.1
            return y, k.lax.psum((y * y).sum(), ("i", "j"))

        return k.lax.while_loop(lambda c: c[1] < 500.0, body, (x, k.lax.psum((x * x).sum(), ("i", "j"))))[0]

    return f


@CASES.add((8, 2), orders=0)
def while_loop_whose_condition_varies_over_one_axis(k: Kit) -> Any:
    """Devices along j meet in the body; those along i each have their own number of rounds."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=k.P(("i", "j")), outs=(k.P(("i", "j")), k.P("i")))
    def f(x: Any) -> Any:
        def body(c: Any) -> Any:
            y, _, n = c
            y = y * 1.25 + k.lax.psum(y, "j") * 0.1
            return y, k.lax.psum((y * y).sum(), "j"), n + 1

        start = (x, k.lax.psum((x * x).sum(), "j"), k.vary(k.np.zeros((), "int32"), "i"))
        y, _, n = k.lax.while_loop(lambda c: c[1] < 100.0, body, start)
        return y, n[None]

    return f


@CASES.add((8, 2), (2,))
def fori_loop_with_collectives(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        def body(n: Any, c: Any) -> Any:
            return k.np.sin(k.lax.ppermute(c, "i", [(j, (j + 1) % 8) for j in range(8)]) + w * n)

        return k.lax.fori_loop(0, 5, body, x)

    return f


@CASES.add((8, 4), (3, 4, 4))
def cond_in_a_scan(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, ws: Any) -> Any:
        ws = k.vary(ws, "i")

        def step(c: Any, w: Any) -> Any:
            return k.lax.cond(c.sum() > 0, lambda c: k.np.tanh(c @ w), lambda c: c + w.sum(0), c), c.sum()

        c, s = k.lax.scan(step, x, ws)
        return c + s.sum()

    return f


@CASES.add((8, 4), (2, 3, 4))
def scan_in_a_scan(k: Kit) -> Any:
    """The inner carry becomes varying only through the outer one."""

    @k.map(mesh=k.mesh(i=2, j=4), ins=(k.P(("i", "j")), k.P()), outs=(k.P(("i", "j")), k.P("i")))
    def f(x: Any, ws: Any) -> Any:
        def outer(c: Any, rows: Any) -> Any:
            d, _ = k.lax.scan(lambda d, r: (k.np.sin(d + r), None), c, rows)
            return d + 0.1 * x[0], k.lax.psum(d, "j")

        start = k.vary(k.np.ones(4), "i", "j")
        c, seen = k.lax.scan(outer, start, ws)
        return c[None], seen.sum(0)[None]

    return f


@CASES.add((8, 4), (4,))
def map_over_rows(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return k.lax.map(lambda row: k.np.sin(row * w) + k.lax.psum(row, "i"), x)

    return f


@CASES.add((8, 4), (4,))
def checkpoint_inside(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P())
    def f(x: Any, w: Any) -> Any:
        block = k.package.checkpoint(lambda x: k.np.sin(k.lax.psum(x * w, "i") * x))
        return k.lax.psum(block(block(x)).sum(), "i")

    return f


@CASES.add((8, 4), (4,))
def checkpoint_around(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return k.np.sin(k.lax.psum(x * w, "i") * k.np.cos(x))

    return k.package.checkpoint(lambda x, w: f(f(x, w), w))


@CASES.add((4, 4, 4), (8, 4))
def checkpointed_layers_in_a_scan(k: Kit) -> Any:
    @k.map(mesh=k.mesh(x=2, y=4), ins=(k.P(None, None, "y"), k.P("x")), outs=k.P("x"))
    def f(ws: Any, x: Any) -> Any:
        @k.package.checkpoint
        def layer(h: Any, w: Any) -> Any:
            return k.lax.psum(k.np.tanh(h @ w) @ w.T, "y"), None

        return k.lax.scan(layer, x, ws)[0]

    return f


@CASES.add((8, 4), (4,))
def custom_vjp_inside(k: Kit) -> Any:
    """A rule with its own psum: the gradient clipped after it is summed."""

    @k.package.custom_vjp
    def scaled(x: Any, w: Any) -> Any:
        return x * w

    def backward(saved: Any, ct: Any) -> Any:
        x, w = saved
        return ct * w * 2.0, (ct * x * 3.0).sum(0)

    scaled.defvjp(lambda x, w: (x * w, (x, w)), backward)

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P())
    def f(x: Any, w: Any) -> Any:
        return k.lax.psum(scaled(k.np.sin(x), k.vary(w, "i")).sum(), "i")

    return lambda x, w: k.np.sin(f(x, w))


@CASES.add((8, 4), (4,))
def custom_jvp_inside(k: Kit) -> Any:
    @k.package.custom_jvp
    def softplus(x: Any) -> Any:
        return k.np.log1p(k.np.exp(x))

    @softplus.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return softplus(x), t * 5.0 / (1.0 + k.np.exp(-x))

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return softplus(x * w) + softplus(w) + k.lax.psum(softplus(x), "i")

    return f


@CASES.add((8, 4), (4,))
def psum_with_a_rule_of_its_own(k: Kit) -> Any:
    """An identity whose gradient is averaged."""

    @k.package.custom_vjp
    def averaged(x: Any) -> Any:
        return x * 1.0

    averaged.defvjp(lambda x: (x * 1.0, None), lambda _, ct: (k.vary(k.lax.pmean(ct, "i"), "i"),))

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return averaged(k.np.sin(x)) * w

    def loss(x: Any, w: Any) -> Any:
        return k.package.grad(lambda x: (f(x, w) ** 2).sum())(x)

    return loss


WITHOUT_JVP = {"custom_vjp_inside", "psum_with_a_rule_of_its_own"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_to_jax(case: Case, x64: None) -> None:
    check_case(case, jvp=case.name not in WITHOUT_JVP)

"""Branches that devices decide differently, with functions traced inside of them; and parts that are whole axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


def carried(wrap: Callable[[Any], Any], x: Any, w: Any) -> Any:
    """A loop that carries what depends on its operands beside what does not, its step wrapped in another region."""

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        return (mnp.sin(carry[0] * w), mnp.tanh(carry[1])), None

    moving, constant = lax.scan(wrap(step), (x, mnp.full(3, 0.5)), None, length=2)[0]
    return moving + constant


INSIDE = {
    "checkpoint": lambda x, w: mw.checkpoint(lambda w: mnp.sin(w) * x)(w),
    "checkpoint closing over": lambda x, w: mw.checkpoint(lambda x: mnp.sin(w) * x)(x),
    "checkpoint of a constant": lambda x, w: mw.checkpoint(lambda c: mnp.sin(c * w) * x)(mnp.full(3, 0.5)),
    "constant out of a checkpoint": lambda x, w: mw.checkpoint(lambda c: mnp.sin(c * w) * x)(
        mw.checkpoint(lambda x: mnp.full(3, 0.5))(x)
    ),
    "scan": lambda x, w: lax.scan(lambda c, _: (mnp.sin(c), None), w, None, length=2)[0] * x,
    "scan closing over": lambda x, w: lax.scan(lambda c, _: (c * w, None), x, None, length=2)[0],
    "constant carried by a checkpoint": lambda x, w: carried(mw.checkpoint, x, w),
    "constant carried by a scan": lambda x, w: carried(
        lambda step: lambda c, _: lax.scan(step, c, None, length=2), x, w
    ),
    "constant carried by a cond": lambda x, w: carried(
        lambda step: lambda c, _: lax.cond(c[1][0] > 0, lambda c: step(c, None), lambda c: (c, None), c), x, w
    ),
    "cond": lambda x, w: lax.cond(w.sum() > 0, lambda w: w * x, lambda w: w + x, w),
    "vmap": lambda x, w: mw.vmap(lambda a, b: mnp.sin(a) * b)(w, x),
    "grad": lambda x, w: mw.grad(lambda w: (mnp.sin(w) * x).sum())(w),
    "jvp": lambda x, w: mw.jvp(lambda w: mnp.sin(w) * x, (w,), (w * w,))[1],
    "jit": lambda x, w: mw.jit(lambda w: mnp.sin(w) * x)(w),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_what_enters_a_branch_may_be_the_same_everywhere(inside: str, x64: None) -> None:
    f = INSIDE[inside]
    random = np.random.default_rng(0)
    x, w = random.normal(size=(4, 3)), random.normal(size=3)

    def body(x: Any, w: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda: f(x[0], w)[None], lambda: x * w)

    mesh = mw.make_mesh((4,), ("i",))
    mapped = mw.shard_map(body, mesh=mesh, in_specs=(mw.P("i"), mw.P()), out_specs=mw.P("i"))

    def plain(x: Any, w: Any) -> Any:
        rows = [f(x[n], w) if float(np.asarray(X[n]).sum()) > 0 else x[n] * w for n in range(4)]
        return mnp.stack(rows)

    X = x
    np.testing.assert_allclose(mapped(x, w), plain(mnp.asarray(x), mnp.asarray(w)), rtol=1e-12)
    found, expected = (
        mw.grad(lambda x, w, g=g: mnp.sin(g(x, w)).sum(), argnums=(0, 1))(mnp.asarray(x), mnp.asarray(w))
        for g in (mapped, plain)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_part_may_be_the_whole_axis() -> None:
    mesh = mw.make_mesh((3,), ("m",))
    f = mw.shard_map(lambda x: lax.psum(x, "m:(1)3"), mesh=mesh, in_specs=mw.P("m:(1)3"), out_specs=mw.P())
    assert f(np.arange(6.0)).tolist() == [6.0, 9.0]

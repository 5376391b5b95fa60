"""``vmap(spmd_axis_name=…)`` of a shard_map: loops, branches and rules in its body, against one example at a time."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((2, 3), ("a", "b"))
ROWS = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
WEIGHTS = np.random.default_rng(0).normal(size=2).astype("float32")


@mw.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))


def nested(x, w):
    step = lambda c, row: (
        lax.fori_loop(0, 2, lambda i, d: d * row + w.sum(), c),
        mw.checkpoint(mnp.tanh)(c),
    )
    return lax.scan(step, mnp.float32(0.3), x)[1]


BODIES = {
    "fori_loop": lambda x, w: lax.fori_loop(0, 2, lambda i, c: c * 2 + w.sum(), x),
    "scan": lambda x, w: lax.scan(lambda c, r: (c * r + w.sum(), c + r), mnp.float32(1.0), x)[1],
    "psum": lambda x, w: lax.scan(lambda c, r: (c * r + lax.psum(w.sum() * r, "a"), c + r), mnp.float32(1.0), x)[1],
    "map": lambda x, w: lax.map(lambda r: r * w.sum(), x),
    "while_loop": lambda x, w: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * w.sum()), (0, x))[1],
    "while_loop of varying length": lambda x, w: lax.while_loop(
        lambda x: (x * x).sum() < 50, lambda x: x * 2 + w.sum() ** 2, x
    ),
    "checkpoint": lambda x, w: mw.checkpoint(lambda x, w: mnp.sin(x) * w.sum())(x, w),
    "custom_vjp": lambda x, w: squared(x) * w.sum() + squared(w),
    "cond": lambda x, w: lax.cond(x.sum() > 0, lambda: x * w.sum(), lambda: x),
    "nested": nested,
}


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", BODIES)
def test_a_batch_that_is_split_over_another_axis(name: str, jit: bool) -> None:
    one = mw.shard_map(BODIES[name], mesh=MESH, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"})
    batch = mw.vmap(one, in_axes=(0, None), spmd_axis_name="b")
    each = lambda xs, w: mnp.stack([one(x, w) for x in xs])
    run = mw.jit if jit else lambda f: f
    np.testing.assert_allclose(run(batch)(ROWS, WEIGHTS), each(ROWS, WEIGHTS), rtol=1e-4, atol=1e-4)
    if not name.startswith("while"):
        slopes = lambda f: mw.grad(lambda xs, w: (f(xs, w) ** 2).sum(), argnums=(0, 1))
        for found, wanted in zip(run(slopes(batch))(ROWS, WEIGHTS), slopes(each)(ROWS, WEIGHTS), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)

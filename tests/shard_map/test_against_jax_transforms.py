"""Transforms inside and around shard_maps, nested and partly manual ones, trees and captured values, against JAX."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shard_map.counterparts import Case, Cases, Kit, check_case

CASES = Cases()


def _plain(k: Kit) -> Any:
    """Some function with a psum, of a block and of what all devices hold."""

    @k.map(mesh=k.mesh(i=4), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return k.np.sin(x * w) * k.lax.psum((x * x).sum(), "i")

    return f


@CASES.add((8, 3), (3,), orders=2)
def derivative_of_a_gradient(k: Kit) -> Any:
    return _plain(k)


@CASES.add((8, 3), (3,), (8, 3), (3,))
def hessian_vector_product(k: Kit) -> Any:
    f = _plain(k)

    def product(x: Any, w: Any, v: Any, u: Any) -> Any:
        gradient = k.package.grad(lambda x, w: (f(x, w) ** 2).sum(), argnums=(0, 1))
        return k.package.jvp(gradient, (x, w), (v, u))[1]

    return product


@CASES.add((8, 3), (3,), (8, 3))
def reverse_over_reverse(k: Kit) -> Any:
    f = _plain(k)

    def product(x: Any, w: Any, v: Any) -> Any:
        gradient = k.package.grad(lambda x: (f(x, w) ** 2).sum())
        return k.package.grad(lambda x: (gradient(x) * v).sum())(x)

    return product


@CASES.add((4,), (2,))
def hessian_of_a_mapped_loss(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4), ins=(k.P("i"), k.P()), outs=k.P())
    def loss(x: Any, w: Any) -> Any:
        return k.lax.psum(k.np.sin(x * w[0]).sum() * w[1] ** 2, "i")

    return lambda x, w: k.package.hessian(loss, argnums=1)(x, w)


@CASES.add((8, 3), (3,), (8, 3))
def linearized(k: Kit) -> Any:
    f = _plain(k)

    def both(x: Any, w: Any, v: Any) -> Any:
        y, push = k.package.linearize(lambda x: f(x, w), x)
        return y, push(v), push(2.0 * v)

    return both


@CASES.add((8, 3), (8, 3))
def transposed(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4), ins=k.P("i"), outs=k.P("i"))
    def linear(x: Any) -> Any:
        y = k.lax.psum_scatter(k.lax.all_gather(x, "i", axis=0, tiled=True), "i", scatter_dimension=0, tiled=True)
        return y + k.lax.psum(x, "i") * 2.0

    return lambda x, ct: (linear(x), k.package.linear_transpose(linear, x)(ct))


@CASES.add((5, 8, 3), (3,), orders=2)
def vmap_of_shard_map(k: Kit) -> Any:
    return k.package.vmap(_plain(k), in_axes=(0, None))


@CASES.add((8, 5, 3), (5, 3))
def vmap_of_shard_map_other_dims(k: Kit) -> Any:
    return k.package.vmap(_plain(k), in_axes=(1, 0), out_axes=2)


@CASES.add((8, 3), (5, 3))
def vmap_over_what_all_devices_hold(k: Kit) -> Any:
    return k.package.vmap(_plain(k), in_axes=(None, 0), out_axes=1)


@CASES.add((2, 3, 8, 3), (2, 3))
def vmap_of_vmap_of_shard_map(k: Kit) -> Any:
    return k.package.vmap(k.package.vmap(_plain(k), in_axes=(0, None)), in_axes=(0, 0))


@CASES.add((8, 3), (3,))
def vmap_of_a_gradient(k: Kit) -> Any:
    f = _plain(k)
    gradient = k.package.grad(lambda x, w, s: (f(x, w) * s).sum(), argnums=(0, 1))
    return lambda x, w: k.package.vmap(gradient, in_axes=(None, None, 0))(x, w, k.np.arange(3.0))


@CASES.add((8, 5, 3), (3,))
def shard_map_of_vmap(k: Kit) -> Any:
    """Collectives of one row each, in a vmap in the body."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P(("i", "j")), k.P()), outs=k.P(("i", "j")))
    def f(x: Any, w: Any) -> Any:
        def one(row: Any) -> Any:
            gathered = k.lax.all_gather(k.np.sin(row * w), "i", axis=0, tiled=True)
            return k.lax.psum_scatter(gathered, "i", scatter_dimension=0, tiled=True) + k.lax.pmean(row, "j")

        return k.package.vmap(k.package.vmap(one))(x)

    return f


@CASES.add((8, 4, 6), (6,))
def vmap_in_the_body_of_moves(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        def one(block: Any, s: Any) -> Any:
            y = k.lax.all_to_all(block * s, "i", 0, 1, tiled=True)
            return k.lax.ppermute(y, "i", [(0, 3), (3, 1)]).sum() + s * k.lax.axis_index("i")

        return k.package.vmap(one, in_axes=(2, 0))(k.np.concatenate([x, x]), w)

    return f


@CASES.add((8, 4), (4, 3))
def gradient_in_the_body(k: Kit) -> Any:
    """Of a block alone; summed by hand."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=(k.P("i"), k.P()))
    def f(x: Any, w: Any) -> Any:
        w = k.vary(w, "i")
        if not k.is_jax:
            w = k.lax.pbroadcast(w, "i")
        gx, gw = k.package.grad(lambda x, w: (k.np.tanh(x @ w) ** 2).sum(), argnums=(0, 1))(x, w)
        return gx, k.lax.psum(gw, "i")

    return f


@CASES.add((8, 4), (4, 3))
def gradient_in_the_body_through_a_psum(k: Kit) -> Any:
    """The loss is the same on all devices, and so is the gradient by what they all hold."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P()), outs=(k.P("i"), k.P()))
    def f(x: Any, w: Any) -> Any:
        return k.package.grad(lambda x, w: k.lax.psum((k.np.tanh(x @ w) ** 2).sum(), "i"), argnums=(0, 1))(x, w)

    return f


@CASES.add((8, 4), (4,))
def jvp_in_the_body(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P("i"), k.P()), outs=(k.P("i"), k.P("i")))
    def f(x: Any, w: Any) -> Any:
        t = k.vary(k.np.ones(4), "i")
        return k.package.jvp(lambda x: k.np.sin(x * w) + k.lax.psum(x, "i"), (x,), (x * t,))

    return f


@CASES.add((8, 4), (4, 4))
def partly_manual(k: Kit) -> Any:
    """Only i is manual: the body is written for whole values along j."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P("i"), k.P()), outs=(k.P("i"), k.P()), names={"i"})
    def f(x: Any, w: Any) -> Any:
        y = k.np.tanh(x @ w)
        return y, k.lax.psum(y.sum(0), "i")

    return f


@CASES.add((8, 4), (4, 4), (3, 4))
def scan_around_a_shard_map(k: Kit) -> Any:
    f = _plain(k)

    def g(x: Any, w: Any, rows: Any) -> Any:
        return k.lax.scan(lambda c, r: (k.np.tanh(f(c, r)), c.sum()), x @ w, rows)

    return g


@CASES.add((8, 4), (4,))
def cond_around_a_shard_map(k: Kit) -> Any:
    f = _plain(k)
    return lambda x, w: k.lax.cond(x.sum() > 0, lambda: f(x, w), lambda: f(x * 2.0, k.np.cos(w)))


@CASES.add((8, 3), (3,))
def shard_map_under_jit_under_grad(k: Kit) -> Any:
    f = k.package.jit(_plain(k))
    return lambda x, w: f(f(x, w), w)


@CASES.add((8, 3), (3,))
def jit_in_the_body(k: Kit) -> Any:
    @k.package.jit
    def helper(x: Any, w: Any) -> Any:
        return k.np.sin(x * w) + k.lax.psum(x, "i")

    @k.map(mesh=k.mesh(i=4), ins=(k.P("i"), k.P()), outs=k.P("i"))
    def f(x: Any, w: Any) -> Any:
        return helper(x, w) * helper(x * 2.0, x)

    return f


@CASES.add({"a": (8, 4), "b": [(4, 8), (2,)]}, ((8,), {"c": (4, 8)}))
def trees_with_prefixes(k: Kit) -> Any:
    ins = ({"a": k.P("i"), "b": [k.P(None, "i"), k.P()]}, (k.P("i"), k.P(None, "i")))

    @k.map(mesh=k.mesh(i=4), ins=ins, outs=(k.P("i"), {"s": k.P(), "t": k.P(None, "i")}))
    def f(p: Any, q: Any) -> Any:
        a, (b, c), d, e = p["a"], p["b"], q[0], q[1]["c"]
        rows = [a * c[0], (a * d[:, None], a + 1.0)]
        return rows, {"s": [k.lax.psum(b.sum(), "i"), c], "t": (b * c[1], {"u": e})}

    return f


@CASES.add((8, 3), (3,))
def captured_arrays_and_tracers(k: Kit) -> Any:
    """What the body closes over is the same on all devices, and has a gradient."""
    table = k.np.arange(3.0)

    def g(x: Any, w: Any) -> Any:
        h = k.np.sin(w)

        @k.map(mesh=k.mesh(i=4), ins=k.P("i"), outs=k.P("i"))
        def f(x: Any) -> Any:
            return x * h + table * k.lax.psum(x * w, "i").sum()

        return f(x) * w

    return g


@CASES.add((8,), ())
def numbers_and_scalars(k: Kit) -> Any:
    """psum of a Python number is the size of the axis; scalars pass by P()."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=(k.P(("i", "j")), k.P()), outs=(k.P(), k.P(), k.P("j")))
    def f(x: Any, s: Any) -> Any:
        n = k.lax.psum(1, "i") * k.lax.psum(1.5, ("i", "j"))
        total = k.lax.psum(x[0] * s, ("i", "j"))
        return total * n, s * 2.0, k.lax.psum(x, "i") * k.lax.psum(2, "j")

    return f


@CASES.add((2, 4, 8))
def dims_cut_by_compound_axes(k: Kit) -> Any:
    @k.map(mesh=k.mesh(a=2, b=2, c=2), ins=k.P(None, ("c", "a"), "b"), outs=k.P("b", None, ("a", "c")))
    def f(x: Any) -> Any:
        n = 4 * k.lax.axis_index(("a", "b", "c")) + 2 * k.lax.axis_index("a") + k.lax.axis_index(("c", "b"))
        return k.np.sin(x) * n

    return f


@CASES.add((8, 6))
def result_joined_from_equal_blocks(k: Kit) -> Any:
    """A result that no device computes differently, joined all the same."""

    @k.map(mesh=k.mesh(i=4, j=2), ins=k.P("i"), outs=(k.P("j", "i"), k.P(("j", "i"))))
    def f(x: Any) -> Any:
        y = k.lax.psum(k.np.sin(x), "i")
        return k.vary(y, "i", "j"), k.vary(y * y, "i", "j")

    return f


@CASES.add((4, 4), (4, 4))
def two_meshes(k: Kit) -> Any:
    """Two shard_maps over different meshes in one program."""
    one = k.map(lambda x: k.lax.psum(x, "i") * x, mesh=k.mesh(i=4), ins=k.P("i"), outs=k.P("i"))
    two = k.map(
        lambda x, y: k.lax.all_gather(x @ y, "b", axis=1, tiled=True),
        mesh=k.mesh(b=4),
        ins=(k.P(None, "b"), k.P("b")),
        outs=k.P("b"),
    )
    return lambda x, y: two(one(x), k.np.sin(y))


@CASES.add((4, 3), (3,))
def axes_of_one_device(k: Kit) -> Any:
    @k.map(mesh=k.mesh(i=1, j=4, k=1), ins=(k.P("i", None), k.P("k")), outs=k.P(("i", "k")))
    def f(x: Any, w: Any) -> Any:
        y = k.lax.psum(x * w, "i")
        y = k.lax.all_gather(y, "k", axis=0, tiled=True) if not k.is_jax else y
        return y + k.lax.psum(w, "k") * k.lax.axis_index("i")

    return f


@CASES.add((8, 4, 4), (8, 4))
def linear_algebra_in_the_body(k: Kit) -> Any:
    """Sorting, gathering rows, cumulative sums and padding of values that vary."""

    @k.map(mesh=k.mesh(i=8), ins=(k.P("i"), k.P("i")), outs=k.P("i"))
    def f(a: Any, b: Any) -> Any:
        x = k.np.sort(a[0], axis=-1)[:, ::-1] @ b[0]
        x = k.np.take(x, k.np.argsort(b[0]), axis=0)
        x = k.np.cumsum(k.np.pad(x, (1, 2)))
        return k.lax.all_gather(x.at[2].add(3.0 * x[0] + x[1]), "i", axis=0, tiled=True)[None, 3:20]

    return f


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_to_jax(case: Case, x64: None) -> None:
    check_case(case)

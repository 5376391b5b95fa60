"""Explicit axes: the layout of every value is part of its type, at once, traced, differentiated and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.text.parse import parse_program

EXPLICIT, AUTO = mw.AxisType.Explicit, mw.AxisType.Auto
MESH = mw.make_mesh((2, 2), ("x", "y"), axis_types=(EXPLICIT,) * 2)


@pytest.fixture(autouse=True)
def _on_the_mesh() -> Iterator[None]:
    with mw.set_mesh(MESH):
        yield


def put(shape: tuple[int, ...], *spec: Any, mesh: mw.Mesh = MESH, seed: int = 0) -> Any:
    data = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return mw.device_put(mnp.array(data), mw.NamedSharding(mesh, P(*spec)))


def plain(tree: Any) -> Any:
    return mw.tree.map(lambda x: mnp.array(np.asarray(x)), tree)


def shown(tree: Any) -> list[str]:
    return [str(mw.typeof(x)).removeprefix("float32") for x in mw.tree.leaves(tree)]


def check(f: Callable[..., Any], args: tuple[Any, ...], types: str) -> None:
    """The function computes the same with and without layouts, has results of these types, and they lie so."""
    with mw.set_mesh(None):
        want = mw.tree.leaves(f(*plain(args)))
    for way in (f, mw.jit(f)):
        got = way(*args)
        assert shown(got) == types.split()
        for x, right in zip(mw.tree.leaves(got), want, strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(right), rtol=2e-4, atol=2e-4)
            assert x.sharding.mesh == MESH, "it is where its type says"
            assert x.sharding.typed(x.type) is x.type
    program = mw.make_program(f)(*args)
    text = str(program)
    assert parse_program(text) == program
    assert str(parse_program(text)) == text


def asked(x: Any, *spec: Any) -> P | None:
    """What to ask for where the layout of an array is part of its type."""
    return P(*spec) if x.type.sharding else None


X, W, N = put((8, 4), "x"), put((4, 6), None, "y", seed=1), put((8, 4), seed=2)
XY = put((8, 4), "x", "y", seed=3)

OPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "split meets whole": (lambda a, b: a + b, (X, N), "[8@x,4]"),
    "numbers": (lambda a: 2 * a + 1, (X,), "[8@x,4]"),
    "transpose": (lambda a: a.T, (XY,), "[4@y,8@x]"),
    "sum over a split dim": (lambda a: a.sum(0), (XY,), "[4@y]"),
    "sum over all": (lambda a: a.sum(), (XY,), "[]"),
    "product": (lambda a, w: a @ w, (X, W), "[8@x,6@y]"),
    "one contracted dim split": (lambda a, w: a @ w, (put((8, 4), None, "x"), put((4, 6))), "[8,6]"),
    "softmax": (lambda a: mw.nn.softmax(a), (XY,), "[8@x,4@y]"),
    "norm": (lambda a: a / mnp.sqrt((a * a).mean(-1, keepdims=True) + 1), (XY,), "[8@x,4@y]"),
    "broadcast": (lambda a: mnp.broadcast_to(a, (3, 8, 4)), (XY,), "[3,8@x,4@y]"),
    "where": (lambda a, b: mnp.where(a > 0, a, b), (X, N), "[8@x,4]"),
    "slice": (lambda a: a[:4], (XY,), "[4@x,4@y]"),
    "reverse": (lambda a: a[::-1], (XY,), "[8@x,4@y]"),
    "merge major": (lambda a: a.reshape(32), (X,), "[32@x]"),
    "split a dim": (lambda a: a.reshape(2, 4, 4), (XY,), "[2@x,4,4@y]"),
    "split a dim over two axes": (lambda a: a.reshape(2, 4, 4), (put((8, 4), ("x", "y")),), "[2@x,4@y,4]"),
    "one more dim": (lambda a: a[None], (XY,), "[1,8@x,4@y]"),
    "rows by number": (lambda a: a[mnp.array([1, 5, 2])], (put((8, 4), None, "x"),), "[3,4@x]"),
    "rows by number of split rows": (
        lambda a: a.at[mnp.array([1, 5, 2])].get(out_sharding=asked(a, None, None)),
        (X,),
        "[3,4]",
    ),
    "largest": (lambda a: mnp.max(a, 0), (XY,), "[4@y]"),
    "concatenate": (lambda a: mnp.concatenate([a, a], 1), (X,), "[8@x,8]"),
    "join along a split dim": (lambda a: mnp.concatenate([a, 2 * a]), (X,), "[16@x,4]"),
    "like it": (lambda a: (mnp.zeros_like(a), mnp.full_like(a, a.sum())), (XY,), "[8@x,4@y] [8@x,4@y]"),
    "a carry like a row": (
        lambda a: lax.scan(lambda c, r: (c + r, c * r), mnp.ones_like(a[0]), a),
        (put((8, 4), None, "y"),),
        "[4@y] [8,4@y]",
    ),
    "uneven": (lambda a: a * a, (put((5, 4), "x"),), "[5@x,4]"),
}


ROWS = mw.device_put(mnp.array([3, -1, 0, 9]), mw.NamedSharding(MESH, P("y")))
BY_PLACED_NUMBERS: dict[str, tuple[Callable[..., Any], str]] = {
    "index": (lambda a, i: a[i], "[4@y,4@x]"),
    "take": (lambda a, i: mnp.take(a, i, axis=0, mode="wrap"), "[4@y,4@x]"),
    "get": (lambda a, i: a.at[i].get(mode="fill", fill_value=0), "[4@y,4@x]"),
    "beside a slice": (lambda a, i: a[i, 0:2], "[4@y,2@x]"),
    "add": (lambda a, i: a.at[i].add(1.0, mode="drop"), "[8,4@x]"),
    "one of them": (lambda a, i: a[mnp.max(i) - 9], "[4@x]"),
}
OF_SPLIT_ROWS: dict[str, tuple[Callable[..., Any], str]] = {
    "get": (lambda a, i: a.at[i].get(out_sharding=asked(a, "y", None)), "[4@y,4]"),
    "get whole": (lambda a, i: a.at[i].get(out_sharding=asked(a, None, None)), "[4,4]"),
    "get or 0": (lambda a, i: a.at[i].get(mode="fill", fill_value=0, out_sharding=asked(a, "y", None)), "[4@y,4]"),
    "beside a slice": (lambda a, i: a.at[i, 1:3].get(out_sharding=asked(a, "y", None)), "[4@y,2]"),
    "pairs": (lambda a, i: a.at[i, i % 4].get(out_sharding=asked(a, "y")), "[4@y]"),
    "add": (lambda a, i: a.at[i].add(1.0, mode="drop", out_sharding=asked(a, "x", None)), "[8@x,4]"),
    "one of them": (lambda a, i: a[:, mnp.max(i) - 9], "[8@x]"),
}


@pytest.mark.parametrize("name", BY_PLACED_NUMBERS)
def test_rows_by_numbers_lie_as_the_numbers_do_at_once_and_traced(name: str) -> None:
    f, types = BY_PLACED_NUMBERS[name]
    check(f, (put((8, 4), None, "x"), ROWS), types)


@pytest.mark.parametrize("name", OF_SPLIT_ROWS)
def test_split_rows_by_numbers_lie_as_asked_at_once_and_traced(name: str) -> None:
    f, types = OF_SPLIT_ROWS[name]
    check(f, (put((8, 4), "x"), ROWS), types)


@pytest.mark.parametrize("name", OPS)
def test_ops(name: str) -> None:
    check(*OPS[name])


@pytest.mark.parametrize(
    "name",
    [
        "product", "softmax", "norm", "merge major", "split meets whole", "rows by number",
        "rows by number of split rows",
    ],
)  # fmt: skip
def test_gradients_lie_as_what_they_are_of(name: str) -> None:
    f, args, _ = OPS[name]
    types = " ".join(shown(args))
    check(mw.grad(lambda *args: (f(*args) ** 2).sum(), argnums=tuple(range(len(args)))), args, types)


def test_gradients_of_two_layers() -> None:
    params = {"a": put((4, 8), None, "y"), "b": put((8, 4), "y", seed=5)}

    def loss(params: Any, x: Any) -> Any:
        out_sharding = P("x", None) if x.type.sharding else None
        return (mnp.matmul(mnp.tanh(x @ params["a"]), params["b"], out_sharding=out_sharding) ** 2).mean()

    check(mw.value_and_grad(loss), (params, X), "[] [4,8@y] [8@y,4]")


def test_data_parallel_gradients_need_one_sum() -> None:
    compiled = mw.jit(mw.grad(lambda w, x: ((x @ w) ** 2).sum())).lower(put((4, 6)), X).compile()
    assert [(c.kind, c.axes) for c in compiled.collectives] == [("all_reduce", ("x",))]


def test_loops_branches_and_rules_of_ones_own() -> None:
    @mw.custom_vjp
    def f(x: Any) -> Any:
        return mnp.sin(x)

    f.defvjp(lambda x: (mnp.sin(x), x), lambda x, ct: (ct * mnp.cos(x),))
    check(lambda x: lax.scan(lambda c, _: (mnp.tanh(c), c.sum(0)), x, None, length=3), (X,), "[8@x,4] [3,4]")
    rows = put((4,), "y"), put((3, 4), None, "y")
    check(lambda x, xs: lax.scan(lambda c, r: (c + r, c * r), x, xs)[1], rows, "[3,4@y]")
    check(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1], (X,), "[8@x,4]")
    check(lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x), (X,), "[8@x,4]")
    check(mw.grad(lambda x: f(x).sum()), (X,), "[8@x,4]")
    check(
        mw.grad(lambda x: (lax.scan(lambda c, _: (mnp.tanh(c), None), x, None, length=3)[0] ** 2).sum()),
        (X,),
        "[8@x,4]",
    )
    check(mw.grad(lambda x: (mw.checkpoint(lambda x: mnp.sin(mnp.sin(x)))(x)).sum()), (X,), "[8@x,4]")
    check(lambda x: mw.jvp(mnp.sin, (x,), (x,)), (X,), "[8@x,4] [8@x,4]")


def test_batches() -> None:
    check(mw.vmap(lambda x, w: x @ w, in_axes=(0, None)), (X, W), "[8@x,6@y]")
    check(mw.vmap(lambda x: x / x.sum()), (XY,), "[8@x,4@y]")
    check(mw.vmap(mw.grad(lambda x: (x**3).sum())), (XY,), "[8@x,4@y]")


def test_convolutions_and_their_gradients() -> None:
    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME")

    x, w = put((4, 2, 6, 6), "x"), put((2, 2, 3, 3))
    check(conv, (x, w), "[4@x,2,6,6]")
    check(mw.grad(lambda x, w: (conv(x, w) ** 2).sum(), argnums=(0, 1)), (x, w), "[4@x,2,6,6] [2,2,3,3]")


def test_out_sharding_of_convolutions() -> None:
    """The features that are summed over are split in both operands."""
    x, w = put((4, 2, 6, 6), None, "x"), put((2, 2, 3, 3), None, "x")
    want = np.asarray(lax.conv_general_dilated(np.asarray(x), np.asarray(w), (1, 1), "SAME"))
    for spec, type in ((P(), "[4,2,6,6]"), (P("x"), "[4@x,2,6,6]"), (P("y", "x"), "[4@y,2@x,6,6]")):
        conv = lambda x, w, spec=spec: lax.conv_general_dilated(x, w, (1, 1), "SAME", out_sharding=spec)
        for way in (conv, mw.jit(conv)):
            got = way(x, w)
            assert shown(got) == [type]
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)


def test_out_sharding_of_products() -> None:
    a, b, c = put((8, 4), None, "y"), put((4, 8), "y"), put((8, 6), None, "x")
    want = np.asarray(a) @ np.asarray(b)
    for spec, type in ((P(), "[8,8]"), (P("x", "y"), "[8@x,8@y]"), (P(None, ("x", "y")), "[8,8@(x,y)]")):
        for f in (
            mnp.dot,
            mnp.matmul,
            lambda a, b, out_sharding: mnp.einsum("ij,jk->ik", a, b, out_sharding=out_sharding),
        ):
            for way in (f, mw.jit(f, static_argnames="out_sharding")):
                got = way(a, b, out_sharding=spec)
                assert shown(got) == [type]
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)
    got = mw.jit(lambda *ops: mnp.einsum("ij,jk,kl->li", *ops, out_sharding=P("x", "y")))(a, b, c)
    assert shown(got) == ["[6@x,8@y]"]
    np.testing.assert_allclose(np.asarray(got), (want @ np.asarray(c)).T, rtol=1e-5, atol=1e-5)


def test_a_sum_that_stays_open() -> None:
    a, b = put((8, 4), None, "x"), put((4, 8), "x")
    f = mw.jit(lambda a, b: mnp.dot(a, b, out_sharding=P(unreduced={"x"})) * 2)
    compiled = f.lower(a, b).compile()
    assert shown(compiled(a, b)) == ["[8,8]{U:x}"]
    assert compiled.collectives == []
    g = mw.jit(lambda a, b: mw.reshard(mnp.dot(a, b, out_sharding=P(unreduced={"x"})) * 2, P("x")))
    compiled = g.lower(a, b).compile()
    assert [c.kind for c in compiled.collectives] == ["reduce_scatter"]
    got = compiled(a, b)
    assert shown(got) == ["[8@x,8]"]
    np.testing.assert_allclose(np.asarray(got), np.asarray(a) @ np.asarray(b) * 2, rtol=1e-5, atol=1e-5)
    assert shown(mnp.dot(a, b, out_sharding=P(unreduced={"x"}))) == ["[8,8]{U:x}"]


def _open(a: Any, b: Any) -> Any:
    return mnp.dot(a, b, out_sharding=P(unreduced={"y"}))


OPEN_SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "carried": lambda u, z: lax.scan(lambda c, _: (c * 2, None), u, None, length=3)[0],
    "taken in a loop": lambda u, z: lax.scan(lambda c, _: (c + mw.reshard(u, P()), None), z, None, length=3)[0],
    "rows": lambda u, z: lax.scan(lambda c, row: (c + mw.reshard(row, P()), None), z[0], u)[0],
    "branches": lambda u, z: lax.cond(True, lambda u: u * 2, lambda u: u, u),
    "while": lambda u, z: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, u))[1],
}


KEY = mw.random.key(0)
MADE: dict[str, Callable[[Any], Any]] = {
    "normal": lambda s: mw.random.normal(KEY, (8, 6), out_sharding=s),
    "uniform": lambda s: mw.random.uniform(KEY, (8, 6), out_sharding=s),
    "uniform between": lambda s: mw.random.uniform(KEY, (8, 6), minval=2.0, maxval=3.0, out_sharding=s),
    "truncated_normal": lambda s: mw.random.truncated_normal(KEY, -1.0, 1.0, (8, 6), out_sharding=s),
    "gumbel": lambda s: mw.random.gumbel(KEY, (8, 6), out_sharding=s),
    "exponential": lambda s: mw.random.exponential(KEY, (8, 6), out_sharding=s),
    "bernoulli": lambda s: mw.random.bernoulli(KEY, 0.3, (8, 6), out_sharding=s),
    "rademacher": lambda s: mw.random.rademacher(KEY, (8, 6), out_sharding=s),
    "bits": lambda s: mw.random.bits(KEY, (8, 6), out_sharding=s),
    "randint": lambda s: mw.random.randint(KEY, (8, 6), 0, 9, out_sharding=s),
    "permutation": lambda s: mw.random.permutation(KEY, mnp.arange(48.0).reshape(8, 6), out_sharding=s),
    "categorical": lambda s: mw.random.categorical(KEY, mnp.zeros((8, 6, 5)), out_sharding=s),
    "full": lambda s: lax.full((8, 6), 3.0, sharding=s),
    "broadcasted_iota": lambda s: lax.broadcasted_iota(int, (8, 6), 1, out_sharding=s),
    "lax.broadcast": lambda s: lax.broadcast(mnp.arange(6.0), (8,), out_sharding=s),
    "broadcast_to": lambda s: mnp.broadcast_to(mnp.arange(6.0), (8, 6), out_sharding=s),
    "reshape": lambda s: mnp.reshape(mnp.arange(48.0), (8, 6), out_sharding=s),
    "lax.reshape": lambda s: lax.reshape(mnp.arange(48.0), (8, 6), out_sharding=s),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_goes_where_out_sharding_says(name: str) -> None:
    make = MADE[name]
    right, there = make(None), mw.NamedSharding(MESH, P("x", "y"))
    for found in (make(there), mw.jit(lambda: make(there))()):
        assert str(mw.typeof(found)).endswith("[8@x,6@y]")
        np.testing.assert_array_equal(np.asarray(found), np.asarray(right))


def test_an_out_sharding_that_is_no_place() -> None:
    for make in (lambda: MADE["normal"]("x"), lambda: mnp.dot(X.T, X, out_sharding="x")):
        with pytest.raises(mw.MeshwrightError) as caught:
            make()
        assert caught.value.what == "An array cannot be put onto 'x'."


@pytest.mark.parametrize("name", OPEN_SUMS)
def test_open_sums_go_through_loops_and_branches(name: str) -> None:
    a, b, z = put((5, 8), None, "y"), put((8, 5), "y", seed=1), mnp.zeros((5, 5))
    through = OPEN_SUMS[name]
    with mw.set_mesh(None):
        whole = np.asarray(a) @ np.asarray(b)
    right = {"rows": whole.sum(0), "branches": 2 * whole, "taken in a loop": 3 * whole}.get(name, 8 * whole)
    made = mw.jit(lambda a, b, z: mw.reshard(through(_open(a, b), z), P()))(a, b, z)
    given = mw.jit(lambda u, z: mw.reshard(through(u, z), P()))(mw.jit(_open)(a, b), z)
    for found in (made, given):
        np.testing.assert_allclose(np.asarray(found), right, rtol=2e-4, atol=2e-4)


def test_an_argument_that_is_an_open_sum_is_scattered() -> None:
    a, b = put((5, 8), "x", "y"), put((8, 5), "y", seed=1)
    partial_sum = mw.jit(lambda a, b: mnp.dot(a, b, out_sharding=P("x", unreduced={"y"})))(a, b)
    compiled = mw.jit(lambda u: mw.reshard(u * 2, P("x", "y"))).lower(partial_sum).compile()
    assert [one.kind for one in compiled.collectives] == ["reduce_scatter"]
    np.testing.assert_allclose(
        np.asarray(compiled(partial_sum)), 2 * np.asarray(a) @ np.asarray(b), rtol=2e-4, atol=2e-4
    )


def test_only_explicit_axes_are_in_types() -> None:
    mesh = mw.make_mesh((2, 2, 2), ("x", "a", "y"), axis_types=(EXPLICIT, AUTO, EXPLICIT))
    x = put((8, 4, 4), "x", "a", "y", mesh=mesh)
    assert str(mw.typeof(x)) == "float32[8@x,4@a,4@y]"
    assert str(x.type) == "float32[8@x,4,4@y]"
    f = mw.jit(lambda x: mnp.sin(x).sum(0))
    program = f.lower(x).program
    assert [str(t) for t in program.out_types] == ["float32[4,4@y]"]
    assert str(mw.typeof(f(x))) == "float32[4@a,4@y]", "what is Auto is propagated"
    g = mw.jit(lambda x: mw.reshard(x, mw.NamedSharding(mesh, P("y"))) * 2)
    assert str(mw.typeof(g(x))) == "float32[8@y,4@a,4]"
    np.testing.assert_allclose(np.asarray(f(x)), np.sin(np.asarray(x)).sum(0), rtol=1e-5, atol=1e-5)


def test_inside_shard_map_types_vary() -> None:
    seen = []

    def body(x: Any) -> Any:
        seen.append(str(mw.typeof(x)))
        return lax.psum(x, "x")

    f = mw.shard_map(body, mesh=MESH, in_specs=P("x", "y"), out_specs=P(None, "y"))
    for way in (f, mw.jit(f)):
        assert shown(way(XY)) == ["[4,4@y]"]
    assert set(seen) == {"float32[4,2]{x,y}"}
    h = mw.jit(lambda x: f(x) + f(2 * x))
    assert shown(h(XY)) == ["[4,4@y]"]


def test_arguments_are_typed_by_in_shardings_and_results_by_out_shardings() -> None:
    f = mw.jit(lambda x: x * 2, in_shardings=P("x"), out_shardings=P(None, "y"))
    lowered = f.lower(np.ones((4, 4), np.float32))
    assert [str(t) for t in (*lowered.program.in_types, *lowered.program.out_types)] == ["float32[4@x,4]"] * 2
    got = f(np.ones((4, 4), np.float32))
    assert str(got.type) == str(mw.typeof(got)) == "float32[4,4@y]"
    assert str(mw.typeof(lowered.compile()(np.ones((4, 4), np.float32)))) == "float32[4,4@y]"
    struct = mw.ShapeDtypeStruct((4, 4), "float32", sharding=mw.NamedSharding(MESH, P("y")))
    assert str(mw.jit(lambda x: x + 1).lower(struct).program.out_types[0]) == "float32[4@y,4]"


def test_arrays_from_outside_bring_their_layout() -> None:
    got = mw.jit(lambda y: y + X)(np.ones((8, 4), np.float32))
    assert shown(got) == ["[8@x,4]"]
    assert got.sharding.mesh == MESH


def test_text_names_the_mesh_once() -> None:
    program = mw.make_program(lambda a: a.reshape(2, 4, 4).sum(1))(put((8, 4), ("x", "y")))
    text = program.to_text(sources=False)
    assert text == (
        "mesh(x=2, y=2)\n"
        "program(a: f32[8@(x,y),4]) {\n"
        "  b: f32[2@x,4@y,4] = reshape a shape=(2, 4, 4)\n"
        "  c: f32[2@x,4] = reduce_sum b axes=(1,)\n"
        "  return c\n"
        "}"
    )
    assert parse_program(text).to_text(sources=False) == text
    mesh = mw.make_mesh((4,), ("data",), axis_types=EXPLICIT)
    program = mw.make_program(lambda a: a.reshape(2, 4))(put((8,), "data", mesh=mesh))
    assert "b: f32[2@data:(1)2,4@data:(2)2]" in str(program)
    assert parse_program(str(program)) == program

"""Functions of JAX read here: value, derivative taken by JAX and taken here, jitted, against JAX itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError
from meshwright.interop.jax import from_jax, jit, register_containers

MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
SPEC: Any = PartitionSpec
RNG = np.random.default_rng(0)
POLICIES = jax.checkpoint_policies
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {}


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def case(name: str, *args: Any, differentiable: bool = True) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        CASES[name] = function, args, differentiable
        return function

    return add


def positive(a: Any) -> Any:
    return a @ a.T + 8 * jnp.eye(a.shape[0])


def mapped(function: Any, in_specs: Any, out_specs: Any, **more: Any) -> Any:
    return jax.shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **more)


case("multilayer perceptron", normal(4, 8), normal(8, 3))(lambda x, w: jnp.tanh(x @ w))
case("softmax", normal(4, 8))(lambda x: jax.nn.softmax(x) * jnp.arange(8.0))
case("attention", normal(2, 5, 3, 4), normal(2, 5, 3, 4), normal(2, 5, 3, 4))(
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)
)
case("norm", normal(4, 8), normal(8))(
    lambda x, g: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g
)
case("convolution", normal(2, 8, 8, 3), normal(3, 3, 3, 4))(
    lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
)
case("pools", normal(2, 8, 8, 3))(
    lambda x: (
        jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        + jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    )
)


@case("LSTM", normal(6, 2, 4), normal(4, 16), normal(4, 16))
def lstm(xs: Any, wx: Any, wh: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        i, f, g, o = jnp.split(x @ wx + carry[0] @ wh, 4, -1)
        cell = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        out = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (out, cell), out

    return jax.lax.scan(step, (jnp.zeros((2, 4)), jnp.zeros((2, 4))), xs)


case("dropout", normal(4, 8))(lambda x: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x / 0.5, 0))
case("keys", normal(3))(
    lambda x: (
        x * jax.random.normal(jax.random.split(jax.random.key(0), 3)[1], (3,))
        + jax.vmap(jax.random.uniform)(jax.random.split(jax.random.key(1), 3))
    )
)
case("keys that are folded and stacked", normal(4))(
    lambda x: (
        jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(jax.random.key(0), i)))(jnp.arange(4)) * x
        + jax.vmap(jax.random.uniform)(jnp.stack([jax.random.key(n) for n in range(4)]))
    )
)
case("raw keys", normal(3))(lambda x: x + jax.random.normal(jax.random.fold_in(jax.random.PRNGKey(4), 7), (3,)))
case("samples", normal(5, 4))(
    lambda x: (
        jax.random.permutation(jax.random.key(2), x)[:, 0]
        + jax.random.categorical(jax.random.key(2), x, axis=-1)
        + jax.random.gumbel(jax.random.key(1), (5,))
    )
)
case("lookups", normal(10, 4), np.array([1, 3, 2, -1]), np.array([[1], [2], [0], [3]]))(
    lambda x, i, j: x[i] * jnp.take_along_axis(x[:4], j, 1)
)
case("updates", normal(10, 4), normal(3, 4))(
    lambda x, u: (
        x.at[jnp.array([1, 3, 3])].add(u).at[0].set(2.0).at[2:4, 1].multiply(3.0).at[5].max(u[0])
        + jax.ops.segment_sum(u, jnp.array([0, 1, 0]), 10)
    )
)
case("while", normal(4), differentiable=False)(
    lambda x: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 1.1 + c[0]), (0, x))[1]
)
case("loops that end apart", np.arange(4.0, dtype=np.float32), differentiable=False)(
    jax.vmap(lambda r: jax.lax.while_loop(lambda v: v < 50, lambda v: v * v + 1, r))
)
case("rows of unsigned numbers", np.arange(3, dtype=np.uint32), differentiable=False)(
    lambda x: jnp.take(x, jnp.array([0, 2, 5]), mode="fill")
)
case("counted loop", normal(4))(lambda x: jax.lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + i, x))
case("branches", normal(4))(
    lambda x: (
        jax.lax.cond(x.sum() > 0, lambda x: x * 2, jnp.sin, x)
        + jax.lax.switch(jnp.argmax(x), [lambda x: x, lambda x: x * x, jnp.cos], x)
    )
)
case("batched", normal(3, 4), normal(4, 4))(
    lambda x, w: jax.vmap(lambda r: jnp.tanh(w @ r))(x) + jax.lax.map(lambda r: r / jnp.linalg.norm(r), x)
)
case("named batch", normal(3, 4))(
    jax.vmap(
        lambda r: (
            r / jax.lax.psum(r * r, "batch") + jax.lax.stop_gradient(jax.lax.pmax(jax.lax.stop_gradient(r), "batch"))
        ),
        axis_name="batch",
    )
)
case("checkpoint", normal(4, 4), normal(4, 4))(
    lambda x, w: jax.lax.scan(jax.checkpoint(lambda c, _: (jax.nn.relu(jnp.tanh(c @ w)), c.sum())), x, None, length=3)
)
case("checkpoint that keeps matmuls", normal(4, 4), normal(4, 4))(
    lambda x, w: jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x @ w) @ w), policy=POLICIES.dots_saveable)(x)
)
case("checkpoint that keeps names", normal(4, 4), normal(4, 4))(
    lambda x, w: jax.checkpoint(
        lambda x: jnp.sin(jax.ad_checkpoint.checkpoint_name(jnp.tanh(x @ w), "h") @ w),
        policy=POLICIES.save_only_these_names("h"),
    )(x)
)
case("checkpoint on the host", normal(4, 4), normal(4, 4))(
    lambda x, w: jax.checkpoint(
        lambda x: jnp.sin(jnp.tanh(x @ w) @ w), policy=POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")
    )(x)
)
case("derivatives inside", normal(3))(
    lambda x: (
        jax.grad(lambda y: (jnp.sin(y) ** 3).sum())(x)
        + jax.hessian(lambda y: (jnp.sin(y) ** 3 * y[::-1]).sum())(x).sum(0)
        + jax.jacfwd(lambda y: jnp.sin(y) * y.sum())(x).sum(1)
    )
)


@jax.custom_vjp
def tripled(x: Any, n: Any) -> Any:
    return jnp.sin(x) * n


tripled.defvjp(lambda x, n: (tripled(x, n), (x, n)), lambda kept, ct: (3 * ct * jnp.cos(kept[0]) * kept[1], None))
case("rules of one's own", normal(4), np.array([1, 2, 3, 0]))(lambda x, n: tripled(x, n) + jax.nn.relu(x)[n])


@jax.custom_jvp
def quintupled(x: Any, n: Any) -> Any:
    return x * n


quintupled.defjvp(lambda primals, tangents: (quintupled(*primals), tangents[0] * 5 * primals[1]))
case("a rule for tangents, and integers", normal(3), np.arange(3))(quintupled)
case("activations", normal(5))(
    lambda x: sum(
        f(x)
        for f in (jax.nn.log_softmax, jax.nn.logsumexp, jax.nn.softplus, jax.nn.silu, jax.nn.gelu, jax.nn.elu, jnp.cbrt)
    )
)
case("sorts", normal(4, 6), np.array([1, 0, 1, 0, 2, 2]))(
    lambda x, k: jnp.sort(x, axis=0) + jnp.argsort(x, axis=0) + jax.lax.sort((k, x[0]), num_keys=2)[1]
)
case("largest", normal(4, 6))(lambda x: jax.lax.top_k(x, 3)[0].sum(1) + jnp.median(x, axis=1) + jnp.argmax(x, 1))
case("cumulative", normal(4, 5))(
    lambda x: jnp.cumsum(x, 1) + jnp.cumprod(x, 0) + jax.lax.cummax(x, axis=1) + jax.lax.cumlogsumexp(x, axis=1)
)
case("associative scan", normal(8))(lambda x: jax.lax.associative_scan(jnp.multiply, x))
case("Fourier", normal(8))(lambda x: jnp.abs(jnp.fft.rfft(x)))
case("complex", normal(4))(lambda x: jnp.abs(jnp.exp(1j * x) * x))
case("einsum", normal(2, 3, 4), normal(4, 5, 2))(lambda a, b: jnp.einsum("bij,jkb->bik", a, b))
case("triangular", normal(4, 4), normal(4, 2))(
    lambda a, b: jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(positive(a)), b, lower=True)
)
case("solve", normal(4, 4), normal(4, 2))(
    lambda a, b: jnp.linalg.solve(positive(a), b) + jnp.linalg.inv(positive(a))[:, :2]
)
case("determinant", normal(4, 4))(lambda a: jnp.linalg.slogdet(positive(a))[1] + jnp.linalg.det(a))
case("eigenvalues", normal(4, 4))(lambda a: jnp.linalg.eigh(positive(a))[0])
case("QR", normal(4, 3))(lambda a: jnp.abs(jnp.linalg.qr(a)[1]))
case("singular values", normal(4, 3))(lambda a: jnp.linalg.svd(a, compute_uv=False) + jnp.linalg.pinv(a).sum())
case("matrix exponential", normal(3, 3))(jax.scipy.linalg.expm)
case("conjugate gradients", normal(4, 4), normal(4))(
    lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: positive(a) @ v, b)[0]
)
case("ragged", normal(6, 4), normal(2, 4, 3))(lambda x, w: jax.lax.ragged_dot(x, w, jnp.array([2, 4])))
case("integers", normal(4, 8))(
    lambda x: (
        jnp.dot(
            jnp.round(x * 10).astype(jnp.int8), jnp.ones((8, 3), jnp.int8), preferred_element_type=jnp.int32
        ).astype(jnp.float32)
        + x[:, :3]
    )
)
case("shapes", normal(3, 4))(
    lambda x: (
        jnp.pad(x, ((1, 2), (0, 1)), mode="reflect")
        + jnp.pad(x, ((1, 2), (0, 1)))
        + jnp.stack([x, x * 2], 1).reshape(6, 4)[:, ::-1].sum()
    )
)
case("numbers", normal(3, 4))(
    lambda x: jnp.clip(x, -0.5, 0.5) + jnp.maximum(x, 0.1) + jnp.sign(x) * jnp.floor(x) + x % 0.7 + x**2 + x**3
)
case("special functions", np.abs(normal(4)) + 0.5)(
    lambda x: jax.scipy.special.gammaln(x) + jax.scipy.special.digamma(x)
)
case("in an order of all bits", normal(4))(lambda x: jnp.interp(x, jnp.arange(5.0), jnp.arange(5.0) ** 2))
case("images", normal(4, 4, 1))(lambda x: jax.image.resize(x, (8, 8, 1), "bilinear"))
case("polynomials", normal(4))(
    lambda x: jnp.polyval(jnp.array([1.0, 2.0, 3.0]), x) + jnp.convolve(x, jnp.array([1.0, -1.0]), mode="same")
)
case("shard_map", normal(8, 8), normal(8, 8))(
    mapped(lambda a, b: jax.lax.psum(a @ b, "y"), (SPEC("x", "y"), SPEC("y", None)), SPEC("x"))
)
case("collectives", normal(8, 8))(
    mapped(
        lambda a: (
            jax.lax.all_gather(a, "x", tiled=True).sum(0)
            + jax.lax.ppermute(a, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]).sum(0)
            + jax.lax.psum_scatter(jax.lax.all_to_all(a, "x", 0, 0, tiled=True), "x", tiled=True).sum(0)
            + jax.lax.pmean(a, "y").mean()
            + jax.lax.axis_index("y")
        ),
        SPEC("x", "y"),
        SPEC(("x", "y")),
    )
)
case("shard_map over one axis", normal(8, 8))(
    jax.jit(mapped(lambda a: jax.lax.psum(a, "x"), SPEC("x"), SPEC(), axis_names={"x"}))
)
case("constraints", normal(8, 8))(
    lambda a: (
        jax.lax.with_sharding_constraint(a * 2, NamedSharding(MESH, SPEC("x", "y"))).sum(0)
        + jax.jit(lambda a: a + 1, in_shardings=NamedSharding(MESH, SPEC("x")))(a)
    )
)


def close(found: Any, expected: Any, what: str) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype, what
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-4, err_msg=what)


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_jax(name: str) -> None:
    function, args, differentiable = CASES[name]
    expected = jax.jit(function)(*args)
    close(from_jax(function)(*args), expected, "at once")
    close(mw.jit(from_jax(function))(*args), expected, "jitted")
    if differentiable:
        numbers = tuple(n for n, x in enumerate(args) if x.dtype.kind == "f")
        loss = lambda *args: sum(jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in jax.tree.leaves(function(*args)))
        gradient = jax.grad(loss, argnums=numbers)
        expected = jax.jit(gradient)(*args)
        close(from_jax(gradient)(*args), expected, "differentiated by JAX")
        close(mw.jit(mw.grad(from_jax(loss), argnums=numbers))(*args), expected, "differentiated here")


def test_loops_keep_their_length_and_equations_their_lines() -> None:
    def layers(ws: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()  # the line

    program = from_jax(jax.grad(layers), normal(12, 8, 8), normal(4, 8))
    loops = [eqn for eqn in program.eqns if eqn.op.name == "scan"]
    assert [eqn.params["length"] for eqn in loops] == [12, 12]
    line = layers.__code__.co_firstlineno + 1
    assert {eqn.source.line for loop in loops for eqn in loop.params["body"].eqns if eqn.source} == {line}


def test_scopes_directions_and_the_lines_that_led_there() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    def loss(x: Any, w: Any) -> Any:
        @jax.checkpoint
        def body(x: Any) -> Any:
            with jax.named_scope("layer"):
                return jnp.sin(product(x, w))

        with jax.named_scope("net"):
            return (body(x) ** 2).sum()

    program = from_jax(jax.grad(loss), normal(4, 4), normal(4, 4))
    inner = next(eqn for eqn in program.eqns if eqn.op.name == "checkpoint").params["program"].eqns
    found = [eqn.source for eqn in (*program.eqns, *inner) if eqn.op.name == "dot_general" and eqn.source]
    assert {(one.call.scopes, one.call.direction) for one in found} == {
        (("net", "layer"), "forward"), (("net", "layer"), "recomputed"), (("net", "layer"), "backward")
    }  # fmt: skip
    start = loss.__code__.co_firstlineno
    assert [one.line for one in found[0].stack()][:2] == [product.__code__.co_firstlineno + 1, start + 4]


def test_laid_out_and_explained() -> None:
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    put = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    params, x = {"up": normal(8, 32), "down": normal(32, 8)}, normal(16, 8)
    shardings = ({"up": put(None, "model"), "down": put("model")}, put("data"))
    step = mw.jit(from_jax(jax.value_and_grad(loss)), in_shardings=shardings)
    close(step(params, x), jax.value_and_grad(loss)(params, x), "on a mesh")
    compiled = step.lower(params, x).compile()
    assert {one.source.line for one in compiled.collectives} == {loss.__code__.co_firstlineno + 1}


def test_a_scan_of_jax_is_laid_out_as_one_of_ours() -> None:
    """Bytes of a step over layers, scanned, against the layers written out."""

    def loss(ws: Any, x: Any, scanned: bool) -> Any:
        layer = lambda c, w: (c + jnp.tanh(c @ w["up"]) @ w["down"], None)
        if scanned:
            return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)
        for n in range(4):
            x, _ = layer(x, {name: w[n] for name, w in ws.items()})
        return jnp.mean(x**2)

    put = lambda x, *spec: jax.device_put(x, NamedSharding(MESH, SPEC(*spec)))
    ws = {"up": put(normal(4, 32, 64), None, None, "y"), "down": put(normal(4, 64, 32), None, "y")}
    x = put(normal(64, 32), "x")
    received = []
    for scanned in (True, False):
        step = jit(jax.value_and_grad(lambda ws, x, scanned=scanned: loss(ws, x, scanned)))
        close(step(ws, x), jax.jit(jax.value_and_grad(lambda ws, x: loss(ws, x, False)))(ws, x), "scanned")
        received.append(
            sum(one.bytes_received_per_device * one.times for one in step.lower(ws, x).compile().collectives)
        )
    assert received[0] <= 1.5 * received[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    scale: Any


def test_containers_that_jax_knows() -> None:
    layer = Layer(normal(3, 3), normal(3))
    function = lambda layer, x: {"y": Layer((x @ layer.weight).sum(), layer.scale * 2)}
    found = from_jax(function)(layer, normal(2, 3))
    assert isinstance(found["y"], Layer)
    register_containers({"layers": [layer]}, found)
    gradient = mw.jit(mw.grad(from_jax(lambda layer, x: (x @ layer.weight).sum() + layer.scale.sum())))
    x = normal(2, 3)
    close(gradient(layer, x).weight, np.broadcast_to(x.sum(0)[:, None], (3, 3)), "of a container")


def test_arrays_and_structs_of_jax_are_laid_out_as_jax_has_them() -> None:
    put = lambda x, *spec: jax.device_put(x, NamedSharding(MESH, SPEC(*spec)))
    w, x = put(normal(8, 4), None, "y"), put(normal(16, 8), "x")
    step = mw.jit(from_jax(lambda w, x, s: jnp.tanh(x @ w) * s))
    compiled = step.lower(w, x, jnp.float32(2.0)).compile()
    assert [str(one.spec) for one in compiled.input_shardings[0]] == ["P(None, 'y')", "P('x', None)", "P()"]
    assert str(mw.typeof(compiled(w, x, 2.0))) == "float32[16@x,4@y]"
    found = step(w, x, jnp.float32(2.0))
    assert str(mw.typeof(found)) == "float32[16@x,4@y]"
    close(found, np.tanh(np.asarray(x) @ np.asarray(w)) * 2, "where JAX had it")
    struct = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    same = step.lower(struct(w), struct(x), jax.ShapeDtypeStruct((), jnp.float32)).compile()
    assert same.input_shardings == compiled.input_shardings
    one = step.lower(jnp.ones((8, 4)), jnp.ones((16, 8)), 2.0).compile()  # on the default device, which is none of ours
    np.testing.assert_allclose(np.asarray(one(np.asarray(w), np.asarray(x), 2.0)), np.asarray(found), rtol=1e-6)


def test_explicit_axes_of_jax() -> None:
    """JAX checks the specs of a shard_map, and gradients over a split batch, against the types of its arguments."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, SPEC(*spec)))

    @jax.shard_map(mesh=mesh, in_specs=(SPEC("x"), SPEC(None, "y")), out_specs=SPEC("x", "y"))
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    def loss(w: Any, x: Any) -> Any:
        assert jax.typeof(x).sharding.spec == SPEC("x", None)
        return jnp.mean(jnp.einsum("bf,gf->bg", layer(x, w), w, out_sharding=SPEC("x", None)) ** 2)

    args = put(normal(8, 12), None, "y"), put(normal(4, 8), "x")
    with jax.set_mesh(mesh):
        expected = jax.jit(jax.value_and_grad(loss))(*args)
        close(mw.jit(from_jax(jax.value_and_grad(loss)))(*args), expected, "jitted")
        compiled = mw.jit(from_jax(jax.value_and_grad(loss))).lower(*args).compile()
        close(compiled(*args), expected, "compiled")
        close(mw.jit(mw.value_and_grad(from_jax(loss)))(*args), expected, "differentiated here")
    assert {(one.axes, one.kind) for one in compiled.collectives} == {(("y",), "all_reduce"), (("x",), "all_reduce")}


def test_keys_of_jax_are_arguments_and_results() -> None:
    key, x = jax.random.key(3), normal(4)

    def noisy(key: Any, x: Any) -> Any:
        key, own = jax.random.split(key)
        return x + jax.random.normal(own, (4,)), key

    def stacked(keys: Any) -> Any:
        return jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)

    expected, following = noisy(key, x)
    step = mw.jit(from_jax(noisy))
    for found, again in (from_jax(noisy)(key, x), step(key, x), step.lower(key, x).compile()(key, x)):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6)
        assert again.shape == () and again.dtype == mw.random.key_dtype()
        np.testing.assert_array_equal(np.asarray(mw.random.key_data(again)), jax.random.key_data(following))
    np.testing.assert_allclose(np.asarray(step(again, x)[0]), np.asarray(noisy(following, x)[0]), rtol=1e-6)
    keys = jax.random.split(key, 3)
    np.testing.assert_allclose(np.asarray(mw.jit(from_jax(stacked))(keys)), np.asarray(stacked(keys)), rtol=1e-6)
    gradient = mw.jit(mw.grad(from_jax(lambda key, x: (noisy(key, x)[0] ** 2).sum()), 1))(key, x)
    np.testing.assert_allclose(np.asarray(gradient), 2 * np.asarray(expected), rtol=1e-6)
    with pytest.raises(MeshwrightError) as error:
        step(jax.random.key(0, impl="rbg"), x)
    assert error.value.what == "Random numbers of key<rbg> are not those of this package."


def test_errors() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(MeshwrightError) as error:
        from_jax(printing)(mnp.ones(2))
    assert error.value.what in ("JAX's debug_callback cannot become part of a program.",
                                "JAX's debug_print cannot become part of a program.")  # fmt: skip
    assert error.value.why == "it calls back into Python while the program runs"
    assert error.value.fix == "return the value from the function, and look at it there"
    with pytest.raises(MeshwrightError) as error:
        from_jax(lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), (2,)))(mnp.ones(2))
    assert error.value.what == "Random numbers of key<rbg> are not those of this package."
    assert error.value.fix == "jax.random.key(seed, impl='threefry2x32')"
    with pytest.raises(MeshwrightError) as error:
        from_jax(lambda x: x + (jax.random.key(0) == jax.random.key(1)))(mnp.ones(2))
    assert error.value.what == "JAX's eq of random keys cannot become part of a program."
    assert error.value.why == "keys are split, moved and drawn from here, and nothing else is known of them"
    assert error.value.fix == "use their words: jax.random.key_data(key)"
    words = lambda seed: jax.random.key_data(jax.random.key(seed))
    fixed = from_jax(lambda x: x + (words(0) == words(1)))(mnp.ones(2))
    np.testing.assert_array_equal(np.asarray(fixed), 1 + (words(0) == words(1)))
    with pytest.raises(MeshwrightError) as error:
        from_jax(jax.scipy.linalg.schur)(mnp.eye(2))
    assert error.value.what == "JAX's schur cannot become part of a program."
    with pytest.raises(MeshwrightError) as error:
        from_jax(3)  # type: ignore[arg-type]
    assert error.value.what == "from_jax is given 3, which is not a function."

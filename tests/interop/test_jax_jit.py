"""``interop.jax.jit`` against ``jax.jit``: values, where results are, containers, keys, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshwright as mw
from meshwright.errors import DonatedError, MeshError, MeshwrightError, ShapeError, ShardingError, TreeError
from meshwright.interop.jax import jit
from meshwright.interop.jax_jit import _array_class


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


class State(NamedTuple):
    count: Any
    mean: Any


@jax.tree_util.register_dataclass
@dataclass
class Model:
    layers: list[Any]
    scale: Any


def model() -> Model:
    rng = np.random.default_rng(0)
    layers = [
        {"a": jnp.asarray(rng.normal(size=(16, 32)) * 0.2), "b": jnp.asarray(rng.normal(size=(32, 16)) * 0.2)}
        for _ in range(2)
    ]
    return Model([mw.tree.map(lambda x: x.astype(jnp.float32), layer) for layer in layers], jnp.float32(1.5))


def loss(params: Model, x: Any) -> Any:
    y = x
    for layer in params.layers:
        y = y + jnp.tanh(y @ layer["a"]) @ layer["b"]
    return jnp.mean((params.scale * y - 1) ** 2)


def step(params: Model, state: State, x: Any, key: Any) -> Any:
    key, noise = jax.random.split(key)
    value, gradient = jax.value_and_grad(loss)(params, x + 0.1 * jax.random.normal(noise, x.shape))
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradient)
    return value, jax.tree.map(lambda p, m: p - 0.1 * m, params, mean), State(state.count + 1, mean), key


def placed(mesh: Any, kind: str) -> tuple[Any, ...]:
    specs = {"dp": ((), ()), "tp": ((None, "model"), ("model",)), "fsdp": (("data",), ("data",))}[kind]
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    whole = model()
    params = Model(
        [{"a": put(layer["a"], *specs[0]), "b": put(layer["b"], *specs[1])} for layer in whole.layers], put(whole.scale)
    )
    state = State(put(jnp.int32(0)), jax.tree.map(jnp.zeros_like, params))
    x = np.random.default_rng(1).normal(size=(64, 16)).astype(np.float32)
    return params, state, put(x, "data"), put(jax.random.key(3))


def same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["dp", "tp", "fsdp"])
def test_a_training_loop_is_that_of_jax(mesh: Any, kind: str) -> None:
    ours, theirs = jit(step), jax.jit(step)
    mine = yours = placed(mesh, kind)
    for _ in range(3):
        value, *rest = ours(*mine)
        expected, *others = theirs(*yours)
        mine, yours = (*rest[:2], mine[2], rest[2]), (*others[:2], yours[2], others[2])
        same([value, mine], [expected, yours])
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(mine))
    assert mine[0].layers[0]["a"].sharding.spec == placed(mesh, kind)[0].layers[0]["a"].sharding.spec


def test_what_was_compiled_explains_itself(mesh: Any) -> None:
    args = placed(mesh, "dp")
    compiled = jit(step).lower(*args).compile()
    assert "all_reduce" in compiled.explain()
    assert compiled.explain_sharding("params['layers']['0']['a']")
    same(compiled(*args), jax.jit(step)(*args))


def test_lowered_from_types_alone(mesh: Any) -> None:
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), placed(mesh, "tp"))
    args = placed(mesh, "tp")
    same(jit(step).lower(*types).compile()(*args), jax.jit(step)(*args))


def test_shardings_that_are_asked_for(mesh: Any) -> None:
    on = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))
    f = lambda w, x: (x @ w["a"], {"sum": w["a"].sum(), "w": w["a"] * 2})
    args = {"a": jnp.ones((16, 32))}, jnp.ones((8, 16))
    shardings = {"in_shardings": (on("data"), on()), "out_shardings": (on("data"), {"sum": on(), "w": on("model")})}
    found, expected = jit(f, **shardings)(*args), jax.jit(f, **shardings)(*args)
    same(found, expected)
    assert [x.sharding.spec for x in jax.tree.leaves(found)] == [x.sharding.spec for x in jax.tree.leaves(expected)]


def test_static_named_and_donated_arguments() -> None:
    f = lambda x, n, *, power, scale: (x * scale) ** power + n
    call: Callable[..., Any] = jit(f, static_argnums=1, static_argnames="power", donate_argnums=0)
    for n, power in [(1, 2), (2, 2), (1, 3)]:
        x = jnp.arange(4.0)
        np.testing.assert_allclose(call(x, n, power=power, scale=2.0), f(np.arange(4.0), n, power=power, scale=2.0))
        assert x.is_deleted()


def test_inside_of_a_larger_function(mesh: Any) -> None:
    on = NamedSharding(mesh, PartitionSpec("data"))
    f = jit(lambda x: jnp.tanh(x).sum(0), in_shardings=on)
    larger = lambda g: lambda x: 2 * g(x + 1)
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), on)
    np.testing.assert_allclose(jax.jit(larger(f))(x), jax.jit(larger(lambda x: jnp.tanh(x).sum(0)))(x), rtol=1e-6)


def test_whoever_is_called_first_may_be_traced(mesh: Any) -> None:
    _array_class.cache_clear()
    on = NamedSharding(mesh, PartitionSpec("data"))
    f = jit(lambda x: x * 2, in_shardings=on)
    np.testing.assert_array_equal(jax.jit(lambda x: f(x) + 1)(jnp.arange(4.0)), [1, 3, 5, 7])
    np.testing.assert_array_equal(f(jnp.arange(4.0)), [0, 2, 4, 6])


def test_static_arguments_of_other_types_are_others() -> None:
    f = lambda x, n: x * n / 2 if isinstance(n, float) else x * n // 2
    ours = jit(f, static_argnums=-1)
    for n in (1, 1.0, True):
        np.testing.assert_array_equal(ours(jnp.arange(3.0), n), jax.jit(f, static_argnums=-1)(jnp.arange(3.0), n))


def test_what_jax_is_told_between_calls_counts() -> None:
    ours, theirs = (make(lambda x: jnp.sin(x).astype(float)) for make in (jit, jax.jit))
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            x = np.arange(3.0)
            assert ours(x).dtype == theirs(x).dtype


@pytest.mark.parametrize("name", ["weak", "key", "device", "keys"])
def test_types_and_devices_of_results(name: str) -> None:
    f, args = {
        "weak": (lambda s: s * 2, (1.5,)),
        "key": (lambda key: jax.random.normal(key, (4,)), (jax.random.key(0),)),
        "device": (lambda x: x + 1, (jax.device_put(jnp.ones(3), jax.devices()[3]),)),
        "keys": (jax.random.split, (jax.random.key(0),)),
    }[name]
    found, expected = jit(f)(*args), jax.jit(f)(*args)
    same(found, expected)
    assert (str(jax.typeof(found)), getattr(found, "weak_type", False)) == (
        str(jax.typeof(expected)),
        getattr(expected, "weak_type", False),
    )
    assert found.devices() == expected.devices()


def test_a_compiled_function_takes_what_it_was_compiled_for() -> None:
    x = jnp.ones(3)
    compiled = jit(lambda p, n: p["a"] * n, static_argnames="n").lower({"a": x}, n=3).compile()
    np.testing.assert_array_equal(compiled({"a": x}, n=3), [3.0, 3.0, 3.0])
    for args, kwargs in [(({"b": x},), {"n": 3}), (({"a": x},), {"n": 5}), (({"a": x}, 3), {})]:
        with raises(TreeError, "This compiled function cannot take these arguments."):
            compiled(*args, **kwargs)
    with raises(ShapeError, "This compiled function cannot take (float32[4])."):
        compiled({"a": jnp.ones(4)}, n=3)


def raises(kind: type[MeshwrightError], text: str) -> Any:
    return pytest.raises(kind, match=re.escape(text.strip()))


def test_errors(mesh: Any) -> None:
    with raises(ShardingError, "Under jax.jit the function must say where its arguments are."):
        jax.jit(jit(lambda x: x + 1))(jnp.ones(8))
    other = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    on = lambda m, *spec: jax.device_put(jnp.ones(8), NamedSharding(m, PartitionSpec(*spec)))
    with raises(MeshError, "The arguments are on 2 meshes."):
        jit(lambda x, y: x + y)(on(mesh, "data"), on(other, "x"))
    with raises(MeshError, "P('x',) is on no mesh."):
        jit(lambda x: x, in_shardings=PartitionSpec("x"))(jnp.ones(8))
    with raises(MeshwrightError, "in_shardings does not fit what it is for."):
        jit(lambda x: x["a"], in_shardings=({"b": NamedSharding(mesh, PartitionSpec())},))({"a": jnp.ones(8)})
    placed = jit(lambda x: x.sum(), in_shardings=NamedSharding(mesh, PartitionSpec()))
    for f in (placed, jit(lambda x: x.sum())):
        for transformed, what, instead in (
            (jax.grad(f), "differentiated", "jax.grad(f)"),
            (jax.jit(jax.grad(f)), "differentiated", "jax.grad(f)"),
            (lambda x, f=f: jax.vmap(f)(x[None]), "batched", "jax.vmap(f)"),
        ):
            with pytest.raises(MeshwrightError) as error:
                transformed(jnp.ones(8))
            assert error.value.what == f"A function that is partitioned here is not {what} by JAX."
            assert "test_jax_jit.py" in error.value.where
            assert error.value.why == "for JAX it is one op, of which only the code is known"
            assert error.value.fix == f"mw.interop.jax.jit({instead})"
    with raises(MeshwrightError, "A program of Meshwright is not differentiated by JAX."):
        jax.grad(jax.jit(placed))(jnp.ones(8))


@pytest.mark.parametrize("spread", [False, True])
def test_a_donated_array_is_not_an_argument_again(mesh: Any, spread: bool) -> None:
    """JAX itself ends the process here if the array is on several devices."""
    f = jit(lambda tree, y: jax.tree.map(lambda x: x + y, tree), donate_argnums=0)
    x, y = [jnp.ones(8)], jnp.ones(8)
    if spread:
        x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
    f(f(x, y), y)
    for call in (lambda: f(x, y), lambda: jit(lambda x: x * 2)(*x), lambda: f.lower([y], y).compile()(x, y)):
        with pytest.raises(DonatedError) as error:
            call()
        assert error.value.what == "This array float32[8] was donated to a jitted function and no longer has contents."
        assert "test_jax_jit.py" in error.value.where
        assert error.value.fix == "use the function's result instead, or do not donate this argument"


def test_the_gradient_of_an_embedding_is_summed_with_the_others(mesh: Any) -> None:
    """Although its rows would be in parts after fewer bytes, before the optimizer needs them everywhere."""

    def train(params: Any, mean: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.take(params["embed"], tokens, axis=0)
            return jnp.mean(jnp.tanh(hidden @ params["out"]) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        mean = jax.tree.map(lambda m, g: 0.9 * m + g * g, mean, gradient)
        return value, jax.tree.map(lambda p, g, m: p - 0.1 * g / jnp.sqrt(m + 1), params, gradient, mean), mean

    rng = np.random.default_rng(0)
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    params = {"embed": put(rng.normal(size=(512, 16)).astype(np.float32)), "out": put(np.ones((16, 8), np.float32))}
    args = params, jax.tree.map(jnp.zeros_like, params), put(rng.integers(0, 512, (16, 64)), "data")
    keep = put(0.0).sharding, *(jax.tree.map(lambda x: x.sharding, args[0]),) * 2
    compiled = jit(train, out_shardings=keep).lower(*args).compile()
    assert [(one.kind, len(one.values)) for one in compiled.collectives] == [("all_reduce", 3)]
    same(compiled(*args), jax.jit(train, out_shardings=keep)(*args))

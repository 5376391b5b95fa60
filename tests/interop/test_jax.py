"""Functions of JAX as programs, and compiled programs as functions of JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.trace import run
from meshwright.errors import MeshwrightError, TreeError
from meshwright.interop.jax import from_jax, to_jax
from tests.interop.test_hlo_models import blocks, train_step


def test_a_function_of_jax() -> None:
    def f(params: Any, x: Any, *, scale: Any) -> Any:
        return {"y": jax.nn.softmax(x @ params["w"]) * scale}

    params, x = {"w": mnp.arange(12.0).reshape(3, 4) / 10, "unused": mnp.ones(2)}, mnp.ones((2, 3))
    program = from_jax(f, params, x, scale=mnp.ones(()))
    assert [t.shape for t in program.in_types] == [(2,), (3, 4), (2, 3), ()]
    (found,) = run(program, [params["unused"], params["w"], x, mnp.ones(())])
    expected = jax.nn.softmax(np.asarray(x) @ np.asarray(params["w"]))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


def test_a_train_step_by_xla() -> None:
    lowered, params, batch = train_step("mlp", "fully sharded and tensor parallel")
    compiled = lowered.compile()
    step = to_jax(compiled)
    expected = compiled(params, batch)
    found = step(*mw.tree.map(lambda x: jnp.asarray(np.asarray(x)), (params, batch)))
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        for shard, block in zip(x.addressable_shards, blocks(y), strict=True):
            np.testing.assert_allclose(np.asarray(shard.data), block, rtol=1e-4, atol=1e-5)


def test_dims_that_do_not_divide() -> None:
    mesh = mw.make_mesh((4,), ("i",))
    x = mw.device_put(mnp.arange(10.0), mw.NamedSharding(mesh, P("i")))
    compiled = mw.jit(lambda x: mnp.cumsum(x) * 2).lower(x).compile()
    np.testing.assert_allclose(to_jax(compiled)(jnp.arange(10.0)), np.cumsum(np.arange(10.0)) * 2)


def test_an_axis_that_is_cut() -> None:
    mesh = mw.make_mesh((4,), ("i",))
    x = mw.device_put(mnp.arange(8.0), mw.NamedSharding(mesh, P("i")))
    compiled = mw.jit(lambda x: x.reshape(2, 4).sum(0)).lower(x).compile()
    np.testing.assert_allclose(to_jax(compiled)(jnp.arange(8.0)), np.arange(8.0).reshape(2, 4).sum(0))
    assert "all-reduce(" in compiled.as_text()


def test_a_mesh_of_one_device() -> None:
    mesh = mw.make_mesh((1, 1), ("i", "j"))
    x = mw.device_put(mnp.arange(6.0).reshape(2, 3), mw.NamedSharding(mesh, P("i", "j")))
    by_hand = mw.shard_map(
        lambda x: lax.psum(x, "i") + lax.axis_index("j"), mesh=mesh, in_specs=P("i", "j"), out_specs=P(None, "j")
    )
    compiled = mw.jit(lambda x: by_hand(x).sum(0)).lower(x).compile()
    np.testing.assert_allclose(to_jax(compiled)(jnp.arange(6.0).reshape(2, 3)), [3.0, 5.0, 7.0])


def on(sizes: tuple[int, ...], *spec: Any) -> Any:
    names = ("i", "j")[: len(sizes)]
    return mw.device_put(mnp.arange(32.0).reshape(8, 4) / 8, mw.NamedSharding(mw.make_mesh(sizes, names), P(*spec)))


def statistics(x: Any) -> Any:
    return {"sum": x.sum(0), "square": (x * x).sum(), "rows": x.sum(1), "count": (x > 1).sum(), "double": x * 2}


def choose(x: Any) -> Any:
    yes = lambda x: (x.sum(0), (x * x).sum())
    return lax.cond(x.mean() > 1, yes, lambda x: (x.max(0), x.min()), x)


def until(x: Any) -> Any:
    step = lambda c: (c[0] + 1, c[1] - c[1].mean(0), c[1].sum())
    return lax.while_loop(lambda c: c[0] + 0 * c[1].sum() < 3, step, (0, x, 0.0))


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + x.sum(0) * row.sum(), c.max()), x[0], x)


@pytest.mark.parametrize("sizes", [(1,), (4,), (1, 1), (4, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("function", [statistics, choose, until, scanned])
def test_several_results_sums_taken_together_and_meshes_with_axes_of_one_device(function: Any, sizes: Any) -> None:
    x = on(sizes, *("i", "j")[: len(sizes)])
    compiled = mw.jit(function).lower(x).compile()
    found, expected = to_jax(compiled)(jnp.asarray(np.asarray(x))), compiled(x)
    for one, other in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-5)
    if np.prod(sizes) == 1:
        assert compiled.collectives == []


def optimized(compiled: Any) -> str:
    """What XLA makes of the module that it is given."""
    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in compiled._types]
    return str(jax.jit(to_jax(compiled)).lower(*types).compile().as_text())


def test_sums_taken_together_are_one_collective_of_xla() -> None:
    x = on((4,), "i")
    compiled = mw.jit(lambda x: (x.sum(0), (x * x).sum(), mnp.tanh(x).sum(0))).lower(x).compile()
    (only,) = compiled.collectives
    assert only.kind == "all_reduce" and only.bytes_received_per_device == 2 * 3 * (4 + 1 + 4)
    text = optimized(compiled)
    (line,) = [line for line in text.splitlines() if " all-reduce(" in line]
    assert sorted(re.findall(r"f32\[\d*\]", line.split(" all-reduce(")[0])) == ["f32[4]", "f32[4]", "f32[]"]


@pytest.mark.parametrize("shape", [(8, 6), (3, 6)])
@pytest.mark.parametrize("spec", [P(("i", "j")), P("j", "i"), P()])
def test_what_depends_on_no_argument_is_made_where_a_constraint_wants_it(shape: Any, spec: Any) -> None:
    mesh = mw.make_mesh((2, 4), ("i", "j"))
    split = lambda x: lax.with_sharding_constraint(x, mw.NamedSharding(mesh, spec))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placed = mw.device_put(x, mw.NamedSharding(mesh, P("i")))
    for function, expected in (
        (mw.grad(lambda x: split(x).sum()), jax.grad(lambda x: x.sum())(x)),
        (lambda x: x + split(mnp.ones(shape) * 2), x + 2),
        (lambda x: split(split(mnp.full(shape, 3.0)).T @ x), np.full(shape, 3.0).T @ x),
    ):
        compiled = mw.jit(function).lower(placed).compile()
        np.testing.assert_allclose(to_jax(compiled)(jnp.asarray(x)), expected, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(compiled(placed)), expected, rtol=1e-5)


def test_a_shard_map_of_arrays_that_are_on_no_mesh() -> None:
    mesh = mw.make_mesh((2, 4), ("i", "j"))
    share = lambda x: lax.psum(x, "i") / lax.psum(x.sum(), ("i", "j"))
    mapped = mw.shard_map(share, mesh=mesh, in_specs=P("i", "j"), out_specs=P(None, "j"))
    x = mnp.arange(32.0).reshape(8, 4)
    compiled = mw.jit(lambda x: mapped(x + 1) * 2).lower(x).compile()
    np.testing.assert_allclose(to_jax(compiled)(jnp.asarray(np.asarray(x))), np.asarray(compiled(x)), rtol=1e-5)


def test_errors() -> None:
    mesh = mw.make_mesh((4,), ("i",))
    x = mw.device_put(mnp.arange(8.0), mw.NamedSharding(mesh, P("i")))
    compiled = mw.jit(lambda x: x * 2).lower(x).compile()
    with pytest.raises(MeshwrightError) as error:
        to_jax(compiled, jax.devices()[:2])
    assert error.value.what == "The function was compiled for 4 devices, and JAX has 2."
    assert error.value.fix == 'a mesh of 2, or jax.config.update("jax_num_cpu_devices", 4) before JAX is used'
    with pytest.raises(MeshwrightError) as error:
        to_jax(mw.jit(lambda x: x * 2))  # type: ignore[arg-type]
    assert error.value.what == "to_jax is given a Jitted."
    assert error.value.why == "it runs what was compiled, for arguments that are known"
    assert error.value.fix == "to_jax(mw.jit(f).lower(*args).compile())"
    with pytest.raises(MeshwrightError) as error:
        to_jax(compiled)(jnp.ones(3))
    assert error.value.what == "This compiled function cannot take (float32[3])."
    assert error.value.why == "it was compiled for (float32[8])"
    with pytest.raises(TreeError) as error:
        to_jax(compiled)({"a": jnp.ones(8)})
    assert error.value.what == "This compiled function cannot take these arguments."
    assert error.value.why == (
        "it was compiled for the containers PyTreeSpec(((*,), {})), and these are PyTreeSpec((({'a': *},), {}))"
    )
    with pytest.raises(TreeError) as error:
        to_jax(compiled)(object())
    assert error.value.what == "An argument is not an array or a number: its type is object."
    assert error.value.why == "the leaves of what goes into a compiled function must be arrays or numbers"
    assert error.value.fix == (
        "pass an array; mw.interop.jax.register_containers(x) makes a container known that JAX knows"
    )
    for transform, what, fix in (
        (jax.vmap, "A program of Meshwright is not batched by JAX.", "mw.vmap(f)"),
        (jax.grad, "A program of Meshwright is not differentiated by JAX.", "mw.grad(f)"),
    ):
        with pytest.raises(MeshwrightError) as error:
            transform(lambda x: to_jax(compiled)(x).sum())(jnp.ones((2, 8) if transform is jax.vmap else 8))
        assert error.value.what == what
        assert error.value.why == "it is compiled: for JAX it is one op, of which only the code is known"
        assert error.value.fix == f"to_jax(mw.jit({fix}).lower(*args).compile())"


def test_under_jit_it_is_an_op_like_others() -> None:
    x = on((2, 4), "i", "j")
    compiled = mw.jit(statistics).lower(x).compile()
    f, given = to_jax(compiled), jnp.asarray(np.asarray(x))
    found = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, f(x - 1)))(given + 1)
    expected = compiled(x)
    for name in expected:
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(expected[name]) + 1, rtol=1e-5)


def test_numbers_of_python_are_arrays_of_jax() -> None:
    compiled = mw.jit(lambda x, n: x * n).lower(2.0, 3).compile()
    assert to_jax(compiled)(1.5, 4) == 6.0

"""Functions of JAX as programs, and compiled programs as functions of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.trace import run
from meshwright.errors import MeshwrightError
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


def test_errors() -> None:
    mesh = mw.make_mesh((4,), ("i",))
    x = mw.device_put(mnp.arange(8.0), mw.NamedSharding(mesh, P("i")))
    compiled = mw.jit(lambda x: x * 2).lower(x).compile()
    with pytest.raises(MeshwrightError) as error:
        to_jax(compiled, jax.devices()[:2])
    assert error.value.what == "The function was compiled for 4 devices, and JAX has 2."
    assert error.value.fix == "a mesh of 2, or XLA_FLAGS=--xla_force_host_platform_device_count=4 for JAX on a CPU"
    with pytest.raises(MeshwrightError) as error:
        to_jax(compiled)(jnp.ones(3))
    assert error.value.what == "This compiled function cannot take (float32[3])."
    assert error.value.why == "it was compiled for (float32[8])"

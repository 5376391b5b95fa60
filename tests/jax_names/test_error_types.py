"""Mistakes that people make in JAX raise errors of ours that are also of the Python types that JAX raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright.jax
from meshwright.errors import MeshwrightError

TYPES = (ValueError, TypeError, RuntimeError, IndexError, KeyError, NotImplementedError, AttributeError)


def mistakes(lib: Any) -> dict[str, Callable[[], Any]]:
    """Calls that are wrong, on one of the two packages."""
    jnp, lax, spec, named = lib.numpy, lib.lax, lib.sharding.PartitionSpec, lib.sharding.NamedSharding
    kinds = lib.sharding.AxisType
    mesh = lib.make_mesh((2, 4), ("x", "y"), axis_types=(kinds.Auto,) * 2)
    explicit = lib.make_mesh((2, 4), ("x", "y"), axis_types=(kinds.Explicit,) * 2)
    x = jnp.ones((8, 8))

    def mapped(function: Any, in_specs: Any, out_specs: Any) -> Any:
        return lib.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)

    def donated() -> Any:
        y = jnp.ones((8, 8))
        lib.jit(lambda x: x + 1, donate_argnums=0)(y)
        return y + 1

    def ambiguous() -> Any:
        put = lambda *axes: lib.device_put(np.ones((8, 8), np.float32), named(explicit, spec(*axes)))
        with lib.set_mesh(explicit):
            return lib.jit(lambda a, b: a @ b)(put("x", "y"), put("y", "x"))

    return {
        "a spec of too many dims": lambda: lib.device_put(x, named(mesh, spec("x", "y", None, None))),
        "a psum that is missing": lambda: mapped(lambda a: a.sum(), spec("x"), spec())(x),
        "out_specs of too many dims": lambda: mapped(lambda a: a.sum(), spec("x"), spec("x"))(x),
        "rows that do not divide": lambda: mapped(lambda a: a, spec("y"), spec("y"))(jnp.ones(3)),
        "an axis that is not there": lambda: named(mesh, spec("z")),
        "an axis used twice": lambda: named(mesh, spec("x", "x")),
        "an ambiguous matmul": ambiguous,
        "a donated array": donated,
        "matrices that do not fit": lambda: jnp.ones((2, 3)) @ jnp.ones((4, 5)),
        "shapes that do not fit": lambda: jnp.ones((2, 3)) + jnp.ones(4),
        "operands of lax": lambda: lax.add(jnp.ones(3), jnp.ones(4)),
        "a shape of another size": lambda: jnp.ones(6).reshape(4),
        "an if of a tracer": lambda: lib.jit(lambda x: 1 if x > 0 else 2)(1.0),
        "a traced mask": lambda: lib.jit(lambda x: x[x > 0])(jnp.ones(3)),
        "a tracer to NumPy": lambda: lib.jit(lambda x: np.asarray(x))(1.0),
        "the gradient of a vector": lambda: lib.grad(lambda x: x)(jnp.ones(3)),
        "the gradient of an integer": lambda: lib.grad(lambda x: x * 1.0)(3),
        "a carry that changes": lambda: lax.scan(lambda c, _: (c.astype("int32"), None), jnp.ones(3), None, length=2),
        "branches that differ": lambda: lax.cond(True, lambda: jnp.ones(3), lambda: jnp.ones(4)),
        "an axis outside": lambda: lax.psum(x, "q"),
        "a static list": lambda: lib.jit(lambda x, n: x, static_argnums=1)(x, [1]),
        "batches of two sizes": lambda: lib.vmap(lambda a, b: a + b)(jnp.ones(3), jnp.ones(4)),
        "other containers": lambda: lib.tree.map(lambda a, b: a + b, {"a": 1}, {"b": 2}),
        "rows of two lengths": lambda: jnp.concatenate([jnp.ones((2, 3)), jnp.ones((2, 4))]),
        "an einsum": lambda: jnp.einsum("ij,jk->ik", jnp.ones((2, 3)), jnp.ones((4, 5))),
        "no key": lambda: lib.random.normal(jnp.ones(3), (2,)),
    }


OURS, THEIRS = mistakes(meshwright.jax), mistakes(jax)


@pytest.mark.parametrize("name", OURS)
def test_a_mistake_raises_the_types_that_jax_raises(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        THEIRS[name]()
    with pytest.raises(MeshwrightError) as ours:
        OURS[name]()
    assert ours.value.why and ours.value.fix and ours.value.where
    assert [t for t in TYPES if isinstance(theirs.value, t) and not isinstance(ours.value, t)] == []


def test_a_traced_mask_is_caught_by_the_name_that_jax_has_for_it() -> None:
    for lib in (meshwright.jax, jax):
        with pytest.raises(lib.errors.NonConcreteBooleanIndexError):
            mistakes(lib)["a traced mask"]()

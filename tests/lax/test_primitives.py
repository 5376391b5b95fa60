"""JAX's primitives as objects: applied with JAX's parameters, known by their names, and compared by policies."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as mjax

X = np.random.default_rng(0).uniform(0.2, 2.0, (4, 4)).astype("f")
WHOLE = np.random.default_rng(0).integers(0, 99, (4, 4)).astype("int32")

# A primitive, its operands, and its parameters as JAX has them.
CALLS = {
    "exp_p": ([X], {"accuracy": None}),
    "add_p": ([X, X], {}),
    "max_p": ([X, X], {}),
    "igamma_p": ([X, X], {}),
    "zeta_p": ([X + 1, X], {}),
    "reduce_sum_p": ([X], {"axes": (1,), "out_sharding": None}),
    "reduce_xor_p": ([WHOLE], {"axes": (0,)}),
    "transpose_p": ([X], {"permutation": (1, 0)}),
    "broadcast_in_dim_p": ([X], {"shape": (2, 4, 4), "broadcast_dimensions": (1, 2), "sharding": None}),
    "convert_element_type_p": ([X], {"new_dtype": np.dtype("int32"), "weak_type": False, "sharding": None}),
    "dot_general_p": ([X, X], {
        "dimension_numbers": (((1,), (0,)), ((), ())), "precision": None, "preferred_element_type": np.dtype("f"),
        "out_sharding": None,
    }),
    "select_n_p": ([X > 1, X, 2 * X], {}),
    "rev_p": ([X], {"dimensions": (0,)}),
    "cumsum_p": ([X], {"axis": 0, "reverse": True}),
    "sort_p": ([X], {"dimension": 1, "is_stable": True, "num_keys": 1}),
    "clamp_p": ([np.float32(0.5), X, np.float32(1.0)], {}),
    "squeeze_p": ([X[None]], {"dimensions": (0,)}),
    "unstack_p": ([X], {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_primitive_is_applied_with_the_parameters_of_jax(name: str) -> None:
    operands, params = CALLS[name]
    theirs: Any = getattr(jax.lax, name)
    ours: Any = getattr(mjax.lax, name)
    assert (ours.name, ours.multiple_results) == (theirs.name, theirs.multiple_results)
    wanted, found = theirs.bind(*map(jax.numpy.asarray, operands), **params), ours.bind(*operands, **params)
    assert isinstance(found, list) == theirs.multiple_results
    for x, y in zip(found if isinstance(found, list) else [found], wanted if theirs.multiple_results else [wanted]):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def test_a_primitive_of_linear_algebra() -> None:
    found = mjax.lax.linalg.cholesky_p.bind(X @ X.T + np.eye(4, dtype="f"))
    np.testing.assert_allclose(found, np.linalg.cholesky(X @ X.T + np.eye(4, dtype="f")), rtol=1e-4, atol=1e-5)
    assert mjax.lax.linalg.lu_p.multiple_results


def test_a_primitive_is_one_object_and_has_a_name() -> None:
    assert mjax.lax.exp_p is mjax.lax.exp_p
    assert str(mjax.lax.scatter_add_p) == str(jax.lax.scatter_add_p) == "scatter-add"


def test_a_policy_compares_primitives() -> None:
    seen = []

    def keep(primitive: Any, *_: Any, **__: Any) -> bool:
        seen.append(primitive)
        return primitive is mjax.lax.dot_general_p

    def layer(x: Any) -> Any:
        return mjax.numpy.sin(x @ x).sum()

    slope = mjax.grad(mjax.checkpoint(layer, policy=keep))(X)
    np.testing.assert_allclose(slope, jax.grad(lambda x: jax.numpy.sin(x @ x).sum())(X), rtol=1e-4, atol=1e-5)
    assert set(seen) == {mjax.lax.dot_general_p, mjax.lax.cos_p}


def test_a_primitive_that_holds_a_program_is_not_applied() -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        mjax.lax.scan_p.bind(X)
    assert str(error.value).partition("\n")[0] == "The primitive scan cannot be applied by itself."
    assert error.value.fix == "the function of its name in jax.lax"

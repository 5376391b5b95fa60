"""Random programs in JAX's words give what JAX gives: values, dtypes, weak types, layouts, refusals."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

import meshwright.jax as ours
from meshwright.interop.jax import from_jax
from tests.jax_names.random_programs import check

X = np.arange(32.0, dtype=np.float32).reshape(8, 4) / 9


@pytest.fixture(autouse=True)
def eight_devices():
    ours.config.update("jax_num_cpu_devices", 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that do not fit, which both wrap around
        yield


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_some_programs_give_what_they_give_by_jax(explicit: bool):
    assert sum(check(seed, explicit) for seed in range(4)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("block", range(12))
def test_programs_give_what_they_give_by_jax(block: int, explicit: bool):
    assert sum(check(seed, explicit) for seed in range(100 + 20 * block, 120 + 20 * block)) >= 40


def test_what_is_set_whole_keeps_its_layout():
    def of(j: object) -> list[object]:
        mesh = j.make_mesh((2, 4), ("x", "y"), axis_types=(j.sharding.AxisType.Explicit,) * 2)
        with j.set_mesh(mesh):
            x = j.device_put(X[:, :1], j.P("x"))
            found = [x.at[..., 0].set(1), x.at[:].set(2.0), j.jit(lambda x: x.at[:, :1].set(3.0))(x)]
            return [(tuple(one.sharding.spec), np.asarray(one).tolist()) for one in found]

    assert of(ours) == of(jax)


@pytest.mark.parametrize("other", ["int8", "uint8", "bool", "int32", "bfloat16", "float16"])
def test_products_of_several_dtypes_are_read_from_jax(other: str):
    y = (X.T * 2).astype(jax.numpy.dtype(other))
    for x in (X, X.astype(np.int32)):
        for f in (lambda a, b: a @ b, lambda a, b: b @ a):
            actual, expected = from_jax(f)(x, y), f(jax.numpy.asarray(x), jax.numpy.asarray(y))
            assert (str(actual.dtype), actual.shape) == (str(expected.dtype), expected.shape)
            np.testing.assert_allclose(
                np.asarray(actual).astype(np.float64), np.asarray(expected).astype(np.float64), rtol=2e-2
            )

"""The order of NaN, zeros and ties, as XLA has it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from meshwright.core import dtypes
from meshwright.ops.sorting import sort, top_k

Array = np.ndarray[Any, Any]

SPECIAL = [1.0, np.nan, 3.0, -0.0, 0.0, -np.nan, -np.inf, np.inf, 0.0, -0.0, 3.0, -1.0]


def special(dtype: dtypes.DType) -> Array:
    """Values of a dtype whose order is easily got wrong, with ties."""
    if dtype == dtypes.BOOL:
        return np.array([True, False, True, True, False])
    if dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        return np.array([3, info.max, 0, info.min, 3, 1, info.max, info.min, info.max - 1], dtype)
    if dtypes.is_complex(dtype):
        parts = np.array(SPECIAL)
        return np.array([complex(re, im) for re in parts for im in parts[::-1]], dtype)
    return np.array(SPECIAL, np.float32).astype(dtype)


def bits(x: Any) -> Any:
    """What tells -0.0 from 0.0; NaNs count as equal."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return np.stack([bits(x.real), bits(x.imag)], -1)
    if not dtypes.is_float(x.dtype):
        return x
    return np.stack([np.signbit(x) & ~np.isnan(x), x.astype(np.float64)], -1)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.short_name)
def test_sort_orders_special_values_as_xla(dtype: dtypes.DType, x64: None) -> None:
    x = special(dtype)
    places = np.arange(x.size, dtype=np.int32)
    values, order = sort(x, places, dim=0, num_keys=1)
    expected_values, expected_order = lax.sort((jnp.asarray(x), places), num_keys=1)
    np.testing.assert_array_equal(order.data, expected_order)
    np.testing.assert_array_equal(bits(values.data), bits(expected_values))
    np.testing.assert_array_equal(bits(sort(x, dim=0, num_keys=1)[0].data), bits(expected_values))


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL if not dtypes.is_complex(d)], ids=lambda d: dtypes.short_name(d)
)
def test_top_k_orders_special_values_as_xla(dtype: dtypes.DType, x64: None) -> None:
    x = special(dtype)
    for k in (0, 1, 4, x.size):
        values, places = top_k(x, k=k)
        expected_values, expected_places = lax.top_k(jnp.asarray(x), k)
        np.testing.assert_array_equal(places.data, expected_places)
        np.testing.assert_array_equal(bits(values.data), bits(expected_values))


def test_equal_keys_stay_in_order() -> None:
    rng = np.random.default_rng(0)
    keys = [rng.integers(0, 3, (4, 50)).astype(dtype) for dtype in (np.int32, ml_dtypes.bfloat16)]
    places = np.broadcast_to(np.arange(50, dtype=np.int32), (4, 50))
    for count in (1, 2):
        ours = sort(*keys, places, dim=1, num_keys=count)
        theirs = lax.sort((*keys, places), dimension=1, num_keys=count)
        for actual, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(actual.data, expected)


def test_the_largest_of_many_are_found_without_ties_being_mixed() -> None:
    x = np.random.default_rng(0).integers(0, 5, (3, 1000)).astype(np.float32)
    values, places = top_k(x, k=300)
    expected_values, expected_places = lax.top_k(x, 300)
    np.testing.assert_array_equal(places.data, expected_places)
    np.testing.assert_array_equal(values.data, expected_values)

"""Reductions where samples must not go: ties, NaN, infinities, nothing to reduce, and second derivatives at zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import meshwright.engine.namespace  # noqa: F401
from meshwright.core import dtypes
from meshwright.core.trace import to_array, trace
from meshwright.errors import ShapeError
from meshwright.ops import reduction
from meshwright.ops.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from meshwright.ops.reduction import argmax, argmin, reduce_and, reduce_max, reduce_min, reduce_or, reduce_prod
from meshwright.transform.jvp import jvp_program

COUNTERPARTS = {cummax: lax.cummax, cummin: lax.cummin, cumprod: lax.cumprod, cumlogsumexp: lax.cumlogsumexp}


def pushed(function: Callable[[Any], Any], x: Any, *tangents: Any) -> Any:
    """The derivative of ``function`` at ``x`` along each of ``tangents``, one after the other."""
    for t in tangents:
        inner = function

        def function(x: Any, inner: Callable[[Any], Any] = inner, t: Any = t) -> Any:
            program, captured = trace(lambda v: [inner(v)], [to_array(x).type])
            outside = [None] * len(captured)
            return jvp_program(program, [*captured, to_array(x)], [*outside, to_array(t)])[1][0]

    return np.asarray(function(x).data)


def jax_pushed(function: Callable[[Any], Any], x: Any, *tangents: Any) -> Any:
    for t in tangents:
        function = lambda x, inner=function, t=t: jax.jvp(inner, (x,), (t,))[1]
    return np.asarray(function(x))


@pytest.mark.parametrize(("op", "counterpart"), [(reduce_max, lax.reduce_max), (reduce_min, lax.reduce_min)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_ties_share_the_derivative(op: Any, counterpart: Any, axes: tuple[int, ...]) -> None:
    x = np.array([[1, 3, 3], [2, 2, 2], [5, 4, 3]], np.float32)
    t = np.arange(9, dtype=np.float32).reshape(3, 3)
    actual = pushed(lambda v: op(v, axes=axes), x, t)
    np.testing.assert_allclose(actual, jax_pushed(lambda v: counterpart(v, axes), x, t), rtol=1e-6)
    assert np.isnan(pushed(lambda v: op(v, axes=(0,)), np.array([1, np.nan], np.float32), t[0, :2]))


@pytest.mark.parametrize("op", COUNTERPARTS, ids=str)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 13])
def test_running_reductions_of_repeated_elements_have_the_derivatives_of_jax(
    op: Any, backward: bool, length: int, x64: None
) -> None:
    generator = np.random.default_rng(length)
    x = generator.integers(0, 3, (2, length)).astype(np.float64)  # full of ties and zeros
    t, u = generator.standard_normal((2, 2, length))
    ours = lambda v: op(v, axis=1, reverse=backward)
    counterpart = lambda v: COUNTERPARTS[op](v, axis=1, reverse=backward)
    np.testing.assert_allclose(pushed(ours, x, t), jax_pushed(counterpart, x, t), rtol=1e-12, atol=1e-12)
    if op is cumprod and length > 1:
        np.testing.assert_allclose(pushed(ours, x, t, u), jax_pushed(counterpart, x, t, u), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2), ()])
def test_a_product_has_its_derivatives_at_zeros(zeros: int, axes: tuple[int, ...], x64: None) -> None:
    generator = np.random.default_rng(0)
    x, t, u = generator.standard_normal((3, 2, 3, 2))
    x.reshape(-1)[:zeros] = 0
    ours, counterpart = lambda v: reduce_prod(v, axes=axes), lambda v: lax.reduce_prod(v, axes)
    np.testing.assert_allclose(pushed(ours, x, t), jax_pushed(counterpart, x, t), rtol=1e-12, atol=1e-12)
    if axes:
        np.testing.assert_allclose(pushed(ours, x, t, u), jax_pushed(counterpart, x, t, u), rtol=1e-12, atol=1e-12)


def test_a_running_logsumexp_has_a_derivative_at_minus_infinity() -> None:
    x = np.array([-np.inf, -np.inf, 0.0, 1.0], np.float32)
    assert np.isfinite(pushed(lambda v: cumlogsumexp(v, axis=0, reverse=False), x, np.ones(4, np.float32))).all()
    np.testing.assert_allclose(
        cumlogsumexp(x, axis=0, reverse=False).data, [-np.inf, -np.inf, 0.0, np.log1p(np.e)], rtol=1e-6
    )


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_nothing_reduces_to_the_identity(dtype: Any, x64: None) -> None:
    x = np.zeros((0, 2), dtype)
    for name in ("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"):
        op = getattr(reduction, name)
        if dtype not in op.dtypes:
            continue
        out = op(x, axes=(0,)).data
        expected = np.asarray(getattr(lax, name)(x, (0,)))
        assert out.dtype == dtype
        np.testing.assert_array_equal(out.astype(expected.dtype), expected)


def test_nan_is_the_extreme_and_its_first_position() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [2, 5, 5, 1]], np.float32)
    for op, counterpart in ((argmax, lax.argmax), (argmin, lax.argmin)):
        np.testing.assert_array_equal(op(x, axis=1, dtype=dtypes.INT32).data, counterpart(x, 1, np.int32))
    assert np.isnan(reduce_max(x, axes=(1,)).data[0]) and np.isnan(reduce_min(x, axes=(1,)).data[0])
    np.testing.assert_array_equal(cummax(x, axis=1, reverse=False).data, lax.cummax(x, 1))
    np.testing.assert_array_equal(cummin(x, axis=1, reverse=True).data, lax.cummin(x, 1, reverse=True))


def test_bits_are_reduced_and_bools_too() -> None:
    bits = np.array([[0b1100, 0b1010], [0b0110, 0b1111]], np.uint8)
    np.testing.assert_array_equal(reduce_and(bits, axes=(1,)).data, [0b1000, 0b0110])
    np.testing.assert_array_equal(reduce_or(bits, axes=(0, 1)).data, 0b1111)
    assert not reduce_and(bits > 6, axes=(0, 1)).data


def test_what_cannot_be_reduced_is_refused() -> None:
    with pytest.raises(ShapeError, match="no position to return"):
        argmax(np.zeros((2, 0), np.float32), axis=1, dtype=dtypes.INT32)
    with pytest.raises(ShapeError, match="it has no dim 2"):
        cumsum(np.zeros((2, 3), np.float32), axis=2, reverse=False)
    with pytest.raises(ShapeError, match="a position is an integer"):
        argmin(np.zeros((2, 3), np.float32), axis=1, dtype=dtypes.FLOAT32)
    with pytest.raises(ShapeError, match="reduce_and does not take f32"):
        reduce_and(np.zeros((2, 3), np.float32), axes=(0,))

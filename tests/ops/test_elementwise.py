"""Elementwise ops beyond the samples: accuracy over whole ranges, long and strided arrays, kinks, refused operands."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from scipy import special as scipy_special

from meshwright.core.trace import to_array, trace
from meshwright.core.types import TensorType
from meshwright.engine import special
from meshwright.errors import ShapeError
from meshwright.ops import elementwise as ew
from meshwright.transform.jvp import jvp_program
from tests.ops.comparing import wide

pytestmark = pytest.mark.usefixtures("x64")

Function = Callable[..., Any]

# Function, reference, range, allowed relative error in eps of f32 and of f64, and the size below which it is absolute.
ACCURACY: list[tuple[Function, Function, float, float, float, float, float]] = [
    (special.erf, np.vectorize(scipy_special.erf), -6.0, 6.0, 4, 4, 0.0),
    (special.erfc, scipy_special.erfc, -6.0, 5.0, 8, 16, 0.0),
    (special.erf_inv, scipy_special.erfinv, -0.9999, 0.9999, 8, 8, 0.0),
    (special.lgamma, scipy_special.gammaln, 0.01, 60.0, 1, 16, 1.0),
    (special.lgamma, scipy_special.gammaln, -8.0, 0.0, 1, 64, 1.0),
    (special.digamma, scipy_special.digamma, 0.01, 60.0, 1, 16, 1.0),
    (special.logistic, scipy_special.expit, -80.0, 80.0, 4, 4, 0.0),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("function", "reference", "low", "high", "f32", "f64", "floor"), ACCURACY)
def test_a_special_function_is_accurate_over_its_range(
    function: Function, reference: Function, low: float, high: float, f32: float, f64: float, floor: float, dtype: Any
) -> None:
    x = np.linspace(low, high, 20_011).astype(dtype)
    expected = reference(x.astype(np.float64))
    with np.errstate(all="ignore"):
        error = np.abs(function(x) - expected) / np.maximum(np.abs(expected), floor)
    limit = (f32 if dtype is np.float32 else f64) * float(np.finfo(dtype).eps)
    assert np.nanmax(error[np.isfinite(expected)]) <= limit


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_polygamma_obeys_its_recurrence_on_both_sides_of_zero(order: int) -> None:
    x = np.linspace(-5.3, 8.7, 71)
    step = (-1.0) ** order * scipy_special.factorial(order) / x ** (order + 1)
    here, there = special.polygamma(x, order), special.polygamma(x + 1, order)
    np.testing.assert_allclose(there - here, step, rtol=1e-9, atol=1e-12 * np.abs(here).max())


COMPLEX, REAL = ["logistic", "rsqrt"], ["erf", "erfc", "erf_inv", "lgamma", "digamma"]
FLOATS = [np.float32, np.float64, np.float16]


@pytest.mark.parametrize(("name", "dtype"), [*product([*COMPLEX, *REAL], FLOATS), *product(COMPLEX, [np.complex64])])
def test_long_and_strided_arrays_and_a_given_out_make_no_difference(name: str, dtype: Any) -> None:
    function = np.errstate(all="ignore")(getattr(special, name))
    x = np.random.default_rng(0).uniform(0.1, 0.9, (41, 1200)).astype(dtype)
    whole = function(x)
    np.testing.assert_array_equal(whole, np.stack([function(row) for row in x]))
    np.testing.assert_array_equal(whole[:, ::2], function(x[:, ::2]))
    np.testing.assert_array_equal(whole[3, 5], function(x[3, 5]))
    turned = np.empty_like(x, order="F")
    assert function(x, out=turned) is turned
    np.testing.assert_array_equal(whole, turned)
    function(x, out=x)
    np.testing.assert_array_equal(whole, x)


def test_complex_log1p_keeps_the_digits_of_small_operands() -> None:
    x = np.array([1e-10 + 1e-10j, -1e-9 + 2e-8j, -1 + 1e-9j, -2.0 + 0j, 1e200 + 1e200j])
    expected = [1e-10 + 1e-10j, -1e-9 + 2e-8j, np.log(1e-9) + 0.5j * np.pi, 1j * np.pi, np.log(1e200 + 1e200j)]
    np.testing.assert_allclose(ew.log1p(x).data, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("ours", "jaxs", "operands"),
    [
        (ew.abs_, lax.abs, [[0.0, -0.0, 2.0, -3.0]]),
        (ew.maximum, lax.max, [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]),
        (ew.minimum, lax.min, [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]),
        (ew.clamp, lax.clamp, [[0.0, 0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, -1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]]),
        (ew.sqrt, lax.sqrt, [[0.0, 4.0]]),
        (ew.pow_, lax.pow, [[0.0, 2.0, 0.0], [2.0, 0.0, 1.0]]),
        (ew.cbrt, lax.cbrt, [[0.0, -8.0]]),
    ],
)
def test_the_derivative_at_a_kink_is_that_of_jax(ours: Any, jaxs: Function, operands: list[list[float]]) -> None:
    arrays = [np.array(x) for x in operands]
    program, _ = trace(lambda *xs: [ours(*xs)], [to_array(x).type for x in arrays])
    for n in range(len(arrays)):
        tangents = [np.ones_like(x) * (m == n) for m, x in enumerate(arrays)]
        _, (tangent,) = jvp_program(program, [to_array(x) for x in arrays], [to_array(t) for t in tangents])
        np.testing.assert_array_equal(tangent.data, jax.jvp(jaxs, arrays, tangents)[1])


def test_a_tangent_stops_at_stop_gradient_and_passes_a_barrier() -> None:
    x = TensorType((3,), np.dtype(np.float64))
    program, _ = trace(lambda x: [ew.stop_gradient(x), *ew.optimization_barrier(x, x)], [x])
    one = to_array(np.ones(3))
    _, tangents = jvp_program(program, [one], [one])
    assert tangents == [None, one, one]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_integers_divide_towards_zero_and_by_zero(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 7, 7, 0, limits.min], dtype)
    y = np.array([0, 0, 0, 2, 3, limits.max if limits.min == 0 else -1], dtype)
    np.testing.assert_array_equal(ew.div(x, y).data, lax.div(x, y))
    np.testing.assert_array_equal(ew.rem(x, y).data, lax.rem(x, y))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bits", [(8, 7), (5, 10), (4, 3), (5, 2), (2, 1), (8, 0), (11, 30)])
def test_reduce_precision_rounds_as_xla_does(bits: tuple[int, int], dtype: str) -> None:
    kind = jax.numpy.dtype(dtype)
    x = np.random.default_rng(0).integers(0, 256, (4000, kind.itemsize), np.uint8).view(kind)[:, 0]
    ours = ew.reduce_precision(x, exponent_bits=bits[0], mantissa_bits=bits[1]).data
    expected = np.asarray(lax.reduce_precision(x, *bits))
    np.testing.assert_array_equal(wide(ours), wide(expected))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x, n, b: ew.sub(x, n), "differ in dtype"),
        (lambda x, n, b: ew.sub(x, x[:2]), "differ in shape"),
        (lambda x, n, b: ew.exp(n), "exp takes"),
        (lambda x, n, b: ew.and_(x, x), "and takes"),
        (lambda x, n, b: ew.select(n, x, x), "bool"),
        (lambda x, n, b: ew.select(b[:2], x, x), "differ in shape"),
        (lambda x, n, b: ew.integer_pow(n, exponent=-1), "fraction"),
        (lambda x, n, b: ew.bitcast(x, dtype=np.dtype(np.float64)), "2 elements of f32"),
        (lambda x, n, b: ew.bitcast(b, dtype=np.dtype(np.uint8)), "not numbers"),
        (lambda x, n, b: ew.reduce_precision(x, exponent_bits=0, mantissa_bits=3), "no float"),
        (lambda x, n, b: ew.polygamma(x, order=-1), "digamma"),
    ],
)
def test_operands_an_op_cannot_take_are_refused_with_a_fix(call: Function, why: str) -> None:
    with pytest.raises(ShapeError) as error:
        call(np.ones(3, np.float32), np.ones(3, np.int32), np.ones(3, bool))
    assert why in error.value.why
    assert error.value.fix

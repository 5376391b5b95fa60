"""Division by zero, empty softmaxes and Python integers outside a dtype: what JAX gives, or one clear error."""

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from tests.numpy.against_jax import compare

EDGES = np.asarray([5.0, -5.0, np.inf, -np.inf, 0.0, np.nan], np.float32)
INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("divisor", [0.0, -0.0, np.inf, -np.inf, 2.0])
def test_floats_divided_by_zero_and_infinity(divisor):
    compare(lambda m, x: (m.np.floor_divide(x, divisor), *m.np.divmod(x, divisor), x % divisor), EDGES)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_divided_by_zero(dtype):
    x = np.asarray([5, 251]).astype(dtype)
    compare(lambda m, x: (*m.np.divmod(x, 0), x % 0, m.np.fmod(x, 0), x % 3), x)
    compare(lambda m, x, y: (*m.np.divmod(x, y), x % y, m.np.fmod(x, y)), x, np.asarray([0, 2]).astype(dtype))


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((3, 0), -1), ((0, 3), None), ((0, 3), -1)])
def test_softmax_of_nothing(shape, axis):
    x = np.zeros(shape, np.float32)
    compare(lambda m, x: (m.nn.softmax(x, axis), m.nn.log_softmax(x, axis), m.nn.logsumexp(x, axis)), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: m.np.array(2**31, "uint32"),
        lambda m: m.np.array([2**31, 0], "uint32"),
        lambda m: m.np.uint32(2**31),
        lambda m: m.np.array([2**31], "float32"),
        lambda m: m.np.array([2**70], "float32"),
        lambda m: m.np.array([2**31, 1.5]),
        lambda m: m.np.array(300, "bool"),
        lambda m: m.np.full(2, 300, "uint8"),
        lambda m: m.np.full(2, 2**31, "uint32"),
        lambda m: m.np.full(2, 2**70, "float32"),
        lambda m: m.np.ones(2, "uint8") + 300,
        lambda m: m.np.ones(2, "uint8") + (-1),
        lambda m: 200 + m.np.ones(2, "int8"),
        lambda m: m.np.maximum(m.np.ones(2, "uint8"), -1),
        lambda m: m.np.full(2, 100, "uint8") < 300,
        lambda m: m.np.where(m.np.array([True, False]), m.np.ones(2, "uint8"), 300),
        lambda m: m.np.arange(2**31, 2**31 + 2, dtype="uint32"),
    ],
)
def test_integers_that_wrap_or_fit(function):
    compare(function)


FIX = "a float: mnp.array(float(n)), or a wider dtype; 64-bit ones need mw.config.update('enable_x64', True)"


@pytest.mark.parametrize(
    ("function", "number", "dtype"),
    [
        (lambda: mnp.array(2**70), 2**70, "int32"),
        (lambda: mnp.array([1, 2**31]), 2**31, "int32"),
        (lambda: mnp.array([2**70]), 2**70, "int32"),
        (lambda: mnp.ones(2, int) + 2**40, 2**40, "int32"),
        (lambda: mnp.ones(2, int) == 2**40, 2**40, "int32"),
        (lambda: mw.jit(lambda x: x * 2**40)(3), 2**40, "int32"),
        (lambda: lax.add(mnp.ones(2, int), -(2**40)), -(2**40), "int32"),
        (lambda: mnp.uint8(-1), -1, "uint8"),
        (lambda: mnp.int8(200), 200, "int8"),
        (lambda: mnp.array([300], "uint8"), 300, "uint8"),
        (lambda: mnp.sin(2**40), 2**40, "int32"),
    ],
)
def test_integers_that_do_not_fit(function, number, dtype):
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    limits = np.iinfo(dtype)
    assert str(caught.value) == (
        f"The Python integer {number} is not a number of {dtype}.\n"
        f"  at:   {caught.value.where}\n"
        f"  why:  {dtype} holds {limits.min} to {limits.max}\n"
        f"  fix:  {FIX}"
    )
    assert caught.value.where.startswith("test_numbers_that_do_not_fit.py:")


def test_numbers_beyond_a_float_are_infinite_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(mnp.ones(2) + 2**200).all()
        assert np.isinf(2**2000 * mnp.ones(2)).all()
        assert np.isinf(mnp.ones(2) - 1e200).all()
        assert np.isinf(mnp.array(2**2000, "float32"))
        assert np.isinf(mnp.multiply(mnp.ones(2, "float16"), -1e9)).all()

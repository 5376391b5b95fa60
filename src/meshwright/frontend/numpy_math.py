"""Elementwise arithmetic, exponentials, trigonometry and rounding of ``meshwright.numpy``."""

from __future__ import annotations

import math
from typing import Any

from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.core.trace import apply
from meshwright.errors import ShapeError
from meshwright.frontend.numpy_dtypes import finfo
from meshwright.frontend.numpy_logic import (
    absolute,
    bitwise_and,
    either,
    equal,
    greater,
    imag,
    isfinite,
    isinf,
    isnan,
    isneginf,
    isposinf,
    less,
    less_equal,
    logical_and,
    logical_or,
    not_equal,
    real,
    right_shift,
)
from meshwright.frontend.operands import (
    VALUES,
    ArrayLike,
    binary,
    broadcast_operands,
    convert,
    inexact_binary,
    inexact_unary,
    is_number,
    promote_operands,
    to_inexact,
    unary,
    value,
)
from meshwright.ops import basic, elementwise

# Arithmetic


def add(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x + y``."""
    return binary(basic.add, x, y)


def subtract(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x - y``."""
    return binary(elementwise.sub, x, y)


def multiply(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x * y``."""
    return binary(basic.mul, x, y)


def divide(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x / y``; of integers, a float."""
    return inexact_binary(elementwise.div, x, y)


true_divide = divide


def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x // y``: the quotient rounded down."""
    x, y = promote_operands((x, y))
    dtype = _dtype_of(x, y)
    if dtype in dtypes.UNSIGNED:
        return binary(elementwise.div, x, y)
    if dtypes.is_complex(dtype):
        raise ShapeError(
            "floor_divide cannot take complex numbers.", where=here(), why="they have no order", fix="x / y"
        )
    if dtypes.is_float(dtype):
        return _float_divmod(x, y)[0]
    quotient = binary(elementwise.div, x, y)
    inexact = logical_and(not_equal(sign(x), sign(y)), not_equal(binary(elementwise.rem, x, y), 0))
    return either(inexact, subtract(quotient, 1), quotient)


def _float_divmod(x: ArrayLike, y: ArrayLike) -> tuple[Value, Value]:
    """The rounded-down quotient and the remainder of floats, exact where x / y is not."""
    remainder_ = binary(elementwise.rem, x, y)
    quotient = divide(subtract(x, remainder_), y)
    adjust = logical_and(not_equal(remainder_, 0), not_equal(sign(y), sign(remainder_)))
    remainder_ = either(adjust, add(remainder_, y), remainder_)
    quotient = either(adjust, subtract(quotient, 1), quotient)
    return unary_round(quotient), remainder_


def unary_round(x: Value) -> Value:
    """To the nearest integer, halves to even."""
    return apply(elementwise.round_, (x,), {"away": False})


def remainder(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x % y``: the remainder with the sign of ``y``."""
    x, y = promote_operands((x, y))
    truncated = binary(elementwise.rem, x, y)
    if _dtype_of(x, y) in dtypes.UNSIGNED:
        return truncated
    adjust = logical_and(not_equal(less(truncated, 0), less(y, 0)), not_equal(truncated, 0))
    return either(adjust, add(truncated, y), truncated)


mod = remainder


def fmod(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The remainder with the sign of ``x``, as in C."""
    return binary(elementwise.rem, x, y)


def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Value, Value]:
    """``(x // y, x % y)``."""
    x, y = promote_operands((x, y))
    if dtypes.is_float(_dtype_of(x, y)):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


def _dtype_of(*operands: Any) -> dtypes.DType:
    """The one dtype of promoted operands."""
    return next(x.type.dtype for x in operands if x.__class__ in VALUES)


def negative(x: ArrayLike, /) -> Value:
    """``-x``."""
    return unary(basic.neg, x)


def positive(x: ArrayLike, /) -> Value:
    """``+x``: ``x`` itself."""
    return value(x)


def power(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x ** y``. A Python integer as exponent multiplies; other exponents go through a logarithm.

    >>> import meshwright.numpy as mnp
    >>> mnp.power(mnp.array([1.0, 2.0, 3.0]), 2)
    Array([1., 4., 9.], dtype=float32)
    """
    if y.__class__ is int:
        x = value(x)
        if x.type.dtype != BOOL:
            return _integer_power(x, y)
    x, y = promote_operands((x, y))
    dtype = _dtype_of(x, y)
    if dtype == BOOL:
        x, y = (convert(value(v), dtypes.INT32) for v in (x, y))
        return _power_of_integers(x, y)
    if dtypes.is_integer(dtype):
        return _power_of_integers(x, y)
    return binary(elementwise.pow_, x, y)


pow = power


def _integer_power(x: Value, exponent: int) -> Value:
    if exponent == 1:
        return x
    if exponent == 2:
        return apply(elementwise.square, (x,), {})
    if exponent < 0 and dtypes.is_integer(x.type.dtype):
        raise ShapeError(
            f"An integer array {x.type} cannot be raised to {exponent}.",
            where=here(),
            why="the result is not an integer",
            fix=f"x.astype(float) ** {exponent}",
        )
    return apply(elementwise.integer_pow, (x,), {"exponent": exponent})


def _power_of_integers(x: ArrayLike, y: ArrayLike) -> Value:
    """By repeated squaring. Six bits of the exponent do: with more, anything but 0 and ±1 has overflowed."""
    x, y = broadcast_operands([value(x), value(y)], "power")
    x, y = (convert(v, _dtype_of(x, y)) for v in (x, y))
    total = either(logical_and(equal(x, 0), not_equal(y, 0)), 0, convert(value(1), x.type.dtype))
    for bit in range(6):
        total = either(bitwise_and(right_shift(y, bit), 1) != 0, multiply(total, x), total)
        x = multiply(x, x)
    return total


def float_power(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x ** y`` in a floating dtype."""
    x, y = promote_operands((x, y), inexact=True)
    return binary(elementwise.pow_, x, y)


def reciprocal(x: ArrayLike, /) -> Value:
    """``1 / x``."""
    return divide(1, x)


def square(x: ArrayLike, /) -> Value:
    """``x * x``."""
    return unary(elementwise.square, x)


def fabs(x: ArrayLike, /) -> Value:
    """The absolute value as a float."""
    return inexact_unary(elementwise.abs_, x)


def sign(x: ArrayLike, /) -> Value:
    """-1, 0 or 1."""
    return unary(elementwise.sign, x)


def signbit(x: ArrayLike, /) -> Value:
    """Whether the sign is negative; true of -0.0."""
    x = value(x)
    dtype = x.type.dtype
    if dtype == BOOL or dtypes.is_integer(dtype):
        return less(x, 0) if dtype != BOOL else not_equal(x, x)
    bits = dtypes.as_dtype(f"int{8 * dtype.itemsize}") if dtype.itemsize < 8 else dtypes.INT64
    return less(apply(elementwise.bitcast, (x,), {"dtype": bits}), 0)


def copysign(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x`` with the sign of ``y``."""
    x, y = promote_operands((x, y), inexact=True)
    return either(not_equal(signbit(x), signbit(y)), negative(x), x)


def maximum(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The larger of two; NaN wins."""
    return binary(elementwise.maximum, x, y)


def minimum(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The smaller of two; NaN wins."""
    return binary(elementwise.minimum, x, y)


def fmax(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The larger of two; a number wins over NaN."""
    return either(logical_or(greater(x, y), isnan(y)), x, y)


def fmin(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The smaller of two; a number wins over NaN."""
    return either(logical_or(less(x, y), isnan(y)), x, y)


def heaviside(x: ArrayLike, y: ArrayLike, /) -> Value:
    """0 below zero, 1 above, ``y`` at zero."""
    x, y = promote_operands((x, y), inexact=True)
    step = either(less(x, 0), convert(value(0.0), _dtype_of(x, y)), 1.0)
    return either(isnan(x), x, either(equal(x, 0), y, step))


def nextafter(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The next float after ``x`` towards ``y``."""
    return inexact_binary(elementwise.nextafter, x, y)


def hypot(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``sqrt(x**2 + y**2)`` without overflow on the way."""
    x, y = promote_operands((x, y), inexact=True)
    x, y = absolute(x), absolute(y)
    larger, smaller = maximum(x, y), minimum(x, y)
    ratio = divide(smaller, either(equal(larger, 0), 1.0, larger))
    length = multiply(larger, sqrt(add(square(ratio), 1.0)))
    return either(logical_or(isinf(x), isinf(y)), math.inf, either(equal(larger, 0), larger, length))


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Value:
    """``x`` limited to lie between ``min`` and ``max``."""
    x = value(x)
    if min is not None:
        x = maximum(min, x)
    if max is not None:
        x = minimum(max, x)
    return x


def isclose(
    x: ArrayLike, y: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08, equal_nan: bool = False
) -> Value:
    """Whether two values differ by at most ``atol + rtol * abs(y)``."""
    x, y = (value(v) for v in promote_operands((x, y)))
    if not dtypes.is_inexact(x.type.dtype):
        if x.type.dtype == BOOL:
            return equal(x, y)
        x, y = (convert(v, to_inexact(v.type.dtype)) for v in (x, y))
    near = less_equal(absolute(subtract(x, y)), add(atol, multiply(rtol, absolute(y))))
    near = logical_or(logical_and(near, logical_and(isfinite(x), isfinite(y))), equal(x, y))
    return logical_or(near, logical_and(isnan(x), isnan(y))) if equal_nan else near


# Exponentials, logarithms, roots


def exp(x: ArrayLike, /) -> Value:
    """e to the ``x``."""
    return inexact_unary(elementwise.exp, x)


def exp2(x: ArrayLike, /) -> Value:
    """2 to the ``x``."""
    return inexact_unary(elementwise.exp2, x)


def expm1(x: ArrayLike, /) -> Value:
    """``exp(x) - 1``, accurate near zero."""
    return inexact_unary(elementwise.expm1, x)


def log(x: ArrayLike, /) -> Value:
    """The natural logarithm."""
    return inexact_unary(elementwise.log, x)


def log1p(x: ArrayLike, /) -> Value:
    """``log(1 + x)``, accurate near zero."""
    return inexact_unary(elementwise.log1p, x)


def log2(x: ArrayLike, /) -> Value:
    """The logarithm to base 2."""
    return divide(log(x), math.log(2.0))


def log10(x: ArrayLike, /) -> Value:
    """The logarithm to base 10."""
    return divide(log(x), math.log(10.0))


def logaddexp(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``log(exp(x) + exp(y))`` without overflow."""
    x, y = broadcast_operands(promote_operands((x, y), inexact=True), "logaddexp")
    difference = subtract(x, y)
    smooth = add(maximum(x, y), log1p(exp(negative(absolute(difference)))))
    # The difference of two equal infinities is NaN, and so it is where an operand is NaN.
    return either(isnan(difference), add(x, y), smooth)


def logaddexp2(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``log2(2**x + 2**y)`` without overflow."""
    x, y = broadcast_operands(promote_operands((x, y), inexact=True), "logaddexp2")
    difference = subtract(x, y)
    smooth = add(maximum(x, y), divide(log1p(exp2(negative(absolute(difference)))), math.log(2.0)))
    return either(isnan(difference), add(x, y), smooth)


def sqrt(x: ArrayLike, /) -> Value:
    """The square root."""
    return inexact_unary(elementwise.sqrt, x)


def cbrt(x: ArrayLike, /) -> Value:
    """The cube root."""
    return inexact_unary(elementwise.cbrt, x)


# Trigonometric and hyperbolic functions


def sin(x: ArrayLike, /) -> Value:
    """The sine."""
    return inexact_unary(elementwise.sin, x)


def cos(x: ArrayLike, /) -> Value:
    """The cosine."""
    return inexact_unary(elementwise.cos, x)


def tan(x: ArrayLike, /) -> Value:
    """The tangent."""
    return inexact_unary(elementwise.tan, x)


def arcsin(x: ArrayLike, /) -> Value:
    """The angle whose sine is ``x``."""
    return inexact_unary(elementwise.asin, x)


def arccos(x: ArrayLike, /) -> Value:
    """The angle whose cosine is ``x``."""
    return inexact_unary(elementwise.acos, x)


def arctan(x: ArrayLike, /) -> Value:
    """The angle whose tangent is ``x``."""
    return inexact_unary(elementwise.atan, x)


def arctan2(y: ArrayLike, x: ArrayLike, /) -> Value:
    """The angle of the point (``x``, ``y``)."""
    return inexact_binary(elementwise.atan2, y, x)


def sinh(x: ArrayLike, /) -> Value:
    """The hyperbolic sine."""
    return inexact_unary(elementwise.sinh, x)


def cosh(x: ArrayLike, /) -> Value:
    """The hyperbolic cosine."""
    return inexact_unary(elementwise.cosh, x)


def tanh(x: ArrayLike, /) -> Value:
    """The hyperbolic tangent."""
    return inexact_unary(elementwise.tanh, x)


def arcsinh(x: ArrayLike, /) -> Value:
    """The inverse of ``sinh``."""
    return inexact_unary(elementwise.asinh, x)


def arccosh(x: ArrayLike, /) -> Value:
    """The inverse of ``cosh``."""
    return inexact_unary(elementwise.acosh, x)


def arctanh(x: ArrayLike, /) -> Value:
    """The inverse of ``tanh``."""
    return inexact_unary(elementwise.atanh, x)


asin, acos, atan, atan2 = arcsin, arccos, arctan, arctan2
asinh, acosh, atanh = arcsinh, arccosh, arctanh


def sinc(x: ArrayLike, /) -> Value:
    """``sin(pi x) / (pi x)``, and 1 at zero."""
    x = value(x)
    angle = multiply(x, math.pi)
    zero = equal(angle, 0)
    safe = either(zero, 1.0, angle)
    # Near zero the function is 1 - (pi x)^2 / 6, which also has the right derivatives at zero.
    return either(zero, subtract(1.0, divide(square(angle), 6.0)), divide(sin(safe), safe))


def deg2rad(x: ArrayLike, /) -> Value:
    """Degrees to radians."""
    return multiply(x, math.pi / 180.0)


def rad2deg(x: ArrayLike, /) -> Value:
    """Radians to degrees."""
    return multiply(x, 180.0 / math.pi)


radians, degrees = deg2rad, rad2deg

# Rounding


def floor(x: ArrayLike, /) -> Value:
    """The largest integer not above ``x``."""
    return _rounded(elementwise.floor, x)


def ceil(x: ArrayLike, /) -> Value:
    """The smallest integer not below ``x``."""
    return _rounded(elementwise.ceil, x)


def trunc(x: ArrayLike, /) -> Value:
    """``x`` without its fraction."""
    x = value(x)
    if not dtypes.is_inexact(x.type.dtype):
        return x
    return either(less(x, 0), ceil(x), floor(x))


fix = trunc


def _rounded(op: Any, x: ArrayLike) -> Value:
    x = value(x)
    return apply(op, (x,), {}) if dtypes.is_inexact(x.type.dtype) else x


def rint(x: ArrayLike, /) -> Value:
    """The nearest integer, halves to even."""
    return round(convert(value(x), to_inexact(value(x).type.dtype)))


def round(x: ArrayLike, decimals: int = 0) -> Value:
    """``x`` rounded to ``decimals`` places, halves to even."""
    x = value(x)
    dtype = x.type.dtype
    if dtypes.is_complex(dtype):
        return apply(elementwise.complex, (round(real(x), decimals), round(imag(x), decimals)), {})
    if not dtypes.is_float(dtype):
        if decimals >= 0:
            return x
        factor = 10**-decimals
        return multiply(convert(round(divide(x, factor)), dtype), factor)
    if decimals == 0:
        return unary_round(x)
    wide = convert(x, dtypes.FLOAT32) if dtype.itemsize < 4 else x
    factor_ = float(10.0**decimals)
    return convert(divide(unary_round(multiply(wide, factor_)), factor_), dtype)


around = round


def modf(x: ArrayLike, /) -> tuple[Value, Value]:
    """The fraction and the whole part."""
    x = convert(value(x), to_inexact(value(x).type.dtype))
    whole = trunc(x)
    fraction = either(isinf(x), 0.0, subtract(x, whole))
    return fraction, whole


def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Value:
    """``x`` with NaN and infinities replaced, by default by zero and the largest finite numbers."""
    x = value(x)
    dtype = x.type.dtype
    if not dtypes.is_inexact(dtype):
        return x
    if dtypes.is_complex(dtype):
        parts = [nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf) for part in (real(x), imag(x))]
        return apply(elementwise.complex, parts, {})
    limits = finfo(dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    replaced = either(isnan(x), _of_dtype(nan, x), x)
    replaced = either(isposinf(x), _of_dtype(high, x), replaced)
    return either(isneginf(x), _of_dtype(low, x), replaced)


def _of_dtype(x: ArrayLike, like: Value) -> Any:
    return x if is_number(x) else convert(value(x), like.type.dtype)


def ldexp(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x * 2**y``."""
    x = value(x)
    dtype = to_inexact(x.type.dtype)
    exponent = convert(value(y), dtype)
    # Two steps, so that a result that fits is reached when 2**y itself does not.
    half = floor(divide(exponent, 2.0))
    return multiply(multiply(convert(x, dtype), exp2(half)), exp2(subtract(exponent, half)))


def angle(z: ArrayLike, deg: bool = False) -> Value:
    """The angle of a complex number."""
    z = value(z)
    turned = arctan2(imag(z), real(z))
    return rad2deg(turned) if deg else turned

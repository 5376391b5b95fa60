"""Elementwise arithmetic of ``meshwright.numpy``."""

from __future__ import annotations

import numpy as np

from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    as_dtype,
    binary,
    broadcast_operands,
    convert,
    inexact,
    inexact_binary,
    is_number,
    promote_operands,
    promoted_values,
    strong,
    to_inexact,
    unary,
    value,
)
from meshwright.arrays.refusals import ordered
from meshwright.arrays.static import static_flag
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.source import here
from meshwright.core.trace import Value, apply, to_array
from meshwright.errors import ShapeError
from meshwright.numpy.logic import (
    absolute,
    bitwise_and,
    dtype_of,
    either,
    equal,
    greater,
    isfinite,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_or,
    no_booleans,
    not_equal,
    right_shift,
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
    x, y = no_booleans(x, y)
    dtype = dtype_of(x, y)
    if dtype in dtypes.UNSIGNED:
        return binary(elementwise.div, x, y)
    if dtypes.is_complex(dtype):
        raise ShapeError(
            "floor_divide cannot take complex numbers.", where=here(), why="they have no order", fix="x / y"
        )
    if dtypes.is_float(dtype):
        return _float_divmod(x, y)[0]
    quotient = binary(elementwise.div, x, y)
    rounded = logical_and(not_equal(sign(x), sign(y)), not_equal(binary(elementwise.rem, x, y), 0))
    return either(rounded, subtract(quotient, 1), quotient)


def _float_divmod(x: ArrayLike, y: ArrayLike) -> tuple[Value, Value]:
    """The rounded-down quotient and the remainder of floats, exact where x / y is not."""
    remainder_ = binary(elementwise.rem, x, y)
    # Division by zero leaves no remainder to take off: the quotient is infinite, or NaN for 0 / 0.
    quotient = divide(either(equal(y, 0), x, subtract(x, remainder_)), y)
    adjust = logical_and(not_equal(remainder_, 0), not_equal(sign(y), sign(remainder_)))
    remainder_ = either(adjust, add(remainder_, y), remainder_)
    quotient = either(adjust, subtract(quotient, 1), quotient)
    return unary_round(quotient), remainder_


def unary_round(x: Value) -> Value:
    """To the nearest integer, halves to even."""
    return apply(elementwise.round_, (x,), {"away": False})


def remainder(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x % y``: the remainder with the sign of ``y``."""
    x, y = no_booleans(x, y)
    truncated = _truncated_remainder(x, y)
    if dtype_of(x, y) in dtypes.UNSIGNED:
        return truncated
    adjust = logical_and(not_equal(less(truncated, 0), less(y, 0)), not_equal(truncated, 0))
    return either(adjust, add(truncated, y), truncated)


mod = remainder


def fmod(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The remainder with the sign of ``x``, as in C."""
    return _truncated_remainder(*no_booleans(x, y))


def _truncated_remainder(x: ArrayLike, y: ArrayLike) -> Value:
    """The remainder with the sign of ``x``; that of a division of integers by zero is 0."""
    found = binary(elementwise.rem, x, y)
    if not dtypes.is_integer(found.type.dtype) or (y.__class__ is int and y != 0):
        return found
    return either(equal(y, 0), 0, found)


def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Value, Value]:
    """``(x // y, x % y)``."""
    x, y = no_booleans(x, y)
    if dtypes.is_float(dtype_of(x, y)):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


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
    if y.__class__ is int or isinstance(y, np.integer):
        x = value(x)
        return _integer_power(convert(x, dtypes.INT32) if x.type.dtype == BOOL else x, int(y))
    x, y = (v if is_number(v) else value(v) for v in (x, y))
    whole = not is_number(y) and dtypes.is_integer(y.type.dtype) and not y.type.weak
    inexact_base = whole and dtypes.is_inexact(value(x).type.dtype)
    x, y = no_booleans(x, y)
    if dtypes.is_integer(dtype_of(x, y)):
        return _power_of_integers(x, y)
    found = binary(elementwise.pow_, x, y)
    return strong(found) if inexact_base else found


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
    dtype = dtype_of(x, y)
    x, y = (v if v.__class__ in VALUES else to_array(np.asarray(v, dtype)) for v in (x, y))
    x, y = broadcast_operands([x, y], "power")
    total = either(logical_and(equal(x, 0), not_equal(y, 0)), 0, to_array(np.asarray(1, dtype)))
    for bit in range(6):
        total = either(bitwise_and(right_shift(y, bit), 1) != 0, multiply(total, x), total)
        x = multiply(x, x)
    return total


def float_power(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x ** y`` in a floating dtype."""
    x, y = promote_operands((x, y), inexact=True)
    return binary(elementwise.pow_, x, y)


def reciprocal(x: ArrayLike, /) -> Value:
    """``1 / x``; of integers, a float."""
    return divide(1, inexact(x))


def square(x: ArrayLike, /) -> Value:
    """``x * x``."""
    x = value(x)
    return apply(elementwise.square, (convert(x, dtypes.INT32) if x.type.dtype == BOOL else x,), {})


def fabs(x: ArrayLike, /) -> Value:
    """The absolute value of a real number as a float."""
    x = inexact(x)
    if dtypes.is_complex(x.type.dtype):
        raise ShapeError(
            f"mnp.fabs cannot take {x.type.short()}.", where=here(), why="it takes real numbers", fix="mnp.abs(x)"
        )
    return apply(elementwise.abs_, (x,), {})


def sign(x: ArrayLike, /) -> Value:
    """-1, 0 or 1."""
    return unary(elementwise.sign, x)


def signbit(x: ArrayLike, /) -> Value:
    """Whether the sign is negative; true of -0.0."""
    x = value(x)
    dtype = x.type.dtype
    if dtype == BOOL or dtypes.is_integer(dtype):
        return less(x, 0) if dtype != BOOL else not_equal(x, x)
    bits = as_dtype(f"int{8 * dtype.itemsize}") if dtype.itemsize < 8 else dtypes.INT64
    return less(apply(elementwise.bitcast, (x,), {"dtype": bits}), 0)


def copysign(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x`` with the sign of ``y``."""
    x, y = promoted_values(x, y, inexact=True)
    found = either(not_equal(signbit(x), signbit(y)), negative(x), x)
    return found if y.type.weak else strong(found)


def maximum(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The larger of two; NaN wins."""
    return binary(elementwise.maximum, x, y)


def minimum(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The smaller of two; NaN wins."""
    return binary(elementwise.minimum, x, y)


def fmax(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The larger of two; a number wins over NaN."""
    return either(logical_or(greater(x1, x2), isnan(x2)), x1, x2)


def fmin(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The smaller of two; a number wins over NaN."""
    return either(logical_or(less(x1, x2), isnan(x2)), x1, x2)


def heaviside(x: ArrayLike, y: ArrayLike, /) -> Value:
    """0 below zero, 1 above, ``y`` at zero."""
    ordered("mnp.heaviside", x, y)
    given = value(x).type
    x, y = promoted_values(x, y, inexact=True)
    step = either(less(x, 0), convert(value(0.0), dtype_of(x, y)), 1.0)
    found = either(isnan(x), x, either(equal(x, 0), y, step))
    return strong(found) if given.ndim else found


def nextafter(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The next float after ``x`` towards ``y``."""
    return inexact_binary(elementwise.nextafter, x, y)


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Value:
    """``x`` limited to lie between ``min`` and ``max``."""
    x = value(x)
    ordered("mnp.clip", *(v for v in (x, min, max) if v is not None))
    if min is not None:
        x = maximum(min, x)
    if max is not None:
        x = minimum(max, x)
    return x


def isclose(
    a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08, equal_nan: bool = False
) -> Value:
    """Whether two values differ by at most ``atol + rtol * abs(b)``."""
    equal_nan = static_flag(equal_nan, "equal_nan of mnp.isclose")
    x, y = (value(v) for v in promote_operands((a, b)))
    if not dtypes.is_inexact(x.type.dtype):
        if x.type.dtype == BOOL:
            return equal(x, y)
        x, y = (convert(v, to_inexact(v.type.dtype)) for v in (x, y))
    near = less_equal(absolute(subtract(x, y)), add(atol, multiply(rtol, absolute(y))))
    near = logical_or(logical_and(near, logical_and(isfinite(x), isfinite(y))), equal(x, y))
    return logical_or(near, logical_and(isnan(x), isnan(y))) if equal_nan else near

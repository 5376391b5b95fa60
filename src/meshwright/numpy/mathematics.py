"""Exponentials, trigonometry and rounding of ``meshwright.numpy``."""

from __future__ import annotations

import math
from builtins import min as builtin_min
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    broadcast_operands,
    convert,
    inexact,
    inexact_binary,
    inexact_unary,
    is_number,
    promote_operands,
    strong,
    to_inexact,
    value,
)
from meshwright.arrays.static import no_out, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import (
    add,
    clip,
    divide,
    maximum,
    minimum,
    multiply,
    negative,
    remainder,
    square,
    subtract,
    unary_round,
)
from meshwright.numpy.dtypes import finfo
from meshwright.numpy.logic import (
    absolute,
    either,
    equal,
    imag,
    isfinite,
    isinf,
    isnan,
    isneginf,
    isposinf,
    less,
    logical_or,
    real,
    right_shift,
)
from meshwright.ops import basic, elementwise

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
    return _part_by_part(log(x), lambda part: divide(part, math.log(2.0)))


def log10(x: ArrayLike, /) -> Value:
    """The logarithm to base 10."""
    return strong(_part_by_part(log(x), lambda part: divide(part, math.log(10.0))))


def _part_by_part(x: Value, function: Callable[[Value], Value]) -> Value:
    """``function`` of ``x``, or of its real and its imaginary part: neither spoils the other where it is infinite."""
    if not dtypes.is_complex(x.type.dtype):
        return function(x)
    return apply(elementwise.complex, (function(real(x)), function(imag(x))), {})


def logaddexp(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``log(exp(x) + exp(y))`` without overflow; of complex numbers, the one whose angle is between -pi and pi."""
    larger, difference, undefined, total = _apart(x, y, "logaddexp")
    found = _principal(either(undefined, total, add(larger, log1p(exp(difference)))), math.pi)
    return strong(found) if found.ndim and dtypes.is_complex(found.type.dtype) else found


def logaddexp2(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``log2(2**x + 2**y)`` without overflow."""
    larger, difference, undefined, total = _apart(x, y, "logaddexp2")
    found = either(undefined, total, add(larger, divide(log1p(exp2(difference)), math.log(2.0))))
    return _principal(strong(found) if found.ndim else found, math.pi / math.log(2.0))


def _principal(x: Value, half: float) -> Value:
    """A complex logarithm with its imaginary part, known up to whole turns of ``2 * half``, within half a turn."""
    if not dtypes.is_complex(x.type.dtype):
        return x
    turns = floor(divide(add(imag(x), half), 2 * half))
    return apply(elementwise.complex, (real(x), subtract(imag(x), multiply(turns, 2 * half))), {})


def _apart(x: ArrayLike, y: ArrayLike, name: str) -> tuple[Value, Value, Value, Value]:
    """The larger of two, the smaller minus the larger, whether that is undefined (NaN, or two equal infinities; it is
    then given as 0, which keeps derivatives finite), and the sum, which is the result there."""
    x, y = broadcast_operands(promote_operands((x, y), inexact=True), name)
    # Chosen rather than maximum and minimum, whose derivative at equal operands is right once and not twice.
    behind = less(x, y)
    larger = either(behind, y, x)
    difference = subtract(either(behind, x, y), larger)
    undefined = isnan(difference)
    return larger, either(undefined, 0.0, difference), undefined, add(x, y)


def sqrt(x: ArrayLike, /) -> Value:
    """The square root."""
    return inexact_unary(elementwise.sqrt, x)


def hypot(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``sqrt(x**2 + y**2)`` without overflow on the way."""
    x, y = promote_operands((x, y), inexact=True)
    if any(dtypes.is_complex(v.type.dtype) for v in (x, y) if not is_number(v)):
        raise ShapeError(
            "mnp.hypot cannot take complex numbers.",
            where=here(),
            why="it is the length of a vector of two real numbers",
            fix="mnp.hypot(mnp.abs(x), mnp.abs(y))",
        )
    x, y = absolute(x), absolute(y)
    larger, smaller = maximum(x, y), minimum(x, y)
    ratio = divide(smaller, either(equal(larger, 0), 1.0, larger))
    length = multiply(larger, sqrt(add(square(ratio), 1.0)))
    return either(logical_or(isinf(x), isinf(y)), math.inf, either(equal(larger, 0), larger, length))


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
    x = inexact(x)
    angle = _times(x, math.pi)
    zero = equal(angle, 0)
    safe = either(zero, 1.0, angle)
    # At zero the series 1 - a²/3! + a⁴/5! - …, whose derivatives there are the function's, up to the 17th.
    squared, series = square(angle), value(1.0)
    for n in range(16, 0, -2):
        series = subtract(1.0, divide(multiply(squared, series), n * (n + 1)))
    if dtypes.is_complex(x.type.dtype):
        return either(zero, series, divide(sin(safe), safe))
    # Without the whole turns, which are exact in x and rounded in pi x: zero at every whole number but 0.
    turns = unary_round(x)
    part = sin(multiply(subtract(x, turns), math.pi))
    waves = either(equal(remainder(turns, 2), 0), part, negative(part))
    return either(zero, series, either(isinf(x), 0.0, divide(waves, safe)))


def deg2rad(x: ArrayLike, /) -> Value:
    """Degrees to radians."""
    return _times(x, math.pi / 180.0)


def rad2deg(x: ArrayLike, /) -> Value:
    """Radians to degrees."""
    return _times(x, 180.0 / math.pi)


def _times(x: ArrayLike, constant: float) -> Value:
    """``x`` times a constant of its own dtype, which is weak beside a weak scalar alone."""
    x = inexact(x)
    return multiply(strong(x) if x.ndim else x, constant)


radians, degrees = deg2rad, rad2deg

# Rounding


def floor(x: ArrayLike, /) -> Value:
    """The largest integer not above ``x``."""
    return _rounded(elementwise.floor, x)


def ceil(x: ArrayLike, /) -> Value:
    """The smallest integer not below ``x``."""
    return _rounded(elementwise.ceil, x)


def trunc(x: ArrayLike) -> Value:
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
    """The nearest integer, halves to even; integers become floats of the default width."""
    x = value(x)
    return round(x) if dtypes.is_inexact(x.type.dtype) else convert(x, dtypes.default_float())


def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Value:
    """``a`` rounded to ``decimals`` places, halves to even."""
    no_out(out, "mnp.round")
    x = value(a)
    decimals = static_int(decimals, "decimals of mnp.round")
    dtype = x.type.dtype
    if dtypes.is_complex(dtype):
        return apply(elementwise.complex, (round(real(x), decimals), round(imag(x), decimals)), {})
    if not dtypes.is_float(dtype):
        if decimals >= 0:
            return x
        if dtype == dtypes.BOOL or decimals < -20 or 10**-decimals > np.iinfo(dtype).max:
            return basic.zeros(x.type)
        factor = 10**-decimals
        return multiply(convert(round(divide(x, factor)), dtype), factor)
    if decimals == 0:
        return unary_round(x)
    wide = convert(x, dtypes.FLOAT32) if dtype.itemsize < 4 else x
    factor_ = 10.0 ** builtin_min(decimals, 308) if decimals > -308 else 0.0
    scaled = multiply(wide, factor_)
    # A number too large to be scaled has no places after the point, and one that vanishes is nothing in such tens.
    rounded = either(isfinite(scaled), divide(unary_round(scaled), factor_), wide)
    found = convert(either(equal(scaled, 0), multiply(wide, 0.0), rounded) if decimals < 0 else rounded, dtype)
    return strong(found) if found.ndim else found


around = round


def modf(x: ArrayLike, /, out: None = None) -> tuple[Value, Value]:
    """The fraction and the whole part."""
    no_out(out, "mnp.modf")
    x = inexact(x)
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
    static_flag(copy, "copy of mnp.nan_to_num")
    x = value(x)
    dtype = x.type.dtype
    if not dtypes.is_inexact(dtype):
        return x
    if dtypes.is_complex(dtype):
        parts = [nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf) for part in (real(x), imag(x))]
        return strong(apply(elementwise.complex, parts, {}))
    limits = finfo(dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    replaced = either(isnan(x), _of_dtype(nan, x), x)
    replaced = either(isposinf(x), _of_dtype(high, x), replaced)
    return strong(either(isneginf(x), _of_dtype(low, x), replaced))


def _of_dtype(x: ArrayLike, like: Value) -> Any:
    return x if is_number(x) else convert(value(x), like.type.dtype)


def ldexp(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x * 2**y`` for integers ``y``."""
    x, y = value(x), value(y)
    dtype = to_inexact(x.type.dtype)
    if dtypes.is_complex(dtype) or dtypes.is_inexact(y.type.dtype):
        raise ShapeError(
            f"mnp.ldexp cannot take {x.type.short()} and {y.type.short()}.",
            where=here(),
            why="it multiplies real numbers by whole powers of two",
            fix="x * mnp.exp2(y)",
        )
    # In four steps, each by a power that the dtype has, so that a result that fits is reached when 2**y itself does
    # not; with larger exponents everything overflows or vanishes, and 0 stays 0.
    most = 4 * (finfo(dtype).maxexp - 1)
    exponent = clip(convert(y, dtypes.INT32), -most, most)
    found = strong(convert(x, dtype))
    for step in range(4):
        found = multiply(found, exp2(convert(right_shift(add(exponent, step), 2), dtype)))
    return found


def angle(z: ArrayLike, deg: bool = False) -> Value:
    """The angle of a complex number."""
    deg = static_flag(deg, "deg of mnp.angle")
    z = value(z)
    if not dtypes.is_inexact(z.type.dtype) or (not z.ndim and dtypes.is_float(z.type.dtype)):
        z = strong(convert(z, dtypes.default_float()))
    turned = arctan2(imag(z), real(z))
    return rad2deg(turned) if deg else turned

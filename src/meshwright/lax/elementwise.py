"""The elementwise part of ``meshwright.lax``: ops by the names and argument orders of ``jax.lax``.

They do not promote. A scalar may stand beside an array, and dims of size 1 beside others.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from meshwright.arrays import scalars
from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    DTypeLike,
    broadcast,
    broadcast_shapes,
    convert,
    fitting,
    is_number,
    known,
    promoted,
    strong,
    value,
)
from meshwright.arrays.refusals import named_dtype, refuse
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import static_int
from meshwright.core import dtypes, tree
from meshwright.core.dtypes import of_python_scalar
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.errors import ShapeError
from meshwright.ops import basic, elementwise, special


class Precision(Enum):
    """How exactly to multiply; accepted where JAX has it, and without effect here."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class RoundingMethod(Enum):
    """Where halves go."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


# Elementwise


@compiled_in_kernels
def _unary(op: Op, x: ArrayLike) -> Value:
    return apply(op, (x if x.__class__ in VALUES else value(x),), {})


def _binary(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    if scalars.state.active:
        found = scalars.of_two(op.name, x, y)
        if found is not None:
            return found
    return _of_two(op, x, y)


@compiled_in_kernels
def _of_two(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    return apply(op, fitting_operands(op.name, x, y), {})


def fitting_operands(name: str, *given: ArrayLike) -> list[Any]:
    """Operands of one dtype and one shape: a Python number takes the dtype of the arrays beside it, if that has such
    numbers, and dims of size 1 are stretched to those of arrays of the same rank."""
    xs = _of_one_dtype(name, *given)
    shapes = {x.shape for x in xs if x.__class__ in VALUES and x.ndim}
    if len(shapes) < 2 or len({len(shape) for shape in shapes}) > 1:
        return xs
    found = broadcast_shapes(*shapes)
    return xs if found is None else [broadcast(x, found) if x.__class__ in VALUES and x.ndim else x for x in xs]


def _of_one_dtype(name: str, *given: ArrayLike) -> list[Any]:
    xs = [x if x.__class__ in VALUES or is_number(x) else value(x) for x in given]
    arrays = [x for x in xs if x.__class__ in VALUES]
    if not arrays:
        return [value(x) for x in xs]
    dtype = arrays[-1].type.dtype
    for x in xs:
        if x.__class__ not in VALUES and promoted((dtype, False), of_python_scalar(x))[0] != dtype:
            raise ShapeError(
                f"lax.{name} cannot take {x!r} beside {arrays[-1].type.short()}.",
                where=here(),
                why=f"its operands have one dtype, and {dtype.name} has no such number",
                fix="the function of the same name in meshwright.numpy, which promotes; or x.astype('float32')",
            )
    return [x if x.__class__ in VALUES else fitting(x, dtype) for x in xs]


def neg(x: ArrayLike) -> Value:
    """``-x``."""
    return _unary(basic.neg, x)


def abs(x: ArrayLike) -> Value:
    """The absolute value."""
    return _unary(elementwise.abs_, x)


def sign(x: ArrayLike) -> Value:
    """-1, 0 or 1."""
    return _unary(elementwise.sign, x)


def exp(x: ArrayLike) -> Value:
    """e to the ``x``."""
    return _unary(elementwise.exp, x)


def exp2(x: ArrayLike) -> Value:
    """2 to the ``x``."""
    return _unary(elementwise.exp2, x)


def expm1(x: ArrayLike) -> Value:
    """``exp(x) - 1``."""
    return _unary(elementwise.expm1, x)


def log(x: ArrayLike) -> Value:
    """The natural logarithm."""
    return _unary(elementwise.log, x)


def log1p(x: ArrayLike) -> Value:
    """``log(1 + x)``."""
    return _unary(elementwise.log1p, x)


def sqrt(x: ArrayLike) -> Value:
    """The square root."""
    return _unary(elementwise.sqrt, x)


def rsqrt(x: ArrayLike) -> Value:
    """``1 / sqrt(x)``."""
    return _unary(elementwise.rsqrt, x)


def cbrt(x: ArrayLike) -> Value:
    """The cube root."""
    return _unary(elementwise.cbrt, x)


def square(x: ArrayLike) -> Value:
    """``x * x``."""
    return _unary(elementwise.square, x)


def sin(x: ArrayLike) -> Value:
    """The sine."""
    return _unary(elementwise.sin, x)


def cos(x: ArrayLike) -> Value:
    """The cosine."""
    return _unary(elementwise.cos, x)


def tan(x: ArrayLike) -> Value:
    """The tangent."""
    return _unary(elementwise.tan, x)


def asin(x: ArrayLike) -> Value:
    """The angle whose sine is ``x``."""
    return _unary(elementwise.asin, x)


def acos(x: ArrayLike) -> Value:
    """The angle whose cosine is ``x``."""
    return _unary(elementwise.acos, x)


def atan(x: ArrayLike) -> Value:
    """The angle whose tangent is ``x``."""
    return _unary(elementwise.atan, x)


def sinh(x: ArrayLike) -> Value:
    """The hyperbolic sine."""
    return _unary(elementwise.sinh, x)


def cosh(x: ArrayLike) -> Value:
    """The hyperbolic cosine."""
    return _unary(elementwise.cosh, x)


def tanh(x: ArrayLike) -> Value:
    """The hyperbolic tangent."""
    return _unary(elementwise.tanh, x)


def asinh(x: ArrayLike) -> Value:
    """The inverse of ``sinh``."""
    return _unary(elementwise.asinh, x)


def acosh(x: ArrayLike) -> Value:
    """The inverse of ``cosh``."""
    return _unary(elementwise.acosh, x)


def atanh(x: ArrayLike) -> Value:
    """The inverse of ``tanh``."""
    return _unary(elementwise.atanh, x)


def logistic(x: ArrayLike) -> Value:
    """``1 / (1 + exp(-x))``."""
    return _unary(elementwise.logistic, x)


def erf(x: ArrayLike) -> Value:
    """The error function."""
    return _unary(elementwise.erf, x)


def erfc(x: ArrayLike) -> Value:
    """``1 - erf(x)``."""
    return _unary(elementwise.erfc, x)


def erf_inv(x: ArrayLike) -> Value:
    """The inverse of ``erf``."""
    return _unary(elementwise.erf_inv, x)


def lgamma(x: ArrayLike) -> Value:
    """The logarithm of the gamma function."""
    return _unary(elementwise.lgamma, x)


def digamma(x: ArrayLike) -> Value:
    """The derivative of ``lgamma``."""
    return _unary(elementwise.digamma, x)


def ceil(x: ArrayLike) -> Value:
    """The smallest integer not below ``x``."""
    return _unary(elementwise.ceil, x)


def floor(x: ArrayLike) -> Value:
    """The largest integer not above ``x``."""
    return _unary(elementwise.floor, x)


def is_finite(x: ArrayLike) -> Value:
    """Whether ``x`` is neither infinite nor NaN."""
    return _unary(elementwise.is_finite, x)


def bitwise_not(x: ArrayLike) -> Value:
    """``~x``."""
    return _unary(elementwise.not_, x)


def population_count(x: ArrayLike) -> Value:
    """How many bits are set."""
    return _unary(elementwise.population_count, x)


def clz(x: ArrayLike) -> Value:
    """How many leading bits are zero."""
    return _unary(elementwise.clz, x)


def real(x: ArrayLike) -> Value:
    """The real part."""
    return _unary(elementwise.real, x)


def imag(x: ArrayLike) -> Value:
    """The imaginary part."""
    return _unary(elementwise.imag, x)


def add(x: ArrayLike, y: ArrayLike) -> Value:
    """``x + y``."""
    return _binary(basic.add, x, y)


def sub(x: ArrayLike, y: ArrayLike) -> Value:
    """``x - y``."""
    return _binary(elementwise.sub, x, y)


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike = None) -> Value:
    """``x * y``; in another dtype, both are converted to it first."""
    if out_dtype is not None:
        x, y = (convert_element_type(operand, out_dtype) for operand in fitting_operands("mul", x, y))
    return _binary(basic.mul, x, y)


def mulhi(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The upper half of the bits of a product of integers, which has twice as many as they.

    >>> import meshwright.numpy as mnp
    >>> int(mulhi(mnp.uint32(2**31), mnp.uint32(6)))
    3
    """
    a, b = (value(operand) for operand in fitting_operands("mulhi", x, y))
    if not dtypes.is_integer(a.dtype) or a.dtype != b.dtype:
        refuse("lax.mulhi", [a.type, b.type], "it multiplies integers of one dtype", "x.astype('int32')")
    width = 8 * a.dtype.itemsize
    half = elementwise.shift_right_logical if a.dtype.kind == "u" else elementwise.shift_right_arithmetic
    if width < 64:
        wide = np.dtype(f"{'u' if a.dtype.kind == 'u' else ''}int{2 * width}")
        product = basic.mul(*(convert(operand, wide) for operand in (a, b)))
        return convert(half(product, width), a.dtype)
    # With a = 2³² a₁ + a₀ and so for b, a₀ is not negative; the carries of the middle products are added up.
    low = np.asarray(2**32 - 1, a.dtype)
    (a0, b0), (a1, b1) = ([elementwise.and_(v, low) for v in (a, b)], [half(v, 32) for v in (a, b)])
    carried = basic.add(basic.mul(a1, b0), elementwise.shift_right_logical(basic.mul(a0, b0), 32))
    middle = basic.add(basic.mul(a0, b1), elementwise.and_(carried, low))
    return basic.add(basic.mul(a1, b1), basic.add(half(carried, 32), half(middle, 32)))


def div(x: ArrayLike, y: ArrayLike) -> Value:
    """``x / y``; of integers, rounded towards zero."""
    return _binary(elementwise.div, x, y)


def rem(x: ArrayLike, y: ArrayLike) -> Value:
    """The remainder of ``x / y``, with the sign of ``x``."""
    return _binary(elementwise.rem, x, y)


def max(x: ArrayLike, y: ArrayLike) -> Value:
    """The larger of two."""
    return _binary(elementwise.maximum, x, y)


def min(x: ArrayLike, y: ArrayLike) -> Value:
    """The smaller of two."""
    return _binary(elementwise.minimum, x, y)


def atan2(x: ArrayLike, y: ArrayLike) -> Value:
    """The angle of the point (``y``, ``x``)."""
    return _binary(elementwise.atan2, x, y)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The next float after ``x1`` towards ``x2``."""
    return _binary(elementwise.nextafter, x1, x2)


def eq(x: ArrayLike, y: ArrayLike) -> Value:
    """``x == y``."""
    return _binary(elementwise.eq, x, y)


def ne(x: ArrayLike, y: ArrayLike) -> Value:
    """``x != y``."""
    return _binary(elementwise.ne, x, y)


def lt(x: ArrayLike, y: ArrayLike) -> Value:
    """``x < y``."""
    return _binary(elementwise.lt, x, y)


def le(x: ArrayLike, y: ArrayLike) -> Value:
    """``x <= y``."""
    return _binary(elementwise.le, x, y)


def gt(x: ArrayLike, y: ArrayLike) -> Value:
    """``x > y``."""
    return _binary(elementwise.gt, x, y)


def ge(x: ArrayLike, y: ArrayLike) -> Value:
    """``x >= y``."""
    return _binary(elementwise.ge, x, y)


def bitwise_and(x: ArrayLike, y: ArrayLike) -> Value:
    """``x & y``."""
    return _binary(elementwise.and_, x, y)


def bitwise_or(x: ArrayLike, y: ArrayLike) -> Value:
    """``x | y``."""
    return _binary(elementwise.or_, x, y)


def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Value:
    """``x ^ y``."""
    return _binary(elementwise.xor, x, y)


def shift_left(x: ArrayLike, y: ArrayLike) -> Value:
    """``x << y``."""
    return _binary(elementwise.shift_left, x, y)


def shift_right_arithmetic(x: ArrayLike, y: ArrayLike) -> Value:
    """``x >> y``, keeping the sign."""
    return _binary(elementwise.shift_right_arithmetic, x, y)


def shift_right_logical(x: ArrayLike, y: ArrayLike) -> Value:
    """``x >> y``, filling with zeros."""
    return _binary(elementwise.shift_right_logical, x, y)


def complex(x: ArrayLike, y: ArrayLike) -> Value:
    """``x + i y``."""
    return _binary(elementwise.complex, x, y)


def reciprocal(x: ArrayLike) -> Value:
    """``1 / x``."""
    x = value(x)
    if not dtypes.is_inexact(x.type.dtype):
        raise ShapeError(
            f"lax.reciprocal cannot take {x.type.short()}.",
            where=here(),
            why="the reciprocal of an integer is not an integer",
            fix="mnp.reciprocal(x), which converts",
        )
    return apply(elementwise.div, (1, x), {})


MOST_DERIVATIVES = 100  # beyond, their size is no float


def polygamma(m: ArrayLike, x: ArrayLike) -> Value:
    """The ``m``-th derivative of ``digamma``, for one known whole number ``m``, also as a float or an array of it."""
    orders = np.unique(known(value(m), "m of lax.polygamma", "pass m as a Python number"))
    real = dtypes.is_integer(orders.dtype) or dtypes.is_float(orders.dtype)
    if orders.size != 1 or not real or orders[0] not in range(MOST_DERIVATIVES):
        why = f"it is one whole number for all elements, below {MOST_DERIVATIVES}"
        raise ShapeError(f"m of lax.polygamma is {m!r}.", where=here(), why=why, fix="m=1")
    order = int(orders[0])
    x, like = value(x), value(m).type
    x = broadcast(x, like.shape) if like.ndim and not x.ndim else x
    found = digamma(x) if order == 0 else apply(special.polygamma, (x,), {"order": order})
    return found if like.weak else strong(found)


def conj(x: ArrayLike, input_dtype: Any = None) -> Value:
    """The complex conjugate, complex also where ``x`` is real."""
    return _unary(elementwise.conj, x)


def pow(x: ArrayLike, y: ArrayLike) -> Value:
    """``x ** y`` of floats; an integer ``y`` is converted."""
    x, y = (v if v.__class__ in VALUES or is_number(v) else value(v) for v in (x, y))
    if x.__class__ in VALUES and y.__class__ in VALUES and dtypes.is_integer(y.type.dtype):
        y = convert(y, x.type.dtype, y.type.weak)
    return apply(elementwise.pow_, fitting_operands("pow", x, y), {})


def integer_pow(x: ArrayLike, y: int) -> Value:
    """``x ** y`` for a Python integer ``y``."""
    return apply(elementwise.integer_pow, (value(x),), {"exponent": static_int(y, "y of lax.integer_pow")})


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Value:
    """The nearest integer, halves away from zero unless told otherwise."""
    if rounding_method not in (*RoundingMethod, *(method.value for method in RoundingMethod)):
        raise ShapeError(
            f"lax.round cannot take {rounding_method=}.",
            where=here(),
            why=f"it is one of {', '.join(map(str, RoundingMethod))}",
            fix="lax.RoundingMethod.TO_NEAREST_EVEN",
        )
    away = RoundingMethod(rounding_method) is RoundingMethod.AWAY_FROM_ZERO
    return apply(elementwise.round_, (value(x),), {"away": away})


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Value:
    """``x`` limited to lie between ``min`` and ``max``."""
    low, high = (v if is_number(v) else value(v) for v in (min, max))
    x = value(x)
    for bound in (low, high):
        if bound.__class__ in VALUES and bound.ndim and bound.shape != x.shape:
            why = "a bound is one number, or has the shape of x"
            refuse("lax.clamp", [x.type, bound.type], why, "mnp.clip(x, low, high), which broadcasts")
    return apply(elementwise.clamp, _of_one_dtype("clamp", low, x, high), {})


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Value:
    """``on_true`` where ``pred`` holds, else ``on_false``."""
    return select_n(pred, on_false, on_true)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Value:
    """Of several arrays the one whose number ``which`` says; a boolean chooses the second where it holds."""
    which = value(which)
    by_truth = which.type.dtype == dtypes.BOOL
    if not cases or (by_truth and len(cases) > 2) or not (by_truth or dtypes.is_integer(which.type.dtype)):
        raise ShapeError(
            f"lax.select_n cannot choose by {which.type.short()} among {len(cases)} arrays.",
            where=here(),
            why="a bool chooses among two arrays, an integer among any number",
            fix="lax.select_n(which, x, y)",
        )
    chosen = value(cases[0])
    types = [value(case).type for case in cases]
    if which.ndim and all(t.shape != which.shape for t in types):
        why = "what chooses is one number, or has the shape of the arrays"
        refuse("lax.select_n", [which.type, *types], why, "mnp.where(which, x, y), which broadcasts")
    for n, case in enumerate(cases[1:], 1):
        here_ = which if which.type.dtype == dtypes.BOOL else apply(elementwise.ge, (which, n), {})
        chosen = apply(elementwise.select, (here_, value(case), chosen), {})
    return chosen


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Value:
    """``operand`` rounded to a float of fewer bits, in its own dtype."""
    params = {
        "exponent_bits": static_int(exponent_bits, "exponent_bits of lax.reduce_precision"),
        "mantissa_bits": static_int(mantissa_bits, "mantissa_bits of lax.reduce_precision"),
    }
    return apply(elementwise.reduce_precision, (value(operand),), params)


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Value:
    """``operand`` in another dtype."""
    return strong(convert(value(operand), named_dtype(new_dtype, "new_dtype of lax.convert_element_type")))


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Value:
    """The bits of ``operand`` read as another dtype."""
    kind = named_dtype(new_dtype, "new_dtype of lax.bitcast_convert_type")
    return elementwise.bitcast(value(operand), dtype=kind)


def stop_gradient(x: Any) -> Any:
    """``x``, as a constant to differentiation; also of nested containers of arrays.

    >>> import meshwright as mw
    >>> float(mw.grad(lambda x: x * mw.lax.stop_gradient(x))(3.0))
    3.0
    """
    return tree.map(_stop, x)


def _stop(x: ArrayLike) -> Value:
    x = value(x)
    return apply(elementwise.stop_gradient, (x,), {}) if dtypes.is_inexact(x.type.dtype) else x


def optimization_barrier(operand: Any) -> Any:
    """The same values, computed together: nothing is moved across."""
    leaves, structure = tree.flatten(operand)
    if not leaves:
        return operand
    outs = elementwise.optimization_barrier(*(value(x) for x in leaves))
    return tree.unflatten(structure, list(outs) if isinstance(outs, tuple) else [outs])

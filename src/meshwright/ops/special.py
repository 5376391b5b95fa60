"""Roots, exponentials, logarithms, trigonometric functions and those of probability theory."""

from __future__ import annotations

from collections.abc import Callable
from math import log as real_log
from math import pi
from math import sqrt as real_sqrt
from typing import Any

from meshwright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INEXACT, DType
from meshwright.core.factors import pointwise
from meshwright.core.op import Linearity, Op, Operand, Sample, Value, define_op
from meshwright.core.types import TensorType
from meshwright.ops.arithmetic import div, square, sub
from meshwright.ops.basic import Derivatives, add, mul, neg, pointwise_batch, scalar_like, zeros
from meshwright.ops.bits import and_
from meshwright.ops.choice import eq, select
from meshwright.ops.pointwise import TRANSCENDENTAL, pointwise_op
from meshwright.ops.rules import Ufunc, bad_operands, check_dtype, not_linear, pointwise_cost, pointwise_samples


def _function(
    name: str,
    evaluate: str | Callable[..., Any],
    derivative: Callable[..., Value],
    *,
    dtypes: tuple[DType, ...] = INEXACT,
    low: float = -2.0,
    high: float = 2.0,
    stablehlo: str | None = None,
    in_parts: Callable[..., Any] | None = None,
) -> Op:
    """A function of one operand, given by its evaluation and ``derivative(t, out, x)``."""
    return pointwise_op(
        name,
        dtypes=dtypes,
        evaluate=Ufunc(evaluate) if isinstance(evaluate, str) else evaluate,
        jvp=Derivatives(derivative),
        flops=TRANSCENDENTAL,
        samples=pointwise_samples(1, low, high),
        stablehlo=stablehlo,
        in_parts=in_parts,
    )


# Roots

sqrt: Op = _function("sqrt", "sqrt", lambda t, out, x: mul(t, div(0.5, out)), low=0.1, stablehlo="stablehlo.sqrt")
rsqrt: Op = _function(
    "rsqrt", "rsqrt", lambda t, out, x: mul(t, div(mul(out, -0.5), x)), low=0.1, stablehlo="stablehlo.rsqrt"
)
cbrt: Op = _function(
    "cbrt",
    "cbrt",
    lambda t, out, x: mul(t, div(1 / 3, square(out))),
    dtypes=FLOATS,
    low=0.1,
    stablehlo="stablehlo.cbrt",
)

# Exponentials and logarithms

exp: Op = _function("exp", "exp", lambda t, out, x: mul(t, out), stablehlo="stablehlo.exponential")
exp2: Op = _function(
    "exp2", "exp2", lambda t, out, x: mul(t, mul(out, real_log(2))), in_parts=lambda x: pow_(add(zeros(x.type), 2), x)
)
expm1: Op = _function(
    "expm1", "expm1", lambda t, out, x: mul(t, add(out, 1)), stablehlo="stablehlo.exponential_minus_one"
)
log: Op = _function("log", "log", lambda t, out, x: div(t, x), low=0.1, stablehlo="stablehlo.log")
log1p: Op = _function(
    "log1p", "log1p", lambda t, out, x: div(t, add(x, 1)), low=-0.8, stablehlo="stablehlo.log_plus_one"
)
logistic: Op = _function(
    "logistic", "logistic", lambda t, out, x: mul(t, mul(out, sub(1, out))), stablehlo="stablehlo.logistic"
)


def _pow_by_base(t: Value, out: Value, x: Value, y: Value) -> Value:
    """y x^(y-1), which is 0 for y = 0 also at x = 0: as a function of y, so that it can be differentiated by y."""
    constant = and_(eq(x, 0), eq(y, 0))
    return mul(t, mul(y, pow_(select(constant, scalar_like(x, 1), x), sub(y, 1))))


def _pow_by_exponent(t: Value, out: Value, x: Value, y: Value) -> Value:
    """x^y log x, which is 0 at x = 0."""
    return mul(t, mul(out, log(select(eq(x, 0), scalar_like(x, 1), x))))


pow_: Op = pointwise_op(
    "pow",
    arity=2,
    dtypes=INEXACT,
    evaluate=Ufunc("power"),
    jvp=Derivatives(_pow_by_base, _pow_by_exponent),
    flops=2 * TRANSCENDENTAL,
    samples=pointwise_samples(2, 0.3, 2.0),
    stablehlo="stablehlo.power",
)

# Trigonometric functions

sin: Op = _function("sin", "sin", lambda t, out, x: mul(t, cos(x)), stablehlo="stablehlo.sine")
cos: Op = _function("cos", "cos", lambda t, out, x: mul(t, neg(sin(x))), stablehlo="stablehlo.cosine")
tan: Op = _function(
    "tan", "tan", lambda t, out, x: mul(t, add(square(out), 1)), low=-1.2, high=1.2, stablehlo="stablehlo.tan"
)
asin: Op = _function(
    "asin", "arcsin", lambda t, out, x: mul(t, rsqrt(sub(1, square(x)))), low=-0.9, high=0.9, stablehlo="chlo.asin"
)
acos: Op = _function(
    "acos", "arccos", lambda t, out, x: mul(t, neg(rsqrt(sub(1, square(x))))), low=-0.9, high=0.9, stablehlo="chlo.acos"
)
atan: Op = _function("atan", "arctan", lambda t, out, x: div(t, add(square(x), 1)), stablehlo="chlo.atan")


def _atan2(xp: Any, y: Any, x: Any) -> Any:
    """The angle of (x, y); of complex ones -i log((x + iy) / sqrt(x² + y²))."""
    if x.dtype.kind != "c":
        return xp.atan2(y, x)
    return -1j * xp.log((x + 1j * y) / xp.sqrt(xp.square(x) + xp.square(y)))


atan2: Op = pointwise_op(
    "atan2",
    arity=2,
    dtypes=INEXACT,
    evaluate=_atan2,
    jvp=Derivatives(
        lambda t, out, y, x: mul(t, div(x, add(square(y), square(x)))),
        lambda t, out, y, x: mul(t, div(neg(y), add(square(y), square(x)))),
    ),
    flops=TRANSCENDENTAL,
    samples=pointwise_samples(2, 0.3, 2.0),
    stablehlo="stablehlo.atan2",
)

# Hyperbolic functions

sinh: Op = _function("sinh", "sinh", lambda t, out, x: mul(t, cosh(x)), stablehlo="chlo.sinh")
cosh: Op = _function("cosh", "cosh", lambda t, out, x: mul(t, sinh(x)), stablehlo="chlo.cosh")
tanh: Op = _function("tanh", "tanh", lambda t, out, x: mul(t, sub(1, square(out))), stablehlo="stablehlo.tanh")
asinh: Op = _function("asinh", "arcsinh", lambda t, out, x: mul(t, rsqrt(add(square(x), 1))), stablehlo="chlo.asinh")
acosh: Op = _function(
    "acosh",
    "arccosh",
    lambda t, out, x: mul(t, mul(rsqrt(sub(x, 1)), rsqrt(add(x, 1)))),
    low=1.1,
    high=3.0,
    stablehlo="chlo.acosh",
)
atanh: Op = _function(
    "atanh", "arctanh", lambda t, out, x: div(t, sub(1, square(x))), low=-0.9, high=0.9, stablehlo="chlo.atanh"
)

# Probability

_TWO_OVER_ROOT_PI = 2 / real_sqrt(pi)

erf: Op = _function(
    "erf",
    "erf",
    lambda t, out, x: mul(t, mul(exp(neg(square(x))), _TWO_OVER_ROOT_PI)),
    dtypes=FLOATS,
    stablehlo="chlo.erf",
)
erfc: Op = _function(
    "erfc",
    "erfc",
    lambda t, out, x: mul(t, mul(exp(neg(square(x))), -_TWO_OVER_ROOT_PI)),
    dtypes=(FLOAT16, BFLOAT16, FLOAT32, FLOAT64),
    stablehlo="chlo.erfc",
)
erf_inv: Op = _function(
    "erf_inv",
    "erf_inv",
    lambda t, out, x: mul(t, mul(exp(square(out)), 1 / _TWO_OVER_ROOT_PI)),
    dtypes=FLOATS,
    low=-0.9,
    high=0.9,
    stablehlo="chlo.erf_inv",
)
lgamma: Op = _function(
    "lgamma", "lgamma", lambda t, out, x: mul(t, digamma(x)), dtypes=FLOATS, low=0.2, high=5.0, stablehlo="chlo.lgamma"
)
digamma: Op = _function(
    "digamma",
    "digamma",
    lambda t, out, x: mul(t, polygamma(x, order=1)),
    dtypes=FLOATS,
    low=0.2,
    high=5.0,
    stablehlo="chlo.digamma",
)


_MOST_DERIVATIVES = 150


def _polygamma_type(x: TensorType, order: int) -> TensorType:
    check_dtype("polygamma", [x], x.dtype, FLOATS)
    if not 0 <= order <= _MOST_DERIVATIVES:
        raise bad_operands(
            "polygamma",
            [x],
            f"it is a derivative of digamma: one of the first {_MOST_DERIVATIVES}, whose factorials are f64s",
            "order=1",
        )
    return x


polygamma: Op = define_op(
    "polygamma",
    type=_polygamma_type,
    factors=pointwise,
    linear=Linearity.NONE,
    jvp=Derivatives(lambda t, out, x, order: mul(t, polygamma(x, order=order + 1))),
    transpose=not_linear("polygamma"),
    batch=pointwise_batch,
    evaluate=lambda xp, x, order: xp.polygamma(x, order),
    cost=pointwise_cost(3 * TRANSCENDENTAL),
    dtypes=FLOATS,
    samples=lambda: [Sample((Operand((2, 4), None, 0.2, 5.0),), {"order": order}) for order in (1, 2, 5)],
)

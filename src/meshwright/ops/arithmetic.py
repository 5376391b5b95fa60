"""Arithmetic, complex numbers, signs and rounding, and the ops that pass a value on unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meshwright.core import dtypes
from meshwright.core.dtypes import ALL, COMPLEXES, FLOAT32, FLOAT64, FLOATS, INEXACT, INTEGERS, NUMBERS, SIGNED, DType
from meshwright.core.factors import FactorBuilder, Factors, pointwise
from meshwright.core.facts import Fusion
from meshwright.core.linearity import LinearGroup
from meshwright.core.op import Cost, Linear, Linearity, No, NotLinear, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import TensorType
from meshwright.ops.basic import (
    Derivatives,
    add,
    convert,
    linear_jvp,
    mul,
    neg,
    number_in,
    pointwise_batch,
    scalar_like,
    unbroadcast,
    zeros,
    zeros_like,
)
from meshwright.ops.choice import ge, select
from meshwright.ops.pointwise import constant_op, pointwise_op
from meshwright.ops.rules import (
    Negative,
    Ufunc,
    bad_operands,
    check_dtype,
    move_cost,
    pointwise_samples,
    traffic,
    zero_jvp,
)

# Subtraction, division, remainder


def _sub_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, y = inputs
    return [
        unbroadcast(cts[0], x) if isinstance(x, Linear) else None,
        Negative(unbroadcast(cts[0], y)) if isinstance(y, Linear) else None,
    ]


sub: Op = pointwise_op(
    "sub",
    arity=2,
    dtypes=NUMBERS,
    evaluate=Ufunc("subtract"),
    jvp=Derivatives(lambda t, out, x, y: t, lambda t, out, x, y: neg(t)),
    linear=Linearity.JOINTLY,
    transpose=_sub_transpose,
    stablehlo="stablehlo.subtract",
)


def _divide(xp: Any, x: Any, y: Any) -> Any:
    """Integers are divided towards zero; by zero they give all bits set. A complex zero is signed by its real part."""
    if x.dtype.kind == "c":
        quotient = xp.divide(x, y)
        return xp.where((y == 0) & xp.signbit(xp.real(y)), -quotient, quotient)
    if x.dtype.kind not in "iu":
        return xp.divide(x, y)
    by_zero = y == 0
    divisor = xp.where(by_zero, xp.ones_like(y), y)
    if x.dtype.kind == "i":
        x = x - xp.fmod(x, divisor)
    return xp.where(by_zero, ~y, xp.floor_divide(x, divisor))


def _remainder(xp: Any, x: Any, y: Any) -> Any:
    """The remainder of division towards zero; of integers by zero, the dividend."""
    if x.dtype.kind not in "iu":
        return xp.fmod(x, y)
    by_zero = y == 0
    return xp.where(by_zero, x, xp.fmod(x, xp.where(by_zero, xp.ones_like(y), y)))


def _quotient_groups(operands: Types, results: Types, params: Params) -> tuple[LinearGroup, ...]:
    """Integers are rounded, so that a quotient of theirs is not linear."""
    return (LinearGroup((0,), divisors=(1,)),) if dtypes.is_inexact(operands[0].dtype) else ()


def _quotient_samples() -> list[Sample]:
    x, y = partial(Operand, low=-6.0, high=6.0), partial(Operand, low=0.6, high=3.0)
    return [Sample((x(n), y(m))) for n, m in (((2, 4), (2, 4)), ((2, 4), ()), ((), (2, 4)), ((), ()))]


def _div_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    if not dtypes.is_inexact(inputs[0].type.dtype):
        raise NotLinear  # it rounds
    return [unbroadcast(div(number_in(cts[0], inputs[1]), inputs[1]), inputs[0]), None]


div: Op = pointwise_op(
    "div",
    arity=2,
    dtypes=NUMBERS,
    fusion=Fusion.ELEMENTWISE,
    evaluate=_divide,
    jvp=Derivatives(lambda t, out, x, y: div(t, y), lambda t, out, x, y: mul(t, div(neg(out), y))),
    linear=_quotient_groups,
    transpose=_div_transpose,
    samples=_quotient_samples,
    stablehlo="stablehlo.divide",
)

rem: Op = pointwise_op(
    "rem",
    arity=2,
    dtypes=INTEGERS + FLOATS,
    fusion=Fusion.ELEMENTWISE,
    evaluate=_remainder,
    # x rem y = x - y trunc(x / y), of which the last is whole, and a constant to later derivatives
    jvp=Derivatives(lambda t, out, x, y: t, lambda t, out, x, y: mul(t, round_(div(sub(out, x), y), away=False))),
    samples=_quotient_samples,
    stablehlo="stablehlo.remainder",
)

# Powers with a whole exponent


def _integer_pow_type(x: TensorType, exponent: int) -> TensorType:
    check_dtype("integer_pow", [x], x.dtype, NUMBERS)
    if exponent < 0 and not dtypes.is_inexact(x.dtype):
        raise bad_operands(
            "integer_pow", [x], f"an integer to the power {exponent} is a fraction", f"x.astype(float) ** {exponent}"
        )
    return x


def _integer_pow(xp: Any, x: Any, exponent: int) -> Any:
    """By squaring; narrow floats in f32, so that it rounds once."""
    if exponent == 0:
        return xp.ones_like(x)
    dtype = x.dtype
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        x = xp.astype(x, dtypes.FLOAT32)
    total: Any = None
    rest = abs(exponent)
    while True:
        if rest & 1:
            total = x if total is None else total * x
        rest >>= 1
        if not rest:
            break
        x = xp.square(x)
    if exponent < 0:
        total = 1 / total
    return total if x.dtype == dtype else xp.astype(total, dtype)


def _power_in_parts(x: Value, exponent: int) -> Value:
    """By squaring; a negative power is one over the positive one."""
    result, power, left = None, x, abs(exponent)
    while left:
        if left % 2:
            result = power if result is None else mul(result, power)
        left //= 2
        power = mul(power, power) if left else power
    one = add(zeros(x.type), 1)
    if result is None:
        return one
    return result if exponent > 0 else div(one, result)


integer_pow: Op = define_op(
    "integer_pow",
    type=_integer_pow_type,
    factors=pointwise,
    linear=Linearity.NONE,
    jvp=Derivatives(
        lambda t, out, x, exponent: (
            mul(t, mul(integer_pow(x, exponent=exponent - 1), exponent)) if exponent else zeros_like(out)
        )
    ),
    transpose=No("a power is not linear; differentiate it first, then transpose the derivative"),
    batch=pointwise_batch,
    evaluate=_integer_pow,
    cost=lambda operands, results, params: Cost(
        results[0].size * 2.0 * abs(params["exponent"]).bit_length(), traffic(operands, results)
    ),
    dtypes=NUMBERS,
    samples=lambda: [
        *(Sample((Operand((2, 4)),), {"exponent": n}) for n in (3, 0, 1, 2, 6)),
        *(Sample((Operand((2, 4), dtypes.FLOAT64, 0.5, 2.0),), {"exponent": n}) for n in (-1, -3)),
    ],
    in_parts=_power_in_parts,
)

square: Op = pointwise_op(
    "square",
    dtypes=NUMBERS,
    evaluate=Ufunc("square"),
    jvp=Derivatives(lambda t, out, x: mul(t, mul(x, 2))),
    stablehlo="chlo.square",
    in_parts=lambda x: mul(x, x),
)

# Complex numbers. Cotangents pair with tangents by the real part of their product, not conjugated: those of a real and
# an imaginary part a and b, together, are a - ib.


_COMPLEX_OF: dict[DType, DType] = {FLOAT32: dtypes.COMPLEX64, FLOAT64: dtypes.COMPLEX128}


def _complex_of(dtype: DType) -> DType:
    return _COMPLEX_OF.get(dtype, dtype)


def _complex_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    re, im = inputs
    return [
        unbroadcast(real(cts[0]), re) if isinstance(re, Linear) else None,
        neg(unbroadcast(imag(cts[0]), im)) if isinstance(im, Linear) else None,
    ]


def _conj_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    return [conj(cts[0]) if dtypes.is_complex(inputs[0].type.dtype) else real(cts[0])]


real: Op = pointwise_op(
    "real",
    dtypes=COMPLEXES,
    result=dtypes.real_part,
    evaluate=lambda xp, x: xp.real(x),
    jvp=linear_jvp,
    linear=Linearity.MOVES,
    transpose=lambda op, cts, inputs, params: [complex(cts[0], 0)],
    stablehlo="stablehlo.real",
)
imag: Op = pointwise_op(
    "imag",
    dtypes=COMPLEXES,
    result=dtypes.real_part,
    evaluate=lambda xp, x: xp.imag(x),
    jvp=linear_jvp,
    linear=Linearity.MOVES,
    transpose=lambda op, cts, inputs, params: [complex(0, neg(cts[0]))],
    stablehlo="stablehlo.imag",
)
complex: Op = pointwise_op(
    "complex",
    arity=2,
    dtypes=(FLOAT32, FLOAT64),
    result=_complex_of,
    evaluate=lambda xp, re, im: xp.complex(re, im),
    jvp=linear_jvp,
    linear=Linearity.MOVES,
    transpose=_complex_transpose,
    stablehlo="stablehlo.complex",
)


def _conj_in_parts(x: Value) -> Value:
    return complex(x, zeros(x.type)) if x.dtype.kind != "c" else complex(real(x), neg(imag(x)))


conj: Op = pointwise_op(
    "conj",
    dtypes=(FLOAT32, FLOAT64, *COMPLEXES),
    result=_complex_of,
    evaluate=lambda xp, x: xp.conj(x) if x.dtype.kind == "c" else xp.astype(x, _complex_of(x.dtype)),
    jvp=linear_jvp,
    linear=Linearity.JOINTLY,
    transpose=_conj_transpose,
    stablehlo="chlo.conj",
    in_parts=_conj_in_parts,
)

# Size and sign


def _abs_derivative(t: Value, out: Value, x: Value) -> Value:
    """d|x| = Re(t conj(x)) / |x|; at 0 it is taken to be t if x is real, and 0 if it is complex."""
    if dtypes.is_complex(x.dtype):
        return real(mul(t, conj(sign(x))))
    return mul(t, select(ge(x, 0), scalar_like(x, 1), scalar_like(x, -1)))


def _sign(xp: Any, x: Any) -> Any:
    """x / |x|; zeros keep their sign."""
    return xp.copysign(xp.sign(x), x) if dtypes.is_float(x.dtype) else xp.sign(x)


def _sign_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """Real signs are constant; a complex one turns with the part of the tangent that is across it."""
    x, t = primals[0], tangents[0]
    out = sign(x)
    if t is None or not dtypes.is_complex(x.dtype):
        return [out], [None]
    across = imag(mul(t, conj(out)))
    return [out], [mul(complex(0, across), div(out, convert(abs_(x), dtype=x.dtype, weak=False)))]


abs_: Op = pointwise_op(
    "abs",
    dtypes=SIGNED + INEXACT,
    result=dtypes.real_part,
    evaluate=Ufunc("abs"),
    jvp=Derivatives(_abs_derivative),
    stablehlo="stablehlo.abs",
)
sign: Op = pointwise_op("sign", dtypes=NUMBERS, evaluate=_sign, jvp=_sign_jvp, stablehlo="stablehlo.sign")

# Rounding


def _round(xp: Any, x: Any, away: bool) -> Any:
    """Halves go to the even neighbour, or away from zero."""
    if not away:
        return xp.rint(x)
    whole = xp.trunc(x)
    size = xp.abs(whole) + xp.astype(xp.abs(x - whole) >= 0.5, x.dtype)
    return xp.copysign(size, x)


ceil: Op = constant_op("ceil", dtypes=FLOATS, evaluate=Ufunc("ceil"), stablehlo="stablehlo.ceil")
floor: Op = constant_op("floor", dtypes=FLOATS, evaluate=Ufunc("floor"), stablehlo="stablehlo.floor")
round_: Op = constant_op(
    "round",
    dtypes=FLOATS,
    evaluate=_round,
    params={"away": bool},
    samples=lambda: [*pointwise_samples(1, params={"away": False})(), *pointwise_samples(1, params={"away": True})()],
)
nextafter: Op = pointwise_op(
    "nextafter",
    arity=2,
    dtypes=FLOATS,
    evaluate=Ufunc("nextafter"),
    jvp=Derivatives(lambda t, out, x, y: t, None),  # the step is as good as constant
    stablehlo="chlo.next_after",
)

# Values passed on

stop_gradient: Op = pointwise_op(
    "stop_gradient",
    dtypes=ALL,
    fusion=Fusion.VIEW,
    evaluate=lambda xp, x: x,
    jvp=zero_jvp,
    linear=Linearity.MOVES,
    transpose=lambda op, cts, inputs, params: list(cts),
    flops=0.0,
)


def _barrier_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for index, t in enumerate(operands):
        for dim, size in enumerate(t.shape):
            build.add(size, (index, dim), (len(operands) + index, dim))
    return build.build()


def _barrier_type(*types: TensorType) -> tuple[TensorType, ...]:
    return types


optimization_barrier: Op = define_op(
    "optimization_barrier",
    type=_barrier_type,
    factors=_barrier_factors,
    linear=Linearity.MOVES,
    jvp=lambda op, primals, tangents, params: (list(op(*primals)), list(tangents)),
    transpose=lambda op, cts, inputs, params: list(cts),
    batch=lambda op, size, args, batched, params: (list(op(*args)), list(batched)),
    fusion=Fusion.VIEW,
    evaluate=lambda xp, *xs: xs,
    cost=move_cost,
    samples=lambda: [
        Sample((Operand((2, 4)),)),
        Sample((Operand((2, 4)), Operand((3,)), Operand((), dtypes.INT32))),
    ],
    stablehlo="stablehlo.optimization_barrier",
)

"""Ops on bits: logic, shifts, counts, and floats taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import dtypes
from meshwright.core.dtypes import ALL, BOOL, FLOATS, INTEGERS, DType
from meshwright.core.factors import FactorBuilder, Factors, pointwise
from meshwright.core.op import Linearity, Op, Operand, Sample, Types, define_op
from meshwright.core.program import Params
from meshwright.core.types import TensorType
from meshwright.ops.basic import Derivatives, pointwise_batch
from meshwright.ops.pointwise import constant_op
from meshwright.ops.rules import (
    Ufunc,
    bad_operands,
    check_dtype,
    move_cost,
    not_linear,
    pointwise_cost,
    pointwise_samples,
    zero_jvp,
)

# Logic: of truth values, or of each bit of integers

and_: Op = constant_op(
    "and", arity=2, dtypes=(BOOL, *INTEGERS), evaluate=Ufunc("bitwise_and"), stablehlo="stablehlo.and"
)
or_: Op = constant_op("or", arity=2, dtypes=(BOOL, *INTEGERS), evaluate=Ufunc("bitwise_or"), stablehlo="stablehlo.or")
xor: Op = constant_op(
    "xor", arity=2, dtypes=(BOOL, *INTEGERS), evaluate=Ufunc("bitwise_xor"), stablehlo="stablehlo.xor"
)
not_: Op = constant_op("not", dtypes=(BOOL, *INTEGERS), evaluate=Ufunc("invert"), stablehlo="stablehlo.not")

# Shifts: by the width or more (a negative amount counts as more), every bit is shifted out


def _with_sign(signed: bool) -> Callable[[Any, Any, Any], Any]:
    """A right shift that takes the operand, whatever its dtype, as signed or not."""

    def evaluate(xp: Any, x: Any, y: Any) -> Any:
        dtype = x.dtype
        if (dtype.kind == "i") == signed:
            return xp.right_shift(x, y)
        kinds = dtypes.SIGNED if signed else dtypes.UNSIGNED
        same_width = next(d for d in kinds if d.itemsize == dtype.itemsize)
        return xp.astype(xp.right_shift(xp.astype(x, same_width), xp.astype(y, same_width)), dtype)

    return evaluate


_shift_samples = pointwise_samples(2, 0, 9)
shift_left: Op = constant_op(
    "shift_left",
    arity=2,
    dtypes=INTEGERS,
    evaluate=Ufunc("left_shift"),
    samples=_shift_samples,
    stablehlo="stablehlo.shift_left",
)
shift_right_arithmetic: Op = constant_op(
    "shift_right_arithmetic",
    arity=2,
    dtypes=INTEGERS,
    evaluate=_with_sign(True),
    samples=_shift_samples,
    stablehlo="stablehlo.shift_right_arithmetic",
)
shift_right_logical: Op = constant_op(
    "shift_right_logical",
    arity=2,
    dtypes=INTEGERS,
    evaluate=_with_sign(False),
    samples=_shift_samples,
    stablehlo="stablehlo.shift_right_logical",
)

# Counts

population_count: Op = constant_op(
    "population_count",
    dtypes=INTEGERS,
    evaluate=Ufunc("population_count"),
    samples=pointwise_samples(1, -99, 99),
    stablehlo="stablehlo.popcnt",
)
clz: Op = constant_op(
    "clz",
    dtypes=INTEGERS,
    evaluate=Ufunc("clz"),
    samples=pointwise_samples(1, -99, 99),
    stablehlo="stablehlo.count_leading_zeros",
)

# Bits of floats


def _bitcast_type(x: TensorType, dtype: DType) -> TensorType:
    """Of unequal widths, the wider dtype has one dim less: the last one of the narrower holds its pieces."""
    if x.dtype != dtype and any(d == BOOL or dtypes.is_complex(d) for d in (x.dtype, dtype)):
        raise bad_operands("bitcast", [x], "the bits of bool and complex values are not numbers", "x.astype(…)")
    before, after = x.dtype.itemsize, dtype.itemsize
    if after < before:
        return TensorType((*x.shape, before // after), dtype)
    if after == before:
        return TensorType(x.shape, dtype)
    if x.shape[-1:] != (after // before,):
        raise bad_operands(
            "bitcast",
            [x],
            f"{after // before} elements of {dtypes.short_name(x.dtype)} make one of {dtypes.short_name(dtype)}",
            f"make {after // before} its last dim: mnp.reshape(x, (…, {after // before}))",
        )
    return TensorType(x.shape[:-1], dtype)


def _bitcast_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim in range(min(operands[0].ndim, results[0].ndim)):
        build.add(operands[0].shape[dim], (0, dim), (1, dim))
    for tensor, t in enumerate((operands[0], results[0])):
        if t.ndim > min(operands[0].ndim, results[0].ndim):
            build.add(t.shape[-1], (tensor, t.ndim - 1), kind="replicated")
    return build.build()


bitcast: Op = define_op(
    "bitcast",
    type=_bitcast_type,
    factors=_bitcast_factors,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("bitcast"),
    batch=pointwise_batch,
    evaluate=lambda xp, x, dtype: xp.bitcast(x, dtype),
    cost=move_cost,
    dtypes=ALL,
    samples=lambda: [
        Sample((Operand((2, 4), dtypes.FLOAT32),), {"dtype": dtypes.INT32}),
        Sample((Operand((2, 4), dtypes.INT16, -99, 99),), {"dtype": dtypes.BFLOAT16}),
        Sample((Operand((2, 4), dtypes.FLOAT64),), {"dtype": dtypes.UINT8}),
        Sample((Operand((3, 4), dtypes.UINT8, 0, 100),), {"dtype": dtypes.FLOAT32}),
        Sample((Operand((4,), dtypes.COMPLEX64),), {"dtype": dtypes.COMPLEX64}),
        Sample((Operand((2,), BOOL),), {"dtype": BOOL}),
    ],
)


def _reduce_precision_type(x: TensorType, exponent_bits: int, mantissa_bits: int) -> TensorType:
    check_dtype("reduce_precision", [x], x.dtype, FLOATS)
    if exponent_bits < 1 or mantissa_bits < 0:
        raise bad_operands(
            "reduce_precision",
            [x],
            f"there is no float with {exponent_bits} exponent bits and {mantissa_bits} mantissa bits",
            "exponent_bits=8, mantissa_bits=7 for bfloat16",
        )
    return x


reduce_precision: Op = define_op(
    "reduce_precision",
    type=_reduce_precision_type,
    factors=pointwise,
    linear=Linearity.NONE,
    # Rounding has slope 0 or none; what is wanted is the slope of the identity, rounded alike.
    jvp=Derivatives(lambda t, out, x, **bits: reduce_precision(t, **bits)),
    transpose=lambda op, cts, inputs, params: [reduce_precision(cts[0], **params)],
    batch=pointwise_batch,
    evaluate=lambda xp, x, exponent_bits, mantissa_bits: xp.reduce_precision(x, exponent_bits, mantissa_bits),
    cost=pointwise_cost(),
    dtypes=FLOATS,
    samples=lambda: [
        Sample((Operand((2, 4)),), {"exponent_bits": exponent, "mantissa_bits": mantissa})
        for exponent, mantissa in ((8, 7), (4, 3), (5, 0), (11, 52), (2, 1))
    ],
)

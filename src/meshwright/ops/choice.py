"""Comparisons, and choosing between values: select, maximum, minimum, clamp."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.dtypes import ALL, BOOL, FLOATS, INTEGERS, KEY, DType
from meshwright.core.factors import pointwise
from meshwright.core.facts import Memory
from meshwright.core.linearity import Does, linear_in
from meshwright.core.op import Linear, Op, Operand, Sample, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import TensorType
from meshwright.ops.basic import Derivatives, broadcast_scalar, mul, pointwise_batch, scalar_like, unbroadcast
from meshwright.ops.bits import and_
from meshwright.ops.pointwise import constant_op, pointwise_op
from meshwright.ops.rules import Ufunc, bad_operands, pointwise_cost, pointwise_type

_ORDERED = (BOOL, *INTEGERS, *FLOATS)


def _truth(dtype: DType) -> DType:
    return BOOL


# Comparisons: with nan, only ne holds

eq: Op = constant_op("eq", arity=2, dtypes=ALL, result=_truth, evaluate=Ufunc("equal"))
ne: Op = constant_op("ne", arity=2, dtypes=ALL, result=_truth, evaluate=Ufunc("not_equal"))
lt: Op = constant_op("lt", arity=2, dtypes=_ORDERED, result=_truth, evaluate=Ufunc("less"))
le: Op = constant_op("le", arity=2, dtypes=_ORDERED, result=_truth, evaluate=Ufunc("less_equal"))
gt: Op = constant_op("gt", arity=2, dtypes=_ORDERED, result=_truth, evaluate=Ufunc("greater"))
ge: Op = constant_op("ge", arity=2, dtypes=_ORDERED, result=_truth, evaluate=Ufunc("greater_equal"))
is_finite: Op = constant_op(
    "is_finite", dtypes=FLOATS, result=_truth, evaluate=Ufunc("isfinite"), stablehlo="stablehlo.is_finite"
)

# select

_cases_type = pointwise_type("select", 2, (*ALL, KEY))


def _select_type(pred: TensorType, on_true: TensorType, on_false: TensorType) -> TensorType:
    if pred.dtype != BOOL:
        raise bad_operands("select", [pred, on_true, on_false], "it chooses by a bool", "select(pred != 0, x, y)")
    out = _cases_type(on_true, on_false)
    if pred.ndim == 0 or pred.shape == out.shape:
        return out
    if out.ndim == 0:
        return out.with_(shape=pred.shape)
    raise bad_operands(
        "select",
        [pred, on_true, on_false],
        "the operands differ in shape and are not scalars",
        "mnp.where(pred, x, y), which broadcasts",
    )


def _select_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    out = select(*primals)
    pred, on_true, on_false = primals[0], tangents[1], tangents[2]
    if on_true is None and on_false is None:
        return [out], [None]
    zero = scalar_like(out, 0)
    tangent = select(pred, zero if on_true is None else on_true, zero if on_false is None else on_false)
    return [out], [broadcast_scalar(tangent, out.shape) if tangent.ndim < out.ndim else tangent]


def _select_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    pred, on_true, on_false = inputs
    return [
        None,
        unbroadcast(select(pred, cts[0], 0), on_true) if isinstance(on_true, Linear) else None,
        unbroadcast(select(pred, 0, cts[0]), on_false) if isinstance(on_false, Linear) else None,
    ]


select: Op = define_op(
    "select",
    type=_select_type,
    factors=pointwise,
    linear=linear_in(1, 2, does=Does.MOVES),
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=pointwise_batch,
    memory=Memory.FRESH,
    evaluate=lambda xp, pred, on_true, on_false: xp.where(pred, on_true, on_false),
    cost=pointwise_cost(),
    samples=lambda: [
        Sample((Operand(pred, BOOL), Operand(on_true), Operand(on_false)))
        for pred, on_true, on_false in (
            ((2, 4), (2, 4), (2, 4)),
            ((), (2, 4), (2, 4)),
            ((2, 4), (2, 4), ()),
            ((2, 4), (), ()),
            ((), (), (2, 4)),
        )
    ],
    stablehlo="stablehlo.select",
)

# maximum, minimum, clamp: nan wins


def _share(t: Value, out: Value, x: Value, other: Value) -> Value:
    """The tangent of the operand that was chosen; where both are equal, half of it."""
    none, half, whole = (scalar_like(out, share) for share in (0.0, 0.5, 1.0))
    return mul(t, select(eq(x, out), select(eq(other, out), half, whole), none))


_extremum = Derivatives(lambda t, out, x, y: _share(t, out, x, y), lambda t, out, x, y: _share(t, out, y, x))

maximum: Op = pointwise_op(
    "maximum", arity=2, dtypes=ALL, evaluate=Ufunc("maximum"), jvp=_extremum, stablehlo="stablehlo.maximum"
)
minimum: Op = pointwise_op(
    "minimum", arity=2, dtypes=ALL, evaluate=Ufunc("minimum"), jvp=_extremum, stablehlo="stablehlo.minimum"
)

clamp: Op = pointwise_op(
    "clamp",
    arity=3,
    dtypes=_ORDERED,
    evaluate=lambda xp, low, x, high: xp.minimum(xp.maximum(low, x), high),
    jvp=Derivatives(
        lambda t, out, low, x, high: select(and_(gt(low, x), lt(low, high)), t, 0),
        lambda t, out, low, x, high: select(and_(gt(x, low), lt(x, high)), t, 0),
        lambda t, out, low, x, high: select(lt(high, x), t, 0),
    ),
    flops=2.0,
    samples=lambda: [
        Sample((Operand(bound, None, -1.0, 0.0), Operand(x, None, -2.0, 2.0), Operand(bound, None, 0.0, 1.0)))
        for bound, x in (((2, 4), (2, 4)), ((), (2, 4)), ((2, 4), ()))
    ],
    stablehlo="stablehlo.clamp",
)

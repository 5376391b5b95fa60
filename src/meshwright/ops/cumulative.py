"""Running reductions along a dim: sums, products, extremes, log-sum-exps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.op import JvpRule, Linear, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import TensorType
from meshwright.ops.basic import add, convert, linear_jvp, mul, neg, zeros
from meshwright.ops.elementwise import (
    and_,
    div,
    eq,
    exp,
    is_finite,
    log,
    log1p,
    logistic,
    lt,
    maximum,
    minimum,
    not_,
    select,
    sub,
)
from meshwright.ops.rules import bad_operands, check_dtype, keep_weak, not_linear, pointwise_cost
from meshwright.ops.shape import concatenate, pad, reverse, slice_

NARROW = tuple(d for d in dtypes.FLOATS if d.itemsize < 4)

# Rules of ops along one dim


def through_f32(xp: Any, x: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of ``x``, computed in f32 and rounded once where ``x`` is a narrower float."""
    if x.dtype.itemsize < 4 and x.dtype in NARROW:
        return xp.astype(function(xp.astype(x, dtypes.FLOAT32)), x.dtype)
    return function(x)


def check_axis(op: str, x: TensorType, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise bad_operands(op, [x], f"it has no dim {axis}", f"axis between 0 and {x.ndim - 1}")


def along_axis_factors(operands: Types, results: Types, params: Params) -> Factors:
    """The dim ``axis`` must be whole on each device; it may be missing in the result, the others pass through."""
    axis = params["axis"]
    build = FactorBuilder(operands, results)
    running = operands[0].ndim == results[0].ndim
    for dim, size in enumerate(operands[0].shape):
        if dim != axis:
            build.add(size, (0, dim), (1, dim - (dim > axis and not running)))
        else:
            build.add(size, (0, dim), *([(1, dim)] if running else []), kind="replicated")
    return build.build()


def along_axis_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    return [op(*args, **{**params, "axis": params["axis"] + 1})], [True]


def with_a_zero(arrays: list[Any]) -> list[Any]:
    """One array with its first element 0."""
    x = arrays[0].copy()
    x[(0,) * x.ndim] = 0
    return [x]


# Evaluation and derivatives of a running reduction

Pair = tuple[Value, Value]  # a value and its tangent


def _running_type(op: str, allowed: Sequence[DType]) -> Callable[..., TensorType]:
    def rule(x: TensorType, axis: int, reverse: bool) -> TensorType:
        check_dtype(op, [x], x.dtype, allowed)
        check_axis(op, x, axis)
        return keep_weak(x, x.shape)

    return rule


def _running(accumulate: Callable[[Any, Any, int], Any]) -> Callable[..., Any]:
    """Evaluation by ``accumulate(xp, x, axis)``, from the end where ``reverse``."""

    def evaluate(xp: Any, x: Any, axis: int, reverse: bool) -> Any:
        if reverse:
            x = xp.flip(x, axis=axis)
        out = through_f32(xp, x, lambda x: accumulate(xp, x, axis))
        return xp.flip(out, axis=axis) if reverse else out

    return evaluate


def _running_samples() -> list[Sample]:
    return [
        Sample((Operand(shape),), {"axis": axis, "reverse": backward})
        for shape, axis, backward in (((3, 5), 1, False), ((6, 2), 0, True), ((2, 4, 3), 1, False), ((1,), 0, False))
    ]


def _scan_jvp(combine: Callable[[Pair, Pair], Pair]) -> JvpRule:
    """The jvp of a running reduction: the same reduction of (value, tangent) pairs, in a tree of depth log n."""

    def rule(
        op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
    ) -> tuple[list[Value], list[Value | None]]:
        (x,), (t,), axis = primals, tangents, params["axis"]
        out = op(x, **params)
        if t is None:
            return [out], [None]
        if not params["reverse"]:
            return [out], [_prefixes(combine, (x, t), axis)[1]]
        flipped = reverse(x, dims=(axis,)), reverse(t, dims=(axis,))
        return [out], [reverse(_prefixes(combine, flipped, axis)[1], dims=(axis,))]

    return rule


def _prefixes(combine: Callable[[Pair, Pair], Pair], pair: Pair, axis: int) -> Pair:
    """All prefixes of ``pair`` along ``axis``: those of neighbours combined give the odd ones, and these the even."""
    length = pair[0].shape[axis]
    if length < 2:
        return pair
    first, second = _every_other(pair, axis, 0, length - 1), _every_other(pair, axis, 1, length)
    odd = _prefixes(combine, combine(first, second), axis)
    even = _every_other(pair, axis, 0, 1)
    if length > 2:
        rest = _every_other(pair, axis, 2, length)
        before = tuple(_part(v, axis, 0, rest[0].shape[axis], 1) for v in odd)
        later = combine((before[0], before[1]), rest)
        even = (concatenate(even[0], later[0], dim=axis), concatenate(even[1], later[1], dim=axis))
    return _interleave(even[0], odd[0], axis), _interleave(even[1], odd[1], axis)


def _part(x: Value, axis: int, start: int, limit: int, stride: int) -> Value:
    if start == 0 and stride == 1 and limit == x.shape[axis]:
        return x
    others = (0,) * axis, (0,) * (x.ndim - axis - 1)
    return slice_(
        x,
        starts=(*others[0], start, *others[1]),
        limits=(*x.shape[:axis], limit, *x.shape[axis + 1 :]),
        strides=tuple(stride if d == axis else 1 for d in range(x.ndim)),
    )


def _every_other(pair: Pair, axis: int, start: int, limit: int) -> Pair:
    return _part(pair[0], axis, start, limit, 2), _part(pair[1], axis, start, limit, 2)


def _interleave(even: Value, odd: Value, axis: int) -> Value:
    """One value with those of ``even`` at places 0, 2, … and those of ``odd`` at 1, 3, …"""
    length = even.shape[axis] + odd.shape[axis]

    def at_axis(n: int) -> tuple[int, ...]:
        return tuple(n if d == axis else 0 for d in range(even.ndim))

    def spread(x: Value, start: int) -> Value:
        end = length - start - (2 * x.shape[axis] - 1)
        return pad(x, 0.0, low=at_axis(start), high=at_axis(end), interior=at_axis(1))

    return add(spread(even, 0), spread(odd, 1))


def _combine_products(left: Pair, right: Pair) -> Pair:
    (a, ta), (b, tb) = left, right
    return mul(a, b), add(mul(ta, b), mul(a, tb))


def _combine_extremes(extreme: Op) -> Callable[[Pair, Pair], Pair]:
    def combine(left: Pair, right: Pair) -> Pair:
        (a, ta), (b, tb) = left, right
        out = extreme(a, b)
        from_a, from_b = (convert(eq(v, out), dtype=a.dtype, weak=False) for v in (a, b))
        # Equal ones share the tangent.
        shares = div(from_a, add(from_b, 1.0)), div(from_b, add(from_a, 1.0))
        return out, add(mul(ta, shares[0]), mul(tb, shares[1]))

    return combine


def _combine_logsumexps(left: Pair, right: Pair) -> Pair:
    (a, ta), (b, tb) = left, right
    # d log(e^a + e^b) = da / (1 + e^(b-a)) + db / (1 + e^(a-b)); equal infinities differ by nothing.
    # The larger is chosen, as maximum has no second derivative where a = b.
    ahead = select(and_(eq(a, b), not_(is_finite(a))), 0.0, sub(a, b))
    behind = lt(a, b)
    out = add(select(behind, b, a), log1p(exp(select(behind, ahead, neg(ahead)))))
    return out, add(mul(ta, logistic(ahead)), mul(tb, logistic(neg(ahead))))


def _cumsum_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    return [cumsum(cts[0], axis=params["axis"], reverse=not params["reverse"])]


cumsum: Op = define_op(
    "cumsum",
    type=_running_type("cumsum", dtypes.NUMBERS),
    factors=along_axis_factors,
    linear=Linearity.ADDS,
    jvp=linear_jvp,
    transpose=_cumsum_transpose,
    batch=along_axis_batch,
    split=Split(Across.RUNNING, "sum"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_running(lambda xp, x, axis: xp.cumulative_sum(x, axis=axis, dtype=x.dtype)),
    cost=pointwise_cost(),
    dtypes=dtypes.NUMBERS,
    samples=_running_samples,
)

cumprod: Op = define_op(
    "cumprod",
    type=_running_type("cumprod", dtypes.NUMBERS),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=_scan_jvp(_combine_products),
    transpose=not_linear("cumprod"),
    batch=along_axis_batch,
    split=Split(Across.RUNNING, "prod"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_running(lambda xp, x, axis: xp.cumulative_prod(x, axis=axis, dtype=x.dtype)),
    cost=pointwise_cost(),
    dtypes=dtypes.NUMBERS,
    samples=lambda: [
        *_running_samples(),
        Sample((Operand((2, 6)),), {"axis": 1, "reverse": False}, prepare=with_a_zero),
    ],
)

cummax: Op = define_op(
    "cummax",
    type=_running_type("cummax", dtypes.NUMBERS),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=_scan_jvp(_combine_extremes(maximum)),
    transpose=not_linear("cummax"),
    batch=along_axis_batch,
    split=Split(Across.RUNNING, "max"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_running(lambda xp, x, axis: xp.maximum.accumulate(x, axis=axis)),
    cost=pointwise_cost(),
    dtypes=dtypes.NUMBERS,
    samples=_running_samples,
)

cummin: Op = define_op(
    "cummin",
    type=_running_type("cummin", dtypes.NUMBERS),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=_scan_jvp(_combine_extremes(minimum)),
    transpose=not_linear("cummin"),
    batch=along_axis_batch,
    split=Split(Across.RUNNING, "min"),
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_running(lambda xp, x, axis: xp.minimum.accumulate(x, axis=axis)),
    cost=pointwise_cost(),
    dtypes=dtypes.NUMBERS,
    samples=_running_samples,
)

# A running logsumexp starts from minus infinity, which f8e4m3fn does not have.
_LOGARITHMIC = tuple(d for d in dtypes.FLOATS if d != dtypes.FLOAT8_E4M3FN)


def _logsumexps_in_parts(x: Value, axis: int, reverse: bool) -> Value:
    """In as many steps as the length has digits: each adds what the last ones found twice as far away."""
    wide = convert(x, dtype=dtypes.FLOAT32, weak=False) if x.dtype in NARROW else x
    none, step = (0,) * x.ndim, 1
    while step < x.shape[axis]:
        here = tuple(step if d == axis else 0 for d in range(x.ndim))
        back = tuple(-n for n in here)
        low, high = (back, here) if reverse else (here, back)
        other = pad(wide, np.asarray(-np.inf, wide.dtype), low=low, high=high, interior=none)
        wide = _log_of_sum(wide, other)
        step *= 2
    return convert(wide, dtype=x.dtype, weak=False)


def _log_of_sum(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)), without leaving the range of numbers on the way."""
    most = maximum(x, y)
    shift = select(is_finite(most), most, zeros(most.type))
    return add(log(add(exp(sub(x, shift)), exp(sub(y, shift)))), shift)


cumlogsumexp: Op = define_op(
    "cumlogsumexp",
    type=_running_type("cumlogsumexp", _LOGARITHMIC),
    factors=along_axis_factors,
    linear=Linearity.NONE,
    jvp=_scan_jvp(_combine_logsumexps),
    transpose=not_linear("cumlogsumexp"),
    batch=along_axis_batch,
    split=Split(Across.RUNNING, "max"),
    in_parts=_logsumexps_in_parts,
    memory=Memory.FRESH,
    fusion=Fusion.ALONE,
    evaluate=_running(lambda xp, x, axis: xp.logaddexp.accumulate(x, axis=axis)),
    cost=pointwise_cost(4.0),
    dtypes=_LOGARITHMIC,
    samples=_running_samples,
)

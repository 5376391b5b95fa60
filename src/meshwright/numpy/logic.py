"""Elementwise comparisons, logic, bits and choices of ``meshwright.numpy``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.arrays import scalars
from meshwright.arrays.operands import (
    NO_DTYPES,
    TAKES_FITTING,
    VALUES,
    ArrayLike,
    as_bool,
    binary,
    broadcast_operands,
    convert,
    promote_operands,
    unary,
    value,
)
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import items_of, no_out
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, apply
from meshwright.errors import ShapeError
from meshwright.ops import basic, elementwise, reduction

# Comparisons and logic


def equal(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x == y``."""
    return logical_not(not_equal(x, y)) if _are_keys(x, y) else binary(elementwise.eq, x, y)


def not_equal(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x != y``."""
    if _are_keys(x, y):
        words = binary(
            elementwise.ne, elementwise.bitcast(x, dtype=dtypes.UINT32), elementwise.bitcast(y, dtype=dtypes.UINT32)
        )
        return reduction.reduce_or(words, axes=(words.ndim - 1,))  # type: ignore[no-any-return]
    return binary(elementwise.ne, x, y)


def _are_keys(*xs: ArrayLike) -> bool:
    """Whether these are random keys, which are the same where both of their words are."""
    return all(x.__class__ in VALUES and x.type.dtype == dtypes.KEY for x in xs)  # type: ignore[union-attr]


def ordered(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    """A comparison by order; complex numbers compare by their real parts, then by their imaginary parts."""
    if not (_is_complex(x) or _is_complex(y)):
        return binary(op, x, y)
    x, y = (value(v) for v in promote_operands((x, y)))
    same = equal(real(x), real(y))
    return either(same, binary(op, imag(x), imag(y)), binary(op, real(x), real(y)))


def _is_complex(x: ArrayLike) -> bool:
    if isinstance(x, list | tuple):
        x = value(x)
    return x.type.dtype.kind == "c" if x.__class__ in VALUES else np.iscomplexobj(x)


def less(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x < y``."""
    return ordered(elementwise.lt, x, y)


def less_equal(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x <= y``."""
    return ordered(elementwise.le, x, y)


def greater(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x > y``."""
    return ordered(elementwise.gt, x, y)


def greater_equal(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x >= y``."""
    return ordered(elementwise.ge, x, y)


def logical_and(x: ArrayLike, y: ArrayLike, /) -> Value:
    """Whether both are nonzero."""
    return binary(elementwise.and_, as_bool(x), as_bool(y))


def logical_or(x: ArrayLike, y: ArrayLike, /) -> Value:
    """Whether one of two is nonzero."""
    return binary(elementwise.or_, as_bool(x), as_bool(y))


def logical_xor(x: ArrayLike, y: ArrayLike, /) -> Value:
    """Whether exactly one of two is nonzero."""
    return binary(elementwise.xor, as_bool(x), as_bool(y))


def logical_not(x: ArrayLike, /) -> Value:
    """Whether ``x`` is zero."""
    return unary(elementwise.not_, as_bool(x))


def bitwise_and(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x & y``."""
    return binary(elementwise.and_, x, y)


def bitwise_or(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x | y``."""
    return binary(elementwise.or_, x, y)


def bitwise_xor(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x ^ y``."""
    return binary(elementwise.xor, x, y)


def bitwise_not(x: ArrayLike, /) -> Value:
    """``~x``."""
    return unary(elementwise.not_, x)


invert = bitwise_invert = bitwise_not


def bitwise_count(x: ArrayLike, /) -> Value:
    """How many bits of ``abs(x)`` are set."""
    x = value(x)
    x = convert(x, dtypes.UINT8) if x.type.dtype == BOOL else x
    return convert(unary(elementwise.population_count, absolute(x)), dtypes.UINT8)


def left_shift(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x << y``."""
    return binary(elementwise.shift_left, *no_booleans(x, y))


def right_shift(x: ArrayLike, y: ArrayLike, /) -> Value:
    """``x >> y``; a negative number keeps its sign."""
    x, y = no_booleans(x, y)
    logical = dtype_of(x, y) in dtypes.UNSIGNED
    return binary(elementwise.shift_right_logical if logical else elementwise.shift_right_arithmetic, x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


def no_booleans(x: ArrayLike, y: ArrayLike) -> list[Any]:
    """Promoted operands, booleans as integers."""
    found = promote_operands((x, y))
    if dtype_of(*found) == BOOL:
        return [convert(value(v), dtypes.INT32) for v in found]
    return found


def dtype_of(*operands: Any) -> dtypes.DType:
    """The one dtype of promoted operands."""
    return next(x.type.dtype for x in operands if x.__class__ in VALUES)


def isnan(x: ArrayLike, /) -> Value:
    """Whether ``x`` is not a number."""
    x = value(x)
    if not dtypes.is_inexact(x.type.dtype):
        return _all_false(x)
    return not_equal(x, x)


def isinf(x: ArrayLike, /) -> Value:
    """Whether ``x`` is infinite."""
    x = value(x)
    if dtypes.is_complex(x.type.dtype):
        return logical_or(isinf(real(x)), isinf(imag(x)))
    if not dtypes.is_float(x.type.dtype):
        return _all_false(x)
    return equal(absolute(x), math.inf)


def isfinite(x: ArrayLike, /) -> Value:
    """Whether ``x`` is neither infinite nor NaN."""
    x = value(x)
    if dtypes.is_complex(x.type.dtype):
        return logical_and(isfinite(real(x)), isfinite(imag(x)))
    if not dtypes.is_float(x.type.dtype):
        return logical_not(_all_false(x))
    return unary(elementwise.is_finite, x)


def isposinf(x: ArrayLike, /, out: None = None) -> Value:
    """Whether ``x`` is +inf."""
    no_out(out, "mnp.isposinf")
    x = _real_number(x, "isposinf")
    return equal(x, math.inf) if dtypes.is_float(x.type.dtype) else _all_false(x)


def isneginf(x: ArrayLike, /, out: None = None) -> Value:
    """Whether ``x`` is -inf."""
    no_out(out, "mnp.isneginf")
    x = _real_number(x, "isneginf")
    return equal(x, -math.inf) if dtypes.is_float(x.type.dtype) else _all_false(x)


def _real_number(x: ArrayLike, name: str) -> Value:
    x = value(x)
    if dtypes.is_complex(x.type.dtype):
        raise ShapeError(
            f"mnp.{name} cannot take {x.type.short()}.",
            where=here(),
            why="complex numbers have one infinity in every direction",
            fix=f"mnp.isinf(x), or mnp.{name}(x.real)",
        )
    return x


def _all_false(x: Value) -> Value:
    return basic.zeros(x.type.with_(dtype=BOOL, weak=False))


def isreal(x: ArrayLike) -> Value:
    """Whether the imaginary part is zero."""
    return equal(imag(x), 0)


def iscomplex(x: ArrayLike) -> Value:
    """Whether the imaginary part is not zero."""
    return not_equal(imag(x), 0)


# Choosing


def either(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Value:
    """``x`` where ``condition`` holds, else ``y``."""
    if scalars.state.compiling and _only_first(condition, x, y):
        return x  # as masks do of most blocks that a kernel works on
    return _chosen(condition, x, y)


def _only_first(condition: Any, x: Any, y: Any) -> bool:
    """Whether a condition is known to hold of all elements of ``x``, which is as the result is to be."""
    if condition.__class__ is not Array or x.__class__ is not Array or x.type.weak:
        return False
    if condition.type.dtype != BOOL or condition.type.shape != x.type.shape:
        return False
    if y.__class__ is Array:
        same = y.type is x.type
    else:
        same = x.type.dtype in TAKES_FITTING.get(y.__class__, NO_DTYPES)
    return same and condition._data.__class__ is np.ndarray and bool(condition._data.all())


@compiled_in_kernels
def _chosen(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Value:
    if condition.__class__ not in VALUES or condition.type.dtype != BOOL:
        condition = as_bool(condition)
    if x.__class__ not in VALUES or y.__class__ not in VALUES or x.type is not y.type:
        x, y = promote_operands((x, y))
    condition, x, y = broadcast_operands([condition, x, y], "where")
    return apply(elementwise.select, (condition, x, y), {})


def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> Value:
    """The choice of the first condition that holds, else ``default``."""
    condlist, choicelist = items_of(condlist, "mnp.select"), items_of(choicelist, "mnp.select")
    if len(condlist) != len(choicelist) or not condlist:
        raise ShapeError(
            f"select got {len(condlist)} conditions and {len(choicelist)} choices.",
            where=here(),
            why="each condition needs one choice",
            fix="select([c1, c2], [x1, x2], default)",
        )
    *choices, chosen = promote_operands((*choicelist, default))
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        chosen = either(condition, choice, chosen)
    return chosen


# Complex numbers


def real(x: ArrayLike, /) -> Value:
    """The real part."""
    x = value(x)
    return apply(elementwise.real, (x,), {}) if dtypes.is_complex(x.type.dtype) else x


def imag(x: ArrayLike, /) -> Value:
    """The imaginary part; zero for a real number."""
    x = value(x)
    if dtypes.is_complex(x.type.dtype):
        return apply(elementwise.imag, (x,), {})
    return basic.zeros(x.type)


def conjugate(x: ArrayLike, /) -> Value:
    """The complex conjugate."""
    x = value(x)
    return apply(elementwise.conj, (x,), {}) if dtypes.is_complex(x.type.dtype) else x


conj = conjugate


def absolute(x: ArrayLike, /) -> Value:
    """The absolute value, or the modulus of a complex number."""
    x = value(x)
    return x if x.type.dtype == BOOL or x.type.dtype in dtypes.UNSIGNED else apply(elementwise.abs_, (x,), {})


abs = absolute

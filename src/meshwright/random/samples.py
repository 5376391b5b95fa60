"""Samples from continuous distributions, and coin tosses: the numbers of ``jax.random``, bit for bit.

Random bits become a number between 0 and 1, and that becomes a sample by the inverse of its distribution function.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, convert, is_number, value
from meshwright.arrays.static import placed
from meshwright.core import dtypes
from meshwright.core.dtypes import BFLOAT16, COMPLEXES, FLOAT16, FLOAT32, FLOAT64, FLOATS, UINT32, DType
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.numpy.dtypes import finfo
from meshwright.ops.arithmetic import abs_, complex, div, nextafter, sign, stop_gradient, sub
from meshwright.ops.basic import add, mul, neg, reshape
from meshwright.ops.bits import and_, bitcast, clz, not_, or_, shift_left, shift_right_logical
from meshwright.ops.choice import eq, ge, lt, maximum, minimum, select
from meshwright.ops.random import (
    fma,
    reproducible_erf,
    reproducible_erf_inv,
    reproducible_log,
    reproducible_log1p,
    reproducible_tan,
)
from meshwright.ops.shape import slice_
from meshwright.random.keys import (
    UINT_OF_WIDTH,
    Sampler,
    checked_dtype,
    checked_key,
    checked_parameter,
    checked_shape,
    fitting_shape,
    random_bits,
    rows_of_split,
    spread,
)

REAL = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


# Uniform


def uniform(
    key: ArrayLike,
    shape: Any = (),
    dtype: DTypeLike = float,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
    *,
    out_sharding: Any = None,
) -> Value:
    """Numbers between ``minval`` (which can occur) and ``maxval`` (which cannot), all equally likely.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.uniform(mw.random.key(0), (2,)))
    array([0.947667 , 0.9785799], dtype=float32)
    """
    one = checked_key("uniform", key)
    wanted = checked_dtype("uniform", dtype, FLOATS)
    size = checked_shape("uniform", shape)
    if is_number(minval) and is_number(maxval) and (minval, maxval) == (0, 1):
        return placed(_unit(one, shape=size, dtype=wanted), None, out_sharding)
    low = checked_parameter("uniform", "minval", minval, wanted)
    high = checked_parameter("uniform", "maxval", maxval, wanted)
    fitting_shape("uniform", size, minval=low, maxval=high)
    return placed(_uniform(one, low, high, shape=size, dtype=wanted), None, out_sharding)


@Sampler
def _unit(key: Value, *, shape: Shape, dtype: DType) -> Value:
    return unit(key, shape, dtype)


@Sampler
def _uniform(key: Value, low: Value, high: Value, *, shape: Shape, dtype: DType) -> Value:
    return between(unit(key, shape, dtype), low, high)


def unit(key: Value, shape: Shape, dtype: DType) -> Value:
    """Numbers in [0, 1) of a checked key."""
    return to_unit(random_bits(key, shape, width_of_bits(dtype)), dtype)


def width_of_bits(dtype: DType) -> DType:
    """The unsigned integers that numbers of a dtype are drawn as."""
    return UINT_OF_WIDTH[dtype.itemsize if int(finfo(dtype).nmant) >= 8 else 1]


def to_unit(drawn: Value, dtype: DType) -> Value:
    """Numbers in [0, 1): random mantissas make numbers in [1, 2), and 1 is subtracted."""
    mantissa, width = int(finfo(dtype).nmant), 8 * drawn.dtype.itemsize
    pattern = UINT_OF_WIDTH[dtype.itemsize]
    one = int(np.ones((), dtype).view(pattern))
    filled = or_(shift_right_logical(convert(drawn, pattern), width - mantissa), one)
    return sub(bitcast(filled, dtype=dtype), 1.0)


def between(u: Value, low: Value, high: Value) -> Value:
    """Numbers in [0, 1) stretched to [low, high)."""
    low, high = spread(low, u.shape), spread(high, u.shape)
    span = sub(high, low)
    stretched = add(mul(u, span), low) if u.dtype.itemsize < 4 else fma(u, span, low)
    return maximum(low, stretched)


def stretched(key: Value, shape: Shape, dtype: DType, low: Any) -> Value:
    """Numbers in [low, 1) for a bound known in advance."""
    return _stretched(unit(key, shape, dtype), dtype, low)


def _stretched(u: Value, dtype: DType, low: Any) -> Value:
    bound = np.asarray(low, dtype)
    span = np.asarray(1, dtype) - bound
    if span == 1 and dtype != FLOAT16:  # the bound is nothing beside other numbers, and only replaces 0
        return maximum(u, float(bound))
    if math.frexp(span)[0] == 0.5:  # a product by a power of two needs no rounding
        return maximum(add(mul(u, float(span)), float(bound)), float(bound))
    return between(u, value(bound), value(np.ones((), dtype)))


def _real(name: str, key: ArrayLike, shape: Any, dtype: DTypeLike) -> tuple[Value, dict[str, Any]]:
    """The checked arguments of a sampler without parameters."""
    one = checked_key(name, key)
    return one, {"dtype": checked_dtype(name, dtype, REAL), "shape": checked_shape(name, shape)}


# Normal


def normal(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Numbers from the normal distribution of mean 0 and variance 1; complex ones have variance ½ in each part.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.normal(mw.random.key(0), (2,)))
    array([1.6226422, 2.0252647], dtype=float32)
    """
    one = checked_key("normal", key)
    wanted = checked_dtype("normal", dtype, (*REAL, *COMPLEXES))
    return placed(_normal(one, shape=checked_shape("normal", shape), dtype=wanted), None, out_sharding)


@Sampler
def _normal(key: Value, *, shape: Shape, dtype: DType) -> Value:
    if dtypes.is_complex(dtype):
        parts = (_normal_real(part, shape, dtypes.real_part(dtype)) for part in rows_of_split(key))
        return complex(*(_over_root_two(part) for part in parts))
    return _normal_real(key, shape, dtype)


def _normal_real(key: Value, shape: Shape, dtype: DType) -> Value:
    return to_normal(unit(key, shape, dtype), dtype)


def to_normal(u: Value, dtype: DType) -> Value:
    """Numbers in [0, 1) as normal ones."""
    return mul(math.sqrt(2), reproducible_erf_inv(_stretched(u, dtype, _above_minus_one(dtype))))


def _over_root_two(x: Value) -> Value:
    """x / √2, as XLA divides by a constant."""
    root = np.asarray(math.sqrt(2), x.dtype)
    if x.dtype == BFLOAT16:
        return div(x, float(root))
    return mul(x, float(np.asarray(1, x.dtype) / root))


def _above_minus_one(dtype: DType) -> Any:
    return np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))


def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: Any = None,
    dtype: DTypeLike = float,
    *,
    out_sharding: Any = None,
) -> Value:
    """Numbers from the normal distribution that lie strictly between ``lower`` and ``upper``."""
    one = checked_key("truncated_normal", key)
    wanted = checked_dtype("truncated_normal", dtype, REAL)
    low = checked_parameter("truncated_normal", "lower", lower, wanted)
    high = checked_parameter("truncated_normal", "upper", upper, wanted)
    size = fitting_shape("truncated_normal", shape, lower=low, upper=high)
    return placed(_truncated_normal(one, low, high, shape=size), None, out_sharding)


@Sampler
def _truncated_normal(key: Value, lower: Value, upper: Value, *, shape: Shape) -> Value:
    dtype = lower.dtype
    low, high = (reproducible_erf(_over_root_two(x)) for x in (lower, upper))
    drawn = mul(math.sqrt(2), reproducible_erf_inv(between(unit(key, shape, dtype), low, high)))
    least = nextafter(stop_gradient(lower), math.inf)
    most = nextafter(stop_gradient(upper), -math.inf)
    return minimum(maximum(drawn, spread(least, shape)), spread(most, shape))


# Other distributions of real numbers


def exponential(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Numbers with density exp(-x) for x ≥ 0."""
    one, static = _real("exponential", key, shape, dtype)
    return placed(_exponential(one, **static), None, out_sharding)


@Sampler
def _exponential(key: Value, *, shape: Shape, dtype: DType) -> Value:
    return neg(reproducible_log1p(neg(unit(key, shape, dtype))))


def laplace(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Numbers with density ½ exp(-|x|)."""
    one, static = _real("laplace", key, shape, dtype)
    return placed(_laplace(one, **static), None, out_sharding)


@Sampler
def _laplace(key: Value, *, shape: Shape, dtype: DType) -> Value:
    u = stretched(key, shape, dtype, -1.0 + float(finfo(dtype).epsneg))
    return mul(sign(u), reproducible_log1p(neg(abs_(u))))


def logistic(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Numbers with distribution function 1 / (1 + exp(-x))."""
    one, static = _real("logistic", key, shape, dtype)
    return placed(_logistic(one, **static), None, out_sharding)


@Sampler
def _logistic(key: Value, *, shape: Shape, dtype: DType) -> Value:
    u = stretched(key, shape, dtype, finfo(dtype).tiny)
    return sub(reproducible_log(u), reproducible_log1p(neg(u)))


def cauchy(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Numbers with density proportional to 1 / (1 + x²)."""
    one, static = _real("cauchy", key, shape, dtype)
    return placed(_cauchy(one, **static), None, out_sharding)


@Sampler
def _cauchy(key: Value, *, shape: Shape, dtype: DType) -> Value:
    u = stretched(key, shape, dtype, finfo(dtype).eps)
    return reproducible_tan(mul(math.pi, sub(u, 0.5)))


# Gumbel


def gumbel(
    key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, mode: str | None = None, *, out_sharding: Any = None
) -> Value:
    """Numbers with density exp(-x - exp(-x)).

    The largest that can occur grows with ``mode``: "low" (the default) uses the bits of one uniform number, "high"
    those of two, "highest" all 64.
    """
    one, static = _real("gumbel", key, shape, dtype)
    return placed(_gumbel(one, mode=checked_mode("gumbel", mode), **static), None, out_sharding)


def checked_mode(name: str, mode: str | None) -> str:
    """How many bits a sampler uses."""
    if not isinstance(mode, str | None) or mode not in (None, "low", "high", "highest"):
        raise ShapeError(
            f"{name} has no mode {mode!r}.",
            where=here(),
            why="the modes are 'low', 'high' and 'highest'",
            fix="mode='high'",
        )
    return mode or "low"


@Sampler
def _gumbel(key: Value, *, shape: Shape, dtype: DType, mode: str) -> Value:
    if mode == "low":
        u = stretched(key, shape, dtype, finfo(dtype).tiny)
        return neg(reproducible_log(neg(reproducible_log(u))))
    if mode == "highest" and dtype == FLOAT32:
        return _gumbel_highest(key, shape)
    info = finfo(dtype)
    high, low = halves(unit(key, (2, *shape), dtype))
    digits = int(info.nmant)
    above_zero = max(2.0 ** -(2 * digits + 1), float(info.tiny))
    finer = add(add(high, mul(2.0**-digits, low)), above_zero)
    u = select(ge(high, 0.5), high, finer)
    return neg(reproducible_log(neg(reproducible_log1p(neg(u)))))


def halves(x: Value) -> tuple[Value, Value]:
    """The two rows of an array."""
    rest = x.shape[1:]
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    first, second = (
        reshape(slice_(x, starts=(n, *zeros), limits=(n + 1, *rest), strides=(1, *ones)), shape=rest) for n in (0, 1)
    )
    return first, second


def _gumbel_highest(key: Value, shape: Shape) -> Value:
    """From a 64-bit fraction f: x = min(f, 1 - f) keeps all its bits as a float, and log(1 - x) or log(x) follows."""
    high, low = halves(random_bits(key, (2, *shape), UINT32))
    below_half = lt(high, 1 << 31)
    # 1 - f is the two's complement: carry into the high word when the low word is 0.
    carry = convert(eq(low, 0), UINT32)
    x = _fraction(select(below_half, high, add(not_(high), carry)), select(below_half, low, add(not_(low), 1)))
    near_zero = neg(reproducible_log(neg(reproducible_log1p(neg(x)))))
    near_one = neg(reproducible_log(neg(reproducible_log(x))))
    return select(below_half, near_zero, near_one)


def _fraction(high: Value, low: Value) -> Value:
    """The 64-bit fraction 0.(high)(low) as a float32, its leading 24 bits kept."""
    zeros_high, zeros_low = clz(high), clz(low)
    only_low = eq(zeros_high, 32)
    shifted = select(only_low, shift_left(low, zeros_low), shift_right_logical(low, sub(32, zeros_high)))
    leading = or_(shift_left(high, zeros_high), shifted)
    mantissa = and_(shift_right_logical(leading, 8), (1 << 23) - 1)
    exponent = shift_left(sub(126, select(only_low, add(zeros_low, 32), zeros_high)), 23)
    return bitcast(or_(and_(exponent, 0x3FC00000), mantissa), dtype=FLOAT32)


# Coins


def bernoulli(
    key: ArrayLike, p: ArrayLike = 0.5, shape: Any = None, mode: str = "low", *, out_sharding: Any = None
) -> Value:
    """True with probability ``p``. With mode="high" also small probabilities are met exactly.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.bernoulli(mw.random.key(0), 0.5, (4,)))
    array([False, False,  True,  True])
    """
    one = checked_key("bernoulli", key)
    if not isinstance(mode, str) or mode not in ("low", "high"):
        raise ShapeError(
            f"bernoulli has no mode {mode!r}.", where=here(), why="the modes are 'low' and 'high'", fix="mode='high'"
        )
    chance = value(p)
    if chance.dtype not in FLOATS:
        raise ShapeError(
            f"bernoulli cannot take p of type {chance.type.short()}.",
            where=here(),
            why="p is a probability",
            fix=f"p={float(p)}" if is_number(p) and not np.iscomplexobj(p) else "p=p.astype('float32')",
        )
    size = fitting_shape("bernoulli", shape, p=chance)
    return placed(_bernoulli(one, chance, shape=size, mode=mode), None, out_sharding)


@Sampler
def _bernoulli(key: Value, p: Value, *, shape: Shape, mode: str) -> Value:
    if mode == "low":
        return lt(unit(key, shape, p.dtype), spread(p, shape))
    coarse, fine = halves(unit(key, (2, *shape), p.dtype))
    fine = mul(fine, 2.0 ** -int(finfo(p.dtype).nmant))
    return lt(fine, sub(spread(p, shape), coarse))


def rademacher(key: ArrayLike, shape: Any = (), dtype: DTypeLike = int, *, out_sharding: Any = None) -> Value:
    """1 or -1, equally likely."""
    one = checked_key("rademacher", key)
    wanted = checked_dtype("rademacher", dtype, dtypes.NUMBERS)
    heads = _bernoulli(one, value(0.5), shape=checked_shape("rademacher", shape), mode="low")
    return placed(sub(mul(2, convert(heads, wanted)), 1), None, out_sharding)

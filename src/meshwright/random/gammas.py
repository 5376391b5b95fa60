"""Samples of the gamma distribution and of those made of it, by the steps of ``jax.random``: the same keys are split in
the same order, so that the numbers are those of JAX, up to rounding of the last digits.

Each element draws until a draw is accepted, from a key of its own: keys are two arrays of words, beside the samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.control import while_loop
from meshwright.api.custom import custom_jvp
from meshwright.arrays.operands import ArrayLike, DTypeLike, value
from meshwright.arrays.static import placed
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.lax.special import random_gamma_grad
from meshwright.numpy import abs as absolute
from meshwright.numpy import any as some
from meshwright.numpy import broadcast_to, exp, expand_dims, full, maximum, power, sqrt, where
from meshwright.numpy import max as largest
from meshwright.numpy import sum as total
from meshwright.ops.arithmetic import stop_gradient
from meshwright.ops.random import fma, reproducible_log, reproducible_log1p, threefry2x32
from meshwright.random.keys import (
    Sampler,
    checked_dtype,
    checked_key,
    checked_shape,
    each_word,
    fitting_shape,
    split,
    words_of_places,
)
from meshwright.random.samples import REAL, exponential, normal, rademacher, to_normal, to_unit, width_of_bits

Words = tuple[Any, Any]


# One key for each element


def _split_each(words: Words, count: int) -> list[Words]:
    return [threefry2x32(*words, np.uint32(0), np.uint32(n)) for n in range(count)]


def _unit_each(words: Words, dtype: DType) -> Any:
    high, low = threefry2x32(*words, np.uint32(0), np.uint32(0))
    return to_unit(each_word(high, low, width_of_bits(dtype)), dtype)


def _chosen(mask: Any, new: Any, old: Any) -> Any:
    return tuple(where(mask, x, y) for x, y in zip(new, old, strict=True))


def _positive_cubes(keys: Words, c: Any, drawing: Any) -> tuple[Any, Any]:
    """Normal numbers x with 1 + c x above 0, for the elements that are ``drawing``: x² and (1 + c x)³."""
    dtype = c.dtype

    def step(state: Any) -> Any:
        keys, x, v = state
        again = v <= 0
        key, now = _split_each(keys, 2)
        drawn = to_normal(_unit_each(now, dtype), dtype)
        found = 1 + drawn * c if dtype.itemsize < 4 else fma(drawn, c, full(c.shape, 1, dtype))
        return _chosen(again, key, keys), where(again, drawn, x), where(again, found, v)

    start = keys, full(c.shape, 0, dtype), where(drawing, full(c.shape, -1, dtype), 1)
    _, x, v = while_loop(lambda state: some(state[2] <= 0), step, start)
    return x * x, v * v * v


@Sampler
def _gamma(key: Value, a: Value, *, log_space: bool) -> Value:
    """Marsaglia and Tsang: d v³ is accepted with a chance that makes it a gamma sample for ``a`` of at least 1; for
    smaller ones, one of ``a + 1`` is multiplied by a uniform number to the power of ``1 / a``."""
    alpha: Any = a
    dtype = alpha.dtype
    keys = threefry2x32(*words_of_places(key, alpha.shape))
    large = alpha >= 1
    d = where(large, alpha, alpha + 1) - np.asarray(1 / 3, dtype)
    c = np.asarray(1 / 3, dtype) / sqrt(d)

    def drawing(squares: Any, cubes: Any, u: Any) -> Any:
        squeezed = u >= 1 - np.asarray(0.0331, dtype) * (squares * squares)
        bound = squares * 0.5 + d * ((1 - cubes) + reproducible_log(cubes))
        return squeezed & (reproducible_log(u) >= bound)

    def step(state: Any) -> Any:
        keys, cubes, active = state
        key, for_normal, for_uniform = _split_each(keys, 3)
        squares, found = _positive_cubes(for_normal, c, active)
        u = _unit_each(for_uniform, dtype)
        return _chosen(active, key, keys), where(active, found, cubes), active & drawing(squares, found, u)

    keys, last = _split_each(keys, 2)
    start = keys, full(alpha.shape, 1, dtype), full(alpha.shape, True)
    _, cubes, _ = while_loop(lambda state: some(state[2]), step, start)
    u = _unit_each(last, dtype)
    if log_space:
        logarithm = reproducible_log1p(-u)
        added = where(large | (logarithm == 0), 0, logarithm * (1 / alpha))
        return reproducible_log(d) + reproducible_log(cubes) + added
    return d * cubes * where(large, 1, power(1 - u, 1 / alpha))


@custom_jvp
def _following(a: Any, sample: Any) -> Any:
    """A gamma sample as a function of ``a``, its place in the distribution being kept."""
    return sample


@custom_jvp
def _following_logarithm(a: Any, sample: Any) -> Any:
    return sample


def _slope_of_logarithm(t: Any, out: Any, a: Any, sample: Any) -> Any:
    drawn = maximum(exp(sample), np.finfo(np.float32).tiny)
    return t * random_gamma_grad(a, drawn) / drawn


_following.defjvps(lambda t, out, a, sample: t * random_gamma_grad(a, sample), None)
_following_logarithm.defjvps(_slope_of_logarithm, None)


def gammas(key: Value, a: Value, log_space: bool) -> Value:
    """Samples (or their logarithms) of a checked key, one for each element of ``a``, differentiable by it."""
    drawn = _gamma(key, stop_gradient(a), log_space=log_space)
    found: Value = (_following_logarithm if log_space else _following)(a, drawn)
    return found


# Arguments


def spread_parameters(name: str, shape: Any, dtype: DTypeLike, **given: ArrayLike) -> tuple[DType, Shape, list[Any]]:
    """Parameters in the dtype of the samples, and in their shape."""
    wanted = checked_dtype(name, float if dtype is None else dtype, REAL)
    xs = {what: value(x).astype(wanted) for what, x in given.items()}  # type: ignore[attr-defined]
    found = fitting_shape(name, shape, **xs)
    return wanted, found, [broadcast_to(x, found) for x in xs.values()]


# Distributions


def gamma(
    key: ArrayLike, a: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers with density proportional to x^(a - 1) e^-x.

    >>> import meshwright as mw
    >>> gamma(mw.random.key(0), 2.0, (3,)).shape
    (3,)
    """
    _, _, (a,) = spread_parameters("gamma", shape, dtype, a=a)
    return placed(gammas(checked_key("gamma", key), a, log_space=False), None, out_sharding)


def loggamma(
    key: ArrayLike, a: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """The logarithms of gamma samples, which are there also where those are too small for their dtype."""
    _, _, (a,) = spread_parameters("loggamma", shape, dtype, a=a)
    return placed(gammas(checked_key("loggamma", key), a, log_space=True), None, out_sharding)


def beta(
    key: ArrayLike, a: ArrayLike, b: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers between 0 and 1 with density proportional to x^(a - 1) (1 - x)^(b - 1)."""
    _, _, (a, b) = spread_parameters("beta", shape, dtype, a=a, b=b)
    first, second = split(checked_key("beta", key))
    x: Any = gammas(first, a, log_space=True)
    y: Any = gammas(second, b, log_space=True)
    most = maximum(x, y)
    x, y = exp(x - most), exp(y - most)
    return placed(x / (x + y), None, out_sharding)


def dirichlet(
    key: ArrayLike, alpha: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Vectors of numbers that add up to 1, with density proportional to the product of x^(alpha - 1).

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> dirichlet(mw.random.key(0), mnp.ones(3), (2,)).shape
    (2, 3)
    """
    given = value(alpha)
    if given.ndim == 0:
        raise ShapeError(
            f"dirichlet cannot take alpha of type {given.type.short()}.",
            where=here(),
            why="alpha has a number for each of those that add up to 1",
            fix="alpha=mnp.ones(3)",
        )
    size = None if shape is None else (*checked_shape("dirichlet", shape), given.shape[-1])
    _, _, (given,) = spread_parameters("dirichlet", size, dtype, alpha=given)
    logarithms: Any = gammas(checked_key("dirichlet", key), given, log_space=True)
    weights = exp(logarithms - largest(logarithms, -1, keepdims=True))
    return placed(weights / total(weights, -1, keepdims=True), None, out_sharding)


def chisquare(
    key: ArrayLike, df: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Sums of ``df`` squares of normal numbers."""
    _, _, (df,) = spread_parameters("chisquare", shape, dtype, df=df)
    half: Any = gammas(checked_key("chisquare", key), df / 2, log_space=True)  # type: ignore[operator]
    return placed(exp(half) * 2, None, out_sharding)


def f(
    key: ArrayLike, dfnum: ArrayLike, dfden: ArrayLike, shape: Any = None, dtype: DTypeLike = float,
    *, out_sharding: Any = None,
) -> Value:  # fmt: skip
    """Ratios of two means of squares of normal numbers."""
    wanted, size, (above, below) = spread_parameters("f", shape, dtype, dfnum=dfnum, dfden=dfden)
    for_below, for_above = split(checked_key("f", key))
    x: Any = chisquare(for_above, above, size, wanted)
    y: Any = chisquare(for_below, below, size, wanted)
    return placed((x / above) / (y / below), None, out_sharding)


def t(key: ArrayLike, df: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Normal numbers over the root of a mean of ``df`` squares of others."""
    wanted, size, (df,) = spread_parameters("t", shape, dtype, df=df)
    for_normal, for_gamma = split(checked_key("t", key))
    n: Any = normal(for_normal, size, wanted)
    half = df / 2  # type: ignore[operator]
    return placed(n * sqrt(half / gammas(for_gamma, half, log_space=False)), None, out_sharding)


def generalized_normal(
    key: ArrayLike, p: float, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers with density proportional to exp(-|x|^p)."""
    wanted, size = checked_dtype("generalized_normal", dtype, REAL), checked_shape("generalized_normal", shape)
    first, second = split(checked_key("generalized_normal", key))
    g: Any = gamma(first, 1 / p, size, wanted)
    return placed(rademacher(second, size, wanted) * g ** (1 / p), None, out_sharding)


def ball(
    key: ArrayLike, d: int, p: float = 2, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Points within the ball of ``d`` dims whose radius, in the norm of order ``p``, is 1: all equally likely.

    >>> import meshwright as mw
    >>> ball(mw.random.key(0), 3, shape=(5,)).shape
    (5, 3)
    """
    wanted, size = checked_dtype("ball", dtype, REAL), checked_shape("ball", shape)
    first, second = split(checked_key("ball", key))
    g: Any = generalized_normal(first, p, (*size, d), wanted)
    e: Any = exponential(second, size, wanted)
    return placed(g / expand_dims((total(absolute(g) ** p, -1) + e) ** (1 / p), -1), None, out_sharding)

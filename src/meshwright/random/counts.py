"""Samples that count: Poisson, binomial and multinomial numbers, by the steps of ``jax.random``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.api.control import scan, while_loop
from meshwright.arrays.operands import ArrayLike, DTypeLike, promoted_values, value
from meshwright.arrays.static import placed
from meshwright.core.dtypes import FLOAT32, INTEGERS, DType
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.lax.elementwise import lgamma
from meshwright.numpy import abs as absolute
from meshwright.numpy import any as some
from meshwright.numpy import (
    broadcast_shapes,
    broadcast_to,
    ceil,
    clip,
    cumsum,
    floor,
    full,
    isinf,
    isnan,
    log1p,
    moveaxis,
    sqrt,
    where,
)
from meshwright.ops.random import reproducible_log
from meshwright.random.gammas import spread_parameters
from meshwright.random.keys import Sampler, checked_dtype, checked_key, checked_shape, rows_of_split, split
from meshwright.random.samples import REAL, unit

log: Any = reproducible_log


# Poisson


def poisson(
    key: ArrayLike, lam: ArrayLike, shape: Any = None, dtype: DTypeLike = int, *, out_sharding: Any = None
) -> Value:
    """How many of events happen that happen ``lam`` times in the mean, independently of each other.

    >>> import meshwright as mw
    >>> poisson(mw.random.key(0), 3.0, (4,)).dtype
    dtype('int32')
    """
    wanted = checked_dtype("poisson", dtype, INTEGERS)
    one = checked_key("poisson", key)
    _, size, (rate,) = spread_parameters("poisson", shape, FLOAT32, lam=lam)
    return placed(_poisson(one, rate, shape=size, dtype=wanted), None, out_sharding)


@Sampler
def _poisson(key: Value, lam: Value, *, shape: Shape, dtype: DType) -> Value:
    rate: Any = lam
    few = isnan(rate) | (rate < 10)
    by_products = _products(key, where(few, rate, 0), shape, dtype)
    by_rejection = _poisson_rejection(key, where(few, 1e5, rate), shape).astype(dtype)
    found = where(few, by_products, by_rejection)
    return where(rate == 0, 0, found)


def _products(key: Value, rate: Any, shape: Shape, dtype: DType) -> Any:
    """Knuth: how many uniform numbers can be multiplied before the product is below exp(-rate)."""

    def step(state: Any) -> Any:
        count, key, logarithm = state
        key, now = rows_of_split(key)
        count = where(logarithm > -rate, count + 1, count)
        return count, key, logarithm + log(unit(now, shape, FLOAT32))

    start = full(shape, 0, dtype), key, full(shape, 0, FLOAT32)
    return while_loop(lambda state: some(state[2] > -rate), step, start)[0] - 1


def _accepted(draw: Any, key: Value, shape: Shape, dtype: DType) -> Any:
    """What ``draw(key)`` gives where it is first accepted."""

    def step(state: Any) -> Any:
        found, done, key = state
        keys = split(key, 3)
        new, accept = draw(keys[1], keys[2])  # type: ignore[index]
        return where(accept, new, found), done | accept, keys[0]  # type: ignore[index]

    start = full(shape, -1, dtype), full(shape, False), key
    return while_loop(lambda state: some(~state[1]), step, start)[0]


def _poisson_rejection(key: Value, rate: Any, shape: Shape) -> Any:
    """Hörmann's transformed rejection, for large rates."""
    b = 0.931 + 2.53 * sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    bound = 0.9277 - 3.6224 / (b - 2)

    def draw(first: Value, second: Value) -> Any:
        u: Any = unit(first, shape, rate.dtype) - 0.5  # type: ignore[operator]
        v: Any = unit(second, shape, rate.dtype)
        near = 0.5 - absolute(u)
        k = floor((2 * a / near + b) * u + rate + 0.43)
        left = log(v * inverse / (a / (near * near) + b))
        right = -rate + k * log(rate) - lgamma(k + 1)
        refused = (k < 0) | ((near < 0.013) & (v > near))
        return k, ((near >= 0.07) & (v <= bound)) | (~refused & (left <= right))

    return _accepted(draw, key, shape, rate.dtype)


# Binomial


def binomial(key: ArrayLike, n: ArrayLike, p: ArrayLike, shape: Any = None, dtype: DTypeLike = float) -> Value:
    """How many of ``n`` coins fall on the side that has chance ``p``, as floats.

    >>> import meshwright as mw
    >>> float(binomial(mw.random.key(0), 5, 1.0))
    5.0
    """
    wanted = checked_dtype("binomial", dtype, REAL)
    one = checked_key("binomial", key)
    (chance,) = promoted_values(p, inexact=True)
    _, size, (count, chance) = spread_parameters("binomial", shape, chance.dtype, n=n, p=chance)
    return _binomial(one, count, chance, shape=size, dtype=wanted)


@Sampler
def _binomial(key: Value, n: Value, p: Value, *, shape: Shape, dtype: DType) -> Value:
    chance: Any = p
    count: Any = n
    small = chance < 0.5
    q = where(small, chance, 1 - chance)
    no_count, no_chance = isnan(count) | (count < 0), isnan(q) | (q < 0)
    q = where(no_chance, 0.01, q)
    few = no_count | (count * q <= 10)
    endless = isinf(count)
    count = floor(count)
    by_gaps = _gaps(key, where(few, count, 0), q, shape)
    by_rejection = _binomial_rejection(key, where(few, 1e4, count), where(few, 0.5, q), shape)
    found = where(few, by_gaps, by_rejection).astype(dtype)
    wrong = no_chance | no_count
    found = where(wrong, np.nan, where(endless, np.inf, found))
    return where(small | no_count | isnan(chance) | endless, found, count.astype(dtype) - found)


def _gaps(key: Value, count: Any, q: Any, shape: Shape) -> Any:
    """How many gaps between successes, which are geometric, fit into ``count`` trials."""

    def step(state: Any) -> Any:
        found, passed, key = state
        now, key = rows_of_split(key)
        found = where(passed <= count, found + 1, found)
        gap = ceil(log(unit(now, shape, q.dtype)) / log1p(-q))
        return found, passed + gap, key

    start = full(shape, 0, q.dtype), full(shape, 0, q.dtype), key
    return while_loop(lambda state: some(state[1] <= count), step, start)[0] - 1


_EXACT_TAILS = tuple(
    math.lgamma(k + 1) - ((k + 0.5) * math.log(k + 1) - (k + 1) + 0.5 * math.log(2 * math.pi)) for k in range(10)
)


def _tail(k: Any) -> Any:
    """What Stirling's formula leaves out of log(k!): exactly up to 9, and as for 9 from there on."""
    found = value(np.asarray(_EXACT_TAILS, k.dtype))[clip(floor(k), 0, 9).astype("int32")]  # type: ignore[index]
    square = 100.0
    beyond = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / 10
    return where(k <= 9, found, beyond)


def _binomial_rejection(key: Value, count: Any, q: Any, shape: Shape) -> Any:
    """Hörmann's transformed rejection, for large counts."""
    deviation = sqrt(count * q * (1 - q))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * q
    bound = 0.92 - 4.2 / b
    odds = q / (1 - q)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = floor((count + 1) * q)

    def draw(first: Value, second: Value) -> Any:
        u: Any = unit(first, shape, q.dtype) - 0.5  # type: ignore[operator]
        v: Any = unit(second, shape, q.dtype)
        near = 0.5 - absolute(u)
        k = floor((2 * a / near + b) * u + (count * q + 0.5))
        left = log(v * alpha / (a / (near * near) + b))
        right = (
            (mode + 0.5) * log((mode + 1) / (odds * (count - mode + 1)))
            + (count + 1) * log((count - mode + 1) / (count - k + 1))
            + (k + 0.5) * log(odds * (count - k + 1) / (k + 1))
            + _tail(mode) + _tail(count - mode) - _tail(k) - _tail(count - k)
        )  # fmt: skip
        refused = (k < 0) | (k > count)
        return k, ((near >= 0.07) & (v <= bound)) | (~refused & (left <= right))

    return _accepted(draw, key, shape, q.dtype)


def multinomial(
    key: ArrayLike, n: ArrayLike, p: ArrayLike, *, shape: Any = None, dtype: DTypeLike = float, unroll: int | bool = 1
) -> Value:
    """How many of ``n`` draws have each of the outcomes along the last dim of ``p``, which has their chances.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> float(multinomial(mw.random.key(0), 7, mnp.array([0.2, 0.8])).sum())
    7.0
    """
    one = checked_key("multinomial", key)
    wanted = checked_dtype("multinomial", dtype, (*REAL, *INTEGERS))
    count, chances = promoted_values(n, p, inexact=True)
    size = chances.shape if shape is None else checked_shape("multinomial", shape)
    rest = broadcast_to(count, broadcast_shapes(size[:-1], size[:-1]))
    ways = moveaxis(broadcast_to(chances, size), -1, 0)
    left: Any = cumsum(ways[::-1], 0)[::-1]  # type: ignore[index]
    ratios: Any = ways / where(left == 0, 1, left)  # type: ignore[operator]

    def step(rest: Any, way: Any) -> Any:
        ratio, key = way
        found = binomial(key, rest, clip(ratio, 0, 1), dtype=rest.dtype)
        return rest - found, found

    _, counts = scan(step, rest, (ratios, split(one, ratios.shape[0])), unroll=unroll)
    return moveaxis(counts, 0, -1).astype(wanted)  # type: ignore[no-any-return]

"""Random integers, orders and choices: the numbers of ``jax.random``, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, axis_of, convert, is_number, to_inexact, value
from meshwright.arrays.static import placed, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.dtypes import INT32, INTEGERS, UINT32, DType, default_int
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.ops.arithmetic import rem, sub
from meshwright.ops.basic import add, broadcast_in_dim, move_dim, mul, reshape, transpose
from meshwright.ops.bits import and_
from meshwright.ops.choice import clamp, gt, le, lt, select
from meshwright.ops.cumulative import cumsum
from meshwright.ops.gathering import gather
from meshwright.ops.random import reproducible_log
from meshwright.ops.reduction import argmax
from meshwright.ops.shape import iota, slice_
from meshwright.ops.sorting import sort, top_k
from meshwright.random.keys import (
    UINT_OF_WIDTH,
    Sampler,
    checked_dtype,
    checked_key,
    checked_shape,
    fitting_shape,
    random_bits,
    rows_of_split,
    spread,
)
from meshwright.random.samples import REAL, checked_mode, gumbel, uniform

# Integers


def randint(
    key: ArrayLike,
    shape: Any,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike = int,
    *,
    out_sharding: Any = None,
) -> Value:
    """Integers from ``minval`` to ``maxval - 1``; where that is none, ``minval``.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.randint(mw.random.key(0), (4,), 0, 10))
    array([9, 0, 2, 3], dtype=int32)
    """
    one = checked_key("randint", key)
    wanted = checked_dtype("randint", dtype, INTEGERS)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    drawn_as = wanted
    if wanted.itemsize < 4:
        info, drawn_as = np.iinfo(wanted), INT32
        low = clamp(int(info.min), convert(low, INT32), int(info.max))
        high = clamp(int(info.min), convert(high, INT32), int(info.max) + 1)
    size = fitting_shape("randint", shape, minval=low, maxval=high)
    found = convert(_randint(one, low, high, shape=size, dtype=drawn_as), wanted)
    return placed(found, None, out_sharding)


def _bound(what: str, x: ArrayLike) -> Value:
    info = np.iinfo(default_int())
    if isinstance(x, int) and not info.min <= x <= info.max:
        raise ShapeError(
            f"randint cannot take {what}={x}.",
            where=here(),
            why=f"it does not fit into {default_int().name}",
            fix=f"{what}=np.uint32({x})" if 0 < x < 2**32 else "mw.config.update('enable_x64', True)",
        )
    given = value(x)
    if dtypes.is_complex(given.dtype) or given.dtype == dtypes.BOOL:
        raise ShapeError(
            f"randint cannot take {what} of type {given.type.short()}.",
            where=here(),
            why="the bounds of random integers are integers",
            fix=f"{what}=10",
        )
    return given if dtypes.is_integer(given.dtype) else convert(given, default_int())


@Sampler
def _randint(key: Value, low: Value, high: Value, *, shape: Shape, dtype: DType) -> Value:
    """(first, second) draws as one number of twice the width, modulo the span: almost without bias."""
    unsigned = UINT_OF_WIDTH[dtype.itemsize]
    beyond = gt(high, int(min(np.iinfo(dtype).max, np.iinfo(high.dtype).max)))
    low, high = (spread(_clipped(x, dtype), shape) for x in (low, high))
    beyond = spread(beyond, shape)
    span = convert(sub(high, low), unsigned)
    span = select(le(high, low), _like(span, 1), span)
    # With the largest number of the dtype included the span may be 2**width, which wraps to 0: no remainder is taken.
    span = select(and_(beyond, gt(high, low)), add(span, 1), span)
    half = rem(_like(span, 1 << 4 * dtype.itemsize), span)
    multiplier = rem(mul(half, half), span)
    first, second = (random_bits(k, shape, unsigned) for k in rows_of_split(key))
    offset = rem(add(mul(rem(first, span), multiplier), rem(second, span)), span)
    return add(low, convert(offset, dtype))


def _like(x: Value, number: int) -> Value:
    """A rank-0 value of ``x``'s dtype."""
    return value(np.asarray(number, x.dtype))


def _clipped(x: Value, dtype: DType) -> Value:
    """Integers in another dtype, those beyond its range at its ends."""
    have, want = np.iinfo(x.dtype), np.iinfo(dtype)
    return convert(clamp(max(int(have.min), int(want.min)), x, min(int(have.max), int(want.max))), dtype)


# Orders


def permutation(
    key: ArrayLike, x: ArrayLike, axis: int = 0, independent: bool = False, *, out_sharding: Any = None
) -> Value:
    """``x`` (or the numbers below ``x``) in random order along ``axis``.

    With ``independent`` each line along the axis has an order of its own; otherwise slices stay together.

    >>> import meshwright as mw
    >>> np.asarray(mw.random.permutation(mw.random.key(0), 5))
    array([0, 1, 4, 3, 2], dtype=int32)
    """
    independent = static_flag(independent, "independent of random.permutation")
    one = checked_key("permutation", key)
    given = _population("permutation", "x", x)
    axis = axis_of(axis, given.ndim, "permutation")
    if independent or given.ndim == 1:
        return placed(_shuffle(one, given, axis=axis), None, out_sharding)
    found = take(given, _shuffle(one, _arange(given.shape[axis]), axis=0), axis)
    return placed(found, None, out_sharding)


def _population(name: str, what: str, x: ArrayLike) -> Value:
    """An array, or the numbers below an integer."""
    given = x if is_number(x) else value(x)
    if not is_number(x) and given.ndim:
        return given
    if isinstance(x, bool | float | complex) or not (is_number(x) or dtypes.is_integer(given.dtype)):
        raise ShapeError(
            f"{name} cannot take {what}={x!r}."
            if is_number(x)
            else f"{name} cannot take {what} of type {given.type.short()}.",
            where=here(),
            why=f"{what} is an array with at least one dim, or an integer that stands for the numbers below it",
            fix=f"{what}=mnp.arange(8)",
        )
    return _arange(max(0, static_int(x, f"{what} of mw.random.{name}")))


def _arange(size: int) -> Value:
    return iota(dtype=default_int(), shape=(size,), dim=0)


@Sampler
def _shuffle(key: Value, x: Value, *, axis: int) -> Value:
    """Sort by random keys, so often that two elements are unlikely to have had equal keys every time."""
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, now = rows_of_split(key)
        _, x = sort(random_bits(now, x.shape, UINT32), x, dim=axis, num_keys=1)
    return x


def take(x: Value, places: Value, axis: int) -> Value:
    """The slices of ``x`` at ``places`` (all within it) along ``axis``."""
    kept = tuple(d for d in range(x.ndim) if d != axis)
    rank = places.ndim
    return gather(
        x,
        reshape(places, shape=(*places.shape, 1)),
        offset_dims=tuple(d if d < axis else d + rank - 1 for d in kept),
        collapsed_dims=(axis,),
        operand_batch_dims=(),
        indices_batch_dims=(),
        start_index_map=(axis,),
        slice_sizes=tuple(1 if d == axis else n for d, n in enumerate(x.shape)),
        mode="promise",
    )


# Choices


def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: Any = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Value:
    """Elements of ``a`` (or numbers below ``a``), slices along ``axis``, drawn at random.

    ``p`` gives their probabilities; without ``replace`` none is drawn twice. ``mode`` is that of ``gumbel``, which
    draws with probabilities and without replacement.

    >>> import meshwright as mw
    >>> mw.random.choice(mw.random.key(0), 10, (3,), replace=False).shape
    (3,)
    """
    replace = static_flag(replace, "replace of random.choice")
    one = checked_key("choice", key)
    drawn = checked_shape("choice", shape)
    scalar = is_number(a) or value(a).ndim == 0
    population = _population("choice", "a", a)
    axis = static_int(axis, "axis of mw.random.choice")
    axis = axis_of(axis, 1 if scalar else population.ndim, "choice")
    count, draws = population.shape[axis], math.prod(drawn)
    out = (*population.shape[:axis], *drawn, *population.shape[axis + 1 :])
    if draws == 0:
        return broadcast_in_dim(value(np.zeros((), population.dtype)), shape=drawn, dims=())
    if count == 0 or (draws > count and not replace):
        raise ShapeError(
            f"choice cannot draw {draws} of {count} elements{'' if replace else ' without replacement'}.",
            where=here(),
            why="there are none" if count == 0 else "without replacement each is drawn at most once",
            fix="pass elements to choose from" if count == 0 else "replace=True, or a smaller shape",
        )
    if p is None and not replace:
        shuffled = permutation(one, population, axis)
        first = slice_(
            shuffled,
            starts=(0,) * shuffled.ndim,
            limits=tuple(draws if d == axis else n for d, n in enumerate(shuffled.shape)),
            strides=(1,) * shuffled.ndim,
        )
        return reshape(first, shape=out)
    if p is None:
        places = randint(one, drawn, 0, count)
    else:
        chances = _chances(p, count)
        if replace:
            places = _by_cumulative_chance(one, chances, drawn)
        else:
            scores = add(gumbel(one, (count,), chances.dtype, mode), reproducible_log(chances))
            places = reshape(convert(top_k(scores, k=draws)[1], default_int()), shape=drawn)
    return places if scalar else take(population, places, axis)


def _chances(p: ArrayLike, count: int) -> Value:
    given = value(p)
    chances = convert(given, to_inexact(given.dtype))
    if chances.shape != (count,) or chances.dtype not in REAL:
        raise ShapeError(
            f"choice cannot take p of type {given.type.short()} for {count} elements.",
            where=here(),
            why="p has one probability for each element along the axis",
            fix=f"p=mnp.full({count}, {1 / count:.3g})",
        )
    return chances


def _by_cumulative_chance(key: Value, chances: Value, shape: Shape) -> Value:
    """The first place at which the running sum of the chances reaches a random part of their total."""
    running = cumsum(chances, axis=0, reverse=False)
    size = chances.size
    total = reshape(slice_(running, starts=(size - 1,), limits=(size,), strides=(1,)), shape=())
    wanted = mul(total, sub(1.0, uniform(key, shape, chances.dtype)))
    # Bisection: the place is in [low, high]; each step halves the 2**n - 1 ≥ size candidates before it.
    place = broadcast_in_dim(value(np.zeros((), default_int())), shape=shape, dims=())
    for n in reversed(range(size.bit_length())):
        last = add(place, (1 << n) - 1)
        here_ = take(running, clamp(0, last, size - 1), 0)
        skip = and_(lt(last, size), lt(here_, wanted))
        place = select(skip, add(last, 1), place)
    return place


def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Value:
    """Places along ``axis``, drawn with probabilities proportional to exp(logits).

    ``shape`` ends in the shape of ``logits`` without the axis; dims before that are further draws, among which no
    place occurs twice without ``replace``. ``mode`` is that of ``gumbel``.

    >>> import meshwright as mw
    >>> mw.random.categorical(mw.random.key(0), mw.numpy.zeros((5, 3))).shape
    (5,)
    """
    replace = static_flag(replace, "replace of random.categorical")
    one = checked_key("categorical", key)
    scores = value(logits)
    if scores.dtype not in REAL or scores.ndim == 0:
        raise ShapeError(
            f"categorical cannot take logits of type {scores.type.short()}.",
            where=here(),
            why="logits are logarithms of probabilities, one for each category along the axis",
            fix="logits=mnp.log(probabilities)" if scores.ndim else "logits=mnp.zeros(4)",
        )
    axis = axis_of(axis, scores.ndim, "categorical")
    batch = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    out = batch if shape is None else checked_shape("categorical", shape)
    extra = out[: max(0, len(out) - len(batch))]
    fits = all(n in (1, m) for n, m in zip(batch, out[len(extra) :], strict=False)) and len(out) >= len(batch)
    if not fits or (not replace and out != (*extra, *batch)):
        raise ShapeError(
            f"categorical cannot draw shape {out} from logits {scores.type.short()} along axis {axis}.",
            where=here(),
            why=f"the shape ends in that of the logits without the axis, {batch}",
            fix=f"shape={(*(extra or out), *batch)}",
        )
    depth = checked_mode("categorical", mode)
    if replace:
        rows = out[len(extra) :]
        lines = (*extra, *rows[:axis], scores.shape[axis], *rows[axis:])
        noisy = add(gumbel(one, lines, scores.dtype, depth), spread(scores, lines))
        return placed(argmax(noisy, axis=axis + len(extra), dtype=default_int()), None, out_sharding)
    draws = math.prod(extra)
    if draws > scores.shape[axis]:
        raise ShapeError(
            f"categorical cannot draw {draws} of {scores.shape[axis]} categories without replacement.",
            where=here(),
            why="without replacement each is drawn at most once",
            fix="replace=True, or a smaller shape",
        )
    noisy = add(scores, gumbel(one, scores.shape, scores.dtype, depth))
    best = top_k(move_dim(noisy, axis, scores.ndim - 1), k=draws)[1]
    rank = best.ndim - 1
    found = reshape(transpose(best, permutation=(rank, *range(rank))), shape=out)
    return placed(found, None, out_sharding)

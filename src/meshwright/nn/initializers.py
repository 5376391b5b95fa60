"""``meshwright.nn.initializers``: functions that draw the first values of parameters, as ``jax.nn.initializers``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.arrays.operands import ArrayLike, DTypeLike
from meshwright.arrays.static import placed
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import multiply, sign
from meshwright.numpy.creation import diagonal, full
from meshwright.numpy.creation import ones as ones_array
from meshwright.numpy.creation import zeros as zeros_array
from meshwright.numpy.linalg import qr
from meshwright.numpy.shapes import expand_dims, moveaxis
from meshwright.numpy.updates import At
from meshwright.random import samples as random

Initializer = Callable[..., Value]

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

# The standard deviation of a normal distribution cut off at ±2.
_CUT_OFF = 0.87962566103423978


def zeros(key: ArrayLike, shape: Any, dtype: DTypeLike = float, out_sharding: Any = None) -> Value:
    """Zeros, whatever the key."""
    return zeros_array(shape, dtype, out_sharding=out_sharding)


def ones(key: ArrayLike, shape: Any, dtype: DTypeLike = float, out_sharding: Any = None) -> Value:
    """Ones, whatever the key."""
    return ones_array(shape, dtype, out_sharding=out_sharding)


def constant(value: ArrayLike, dtype: DTypeLike = float) -> Initializer:
    """An initializer that gives one value everywhere."""

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        return full(shape, value, dtype, out_sharding=out_sharding)

    return init


def uniform(scale: float = 1e-2, dtype: DTypeLike = float) -> Initializer:
    """An initializer that draws evenly from 0 to ``scale``."""

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        return multiply(random.uniform(key, shape, dtype, out_sharding=out_sharding), scale)

    return init


def normal(stddev: float = 1e-2, dtype: DTypeLike = float) -> Initializer:
    """An initializer that draws from a normal distribution.

    >>> import meshwright as mw
    >>> mw.nn.initializers.normal(0.02)(mw.random.key(0), (2, 3)).shape
    (2, 3)
    """

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        return multiply(random.normal(key, shape, dtype, out_sharding=out_sharding), stddev)

    return init


def truncated_normal(
    stddev: float = 1e-2, dtype: DTypeLike = float, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """An initializer that draws from a normal distribution cut off at ``lower`` and ``upper`` deviations."""

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        return multiply(random.truncated_normal(key, lower, upper, shape, dtype, out_sharding=out_sharding), stddev)

    return init


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: int | Sequence[int] = (),
    dtype: DTypeLike = float,
) -> Initializer:
    """An initializer whose variance is ``scale`` over the number of inputs, of outputs, or their mean."""

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        inputs, outputs = _fans(tuple(shape), in_axis, out_axis, batch_axis)
        fans = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}
        if mode not in fans or distribution not in ("normal", "truncated_normal", "uniform"):
            raise ShapeError(
                f"variance_scaling cannot take mode={mode!r}, distribution={distribution!r}.",
                where=here(),
                why="the mode is fan_in, fan_out or fan_avg; the distribution normal, truncated_normal or uniform",
                fix="variance_scaling(1.0, 'fan_in', 'truncated_normal')",
            )
        kind = dtypes.as_dtype(dtype)
        deviation = math.sqrt(scale / max(1.0, fans[mode]))
        if distribution == "normal":
            return multiply(random.normal(key, shape, kind, out_sharding=out_sharding), deviation)
        if distribution == "truncated_normal":
            drawn = random.truncated_normal(key, -2, 2, shape, kind, out_sharding=out_sharding)
            return multiply(drawn, deviation / _CUT_OFF)
        return multiply(random.uniform(key, shape, kind, -1, out_sharding=out_sharding), math.sqrt(3.0) * deviation)

    return init


def _fans(shape: tuple[int, ...], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    """How many inputs an output has, and how many outputs an input; other dims are windows of a convolution."""
    if len(shape) < 2 and not isinstance(in_axis, list | tuple):
        raise ShapeError(
            f"A parameter of shape {shape} has no inputs and outputs.",
            where=here(),
            why="scaling by them needs two dims or more",
            fix="nn.initializers.normal(0.02) for vectors",
        )

    def size(axis: Any) -> int:
        return math.prod(shape[a] for a in (axis if isinstance(axis, list | tuple) else (axis,)))

    window = math.prod(shape) / max(1, size(in_axis) * size(out_axis) * size(batch_axis))
    return size(in_axis) * window, size(out_axis) * window


def _scaled(name: str, scale: float, mode: str, distribution: str) -> Callable[..., Initializer]:
    def make(
        in_axis: int | Sequence[int] = -2,
        out_axis: int | Sequence[int] = -1,
        batch_axis: int | Sequence[int] = (),
        dtype: DTypeLike = float,
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"An initializer with variance {scale:g} over {mode}, {distribution}."
    return make


glorot_uniform = xavier_uniform = _scaled("glorot_uniform", 1.0, "fan_avg", "uniform")
glorot_normal = xavier_normal = _scaled("glorot_normal", 1.0, "fan_avg", "truncated_normal")
lecun_uniform = _scaled("lecun_uniform", 1.0, "fan_in", "uniform")
lecun_normal = _scaled("lecun_normal", 1.0, "fan_in", "truncated_normal")
he_uniform = kaiming_uniform = _scaled("he_uniform", 2.0, "fan_in", "uniform")
he_normal = kaiming_normal = _scaled("he_normal", 2.0, "fan_in", "truncated_normal")


def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = float) -> Initializer:
    """An initializer whose columns, those along ``column_axis``, are orthogonal and of length ``scale``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> w = mw.nn.initializers.orthogonal()(mw.random.key(0), (4, 3))
    >>> bool(mnp.allclose(w.T @ w, mnp.eye(3), atol=1e-5))
    True
    """

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        sizes = tuple(shape)
        if len(sizes) < 2:
            raise ShapeError(
                f"A parameter of shape {sizes} has no columns that are orthogonal.", where=here(),
                why="they stand in two dims or more", fix="nn.initializers.normal(0.02) for vectors",
            )  # fmt: skip
        columns = sizes[column_axis]
        rows = math.prod(sizes) // max(columns, 1)
        tall = (columns, rows) if rows < columns else (rows, columns)
        q, r = qr(random.normal(key, tall, dtype))
        # The sign of each column is free in q and r; with that of r it is uniform among orthogonal matrices.
        q = multiply(q, expand_dims(sign(diagonal(r)), 0))
        q = q.T if rows < columns else q
        # The columns stand last; their dim goes where it belongs among the others.
        others = [n for d, n in enumerate(sizes) if d != column_axis % len(sizes)]
        return placed(multiply(moveaxis(q.reshape(*others, columns), -1, column_axis), scale), None, out_sharding)

    return init


def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = float) -> Initializer:
    """An initializer of convolutions that is orthogonal in the middle of the window, and zero elsewhere."""

    def init(key: ArrayLike, shape: Any, dtype: DTypeLike = dtype, out_sharding: Any = None) -> Value:
        sizes = tuple(shape)
        if len(sizes) not in (3, 4, 5) or sizes[-2] > sizes[-1]:
            raise ShapeError(
                f"A window of shape {sizes} cannot be delta-orthogonal.", where=here(),
                why="it has one to three dims, then inputs and outputs, and no more inputs than outputs",
                fix="nn.initializers.orthogonal()",
            )  # fmt: skip
        middle = orthogonal(scale, column_axis, dtype)(key, sizes[-2:], dtype)
        index = tuple((n - 1) // 2 for n in sizes[:-2])
        found = At(full(sizes, 0, dtype))[index].set(middle)
        return placed(found, None, out_sharding)

    return init

"""``meshwright.nn``: activations, softmax and what else neural networks are made of, as ``jax.nn`` has them."""

from __future__ import annotations

import math
from typing import Any

from meshwright.arrays.operands import (
    ArrayLike,
    Axis,
    DTypeLike,
    as_dtype,
    axes_of,
    axis_of,
    broadcast,
    convert,
    inexact,
    inexact_unary,
    promote_operands,
    promoted_values,
    strong,
    value,
)
from meshwright.arrays.refusals import ordered
from meshwright.arrays.static import mask_of, one_of, placed, static_flag, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.errors import ShapeError
from meshwright.nn import initializers
from meshwright.nn.attention import dot_product_attention, scaled_matmul
from meshwright.numpy.arithmetic import (
    add,
    clip,
    divide,
    maximum,
    minimum,
    multiply,
    negative,
    sign,
    square,
    subtract,
)
from meshwright.numpy.creation import ones
from meshwright.numpy.logic import absolute, either, equal, greater, greater_equal, isfinite, less, less_equal
from meshwright.numpy.mathematics import exp, expm1, log, log1p, logaddexp, sqrt, tanh
from meshwright.numpy.reductions import max, mean, sum
from meshwright.numpy.shapes import expand_dims, split
from meshwright.ops import basic, elementwise
from meshwright.ops.shape import iota

__all__ = [
    "celu",
    "dot_product_attention",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "initializers",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "scaled_matmul",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]


# Activations


def _beside_floats(x: ArrayLike) -> Value:
    """``x`` in the dtype it has beside Python's floats: integers become weak floats of the default width."""
    return value(promote_operands((x, 0.0))[0])


def _floats(x: ArrayLike) -> Value:
    """``x`` in a floating dtype; truth values are as weak as Python's numbers."""
    x = value(x)
    return _beside_floats(x) if x.type.dtype == dtypes.BOOL else inexact(x)


def identity(x: ArrayLike) -> Value:
    """``x`` itself."""
    return value(x)


def relu(x: ArrayLike) -> Value:
    """``max(x, 0)``, with derivative 0 at 0.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.nn.relu(mnp.array([-1.0, 0.0, 2.0]))
    Array([0., 0., 2.], dtype=float32)
    """
    # A choice rather than a maximum: its derivative at 0 is that of the branch taken, and NaN stays NaN.
    x = value(x)
    if x.type.dtype == dtypes.BOOL:
        x = convert(x, dtypes.default_int(), weak=True)
    if dtypes.is_complex(x.type.dtype):
        return either(greater(x, 0), x, 0)
    return apply(elementwise.select, (apply(elementwise.le, (x, 0), {}), 0, x), {})


def relu6(x: ArrayLike) -> Value:
    """``min(max(x, 0), 6)``, with derivative 0 at the ends."""
    x = _beside_floats(x)
    return either(less_equal(x, 0), 0, either(greater_equal(x, 6), 6, x))


def sigmoid(x: ArrayLike) -> Value:
    """``1 / (1 + exp(-x))``."""
    return inexact_unary(elementwise.logistic, x)


def log_sigmoid(x: ArrayLike) -> Value:
    """The logarithm of the sigmoid."""
    return negative(softplus(negative(inexact(x))))


def softplus(x: ArrayLike) -> Value:
    """``log(1 + exp(x))``."""
    return logaddexp(_floats(x), 0.0)


def soft_sign(x: ArrayLike) -> Value:
    """``x / (1 + |x|)``."""
    x = _floats(x)
    return divide(x, add(absolute(x), 1.0))


def silu(x: ArrayLike) -> Value:
    """``x * sigmoid(x)``."""
    x = inexact(x)
    return apply(basic.mul, (x, apply(elementwise.logistic, (x,), {})), {})


swish = silu


def mish(x: ArrayLike) -> Value:
    """``x * tanh(softplus(x))``."""
    x = _floats(x)
    return multiply(x, tanh(softplus(x)))


def gelu(x: ArrayLike, approximate: bool = True) -> Value:
    """``x`` times the share of a normal distribution below ``x``, by a tanh unless ``approximate`` is false."""
    approximate = static_flag(approximate, "approximate of nn.gelu")
    x = inexact(x)
    if approximate:
        cubic = add(x, multiply(apply(elementwise.integer_pow, (x,), {"exponent": 3}), 0.044715))
        share = multiply(add(tanh(multiply(cubic, math.sqrt(2 / math.pi))), 1.0), 0.5)
        return strong(multiply(x, share))
    return strong(multiply(multiply(x, 0.5), apply(elementwise.erfc, (multiply(x, -math.sqrt(0.5)),), {})))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """``x`` above zero, ``alpha * (exp(x) - 1)`` below."""
    x = _beside_floats(x)
    positive = greater(x, 0)
    # The branch not taken sees 0, so that it has no infinite derivative.
    return either(positive, x, multiply(alpha, expm1(either(positive, 0.0, x))))


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 1e-2) -> Value:
    """``x`` above zero, ``negative_slope * x`` below."""
    x = value(x)
    return either(greater_equal(x, 0), x, multiply(negative_slope, x))


def selu(x: ArrayLike) -> Value:
    """``elu`` scaled so that layers keep mean 0 and variance 1."""
    return multiply(1.0507009873554804934193349852946, elu(x, 1.6732632423543772848170429916717))


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """``max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)``."""
    x = _beside_floats(x)
    return add(maximum(x, 0.0), multiply(alpha, expm1(divide(minimum(x, 0.0), alpha))))


def glu(x: ArrayLike, axis: int = -1) -> Value:
    """The first half of a dim times the sigmoid of the second."""
    x = value(x)
    dim = axis_of(axis, x.ndim, "nn.glu")
    if x.shape[dim] % 2:
        raise ShapeError(
            f"nn.glu cannot halve {x.type.short()} along dim {dim}.",
            where=here(),
            why=f"its size {x.shape[dim]} is odd",
            fix="make the layer before it twice as wide",
        )
    first, second = split(x, 2, dim)
    return multiply(first, sigmoid(second))


def hard_tanh(x: ArrayLike) -> Value:
    """``x`` limited to lie between -1 and 1."""
    x = value(x)
    return either(greater(x, 1), 1, either(greater(-1, x), -1, x))


def hard_sigmoid(x: ArrayLike) -> Value:
    """A sigmoid of three straight pieces: ``relu6(x + 3) / 6``."""
    return divide(relu6(add(x, 3.0)), 6.0)


def hard_silu(x: ArrayLike) -> Value:
    """``x * hard_sigmoid(x)``."""
    x = _beside_floats(x)
    return multiply(x, hard_sigmoid(x))


hard_swish = hard_silu


def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Value:
    """``(x + sqrt(x**2 + b)) / 2``."""
    x = value(x)
    x, b = promoted_values(inexact(x) if x.type.dtype == dtypes.BOOL else x, b, inexact=True)
    return divide(add(x, sqrt(add(square(x), b))), 2.0)


def sparse_plus(x: ArrayLike) -> Value:
    """0 up to -1, ``x`` from 1 on, and a parabola between."""
    x = _beside_floats(x)
    return either(less_equal(x, -1.0), 0.0, either(greater_equal(x, 1.0), x, divide(square(add(x, 1.0)), 4)))


def sparse_sigmoid(x: ArrayLike) -> Value:
    """The derivative of ``sparse_plus``: 0 up to -1, 1 from 1 on, and a straight line between."""
    return multiply(0.5, clip(add(x, 1.0), 0.0, 2.0))


def log1mexp(x: ArrayLike) -> Value:
    """``log(1 - exp(-x))`` of positive numbers, exact for small and for large ones.

    >>> import meshwright as mw
    >>> round(float(mw.nn.log1mexp(1e-3)), 4)
    -6.9083
    """
    x = inexact(x)
    # Each way loses digits where the other does not; the one not taken sees a number that is harmless to it.
    small = less(x, math.log(2.0))
    near = log(negative(expm1(negative(either(small, x, 0.5)))))
    far = log1p(negative(exp(negative(either(small, 1.0, x)))))
    return either(small, near, far)


# Softmax


def _peak(x: Value, axes: tuple[int, ...], where: ArrayLike | None, initial: ArrayLike | None) -> Value:
    """The largest element, as a constant: what it cancels against has no derivative."""
    start = -math.inf if initial is None and (where is not None or 0 in x.shape) else initial
    return apply(elementwise.stop_gradient, (max(x, axes, where=where, initial=start),), {})


def _spread(reduced: Value, axes: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    """What was reduced over ``axes``, at every place of ``shape`` again."""
    dims = tuple(d for d in range(len(shape)) if d not in axes)
    return apply(basic.broadcast_in_dim, (reduced,), {"shape": shape, "dims": dims}) if shape else reduced


def _shifted(
    x: ArrayLike, axis: Axis, where: ArrayLike | None, initial: ArrayLike | None, name: str
) -> tuple[Value, tuple[int, ...]]:
    """``x`` with its largest element over ``axis`` at 0 and what does not count at -inf, and the axes."""
    x = inexact(x)
    axes = axes_of(axis, x.ndim, name)
    peak = _spread(_peak(x, axes, where, initial), axes, x.shape)
    return subtract(x if where is None else either(mask_of(where), x, -math.inf), peak), axes


def softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None, initial: ArrayLike | None = None) -> Value:
    """``exp(x)`` divided by its sum over ``axis``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.nn.softmax(mnp.zeros(4))
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    shifted, axes = _shifted(x, axis, where, initial, "nn.softmax")
    powers = exp(shifted)
    out = divide(powers, _spread(sum(powers, axes), axes, powers.shape))
    return out if where is None else either(where, out, 0.0)


def log_softmax(
    x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None, initial: ArrayLike | None = None
) -> Value:
    """The logarithm of the softmax."""
    shifted, axes = _shifted(x, axis, where, initial, "nn.log_softmax")
    out = subtract(shifted, _spread(log(sum(exp(shifted), axes)), axes, shifted.shape))
    return out if where is None else either(where, out, -math.inf)


def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """The logarithm of the sum of ``b * exp(a)``, without overflow.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.nn.logsumexp(mnp.array([1000.0, 1.0]))
    Array(1000., dtype=float32)
    """
    keepdims = static_flag(keepdims, "keepdims of nn.logsumexp")
    return_sign = static_flag(return_sign, "return_sign of nn.logsumexp")
    if b is None:
        x, weights = inexact(a), None
    else:
        x, weights = (value(v) for v in promote_operands((a, b), inexact=True))
        # A weight of zero leaves its term out, also where exp(a) is infinite.
        x = either(equal(weights, 0), -math.inf, x)
    if where is not None:
        x = either(mask_of(where), x, -math.inf)
    axes = axes_of(axis, x.ndim, "nn.logsumexp")
    peak = _peak(x, axes, None, None)
    peak = either(isfinite(peak), peak, 0.0)
    terms = exp(subtract(x, _spread(peak, axes, x.shape)))
    terms = terms if weights is None else multiply(weights, terms)
    total = sum(terms, axes)
    direction = sign(total) if return_sign else None
    if return_sign:
        total = absolute(total)
    elif weights is not None:
        total = either(greater(0, total), math.nan, total)
    out = add(log(total), peak)
    if keepdims:
        out = expand_dims(out, axes)
        direction = None if direction is None else expand_dims(direction, axes)
    return (out, direction) if return_sign else out


def logmeanexp(x: ArrayLike, axis: Axis = None, where: ArrayLike | None = None, keepdims: bool = False) -> Value:
    """The logarithm of the mean of ``exp(x)``, without overflow.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.nn.logmeanexp(mnp.array([1000.0, 1000.0]))
    Array(1000., dtype=float32)
    """
    given = value(x)
    found: Value = logsumexp(given, axis, keepdims=keepdims, where=where)
    counted = ones(given.shape, found.dtype) if where is None else broadcast(mask_of(where), given.shape)
    return subtract(found, log(sum(convert(counted, found.type.dtype), axis, keepdims=keepdims)))


# Layers


def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
) -> Value:
    """``x`` shifted and scaled to mean 0 and variance 1 over ``axis``.

    The variance is the mean of squares less the square of the mean, or, with ``algorithm="stable"``, the mean of the
    squares of what is left of ``x`` without its mean, which is exact also where that is little.
    """
    one_of(algorithm, ("fast", "stable"), "algorithm of nn.standardize")
    x = inexact(x)
    ordered("nn.standardize", x)
    if mean is None:
        mean = _mean(x, axis, where)
    if variance is None and algorithm == "stable":
        variance = _mean(square(subtract(x, mean)), axis, where)
    elif variance is None:
        # A difference of rounded numbers, or from a mean that is not that of x, may be below 0.
        variance = maximum(0, subtract(_mean(square(x), axis, where), square(value(mean))))
    return multiply(subtract(x, mean), apply(elementwise.rsqrt, (add(variance, epsilon),), {}))


def _mean(x: Value, axis: Axis, where: ArrayLike | None) -> Value:
    return mean(x, axis, keepdims=True, where=where)


def one_hot(
    x: ArrayLike, num_classes: int, *, dtype: DTypeLike = None, axis: int = -1, out_sharding: Any = None
) -> Value:
    """A new dim of ``num_classes`` that is 1 at place ``x`` and 0 elsewhere.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.nn.one_hot(mnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    x = value(x)
    count = static_size(num_classes, "num_classes of one_hot")
    dim = axis_of(axis, x.ndim + 1, "nn.one_hot")
    kind = dtypes.default_float() if dtype is None else as_dtype(dtype)
    shape = (*x.shape[:dim], count, *x.shape[dim:])
    classes = iota(dtype=x.type.dtype, shape=shape, dim=dim)
    found = convert(equal(broadcast(expand_dims(x, dim), shape), classes), kind)
    return placed(found, None, out_sharding)

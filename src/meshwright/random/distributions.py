"""Samples of further distributions, each made of uniform, normal or exponential numbers as in ``jax.random``."""

from __future__ import annotations

from typing import Any

from meshwright.arrays.operands import ArrayLike, DTypeLike, value
from meshwright.arrays.static import one_of, placed
from meshwright.core.trace import Value
from meshwright.numpy import abs as absolute
from meshwright.numpy import (
    broadcast_shapes,
    diagonal,
    einsum,
    exp,
    expand_dims,
    floor,
    linalg,
    log,
    log1p,
    power,
    sqrt,
    where,
)
from meshwright.random.keys import checked_dtype, checked_shape, fitting_shape, split
from meshwright.random.samples import REAL, exponential, normal, rademacher, uniform


def _parameters(name: str, dtype: DTypeLike, *given: ArrayLike) -> tuple[Any, ...]:
    wanted = checked_dtype(name, dtype, REAL)
    return wanted, *(value(x).astype(wanted) for x in given)


def lognormal(
    key: ArrayLike, sigma: ArrayLike = 1.0, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers whose logarithms are normal, of standard deviation ``sigma``.

    >>> import meshwright as mw
    >>> lognormal(mw.random.key(0), shape=(2,)).shape
    (2,)
    """
    wanted, sigma = _parameters("lognormal", dtype, sigma)
    return placed(exp(normal(key, fitting_shape("lognormal", shape, sigma=sigma), wanted) * sigma), None, out_sharding)


def rayleigh(
    key: ArrayLike, scale: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Lengths of vectors of two normal components of standard deviation ``scale``."""
    wanted, scale = _parameters("rayleigh", dtype, scale)
    drawn = uniform(key, fitting_shape("rayleigh", shape, scale=scale), wanted)
    return placed(scale * sqrt(log(drawn) * -2), None, out_sharding)


def pareto(
    key: ArrayLike, b: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers from 1 on, whose chance of being larger than x is x to the power of ``-b``."""
    wanted, b = _parameters("pareto", dtype, b)
    return placed(exp(exponential(key, fitting_shape("pareto", shape, b=b), wanted) / b), None, out_sharding)


def weibull_min(
    key: ArrayLike, scale: ArrayLike, concentration: ArrayLike, shape: Any = (), dtype: DTypeLike = float
) -> Value:
    """Numbers of the Weibull distribution."""
    wanted, scale, concentration = _parameters("weibull_min", dtype, scale, concentration)
    drawn = uniform(key, checked_shape("weibull_min", shape), wanted)
    return power(-log1p(-drawn), 1.0 / concentration) * scale


def maxwell(key: ArrayLike, shape: Any = (), dtype: DTypeLike = float, *, out_sharding: Any = None) -> Value:
    """Lengths of vectors of three normal components."""
    wanted = checked_dtype("maxwell", dtype, REAL)
    return placed(linalg.norm(normal(key, (*checked_shape("maxwell", shape), 3), wanted), axis=-1), None, out_sharding)


def double_sided_maxwell(
    key: ArrayLike, loc: ArrayLike, scale: ArrayLike, shape: Any = (), dtype: DTypeLike = float
) -> Value:
    """Numbers of ``maxwell`` with a sign, times ``scale``, around ``loc``."""
    wanted, loc, scale = _parameters("double_sided_maxwell", dtype, loc, scale)
    together = broadcast_shapes(loc.shape, scale.shape)
    whole = (checked_shape("double_sided_maxwell", shape) or together) + together
    lengths, signs = split(key)
    return rademacher(signs, whole, wanted) * maxwell(lengths, whole, wanted) * scale + loc


def triangular(
    key: ArrayLike, left: ArrayLike, mode: ArrayLike, right: ArrayLike, shape: Any = None, dtype: DTypeLike = float,
    *, out_sharding: Any = None,
) -> Value:  # fmt: skip
    """Numbers between ``left`` and ``right``, of which those around ``mode`` are the most likely."""
    wanted, left, mode, right = _parameters("triangular", dtype, left, mode, right)
    drawn = uniform(key, fitting_shape("triangular", shape, left=left, mode=mode, right=right), wanted)
    below = left + sqrt(drawn * (right - left) * (mode - left))
    above = right - sqrt((1 - drawn) * (right - left) * (right - mode))
    return placed(where(drawn < (mode - left) / (right - left), below, above), None, out_sharding)


def wald(
    key: ArrayLike, mean: ArrayLike, shape: Any = None, dtype: DTypeLike = float, *, out_sharding: Any = None
) -> Value:
    """Numbers of the inverse Gaussian distribution of scale 1."""
    wanted, mean = _parameters("wald", dtype, mean)
    whole = fitting_shape("wald", shape, mean=mean)
    first, second = split(key)
    y = normal(first, whole, wanted) ** 2
    z = uniform(second, whole, wanted)
    x = mean + mean**2 * y / 2 - mean / 2 * sqrt(4 * mean * y + mean**2 * y**2)
    return placed(where(z <= mean / (mean + x), x, mean**2 / x), None, out_sharding)


def geometric(
    key: ArrayLike, p: ArrayLike, shape: Any = None, dtype: DTypeLike = int, *, out_sharding: Any = None
) -> Value:
    """How many coins are tossed until the first success, which has chance ``p``."""
    _, p = _parameters("geometric", float, p)
    drawn = uniform(key, fitting_shape("geometric", shape, p=p), p.dtype)
    return placed((floor(log(drawn) / log1p(-p)) + 1).astype(dtype), None, out_sharding)


def multivariate_normal(
    key: ArrayLike, mean: ArrayLike, cov: ArrayLike, shape: Any = None, dtype: DTypeLike = None,
    method: str = "cholesky", *, out_sharding: Any = None,
) -> Value:  # fmt: skip
    """Normal vectors of mean ``mean`` and covariance ``cov``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> multivariate_normal(mw.random.key(0), mnp.zeros(2), mnp.eye(2), (3,)).shape
    (3, 2)
    """
    method = one_of(method, ["cholesky", "eigh", "svd"], "method of multivariate_normal")
    wanted, mean, cov = _parameters("multivariate_normal", float if dtype is None else dtype, mean, cov)
    lead = (
        broadcast_shapes(mean.shape[:-1], cov.shape[:-2])
        if shape is None
        else checked_shape("multivariate_normal", shape)
    )
    drawn = normal(key, (*lead, mean.shape[-1]), wanted)
    if method == "cholesky":
        factor = linalg.cholesky(cov)
    elif method == "eigh":
        w, v = linalg.eigh(cov)
        factor = v * sqrt(w[..., None, :])
    else:
        u, s, _ = linalg.svd(cov)
        factor = u * sqrt(s[..., None, :])
    return placed(mean + einsum("...ij,...j->...i", factor, drawn), None, out_sharding)


def orthogonal(
    key: ArrayLike, n: int, shape: Any = (), dtype: DTypeLike = float, m: int | None = None, *, out_sharding: Any = None
) -> Value:
    """Matrices of orthogonal columns, all directions equally likely."""
    wanted = checked_dtype("orthogonal", dtype, REAL)
    rows, columns = n, n if m is None else m
    lead = checked_shape("orthogonal", shape)
    q, r = linalg.qr(normal(key, (*lead, max(rows, columns), min(rows, columns)), wanted))
    signs = diagonal(r, axis1=-2, axis2=-1)
    q = q * expand_dims(signs / absolute(signs), -2)
    return placed(q if rows >= columns else q.mT, None, out_sharding)

"""Bessel functions and spherical harmonics."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from meshwright.api.control import scan
from meshwright.arrays.operands import (
    ArrayLike,
    broadcast,
    broadcast_shapes,
    convert,
    inexact,
    known,
    promoted_values,
    value,
)
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import static_int, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax import bessel_i0e, bessel_i1e
from meshwright.lax import complex as make_complex
from meshwright.numpy import abs, arange, clip, cos, exp, full_like, minimum, sin, where, zeros, zeros_like
from meshwright.scipy.special.elementwise import of_reals


@of_reals
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 0.

    >>> import meshwright as mw
    >>> round(float(mw.scipy.special.i0(1.0)), 4)
    1.2661
    """
    return exp(abs(x)) * bessel_i0e(x)


@of_reals
def i0e(x: Any) -> Any:
    """``exp(-abs(x)) * i0(x)``."""
    return bessel_i0e(x)


@of_reals
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 1."""
    return exp(abs(x)) * bessel_i1e(x)


@of_reals
def i1e(x: Any) -> Any:
    """``exp(-abs(x)) * i1(x)``."""
    return bessel_i1e(x)


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Any:
    """The Bessel functions of the first kind of orders 0 to ``v``, one after the other along a new first dim.

    They are found backwards from order ``n_iter``, which is to be well above the size of ``z``.

    >>> import meshwright as mw
    >>> [round(float(j), 4) for j in mw.scipy.special.bessel_jn(1.0, v=2)]
    [0.7652, 0.4401, 0.1149]
    """
    top, start = static_size(v, "v of bessel_jn"), static_size(n_iter, "n_iter of bessel_jn")
    x = inexact(z)
    if dtypes.is_complex(x.type.dtype) or not dtypes.is_inexact(value(z).type.dtype):
        refuse("scipy.special.bessel_jn", [value(z).type], "it takes floats", "z.astype('float32')")
    if top >= start:
        raise ShapeError(f"v of bessel_jn is {top}.", where=here(), why=f"n_iter is {start}", fix=f"n_iter={top + 50}")
    wide = dtypes.FLOAT32 if x.type.dtype.itemsize < 4 else x.type.dtype
    return convert(_downwards(convert(x, wide), top, start), x.type.dtype)


def _downwards(x: Value, top: int, start: int) -> Any:
    """J_(n-1) = 2n/x J_n - J_(n+1) from two numbers that do not matter; what it is a multiple of follows from
    J_0 + 2 J_2 + 2 J_4 + … = 1."""
    zero = x == 0
    y: Any = where(zero, 1.0, x)

    def step(state: Any, n: Any) -> tuple[Any, None]:
        later, current, total, kept = state
        before = 2 * n / y * current - later
        order = n - 1
        total = total + where(order == 0, 1.0, where(order % 2 == 0, 2.0, 0.0)) * before
        places = arange(top + 1).astype(x.dtype).reshape(top + 1, *(1,) * x.ndim)
        kept = where(places == order, before, kept)
        scale = where(abs(before) > 1e10, 1e-10, 1.0)
        return (current * scale, before * scale, total * scale, kept * scale), None

    state = (zeros_like(x), full_like(x, 1e-10), zeros_like(x), zeros((top + 1, *x.shape), x.dtype))
    (_, _, total, kept), _ = scan(step, state, arange(start, 0, -1).astype(x.dtype))
    first = (arange(top + 1) == 0).astype(x.dtype).reshape(top + 1, *(1,) * x.ndim)
    return where(zero, first, kept / total)


def sph_harm_y(
    n: ArrayLike, m: ArrayLike, theta: ArrayLike, phi: ArrayLike, diff_n: int | None = None, n_max: int | None = None
) -> Any:
    """The spherical harmonics of degree ``n`` and order ``m`` at the angles ``theta`` from the pole and ``phi`` around.

    Of traced degrees, the largest one ``n_max`` must be given; larger ones count as it.

    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> y = mw.scipy.special.sph_harm_y(mnp.array([1]), mnp.array([0]), mnp.array([0.5]), mnp.array([0.2]))
    >>> round(float(y[0].real), 4)
    0.4288
    """
    if diff_n is not None and static_int(diff_n, "diff_n of sph_harm_y"):
        raise ShapeError(
            "sph_harm_y does not return derivatives.", where=here(), why="diff_n asks for them", fix="mw.jacfwd(…)"
        )
    degree, order = value(n), value(m)
    for x in (degree, order):
        if not dtypes.is_integer(x.type.dtype):
            refuse("scipy.special.sph_harm_y", [x.type], "degrees and orders are integers", "n.astype(int)")
    if n_max is None:
        data = np.asarray(known(degree, "sph_harm_y", "give the largest degree: sph_harm_y(n, m, theta, phi, n_max=…)"))
        largest = int(data.max()) if data.size else 0
    else:
        largest = static_size(n_max, "n_max of sph_harm_y")
    polar, around = promoted_values(theta, phi, inexact=True)
    shape = broadcast_shapes(*(x.shape for x in (degree, order, polar, around)))
    if shape is None:
        refuse(
            "scipy.special.sph_harm_y", [degree.type, order.type, polar.type], "its operands broadcast", "n[:, None]"
        )
    kept: Any = minimum(broadcast(degree, shape), largest)
    given: Any = broadcast(order, shape)
    size = abs(given)
    legendre = _legendre(largest, kept, size, broadcast(polar, shape))
    turned = size * broadcast(around, shape)
    found = legendre * make_complex(cos(turned), sin(turned))
    mirrored = where(size % 2 == 0, 1.0, -1.0) * make_complex(found.real, -found.imag)
    return where(given < 0, mirrored, found)


def _legendre(largest: int, n: Any, m: Any, theta: Any) -> Any:
    """Associated Legendre functions with the factor that makes them of length 1 on the sphere."""
    x, s = cos(theta), sin(theta)
    order = clip(m, 0, largest).astype(x.dtype)
    # P_mm, then one degree after the other.
    current: Any = x * 0 + sqrt(1 / (4 * pi))
    for k in range(1, largest + 1):
        current = where(order >= k, -current * s * sqrt((2 * k + 1) / (2 * k)), current)
    before: Any = x * 0
    found = where(n == order, current, 0.0)
    for k in range(1, largest + 1):
        over = k > order
        square = where(over, k * k - order * order, 1.0)
        last = where(over, (k - 1) * (k - 1) - order * order, 0.0)
        first = ((4 * k * k - 1) / square) ** 0.5
        second = (where(last > 0, last, 0.0) / (4 * (k - 1) ** 2 - 1 if k > 1 else 1.0)) ** 0.5
        after = first * (x * current - second * before)
        before, current = where(over, current, before), where(over, after, current)
        found = where(over & (n == k), current, found)
    return found

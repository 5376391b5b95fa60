"""Elementary functions with fixed bits: the same on every machine, and the same as XLA's on a CPU.

Samples are made from random bits by these functions, so their rounding is part of the numbers a key stands for. Those
of float32 are polynomials and quotients of two, evaluated in a fixed order with fused multiply-adds. A fused
multiply-add is done in float64, where the product is exact, and rounded back after the sum; the second rounding
differs from a single one for about one value in 2**29, and for none of the 2**23 values of a float32 ``uniform``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.engine import random_special_f64
from meshwright.engine.chunks import Kernel, map_chunks

_CHUNK = 1 << 15
_F32 = np.float32
_TINY, _HALF = np.finfo(_F32).tiny, _F32(0.5)


def _held(*polynomials: tuple[float, ...]) -> Any:
    """Coefficients of float32, held as float64: for each power, highest first, a column of one per polynomial."""
    return np.array(polynomials, _F32).astype(np.float64).T[..., None]


# log(1 + r) = r - r²/2 + r³ P(r) for r in [√½ - 1, √2 - 1], P of degree 8 in three parts (Cephes logf).
_LOG = _held(
    (0.070376836, -0.1151461, 0.116769984), (-0.12420141, 0.14249323, -0.16668057), (0.20000714, -0.24999994, 0.3333333)
)
_LN2_HIGH, _LN2_LOW = _F32(0.693359375), _F32(-2.12194440e-4)
_SQRT_HALF_BITS, _ONE_BITS = (np.array(x, _F32).view(np.int32) for x in (0.70710677, 1.0))
_MANTISSA, _MANTISSA_WIDTH, _BIAS = np.int32(0x7FFFFF), np.int32(23), np.int32(127)

# log(1 + x) = x - x²/2 + x³ N(x)/D(x) for |x| < √2 - 1 (Cephes log1p).
_LOG1P = _held(
    (4.527e-05, 0.49854103, 6.5787325, 29.911919, 60.94967, 57.112965, 20.039553),
    (1.0, 15.062909, 83.04757, 221.7624, 309.09872, 216.42789, 60.11866),
)
_LOG1P_RANGE = _F32(0.41421357)

# erf_inv(x) = x P(w), w = -log(1 - x²): one polynomial in w - 2.5 below 5, one in √w - 3 above (Giles,
# "Approximating the erfinv function", 2012).
_ERF_INV_CENTRE = _held((
    2.8102264e-08, 3.4327394e-07, -3.5233877e-06, -4.3915065e-06, 0.00021858087, -0.001253725, -0.0041776816,
    0.24664073, 1.5014094,
))  # fmt: skip
_ERF_INV_TAIL = _held((
    -0.00020021426, 0.00010095056, 0.0013493432, -0.0036734284, 0.0057395077, -0.0076224613, 0.0094388705, 1.001674,
    2.8329768,
))  # fmt: skip

# erf(x) = x N(x²)/D(x²) for |x| below 3.74, ±1 above (Eigen).
_ERF = _held(
    (0.0, 0.0, 0.00022905065, 0.003408291, 0.050955694, 0.18520832, 1.1283791),
    (-1.1791603e-07, 2.3547966e-05, 0.0010179626, 0.01407047, 0.11098505, 0.49746925, 1.0),
)
_ERF_RANGE = _F32(3.7439213)


def log(x: Any) -> Any:
    """Natural logarithm; subnormal float32 numbers count as zero."""
    return _map(_log, random_special_f64.log, x)


def log1p(x: Any) -> Any:
    """log(1 + x)."""
    return _map(_log1p, random_special_f64.log1p, x)


def erf(x: Any) -> Any:
    """Error function."""
    return _map(_erf, random_special_f64.erf, x)


def erf_inv(x: Any) -> Any:
    """Inverse error function."""
    return _map(_erf_inv, random_special_f64.erf_inv, x)


def tan(x: Any) -> Any:
    """Tangent; of float32 as the rounding of the float64 one, like C libraries have it."""
    return np.tan(x) if x.dtype == np.float64 else np.tan(x.astype(np.float64)).astype(_F32).astype(x.dtype)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z of float32 or float64 arrays, rounded once."""
    rule = _fma_float64 if x.dtype == np.float64 else _fma_float32

    def make_kernel(length: int) -> Kernel:
        def kernel(x: Any, y: Any, z: Any, out: Any) -> None:
            out[...] = rule(x, y, z)

        return kernel

    return map_chunks(make_kernel, (x, y, z), (x.dtype,), _CHUNK)[0]


# Kernels write ``out`` from ``x``. Of scratch they have rows of float64 and of float32, as long as ``x``.

_Function = Callable[[Any, Any, Any, Any], None]


def _map(function: _Function, wide_function: Callable[[Any], Any], x: Any) -> Any:
    """``function`` on an array of float32, and on halves by way of float32; ``wide_function`` on float64."""
    if x.dtype == np.float64:
        return wide_function(x)
    if x.dtype != _F32:
        return _map(function, wide_function, x.astype(_F32)).astype(x.dtype)

    def make_kernel(length: int) -> Kernel:
        wide, narrow = np.empty((5, length)), np.empty((8, length), _F32)
        return lambda x, out: function(x, out, wide[:, : x.size], narrow[:, : x.size])

    return map_chunks(make_kernel, (x,), (_F32,), _CHUNK)[0]


def _multiply_add(total: Any, x: Any, c: Any, result: Any) -> None:
    """result = total * x + c in float32, from float64."""
    np.multiply(total, x, out=total)
    np.add(total, c, out=total)
    result[...] = total


def _polynomials(x: Any, coefficients: Any, total: Any, result: Any) -> None:
    """Several polynomials of x by Horner's rule, one in each row of ``result``; x and ``total`` are float64."""
    np.multiply(x, coefficients[0], out=total)
    np.add(total, coefficients[1], out=total)
    result[...] = total
    for c in coefficients[2:]:
        total[...] = result
        _multiply_add(total, x, c, result)


def _log(x: Any, out: Any, wide: Any, narrow: Any) -> None:
    r, r2, exponent, rounded = narrow[0], narrow[1], narrow[2], narrow[3:6]
    r_wide, r3_wide, parts = wide[0], wide[1], wide[2:5]
    # x = 2**exponent * (1 + r) with 1 + r in [√½, √2): counting from √½, exponent and mantissa come apart as they are.
    bits, whole = r.view(np.int32), r2.view(np.int32)
    np.maximum(x, _TINY, out=r)
    np.add(bits, _ONE_BITS - _SQRT_HALF_BITS, out=bits)
    np.right_shift(bits, _MANTISSA_WIDTH, out=whole)
    np.subtract(whole, _BIAS, out=whole)
    exponent[...] = whole
    np.bitwise_and(bits, _MANTISSA, out=bits)
    np.add(bits, _SQRT_HALF_BITS, out=bits)
    np.subtract(r, _F32(1), out=r)

    np.multiply(r, r, out=r2)
    r_wide[...] = r
    np.multiply(r2, r, out=rounded[0])
    r3_wide[...] = rounded[0]
    _polynomials(r_wide, _LOG, parts, rounded)
    parts[...] = rounded
    total, middle, low = parts
    _multiply_add(total, r3_wide, middle, rounded[0])
    total[...] = rounded[0]
    _multiply_add(total, r3_wide, low, rounded[0])
    total[...] = rounded[0]
    np.multiply(exponent, _LN2_LOW, out=rounded[0])
    low[...] = rounded[0]
    _multiply_add(total, r3_wide, low, rounded[0])
    # Products by ½ and by the 9 leading bits of ln 2 are exact, so that these need no fused multiply-add.
    np.multiply(r2, _HALF, out=r2)
    np.subtract(r, r2, out=r)
    np.add(r, rounded[0], out=r)
    np.multiply(exponent, _LN2_HIGH, out=exponent)
    np.add(r, exponent, out=out)

    regular = (x >= _TINY) & (x < np.inf)
    if not regular.all():
        np.copyto(out, np.where(np.abs(x) < _TINY, -np.inf, np.where(x > 0, x, np.nan)), where=~regular)


def _log1p_near_zero(x: Any, out: Any, wide: Any, narrow: Any) -> None:
    x2, quotient, rounded = narrow[0], narrow[1], narrow[2:4]
    wide[0] = x
    _polynomials(wide[0], _LOG1P, wide[1:3], rounded)
    np.divide(rounded[0], rounded[1], out=quotient)
    np.multiply(x, x, out=x2)
    np.multiply(x2, x, out=rounded[0])
    np.multiply(rounded[0], quotient, out=quotient)
    np.multiply(x2, _HALF, out=x2)
    np.subtract(quotient, x2, out=quotient)
    np.add(x, quotient, out=out)


def _log1p(x: Any, out: Any, wide: Any, narrow: Any) -> None:
    near = np.abs(x) < _LOG1P_RANGE
    n = np.count_nonzero(near)
    if n == x.size:
        _log1p_near_zero(x, out, wide, narrow)
        return
    sorted_x, result = narrow[6:]
    order = np.concatenate((np.flatnonzero(near), np.flatnonzero(~near)))
    np.take(x, order, out=sorted_x, mode="clip")
    if n:
        _log1p_near_zero(sorted_x[:n], result[:n], wide[:, :n], narrow[:, :n])
    np.add(sorted_x[n:], _F32(1), out=sorted_x[n:])
    _log(sorted_x[n:], result[n:], wide[:, n:], narrow[:, n:])
    out[order] = result


def _erf_inv(x: Any, out: Any, wide: Any, narrow: Any) -> None:
    minus_x2, w = narrow[5], narrow[0]
    np.multiply(x, x, out=minus_x2)
    np.negative(minus_x2, out=minus_x2)
    _log1p(minus_x2, out, wide, narrow)
    tail = np.flatnonzero(~(out > -5))
    w_tail = np.subtract(np.sqrt(np.negative(out[tail])), _F32(3)).astype(np.float64)
    np.subtract(_F32(-2.5), out, out=w)
    wide[0] = w
    _polynomials(wide[0], _ERF_INV_CENTRE, wide[1:2], out[None])
    if tail.size:
        value = np.empty((1, tail.size), _F32)
        _polynomials(w_tail, _ERF_INV_TAIL, w_tail[None].copy(), value)
        out[tail] = np.where(np.abs(x[tail]) == 1, np.inf, value[0])
    np.multiply(out, x, out=out)


def _erf(x: Any, out: Any, wide: Any, narrow: Any) -> None:
    within, x2, rounded = narrow[0], narrow[1], narrow[2:4]
    np.clip(x, -_ERF_RANGE, _ERF_RANGE, out=within)
    np.multiply(within, within, out=x2)
    wide[0] = x2
    _polynomials(wide[0], _ERF, wide[1:3], rounded)
    np.multiply(within, rounded[0], out=within)
    np.divide(within, rounded[1], out=out)
    outside = np.abs(x) >= _ERF_RANGE
    if outside.any():
        np.copyto(out, np.copysign(_F32(1), x), where=outside)


# Fused multiply-adds


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b as its rounding and what was rounded off."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b as its rounding and what was rounded off, from the exact products of halves (Dekker)."""
    p = a * b
    a_high, b_high = (c - (c - x) for x, c in ((a, a * 134217729.0), (b, b * 134217729.0)))
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def _round_to_odd(s: Any, error: Any) -> Any:
    """The neighbour of s + error whose last bit is 1, or s where there is no error: rounding it again is exact."""
    even = (s.view(np.int64) & 1) == 0
    return np.where(even & (error != 0), np.nextafter(s, np.copysign(np.inf, error)), s)


def _fma_float32(x: Any, y: Any, z: Any) -> Any:
    product, z = np.multiply(x, y, dtype=np.float64), z.astype(np.float64)
    total = product + z
    # Rounding again goes wrong only for a total halfway between two float32.
    halfway = np.flatnonzero((total.view(np.int64) & 0x1FFFFFFF) == 0x10000000)
    if halfway.size:
        total[halfway] = _round_to_odd(*_two_sum(product[halfway], z[halfway]))
    return total.astype(_F32)


def _fma_float64(x: Any, y: Any, z: Any, scale: float = 1.0) -> Any:
    # Boldo & Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    p, p_error = _two_product(x, y)
    t, t_error = _two_sum(z, p_error)
    s, s_error = _two_sum(p, t)
    total = s + _round_to_odd(*_two_sum(t_error, s_error))
    total = np.where(total == 0, x * y + z, total)  # for the sign of zero
    unsure = ~np.isfinite(total)
    if unsure.any():
        # Something on the way is infinite or overflows; if only because of its size, not so when scaled down.
        plain = np.where(np.isinf(z) & np.isfinite(x) & np.isfinite(y), z, x * y + z)
        if scale == 1.0:
            small = _fma_float64(x * 2.0**-30, y * 2.0**-30, z * 2.0**-60, scale=2.0**60)
            plain = np.where(np.isnan(small), plain, small)
        total = np.where(unsure, plain, total)
    return total * scale

"""Functions NumPy lacks, computed with NumPy: erf and its kin, the gamma family, bits of integers and of floats.

Each takes an optional ``out`` like a ufunc, which may be the operand itself. Long arrays are worked on in blocks that
stay in the cache, so that a function of twenty steps reads and writes memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import factorial, log, pi, sqrt
from typing import Any

import ml_dtypes
import numpy as np

Array = Any  # of NumPy
Kernel = Callable[[Array], Array]

_BLOCK_BYTES = 1 << 16  # a handful of blocks of scratch fit into a core's second-level cache


def _blocked(kernel: Kernel) -> Callable[..., Array]:
    """``kernel``, a function of f32, f64 or complex blocks, as a function of arrays of any inexact dtype."""

    def function(x: Any, out: Array | None = None) -> Array:
        x = np.asarray(x)
        if out is None:
            out = np.empty(x.shape, x.dtype)
        work = x.dtype if x.dtype.kind in "fc" and x.dtype.itemsize >= 4 else np.dtype(np.float32)
        length = _BLOCK_BYTES // work.itemsize
        if x.size <= length or x.shape != out.shape or not (x.flags.c_contiguous and out.flags.c_contiguous):
            out[...] = kernel(np.atleast_1d(x).astype(work, copy=False))
            return out
        flat, target = x.reshape(-1), out.reshape(-1)
        for start in range(0, x.size, length):
            block = slice(start, start + length)
            target[block] = kernel(flat[block].astype(work, copy=False))
        return out

    function.__doc__ = kernel.__doc__
    return function


def _table(dtype: Any, *values: float) -> tuple[Array, ...]:
    """Coefficients as arrays of rank 0, which are the fastest scalars to compute with."""
    return tuple(np.asarray(value, dtype) for value in values)


def _horner(x: Array, coefficients: Sequence[Array]) -> Array:
    """The polynomial with these coefficients, highest power first."""
    total = x * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total


def _choose(mask: Array, x: Array, if_true: Kernel, if_false: Kernel) -> Array:
    """``if_true`` where ``mask``, else ``if_false``; each is computed only where it is wanted."""
    if mask.all():
        return if_true(x)
    if not mask.any():
        return if_false(x)
    out = np.empty_like(x)
    out[mask] = if_true(x[mask])
    mask = ~mask
    out[mask] = if_false(x[mask])
    return out


# Simple functions made of NumPy's


@_blocked
def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x))"""
    total = np.negative(x)
    np.exp(total, out=total)
    total += 1
    return np.reciprocal(total, out=total)


@_blocked
def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)"""
    root = np.sqrt(x)
    return np.divide(1, root, out=root)


@_blocked
def _complex_log1p(x: Array) -> Array:
    """log|1 + x| = log1p(a (2 + a) + b²) / 2 near 0, where 1 + x would lose digits of x = a + ib."""
    a, b = x.real, x.imag
    out = np.empty_like(x)
    out.imag = np.arctan2(b, 1 + a)
    near = np.abs(x) < 0.5
    out.real = np.where(near, 0.5 * np.log1p(a * (2 + a) + b * b), np.log(np.hypot(1 + a, b)))
    return out


def log1p(x: Any, out: Array | None = None) -> Array:
    """log(1 + x), accurate near 0; NumPy's is not if x is complex."""
    return _complex_log1p(x, out) if x.dtype.kind == "c" else np.log1p(x, out=out)


def nextafter(x: Any, y: Any, out: Array | None = None) -> Array:
    """The float next to ``x`` on the way to ``y``, and ``y`` where they are equal."""
    if x.dtype != np.float16:
        return np.nextafter(x, y, out=out)
    # NumPy's float16 gives x where they are equal, which matters to the sign of zero.
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), x.dtype) if out is None else out
    out[...] = np.where(x == y, y, np.nextafter(x, y))
    return out


# The error function

# atanh(erf(x)) = x R(x²): minimax in f32 on |x| < 4, and beyond it large enough that tanh is 1.
_ERF_F32 = _table(
    np.float32,
    5.421600350948902e-09, 2.757616312807879e-08, -4.79460631356294e-06, 8.45965914553658e-05,
    -0.0006148382659100554, -0.00019528813247727097, 0.10276986411150246, 1.128379247187771,
)  # fmt: skip

# erfc(x) exp(x²) = t P(t) with t = 1 / (1 + x/2): minimax in f32 on 0 <= x < 10.1, where erfc underflows.
_ERFC_F32 = _table(
    np.float32,
    -0.059097673820236396, 0.2847154118711173, -0.4874915238464945, 0.27840181896601457, -0.02685699177720156,
    0.20278511481378644, 0.2430788285090451, 0.2823787517384282, 0.2820862205479175, 0.0,
)  # fmt: skip

# Rational approximations in f64, as tabulated in Cephes:
# erf(x) = x T(x²)/U(x²) below 1, erfc(x) exp(x²) = P(x)/Q(x) on 1..8 and R(x)/S(x) beyond.
_T = _table(
    np.float64,
    9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226, 7003.32514112805075473,
    55592.3013010394962768,
)  # fmt: skip
_U = _table(
    np.float64,
    1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987, 22629.0000613890934246,
    49267.3942608635921086,
)  # fmt: skip
_P = _table(
    np.float64,
    2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687, 48.6371970985681366614,
    196.520832956077098242, 526.445194995477358631, 934.52852717195760754, 1027.55188689515710272,
    557.535335369399327526,
)  # fmt: skip
_Q = _table(
    np.float64,
    1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062, 975.708501743205489753,
    1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182, 557.535340817727675546,
)  # fmt: skip
_R = _table(
    np.float64,
    0.564189583547755073984, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195,
    7.4097426995044893916, 2.9788666537210024067,
)  # fmt: skip
_S = _table(
    np.float64,
    1.0, 2.2605286322011727659, 9.39603524938001434673, 12.0489539808096656605, 17.0814450747565897222,
    9.60896809063285878198, 3.3690764510008151605,
)  # fmt: skip


def _gauss(x: Array) -> Array:
    """exp(-x²) to full relative accuracy: x = h + l with h² exact, x² = h² + (x - h)(x + h)."""
    whole, keep = (np.int32, -(1 << 12)) if x.dtype == np.float32 else (np.int64, -(1 << 27))
    head = (x.view(whole) & whole(keep)).view(x.dtype)
    rest = (head - x) * (head + x)
    # For infinite x the rest is nan, and the product is 0 whatever the rest.
    rest = np.fmin(rest, 0, out=rest)
    np.exp(rest, out=rest)
    rest *= np.exp(-head * head)
    return rest


def _erf_f64_small(x: Array) -> Array:
    z = x * x
    return x * (_horner(z, _T) / _horner(z, _U))


def _erfc_f64_positive(x: Array) -> Array:
    """erfc on x >= 1."""
    ratio = _choose(x < 8, x, lambda x: _horner(x, _P) / _horner(x, _Q), lambda x: _horner(x, _R) / _horner(x, _S))
    far = x > 27  # erfc underflows, and the polynomials would in the end overflow
    if far.any():
        ratio[far] = 0
    return ratio * _gauss(x)


def _erf_f64_large(x: Array) -> Array:
    return np.copysign(1 - _erfc_f64_positive(np.abs(x)), x)


def _erfc_f64_large(x: Array) -> Array:
    tail = _erfc_f64_positive(np.abs(x))
    return np.where(x < 0, 2 - tail, tail)


@_blocked
def erf(x: Array) -> Array:
    """The error function."""
    if x.dtype == np.float64:
        return _choose(np.abs(x) < 1, x, _erf_f64_small, _erf_f64_large)
    total = _horner(x * x, _ERF_F32)
    total *= x
    return np.tanh(total, out=total)


@_blocked
def erfc(x: Array) -> Array:
    """1 - erf(x), accurate where that is small."""
    if x.dtype == np.float64:
        return _choose(np.abs(x) < 1, x, lambda x: 1 - _erf_f64_small(x), _erfc_f64_large)
    size = np.abs(x)
    t = size * 0.5
    t += 1
    total = _horner(np.reciprocal(t, out=t), _ERFC_F32)
    total *= _gauss(size)
    # With s the sign of x: erfc(x) = (1 - s) + s erfc(|x|).
    sign = np.copysign(x.dtype.type(1), x)
    total *= sign
    total += np.subtract(1, sign, out=sign)
    return total


# Giles, "Approximating the erfinv function": with w = -log(1 - x²), erf_inv(x) = x P(w - 2.5) while w < 5 and
# x P(sqrt(w) - 3) beyond.
_ERF_INV_CENTER = _table(
    np.float32,
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = _table(
    np.float32,
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erf_inv_center(w: Array) -> Array:
    return _horner(w - 2.5, _ERF_INV_CENTER)


def _erf_inv_tail(w: Array) -> Array:
    return _horner(np.sqrt(w) - 3, _ERF_INV_TAIL)


def _halley(y: Array, miss: Array) -> Array:
    """A step of Halley's method for erf(y) = x, where ``miss`` is erf(y) - x."""
    miss *= sqrt(pi) / 2 * np.exp(y * y)
    return y - miss / (1 + y * miss)


def _erf_inv_f64_center(x: Array) -> Array:
    """On |x| < 1/2, where erf(y) is that of small y."""
    y = x * _erf_inv_center(-np.log1p(-x * x))
    return _halley(y, _erf_f64_small(y) - x)


def _erf_inv_f64_tail(x: Array) -> Array:
    """Far out, erfc(y) = exp(-y²) / (sqrt(pi) (y + 1/2y)) nearly; then two steps for erfc(y) = 1 - |x|."""
    rest = 1 - np.abs(x)
    height = -np.log(rest)
    y = np.sqrt(height)
    for _ in range(3):
        y = np.sqrt(height - np.log(sqrt(pi) * (y + 0.5 / y)))
    y = np.fmax(y, 0.45)
    for _ in range(3):
        y = _halley(y, rest - erfc(y))
    return np.copysign(y, x)


@_blocked
def erf_inv(x: Array) -> Array:
    """The inverse of erf; infinite at 1 and -1, nan beyond."""
    if x.dtype == np.float64:
        y = _choose(np.abs(x) < 0.5, x, _erf_inv_f64_center, _erf_inv_f64_tail)
    else:
        w = -np.log((1 - x) * (1 + x))
        y = x * _choose(w < 5, w, _erf_inv_center, _erf_inv_tail)
    outside = ~(np.abs(x) < 1)
    if outside.any():
        y[outside] = np.where(np.abs(x[outside]) == 1, x[outside] * np.inf, np.nan)
    return y


# The gamma family

# Lanczos' approximation with g = 6.02…, a quotient of polynomials (as published with Boost):
# gamma(x) = N(x)/D(x) t^(x - 1/2) exp(-t), t = x + g - 1/2.
_LANCZOS_G = 6.024680040776729583740234375
_LANCZOS_TOP = _table(
    np.float64, 2.5066282746310002701649, 210.82427775157934587251, 8071.6720023658162106380, 186056.26539522349504029,
    2876370.6289353724412254, 31426415.585400194380614, 248874557.86205415651146, 1439720407.3117216736632,
    6039542586.3520280050643, 17921034426.037209699920, 35711959237.355668049440, 42919803642.649098768958,
    23531376880.410759688572,
)  # fmt: skip
_LANCZOS_BOTTOM = _table(
    np.float64, 1, 66, 1925, 32670, 357423, 2637558, 13339535, 45995730, 105258076, 150917976, 120543840, 39916800, 0
)  # fmt: skip


def _lgamma_middle(x: Array) -> Array:
    """On 1/2 <= x < 20: the logarithm of gamma, which is taken whole, since a sum of logarithms would cancel."""
    t = x + (_LANCZOS_G - 0.5)
    gamma = _horner(x, _LANCZOS_TOP) / _horner(x, _LANCZOS_BOTTOM)
    gamma *= np.power(t, x - 0.5)
    gamma *= np.exp(-t)
    return np.log(gamma)


def _lgamma_far(x: Array) -> Array:
    """On x >= 20: Stirling's series."""
    inverse = 1 / x
    return (x - 0.5) * (np.log(x) - 1) + (0.5 * log(2 * pi) - 0.5) + x * _horner(inverse * inverse, _series(-1))


def _lgamma_right(x: Array) -> Array:
    return _choose(x < 20, x, _lgamma_middle, _lgamma_far)


def _lgamma_left(x: Array) -> Array:
    """gamma(x) gamma(1 - x) = pi / sin(pi x)"""
    sine = np.sin(pi * np.abs(x - np.rint(x)))
    return np.where(sine == 0, np.inf, log(pi) - np.log(sine) - _lgamma_right(1 - x))


@_blocked
def lgamma(x: Array) -> Array:
    """The logarithm of |gamma(x)|."""
    wide = x.astype(np.float64, copy=False)
    total = _choose(wide >= 0.5, wide, _lgamma_right, _lgamma_left)
    total[np.isinf(wide)] = np.inf
    total[(wide == 1) | (wide == 2)] = 0
    return total


# B_2j / (2j)!, the coefficients of Euler-Maclaurin summation.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_SHIFT = 8  # from here on the asymptotic series is exact to f64


@lru_cache(maxsize=64)
def _series(order: int) -> tuple[Array, ...]:
    """Coefficients of y^-(order+2j), highest j first, in the asymptotic series of |polygamma(order, y)|.

    Order 0 is digamma, and -1 is lgamma.
    """
    terms = [b * factorial(2 * j + order - 1) / factorial(2 * j) for j, b in enumerate(_BERNOULLI, 1)]
    return _table(np.float64, *reversed(terms), 0.0)


@lru_cache(maxsize=64)
def _cotangent_derivative(order: int) -> tuple[Array, ...]:
    """P with (d/dx)^order cot(pi x) = pi^order P(cot(pi x)), highest power first: P' (-1 - c²) step by step."""
    poly = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(order):
        poly = poly.deriv() * np.polynomial.Polynomial([-1.0, 0.0, -1.0])
    return _table(np.float64, *reversed(poly.coef))


def _polygamma_right(order: int, x: Array) -> Array:
    """On x >= 1/2: the recurrence up to x + shift, then the asymptotic series."""
    y = x + _SHIFT
    inverse = 1 / y
    steps = sum(((x + k) ** -(order + 1) for k in range(1, _SHIFT)), x ** -(order + 1.0))
    tail = _horner(inverse * inverse, _series(order))
    if order == 0:
        return np.log(y) - 0.5 * inverse - tail - steps
    total = tail * inverse**order + factorial(order - 1) * inverse**order
    total += factorial(order) * (0.5 * inverse ** (order + 1) + steps)
    return total if order % 2 else -total


def _polygamma_left(order: int, x: Array) -> Array:
    """The reflection (-1)^n psi_n(1 - x) - psi_n(x) = (d/dx)^n pi cot(pi x)."""
    near = x - np.rint(x)
    # Both sides of a pole go the same way if the order is odd.
    cotangent = np.where(near == 0, np.inf if order % 2 else np.nan, 1 / np.tan(pi * near))
    mirrored = _polygamma_right(order, 1 - x)
    reflected = pi ** (order + 1) * _horner(cotangent, _cotangent_derivative(order))
    if order == 0:
        return np.where(x == 0, -np.inf, mirrored - reflected)
    return (-mirrored if order % 2 else mirrored) - reflected


def _polygamma(x: Array, order: int) -> Array:
    wide = x.astype(np.float64, copy=False)
    return _choose(wide >= 0.5, wide, partial(_polygamma_right, order), partial(_polygamma_left, order))


def polygamma(x: Any, order: int, out: Array | None = None) -> Array:
    """The ``order``-th derivative of digamma; at its poles nan, or infinite if the order is odd; digamma(0) is -inf."""
    return _blocked(partial(_polygamma, order=order))(x, out)


def digamma(x: Any, out: Array | None = None) -> Array:
    """The derivative of lgamma; -inf at 0, nan at its other poles."""
    return polygamma(x, 0, out)


# Complex numbers and bits


def complex_from(re: Any, im: Any) -> Array:
    """re + i im, exactly."""
    shape = np.broadcast_shapes(np.shape(re), np.shape(im))
    out = np.empty(shape, np.complex64 if re.dtype == np.float32 else np.complex128)
    out.real, out.imag = re, im
    return out


def _bits(x: Array) -> Array:
    """The same bits as unsigned integers."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def population_count(x: Any, out: Array | None = None) -> Array:
    """How many bits are set."""
    x = np.asarray(x)
    counts = np.bitwise_count(_bits(x))
    if out is None:
        return counts.astype(x.dtype)
    out[...] = counts
    return out


def clz(x: Any, out: Array | None = None) -> Array:
    """How many bits stand above the highest one set."""
    x = np.asarray(x)
    width = 8 * x.dtype.itemsize
    smeared = _bits(x)
    for step in (1, 2, 4, 8, 16, 32):
        if step < width:
            smeared = smeared | smeared >> smeared.dtype.type(step)
    out = np.empty(x.shape, x.dtype) if out is None else out
    return np.subtract(width, np.bitwise_count(smeared), out=out, casting="unsafe")


def bitcast(x: Any, dtype: Any) -> Array:
    """The same bits as another dtype; a narrower one adds a last dim, a wider one takes it away."""
    x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
    if x.dtype.itemsize > dtype.itemsize:
        return x[..., None].view(dtype)
    return x.view(dtype)[..., 0] if x.dtype.itemsize < dtype.itemsize else x.view(dtype)


_FORMATS = {  # bits of the mantissa and of the exponent, of those with infinities
    np.dtype(ml_dtypes.float8_e5m2): (2, 5),
    np.dtype(np.float16): (10, 5),
    np.dtype(ml_dtypes.bfloat16): (7, 8),
    np.dtype(np.float32): (23, 8),
    np.dtype(np.float64): (52, 11),
}


def reduce_precision(x: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """``x`` rounded to nearest even in a format of fewer bits; too small for it is 0, too large infinite."""
    x = np.asarray(x)
    wide = x if x.dtype in _FORMATS else x.astype(np.float32)
    mantissa, exponent = _FORMATS[wide.dtype]
    bits = _bits(wide)
    word = bits.dtype.type
    sign = bits & word(1 << (mantissa + exponent))
    size = bits ^ sign
    if mantissa_bits < mantissa:
        drop = mantissa - mantissa_bits
        odd = (size >> word(drop)) & word(1)
        size = (size + odd + word((1 << (drop - 1)) - 1)) & ~word((1 << drop) - 1)
    if exponent_bits < exponent:
        bias, reach = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        largest = word(((bias + reach + 1) << mantissa) - 1)
        smallest = word((bias - reach + 1) << mantissa)
        size = np.where(size > largest, word(((1 << exponent) - 1) << mantissa), size)
        size = np.where(size < smallest, word(0), size)
    rounded = (size | sign).view(wide.dtype)
    return np.where(np.isnan(wide), wide, rounded).astype(x.dtype, copy=False)

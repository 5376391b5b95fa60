"""The float64 side of ``random_special``: log1p and erf_inv as XLA computes them, with fused multiply-adds.

A fused multiply-add keeps what the product and the sum round off and adds it last, which rounds right but for about
one value in 2**50.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.engine.chunks import Kernel, map_chunks

_CHUNK = 1 << 14
_SPLITTER = 134217729.0  # 2**27 + 1

# The functions are those of float32 with more terms; log1p has a range of its own.
_LOG1P_NUMERATOR = (
    4.5270000862445198e-05, 0.49854102823193375, 6.5787325942061043, 29.911919328553072, 60.949667980987787,
    57.112963590585537, 20.039553499201283,
)  # fmt: skip
_LOG1P_DENOMINATOR = (
    1.0, 15.062909083469192, 83.047565967967213, 221.76239823732857, 309.09872225312057, 216.42788614495947,
    60.11866049760384,
)  # fmt: skip
_LOG1P_RANGE = (-0.2928932188134524, 0.41421356237309503)  # √½ - 1, √2 - 1

# (coefficients, shift of w or √w) below w = 6.25, below 16, and beyond.
_ERF_INV_CENTRE = (
    -3.64441206401782e-21, -1.6850591381820166e-19, 1.28584807152564e-18, 1.1157877678025181e-17,
    -1.3331716628546209e-16, 2.0972767875968562e-17, 6.6376381343583238e-15, -4.0545662729752069e-14,
    -8.1519341976054722e-14, 2.6335093153082323e-12, -1.2975133253453532e-11, -5.4154120542946279e-11,
    1.0512122733215323e-09, -4.1126339803469837e-09, -2.9070369957882005e-08, 4.2347877827932404e-07,
    -1.3654692000834679e-06, -1.3882523362786469e-05, 0.00018673420803405714, -0.000740702534166267,
    -0.0060336708714301491, 0.24015818242558962, 1.6536545626831027,
)  # fmt: skip
_ERF_INV_MIDDLE = (
    2.2137376921775787e-09, 9.0756561938885391e-08, -2.7517406297064545e-07, 1.8239629214389228e-08,
    1.5027403968909828e-06, -4.013867526981546e-06, 2.9234449089955446e-06, 1.2475304481671779e-05,
    -4.7318229009055734e-05, 6.8284851459573175e-05, 2.4031110387097894e-05, -0.00035503752036284748,
    0.0009532893797373805, -0.0016882755560235047, 0.0024914420961078508, -0.0037512085075692412,
    0.0053709145535900636, 1.0052589676941592, 3.0838856104922208,
)  # fmt: skip
_ERF_INV_TAIL = (
    -2.7109920616438573e-11, -2.5556418169965252e-10, 1.5076572693500548e-09, -3.789465440126737e-09,
    7.61570120807834e-09, -1.496002662714924e-08, 2.9147953450901081e-08, -6.7711997758452339e-08,
    2.2900482228026655e-07, -9.9298272942317e-07, 4.5260625972231537e-06, -1.9681778105531671e-05,
    7.5995277030017761e-05, -0.00021503011930044477, -0.00013871931833623122, 1.0103004648645344,
    4.8499064014085844,
)  # fmt: skip


def log(x: Any) -> Any:
    """Natural logarithm."""
    return np.log(x)


def log1p(x: Any) -> Any:
    """log(1 + x)."""
    return _map(_log1p, x)


def erf(x: Any) -> Any:
    """Error function: the C library's, one element at a time, for the few bounds it is asked for."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def erf_inv(x: Any) -> Any:
    """Inverse error function."""
    return _map(_erf_inv, x)


def _map(function: Callable[[Any], Any], x: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        out[...] = function(x)

    def make_kernel(length: int) -> Kernel:
        return kernel

    return map_chunks(make_kernel, (x,), (np.float64,), _CHUNK)[0]


def _halves(x: Any) -> tuple[Any, Any]:
    """x as a sum of two numbers of half the bits, whose products are exact."""
    c = x * _SPLITTER
    high = c - (c - x)
    return high, x - high


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """coefficients[0] * x**n + … + coefficients[n], by Horner's rule with fused multiply-adds."""
    x_high, x_low = _halves(x)
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = total * x
        high, low = _halves(total)
        rest = ((high * x_high - p) + high * x_low + low * x_high) + low * x_low
        total = p + c
        added = total - p
        rest += (p - (total - added)) + (c - added)
        total += rest
    return total


def _log1p_near_zero(x: Any) -> Any:
    x2 = x * x
    quotient = _polynomial(x, _LOG1P_NUMERATOR) / _polynomial(x, _LOG1P_DENOMINATOR)
    return x + (x * x2 * quotient - 0.5 * x2)


def _choose(masks: Sequence[Any], x: Any, functions: Sequence[Callable[[Any], Any]]) -> Any:
    """Each function where its mask is true."""
    if masks[0].all():
        return functions[0](x)
    out = np.empty_like(x)
    for mask, function in zip(masks, functions, strict=True):
        if mask.any():
            out[mask] = function(x[mask])
    return out


def _log1p(x: Any) -> Any:
    near = (x > _LOG1P_RANGE[0]) & (x < _LOG1P_RANGE[1])
    return _choose((near, ~near), x, (_log1p_near_zero, lambda x: np.log(1.0 + x)))


def _erf_inv(x: Any) -> Any:
    w = -_log1p(-x * x)
    centre, tail = w < 6.25, ~(w < 16)
    y = x * _choose(
        (centre, ~(centre | tail), tail),
        w,
        (
            lambda w: _polynomial(w - 3.125, _ERF_INV_CENTRE),
            lambda w: _polynomial(np.sqrt(w) - 3.25, _ERF_INV_MIDDLE),
            lambda w: _polynomial(np.sqrt(w) - 5.0, _ERF_INV_TAIL),
        ),
    )
    return np.where(np.abs(x) == 1, x * np.inf, y)

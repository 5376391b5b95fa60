"""The bits of numbers in ``meshwright.numpy``: packed into bytes, mantissas and exponents, distances of floats."""

from __future__ import annotations

from meshwright.arrays.operands import ArrayLike, axis_of, convert, inexact, value
from meshwright.arrays.refusals import ordered, refuse
from meshwright.arrays.static import one_of, static_int
from meshwright.core import dtypes
from meshwright.core.trace import Value
from meshwright.numpy.arithmetic import copysign, multiply, negative, nextafter, subtract
from meshwright.numpy.creation import array
from meshwright.numpy.dtypes import finfo
from meshwright.numpy.logic import (
    absolute,
    bitwise_and,
    either,
    equal,
    isfinite,
    less,
    logical_or,
    not_equal,
    right_shift,
)
from meshwright.numpy.mathematics import ldexp
from meshwright.numpy.padding import pad
from meshwright.numpy.reductions import sum
from meshwright.numpy.shapes import cut, moveaxis, ravel
from meshwright.ops import basic, elementwise

_ORDERS = ("big", "little")


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Value:
    """Truth values, eight in a byte; zeros fill up the last one.

    >>> import meshwright.numpy as mnp
    >>> mnp.packbits(mnp.array([0, 0, 0, 0, 0, 1, 1, 1]))
    Array([7], dtype=uint8)
    """
    one_of(bitorder, _ORDERS, "bitorder of mnp.packbits")
    x = value(a)
    if dtypes.is_inexact(x.type.dtype):
        refuse("mnp.packbits", [x.type], "it packs truth values or integers", "x != 0")
    x, dim = (ravel(x), 0) if axis is None else (x, axis_of(axis, x.ndim, "mnp.packbits"))
    bits = moveaxis(convert(not_equal(x, 0), dtypes.UINT8), dim, -1)
    short = -bits.shape[-1] % 8
    if short:
        bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, short)])
    bits = basic.reshape(bits, shape=(*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return moveaxis(sum(multiply(bits, _weights(bitorder)), -1, dtypes.UINT8), -1, dim)


def unpackbits(a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Value:
    """The bits of bytes, each as 0 or 1: the first ``count``, all but the last ``-count``, or all."""
    one_of(bitorder, _ORDERS, "bitorder of mnp.unpackbits")
    x = value(a)
    if x.type.dtype != dtypes.UINT8:
        refuse("mnp.unpackbits", [x.type], "it takes bytes", "x.view('uint8')")
    x, dim = (ravel(x), 0) if axis is None else (x, axis_of(axis, x.ndim, "mnp.unpackbits"))
    rows = moveaxis(x, dim, -1)
    bits = convert(not_equal(bitwise_and(rows[..., None], _weights(bitorder)), 0), dtypes.UINT8)
    bits = basic.reshape(bits, shape=(*rows.shape[:-1], 8 * rows.shape[-1]))
    size = bits.shape[-1]
    if count is not None:
        number = static_int(count, "count of mnp.unpackbits")
        wanted = number if number >= 0 else max(size + number, 0)
        bits = cut(bits, bits.ndim - 1, 0, min(wanted, size))
        if wanted > size:
            bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, wanted - size)])
    return moveaxis(bits, -1, dim)


def _weights(bitorder: str) -> Value:
    powers = [1 << n for n in range(8)]
    return array(powers[::-1] if bitorder == "big" else powers, dtypes.UINT8)


def frexp(x: ArrayLike, /) -> tuple[Value, Value]:
    """The mantissa, from a half to one in size, and the exponent of two that make up a number.

    >>> import meshwright.numpy as mnp
    >>> mnp.frexp(mnp.array([3.5, -1.0]))
    (Array([ 0.875, -0.5  ], dtype=float32), Array([2, 1], dtype=int32))
    """
    ordered("mnp.frexp", x)
    given = inexact(x)
    dtype = given.type.dtype
    limits = finfo(dtype)
    bits = dtypes.as_dtype(f"int{8 * dtype.itemsize}") if dtype.itemsize < 8 else dtypes.INT64
    # A subnormal number has no exponent of its own: it is scaled into the range of those that have.
    scale = limits.nmant + 1
    tiny = less(absolute(given), float(limits.smallest_normal))
    scaled = either(tiny, multiply(given, 2.0**scale), given)
    field = elementwise.bitcast(scaled, dtype=bits)
    mask = (1 << int(limits.nexp)) - 1
    raw = convert(bitwise_and(right_shift(field, int(limits.nmant)), mask), dtypes.INT32)
    bias = mask >> 1
    exponent = subtract(raw, either(tiny, bias - 1 + scale, bias - 1))
    whole = logical_or(equal(given, 0), equal(isfinite(given), False))
    exponent = either(whole, 0, exponent)
    return either(whole, given, ldexp(given, negative(exponent))), exponent


def spacing(x: ArrayLike, /) -> Value:
    """The distance from a number to the next one of its dtype, away from zero."""
    ordered("mnp.spacing", x)
    given = inexact(x)
    away = copysign(basic.broadcast_scalar(basic.scalar_like(given, float("inf")), given.shape), given)
    found = subtract(nextafter(given, away), given)
    return either(isfinite(given), found, float("nan"))

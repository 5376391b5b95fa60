"""What special functions share: operands of one floating dtype and one shape, polynomials, sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from meshwright.arrays.operands import ArrayLike, broadcast, broadcast_shapes, convert, promoted_values
from meshwright.arrays.refusals import refuse
from meshwright.core.dtypes import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, FLOATS, DType
from meshwright.core.trace import Value

Elementwise = Callable[..., Any]


def of_reals(function: Elementwise) -> Elementwise:
    """``function`` of f32 or f64 arrays of one shape as one of any real numbers: integers become floats, and narrow
    floats are computed in f32."""

    @wraps(function)
    def taking(*args: ArrayLike, **kwargs: ArrayLike) -> Any:
        names = function.__code__.co_varnames[len(args) : function.__code__.co_argcount]
        xs = promoted_values(*args, *(kwargs[name] for name in names), inexact=True)
        dtype = xs[0].type.dtype
        name = f"scipy.special.{function.__name__}"
        if dtype not in FLOATS:
            refuse(name, [x.type for x in xs], "it takes real numbers", "x.real")
        shape = broadcast_shapes(*(x.shape for x in xs))
        if shape is None:
            refuse(name, [x.type for x in xs], "its operands broadcast", "x[:, None]")
        wide = FLOAT32 if dtype.itemsize < 4 else dtype
        found = function(*(broadcast(convert(x, wide, x.type.weak), shape) for x in xs))
        if isinstance(found, tuple):
            return tuple(convert(x, dtype) if x.type.dtype in FLOATS else x for x in found)
        return convert(found, dtype) if found.type.dtype in FLOATS else found

    return taking


def is_wide(x: Value) -> bool:
    """Whether ``x`` has 64 bits, or 64 in each part."""
    return x.type.dtype in (FLOAT64, COMPLEX128)


def complex_dtype(x: Value) -> DType:
    """The complex dtype whose parts are as wide as ``x``."""
    return COMPLEX128 if is_wide(x) else COMPLEX64


def horner(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, highest power first."""
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total

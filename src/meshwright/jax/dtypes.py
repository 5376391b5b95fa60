"""``jax.dtypes``: element types and their promotion."""

from __future__ import annotations

from typing import Any

from meshwright import numpy as mnp
from meshwright.arrays.operands import promoted, result_key
from meshwright.core import dtypes
from meshwright.numpy import bfloat16, finfo, iinfo
from meshwright.numpy.dtypes import extended, prng_key

float0 = dtypes.FLOAT0

TypePromotionError = TypeError


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """The dtype that an array of ``dtype`` has here: 64-bit ones are narrowed unless they are enabled.

    >>> canonicalize_dtype("float64")
    dtype('float32')
    """
    return dtypes.as_dtype(dtype)


def itemsize_bits(dtype: Any) -> int:
    """The bits of one element.

    >>> itemsize_bits("bfloat16"), itemsize_bits("int4")
    (16, 4)
    """
    found = dtypes.as_dtype(dtype)
    return dtypes.PACKED.get(found, 8 * found.itemsize)


def issubdtype(a: Any, b: Any) -> bool:
    """Whether a dtype is of a kind, or equal to another.

    >>> issubdtype("bfloat16", mnp.floating)
    True
    """
    return mnp.issubdtype(a, b)


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """The dtype of a result of arrays, numbers and dtypes together, and whether it yields to others.

    >>> result_type(1, return_weak_type_flag=True)
    (dtype('int32'), True)
    """
    found, weak = promoted(*(result_key(x) for x in args))
    return (found, weak) if return_weak_type_flag else found


def scalar_type_of(x: Any) -> Any:
    """The type of Python numbers like the elements of ``x``.

    >>> import numpy as np
    >>> scalar_type_of(np.float32(1))
    <class 'float'>
    """
    dtype = result_type(x)
    if dtype == dtypes.BOOL:
        return bool
    return complex if dtypes.is_complex(dtype) else float if dtypes.is_float(dtype) else int


__all__ = [
    "TypePromotionError",
    "bfloat16",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "itemsize_bits",
    "prng_key",
    "result_type",
    "scalar_type_of",
]

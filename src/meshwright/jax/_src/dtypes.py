"""``jax._src.dtypes``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import promoted, value
from meshwright.core import dtypes
from meshwright.jax.absent import absent
from meshwright.jax.dtypes import canonicalize_dtype, extended, finfo, float0, iinfo, issubdtype, result_type

DType = np.dtype


class ExtendedDType:
    """A dtype that a library adds to JAX itself; it can be named, and no array has it."""


bfloat16 = np.dtype(dtypes.BFLOAT16)
can_cast = np.can_cast


def dtype(x: Any) -> np.dtype[Any]:
    """The dtype of a value."""
    found: np.dtype[Any] = value(x).dtype
    return found


def lattice_result_type(*args: Any) -> tuple[np.dtype[Any], bool]:
    """The dtype that values promote to, and whether it yields to others.

    >>> lattice_result_type(1, 2.0)
    (dtype('float32'), True)
    """
    dtype, weak = promoted(*((x.dtype, x.type.weak) for x in map(value, args)))
    return np.dtype(dtype), weak


def default_float_dtype() -> np.dtype[Any]:
    """The dtype of a float of Python's."""
    return dtype(0.0)


def to_complex_dtype(dtype: Any) -> np.dtype[Any]:
    """The complex dtype that holds numbers of another.

    >>> to_complex_dtype("float32")
    dtype('complex64')
    """
    return np.dtype("complex128" if np.dtype(dtype).itemsize == 8 and np.dtype(dtype) != "complex64" else "complex64")


__getattr__ = absent("jax._src.dtypes")

__all__ = [
    "DType",
    "ExtendedDType",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "result_type",
]

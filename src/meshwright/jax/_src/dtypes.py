"""``jax._src.dtypes``."""

from __future__ import annotations

import numpy as np

from meshwright.jax.absent import absent
from meshwright.jax.dtypes import canonicalize_dtype, extended, finfo, float0, iinfo, issubdtype, result_type

DType = np.dtype


class ExtendedDType:
    """A dtype that a library adds to JAX itself; it can be named, and no array has it."""


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

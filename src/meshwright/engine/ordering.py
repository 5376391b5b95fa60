"""The largest elements of rows, without sorting the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes

Array = np.ndarray[Any, Any]

_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The ``k`` largest of each row and where they stand, largest first, of equal ones the first first.

    Floats are in IEEE 754's total order: -NaN < -inf < … < -0.0 < 0.0 < … < inf < NaN.
    """
    keys = total_order(x)
    n = x.shape[-1]
    if keys.dtype.itemsize < 8:
        # A key above the complement of its index is one integer of 64 bits, and no two of these are equal.
        wide = keys.astype(np.int64) - (2**31 if keys.dtype.kind == "u" else 0)
        packed = (wide << 32) | (0xFFFFFFFF - np.arange(n))
        if 0 < k < n:
            packed = np.partition(packed, n - k, axis=-1)[..., n - k :]
        packed = np.sort(packed, axis=-1)[..., ::-1][..., :k]
        order = 0xFFFFFFFF - (packed & 0xFFFFFFFF)
    else:
        order = np.argsort(~keys, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)


def total_order(x: Array) -> Array:
    """Signed (or unsigned) integers in the order of ``x``."""
    if x.dtype.kind in "iu":
        return x
    if x.dtype == dtypes.BOOL:
        return x.view(np.uint8)
    bits = np.ascontiguousarray(x).view(_SIGNED[x.dtype.itemsize])
    lowest = np.iinfo(bits.dtype).min
    # Negative floats grow in magnitude with their bits: reversing all bits but the sign orders them.
    return np.where(bits < 0, ~bits ^ lowest, bits)

"""When two arrays count as equal: same dtype and shape, NaN in the same places, values within some ulps."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes


def wide(x: Any) -> np.ndarray[Any, Any]:
    """``x`` in the widest dtype of its kind, for comparing."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    return x.astype(np.float64) if dtypes.is_float(x.dtype) else x


def assert_close(actual: Any, expected: Any, *, ulps: float, context: str = "", pointwise: bool = False) -> None:
    """Refuse a difference of more than ``ulps`` units in the last place of the largest element.

    With ``pointwise``, of each element itself, and zeros must have equal signs.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{context}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{context}: shape {actual.shape}, expected {expected.shape}"
    if not dtypes.is_inexact(expected.dtype):
        np.testing.assert_array_equal(actual, expected, err_msg=context)
        return
    a, e = wide(actual), wide(expected)
    if a.dtype.kind == "c":
        a, e = (np.stack([x.real, x.imag], -1) for x in (a, e))
    real = dtypes.real_part(expected.dtype)
    limits = ml_dtypes.finfo(real)
    size = np.abs(np.where(np.isfinite(e), e, 0.0))
    if not pointwise:
        size = np.broadcast_to(np.max(size, initial=0.0), e.shape)
    elif actual.dtype.kind == "c":
        size = np.broadcast_to(np.max(size, axis=-1, keepdims=True, initial=0.0), e.shape)
    bound = ulps * float(limits.eps) * size + float(limits.smallest_normal)
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore", over="ignore"):
        fine = same | (np.abs(a - e) <= bound)
    if not fine.all():
        where = tuple(int(i) for i in np.argwhere(~fine)[0])
        raise AssertionError(
            f"{context}: {int((~fine).sum())} of {fine.size} elements differ, the first at {where}: "
            f"{a[where]!r}, expected {e[where]!r}\nactual:\n{actual}\nexpected:\n{expected}"
        )
    if pointwise and actual.dtype.kind != "c":
        signs = (e == 0) & (a == 0) & (np.signbit(a) != np.signbit(e))
        assert not signs.any(), f"{context}: zeros of the wrong sign\nactual:\n{actual}\nexpected:\n{expected}"

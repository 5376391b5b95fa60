"""NumPy as the array namespace that ``evaluate`` rules are written against.

A rule takes from ``xp`` the names NumPy has, and these, which NumPy lacks: ``astype``, ``permute_dims``, ``function``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.core.trace import set_namespace


class NumpyNamespace(SimpleNamespace):
    """NumPy's functions, found by name, beside the ones added here."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        setattr(self, name, value)
        return value


def _astype(x: Any, dtype: Any) -> Any:
    return np.asarray(x).astype(dtype)


NUMPY = NumpyNamespace(astype=_astype, permute_dims=np.transpose)
set_namespace(NUMPY)

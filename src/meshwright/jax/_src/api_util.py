"""``jax._src.api_util``: ``jax.api_util``, and one position or several as a tuple."""

from __future__ import annotations

from typing import Any

from meshwright.jax import api_util as _api_util


def _ensure_index_tuple(x: Any) -> tuple[int, ...]:
    """One position or several, as a tuple."""
    return (x,) if isinstance(x, int) else tuple(x)


def __getattr__(name: str) -> Any:
    """What ``jax.api_util`` has by this name."""
    return getattr(_api_util, name)

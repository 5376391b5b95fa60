"""``jax._src.lax``: ``jax.lax``."""

from __future__ import annotations

from typing import Any

from meshwright.jax import lax as _lax


def __getattr__(name: str) -> Any:
    """What ``jax.lax`` has by this name."""
    return getattr(_lax, name)

"""``jax._src.traceback_util``: whose lines errors show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshwright.core.source import LEFT_OUT as _exclude_paths
from meshwright.core.source import leave_out as register_exclusion

F = TypeVar("F", bound=Callable[..., Any])


def api_boundary(fun: F, **options: Any) -> F:
    """``fun``: errors say the user's line wherever they are raised."""
    return fun


__all__ = ["_exclude_paths", "api_boundary", "register_exclusion"]

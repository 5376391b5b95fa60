"""``jax._src.core``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.arrays.operands import value
from meshwright.errors import MeshwrightError
from meshwright.jax.absent import absent
from meshwright.jax.api_util import DebugInfo
from meshwright.jax.core import AbstractValue, ShapedArray, Tracer


def valid_jaxtype(x: Any) -> bool:
    """Whether a value can be an array.

    >>> valid_jaxtype(1.0), valid_jaxtype("a")
    (True, False)
    """
    try:
        value(x)
    except MeshwrightError:
        return False
    return True


def concrete_or_error(force: Callable[[Any], Any] | None, x: Any, context: str = "") -> Any:
    """A value that must be known while a function is traced.

    >>> concrete_or_error(int, 2.0)
    2
    """
    return x if force is None else force(x)


__getattr__ = absent("jax._src.core")

__all__ = ["AbstractValue", "DebugInfo", "ShapedArray", "Tracer", "concrete_or_error", "valid_jaxtype"]

"""``jax._src.checkify``: checks of traced values, which flax names when it is imported; they are refused when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from meshwright.jax.absent import absent, refused

Out = TypeVar("Out")


class JaxException(Exception):
    """What a check finds."""


class Error:
    """What the checks of a call have found."""


user_checks: frozenset[type[JaxException]] = frozenset()


def checkify(f: Callable[..., Any], errors: Any = user_checks) -> NoReturn:
    """Refused: functions have no results beside their own."""
    refused("checkify", "a traced function returns its own results alone", "a callback: jax.debug.callback(check, x)")


__getattr__ = absent("jax._src.checkify")

__all__ = ["Error", "JaxException", "checkify", "user_checks"]

"""Names of JAX that nothing stands in for: they are refused by name, where they are asked for or used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from meshwright.core.source import here
from meshwright.errors import MeshwrightError


def absent(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that has only some of the names of the one that it stands in for.

    >>> absent("jax.extend.core")("Primitive")
    Traceback (most recent call last):
    AttributeError: jax.extend.core.Primitive is not part of meshwright.jax, which stands in for jax here
    """

    def of(name: str) -> Any:
        raise AttributeError(f"{module}.{name} is not part of meshwright.jax, which stands in for jax here")

    return of


def refused(name: str, why: str, fix: str) -> NoReturn:
    """Refuse the use of what a library names when it is imported."""
    raise MeshwrightError(f"{name} has nothing that stands in for it here.", where=here(), why=why, fix=fix)

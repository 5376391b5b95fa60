"""Names of JAX that nothing stands in for: they are refused by name, where they are asked for or used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
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


def library(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose other modules are, in scripts of `run-jax`, an installed JAX's files."""
    missing = absent(package)

    def of(name: str) -> Any:
        if not name.startswith("_") and getattr(sys.modules.get("jax"), "__name__", "") == "meshwright.jax":
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        return missing(name)

    return of


def refused(name: str, why: str, fix: str) -> NoReturn:
    """Refuse the use of what a library names when it is imported."""
    raise MeshwrightError(f"{name} has nothing that stands in for it here.", where=here(), why=why, fix=fix)

"""Packages whose names are loaded when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def on_first_use(package: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``: names by the module they come from, which comes from itself where it has
    none.

    >>> load = on_first_use("json", {"json.decoder": ["JSONDecoder"]})
    >>> load("JSONDecoder")
    <class 'json.decoder.JSONDecoder'>
    """
    sources = {name: source for source, given in names.items() for name in given}

    def load(name: str) -> Any:
        if name in sources:
            value = getattr(import_module(sources[name]), name)
        elif f"{package}.{name}" in names:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(modules[package], name, value)
        return value

    return load

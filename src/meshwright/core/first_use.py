"""Packages whose names are loaded when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def on_first_use(
    package: str, names: Mapping[str, Iterable[str]], instead: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``: names by the module they come from, which comes from itself where it has
    none. ``instead`` says what to write for names that others have.

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
            raise no_attribute(f"module {package!r}", name, instead or {})
        setattr(modules[package], name, value)
        return value

    return load


def no_attribute(owner: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error for a name that is not there, with what to write where it is known.

    >>> no_attribute("module 'mine'", "tree_map", {"tree_map": "mine.tree.map"})
    AttributeError("module 'mine' has no attribute 'tree_map'; it is mine.tree.map")
    """
    known = f"; it is {instead[name]}" if name in instead else ""
    return AttributeError(f"{owner} has no attribute {name!r}{known}")

"""``import jax`` as this package: for the scripts of `meshwright run-jax`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

OURS = "meshwright.jax"


class StandIn(Loader):
    """Gives for ``jax.…`` the module of the same name in this package, the one module under both names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.name)
        self.own_spec: Any = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own_spec  # the import system has put that of `jax.…` there


class JaxFinder(MetaPathFinder):
    """Finds ``jax`` and what is in it in this package, and nothing of an installed JAX."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax" and not fullname.startswith("jax."):
            return None
        name = OURS + fullname.removeprefix("jax")
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ModuleNotFoundError(f"{fullname} is not part of {OURS}, which stands in for jax here", name=fullname)
        return ModuleSpec(fullname, StandIn(name), is_package=found.submodule_search_locations is not None)


def stand_in() -> None:
    """From here on, ``import jax`` means this package; an error if JAX itself was imported before."""
    loaded = sys.modules.get("jax")
    if loaded is not None and loaded.__name__ != OURS:
        raise ImportError(f"jax is imported already, and {OURS} cannot stand in for it any more")
    if not any(isinstance(finder, JaxFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, JaxFinder())

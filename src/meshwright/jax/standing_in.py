"""``import jax`` as this package: for the scripts of `meshwright run-jax`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = "meshwright.jax"
SCIPY = (
    "cluster", "fft", "integrate", "interpolate", "ndimage", "optimize", "signal", "sparse", "spatial", "stats",
)  # fmt: skip
# Libraries that come with JAX and are written in its public names: an installed JAX's own files run as they are.
LIBRARIES = (
    "jax.example_libraries",
    "jax.experimental.ode",
    "jax._src.third_party",
    *(f"jax.{package}.{one}" for package in ("scipy", "_src.scipy") for one in SCIPY),
)
# What these import by private names, and is public.
PUBLIC = {
    "jax._src.api": "jax",
    "jax._src.custom_derivatives": "jax.custom_derivatives",
    "jax._src.lax.linalg": "jax.lax.linalg",
    "jax._src.nn": "jax.nn",
    "jax._src.nn.functions": "jax.nn",
    "jax._src.numpy.fft": "jax.numpy.fft",
    "jax._src.numpy.lax_numpy": "jax.numpy",
    "jax._src.numpy.linalg": "jax.numpy.linalg",
    "jax._src.numpy.ufuncs": "jax.numpy",
    "jax._src.random": "jax.random",
    "jax._src.scipy": "jax.scipy",
    "jax._src.scipy.linalg": "jax.scipy.linalg",
    "jax._src.scipy.special": "jax.scipy.special",
}


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


def written_by_jax(fullname: str) -> ModuleSpec | None:
    """A library of the installed JAX, to be run from its own file; nothing if there is no JAX."""
    if not any(fullname == one or fullname.startswith(one + ".") for one in LIBRARIES):
        return None
    installed = PathFinder.find_spec("jax")
    if installed is None or not installed.submodule_search_locations:
        return None
    path = Path(next(iter(installed.submodule_search_locations)), *fullname.split(".")[1:])
    if (path / "__init__.py").exists():
        return spec_from_file_location(fullname, path / "__init__.py", submodule_search_locations=[str(path)])
    if path.is_dir():
        return ModuleSpec(fullname, None, is_package=True)
    return spec_from_file_location(fullname, path.with_suffix(".py")) if path.with_suffix(".py").exists() else None


class JaxFinder(MetaPathFinder):
    """Finds ``jax`` and what is in it in this package, and of an installed JAX only the libraries beside it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax" and not fullname.startswith("jax."):
            return None
        library = written_by_jax(fullname)
        if library is not None:
            return library
        name = OURS + PUBLIC.get(fullname, fullname).removeprefix("jax")
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

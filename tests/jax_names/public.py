"""The public names and parameters of the installed JAX, and which of them ``meshwright.jax`` has."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from enum import EnumType
from types import ModuleType
from typing import Any

MODULES = (
    "jax",
    "jax.numpy",
    "jax.lax",
    "jax.nn",
    "jax.random",
    "jax.tree_util",
    "jax.tree",
    "jax.sharding",
    "jax.scipy.special",
    "jax.experimental.shard_map",
    "jax.experimental.multihost_utils",
    "jax.experimental.mesh_utils",
    "jax.experimental.pallas",
    "jax.experimental.pallas.tpu",
    "jax.numpy.linalg",
    "jax.numpy.fft",
    "jax.debug",
    "jax.dtypes",
    "jax.flatten_util",
    "jax.nn.initializers",
    "jax.lax.linalg",
    "jax.ops",
    "jax.image",
    "jax.typing",
    "jax.ad_checkpoint",
    "jax.checkpoint_policies",
)


def counterpart(name: str) -> ModuleType | None:
    """The module of ``meshwright.jax`` that stands in for one of JAX."""
    try:
        return importlib.import_module(f"meshwright.{name}")
    except ModuleNotFoundError:
        return None


def module(name: str) -> Any:
    """A module of JAX, or what JAX has in the place of one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(importlib.import_module(parent), last)


def _is_public(owner: str, name: str, value: Any) -> bool:
    """Whether a name is the module's own, and not one that the module happens to import."""
    if name.startswith("_") or name == "annotations":
        return False
    if isinstance(value, ModuleType):  # which is there once somebody has imported it
        return False
    if owner == "jax.experimental.multihost_utils":  # which imports by short names what it uses, and defines rules
        own = getattr(value, "__module__", None) == owner
        return own and not name.endswith(("_impl", "_abstract_eval", "_batcher"))
    if owner == "jax.experimental.mesh_utils":
        return callable(value)
    return owner != "jax.experimental.shard_map"


def items(name: str) -> Iterator[tuple[str, Any, str | None]]:
    """The public names of a module and the parameters that can be given to them by name."""
    found = module(name)
    for one in dir(found):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(found, one, None)
        if value is None or not _is_public(name, one, value):
            continue
        yield one, value, None
        for parameter in parameters(value):
            yield one, value, parameter
    if name == "jax.experimental.shard_map":
        yield "shard_map", None, None
        yield from (("shard_map", None, one) for one in ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto"))


def parameters(value: Any) -> list[str]:
    """The parameters of a function that can be given by name; those of an enum are Python's."""
    if isinstance(value, EnumType):
        return []
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name[0] != "_"]


def takes(value: Any, parameter: str) -> bool:
    """Whether a function can be given a parameter by this name."""
    try:
        found = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return True  # a class or an instance that does not say
    return parameter in parameters(value) or any(p.kind is p.VAR_KEYWORD for p in found.values())


def missing(name: str) -> tuple[list[str], int]:
    """The names and parameters of a module of JAX that ``meshwright.jax`` has not, and how many JAX has."""
    ours = counterpart(name)
    absent, count = [], 0
    for one, _, parameter in items(name):
        count += 1
        own = getattr(ours, one, None) if ours is not None else None
        if parameter is None:
            if own is None:
                absent.append(one)
        elif own is None or not takes(own, parameter):
            absent.append(f"{one}({parameter})")
    return absent, count

"""``jax._src``: what libraries import of JAX's private modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meshwright.jax.absent import absent

_PUBLIC = {
    "api": "",
    "config": ".config",
    "linear_util": ".extend.linear_util",
    "nn": ".nn",
    "random": ".random",
    "scipy": ".scipy",
}
_absent = absent("jax._src")


def __getattr__(name: str) -> Any:
    """A public module by the private name that JAX's own libraries know it by."""
    if name in _PUBLIC:
        return import_module(f"meshwright.jax{_PUBLIC[name]}")
    return _absent(name)

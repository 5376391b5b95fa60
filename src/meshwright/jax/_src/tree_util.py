"""``jax._src.tree_util``: ``jax.tree_util``, and which classes are containers."""

from __future__ import annotations

from typing import Any

from meshwright.jax import tree_util as _tree_util


class _Registry:
    """The classes that are containers, asked one by one."""

    def __contains__(self, kind: Any) -> bool:
        return _tree_util.is_tree_node(kind)


_registry = _Registry()


def __getattr__(name: str) -> Any:
    """What ``jax.tree_util`` has by this name."""
    return getattr(_tree_util, name)

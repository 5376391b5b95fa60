"""``jax._src.tree_util``: which classes are containers."""

from __future__ import annotations

from typing import Any

from meshwright.jax.tree_util import is_tree_node


class _Registry:
    """The classes that are containers, asked one by one."""

    def __contains__(self, kind: Any) -> bool:
        return is_tree_node(kind)


_registry = _Registry()

__all__ = ["_registry"]

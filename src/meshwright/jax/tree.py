"""``jax.tree``: pytrees by their short names."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshwright.jax.tree_util import tree_all as all
from meshwright.jax.tree_util import tree_broadcast as broadcast
from meshwright.jax.tree_util import tree_flatten as flatten
from meshwright.jax.tree_util import tree_flatten_with_path as flatten_with_path
from meshwright.jax.tree_util import tree_leaves as leaves
from meshwright.jax.tree_util import tree_leaves_with_path as leaves_with_path
from meshwright.jax.tree_util import tree_map as map
from meshwright.jax.tree_util import tree_map_with_path as map_with_path
from meshwright.jax.tree_util import tree_reduce as reduce
from meshwright.jax.tree_util import tree_reduce_associative as reduce_associative
from meshwright.jax.tree_util import tree_structure as structure
from meshwright.jax.tree_util import tree_transpose as transpose
from meshwright.jax.tree_util import tree_unflatten as unflatten


def static(**kwargs: Any) -> Any:
    """A field of a dataclass that is part of the structure, with the options of ``dataclasses.field``.

    >>> static(default="add").metadata["static"]
    True
    """
    return dataclasses.field(**{**kwargs, "metadata": {**kwargs.get("metadata", {}), "static": True}})


__all__ = [
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

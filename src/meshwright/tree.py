"""Pytrees: nested containers of arrays."""

from meshwright.core.tree import flatten, leaves, map, structure
from meshwright.frontend.tree import (
    all,
    flatten_with_path,
    leaves_with_path,
    map_with_path,
    reduce,
    register_dataclass,
    register_node,
    transpose,
    unflatten,
)

__all__ = [
    "all",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "register_dataclass",
    "register_node",
    "structure",
    "transpose",
    "unflatten",
]

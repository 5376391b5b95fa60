"""Nested containers of arrays (pytrees), by optree. ``None`` is an empty tree, dicts are in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import optree

Tree = Any
TreeDef = optree.PyTreeSpec

NAMESPACE = "meshwright"  # of the container classes users register

flatten: Callable[[Tree], tuple[list[Any], TreeDef]] = partial(optree.tree_flatten, namespace=NAMESPACE)
unflatten: Callable[[TreeDef, Iterable[Any]], Any] = optree.tree_unflatten
leaves: Callable[[Tree], list[Any]] = partial(optree.tree_leaves, namespace=NAMESPACE)
structure: Callable[[Tree], TreeDef] = partial(optree.tree_structure, namespace=NAMESPACE)


def map(function: Callable[..., Any], tree: Tree, *rest: Tree, is_leaf: Callable[[Any], bool] | None = None) -> Tree:
    """``function`` applied to each leaf of ``tree`` and the matching leaves of ``rest``.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 2})
    {'a': 3}
    """
    return optree.tree_map(function, tree, *rest, is_leaf=is_leaf, namespace=NAMESPACE)


def path_names(tree: Tree) -> list[str]:
    """How each leaf of ``tree`` is reached, as Python would write it: ``['w'][0]``."""
    return [accessor.codify("") for accessor in optree.tree_accessors(tree, namespace=NAMESPACE)]

"""Nested containers of arrays (pytrees), by optree. ``None`` is an empty tree, dicts are in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import optree

from meshwright.core.source import here
from meshwright.errors import TreeError

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
    leaves, treedef = optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    columns = [leaves]
    for other in rest:
        try:
            columns.append(treedef.flatten_up_to(other))
        except ValueError as error:
            raise TreeError(
                "tree.map is given trees of different structures.",
                where=here(),
                why=str(error).split("\n")[0],
                fix="pass trees with the same containers and keys; mw.tree.structure(x) shows them",
            ) from None
    return optree.tree_unflatten(treedef, [function(*row) for row in zip(*columns, strict=True)])


def outline(tree: Tree, leaf: str, is_leaf: Callable[[Any], bool] | None = None) -> str:
    """The structure of a tree, with a mark for each leaf.

    >>> outline({"a": 1, "b": [2, None]}, "*")
    "{'a': *, 'b': [*, None]}"
    """
    text = repr(map(lambda _: leaf, tree, is_leaf=is_leaf)).replace(f"'{leaf}'", leaf)
    return text if len(text) <= 200 else f"{text[:200]}…"


def path_names(tree: Tree) -> list[str]:
    """How each leaf of ``tree`` is reached, as Python would write it: ``['w'][0]``."""
    return [accessor.codify("") for accessor in optree.tree_accessors(tree, namespace=NAMESPACE)]


def argument_names(args: Sequence[Tree], kwargs: Mapping[str, Tree] | None = None) -> list[str]:
    """What to call each leaf of a call's arguments.

    >>> argument_names([1.0, {"w": 2.0}], {"rate": 3.0})
    ['argument 0', "argument 1['w']", "argument 'rate'"]
    """
    named = [*enumerate(args), *sorted((kwargs or {}).items())]
    return [f"argument {key!r}{path}" for key, arg in named for path in path_names(arg)]

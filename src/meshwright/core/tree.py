"""Nested containers of arrays (pytrees), by optree. ``None`` is an empty tree, dicts are in key order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import optree

from meshwright.core.source import here
from meshwright.errors import TreeError

Tree = Any
TreeDef = optree.PyTreeSpec

NAMESPACE = "meshwright"  # of the container classes users register

unflatten: Callable[[TreeDef, Iterable[Any]], Any] = optree.tree_unflatten


def in_key_order(treedef: TreeDef) -> TreeDef:
    """A structure whose dicts are made in key order, as JAX makes them, whatever order those had that it is of.

    >>> unflatten(in_key_order(optree.tree_structure({"b": 2, "a": 1})), [3, 4])
    {'a': 3, 'b': 4}
    """
    try:
        sorts, is_plain = _dicts_of(treedef)
    except TypeError:  # what a class keeps beside its leaves cannot be hashed
        return _sorted(treedef)
    if not sorts:
        return treedef
    return _plain_in_key_order(treedef) if is_plain else _sorted(treedef)


@lru_cache(maxsize=4096)
def _dicts_of(treedef: TreeDef) -> tuple[bool, bool]:
    """Whether there are dicts of several keys, and no classes that keep something beside their leaves."""
    sorts, is_plain = treedef.type in _DICTS and treedef.num_children > 1, treedef.type in _PLAIN
    for child in treedef.children():
        inner, plain = _dicts_of(child)
        sorts, is_plain = sorts or inner, is_plain and plain
    return sorts, is_plain


def _sorted(treedef: TreeDef) -> TreeDef:
    level = treedef.one_level()
    if level is None or not treedef.num_children:
        return treedef
    try:
        made: Any = optree.tree_unflatten(level, [_sorted(child) for child in treedef.children()])
        if treedef.type is dict:
            made = {key: made[key] for key in treedef.entries()}
        elif treedef.type is defaultdict:
            made = defaultdict(made.default_factory, {key: made[key] for key in treedef.entries()})
        return optree.treespec_from_collection(made, namespace=NAMESPACE)
    except Exception:  # a class that cannot be made of anything but arrays
        return treedef


_plain_in_key_order = lru_cache(maxsize=4096)(_sorted)
_DICTS = (dict, defaultdict)
_PLAIN = (None, type(None), list, tuple, *_DICTS)


def flatten(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree, and its structure.

    >>> flatten({"b": 2, "a": (1, None)})[0]
    [1, 2]
    """
    try:
        found, treedef = optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError:
        raise too_deep() from None
    except TypeError:
        if is_leaf is None or callable(is_leaf):
            raise
        raise TreeError(
            f"is_leaf is {is_leaf!r}, which is not a function.",
            where=here(),
            why="it says of a container whether it counts as a leaf",
            fix="is_leaf=lambda x: x is None",
        ) from None
    return found, in_key_order(treedef)


def leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree."""
    try:
        return optree.tree_leaves(tree, namespace=NAMESPACE)
    except RecursionError:
        raise too_deep() from None


def structure(tree: Tree) -> TreeDef:
    """The structure of a tree: its containers and their keys."""
    try:
        return in_key_order(optree.tree_structure(tree, namespace=NAMESPACE))
    except RecursionError:
        raise too_deep() from None


def too_deep() -> TreeError:
    """The error for containers in containers without end."""
    return TreeError(
        f"The containers of a tree are nested more than {optree.MAX_RECURSION_DEPTH} deep, or contain themselves.",
        where=here(),
        why=f"trees are at most {optree.MAX_RECURSION_DEPTH} deep",
        fix="one list of all items instead of lists in lists",
    )


def map(function: Callable[..., Any], tree: Tree, *rest: Tree, is_leaf: Callable[[Any], bool] | None = None) -> Tree:
    """``function`` applied to each leaf of ``tree`` and the matching leaves of ``rest``.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 2})
    {'a': 3}
    """
    if not callable(function):
        raise TreeError(
            f"tree.map is given {function!r}, which is not a function.",
            where=here(),
            why="it is called with leaves",
            fix="mw.tree.map(lambda x: x + 1, tree)",
        )
    found, treedef = flatten(tree, is_leaf)
    columns = [found]
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
    return unflatten(treedef, [function(*row) for row in zip(*columns, strict=True)])


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

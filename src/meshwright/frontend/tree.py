"""The public pytree functions beyond those of ``core.tree``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.errors import TreeError

T = TypeVar("T")


def reduce(function: Callable[[Any, Any], Any], pytree: Any, initializer: Any = None) -> Any:
    """Combine the leaves from left to right.

    >>> reduce(lambda a, b: a + b, {"a": 1, "b": (2, 3)}, 0)
    6
    """
    found = tree.leaves(pytree)
    if initializer is not None:
        found = [initializer, *found]
    if not found:
        raise TreeError(
            "tree.reduce is given a tree without leaves.",
            where=here(),
            why="there is nothing to start from",
            fix="mw.tree.reduce(f, tree, 0) starts from 0",
        )
    total = found[0]
    for leaf in found[1:]:
        total = function(total, leaf)
    return total


def all(pytree: Any) -> bool:
    """Whether every leaf is true."""
    return not [leaf for leaf in tree.leaves(pytree) if not leaf]


def flatten_with_path(pytree: Any) -> tuple[list[tuple[tuple[Any, ...], Any]], tree.TreeDef]:
    """The leaves, each with the keys that lead to it.

    >>> flatten_with_path({"a": [1, 2]})[0]
    [(('a', 0), 1), (('a', 1), 2)]
    """
    paths, leaves, structure = optree.tree_flatten_with_path(pytree, namespace=tree.NAMESPACE)
    return list(zip(paths, leaves, strict=True)), structure


def leaves_with_path(pytree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves, each with the keys that lead to it, without the structure.

    >>> leaves_with_path({"a": [1, 2]})
    [(('a', 0), 1), (('a', 1), 2)]
    """
    return flatten_with_path(pytree)[0]


def unflatten(structure: tree.TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure and its leaves.

    >>> unflatten(tree.structure({"a": 0, "b": 0}), [1, 2])
    {'a': 1, 'b': 2}
    """
    found = list(leaves)
    if len(found) != structure.num_leaves:
        raise TreeError(
            f"tree.unflatten is given {len(found)} leaves for a structure of {structure.num_leaves}.",
            where=here(),
            why=f"the structure is {structure}",
            fix="pass one value per leaf, in the order of mw.tree.leaves",
        )
    return tree.unflatten(structure, found)


def map_with_path(function: Callable[..., Any], pytree: Any, *rest: Any) -> Any:
    """``function(path, leaf, …)`` for each leaf.

    >>> map_with_path(lambda path, x: (path, x), {"a": 1})
    {'a': (('a',), 1)}
    """
    pairs, structure = flatten_with_path(pytree)
    columns: list[list[Any]] = [[path for path, _ in pairs], [leaf for _, leaf in pairs]]
    for other in rest:
        try:
            columns.append(structure.flatten_up_to(other))
        except ValueError as error:
            raise TreeError(
                "tree.map_with_path is given trees of different structures.",
                where=here(),
                why=str(error).split("\n")[0],
                fix="pass trees with the same containers and keys; mw.tree.structure(x) shows them",
            ) from None
    return tree.unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])


def transpose(outer: tree.TreeDef, inner: tree.TreeDef, pytree: Any) -> Any:
    """An ``outer`` tree of ``inner`` trees turned inside out."""
    try:
        return optree.tree_transpose(outer, inner, pytree)
    except (TypeError, ValueError) as error:
        raise TreeError(
            "tree.transpose is given a tree that is not an outer tree of inner trees.",
            where=here(),
            why=str(error).split("\n")[0],
            fix="mw.tree.structure(x) shows the structure of a tree",
        ) from None


def register_node(
    cls: type[T],
    flatten: Callable[[T], tuple[Sequence[Any], Any]],
    unflatten: Callable[[Any, Sequence[Any]], T],
) -> type[T]:
    """Make a class a container: ``flatten(x) -> (children, rest)`` and ``unflatten(rest, children) -> x``."""
    optree.register_pytree_node(cls, flatten, unflatten, namespace=tree.NAMESPACE)  # type: ignore[arg-type]
    return cls


def register_dataclass(
    cls: type[T], data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] = ()
) -> type[T]:
    """Make a dataclass a container whose ``data_fields`` are children and ``meta_fields`` are part of the structure.

    >>> import dataclasses
    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     w: float
    >>> tree.map(lambda x: x + 1, Layer(1.0))
    Layer(w=2.0)
    """
    if data_fields is None and not dataclasses.is_dataclass(cls):
        raise TreeError(
            f"tree.register_dataclass is given {cls!r}.",
            where=here(),
            why="it is not a dataclass, and no fields are named",
            fix="put @dataclasses.dataclass under @mw.tree.register_dataclass, or name the fields: data_fields=[…]",
        )
    names = tuple(
        data_fields
        if data_fields is not None
        else [f.name for f in dataclasses.fields(cls) if f.name not in meta_fields]  # type: ignore[arg-type]
    )

    def flatten(x: Any) -> tuple[list[Any], tuple[Any, ...], tuple[str, ...]]:
        return [getattr(x, name) for name in names], tuple(getattr(x, name) for name in meta_fields), names

    def unflatten(meta: tuple[Any, ...], children: Sequence[Any]) -> Any:
        made = object.__new__(cls)
        for name, value in [*zip(names, children, strict=True), *zip(meta_fields, meta, strict=True)]:
            object.__setattr__(made, name, value)
        return made

    register: Callable[..., Any] = optree.register_pytree_node
    register(cls, flatten, unflatten, path_entry_type=optree.GetAttrEntry, namespace=tree.NAMESPACE)
    return cls

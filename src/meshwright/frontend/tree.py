"""The public pytree functions beyond those of ``core.tree``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import optree

from meshwright.core import tree

T = TypeVar("T")


def reduce(function: Callable[[Any, Any], Any], pytree: Any, initializer: Any = None) -> Any:
    """Combine the leaves from left to right.

    >>> reduce(lambda a, b: a + b, {"a": 1, "b": (2, 3)}, 0)
    6
    """
    found = tree.leaves(pytree)
    if initializer is not None:
        found = [initializer, *found]
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


def map_with_path(function: Callable[..., Any], pytree: Any, *rest: Any) -> Any:
    """``function(path, leaf, …)`` for each leaf."""
    return optree.tree_map_with_path(function, pytree, *rest, namespace=tree.NAMESPACE)


def transpose(outer: tree.TreeDef, inner: tree.TreeDef, pytree: Any) -> Any:
    """An ``outer`` tree of ``inner`` trees turned inside out."""
    return optree.tree_transpose(outer, inner, pytree)


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
    names = tuple(
        data_fields
        if data_fields is not None
        else [f.name for f in dataclasses.fields(cls) if f.name not in meta_fields]  # type: ignore[arg-type]
    )

    def flatten(x: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(x, name) for name in names], tuple(getattr(x, name) for name in meta_fields)

    def unflatten(meta: tuple[Any, ...], children: Sequence[Any]) -> Any:
        made = object.__new__(cls)
        for name, value in [*zip(names, children, strict=True), *zip(meta_fields, meta, strict=True)]:
            object.__setattr__(made, name, value)
        return made

    return register_node(cls, flatten, unflatten)

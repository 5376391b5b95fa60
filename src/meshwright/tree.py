"""Pytrees: nested containers of arrays."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from meshwright.arrays.tracing import check_function
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.tree import flatten, leaves, map, structure
from meshwright.errors import TreeError

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

T = TypeVar("T")


def reduce(function: Callable[[Any, Any], Any], pytree: Any, initializer: Any = None) -> Any:
    """Combine the leaves from left to right.

    >>> reduce(lambda a, b: a + b, {"a": 1, "b": (2, 3)}, 0)
    6
    """
    check_function(function, "tree.reduce", "mw.tree.reduce(f, tree, 0)")
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
    try:
        return not [leaf for leaf in tree.leaves(pytree) if not leaf]
    except ValueError as error:  # NumPy's, of an array of several elements
        raise TreeError(
            "tree.all is given a leaf that is neither true nor false.",
            where=here(),
            why=str(error),
            fix="mw.tree.all(mw.tree.map(lambda x: bool(x.all()), tree))",
        ) from None


def flatten_with_path(
    pytree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], tree.TreeDef]:
    """The leaves, each with the keys that lead to it; ``is_leaf`` says what counts as one besides.

    >>> flatten_with_path({"a": [1, 2]})[0]
    [(('a', 0), 1), (('a', 1), 2)]
    """
    try:
        paths, leaves, structure = optree.tree_flatten_with_path(pytree, is_leaf, namespace=tree.NAMESPACE)
    except RecursionError:
        raise tree.too_deep() from None
    return list(zip(paths, leaves, strict=True)), tree.in_key_order(structure)


def leaves_with_path(pytree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves, each with the keys that lead to it, without the structure.

    >>> leaves_with_path({"a": [1, 2]})
    [(('a', 0), 1), (('a', 1), 2)]
    """
    return flatten_with_path(pytree, is_leaf)[0]


def unflatten(structure: tree.TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure and its leaves.

    >>> unflatten(tree.structure({"a": 0, "b": 0}), [1, 2])
    {'a': 1, 'b': 2}
    """
    _check_structure(structure, "tree.unflatten")
    if not isinstance(leaves, Iterable):
        raise TreeError(
            f"tree.unflatten is given {leaves!r} as leaves.",
            where=here(),
            why="they are a list of values",
            fix="mw.tree.unflatten(structure, [x, y])",
        )
    try:
        found = list(leaves)
    except TypeError:  # of an array of rank 0
        found = [leaves]
    if len(found) != structure.num_leaves:
        raise TreeError(
            f"tree.unflatten is given {len(found)} leaves for a structure of {structure.num_leaves}.",
            where=here(),
            why=f"the structure is {structure}",
            fix="pass one value per leaf, in the order of mw.tree.leaves",
        )
    return tree.unflatten(structure, found)


def _check_structure(structure: Any, name: str) -> None:
    """Refuse what is not the structure of a tree."""
    if not isinstance(structure, tree.TreeDef):
        raise TreeError(
            f"{name} is given {structure!r} as a structure.",
            where=here(),
            why="it is what mw.tree.structure returns",
            fix="mw.tree.structure(x)",
        )


def map_with_path(function: Callable[..., Any], pytree: Any, *rest: Any) -> Any:
    """``function(path, leaf, …)`` for each leaf.

    >>> map_with_path(lambda path, x: (path, x), {"a": 1})
    {'a': (('a',), 1)}
    """
    check_function(function, "tree.map_with_path", "mw.tree.map_with_path(lambda path, x: x, tree)")
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
    for given in (outer, inner):
        _check_structure(given, "tree.transpose")
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
    for function in (flatten, unflatten):
        check_function(function, "tree.register_node", "mw.tree.register_node(cls, flatten, unflatten)")
    _register(cls, flatten, unflatten, "tree.register_node")
    return cls


def _register(cls: Any, flatten: Callable[..., Any], unflatten: Callable[..., Any], name: str, **options: Any) -> None:
    """Enter a class as a container, once."""
    try:
        with warnings.catch_warnings():  # a named tuple of one's own may be a container of one's own
            warnings.filterwarnings("ignore", message="PyTree type .* is a subclass of")
            optree.register_pytree_node(cls, flatten, unflatten, namespace=tree.NAMESPACE, **options)
    except (TypeError, ValueError) as error:
        raise TreeError(
            f"{name} is given {cls!r}.",
            where=here(),
            why=str(error).split("\n")[0],
            fix="register a class of your own, once",
        ) from None


def register_dataclass(
    cls: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]:
    """Make a dataclass a container whose ``data_fields`` are children and ``meta_fields`` are part of the structure.

    Without them, the fields whose metadata say ``static=True`` are part of the structure and all others are children.
    ``drop_fields`` are neither, and a container that is put together again has their defaults.

    >>> import dataclasses
    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     w: float
    ...     name: str = dataclasses.field(default="", metadata=dict(static=True))
    >>> tree.map(lambda x: x + 1, Layer(1.0, "first"))
    Layer(w=2.0, name='first')
    """
    if data_fields is None and not dataclasses.is_dataclass(cls):
        raise TreeError(
            f"tree.register_dataclass is given {cls!r}.",
            where=here(),
            why="it is not a dataclass, and no fields are named",
            fix="put @dataclasses.dataclass under @mw.tree.register_dataclass, or name the fields: data_fields=[…]",
        )
    names, meta_names = _fields(cls, data_fields, meta_fields, drop_fields)
    defaults = {f.name: f for f in (dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ())}

    def flatten(x: Any) -> tuple[list[Any], tuple[Any, ...], tuple[str, ...]]:
        return [getattr(x, name) for name in names], tuple(getattr(x, name) for name in meta_names), names

    def unflatten(meta: tuple[Any, ...], children: Sequence[Any]) -> Any:
        made = object.__new__(cls)
        for name, value in [*zip(names, children, strict=True), *zip(meta_names, meta, strict=True)]:
            object.__setattr__(made, name, value)
        for name in drop_fields:
            field = defaults[name]
            made_default = field.default_factory is not dataclasses.MISSING
            object.__setattr__(made, name, field.default_factory() if made_default else field.default)  # type: ignore[operator,misc]
        return made

    _register(cls, flatten, unflatten, "tree.register_dataclass", path_entry_type=optree.GetAttrEntry)
    return cls


def _fields(
    cls: Any, data: Sequence[str] | None, meta: Sequence[str] | None, dropped: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields that are children of a container, and those that are part of its structure."""
    declared = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    if data is None:
        static = [name for name, f in declared.items() if f.metadata.get("static", False)]
        meta = [name for name in static if name not in dropped] if meta is None else meta
        data = [name for name, f in declared.items() if f.init and name not in (*meta, *dropped)]
    names, meta_names = tuple(data), tuple(meta or ())
    given = [*names, *meta_names, *dropped]
    required = {name for name, f in declared.items() if f.init}
    if len(set(given)) != len(given) or (declared and not required <= set(given) <= set(declared)):
        raise TreeError(
            f"tree.register_dataclass is given the fields {', '.join(map(str, given))}.",
            where=here(),
            why=f"{cls.__name__} has {', '.join(declared)}" if declared else "one is named twice",
            fix="name each field once, as data, meta or dropped; or none of them",
        )
    return names, meta_names

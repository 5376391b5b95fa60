"""``jax.tree_util``: pytrees by JAX's names, with JAX's keys on the way to a leaf."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import optree

from meshwright import tree as trees
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.tree import NAMESPACE
from meshwright.errors import TreeError

PyTreeDef = tree.TreeDef
IsLeaf = Callable[[Any], bool] | None
T = TypeVar("T")


@dataclass(frozen=True)
class DictKey:
    """A key of a dict, ``['w']``."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class SequenceKey:
    """A place in a list or a tuple, ``[0]``."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True)
class GetAttrKey:
    """An attribute of a dataclass or a named tuple, ``.w``."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class FlattenedIndexKey:
    """A place among the children of a container that does not name them."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


class OwnKeys(optree.PyTreeEntry):  # type: ignore[misc]
    """The key that a container registered with keys gives a child itself."""


KeyEntry = Any
KeyPath = tuple[Any, ...]


def _keys(accessor: Any) -> KeyPath:
    return tuple(map(_key, accessor))


def _key(entry: Any) -> Any:
    if isinstance(entry, OwnKeys):
        return entry.entry
    if isinstance(entry, optree.NamedTupleEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.GetAttrEntry | optree.DataclassEntry):
        return GetAttrKey(str(entry.name))
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.entry)
    return (SequenceKey if isinstance(entry, optree.SequenceEntry) else FlattenedIndexKey)(entry.entry)


def keystr(keys: Iterable[Any], *, simple: bool = False, separator: str = "") -> str:
    """A path as text: ``['layers'][0].w``, or with ``simple=True`` its names alone.

    >>> keystr((DictKey("layers"), SequenceKey(0))), keystr((DictKey("a"), SequenceKey(0)), simple=True, separator="/")
    ("['layers'][0]", 'a/0')
    """

    def name(key: Any) -> str:
        return str(next((getattr(key, n) for n in ("key", "idx", "name") if hasattr(key, n)), key))

    return separator.join(map(name if simple else str, keys))


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree, and its structure.

    >>> tree_flatten((1, [2, None]))[0]
    [1, 2]
    """
    return trees.flatten(tree, is_leaf)


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure and its leaves."""
    return trees.unflatten(treedef, leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree."""
    return trees.flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree."""
    return trees.flatten(tree, is_leaf)[1]


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """``f`` of each leaf and the matching parts of ``rest``.

    >>> tree_map(lambda x, y: x + y, [1, 2], [10, 20])
    [11, 22]
    """
    return trees.map(f, tree, *rest, is_leaf=is_leaf)


def tree_all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether all leaves are true."""
    return trees.all(tree_leaves(tree, is_leaf))


_NOTHING = object()


def tree_reduce(
    function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _NOTHING, is_leaf: IsLeaf = None
) -> Any:
    """The leaves combined from left to right.

    >>> tree_reduce(lambda a, b: a + b, {"a": 1, "b": 2}, 10)
    13
    """
    first = () if initializer is _NOTHING else (initializer,)
    return functools.reduce(function, tree_leaves(tree, is_leaf), *first)


def tree_reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = None, is_leaf: IsLeaf = None
) -> Any:
    """The leaves combined in pairs, then the pairs.

    >>> tree_reduce_associative(lambda a, b: a + b, [1, 2, 3, 4, 5])
    15
    """
    found = tree_leaves(tree, is_leaf)
    if not found:
        if identity is None:
            raise TreeError(
                "tree_reduce_associative is given a tree without leaves.",
                where=here(),
                why="there is nothing to combine, and no identity",
                fix="identity=0",
            )
        return identity
    while len(found) > 1:
        pairs = [operation(a, b) for a, b in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[2 * len(pairs) :]
    return found[0]


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """An outer tree of inner trees turned inside out; without ``inner_treedef``, the first inner tree says what it is.

    >>> tree_transpose(tree_structure([0, 0]), tree_structure((0, 0)), [(1, 2), (3, 4)])
    ([1, 3], [2, 4])
    """
    if inner_treedef is None:
        inner_treedef = tree_structure(outer_treedef.flatten_up_to(pytree_to_transpose)[0])
    return trees.transpose(outer_treedef, inner_treedef, pytree_to_transpose)


def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """The leaves of a prefix repeated for all of the tree's leaves below them.

    >>> tree_broadcast([1, 2], [0, (0, 0)])
    [1, (2, 2)]
    """
    prefix, structure = trees.flatten(prefix_tree, is_leaf)
    try:
        below = structure.flatten_up_to(full_tree)
    except ValueError as error:
        raise TreeError(
            "tree_broadcast is given a tree that is no prefix of the other.",
            where=here(),
            why=str(error).split("\n")[0],
            fix="a tree with the same containers, that may stop early",
        ) from None
    parts = [tree_map(lambda _, x=x: x, part) for x, part in zip(prefix, below, strict=True)]
    return tree.unflatten(structure, parts)


def _with_accessors(tree_: Any, is_leaf: Any, takes_path: bool) -> tuple[list[KeyPath], list[Any], PyTreeDef]:
    try:
        if takes_path:
            return _walked(tree_, is_leaf)
        accessors, leaves, structure = optree.tree_flatten_with_accessor(tree_, is_leaf, namespace=tree.NAMESPACE)
    except RecursionError:
        raise tree.too_deep() from None
    return [_keys(accessor) for accessor in accessors], leaves, tree.in_key_order(structure)


def _walked(pytree: Any, is_leaf: Callable[[KeyPath, Any], bool]) -> tuple[list[KeyPath], list[Any], PyTreeDef]:
    """With a test of leaves that is told how each container is reached."""
    stopped: set[int] = set()

    def look(path: KeyPath, x: Any) -> None:
        if is_leaf(path, x):
            stopped.add(id(x))
            return
        for (key,), child in flatten_one_level_with_paths(x):
            look((*path, key), child)

    look((), pytree)
    return _with_accessors(pytree, lambda x: id(x) in stopped, False)


def flatten_one_level_with_paths(x: Any) -> list[tuple[KeyPath, Any]]:
    """The children of a container, each with its key; none of a leaf."""
    accessors, leaves, _ = optree.tree_flatten_with_accessor(x, lambda y: y is not x, namespace=tree.NAMESPACE)
    return [(_keys(accessor), leaf) for accessor, leaf in zip(accessors, leaves, strict=True) if len(accessor)]


def tree_flatten_with_path(
    tree: Any, is_leaf: Any = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """The leaves, each with the keys that lead to it, and the structure.

    >>> tree_flatten_with_path({"a": [1]})[0]
    [((DictKey(key='a'), SequenceKey(idx=0)), 1)]
    """
    paths, leaves, structure = _with_accessors(tree, is_leaf, is_leaf_takes_path)
    return list(zip(paths, leaves, strict=True)), structure


def tree_leaves_with_path(
    tree: Any, is_leaf: Any = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The leaves, each with the keys that lead to it."""
    return tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def tree_map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Any = None, is_leaf_takes_path: bool = False
) -> Any:
    """``f(path, leaf, …)`` for each leaf.

    >>> tree_map_with_path(lambda path, x: keystr(path), {"a": [1]})
    {'a': ["['a'][0]"]}
    """
    pairs, structure = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [structure.flatten_up_to(other) for other in rest]
    return structure.unflatten([f(*pair, *row) for pair, *row in zip(pairs, *columns, strict=True)])


def register_pytree_node(
    nodetype: type[Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None,
) -> None:
    """Make a class a container: ``flatten_func(x) -> (children, aux)`` and ``unflatten_func(aux, children) -> x``."""
    if flatten_with_keys_func is not None:
        register_pytree_with_keys(nodetype, flatten_with_keys_func, unflatten_func)
    else:
        trees.register_node(nodetype, lambda x: _as_lists(flatten_func(x)), unflatten_func)


def _as_lists(found: tuple[Iterable[Any], Any]) -> tuple[list[Any], Any]:
    children, rest = found
    return list(children), rest


def register_pytree_node_class(cls: type[T]) -> type[T]:
    """Make a class with ``tree_flatten`` and ``tree_unflatten`` a container; to be put above the class."""
    register_pytree_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_pytree_with_keys(
    nodetype: type[Any],
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """As ``register_pytree_node``, where each child comes with the key that leads to it: ``(key, child)``."""

    def flatten(x: Any) -> tuple[list[Any], Any, tuple[Any, ...]]:
        pairs, rest = flatten_with_keys(x)
        pairs = list(pairs)
        return [child for _, child in pairs], rest, tuple(key for key, _ in pairs)

    trees._register(nodetype, flatten, unflatten_func, "register_pytree_with_keys", path_entry_type=OwnKeys)


def register_pytree_with_keys_class(cls: type[T]) -> type[T]:
    """Make a class with ``tree_flatten_with_keys`` and ``tree_unflatten`` a container; to be put above the class."""
    register_pytree_with_keys(cls, lambda x: x.tree_flatten_with_keys(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_static(cls: type[T]) -> type[T]:
    """Make a class a container without children: all that it is, is part of the structure."""
    trees.register_node(cls, lambda x: ([], x), lambda x, _: x)
    return cls


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether none of these is a container.

    >>> all_leaves([1, 2]), all_leaves([1, [2]])
    (True, False)
    """
    given = list(iterable)
    found = tree_leaves(given, is_leaf)
    return len(found) == len(given) and all(a is b for a, b in zip(found, given, strict=True))


def is_tree_node(typ: type) -> bool:
    """Whether a class is one of containers.

    >>> is_tree_node(dict), is_tree_node(int)
    (True, False)
    """
    found = optree.register_pytree_node.get(typ, namespace=tree.NAMESPACE)  # type: ignore[attr-defined]
    return found is not None or optree.is_namedtuple_class(typ)


def flatten_one_level(tree: Any) -> tuple[tuple[Any, ...], Hashable]:
    """The children of a container, and what is needed beside them to put it together again.

    >>> flatten_one_level({"a": 1, "b": [2]})
    ((1, [2]), ('a', 'b'))
    """
    pairs, rest = flatten_one_level_with_keys(tree)
    return tuple(child for _, child in pairs), rest


def flatten_one_level_with_keys(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], Hashable]:
    """The children of a container, each with its key, and what is needed beside them to put it together again.

    >>> flatten_one_level_with_keys([5])
    (((SequenceKey(idx=0), 5),), None)
    """
    if tree is not None and not is_tree_node(type(tree)):
        raise TreeError(
            f"A value of type {type(tree).__name__} is flattened by one level.",
            where=here(),
            why="it is a leaf, which has no children",
            fix="jax.tree_util.all_leaves([x]) says whether x is a leaf",
        )
    pairs = tuple((path[0], child) for path, child in flatten_one_level_with_paths(tree))
    rest: Any = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)[1]
    return pairs, tuple(rest) if isinstance(tree, dict) else rest


class PyTreeRegistry:
    """The containers there are: those of Python and those that were registered."""

    def is_node(self, typ: type) -> bool:
        """Whether a class is one of containers."""
        return is_tree_node(typ)

    def flatten(self, tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
        """The leaves of a tree, and its structure."""
        return tree_flatten(tree, is_leaf)

    def flatten_with_path(self, tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
        """The leaves, each with the keys that lead to it, and the structure."""
        return tree_flatten_with_path(tree, is_leaf)

    def flatten_one_level(self, tree: Any) -> tuple[tuple[Any, ...], Hashable] | None:
        """The children of a container; None of a leaf."""
        return flatten_one_level(tree) if tree is None or is_tree_node(type(tree)) else None

    def register_node(self, *args: Any, **options: Any) -> None:
        """``register_pytree_node``."""
        register_pytree_node(*args, **options)


default_registry = PyTreeRegistry()


def register_dataclass(
    nodetype: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]:
    """``mw.tree.register_dataclass``."""
    return trees.register_dataclass(nodetype, data_fields, meta_fields, drop_fields)


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures below the outermost container.

    >>> len(treedef_children(tree_structure([1, (2, 3)])))
    2
    """
    return list(treedef.children())


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is that of a leaf."""
    return treedef.num_nodes == 1


def treedef_tuple(treedefs: Sequence[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees.

    >>> treedef_tuple([tree_structure(1), tree_structure([2])]) == tree_structure((0, [0]))
    True
    """
    return optree.treespec_tuple(list(treedefs), namespace=tree.NAMESPACE)


class Partial(functools.partial):  # type: ignore[type-arg]
    """``functools.partial`` as a container: its arguments are children, so that it can be given to a jitted function.

    >>> import meshwright.jax as jax
    >>> float(jax.jit(lambda f, x: f(x))(Partial(jax.numpy.add, 1.0), 2.0))
    3.0
    """


trees._register(
    Partial,
    lambda x: ([x.args, x.keywords], x.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
    "Partial",
)

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "default_registry",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

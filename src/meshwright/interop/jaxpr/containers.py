"""Containers that JAX knows (of flax, equinox, or ``jax.tree_util.register_dataclass``), as containers here."""

from __future__ import annotations

from typing import Any

import optree

from meshwright.core import tree


def register_containers(*trees: Any) -> None:
    """Make the classes of containers in these trees, which JAX knows, known here: ``mw.jit``, ``mw.grad`` and
    ``mw.tree`` then look into them as JAX does.

    >>> import dataclasses, jax, meshwright as mw
    >>> @jax.tree_util.register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     weight: object
    >>> register_containers(Layer(1.0))
    >>> mw.tree.map(lambda x: x + 1, [Layer(1.0)])[0].weight
    2.0
    """
    import jax

    theirs: Any = jax.tree_util
    while new := {type(leaf) for leaf in tree.leaves(trees) if not theirs.all_leaves([leaf])}:
        for cls in new:
            _register(cls)


def _register(cls: type) -> None:
    import jax

    def flatten(x: Any) -> tuple[list[Any], Any, tuple[str, ...]]:
        """The children of one container, what it is besides, and what its children are called."""
        found, container = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
        names = tuple(jax.tree_util.keystr(path, simple=True) for path, _ in found)
        return [child for _, child in found], container, names

    optree.register_pytree_node(
        cls,
        flatten,  # type: ignore[arg-type]
        lambda container, children: jax.tree_util.tree_unflatten(container, children),
        path_entry_type=optree.GetAttrEntry,
        namespace=tree.NAMESPACE,
    )

"""``jax.flatten_util``: a tree of arrays as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from meshwright import numpy as mnp
from meshwright.core import dtypes, tree
from meshwright.core.source import here
from meshwright.errors import ShapeError


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All elements of a tree of arrays in one vector, and the function from such a vector to the tree.

    >>> flat, back = ravel_pytree({"a": mnp.ones((2, 2)), "b": 3.0})
    >>> flat.tolist(), back(flat + 1)["b"].item()
    ([1.0, 1.0, 1.0, 1.0, 3.0], 4.0)
    """
    leaves, structure = tree.flatten(pytree)
    arrays = [mnp.asarray(x) for x in leaves]
    if not arrays:
        return mnp.zeros(0), lambda flat: tree.unflatten(structure, [])
    dtype = mnp.result_type(*leaves)
    flat = mnp.concatenate([mnp.ravel(x).astype(dtype) for x in arrays])
    places = list(pairwise(accumulate((x.size for x in arrays), initial=0)))

    def back(given: Any) -> Any:
        vector = mnp.asarray(given)
        if vector.shape != flat.shape or dtypes.promote((vector.dtype, False), (dtype, False))[0] != dtype:
            raise ShapeError(
                f"A vector {vector.type.short()} is not one of {flat.type.short()}.",
                where=here(),
                why="it becomes a tree of the arrays that ravel_pytree was given",
                fix=f"an array of shape {flat.shape} and dtype {dtype}",
            )
        parts = [vector[low:high].reshape(x.shape) for (low, high), x in zip(places, arrays, strict=True)]
        return tree.unflatten(structure, [part.astype(x.dtype) for part, x in zip(parts, arrays, strict=True)])

    return flat, back

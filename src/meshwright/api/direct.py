"""Loops and branches run at once, as Python would: what ``lax`` does inside a kernel, whose body runs on values.

There the functions given to ``cond`` and the loops may read and write memory, so they are called, not traced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshwright.arrays import scalars
from meshwright.arrays.tracing import leaf_value
from meshwright.core import dtypes, tree
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError, TreeError
from meshwright.ops.basic import broadcast_in_dim, convert
from meshwright.ops.shape import concatenate

Function = Callable[..., Any]


class MeshPosition(Protocol):
    """Where the running body is on its mesh."""

    def axis_index(self, axis_name: Any) -> Any:
        """Its position along a mesh axis, or along several together."""

    def axis_size(self, axis_name: Any) -> int:
        """The size of a mesh axis, or of several together."""


class _DirectState(threading.local):
    place: MeshPosition | None = None  # set while a kernel runs


state = _DirectState()


def _leaves(x: Any, what: str) -> Any:
    return tree.map(lambda leaf: leaf_value(leaf, what), x)


def choose(index: Any, branches: Sequence[Function], operands: Sequence[Any], what: str) -> Any:
    """Call the branch that ``index`` names, clamped into range."""
    chosen: Any = leaf_value(index, f"the index of {what}")
    number = min(max(int(chosen), 0), len(branches) - 1)
    return _leaves(branches[number](*operands), f"a result of {what}")


def repeat(test: Function, body: Function, start: Any, what: str) -> Any:
    """``val = body(val)`` while ``test(val)``."""
    carry = _leaves(start, f"the carry of {what}")
    while bool(test(carry)):
        carry = _next(carry, body(carry), what)
    return carry


def count(lower: Any, upper: Any, body: Function, start: Any) -> Any:
    """``val = body(i, val)`` for i from ``lower`` to ``upper``."""
    carry = _leaves(start, "the carry of fori_loop")
    for i in range(int(lower), int(upper)):
        carry = _next(carry, body(integer(i), carry), "fori_loop")
    return carry


def rows(f: Function, start: Any, xs: Any, steps: int, reverse: bool) -> tuple[Any, Any]:
    """``carry, y = f(carry, x)`` over the rows of ``xs``."""
    carry = _leaves(start, "the carry of scan")
    arrays = _leaves(xs, "a scanned array")
    found: list[Any] = [None] * steps
    for i in reversed(range(steps)) if reverse else range(steps):
        after, y = f(carry, tree.map(lambda x, i=i: x[i], arrays))
        carry = _next(carry, after, "scan")
        found[i] = _leaves(y, "a result of scan")
    if not steps:
        raise ShapeError(
            "scan in a kernel has no steps.",
            where=here(),
            why="the shapes of its results are known from running it",
            fix="run the loop only where there are steps: pl.when(n > 0)",
        )
    return carry, tree.map(_stacked, found[0], *found[1:])


def _stacked(*ys: Value) -> Value:
    rows = [broadcast_in_dim(y, shape=(1, *y.shape), dims=tuple(range(1, y.ndim + 1))) for y in ys]
    found: Value = concatenate(*rows, dim=0)
    return found


def _next(before: Any, after: Any, what: str) -> Any:
    """The carry for the next step; a Python number takes the dtype that the body gives it."""
    after = _leaves(after, f"the carry of {what}")
    if tree.structure(before) != tree.structure(after):
        raise TreeError(
            f"The body of {what} returns another structure than it takes.",
            where=here(),
            why=f"it takes {tree.structure(before)} and returns {tree.structure(after)}",
            fix="return a carry with the same containers and keys as the initial one",
        )
    return tree.map(lambda a, b: _same_type(a, b, what), before, after)


def _same_type(before: Value, after: Value, what: str) -> Value:
    if before.type is after.type or (before.shape == after.shape and before.type.weak):
        return after
    if before.shape == after.shape and (before.dtype == after.dtype or after.type.weak):
        return convert(after, dtype=before.dtype, weak=False)  # type: ignore[no-any-return]
    raise ShapeError(
        f"The body of {what} changes the type of its carry: it takes {before.type} and returns {after.type}.",
        where=here(),
        why="every step must return a carry of the type it was given",
        fix=f"carry.astype('{before.dtype.name}') in the body",
    )


def integer(value: int) -> Array:
    """An integer of the default dtype."""
    dtype = dtypes.default_int()
    if dtype == scalars.INDEX.dtype and -(1 << 31) <= value < 1 << 31:
        return scalars.small(value)
    return Array(np.asarray(value, dtype), TensorType((), dtype))

"""``lax.associative_scan``: running combinations by any associative function, in logarithmic depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.arrays.operands import axis_of, value
from meshwright.arrays.static import static_flag
from meshwright.arrays.tracing import check_function
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.shapes import concatenate, cut, flip
from meshwright.ops import basic
from meshwright.ops.shape import pad

Combine = Callable[[list[Value], list[Value]], list[Value]]


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """``elems[0], fn(elems[0], elems[1]), …`` along a dim, or from its end, for an associative ``fn`` of whole slices.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.lax.associative_scan(mnp.add, mnp.arange(5))
    Array([ 0,  1,  3,  6, 10], dtype=int32)
    """
    reverse = static_flag(reverse, "reverse of lax.associative_scan")
    check_function(fn, "associative_scan", "lax.associative_scan(lax.add, x)")
    leaves, structure = tree.flatten(elems)
    values = [value(x) for x in leaves]
    dims = [axis_of(axis, x.ndim, "lax.associative_scan") for x in values]
    lengths = {x.shape[d] for x, d in zip(values, dims, strict=True)}
    if len(lengths) != 1:
        raise ShapeError(
            f"lax.associative_scan cannot take lengths {sorted(lengths)}.",
            where=here(),
            why="all arrays have one length along the dim that is scanned",
            fix=f"axis={axis} of one size",
        )

    def combine(left: list[Value], right: list[Value]) -> list[Value]:
        out = fn(tree.unflatten(structure, left), tree.unflatten(structure, right))
        found = [value(x) for x in tree.leaves(out)]
        if tree.structure(out) != structure or any(a.shape != b.shape for a, b in zip(found, left, strict=True)):
            raise ShapeError(
                "The function given to lax.associative_scan does not return what it takes.",
                where=here(),
                why=f"it takes {', '.join(x.type.short() for x in left)} and returns "
                f"{', '.join(x.type.short() for x in found) or 'nothing'}",
                fix="lax.associative_scan(lax.add, x)",
            )
        return found

    if reverse:
        values = [flip(x, d) for x, d in zip(values, dims, strict=True)]
    found = _prefixes(combine, values, dims)
    if reverse:
        found = [flip(x, d) for x, d in zip(found, dims, strict=True)]
    return tree.unflatten(structure, found)


def _prefixes(
    combine: Callable[[list[Value], list[Value]], list[Value]], xs: list[Value], dims: list[int]
) -> list[Value]:
    """Pairs are combined, the prefixes of the pairs found, and the elements between them filled in."""
    n = xs[0].shape[dims[0]]
    if n < 2:
        return xs

    def part(values: list[Value], start: int, stop: int, step: int = 1) -> list[Value]:
        return [cut(x, d, start, stop, step) for x, d in zip(values, dims, strict=True)]

    pairs = combine(part(xs, 0, n - 1, 2), part(xs, 1, n, 2))
    odd = _prefixes(combine, pairs, dims)  # the prefixes that end at 1, 3, 5, …
    count = (n - 1) // 2  # how many even places are left after place 0
    first = part(xs, 0, 1)
    if count:
        later = combine(part(odd, 0, count), part(xs, 2, n, 2))
        even = [concatenate([a, b], d) for a, b, d in zip(first, later, dims, strict=True)]
    else:
        even = first
    return [_interleaved(a, b, d) for a, b, d in zip(even, odd, dims, strict=True)]


def _interleaved(even: Value, odd: Value, dim: int) -> Value:
    """``even[0], odd[0], even[1], …`` along a dim; ``even`` may be one longer."""
    n, m = even.shape[dim], odd.shape[dim]
    if n > m:
        none, one = (tuple(k if d == dim else 0 for d in range(odd.ndim)) for k in (0, 1))
        odd = pad(odd, basic.scalar_like(odd, 0), low=none, high=one, interior=none)
    longer = (*even.shape[: dim + 1], 1, *even.shape[dim + 1 :])
    both = concatenate([basic.reshape(x, shape=longer) for x in (even, odd)], dim + 1)
    flat = basic.reshape(both, shape=(*even.shape[:dim], 2 * n, *even.shape[dim + 1 :]))
    return cut(flat, dim, 0, n + m)

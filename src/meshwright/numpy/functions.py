"""Functions of functions in ``meshwright.numpy``: applied along a dim, over broadcast operands, or piece by piece."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.vmap import vmap
from meshwright.arrays.operands import ArrayLike, axis_of, broadcast, broadcast_shapes, convert, value
from meshwright.arrays.static import items_of
from meshwright.arrays.tracing import check_function
from meshwright.core.dtypes import BOOL
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy.logic import either
from meshwright.numpy.shapes import expand_dims, moveaxis
from meshwright.ops import basic


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Value:
    """A function of vectors applied to every one along a dim."""
    check_function(func1d, "apply_along_axis", "mnp.apply_along_axis(f, 0, x)")
    x = value(arr)
    dim = axis_of(axis, x.ndim, "mnp.apply_along_axis")
    rows = moveaxis(x, dim, -1)
    function: Callable[[Value], Any] = lambda row: func1d(row, *args, **kwargs)
    for _ in range(x.ndim - 1):
        function = vmap(function)
    out = value(function(rows))
    new = out.ndim - (x.ndim - 1)
    first = x.ndim - 1
    return moveaxis(out, tuple(range(first, first + new)), tuple(range(dim, dim + new)))


_DIMS = r"\((\w+(,\w+)*)?\)"
_SIGNATURE = rf"{_DIMS}(,{_DIMS})*->{_DIMS}(,{_DIMS})*"


def vectorize(pyfunc: Callable[..., Any], *, excluded: Any = frozenset(), signature: str | None = None) -> Any:
    """A function of scalars (or, by ``signature``, of arrays of fewer dims) that broadcasts over the other dims.

    >>> import meshwright.numpy as mnp
    >>> dot = mnp.vectorize(mnp.dot, signature="(n),(n)->()")
    >>> dot(mnp.ones((4, 1, 3)), mnp.ones((5, 3))).shape
    (4, 5)
    """
    check_function(pyfunc, "vectorize", "mnp.vectorize(f)(x)")
    if signature is not None and not re.fullmatch(_SIGNATURE, str(signature).replace(" ", "")):
        raise ShapeError(
            f"mnp.vectorize cannot read the signature {signature!r}.",
            where=here(),
            why="it names the dims of arguments and results: '(m,n),(n)->(m)'",
            fix="signature='(n),(n)->()'",
        )
    cores = None if signature is None else [_core_rank(part) for part in _arguments(signature)]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = [n for n in range(len(args)) if n not in excluded]
        values = [value(args[n]) for n in chosen]
        ranks = cores or [0] * len(values)
        if len(ranks) != len(values):
            raise ShapeError(
                f"A vectorized function got {len(values)} arguments.",
                where=here(),
                why=f"its signature {signature!r} has {len(ranks)}",
                fix="excluded={…} names those that are passed on as they are",
            )
        loops = [x.shape[: x.ndim - r] for x, r in zip(values, ranks, strict=True)]
        common = broadcast_shapes(*loops) if loops else ()
        if common is None:
            raise ShapeError(
                f"A vectorized function cannot broadcast {', '.join(map(str, loops))}.",
                where=here(),
                why="the dims it loops over must be equal or 1",
                fix="x[:, None] adds a dim of size 1",
            )

        def function(*parts: Any) -> Any:
            given = list(args)
            for n, part in zip(chosen, parts, strict=True):
                given[n] = part
            return pyfunc(*given, **kwargs)

        # From the innermost loop outwards: an argument without the dim, or with size 1, is the same for all.
        for d in range(len(common)):
            place = -1 - d
            axes = [0 if -place <= len(s) and s[place] != 1 else None for s in loops]
            if any(a == 0 for a in axes):
                function = vmap(function, in_axes=tuple(axes))
        squeezed = [
            basic.reshape(x, shape=tuple(n for n in s if n != 1) + x.shape[len(s) :])
            for x, s in zip(values, loops, strict=True)
        ]
        out = function(*squeezed)
        return _with_loops(out, common)

    return wrapped


def _with_loops(out: Any, common: tuple[int, ...]) -> Any:
    """Results with the loop dims of size 1 that no vmap made."""
    if isinstance(out, tuple):
        return tuple(_with_loops(x, common) for x in out)
    out = value(out)
    kept = sum(n != 1 for n in common)
    return basic.reshape(out, shape=common + out.shape[kept:])


def _arguments(signature: str) -> list[str]:
    return signature.replace(" ", "").split("->")[0].strip("()").split("),(")


def _core_rank(part: str) -> int:
    return len([name for name in part.split(",") if name])


def apply_over_axes(func: Callable[..., Any], a: ArrayLike, axes: Sequence[int]) -> Value:
    """A function of an array and an axis applied to one axis after the other, each kept with size 1.

    >>> import meshwright.numpy as mnp
    >>> mnp.apply_over_axes(mnp.sum, mnp.ones((2, 3, 4)), (0, 2)).shape
    (1, 3, 1)
    """
    check_function(func, "apply_over_axes", "mnp.apply_over_axes(mnp.sum, x, (0, 1))")
    x = value(a)
    rank = x.ndim
    for axis in items_of(axes, "mnp.apply_over_axes") if not isinstance(axes, int) else [axes]:
        dim = axis_of(axis, rank, "mnp.apply_over_axes")
        found = value(func(x, dim))
        x = expand_dims(found, dim) if found.ndim == rank - 1 else found
        if x.ndim != rank:
            raise ShapeError(
                f"mnp.apply_over_axes got {found.type.short()} of its function.", where=here(),
                why=f"the function leaves out one dim of {rank}, or keeps it",
                fix="mnp.apply_over_axes(mnp.sum, x, (0, 1))",
            )  # fmt: skip
    return x


def piecewise(x: ArrayLike, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Value:
    """At each element the function, or number, of the last condition that holds; one more is for where none does.

    >>> import meshwright.numpy as mnp
    >>> mnp.piecewise(mnp.array([-2.0, 3.0]), [mnp.array([True, False])], [0.0, lambda x: 2 * x])
    Array([0., 6.], dtype=float32)
    """
    points = value(x)
    conditions = _conditions(condlist)
    functions = items_of(funclist, "mnp.piecewise")
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ShapeError(
            f"mnp.piecewise got {len(conditions)} conditions and {len(functions)} functions.", where=here(),
            why="there is one function for each condition, and perhaps one for where none holds",
            fix="mnp.piecewise(x, [x < 0, x > 0], [-1, 1, 0])",
        )  # fmt: skip
    if len(functions) == len(conditions):
        functions = [*functions, 0]
    dtype = points.type.dtype
    pieces = [value(f(points, *args, **kw) if callable(f) else f) for f in functions]
    *pieces, found = (broadcast(convert(piece, dtype), points.shape) for piece in pieces)
    for condition, piece in zip(conditions, pieces, strict=True):
        found = either(condition, piece, found)
    return found


def _conditions(given: Any) -> list[Value]:
    """The conditions of ``piecewise``, items of a list or rows of an array."""
    found = [value(c) for c in items_of(given, "mnp.piecewise")]
    for condition in found:
        if condition.type.dtype != BOOL:
            raise ShapeError(
                f"mnp.piecewise cannot take the condition {condition.type.short()}.", where=here(),
                why="it says of each element whether it holds", fix="x > 0",
            )  # fmt: skip
        if condition.shape != found[0].shape:
            raise ShapeError(
                f"mnp.piecewise cannot take conditions {found[0].type.short()} and {condition.type.short()}.",
                where=here(), why="they are rows of one array, and so of one shape", fix="[x < 0, x > 0]",
            )  # fmt: skip
    return found

"""The part of ``meshwright.lax`` with reductions by a function: of whole dims, and of windows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.api.vmap import vmap
from meshwright.arrays.operands import ArrayLike, axes_of, axis_of, convert, strong, value
from meshwright.arrays.static import placed, static_flag, static_int, static_shape
from meshwright.arrays.tracing import check_function
from meshwright.core import dtypes, tree
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError, TreeError
from meshwright.lax import elementwise as lax
from meshwright.lax.convolution import dilated, one_per_dim, padding_pairs
from meshwright.lax.shapes import pad, top_k
from meshwright.numpy import arithmetic as numpy_arithmetic
from meshwright.numpy import logic as numpy_logic
from meshwright.numpy.ufuncs import ufunc
from meshwright.ops import basic, elementwise, reduction, window
from meshwright.ops.shape import concatenate, slice_

# Combinations that there are ops for


def _named(computation: Any) -> str | None:
    """Which combination a function is, if there is an op that reduces by it."""
    known = {
        "add": (lax.add, numpy_arithmetic.add, operator.add),
        "mul": (lax.mul, numpy_arithmetic.multiply, operator.mul),
        "max": (lax.max, numpy_arithmetic.maximum),
        "min": (lax.min, numpy_arithmetic.minimum),
        "and": (lax.bitwise_and, numpy_logic.bitwise_and, numpy_logic.logical_and, operator.and_),
        "or": (lax.bitwise_or, numpy_logic.bitwise_or, numpy_logic.logical_or, operator.or_),
    }
    function = computation.function if isinstance(computation, ufunc) else computation
    for name, functions in known.items():
        if any(function is f for f in functions):
            return name
    return None


_COMBINE: dict[str, Op] = {
    "add": basic.add,
    "mul": basic.mul,
    "max": elementwise.maximum,
    "min": elementwise.minimum,
    "and": elementwise.and_,
    "or": elementwise.or_,
}
_REDUCE: dict[str, Op] = {
    "add": basic.reduce_sum,
    "mul": reduction.reduce_prod,
    "max": reduction.reduce_max,
    "min": reduction.reduce_min,
    "and": reduction.reduce_and,
    "or": reduction.reduce_or,
}
_WINDOW: dict[str, Op] = {
    "add": window.reduce_window_sum,
    "max": window.reduce_window_max,
    "min": window.reduce_window_min,
}


def _is_neutral(init: Value, name: str) -> bool:
    """Whether a start value changes nothing; a traced one may."""
    data = getattr(init, "_data", None)
    if data is None:
        return False
    dtype = init.type.dtype
    if name in ("max", "min") and dtype != dtypes.BOOL:
        edge = window.lowest(dtype) if name == "max" else window.highest(dtype)
        return bool(np.asarray(data) == np.asarray(edge, dtype))
    neutral = {"add": 0, "mul": 1, "max": False, "min": True, "and": True if dtype == dtypes.BOOL else -1, "or": 0}
    return bool(np.asarray(data) == np.asarray(neutral[name]).astype(dtype))


def _start(init: ArrayLike, x: Value, name: str) -> Value:
    """What a reduction starts from: one number of the dtype of the array."""
    found = value(init)
    if found.ndim or (found.type.dtype != x.type.dtype and not found.type.weak):
        raise ShapeError(
            f"{name} of {x.type.short()} cannot start from {found.type.short()}.",
            where=here(),
            why="it starts from one number of the dtype of the array",
            fix="init.astype(x.dtype)",
        )
    return convert(found, x.type.dtype)


# Any function


def _combining(computation: Any, what: str, container: Any) -> Callable[[list[Value], list[Value]], list[Value]]:
    """A function of two trees of numbers as one of two lists of arrays, element by element."""
    check_function(computation, what, f"{what}(x, init, lax.add, ...)")

    def combine(xs: list[Value], ys: list[Value]) -> list[Value]:
        one: Any = lambda a, b: computation(tree.unflatten(container, a), tree.unflatten(container, b))
        for _ in range(xs[0].ndim):
            one = vmap(one)
        found = one(xs, ys)
        leaves = [value(x) for x in tree.leaves(found)]
        made, wanted = ([TensorType(x.shape[xs[0].ndim :], x.dtype).short() for x in some] for some in (leaves, xs))
        if tree.structure(found) != container or made != wanted:
            raise TreeError(
                f"The function of {what} returns {tree.structure(found)} of {made}.",
                where=here(),
                why=f"two of {container} of {wanted} are combined into one of them",
                fix="return what the arguments are",
            )
        return leaves

    return combine


def _part(x: Value, start: int, stop: int) -> Value:
    """Rows of an array."""
    rest = (0,) * (x.ndim - 1)
    return slice_(x, starts=(start, *rest), limits=(stop, *x.shape[1:]), strides=(1,) * x.ndim)


def _halved(rows: list[Value], combine: Callable[..., list[Value]]) -> list[Value]:
    """The combination of all rows, taken in pairs: as many steps as the count has digits in base two."""
    count = rows[0].shape[0]
    while count > 1:
        half = count // 2
        joined = combine([_part(x, 0, half) for x in rows], [_part(x, half, 2 * half) for x in rows])
        if count % 2:
            odd = [_part(x, count - 1, count) for x in rows]
            joined = [concatenate(x, y, dim=0) for x, y in zip(joined, odd, strict=True)]
        rows, count = joined, half + count % 2
    return [basic.reshape(x, shape=x.shape[1:]) for x in rows]


def _starts(init_values: Any, xs: list[Value], container: Any, name: str) -> list[Value]:
    given = tree.leaves(init_values)
    if tree.structure(init_values) != container:
        raise TreeError(
            f"{name} of {container} cannot start from {tree.structure(init_values)}.",
            where=here(),
            why="it starts from one number for each array",
            fix="init values in the containers that the arrays are in",
        )
    return [_start(init, x, name) for init, x in zip(given, xs, strict=True)]


def reduce(
    operands: Any, init_values: Any, computation: Any, dimensions: Sequence[int], out_sharding: Any = None
) -> Any:
    """The elements over ``dimensions`` combined by a function of two numbers, starting from ``init_values``.

    The order of the combinations is not said. Several arrays of one shape, in containers, are reduced together by a
    function of two such containers.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> float(lax.reduce(mnp.array([3.0, 4.0]), 0.0, lambda a, b: mnp.hypot(a, b), (0,)))
    5.0
    """
    xs = [value(x) for x in tree.leaves(operands)]
    container = tree.structure(operands)
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(
            f"lax.reduce cannot take {', '.join(x.type.short() for x in xs) or 'no arrays'}.",
            where=here(),
            why="arrays that are reduced together have one shape",
            fix="mnp.broadcast_arrays(x, y)",
        )
    axes = axes_of(static_shape(dimensions, "a dim of lax.reduce"), xs[0].ndim, "lax.reduce")
    inits = _starts(init_values, xs, container, "lax.reduce")
    name = _named(computation) if container == tree.structure(0.0) else None
    if name is not None:
        out = _REDUCE[name](xs[0], axes=axes)
        out = out if _is_neutral(inits[0], name) else _COMBINE[name](out, inits[0])
        return placed(_as_weak_as_both(out, xs[0], inits[0]), None, out_sharding)
    combine = _combining(computation, "lax.reduce", container)
    kept = tuple(d for d in range(xs[0].ndim) if d not in axes)
    shape = tuple(xs[0].shape[d] for d in kept)
    begin = [basic.broadcast_in_dim(init, shape=shape, dims=()) for init in inits]
    count = prod(xs[0].shape[d] for d in axes)
    if count:
        rows = [basic.reshape(basic.transpose(x, permutation=(*axes, *kept)), shape=(count, *shape)) for x in xs]
        begin = combine(begin, _halved(rows, combine))
    found = [_as_weak_as_both(out, x, init) for out, x, init in zip(begin, xs, inits, strict=True)]
    return tree.unflatten(container, [placed(x, None, out_sharding) for x in found])


def _as_weak_as_both(out: Value, x: Value, init: Value) -> Value:
    """A result whose dtype yields to others if those of the array and of what it starts from do, whatever a function
    returned."""
    weak = x.type.weak and init.type.weak
    return out if out.type.weak == weak else basic.convert(out, dtype=out.type.dtype, weak=weak)


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Value:
    """The bits that are set in an odd number of elements over ``axes``; of truth values, whether an odd number holds.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> int(lax.reduce_xor(mnp.array([5, 6, 4]), (0,)))
    7
    """
    x = value(operand)
    found: Value = reduce(x, np.zeros((), x.dtype), lax.bitwise_xor, axes)
    return found


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """The elements of every window combined by ``lax.add``, ``lax.max`` or another function of two numbers: pooling.

    Several arrays of one shape, in containers, are combined by a function of two such containers.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.reduce_window(mnp.arange(6.0), -mnp.inf, lax.max, (2,), (2,), "VALID")
    Array([1., 3., 5.], dtype=float32)
    """
    xs = [value(x) for x in tree.leaves(operand)]
    x, container = xs[0], tree.structure(operand)
    inits = _starts(init_value, xs, container, "lax.reduce_window")
    widths, strides = static_shape(window_dimensions, "a window"), static_shape(window_strides, "a stride")
    spread = (1,) * x.ndim if base_dilation is None else static_shape(base_dilation, "a dilation")
    holes = (1,) * x.ndim if window_dilation is None else static_shape(window_dilation, "a dilation")
    settings = {
        "window_dimensions": widths,
        "window_strides": strides,
        "base_dilation": spread,
        "window_dilation": holes,
    }
    for what, given in settings.items():
        one_per_dim("lax.reduce_window", what, given, x.ndim)
    reach = [dilated(n, d) for n, d in zip(widths, holes, strict=True)]
    pads = padding_pairs(padding, x.shape, reach, strides)  # by name, those of the array without holes
    name = _named(computation) if container == tree.structure(0.0) else None
    op = _WINDOW.get(name) if name is not None else None
    if name is not None and op is not None:
        params = {"window": widths, "strides": strides, "padding": pads}
        out = op(x, base_dilation=spread, window_dilation=holes, **params)
        return out if _is_neutral(inits[0], name) else _COMBINE[name](out, inits[0])
    combine = _combining(computation, "lax.reduce_window", container)
    config = [(low, high, n - 1) for (low, high), n in zip(pads, spread, strict=True)]
    padded = [pad(x, init, config) for x, init in zip(xs, inits, strict=True)]
    sizes = [max(0, (n - r) // s + 1) for n, r, s in zip(padded[0].shape, reach, strides, strict=True)]
    found = [basic.broadcast_in_dim(init, shape=tuple(sizes), dims=()) for init in inits]
    if prod(sizes):
        for place in np.ndindex(*widths):  # the n-th element of every window, for each n
            first = tuple(n * d for n, d in zip(place, holes, strict=True))
            last = tuple(f + (n - 1) * s + 1 for f, n, s in zip(first, sizes, strides, strict=True))
            found = combine(found, [slice_(x, starts=first, limits=last, strides=strides) for x in padded])
    return tree.unflatten(container, [strong(x) for x in found])


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape of a ``reduce_window``.

    >>> from meshwright import lax
    >>> lax.reduce_window_shape_tuple((8,), (3,), (2,), ((0, 0),))
    (3,)
    """
    shape, ones = static_shape(operand_shape), (1,) * len(operand_shape)
    spread = [dilated(n, d) for n, d in zip(shape, base_dilation or ones, strict=True)]
    reach = [dilated(n, d) for n, d in zip(window_dimensions, window_dilation or ones, strict=True)]
    pads = padding_pairs(padding, spread, reach, window_strides)
    return tuple(
        max(0, (n + sum(pair) - r) // s + 1) for n, pair, r, s in zip(spread, pads, reach, window_strides, strict=True)
    )


# The largest of many


def approx_max_k(
    operand: ArrayLike, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
    reduction_input_size_override: int = -1, aggregate_to_topk: bool = True,
) -> tuple[Value, Value]:  # fmt: skip
    """The ``k`` largest elements along a dim and their places: all of them, which is within any ``recall_target``.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.approx_max_k(mnp.array([1.0, 4.0, 3.0]), 2)[1].tolist()
    [1, 2]
    """
    x = value(operand)
    if not 0 < recall_target <= 1 or not static_flag(aggregate_to_topk, "aggregate_to_topk of lax.approx_max_k"):
        raise ShapeError(
            f"lax.approx_max_k cannot take {recall_target=} and {aggregate_to_topk=}.",
            where=here(),
            why="exactly k elements are found, and a recall is above 0 and at most 1",
            fix="aggregate_to_topk=True, recall_target=0.95",
        )
    axis = axis_of(reduction_dimension, x.ndim, "lax.approx_max_k")
    whole = static_int(reduction_input_size_override, "reduction_input_size_override of lax.approx_max_k")
    if 0 <= whole < x.shape[axis]:
        raise ShapeError(
            f"lax.approx_max_k of {x.shape[axis]} elements cannot take reduction_input_size_override={whole}.",
            where=here(),
            why="they are part of an input of that size, for which the recall is asked",
            fix="reduction_input_size_override=-1",
        )
    return top_k(x, k, axis=axis)


def approx_min_k(
    operand: ArrayLike, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
    reduction_input_size_override: int = -1, aggregate_to_topk: bool = True,
) -> tuple[Value, Value]:  # fmt: skip
    """The ``k`` smallest elements along a dim and their places."""
    least, places = approx_max_k(
        lax.neg(operand), k, reduction_dimension, recall_target, reduction_input_size_override, aggregate_to_topk
    )
    return lax.neg(least), places

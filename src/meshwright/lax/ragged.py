"""Products of matrices whose rows belong to groups, each with a matrix of its own (the experts of a mixture), and of
matrices whose numbers are scaled block by block."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, convert, promoted_values, value
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax.shapes import dot_general
from meshwright.numpy import arange, cumsum, expand_dims, logical_and, repeat, where

DotDims = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


class RaggedDotDimensionNumbers(NamedTuple):
    """The dims of a ragged product: those of ``dot_general``, the dim of the left side whose rows are in groups, and
    the dim of the right side that numbers the groups."""

    dot_dimension_numbers: DotDims
    lhs_ragged_dimensions: tuple[int, ...]
    rhs_group_dimensions: tuple[int, ...]


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Value:
    """The product of each group of rows of ``lhs`` with the matrix of its group in ``rhs``.

    ``lhs`` has ``group_sizes[0]`` rows of the first group, then those of the second, and so on; rows after the last
    group are zero in the result.

    >>> import meshwright.numpy as mnp
    >>> ragged_dot(mnp.ones((3, 2)), mnp.array([[[1.0], [1.0]], [[5.0], [5.0]]]), mnp.array([1, 2])).tolist()
    [[2.0], [10.0], [10.0]]
    """
    x, y = value(lhs), value(rhs)
    if x.ndim != 2 or y.ndim != 3 or x.shape[1] != y.shape[1]:
        raise ShapeError(
            f"ragged_dot cannot take {x.type.short()} and {y.type.short()}.",
            where=here(),
            why="it takes rows [m, k] and a matrix for each group [groups, k, n]",
            fix="lax.ragged_dot(x, w, group_sizes)",
        )
    numbers = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    return ragged_dot_general(x, y, group_sizes, numbers, precision, preferred_element_type, group_offset, out_sharding)


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Value:
    """``dot_general`` of arrays of which one dim of the left side is in groups of ``group_sizes`` rows.

    Where that dim is kept, each group meets its own part of the right side; where it is summed over, the result has a
    sum for each group in front; where it is a batch, groups do not matter.
    """
    x, y = promoted_values(lhs, rhs)
    sizes = value(group_sizes)
    dims, ragged, groups = ragged_dot_dimension_numbers
    (contract, batch) = (tuple(map(tuple, pair)) for pair in dims)
    if len(ragged) != 1 or sizes.ndim != 1 or not dtypes.is_integer(sizes.dtype) or group_offset is not None:
        raise ShapeError(
            f"ragged_dot_general cannot take groups {sizes.type.short()} of the dims {ragged}.",
            where=here(),
            why="one dim is in groups, whose sizes are a vector of integers from the first group on",
            fix="group_sizes=mnp.array([3, 5]), lhs_ragged_dimensions=(0,)",
        )
    dim = ragged[0]
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    if dim in batch[0]:
        return dot_general(x, y, (contract, batch), **options)
    ends = cumsum(sizes)
    places = arange(x.shape[dim], dtype=sizes.dtype)
    inside = logical_and(places >= expand_dims(ends - sizes, 1), places < expand_dims(ends, 1))  # type: ignore[operator]
    shape = [1] * (x.ndim + 1)
    shape[0], shape[dim + 1] = inside.shape
    apart = where(inside.reshape(shape), expand_dims(x, 0), 0)  # type: ignore[attr-defined]
    own = tuple(d + 1 for d in contract[0]), tuple(d + 1 for d in batch[0])
    if dim in contract[0]:
        found = dot_general(apart, y, ((own[0], contract[1]), (own[1], batch[1])), **options)
        place = len(batch[0])  # the groups come after the batch
        return found if not place else found.transpose(place, *range(place), *range(place + 1, found.ndim))  # type: ignore[attr-defined]
    both = ((0, *own[0]), (groups[0], *contract[1]))
    return dot_general(apart, y, (both, (own[1], batch[1])), **options)


def scaled_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    lhs_scale: ArrayLike | None = None,
    rhs_scale: ArrayLike | None = None,
    dimension_numbers: Any = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The product of operands of which each block along the contracted dim is scaled: ``(lhs * lhs_scale) @ (rhs *
    rhs_scale)``, in bf16 unless told otherwise.

    A scale has one number for each block, and so divides the size of the contracted dim; others have the sizes of the
    operand.

    >>> import meshwright.numpy as mnp
    >>> scaled_dot(mnp.ones((1, 4)), mnp.ones((4, 1)), lhs_scale=mnp.array([[2.0, 3.0]])).tolist()
    [[10.0]]
    """
    x, y = value(lhs), value(rhs)
    if dimension_numbers is None:
        batch = tuple(range(x.ndim - 2))
        dimension_numbers = (((x.ndim - 1,), (x.ndim - 2,)), (batch, batch))
    dtype = as_dtype("bfloat16" if preferred_element_type is None else preferred_element_type)
    (left, right), _ = dimension_numbers
    a = _scaled(x, lhs_scale, left, dtype, "lhs_scale")
    b = _scaled(y, rhs_scale, right, dtype, "rhs_scale")
    return dot_general(a, b, dimension_numbers, preferred_element_type=dtype)


def _scaled(x: Value, scale: ArrayLike | None, contracted: Any, dtype: Any, what: str) -> Value:
    wide: Any = convert(x, dtype)
    if scale is None:
        return wide  # type: ignore[no-any-return]
    given: Any = value(scale)
    sizes = enumerate(zip(x.shape, given.shape, strict=False))
    fits = given.ndim == x.ndim and all(n == m or (d in contracted and m and n % m == 0) for d, (n, m) in sizes)
    if not fits:
        raise ShapeError(
            f"scaled_dot cannot take {what} of type {given.type.short()} for {x.type.short()}.",
            where=here(),
            why="a scale has the sizes of its operand, and along the contracted dim one number for each block",
            fix=f"{what}=mnp.ones({x.shape})",
        )
    for dim in contracted:
        given = repeat(given, x.shape[dim] // given.shape[dim], axis=dim)
    return wide * convert(given, dtype)  # type: ignore[no-any-return]

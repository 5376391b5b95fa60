"""The part of ``meshwright.lax`` that makes, rearranges, reduces, sorts and multiplies arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    as_dtype,
    axes_of,
    axis_of,
    convert,
    is_number,
    promote_operands,
    value,
)
from meshwright.arrays.refusals import named_dtype, refuse
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import (
    check_precision,
    items_of,
    laid_out_as,
    no_negative,
    placed,
    static_flag,
    static_int,
    static_shape,
    static_size,
)
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.core.types import Shape
from meshwright.errors import ShapeError
from meshwright.numpy import creation as numpy_creation
from meshwright.numpy import shapes as numpy_shapes
from meshwright.ops import basic, cumulative, reduction, sorting
from meshwright.ops import shape as shape_ops
from meshwright.ops.contraction import dot_general as dot_general_op
from meshwright.ops.layout import whole_along

# Making


def full(shape: Any, fill_value: ArrayLike, dtype: DTypeLike = None, *, sharding: Any = None) -> Value:
    """An array with ``fill_value`` everywhere."""
    _one_fill(fill_value, "full(shape, values)")
    return numpy_creation.full(shape, fill_value, dtype, device=sharding)


def _one_fill(fill_value: ArrayLike, call: str) -> None:
    given = value(fill_value)
    if given.ndim:
        name = "lax." + call.partition("(")[0]
        refuse(name, [given.type], "it fills an array with one number", f"mnp.{call}, which broadcasts")


def full_like(
    x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike = None, shape: Any = None, sharding: Any = None
) -> Value:
    """``fill_value`` everywhere, in the shape and dtype of ``x``."""
    _one_fill(fill_value, "full_like(x, values)")
    return numpy_creation.full_like(x, fill_value, dtype, shape, device=sharding)


def empty(shape: Any, dtype: DTypeLike, *, out_sharding: Any = None) -> Value:
    """An array whose numbers do not matter, which are zeros here."""
    return placed(numpy_creation.zeros(shape, dtype), None, out_sharding)


@compiled_in_kernels
def iota(dtype: DTypeLike, size: int) -> Value:
    """0, 1, …, ``size - 1``."""
    kind = named_dtype(dtype, "dtype of lax.iota")
    return shape_ops.iota(dtype=kind, shape=(static_size(size, "size of lax.iota"),), dim=0)


@compiled_in_kernels
def broadcasted_iota(dtype: DTypeLike, shape: Any, dimension: int, *, out_sharding: Any = None) -> Value:
    """The position along one dim, at every place of ``shape``.

    >>> from meshwright import lax
    >>> lax.broadcasted_iota(int, (2, 3), 1)
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    sizes = static_shape(shape)
    no_negative(sizes, "a size of lax.broadcasted_iota")
    dim = axis_of(dimension, len(sizes), "lax.broadcasted_iota")
    kind = named_dtype(dtype, "dtype of lax.broadcasted_iota")
    return placed(shape_ops.iota(dtype=kind, shape=sizes, dim=dim), None, out_sharding)


# Rearranging


@compiled_in_kernels
def reshape(
    operand: ArrayLike, new_sizes: Any, dimensions: Sequence[int] | None = None, *, out_sharding: Any = None
) -> Value:
    """The elements in another shape, read in the order of ``dimensions``."""
    x = value(operand)
    if dimensions is not None:
        x = transpose(x, dimensions)
    if out_sharding is not None:  # it may ask for what the operand's layout does not say
        x = whole_along(x, range(1, x.ndim))
    return placed(basic.reshape(x, shape=static_shape(new_sizes)), None, out_sharding)


@compiled_in_kernels
def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Value:
    """The dims in another order."""
    return basic.transpose(value(operand), permutation=static_shape(permutation, "a dim of lax.transpose"))


def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out_sharding: Any = None) -> Value:
    """``operand`` repeated along new leading dims."""
    x, lead = value(operand), static_shape(sizes)
    no_negative(lead, "a size of lax.broadcast")
    dims = tuple(range(len(lead), len(lead) + x.ndim))
    return placed(basic.broadcast_in_dim(x, shape=lead + x.shape, dims=dims), None, out_sharding)


@compiled_in_kernels
def broadcast_in_dim(
    operand: ArrayLike, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Value:
    """``operand`` repeated to fill ``shape``; its dims stand at ``broadcast_dimensions`` there."""
    dims = static_shape(broadcast_dimensions, "a dim of lax.broadcast_in_dim")
    sizes = static_shape(shape)
    no_negative(sizes, "a size of lax.broadcast_in_dim")
    found = basic.broadcast_in_dim(value(operand), shape=sizes, dims=dims)
    return placed(found, None, out_sharding)


def squeeze(array: ArrayLike, dimensions: Sequence[int] | int) -> Value:
    """Without some dims of size 1."""
    return numpy_shapes.squeeze(array, static_shape(dimensions, "a dim of lax.squeeze"))


def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Value:
    """With new dims of size 1."""
    return numpy_shapes.expand_dims(array, static_shape(dimensions, "a dim of lax.expand_dims"))


def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Value:
    """Neighbouring dims as one."""
    x = value(operand)
    start = axis_of(start_dimension, x.ndim, "lax.collapse")
    stop = x.ndim if stop_dimension is None else static_int(stop_dimension, "stop_dimension of lax.collapse")
    stop = stop + x.ndim if stop < 0 else stop
    if stop <= start:
        raise ShapeError(
            f"lax.collapse cannot take dims {start} to {stop} of {x.type.short()}.",
            where=here(),
            why="it makes one dim of one or more, the last of which stands before stop_dimension",
            fix=f"stop_dimension={start + 1}",
        )
    shape = (*x.shape[:start], prod(x.shape[start:stop]), *x.shape[stop:])
    return basic.reshape(x, shape=shape)


def broadcast_to_rank(x: ArrayLike, rank: int) -> Value:
    """``x`` with dims of size 1 in front, so that it has ``rank`` dims."""
    given, ndim = value(x), static_int(rank, "rank of lax.broadcast_to_rank")
    if ndim < given.ndim:
        raise ShapeError(
            f"lax.broadcast_to_rank cannot take {given.type.short()} to rank {ndim}.",
            where=here(),
            why="it adds dims and takes none away",
            fix="x.reshape(-1)",
        )
    return basic.reshape(given, shape=(1,) * (ndim - given.ndim) + given.shape)


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Value:
    """``arr`` repeated to the shape of ``like_arr``, placed on devices as that is.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.broadcast_like(mnp.arange(2), mnp.zeros((3, 2))).shape
    (3, 2)
    """
    like = value(like_arr)
    found = numpy_shapes.broadcast_to(arr, like.shape)
    return placed(found, None, like.type.sharding)


def tile(operand: ArrayLike, reps: Sequence[int]) -> Value:
    """``operand`` repeated along each of its dims, as often as ``reps`` says for it."""
    x, times = value(operand), static_shape(reps, "reps of lax.tile")
    if len(times) != x.ndim:
        raise ShapeError(
            f"lax.tile cannot take {x.type.short()} with reps={times}.",
            where=here(),
            why="reps has one number for each dim",
            fix="mnp.tile(x, reps), which adds dims",
        )
    return numpy_shapes.tile(x, times)


def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Value:
    """Arrays of one shape and dtype side by side along a new dim.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.stack([mnp.zeros(2), mnp.ones(2)], 1).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    xs = [value(x) for x in items_of(operands, "lax.stack")]
    if not xs or any((x.shape, x.dtype) != (xs[0].shape, xs[0].dtype) for x in xs):
        raise ShapeError(
            f"lax.stack cannot take {', '.join(x.type.short() for x in xs) or 'no arrays'}.",
            where=here(),
            why="they have one shape and one dtype",
            fix="mnp.stack(xs), which promotes; lax.concatenate",
        )
    return numpy_shapes.stack(xs, axis)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Value, ...]:
    """The slices of ``x`` along a dim, without it.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> [int(x) for x in lax.unstack(mnp.arange(3))]
    [0, 1, 2]
    """
    return tuple(numpy_shapes.unstack(x, axis=axis))


def concatenate(operands: Sequence[ArrayLike], dimension: int) -> Value:
    """The arrays one after another along a dim."""
    parts = [value(x) for x in items_of(operands, "lax.concatenate")]
    if not parts:
        raise ShapeError("lax.concatenate got no arrays.", where=here(), why="it joins one or more", fix="mnp.zeros(0)")
    dim = axis_of(dimension, parts[0].ndim, "lax.concatenate")
    return parts[0] if len(parts) == 1 else shape_ops.concatenate(*parts, dim=dim)


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    """An array cut along a dim into parts of the given sizes."""
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.split")
    lengths = static_shape(sizes, "a size of lax.split")
    no_negative(lengths, "a size of lax.split")
    edges = [0, *accumulate(lengths)]
    if edges[-1] != x.shape[dim]:
        raise ShapeError(
            f"lax.split cannot cut {x.type.short()} along dim {dim} into {lengths}.",
            where=here(),
            why=f"the sizes add up to {edges[-1]}, and the dim has {x.shape[dim]}",
            fix="sizes that add up to the size of the dim",
        )
    return tuple(numpy_shapes.cut(x, dim, a, b) for a, b in pairwise(edges))


def pad(operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[tuple[int, int, int]]) -> Value:
    """``operand`` with ``padding_value`` before, after and between neighbours; negative widths cut off."""
    x = value(operand)
    config = [static_shape(entry, "a width of lax.pad") for entry in items_of(padding_config, "lax.pad")]
    if len(config) != x.ndim or any(len(entry) != 3 for entry in config):
        raise ShapeError(
            f"lax.pad cannot take padding_config={padding_config!r} for {x.type.short()}.",
            where=here(),
            why="there is one (before, after, between) for each dim",
            fix=f"padding_config={[(0, 0, 0)] * x.ndim}",
        )
    fill_dtype = x.type.dtype if is_number(padding_value) else value(padding_value).type.dtype
    if fill_dtype != x.type.dtype:
        types = [x.type, value(padding_value).type]
        refuse("lax.pad", types, "operand and padding_value have one dtype", "padding_value.astype(operand.dtype)")
    low, high, interior = (tuple(entry[n] for entry in config) for n in range(3))
    fill = convert(value(padding_value), x.type.dtype, weak=is_number(padding_value))
    return shape_ops.pad(x, fill, low=low, high=high, interior=interior)


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Value:
    """In reverse order along some dims."""
    x = value(operand)
    return shape_ops.reverse(x, dims=axes_of(dims_of(dimensions, "lax.rev"), x.ndim, "lax.rev"))


# Reductions


def _reduction(op: Op, operand: ArrayLike, axes: Sequence[int]) -> Value:
    x = value(operand)
    name = f"lax.{op.name}"
    return apply(op, (x,), {"axes": axes_of(dims_of(axes, name), x.ndim, name)})


def dims_of(dims: Any, name: str) -> Shape:
    """Dims as a tuple, from one or several; lax knows no None for all."""
    return static_shape(dims, f"a dim of {name}")


def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out_sharding: Any = None) -> Value:
    """The sum over ``axes``."""
    return placed(_reduction(basic.reduce_sum, operand, axes), None, out_sharding)


def reduce_prod(operand: ArrayLike, axes: Sequence[int]) -> Value:
    """The product over ``axes``."""
    return _reduction(reduction.reduce_prod, operand, axes)


def reduce_max(operand: ArrayLike, axes: Sequence[int], *, out_sharding: Any = None) -> Value:
    """The largest element over ``axes``."""
    return placed(_reduction(reduction.reduce_max, operand, axes), None, out_sharding)


def reduce_min(operand: ArrayLike, axes: Sequence[int], *, out_sharding: Any = None) -> Value:
    """The smallest element over ``axes``."""
    return placed(_reduction(reduction.reduce_min, operand, axes), None, out_sharding)


def reduce_and(operand: ArrayLike, axes: Sequence[int]) -> Value:
    """Whether all elements hold over ``axes``, or their common bits."""
    return _reduction(reduction.reduce_and, operand, axes)


def reduce_or(operand: ArrayLike, axes: Sequence[int]) -> Value:
    """Whether some element holds over ``axes``, or all their bits."""
    return _reduction(reduction.reduce_or, operand, axes)


def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Value:
    """The place of the first largest element along ``axis``."""
    x = value(operand)
    return reduction.argmax(x, axis=axis_of(axis, x.ndim, "lax.argmax"), dtype=as_dtype(index_dtype))


def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Value:
    """The place of the first smallest element along ``axis``."""
    x = value(operand)
    return reduction.argmin(x, axis=axis_of(axis, x.ndim, "lax.argmin"), dtype=as_dtype(index_dtype))


def _scan(op: Op, operand: ArrayLike, axis: int, reverse: bool) -> Value:
    x = value(operand)
    return op(x, axis=axis_of(axis, x.ndim, f"lax.{op.name}"), reverse=bool(reverse))


def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The sums up to each place."""
    reverse = static_flag(reverse, "reverse of lax.cumsum")
    return _scan(cumulative.cumsum, operand, axis, reverse)


def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The products up to each place."""
    reverse = static_flag(reverse, "reverse of lax.cumprod")
    return _scan(cumulative.cumprod, operand, axis, reverse)


def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The largest elements up to each place."""
    reverse = static_flag(reverse, "reverse of lax.cummax")
    return _scan(cumulative.cummax, operand, axis, reverse)


def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The smallest elements up to each place."""
    reverse = static_flag(reverse, "reverse of lax.cummin")
    return _scan(cumulative.cummin, operand, axis, reverse)


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The logarithms of the sums of exponentials up to each place."""
    reverse = static_flag(reverse, "reverse of lax.cumlogsumexp")
    return _scan(cumulative.cumlogsumexp, operand, axis, reverse)


# Sorting


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """An array sorted along a dim, or several sorted together by the first ``num_keys`` of them."""
    static_flag(is_stable, "is_stable of lax.sort")
    several = isinstance(operand, list | tuple)
    arrays = [value(x) for x in operand] if several else [value(operand)]
    if not arrays:
        raise ShapeError("lax.sort got no arrays.", where=here(), why="it sorts one or more", fix="lax.sort(x)")
    num_keys = static_int(num_keys, "num_keys of lax.sort")
    dim = axis_of(dimension, arrays[0].ndim, "lax.sort")
    outs = sorting.sort(*arrays, dim=dim, num_keys=static_int(num_keys, "num_keys of lax.sort"))
    outs = outs if isinstance(outs, tuple) else (outs,)
    return tuple(outs) if several else outs[0]


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Value, Value]:
    """``keys`` sorted along a dim, and ``values`` in the same order."""
    static_flag(is_stable, "is_stable of lax.sort_key_val")
    ordered, moved = sort((keys, values), dimension, is_stable)
    return ordered, moved


def top_k(operand: ArrayLike, k: int, *, axis: int = -1, is_stable: bool = True) -> tuple[Value, Value]:
    """The ``k`` largest elements along a dim, largest first, and their places.

    Of equal elements the first ones are taken first, also where that is not asked for (``is_stable=False``).

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.top_k(mnp.array([1.0, 4.0, 3.0]), 2)[1]
    Array([1, 2], dtype=int32)
    """
    static_flag(is_stable, "is_stable of lax.top_k")
    x = value(operand)
    dim = axis_of(axis, x.ndim, "lax.top_k")
    last = x.ndim - 1
    found = sorting.top_k(basic.move_dim(x, dim, last), k=static_int(k, "k of lax.top_k"))
    largest, places = (basic.move_dim(v, last, dim) for v in found)
    return largest, places


# Products


def _two_pairs(numbers: Any) -> Any:
    """Dimension numbers of a product, refused unless they are pairs of sequences."""
    try:
        (a, b), (c, d) = numbers
        if all(hasattr(dims, "__iter__") for dims in (a, b, c, d)):
            return (a, b), (c, d)
    except (TypeError, ValueError):
        pass
    raise ShapeError(
        f"lax.dot_general cannot take dimension_numbers={numbers!r}.",
        where=here(),
        why="they are ((contracted of x, contracted of y), (batch of x, batch of y)), each a sequence of dims",
        fix="(((1,), (0,)), ((), ())) for a product of matrices",
    )


@compiled_in_kernels
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    *,
    out_sharding: Any = None,
) -> Value:
    """The sum of products over contracted dims, for each place of the batch dims.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.dot_general(mnp.ones((5, 2, 3)), mnp.ones((5, 3, 4)), (((2,), (1,)), ((0,), (0,)))).shape
    (5, 2, 4)
    """
    check_precision(precision)
    x, y = value(lhs), value(rhs)
    contract, batch = (
        (
            tuple(axis_of(d, x.ndim, "lax.dot_general") for d in left),
            tuple(axis_of(d, y.ndim, "lax.dot_general") for d in right),
        )
        for left, right in _two_pairs(dimension_numbers)
    )
    kind = None if preferred_element_type is None else as_dtype(preferred_element_type)
    rank = x.ndim + y.ndim - 2 * len(contract[0]) - len(batch[0])
    asked = laid_out_as((x.type, y.type), out_sharding, rank)
    return placed(dot_general_op(x, y, contract=contract, batch=batch, dtype=kind, **asked), None, out_sharding)


@compiled_in_kernels
def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """The product of vectors and matrices."""
    check_precision(precision)
    x, y = value(lhs), value(rhs)
    if dimension_numbers is None:
        if not {x.ndim, y.ndim} <= {1, 2}:
            why = "without dimension_numbers it multiplies vectors and matrices"
            refuse("lax.dot", [x.type, y.type], why, "x @ y, or lax.dot_general(x, y, dimension_numbers)")
        dimension_numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return dot_general(x, y, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding)


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: Any = None) -> Value:
    """The matrix products of two stacks of matrices."""
    check_precision(precision)
    x, y = promote_operands((value(lhs), value(rhs)))
    if x.ndim != y.ndim or x.ndim < 2:
        refuse("lax.batch_matmul", [x.type, y.type], "both have one rank, 2 or more", "x @ y, which broadcasts")
    lead = tuple(range(x.ndim - 2))
    return dot_general(x, y, (((x.ndim - 1,), (x.ndim - 2,)), (lead, lead)))

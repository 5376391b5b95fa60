"""Where a device stands: the number of its block along a dim, and which elements of the block are no padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.op import Value
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import add, additive_identity, broadcast_in_dim, broadcast_scalar, mul
from meshwright.ops.choice import select
from meshwright.ops.collective import axis_index
from meshwright.ops.elementwise import lt
from meshwright.ops.reduction import highest, lowest
from meshwright.ops.shape import iota
from meshwright.sharding.axes import Axes, AxisRef

Names = Callable[[AxisRef], tuple[tuple[str, int], ...]]  # the axes of the program that make up an axis, with sizes


def identity(dtype: DType, reduction: str) -> Any:
    """The identity element of a combination: what changes nothing when it is combined with others."""
    if reduction in ("max", "min"):
        return lowest(dtype) if reduction == "max" else highest(dtype)
    return 1 if reduction == "prod" else additive_identity(dtype)


def scalar(value: Any, dtype: DType, weak: bool = False) -> Array:
    """A constant of a local program; ``weak`` is that of the values it stands among, which stay weak beside it."""
    return Array(np.asarray(value, dtype), TensorType((), np.dtype(dtype), weak))


def part_index(names: Names, axes: Axes) -> Value | None:
    """The number of a device's block along a dim that is split over axes; None if the dim is whole."""
    return index_along(pair for axis in axes for pair in names(axis))


def index_along(axes: Iterable[tuple[str, int]]) -> Value | None:
    """A device's coordinate along axes of the local program taken together; None if there are none."""
    position: Value | None = None
    for name, count in axes:
        one = axis_index(axes=(name,), sizes=(count,))
        position = one if position is None else add(mul(position, count), one)
    return position


def block_start(names: Names, axes: Axes, size: int) -> Value | None:
    """The index at which a device's block of ``size`` begins; None if the dim is whole."""
    position = part_index(names, axes)
    return None if position is None else mul(position, size)


def along(x: Value, dim: int, shape: Shape) -> Value:
    """A vector repeated along all dims of a shape but one."""
    return broadcast_in_dim(x, shape=shape, dims=(dim,))


def global_indices(names: Names, axes: Axes, size: int) -> Value:
    """The indices in the whole dim of the elements of a device's block."""
    here = iota(dtype=dtypes.INT32, shape=(size,), dim=0)
    start = block_start(names, axes, size)
    return here if start is None else add(here, start)


def filled_where(keep: Value, x: Value, value: Any) -> Value:
    """``x`` where ``keep`` is true, else a number."""
    return select(keep, x, broadcast_scalar(scalar(value, x.dtype, x.type.weak), x.shape))


def without_padding(names: Names, x: Value, dims: Sequence[tuple[int, Axes, int]], value: Any) -> Value:
    """A block with ``value`` in its padding along dims, each given with its axes and its whole size."""
    for dim, axes, n in dims:
        size = x.shape[dim]
        parts = int(np.prod([axis.size for axis in axes], dtype=int))
        if size * parts > n:
            x = filled_where(along(lt(global_indices(names, axes, size), n), dim, x.shape), x, value)
    return x

"""Collectives among groups of the devices along an axis, and one whose devices send different numbers of rows."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from meshwright.api.axis_names import resolve
from meshwright.arrays.tracing import leaf_value
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.lax.over_axes import AxisName, axis_index, check_untiled, dim_of, gather, varying
from meshwright.ops import collective as ops
from meshwright.ops.basic import add, broadcast_in_dim, convert, move_dim, mul, reduce_sum, reshape, zeros
from meshwright.ops.elementwise import and_, div, ge, lt, select, sub
from meshwright.ops.gathering import gather as gather_op
from meshwright.ops.indexing import dynamic_slice, scatter_set
from meshwright.ops.shape import iota


class Groups(NamedTuple):
    """Devices along axes that take part in collectives by themselves: of each its group's places, its place among
    them, and how many there are. Smaller groups repeat their first place."""

    members: np.ndarray
    place: np.ndarray
    sizes: np.ndarray


def _groups(op: str, count: int, given: Any, equal: bool) -> Groups:
    """Groups as lists of places along an axis, each place in one of them."""
    found = [[index(place) for place in group] for group in given]
    if sorted(place for group in found for place in group) != list(range(count)) or (
        equal and len({len(group) for group in found}) > 1
    ):
        raise MeshwrightError(
            f"{op} cannot take axis_index_groups={given!r}.",
            where=here(),
            why=f"each of the {count} places along the axis is in one group" + (", and groups are as large" * equal),
            fix=f"axis_index_groups={[list(range(0, count, 2)), list(range(1, count, 2))]}",
        )
    most = max(map(len, found))
    members, place, sizes = np.zeros((count, most), np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32)
    for group in found:
        for n, device in enumerate(group):
            members[device] = group + group[:1] * (most - len(group))
            place[device], sizes[device] = n, len(group)
    return Groups(members, place, sizes)


def in_group(op: str, x: Value, axis_name: AxisName, given: Any, equal: bool = True) -> tuple[Any, Any, Any, int]:
    """What the devices of a device's group hold, as rows; the device's place in it, its size, and the most rows.

    The whole axis is gathered: groups that are parts of an axis cost less as such (``"x:(2)4"``).
    """
    _, sizes = resolve(op, axis_name)
    groups = _groups(op, prod(sizes), given, equal)
    here_ = axis_index(axis_name)
    rows = gather(op, ops.all_gather, x, axis_name, 0, tiled=False)
    mine = [taken(leaf_value(table, "groups of devices"), here_) for table in groups]
    return taken(rows, mine[0]), mine[1], mine[2], groups.members.shape[1]


def taken(x: Value, places: Value) -> Value:
    """Rows of ``x``, all of them there."""
    return gather_op(
        x,
        reshape(places, shape=(*places.shape, 1)),
        offset_dims=tuple(range(places.ndim, places.ndim + x.ndim - 1)),
        collapsed_dims=(0,),
        operand_batch_dims=(),
        indices_batch_dims=(),
        start_index_map=(0,),
        slice_sizes=(1, *x.shape[1:]),
        mode="promise",
    )


def sum_in_group(
    op: str, x: Value, axis_name: AxisName, given: Any, equal: bool = False
) -> tuple[Value, Any, int, Any]:
    """The sum over a device's group, with the device's place in it, its most rows and its size."""
    if x.dtype == dtypes.BOOL:
        x = convert(x, dtype=dtypes.INT32, weak=False)
    rows, place, size, most = in_group(op, x, axis_name, given, equal)
    numbers = iota(dtype=dtypes.INT32, shape=rows.shape, dim=0)
    counted = lt(numbers, broadcast_in_dim(size, shape=rows.shape, dims=()))
    rows = select(counted, rows, zeros(rows.type))
    return reduce_sum(rows, axes=(0,)), place, most, size


def _block(x: Value, place: Value, dim: int, count: int) -> Value:
    """Of ``count`` blocks along a dim, the one at ``place``."""
    length = x.shape[dim] // count
    sizes = tuple(length if d == dim else n for d, n in enumerate(x.shape))
    starts = [mul(place, length) if d == dim else np.int32(0) for d in range(x.ndim)]
    return dynamic_slice(x, *starts, sizes=sizes)


def mean_in_group(x: Value, axis_name: AxisName, groups: Any) -> Value:
    if not dtypes.is_inexact(x.dtype):
        x = convert(x, dtype=dtypes.default_float(), weak=False)
    total, _, _, size = sum_in_group("pmean", x, axis_name, groups)
    return div(total, convert(size, dtype=total.dtype, weak=False))


def gather_in_group(x: Value, axis_name: AxisName, groups: Any, axis: int, tiled: bool) -> Value:
    rows, _, _, most = in_group("all_gather", x, axis_name, groups)
    dim = dim_of("all_gather", axis, x.ndim if tiled else x.ndim + 1)
    rows = move_dim(rows, 0, dim)
    return reshape(rows, shape=(*x.shape[:dim], most * x.shape[dim], *x.shape[dim + 1 :])) if tiled else rows


def scatter_in_group(x: Value, axis_name: AxisName, groups: Any, axis: int, tiled: bool) -> Value:
    total, place, most, _ = sum_in_group("psum_scatter", x, axis_name, groups, equal=True)
    dim = dim_of("psum_scatter", axis, x.ndim)
    check_untiled("psum_scatter", x, dim, most, tiled)
    _divided("psum_scatter", x, dim, most)
    block = _block(total, place, dim, most)
    return block if tiled else reshape(block, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))


def _divided(name: str, x: Value, dim: int, count: int) -> None:
    if x.shape[dim] % count:
        raise ShapeError(
            f"{name} cannot take {x.type}.",
            where=here(),
            why=f"dim {dim} has size {x.shape[dim]}, which is not in {count} equal parts, one for each of a group",
            fix="mnp.pad(x, …)",
        )


def exchange_in_group(
    x: Value, axis_name: AxisName, groups: Any, split_axis: int, concat_axis: int, tiled: bool
) -> Value:
    rows, place, _, most = in_group("all_to_all", x, axis_name, groups)
    split, concat = dim_of("all_to_all", split_axis, x.ndim), dim_of("all_to_all", concat_axis, x.ndim)
    check_untiled("all_to_all", x, split, most, tiled)
    _divided("all_to_all", x, split, most)
    parts = _block(rows, place, split + 1, most)  # [sender, …]
    if not tiled:
        shape = (most, *x.shape[:split], *x.shape[split + 1 :])
        return move_dim(reshape(parts, shape=shape), 0, concat)
    joined = move_dim(parts, 0, concat)
    shape = parts.shape[1:]
    return reshape(joined, shape=(*shape[:concat], most * shape[concat], *shape[concat + 1 :]))


def ragged_all_to_all(
    operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any, *,
    axis_name: AxisName, axis_index_groups: Any = None,
) -> Any:  # fmt: skip
    """Send each device along an axis some rows: ``send_sizes[n]`` from ``input_offsets[n]`` on go to the n-th, into its
    ``output`` at ``output_offsets[n]``; ``recv_sizes[n]`` come from there.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> one = mnp.ones(2, int)
    >>> def f(x):
    ...     me = axis_index("i") * one
    ...     return ragged_all_to_all(x, 0 * x, mnp.arange(2), one, me, one, axis_name="i")
    >>> mw.shard_map(f, mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i"))(mnp.arange(4.0)).tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    if axis_index_groups is not None:
        raise MeshwrightError(
            "ragged_all_to_all does not take axis_index_groups.",
            where=here(),
            why="it is among all devices along an axis, or along a part of one",
            fix="axis_name='x:(2)4', the minor part of size 4 of an axis x of size 8",
        )
    _, sizes = resolve("ragged_all_to_all", axis_name)
    count = prod(sizes)
    x, out, *plans = (leaf_value(v, "an operand of ragged_all_to_all", enter=False)
                      for v in (operand, output, input_offsets, send_sizes, output_offsets, recv_sizes))  # fmt: skip
    if any(plan.shape != (count,) for plan in plans) or x.shape[1:] != out.shape[1:] or x.dtype != out.dtype:
        raise ShapeError(
            f"ragged_all_to_all cannot take {', '.join(str(v.type) for v in (x, out, *plans))}.",
            where=here(),
            why=f"offsets and sizes have one number for each of {count} devices, and rows are alike on both sides",
            fix="output = mnp.zeros((rows, *operand.shape[1:]), operand.dtype)",
        )
    me = axis_index(axis_name)
    rows = gather("ragged_all_to_all", ops.all_gather, x, axis_name, 0, tiled=False)
    begin, length, target = (
        taken(move_dim(gather("ragged_all_to_all", ops.all_gather, plan, axis_name, 0, tiled=False), 1, 0), me)
        for plan in plans[:3]
    )
    shape = rows.shape[:2]
    numbers = iota(dtype=begin.dtype, shape=shape, dim=1)
    begin, length, target = (broadcast_in_dim(v, shape=shape, dims=(0,)) for v in (begin, length, target))
    inside = and_(ge(numbers, begin), lt(numbers, add(begin, length)))
    places = select(inside, add(target, sub(numbers, begin)), broadcast_in_dim(
        leaf_value(np.asarray(out.shape[0], begin.dtype), "a place"), shape=shape, dims=()))  # fmt: skip
    return scatter_set(
        varying(out, tuple(rows.type.varying)),
        reshape(places, shape=(shape[0] * shape[1], 1)),
        reshape(rows, shape=(shape[0] * shape[1], *x.shape[1:])),
        update_window_dims=tuple(range(1, x.ndim)),
        inserted_window_dims=(0,),
        operand_batch_dims=(),
        scatter_indices_batch_dims=(),
        scatter_dims_to_operand_dims=(0,),
        mode="drop",
        unique=False,
    )

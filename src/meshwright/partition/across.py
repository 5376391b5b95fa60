"""Layouts on other meshes of the same devices, whose axes are not parts of those of the program's mesh.

No axis of a local program says which block a device has of such a value. It enters and leaves as rows, one for each
device in the order of the program's mesh; between it and layouts of that mesh, blocks go from device to device. Where
nothing need move, equations run on its blocks as on any others.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.op import Value
from meshwright.core.trace import Array
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import reshape
from meshwright.ops.collective import permuted
from meshwright.ops.gathering import gather
from meshwright.partition.cost import MachineCost, reshard_seconds
from meshwright.partition.layouts import layout
from meshwright.partition.reshard.plan import ReshardPlan, plan_on
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.placement import block_numbers, order_between


def is_on(sharding: TensorSharding, mesh: BaseMesh) -> bool:
    """Whether a layout is one of a mesh, and not of another view of its devices."""
    return sharding.mesh is mesh or sharding.mesh == mesh


@lru_cache(maxsize=4096)
def counterpart(sharding: TensorSharding, mesh: BaseMesh) -> TensorSharding:
    """A layout of a mesh that cuts a value into as many blocks as one of another mesh, as far as its axes go.

    >>> from meshwright.sharding.mesh import Mesh
    >>> other = Mesh.parse('<["a"=3, "b"=2], device_ids=[5, 4, 3, 2, 1, 0]>')
    >>> print(counterpart(TensorSharding(other, ["b", "a"]), Mesh.parse('<["x"=2, "y"=3]>')))
    #sdy.sharding<@mesh, [{"x"}, {"y"}]>
    """
    free = list(mesh.axes)
    dims = []
    for count in sharding.shards:
        axes: list[AxisRef] = []
        for n, axis in enumerate(list(free)):
            size = gcd(count, axis.size)
            if size > 1:
                axes.append(axis.part(axis.pre, axis.pre * size))
                free[n] = axis.part(axis.pre * size, axis.next)
                count //= size
        free = [axis for axis in free if axis.size > 1]
        dims.append(tuple(axes))
    return layout(mesh, tuple(dims))


@lru_cache(maxsize=65536)
def plan_across(
    mesh: BaseMesh, shape: Shape, dtype: DType, source: TensorSharding, target: TensorSharding
) -> ReshardPlan:
    """The reshard plan between two layouts, one or both of another mesh, in terms of the axes of ``mesh``."""
    return plan_on(mesh, shape, dtype, source, target)


def seconds_across(
    mesh: BaseMesh, t: TensorType, source: TensorSharding, target: TensorSharding, cost: MachineCost
) -> float:
    """The seconds of a reshard between shardings of any meshes of the same devices."""
    if source == target:
        return 0.0
    if is_on(source, mesh) and is_on(target, mesh):
        return reshard_seconds(t, source, target, cost)
    if source.unreduced:
        between = counterpart(target, mesh)
        return reshard_seconds(t, source, between, cost) + seconds_across(mesh, t, between, target, cost)
    return cost.plan(plan_across(mesh, t.shape, t.dtype, source, target))


class BlockRows(NamedTuple):
    """The blocks of an array in a layout of another mesh as rows, one for each device in the order of the program's."""

    counts: tuple[int, ...]  # of blocks, by dim
    block: Shape
    numbers: tuple[int, ...]  # of the block that each device has

    @staticmethod
    def of(sharding: TensorSharding, mesh: BaseMesh, shape: Shape) -> BlockRows:
        """The rows of an array of a shape."""
        order = order_between(mesh, sharding.mesh)
        assert order is not None, "the meshes of a program are views of the same devices"
        positions, counts = np.array(order, np.int64), sharding.shards
        numbers = np.zeros_like(positions)
        for count, digits in zip(counts, sharding.layout.dims, strict=True):
            numbers = numbers * count + block_numbers(digits, positions)
        return BlockRows(tuple(counts), sharding.local_shape(shape), tuple(numbers.tolist()))

    @property
    def shape(self) -> Shape:
        """The shape of all rows."""
        return len(self.numbers), *self.block

    def apart(self, x: Value) -> Value:
        """An array, padded, as rows of blocks."""
        rank = len(self.block)
        x = reshape(x, shape=tuple(n for pair in zip(self.counts, self.block, strict=True) for n in pair))
        x = permuted(x, [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        return _rows(reshape(x, shape=(prod(self.counts), *self.block)), self.numbers)

    def together(self, rows: Value) -> Value:
        """The array, padded, from the rows of all devices."""
        rank = len(self.block)
        holders = [self.numbers.index(number) for number in range(prod(self.counts))]
        x = reshape(_rows(rows, holders), shape=(*self.counts, *self.block))
        x = permuted(x, [n for dim in range(rank) for n in (dim, rank + dim)])
        return reshape(x, shape=tuple(n * size for n, size in zip(self.counts, self.block, strict=True)))


def _rows(x: Value, numbers: tuple[int, ...] | list[int]) -> Value:
    """The rows of these numbers."""
    table = np.array(numbers, np.int32)[:, None]
    return gather(
        x, Array(table, TensorType(table.shape, table.dtype)), offset_dims=tuple(range(1, x.ndim)), collapsed_dims=(0,),
        operand_batch_dims=(), indices_batch_dims=(), start_index_map=(0,), slice_sizes=(1, *x.shape[1:]), mode="clip",
    )  # type: ignore[no-any-return]  # fmt: skip

"""How arguments come into a local program: by a spec, or as rows.

A spec names axes of the local program. An argument in parts of axes that do not nest with these enters as rows, one
for each device: outside, its blocks become the rows of one array, in the order of the devices along the axes that it is
split over; inside, each device has the block that it held, and they are gathered and put together.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.core.trace import Array, make_varying
from meshwright.core.types import Shape, TensorType, union
from meshwright.errors import ShardingError
from meshwright.ops.basic import broadcast_in_dim, reshape
from meshwright.ops.collective import all_gather_invariant, permuted
from meshwright.ops.shape import pad, slice_
from meshwright.partition.across import BlockRows, is_on
from meshwright.partition.layouts import axes_used, replicated
from meshwright.partition.localize import Localizer, Version
from meshwright.sharding.axes import Axes, AxisRef, cut
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.regions.shard_map import block_type, varying_axes


class Rows(NamedTuple):
    """The blocks of a sharded array as rows, one for each device."""

    axes: Axes  # whole, along which devices are numbered
    segments: Axes  # the parts of them that dims are split over, and those between, which devices hold copies along
    dims: tuple[Axes, ...]
    block: Shape

    @staticmethod
    def of(sharding: TensorSharding, shape: Shape) -> Rows:
        """The rows of an array of a shape."""
        dims = tuple(dim.axes for dim in sharding.dims)
        used = [axis for axes in dims for axis in axes]
        names = {axis.name for axis in used}
        whole = tuple(axis for axis in sharding.mesh.axes if axis.name in names)
        return Rows(whole, cut(whole, used), tuple(cut(axes, used) for axes in dims), sharding.local_shape(shape))

    @property
    def split(self) -> list[AxisRef]:
        """The segments that dims are split over, in the order of the dims."""
        return [axis for axes in self.dims for axis in axes]

    @property
    def shape(self) -> Shape:
        """The shape of all rows."""
        return prod(axis.size for axis in self.axes), *self.block

    def apart(self, x: Value) -> Value:
        """An array, padded, as rows of blocks."""
        digits: list[AxisRef | int] = []
        for axes, n in zip(self.dims, self.block, strict=True):
            digits += [*axes, n]
        x = reshape(x, shape=tuple(d if isinstance(d, int) else d.size for d in digits))
        split = [axis for axis in self.segments if axis in self.split]
        blocks = [n for n, digit in enumerate(digits) if isinstance(digit, int)]
        x = permuted(x, [*map(digits.index, split), *blocks])
        places = [n for n, axis in enumerate(self.segments) if axis in self.split]
        places += range(len(self.segments), len(self.segments) + len(self.block))
        x = broadcast_in_dim(x, shape=(*(axis.size for axis in self.segments), *self.block), dims=tuple(places))
        return reshape(x, shape=self.shape)

    def together(self, rows: Value) -> Value:
        """The array, padded, from the rows of all devices."""
        shape = (*(axis.size for axis in self.segments), *self.block)
        once = tuple(axis.size if axis in self.split else 1 for axis in self.segments)
        x = reshape(rows, shape=shape)
        x = slice_(x, starts=(0,) * len(shape), limits=(*once, *self.block), strides=(1,) * len(shape))
        order: list[int] = []
        for dim, axes in enumerate(self.dims):
            order += [*map(self.segments.index, axes), len(self.segments) + dim]
        gaps = [n for n, axis in enumerate(self.segments) if axis not in self.split]
        x = permuted(x, [*gaps, *order])
        sizes = (n * prod(axis.size for axis in axes) for axes, n in zip(self.dims, self.block, strict=True))
        return reshape(x, shape=tuple(sizes))


class Entry(NamedTuple):
    """An argument of a local program: its layout, its type outside, and the spec that it comes in by."""

    sharding: TensorSharding
    type: TensorType
    spec: PartitionSpec
    rows: Rows | BlockRows | None

    @staticmethod
    def of(local: Localizer, t: TensorType, sharding: TensorSharding) -> Entry:
        """The entry of an argument that comes in a sharding."""
        if not is_on(sharding, local.mesh):
            if sharding.unreduced:
                how = "over axes of another mesh than the program's"
                raise _summands(t, sharding, how, f"{sharding.mesh} and {local.mesh} have no common parts of axes")
            return Entry(sharding, t, every_device(local), BlockRows.of(sharding, local.mesh, t.shape))
        if all(map(local.cuts.fits, axes_used(sharding))):
            spec = spec_of(local, sharding)
            return Entry(sharding, t.with_(unreduced=tuple(spec.unreduced)), spec, None)
        if sharding.unreduced:
            parts = ", ".join(name for name, _ in local.cuts.axes)
            raise _summands(
                t,
                sharding,
                "in parts of an axis that do not nest with those of others",
                f"the mesh is cut into {parts}",
            )
        rows = Rows.of(sharding, t.shape)
        names = tuple(name for axis in rows.axes for name, _ in local.names(axis))
        return Entry(sharding, t, PartitionSpec(names), rows)

    @property
    def of_blocks(self) -> TensorType:
        """The type of the array that the blocks of all devices make."""
        shape = self.sharding.padded_shape(self.type.shape) if self.rows is None else self.rows.shape
        return self.type.with_(shape=shape)

    def block(self, local: Localizer) -> TensorType:
        """The type of what a device is given."""
        return block_type(self.of_blocks, self.spec, local.cuts.axes)

    def outside(self, x: Value) -> Value:
        """The argument as the spec cuts it into blocks."""
        x = _padded(x, self.sharding.padded_shape(self.type.shape))
        return x if self.rows is None else self.rows.apart(x)

    def inside(self, local: Localizer, block: Value) -> Version:
        """The argument as devices have it."""
        if self.rows is None:
            return Version(self.sharding, block)
        if isinstance(self.rows, BlockRows):
            return Version(self.sharding, reshape(block, shape=self.rows.block))
        names = [pair for axis in self.rows.axes for pair in local.names(axis)]
        params = {"axes": tuple(name for name, _ in names), "sizes": tuple(size for _, size in names)}
        with local.because("it comes in parts of an axis that do not nest with those of others", self.type):
            rows = all_gather_invariant(block, **params, dim=0)
        return Version(replicated(local.mesh, self.type.ndim), cropped(self.rows.together(rows), self.type))


def every_device(local: Localizer) -> PartitionSpec:
    """The spec of rows, one for each device."""
    return PartitionSpec(tuple(name for name, _ in local.cuts.axes))


def _summands(t: TensorType, sharding: TensorSharding, how: str, why: str) -> ShardingError:
    return ShardingError(
        f"An argument {t.short()} is a partial sum {how}.",
        where=here(),
        why=f"it comes as {sharding.to_named().spec}, and {why}",
        fix="sum it first: mw.reshard(x, mw.P())",
    )


class Exit(NamedTuple):
    """A result of a local program: its layout, and the rows that it leaves in if that is on another mesh."""

    sharding: TensorSharding
    rows: BlockRows | None

    @staticmethod
    def of(local: Localizer, t: TensorType, sharding: TensorSharding) -> Exit:
        """The exit of a result that leaves in a sharding."""
        other = not is_on(sharding, local.mesh)
        return Exit(sharding, BlockRows.of(sharding, local.mesh, t.shape) if other else None)

    def spec(self, local: Localizer) -> PartitionSpec:
        """The axes that it is split over."""
        return spec_of(local, self.sharding) if self.rows is None else every_device(local)

    def inside(self, local: Localizer, block: Value) -> Value:
        """The value that a device returns for the result."""
        block = block if self.rows is None else reshape(block, shape=(1, *self.rows.block))
        return make_varying(block, union((block.type.varying, varying_axes(self.spec(local)))))

    def outside(self, x: Value, t: TensorType) -> Value:
        """The result, from what all devices gave."""
        return cropped(x if self.rows is None else self.rows.together(x), t)


def spec_of(local: Localizer, sharding: TensorSharding) -> PartitionSpec:
    """A layout in terms of the axes of the local program."""
    dims = [tuple(name for axis in dim.axes for name, _ in local.names(axis)) or None for dim in sharding.dims]
    return PartitionSpec(*dims, unreduced=[name for axis in sharding.unreduced for name, _ in local.names(axis)])


def _padded(x: Value, shape: Shape) -> Value:
    if x.shape == shape:
        return x
    high = tuple(n - m for n, m in zip(shape, x.shape, strict=True))
    zero = Array(np.zeros((), x.dtype), TensorType((), x.dtype, x.type.weak, unreduced=x.type.unreduced))
    return pad(x, zero, low=(0,) * x.ndim, high=high, interior=(0,) * x.ndim)


def cropped(x: Value, t: TensorType) -> Value:
    """An array without its padding."""
    if x.shape == t.shape:
        return x
    return slice_(x, starts=(0,) * x.ndim, limits=t.shape, strides=(1,) * x.ndim)

"""Layouts of local values: closed shardings."""

from __future__ import annotations

from functools import lru_cache

from meshwright.core.types import Shape, TensorType
from meshwright.sharding.axes import Axes, AxisRef, merged
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

MANY = 8  # collectives on the way from one layout to another
READ = "read"  # the reduction of a sum to which one device adds the value, and every other the identity: -0.0, 0


@lru_cache(maxsize=65536)
def layout(mesh: BaseMesh, dims: tuple[Axes, ...], unreduced: Axes = (), reduction: str = "sum") -> TensorSharding:
    """The closed sharding with these axes on each dim."""
    found = tuple(DimensionSharding(merged(axes)) for axes in dims)
    return TensorSharding.unchecked(mesh, found, (), merged(unreduced), reduction)


def replicated(mesh: BaseMesh, rank: int) -> TensorSharding:
    """The layout of a value that all devices hold whole."""
    return layout(mesh, ((),) * rank)


def closed(sharding: TensorSharding) -> TensorSharding:
    """A sharding without what only propagation reads: open dims, priorities, axes kept replicated."""
    dims = tuple(dim.axes for dim in sharding.dims)
    return layout(sharding.mesh, dims, sharding.unreduced, sharding.reduction)


def on_mesh(sharding: TensorSharding, mesh: BaseMesh) -> TensorSharding:
    """The layout of a value on the mesh that the program runs on, if that has such axes or parts of axes; otherwise as
    it is given, on another mesh of the same devices."""
    return sharding if sharding.mesh == mesh else sharding.on(mesh) or sharding


def summed(sharding: TensorSharding) -> TensorSharding:
    """The layout as reshard plans know it: to them, a value that was read by one device is a sum like others."""
    if sharding.reduction != READ:
        return sharding
    return layout(sharding.mesh, tuple(dim.axes for dim in sharding.dims), sharding.unreduced)


def finished(sharding: TensorSharding) -> TensorSharding:
    """The sharding of a partial sum once it is reduced."""
    return layout(sharding.mesh, tuple(dim.axes for dim in sharding.dims)) if sharding.unreduced else sharding


def seen(sharding: TensorSharding) -> TensorSharding:
    """The layout of a value without the axes of one device, which split nothing and leave no sums."""
    kept = [
        tuple(axis for axis in axes if axis.size > 1) for axes in (*(d.axes for d in sharding.dims), sharding.unreduced)
    ]
    return layout(sharding.mesh, tuple(kept[:-1]), kept[-1], sharding.reduction)


def axes_used(sharding: TensorSharding) -> list[AxisRef]:
    """The axes that a value differs along between devices."""
    return [axis for dim in sharding.dims for axis in dim.axes] + list(sharding.unreduced)


def is_even(sharding: TensorSharding, shape: Shape) -> bool:
    """Whether all devices hold blocks without padding."""
    return all(n % parts == 0 for n, parts in zip(shape, sharding.shards, strict=True))


@lru_cache(maxsize=65536)
def local_type(t: TensorType, sharding: TensorSharding) -> TensorType:
    """The plain type of a device's block."""
    return t.with_(shape=sharding.local_shape(t.shape), sharding=None)

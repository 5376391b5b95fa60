"""The ops of `reshard_lowering` in JAX, and plans carried out by it on CPU devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.sharding.axes import Axes, AxisRef
from tests.partition.reshard_lowering import lower_plan


class JaxOps:
    """One device's ops inside jax.shard_map over a mesh that has a plan's atoms for axes."""

    def __init__(self, atoms: Axes) -> None:
        self.every = tuple(axis.short() for axis in atoms)

    def coordinate(self, axis: AxisRef) -> Any:
        return lax.axis_index(axis.short())

    def all_of(self, conditions: Sequence[Any]) -> Any:
        return jnp.all(jnp.stack(conditions))

    def look_up(self, table: Sequence[int], index: Any) -> Any:
        return jnp.asarray(table)[index]

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, order: Sequence[int]) -> Any:
        return x.transpose(order)

    def fitted(self, x: Any, shape: Sequence[int]) -> Any:
        x = x[tuple(slice(0, size) for size in shape)]
        return jnp.pad(x, [(0, size - has) for size, has in zip(shape, x.shape, strict=True)])

    def filled(self, like: Any, shape: Sequence[int], reduction: str | None) -> Any:
        info = jnp.iinfo(like.dtype)
        return jnp.full(shape, {"max": info.min, "min": info.max}.get(reduction or "", 0), like.dtype)

    def take(self, x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
        return lax.dynamic_slice(x, starts, sizes)

    def put(self, x: Any, part: Any, starts: Sequence[Any]) -> Any:
        return lax.dynamic_update_slice(x, part, starts)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return jnp.where(condition, x, y)

    def all_gather(self, x: Any, axes: Axes) -> Any:
        return lax.all_gather(x, _names(axes))

    def all_to_all(self, x: Any, axes: Axes) -> Any:
        return lax.all_to_all(x, _names(axes), 0, 0, tiled=True)

    def all_reduce(self, x: Any, axes: Axes, reduction: str) -> Any:
        return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[reduction](x, _names(axes))

    def reduce_scatter(self, x: Any, axes: Axes, reduction: str) -> Any:
        assert reduction == "sum"
        return lax.psum_scatter(x, _names(axes))

    def permute(self, x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
        return lax.ppermute(x, self.every, pairs)


def _names(axes: Axes) -> tuple[str, ...]:
    return tuple(axis.short() for axis in axes)


def compiled(plan: ReshardPlan) -> Any:
    """The plan as XLA compiles it for as many CPU devices; arrays have the devices, by number, for a first dim."""
    assert plan.order is None
    names, sizes = _names(plan.atoms), [axis.size for axis in plan.atoms]
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[: plan.num_devices]).reshape(sizes), names)
    spec = jax.sharding.PartitionSpec(names)

    def one(x: Any) -> Any:
        return lower_plan(plan, x[0], JaxOps(plan.atoms))[None]

    run = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    shape = plan.num_devices, *plan.source.local_shape(plan.shape)
    return run.lower(jax.ShapeDtypeStruct(shape, np.int32)).compile()


def run_on_jax(plan: ReshardPlan, shards: list[Any]) -> list[Any]:
    """The target shards, in the order of device numbers."""
    program = compiled(plan)
    x = jax.device_put(np.stack(shards).astype(np.int32), program.input_shardings[0][0])
    return list(np.asarray(program(x)))

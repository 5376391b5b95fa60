"""Arrays as JAX's devices hold them.

Each device holds its block of an array, all blocks of one size: where a dim does not divide, the last ones are padded,
with anything. So what is held is an array of JAX of the padded shape, in equal parts; the array itself is what remains
without the padding. Device ``n`` of a mesh is the ``n``-th of ``jax.devices()``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.source import here
from meshwright.core.trace import on_host
from meshwright.core.types import Shape
from meshwright.errors import WITH_JAX, MeshwrightError
from meshwright.sharding.axes import cut
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.placement import Index

FEWEST_CPUS = 8  # devices that a CPU is made to be, if nobody says


class Held(NamedTuple):
    """How devices hold an array: its shape, the shape with padding, and JAX's sharding of that."""

    shape: Shape
    padded: Shape
    sharding: Any

    def has(self, x: Any) -> bool:
        """Whether contents of JAX are held so."""
        return x.shape == self.padded and (
            x.sharding is self.sharding or x.sharding.is_equivalent_to(self.sharding, len(self.padded))
        )

    def put(self, x: Any) -> Any:
        """Contents of either side, in these blocks; of contents that are so already, nothing is copied."""
        import jax

        if not isinstance(x, jax.Array):
            whole = np.asarray(x)
            return self.made(lambda index: whole[index], whole)
        if self.has(x):
            return x
        if x.shape != self.padded:
            x = _resized(x, self.shape, self.padded, self.sharding)
        return x if self.has(x) else _apart(jax.device_put(x, self.sharding, may_alias=False), x)

    def made(self, part: Callable[[Index], Any], whole: Any = None) -> Any:
        """Contents of which this process makes its own blocks: ``part`` is a part of the array, by its indices."""
        import jax

        if whole is not None and self.padded == self.shape and self.sharding.is_fully_addressable:
            return jax.device_put(whole, self.sharding)
        found: dict[str, Any] = {}

        def block(index: Any) -> Any:
            key = str(index)
            if key not in found:
                found[key] = _padded(part(_within(index, self.shape)), index, self.padded)
            return found[key]

        return jax.make_array_from_callback(self.padded, self.sharding, block)

    def regrouped(self, x: Any, shape: Shape, sharding: Any) -> Any:
        """The same block of each device as part of an array of another shape."""
        import jax

        block = sharding.shard_shape(shape)
        parts = [shard.data.reshape(block) for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _apart(x: Any, other: Any) -> Any:
    """Contents in memory of their own: what JAX brings to more or fewer devices it may share with what it was, also if
    told not to, and one of the two may be donated."""
    mine, theirs = ({shard.data.unsafe_buffer_pointer() for shard in one.addressable_shards} for one in (x, other))
    return x if mine.isdisjoint(theirs) else x.copy()


def _within(index: Index, shape: Shape) -> Index:
    """The part of an index that lies in a shape."""
    bounds = [
        part.indices(2**62)[:2] if part.stop is not None else (0, n) for part, n in zip(index, shape, strict=True)
    ]
    return tuple(slice(min(start, n), min(stop, n)) for (start, stop), n in zip(bounds, shape, strict=True))


def _padded(part: Any, index: Index, padded: Shape) -> Any:
    """A part of an array as a block of the size that it has with padding."""
    block = [len(range(*one.indices(n))) for one, n in zip(index, padded, strict=True)]
    if list(part.shape) == block:
        return part
    return np.pad(part, [(0, n - m) for n, m in zip(block, part.shape, strict=True)])


def _resized(x: Any, shape: Shape, padded: Shape, sharding: Any) -> Any:
    """Contents of JAX without their padding, with another one."""
    import jax

    front = tuple(slice(n) for n in shape)

    def resized(x: Any) -> Any:
        return jax.numpy.pad(x[front], [(0, n - m) for n, m in zip(padded, shape, strict=True)])

    with jax.enable_x64(True):
        if x.sharding.device_set == sharding.device_set:
            return jax.jit(resized, out_shardings=sharding)(x)
        return jax.device_put(jax.jit(resized)(x), sharding)


@lru_cache(maxsize=4096)
def held(sharding: TensorSharding, shape: Shape) -> Held:
    """How devices hold an array of a sharding; an error if they are not there."""
    import jax

    mesh = sharding.mesh
    if not mesh.axes:  # on one device
        (device,) = devices_numbered(numbers_of(mesh), "An array is put onto")
        return Held(shape, shape, jax.sharding.SingleDeviceSharding(device))
    pieces = cut(mesh.axes, [axis for dim in sharding.dims for axis in dim.axes])
    devices = np.array(devices_numbered(numbers_of(mesh), "An array is put onto"), object)
    on = jax.sharding.Mesh(devices.reshape([axis.size for axis in pieces]), tuple(axis.short() for axis in pieces))
    spec: Any = jax.sharding.PartitionSpec
    entries = [tuple(one.short() for one in cut(dim.axes, pieces)) or None for dim in sharding.dims]
    return Held(shape, sharding.padded_shape(shape), jax.sharding.NamedSharding(on, spec(*entries)))


def numbers_of(mesh: Any) -> tuple[int, ...]:
    """The numbers of the devices of a mesh, by their positions."""
    order = getattr(mesh, "order", None)
    return tuple(range(mesh.size)) if order is None else tuple(order)


def are_there(mesh: Any) -> bool:
    """Whether JAX has the devices of a mesh."""
    return find_spec("jax") is not None and max(numbers_of(mesh)) < len(real_devices(mesh.size, False))


def devices_numbered(numbers: Sequence[int], what: str) -> list[Any]:
    """JAX's devices of these numbers."""
    found = real_devices(max(numbers) + 1, False)
    require(numbers, found, what)
    return [found[n] for n in numbers]


def require(numbers: Sequence[int], found: Sequence[Any], what: str) -> None:
    """An error unless there are devices of these numbers."""
    count, last = len(numbers), max(numbers)
    if last >= len(found):
        raise MeshwrightError(
            f"{what} {count} device{'s' * (count != 1)}, and JAX has {len(found)}.",
            where=here(),
            why="each device of the mesh runs its own part of the program"
            + (f"; the last one is device {last}" if last >= count else ""),
            fix=f'a mesh of {len(found)}, or jax.config.update("jax_num_cpu_devices", {last + 1}) before JAX is used',
        )


def mesh_of(axes: Sequence[tuple[str, int]], devices: Sequence[Any]) -> Any:
    """A mesh of JAX over the first of some devices."""
    import jax

    count = prod(size for _, size in axes)
    placed = np.array(devices[:count]).reshape([size for _, size in axes])
    return jax.sharding.Mesh(placed, tuple(name for name, _ in axes))


def blocks_here(x: Any, shape: Shape) -> Iterator[tuple[int, Any]]:
    """By the numbers of this process's devices, what each holds of an array: without padding."""
    import jax

    numbers = {device: n for n, device in enumerate(jax.devices())}
    for shard in x.addressable_shards:
        inside = _within(shard.index, shape)
        yield numbers[shard.device], on_host(shard.data, tuple(one.stop - one.start for one in inside))


def parts_here(x: Any, shape: Shape) -> Iterator[tuple[Index, Any]]:
    """The parts of an array that this process is to write down, one process each, and what is in them."""
    import jax

    holders: dict[tuple[tuple[int, int], ...], set[int]] = {}

    def bounds(index: Index) -> tuple[tuple[int, int], ...]:
        return tuple((one.start, one.stop) for one in _within(index, shape))

    for device, index in x.sharding.devices_indices_map(x.shape).items():
        if all(start < stop for start, stop in bounds(index)):
            holders.setdefault(bounds(index), set()).add(device.process_index)
    own = {bounds(shard.index): shard.data for shard in x.addressable_shards}
    for number, part in enumerate(sorted(holders)):
        processes = sorted(holders[part])
        if processes[number % len(processes)] == jax.process_index():
            yield tuple(slice(*one) for one in part), on_host(own[part], tuple(stop - start for start, stop in part))


def needed() -> None:
    """Refuse to go on without JAX."""
    if find_spec("jax") is None:
        raise MeshwrightError("JAX is not installed.", fix=WITH_JAX)


def _number_of_cpus() -> int:
    """How many devices somebody said that a CPU is; below zero if nobody did."""
    import jax

    config: Any = jax.config
    return int(config.jax_num_cpu_devices)


@cache
def real_devices(count: int, own: bool) -> list[Any]:
    """JAX's devices, or this process's own; if it has not begun, and nobody said how many, it makes enough of a CPU."""
    import jax

    said = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or _number_of_cpus() >= 0
    with suppress(RuntimeError):  # it has begun
        if not said:
            jax.config.update("jax_num_cpu_devices", max(count, FEWEST_CPUS))  # type: ignore[no-untyped-call]
    return list(jax.local_devices() if own else jax.devices())

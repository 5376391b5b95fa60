"""What kernels on a ring of devices share: who is next to whom, and how they meet."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright import lax
from meshwright import pallas as pl
from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.pallas import tpu as pltpu

WHOLE = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR


class Ring(NamedTuple):
    """A device on a mesh axis: its place, its neighbors, how many there are."""

    me: Any
    left: Any
    right: Any
    size: int


def ring(axis_name: str) -> Ring:
    """The ring along a mesh axis, as the running device sees it."""
    n = lax.axis_size(axis_name)
    me = lax.axis_index(axis_name)
    return Ring(me, lax.rem(me + n - 1, n), lax.rem(me + 1, n), n)


def meet(axis_name: str, *devices: Any) -> None:
    """Wait until the devices at these places have entered the kernel, as they wait for this one."""
    barrier = pltpu.get_barrier_semaphore()
    for device in devices:
        pltpu.semaphore_signal(barrier, device_id={axis_name: device})
    pltpu.semaphore_wait(barrier, len(devices))


class RingDirection(NamedTuple):
    """A direction of the ring: from whom things come, to whom they go, and whose comes next."""

    number: int
    source: Any
    target: Any
    sign: int  # after ``s`` steps this device has what that of ``me + sign * s`` had

    def owner(self, at: Ring, step: Any) -> Any:
        """Whose block is here after some steps."""
        return lax.rem(at.me + self.sign * step + at.size * at.size, at.size)


def directions(at: Ring, bidirectional: bool) -> list[RingDirection]:
    """To the right, or both ways."""
    right = RingDirection(0, at.left, at.right, -1)
    return [right, RingDirection(1, at.right, at.left, 1)] if bidirectional else [right]


def halves(size: int, bidirectional: bool) -> list[tuple[int, int]]:
    """What of a dim goes each way: start and size."""
    return [(0, size - size // 2), (size - size // 2, size // 2)] if bidirectional else [(0, size)]


def collective(number: int) -> pltpu.CompilerParams:
    """Kernels that may run at the same time meet on barriers of their own."""
    return pltpu.CompilerParams(collective_id=number)


def struct(shape: Any, dtype: Any) -> ShapeDtypeStruct:
    """The type of a result."""
    return ShapeDtypeStruct(tuple(shape), dtype)

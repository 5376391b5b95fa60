"""Collectives written as kernels, right ones: what tests run, mutate and compare with lax."""

from __future__ import annotations

from typing import Any

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR
COLLECTIVE = pltpu.CompilerParams(collective_id=0)


def struct(shape: Any, dtype: Any = mnp.float32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def neighbors(axis: str = "x") -> tuple[Any, Any, Any, int]:
    """This device, those to its left and right, and how many there are."""
    n = lax.axis_size(axis)
    me = lax.axis_index(axis)
    return me, lax.rem(me + n - 1, n), lax.rem(me + 1, n), n


def barrier(*devices: Any) -> None:
    """Wait until the devices (by their coordinate) are in the kernel."""
    semaphore = pltpu.get_barrier_semaphore()
    for device in devices:
        pltpu.semaphore_signal(semaphore, device_id={"x": device})
    pltpu.semaphore_wait(semaphore, len(devices))


def right_permute(shape, debug=None):
    def kernel(x_ref, out_ref, send, receive):
        _, left, right, _ = neighbors()
        barrier(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right})
        copy.start()
        copy.wait()

    return pl.pallas_call(
        kernel, struct(shape), in_specs=[ANY], out_specs=ANY, scratch_shapes=[DMA, DMA],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


def asymmetric_send(shape, debug=None):
    """0 to 1, 2 and 3 to each other; 0 receives nothing."""
    target = {0: 1, 2: 3, 3: 2}

    def kernel(x_ref, out_ref, send, receive):
        me = int(lax.axis_index("x"))
        out_ref[...] = mnp.zeros_like(out_ref)
        others = [d for d in range(4) if d != me]
        barrier(*others)

        def copy(to):
            return pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id=(to,))

        if me in target:
            copy(target[me]).start()
            copy(target[me]).wait_send()
        if me != 0:
            copy(0).wait_recv()

    return pl.pallas_call(kernel, struct(shape), scratch_shapes=[DMA, DMA], compiler_params=COLLECTIVE, debug=debug)


def ring_all_gather(devices, shape, debug=None):
    """Every step hands on what came in the step before; each has semaphores of its own."""

    def kernel(x_ref, out_ref, local, send, receive):
        me, left, right, n = neighbors()
        copy = pltpu.make_async_copy(x_ref, out_ref.at[me], local)
        copy.start()
        barrier(left, right)
        copy.wait()

        @pl.loop(0, n - 1)
        def _(step):
            slot = lax.rem(me - step + n, n)
            copy = pltpu.make_async_remote_copy(
                out_ref.at[slot], out_ref.at[slot], send.at[step], receive.at[step], device_id={"x": right}
            )
            copy.start()
            copy.wait()

    return pl.pallas_call(
        kernel, struct((devices, *shape)), in_specs=[ANY], out_specs=ANY,
        scratch_shapes=[DMA, DMA((devices,)), DMA((devices,))], compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


def ring_all_reduce(devices, shape, debug=None, second_barrier=None):
    """Two buffers go round; a device says when it has room for the next."""

    def kernel(x_ref, out_ref, send, receive, room, mine, buffers):
        _, left, right, n = neighbors()
        barrier(left, right)
        if second_barrier is not None:
            second_barrier(left, right)
        start = pltpu.make_async_copy(x_ref, buffers.at[0], mine)
        start.start()
        start.wait()
        out_ref[...] = buffers[0]

        @pl.loop(0, n - 1)
        def _(step):
            slot = lax.rem(step, 2)

            @pl.when(step > 0)
            def _():
                pltpu.semaphore_wait(room)

            copy = pltpu.make_async_remote_copy(
                buffers.at[slot], buffers.at[1 - slot], send.at[slot], receive.at[slot], device_id={"x": right}
            )
            copy.start()
            copy.wait()
            out_ref[...] += buffers[1 - slot]

            @pl.when(step < n - 2)
            def _():
                pltpu.semaphore_signal(room, device_id={"x": left})

    return pl.pallas_call(
        kernel, struct(shape), in_specs=[ANY],
        scratch_shapes=[DMA((2,)), DMA((2,)), REGULAR, DMA, pltpu.VMEM((2, *shape), mnp.float32)],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


def reduce_scatter(devices, shape, debug=None):
    """Sums go round the ring, each device adding its part: halves go opposite ways. ``x`` has a row per device."""
    rows = shape[0]
    half = rows // 2

    def kernel(x_ref, out_ref, sums, send, receive, room):
        me, left, right, n = neighbors()
        barrier(left, right)
        ways = [(0, right, left, -1), (1, left, right, 1)]

        for way, _, _, sign in ways:
            first = lax.rem(me + sign + n, n)
            sums[way, 0] = x_ref[first, way * half : way * half + half]

        @pl.loop(0, n - 1)
        def _(step):
            slot = lax.rem(step, 2)
            copies = []
            for way, to, _, _ in ways:

                @pl.when(step > 0)
                def _(way=way):
                    pltpu.semaphore_wait(room.at[way])

                copy = pltpu.make_async_remote_copy(
                    sums.at[way, slot], sums.at[way, 1 - slot], send.at[way], receive.at[way, slot],
                    device_id={"x": to},
                )  # fmt: skip
                copy.start()
                copies.append(copy)
            for (way, _, source, sign), copy in zip(ways, copies, strict=True):
                copy.wait()
                block = lax.rem(me + sign * (step + 2) + 2 * n, n)
                sums[way, 1 - slot] += x_ref[block, way * half : way * half + half]

                @pl.when(step < n - 2)
                def _(way=way, source=source):
                    pltpu.semaphore_signal(room.at[way], device_id={"x": source})

        last = lax.rem(n - 1, 2)
        for way, _, _, _ in ways:
            out_ref[way * half : way * half + half] = sums[way, last]

    return pl.pallas_call(
        kernel, struct(shape),
        scratch_shapes=[
            pltpu.VMEM((2, 2, half, *shape[1:]), mnp.float32), DMA((2,)), DMA((2, 2)), REGULAR((2,)),
        ],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


def all_to_all(devices, shape, debug=None):
    """Row ``i`` goes to device ``i``, each copy on semaphores of its own."""

    def kernel(x_ref, out_ref, send, receive):
        me, _, _, n = neighbors()
        barrier(*[lax.rem(me + k, n) for k in range(1, n)])
        copies = []
        for k in range(n):
            to = lax.rem(me + k, n)
            copies.append(
                pltpu.make_async_remote_copy(
                    x_ref.at[to], out_ref.at[me], send.at[k], receive.at[k], device_id={"x": to}
                )
            )
            copies[-1].start()
        for copy in copies:
            copy.wait()

    return pl.pallas_call(
        kernel, struct((devices, *shape)), in_specs=[ANY], out_specs=ANY,
        scratch_shapes=[DMA((devices,)), DMA((devices,))], compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip

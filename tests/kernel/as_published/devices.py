"""Collectives on a ring of four devices, with and without products beside them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OPTIONS = {}
KERNELS = {}
F32 = jnp.float32
DEVICES = 4
ANY = pl.BlockSpec(memory_space=pl.ANY)
VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR


def kernel(function):
    KERNELS[function.__name__] = function
    return function


def floats(*shape, seed=0):
    return np.random.default_rng(seed).integers(-8, 8, size=shape).astype(np.float32)


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def on_ring(body, args, out, scratch, space=ANY, collective_id=0):
    """A body on each device, the rows of operands and results cut over them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("x",))
    rows = jax.sharding.PartitionSpec("x")
    params = pltpu.CompilerParams(collective_id=collective_id)
    call = pl.pallas_call(
        body, out, in_specs=[space] * len(args), out_specs=jax.tree.map(lambda _: space, out), scratch_shapes=scratch,
        compiler_params=params, **OPTIONS,
    )  # fmt: skip
    return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(rows,) * len(args), out_specs=rows, check_vma=False))(*args)


def around():
    me = lax.axis_index("x")
    return me, lax.rem(me + DEVICES - 1, DEVICES), lax.rem(me + 1, DEVICES)


def meet():
    _, left, right = around()
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=(left,))
    pl.semaphore_signal(barrier, 1, device_id=(right,))
    pl.semaphore_wait(barrier, 2)


def to(src, dst, send, receive, device):
    return pltpu.make_async_remote_copy(
        src, dst, send, receive, device_id=(device,), device_id_type=pl.DeviceIdType.MESH
    )


if not hasattr(pl, "DeviceIdType"):  # as it was called before
    pl.DeviceIdType = pltpu.DeviceIdType


@kernel
def a_permute_to_the_right():
    def body(x_ref, o_ref, send, receive):
        _, _, right = around()
        meet()
        copy = to(x_ref, o_ref, send, receive, right)
        copy.start()
        copy.wait()

    return on_ring(body, [floats(4 * 8, 128)], struct(8, 128), [DMA, DMA])


@kernel
def a_ring_all_gather():
    def body(x_ref, o_ref, local, send, receive):
        me, _, right = around()
        meet()
        own = pltpu.make_async_copy(x_ref, o_ref.at[me], local)
        own.start()
        own.wait()
        for step in range(DEVICES - 1):
            slot = lax.rem(me + DEVICES - step, DEVICES)
            copy = to(o_ref.at[slot], o_ref.at[slot], send.at[step], receive.at[step], right)
            copy.start()
            copy.wait()

    return on_ring(body, [floats(4 * 8, 128)], struct(4, 8, 128), [DMA, DMA((3,)), DMA((3,))])


@kernel
def an_all_gather_both_ways_round():
    def body(x_ref, o_ref, local, send, receive):
        me, left, right = around()
        meet()
        own = pltpu.make_async_copy(x_ref, o_ref.at[me], local)
        own.start()
        own.wait()
        for step in range(DEVICES - 1):
            copies = []
            for way, target in ((0, right), (1, left)):
                slot = lax.rem(me + DEVICES + (step if way else -step), DEVICES)
                half = o_ref.at[slot, pl.ds(way * 4, 4)]
                copies.append(to(half, half, send.at[way, step], receive.at[way, step], target))
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()

    return on_ring(body, [floats(4 * 8, 128)], struct(4, 8, 128), [DMA, DMA((2, 3)), DMA((2, 3))])


@kernel
def a_ring_reduce_scatter():
    def body(x_ref, o_ref, sums, send, receive, room):
        me, left, right = around()
        meet()
        part = lax.rem(me + DEVICES - 1, DEVICES)
        sums[0] = x_ref[part]
        for step in range(DEVICES - 1):
            here, there = step % 2, (step + 1) % 2
            if step:
                pl.semaphore_wait(room, 1)
            copy = to(sums.at[here], sums.at[there], send.at[step], receive.at[step], right)
            copy.start()
            copy.wait()
            if step < DEVICES - 2:
                pl.semaphore_signal(room, 1, device_id=(left,))
            part = lax.rem(me + 2 * DEVICES - 2 - step, DEVICES)
            sums[there] = sums[there] + x_ref[part]
        o_ref[...] = sums[(DEVICES - 1) % 2]

    scratch = [pltpu.VMEM((2, 8, 128), F32), DMA((3,)), DMA((3,)), REGULAR]
    return on_ring(body, [floats(4 * 4, 8, 128)], struct(8, 128), scratch, VMEM)


@kernel
def an_all_reduce_with_room_for_two():
    def body(x_ref, o_ref, slots, send, receive, room):
        _, left, right = around()
        meet()
        slots[0] = x_ref[...]
        o_ref[...] = x_ref[...]
        for step in range(DEVICES - 1):
            here, there = step % 2, (step + 1) % 2
            if step:
                pl.semaphore_wait(room, 1)
            copy = to(slots.at[here], slots.at[there], send.at[step], receive.at[step], right)
            copy.start()
            copy.wait()
            if step < DEVICES - 2:
                pl.semaphore_signal(room, 1, device_id=(left,))
            o_ref[...] += slots[there]

    scratch = [pltpu.VMEM((2, 8, 128), F32), DMA((3,)), DMA((3,)), REGULAR]
    return on_ring(body, [floats(4 * 8, 128)], struct(8, 128), scratch, VMEM)


@kernel
def an_all_to_all():
    def body(x_ref, o_ref, local, send, receive):
        me, _, _ = around()
        barrier = pltpu.get_barrier_semaphore()
        for other in range(1, DEVICES):
            pl.semaphore_signal(barrier, 1, device_id=(lax.rem(me + other, DEVICES),))
        pl.semaphore_wait(barrier, DEVICES - 1)
        own = pltpu.make_async_copy(x_ref.at[me], o_ref.at[me], local)
        own.start()
        copies = []
        for other in range(1, DEVICES):
            target = lax.rem(me + other, DEVICES)
            copies.append(to(x_ref.at[target], o_ref.at[me], send.at[other - 1], receive.at[other - 1], target))
        for copy in copies:
            copy.start()
        own.wait()
        for copy in copies:
            copy.wait()

    return on_ring(body, [floats(4 * 4, 8, 128)], struct(4, 8, 128), [DMA, DMA((3,)), DMA((3,))])


@kernel
def a_product_beside_a_gather_of_rows():
    def body(x_ref, y_ref, o_ref, slots, send, receive, room):
        me, left, right = around()
        meet()
        slots[0] = x_ref[...]
        for step in range(DEVICES):
            here, there = step % 2, (step + 1) % 2
            last = step == DEVICES - 1
            copy = to(slots.at[here], slots.at[there], send.at[step % 3], receive.at[step % 3], right)
            if not last:
                if step:
                    pl.semaphore_wait(room, 1)
                copy.start()
            o_ref[lax.rem(me + DEVICES - step, DEVICES)] = slots[here] @ y_ref[...]
            if not last:
                copy.wait()
                if step < DEVICES - 2:
                    pl.semaphore_signal(room, 1, device_id=(left,))

    scratch = [pltpu.VMEM((2, 8, 32), F32), DMA((3,)), DMA((3,)), REGULAR]
    return on_ring(body, [floats(4 * 8, 32), floats(4 * 32, 128, seed=1)], struct(4, 8, 128), scratch, VMEM)


@kernel
def a_product_whose_sums_are_scattered():
    def body(x_ref, y_ref, o_ref, sums, send, receive, room):
        me, left, right = around()
        meet()

        def part(n):
            return x_ref[n] @ y_ref[...]

        sums[0] = part(lax.rem(me + DEVICES - 1, DEVICES))
        for step in range(DEVICES - 1):
            here, there = step % 2, (step + 1) % 2
            if step:
                pl.semaphore_wait(room, 1)
            copy = to(sums.at[here], sums.at[there], send.at[step], receive.at[step], right)
            copy.start()
            product = part(lax.rem(me + 2 * DEVICES - 2 - step, DEVICES))
            copy.wait()
            if step < DEVICES - 2:
                pl.semaphore_signal(room, 1, device_id=(left,))
            sums[there] = sums[there] + product
        o_ref[...] = sums[(DEVICES - 1) % 2]

    scratch = [pltpu.VMEM((2, 8, 128), F32), DMA((3,)), DMA((3,)), REGULAR]
    return on_ring(body, [floats(4 * 4, 8, 32), floats(4 * 32, 128, seed=1)], struct(8, 128), scratch, VMEM)

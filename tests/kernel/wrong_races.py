"""Wrong kernels: accesses that nothing orders, and memory that has no value or is not ready."""

from __future__ import annotations

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR, barrier, neighbors
from tests.kernel.corpus import F32, TWO, VMEM, around, wrong

# Races


@wrong(pltpu.RaceError, 1, [VMEM, DMA])
def load_before_the_copy_is_waited_for(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref, scratch, sem)  # here
    out_ref[...] = scratch[...]  # here
    copy.wait()


@wrong(pltpu.RaceError, 1, [VMEM, DMA])
def store_to_the_source_of_a_copy_under_way(x_ref, out_ref, scratch, sem):
    scratch[...] = x_ref[...]
    copy = pltpu.async_copy(scratch, out_ref, sem)  # here
    scratch[...] = mnp.zeros_like(scratch)  # here
    copy.wait()


@wrong(pltpu.RaceError, 1, [DMA((2,))])
def two_copies_to_one_place(x_ref, out_ref, sems):
    copies = [pltpu.async_copy(x_ref, out_ref, sems.at[i]) for i in range(2)]  # here
    for copy in copies:
        copy.wait()


@wrong(pltpu.RaceError, 1, [VMEM, VMEM, DMA])
def a_shared_semaphore_tells_of_the_other_copy(x_ref, out_ref, a, b, sem):
    first = pltpu.async_copy(x_ref, a, sem)  # here
    second = pltpu.async_copy(x_ref, b, sem)
    first.wait()
    out_ref[...] = a[...]  # here
    second.wait()


@wrong(pltpu.RaceError, 1, [VMEM, DMA], in_specs=[ANY])
def half_of_the_bytes_are_waited_for(x_ref, out_ref, scratch, sem):
    pltpu.async_copy(x_ref, scratch, sem)  # here
    half = pltpu.make_async_copy(x_ref.at[0:4], scratch.at[0:4], sem)
    half.wait()
    out_ref[...] = scratch[...]  # here
    half.wait()


@wrong(pltpu.RaceError, 1, [VMEM, pltpu.VMEM((1, 16), F32), DMA], in_specs=[ANY])
def bytes_of_a_small_copy_are_taken_for_the_last_of_a_large_one(x_ref, out_ref, scratch, row, sem):
    large = pltpu.async_copy(x_ref, scratch, sem)  # here
    small = pltpu.async_copy(x_ref.at[0:1], row, sem)  # here
    large.wait()
    out_ref[...] = scratch[...]  # here
    small.wait()


@wrong(pltpu.RaceError, 4, [DMA, DMA, VMEM])
def the_buffer_is_reused_before_the_send_is_over(x_ref, out_ref, send, receive, scratch):
    left, right = around()
    barrier(left, right)
    scratch[...] = x_ref[...]
    copy = pltpu.async_remote_copy(scratch, out_ref, send, receive, device_id={"x": right})  # here
    scratch[...] = mnp.zeros_like(scratch)  # here
    copy.wait()


@wrong(pltpu.RaceError, 4, [DMA, DMA, VMEM])
def what_comes_is_used_without_waiting_for_it(x_ref, out_ref, send, receive, scratch):
    left, right = around()
    scratch[...] = x_ref[...]
    barrier(left, right)
    copy = pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": right})  # here
    copy.wait_send()
    out_ref[...] = scratch[...]  # here
    copy.wait_recv()


@wrong(pltpu.RaceError, 4, [DMA, DMA((2,)), pltpu.VMEM((2, 8, 16), F32)])
def two_buffers_and_nothing_that_says_when_there_is_room(x_ref, out_ref, send, receive, buffers):
    left, right = around()
    buffers[0] = x_ref[...]
    barrier(left, right)
    out_ref[...] = x_ref[...]
    for step in range(3):
        a, b = step % 2, 1 - step % 2
        copy = pltpu.make_async_remote_copy(buffers.at[a], buffers.at[b], send, receive.at[b], device_id={"x": right})
        copy.start()  # here
        copy.wait()
        out_ref[...] += buffers[b]


@wrong(pltpu.RaceError, 2, [DMA, DMA, VMEM, REGULAR])
def the_signal_is_sent_before_the_store_it_is_for(x_ref, out_ref, send, receive, scratch, ready):
    left, right = around()
    barrier(left)
    pltpu.semaphore_signal(ready, device_id={"x": right})
    scratch[...] = x_ref[...]  # here
    pltpu.semaphore_wait(ready)
    copy = pltpu.make_async_remote_copy(x_ref, scratch, send, receive, device_id={"x": right})
    copy.start()  # here
    copy.wait()
    out_ref[...] = scratch[...]


@wrong(pltpu.RaceError, 1, [DMA], grid=(4,), in_specs=[pl.BlockSpec((2, 16), lambda i: (i, 0))], out_specs=ANY)
def a_copy_from_a_window_that_moves_on(x_ref, out_ref, sem):
    i = pl.program_id(0)

    def copy(step):
        return pltpu.make_async_copy(x_ref, out_ref.at[pl.ds(step * 2, 2)], sem)

    @pl.when(i > 1)
    def _():
        copy(i - 2).wait()

    copy(i).start()  # here

    @pl.when(i == 3)
    def _():
        copy(i).wait()
        copy(i).wait()


@wrong(pltpu.RaceError, 1, [DMA], grid=(4,), in_specs=[ANY], out_specs=pl.BlockSpec((2, 16), lambda i: (i, 0)))
def a_copy_to_an_output_window_that_is_written_back(x_ref, out_ref, sem):
    i = pl.program_id(0)
    out_ref[...] = mnp.zeros_like(out_ref)
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(i * 2, 2)], out_ref, sem)

    @pl.when(i > 0)
    def _():
        copy.wait()

    copy.start()  # here

    @pl.when(i == 3)
    def _():
        copy.wait()


@wrong(pltpu.RaceError, 3, [TWO, DMA, DMA((3,))])
def two_devices_send_to_the_same_rows(x_ref, out_ref, buffers, send, receive):
    me, left, right, _ = neighbors()
    barrier(left, right)
    copy = pltpu.make_async_remote_copy(x_ref, buffers.at[0], send, receive.at[me], device_id={"x": 0})
    if me > 0:
        copy.start()  # here
        copy.wait_send()
    else:
        for other in (1, 2):
            pltpu.make_async_copy(x_ref, buffers.at[0], receive.at[other]).wait()
    out_ref[...] = x_ref[...]


@wrong(pltpu.RaceError, 3, [VMEM, DMA, DMA, REGULAR])
def a_wait_takes_the_signal_of_another_device(x_ref, out_ref, scratch, send, receive, ready):
    me, left, right, _ = neighbors()
    barrier(left, right)
    if me > 0:
        scratch[...] = x_ref[...]  # here
        pltpu.semaphore_signal(ready, device_id={"x": 0})
        pltpu.make_async_copy(x_ref, scratch, receive).wait()
        out_ref[...] = scratch[...]
    else:
        for other in (1, 2):
            pltpu.semaphore_wait(ready)
            copy = pltpu.make_async_remote_copy(x_ref, scratch, send, receive, device_id={"x": other})
            copy.start()  # here
            copy.wait_send()
        out_ref[...] = x_ref[...]


@wrong(pltpu.RaceError, 1, [VMEM, DMA])
def a_semaphore_is_looked_at_and_not_waited_for(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref, scratch, sem)  # here
    pltpu.semaphore_read(sem)
    out_ref[...] = scratch[...]  # here
    copy.wait()


@wrong(pltpu.RaceError, 1, [TWO, DMA], grid=(4,), in_specs=[ANY], out_specs=ANY)
def one_semaphore_for_the_copies_of_two_grid_steps(x_ref, out_ref, buffers, sem):
    i = pl.program_id(0)

    def copy(step):
        return pltpu.make_async_copy(x_ref.at[pl.ds(step * 2, 2)], buffers.at[step % 2, 0:2], sem)

    if i == 0:
        copy(0).start()  # here
    if i < 3:
        copy(int(i) + 1).start()  # here
    copy(int(i)).wait()
    buffers[int(i) % 2, 0:2] = buffers[int(i) % 2, 0:2] * 2  # here
    pltpu.sync_copy(buffers.at[int(i) % 2, 0:2], out_ref.at[pl.ds(i * 2, 2)])


@wrong(pltpu.RaceError, 4, [DMA((4,)), DMA((4,)), VMEM])
def rows_of_two_devices_overlap_by_one(x_ref, out_ref, send, receive, scratch):
    me, _, _, n = neighbors()
    barrier(*[lax.rem(me + k, n) for k in range(1, n)])
    for k in range(n):
        rows = pl.ds(me * 2 - (me > 0), 2)
        to = lax.rem(me + k, n)
        pltpu.make_async_remote_copy(
            x_ref.at[rows], scratch.at[rows], send.at[k], receive.at[k], device_id={"x": to}
        ).start()  # here
    for k in range(n):
        pltpu.make_async_remote_copy(x_ref.at[0:2], scratch.at[0:2], send.at[k], receive.at[k], device_id=0).wait()
    out_ref[...] = x_ref[...]


@wrong(pltpu.RaceError, 1, [], in_specs=[ANY], out_specs=ANY, input_output_aliases={0: 0})
def a_pipeline_reads_rows_that_it_has_just_written(x_ref, out_ref):
    spec = pl.BlockSpec((1, 16), lambda i: (i, 0))

    def body(row_ref, next_ref):
        next_ref[...] = row_ref[...] + 1

    pipeline = pltpu.emit_pipeline(body, grid=(7,), in_specs=[spec], out_specs=spec)
    pipeline(out_ref.at[0:7], out_ref.at[1:8])  # here


@wrong(pltpu.RaceError, 1, [VMEM, DMA], in_specs=[ANY], out_specs=ANY)
def what_a_pipeline_writes_is_copied_while_it_runs(x_ref, out_ref, scratch, sem):
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))

    def body(row_ref, block_ref):
        block_ref[...] = row_ref[...]
        i = pl.program_id(0)
        if i > 0:
            pltpu.async_copy(out_ref.at[pl.ds(i * 2 - 2, 2)], scratch.at[pl.ds(i * 2 - 2, 2)], sem).wait()  # here

    pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)  # here


@wrong(pltpu.RaceError, 1, [DMA], grid=(2,), in_specs=[ANY], out_specs=ANY)
def the_next_grid_step_writes_what_a_copy_still_reads(x_ref, out_ref, sem):
    def scoped(block):
        for i in range(2):
            block[...] = mnp.full(block.shape, float(i))  # here
            copy = pltpu.make_async_copy(block, out_ref.at[pl.ds(i * 4, 4)], sem)
            copy.start()  # here
        copy.wait()
        copy.wait()

    if pl.program_id(0) == 0:
        pl.run_scoped(scoped, pltpu.VMEM((4, 16), F32))


@wrong(pltpu.RaceError, 4, [TWO, DMA, DMA((2,)), REGULAR])
def room_is_said_to_be_there_before_the_slot_was_read(x_ref, out_ref, buffers, send, receive, room):
    left, right = around()
    barrier(left, right)
    buffers[0] = x_ref[...]
    out_ref[...] = x_ref[...]
    for step in range(4):
        a, b = step % 2, 1 - step % 2
        if step:
            pltpu.semaphore_wait(room)
        copy = pltpu.make_async_remote_copy(buffers.at[a], buffers.at[b], send, receive.at[b], device_id={"x": right})
        copy.start()  # here
        if step < 3:
            pltpu.semaphore_signal(room, device_id={"x": left})
        copy.wait()
        out_ref[...] += buffers[b]


# Uninitialized memory


@wrong(pltpu.UninitializedError, 1, [VMEM])
def scratch_is_read_before_it_is_written(x_ref, out_ref, scratch):
    out_ref[...] = x_ref[...] + scratch[...]  # here


@wrong(pltpu.UninitializedError)
def an_output_is_added_to_before_it_is_set(x_ref, out_ref):
    out_ref[...] += x_ref[...]  # here


@wrong(pltpu.UninitializedError, 1, [VMEM])
def half_of_scratch_is_written(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    out_ref[...] = scratch[...]  # here


@wrong(pltpu.UninitializedError, 4, [pltpu.VMEM((3, 8, 16), F32), DMA, DMA])
def the_wrong_slot_is_sent(x_ref, out_ref, buffers, send, receive):
    left, right = around()
    buffers[0] = x_ref[...]
    barrier(left, right)
    pltpu.async_remote_copy(buffers.at[1], buffers.at[2], send, receive, device_id={"x": right}).wait()  # here
    out_ref[...] = buffers[2]


ROWS = pl.BlockSpec((2, 16), lambda i: (i, 0))


@wrong(pltpu.UninitializedError, 1, grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def only_the_first_block_is_set_to_zero(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    out_ref[...] += x_ref[...]  # here


# Entering


@wrong(pltpu.BarrierError, 2, [DMA, DMA])
def no_barrier_before_the_first_copy(x_ref, out_ref, send, receive):
    other = 1 - lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": other})
    copy.start()  # here
    copy.wait()


@wrong(pltpu.BarrierError, 4, [DMA, DMA])
def a_barrier_with_the_wrong_neighbor(x_ref, out_ref, send, receive):
    _, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": right})
    pltpu.semaphore_wait(semaphore)
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right})
    copy.start()  # here
    copy.wait()


@wrong(pltpu.BarrierError, 2, [REGULAR])
def a_semaphore_of_a_device_that_may_not_be_there_yet(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, device_id={"x": 1 - lax.axis_index("x")})  # here
    pltpu.semaphore_wait(sem)


@wrong(pltpu.BarrierError, 2, [])
def memory_of_a_scope_that_the_other_may_not_have_entered(x_ref, out_ref):
    other = 1 - lax.axis_index("x")
    barrier(other)

    def scoped(scratch, send, receive):
        copy = pltpu.make_async_remote_copy(x_ref, scratch, send, receive, device_id={"x": other})
        copy.start()  # here
        copy.wait()
        out_ref[...] = scratch[...]

    pl.run_scoped(scoped, VMEM, DMA, DMA)

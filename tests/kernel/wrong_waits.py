"""Wrong kernels: waits that never end, and what is left over."""

from __future__ import annotations

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR, barrier, neighbors
from tests.kernel.corpus import VMEM, around, wrong

# Waits that never end


@wrong(pltpu.DeadlockError, 1, [REGULAR], None)
def no_sender(x_ref, out_ref, sem):
    pltpu.semaphore_wait(sem)  # here


@wrong(pltpu.DeadlockError, 1, [DMA], None)
def double_wait(x_ref, out_ref, sem):
    copy = pltpu.async_copy(x_ref, out_ref, sem)
    copy.wait()
    copy.wait()  # here


@wrong(pltpu.DeadlockError, 1, [DMA], None)
def never_started(x_ref, out_ref, sem):
    pltpu.make_async_copy(x_ref, out_ref, sem).wait()  # here


@wrong(pltpu.DeadlockError, 2, [REGULAR], None)
def cyclic_wait(x_ref, out_ref, sem):
    other = 1 - lax.axis_index("x")
    pltpu.semaphore_wait(sem)  # here
    pltpu.semaphore_signal(sem, device_id={"x": other})


@wrong(pltpu.DeadlockError, 3, [REGULAR, REGULAR])
def semaphores_are_looked_at_that_nobody_signals(x_ref, out_ref, a, b):
    while pltpu.semaphore_read(a) == 0 and pltpu.semaphore_read(b) == 0:  # here
        pass


@wrong(pltpu.DeadlockError, 4, [], None)
def short_signal(x_ref, out_ref):
    _, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": right})
    pltpu.semaphore_wait(semaphore, 2)  # here


@wrong(pltpu.DeadlockError, 4, [], None)
def one_device_leaves_early(x_ref, out_ref):
    left, right = around()
    if lax.axis_index("x") == 2:
        return
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": left})
    pltpu.semaphore_signal(semaphore, device_id={"x": right})
    pltpu.semaphore_wait(semaphore, 2)  # here


@wrong(pltpu.DeadlockError, 4, [DMA, DMA], None)
def one_device_does_not_send(x_ref, out_ref, send, receive):
    me, _, right, _ = neighbors()
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right})

    @pl.when(me != 1)
    def _():
        copy.start()
        copy.wait_send()

    copy.wait_recv()  # here


@wrong(pltpu.DeadlockError, 2, [DMA, DMA], None)
def a_copy_to_oneself_where_the_other_was_meant(x_ref, out_ref, send, receive):
    me = lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": mnp.minimum(me, 0)})
    copy.start()
    copy.wait()  # here


@wrong(pltpu.DeadlockError, 4, [DMA, DMA], None)
def everyone_sends_to_one_device(x_ref, out_ref, send, receive):
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": 0})
    copy.start()
    copy.wait_send()
    copy.wait_recv()  # here


@wrong(pltpu.DeadlockError, 1, [DMA], None)
def a_wait_for_more_than_was_copied(x_ref, out_ref, sem):
    pltpu.make_async_copy(x_ref.at[0:4], out_ref.at[0:4], sem).start()
    pltpu.make_async_copy(x_ref, out_ref, sem).wait()  # here


@wrong(pltpu.DeadlockError, 2, [REGULAR, REGULAR], None)
def each_waits_for_what_the_other_signals_later(x_ref, out_ref, a, b):
    me = lax.axis_index("x")
    first, second = (a, b) if me == 0 else (b, a)
    pltpu.semaphore_wait(first)  # here
    pltpu.semaphore_signal(second, device_id={"x": 1 - me})


@wrong(pltpu.DeadlockError, 4, [REGULAR], None)
def the_chain_of_signals_has_no_beginning(x_ref, out_ref, turn):
    _, right = around()
    pltpu.semaphore_wait(turn)  # here
    out_ref[...] = x_ref[...]
    pltpu.semaphore_signal(turn, device_id={"x": right})


@wrong(pltpu.DeadlockError, 2, [REGULAR], None)
def a_signal_to_the_wrong_device(x_ref, out_ref, sem):
    me = lax.axis_index("x")
    pltpu.semaphore_signal(sem, device_id={"x": me * 0})
    pltpu.semaphore_wait(sem)  # here


@wrong(pltpu.DeadlockError, 1, [], None, in_specs=[ANY], out_specs=ANY)
def a_pipeline_waits_for_a_prefetch_that_nobody_started(x_ref, out_ref):
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))

    def body(row_ref, block_ref):
        block_ref[...] = row_ref[...]

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(body, grid=(4,), in_specs=[spec], out_specs=spec)

    def scoped(allocations):
        skip = ((True, False), (True, False))
        pipeline(x_ref, out_ref, allocations=allocations, prologue=lambda _: skip)  # here

    pl.run_scoped(scoped, allocate(x_ref, out_ref))


# What is left over


@wrong(pltpu.UnfinishedCopyError, 1, [DMA], None)
def a_copy_nobody_waits_for(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref, out_ref, sem)  # here


@wrong(pltpu.UnfinishedCopyError, 4, [DMA, DMA], None)
def a_send_nobody_waits_for(x_ref, out_ref, send, receive):
    _, right = around()
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).wait_recv()  # here


@wrong(pltpu.SemaphoreError, 1, [REGULAR], None)
def a_signal_nobody_waits_for(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, 3)  # here
    pltpu.semaphore_wait(sem, 2)


@wrong(pltpu.SemaphoreError, 4, [], None)
def a_barrier_signalled_twice(x_ref, out_ref):
    left, right = around()
    barrier(left, right)
    pltpu.semaphore_signal(pltpu.get_barrier_semaphore(), device_id={"x": right})  # here


@wrong(pltpu.UnfinishedCopyError, 1, [], None)
def a_scope_ends_before_its_copy(x_ref, out_ref):
    def scoped(scratch, sem):
        pltpu.async_copy(x_ref, scratch, sem)  # here

    pl.run_scoped(scoped, VMEM, DMA)


@wrong(pltpu.SemaphoreError, 4, [], None)
def a_barrier_waited_for_by_one_too_few(x_ref, out_ref):
    left, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": left})
    pltpu.semaphore_signal(semaphore, device_id={"x": right})  # here
    pltpu.semaphore_wait(semaphore, 1)


@wrong(pltpu.SemaphoreError, 1, [REGULAR], None)
def a_wait_that_takes_nothing(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem)  # here
    pltpu.semaphore_wait(sem, decrement=False)


@wrong(pltpu.SemaphoreError, 2, [], None)
def a_semaphore_of_a_scope_is_left_at_one(x_ref, out_ref):
    def scoped(sem):
        pltpu.semaphore_signal(sem, 2)  # here
        pltpu.semaphore_wait(sem)

    pl.run_scoped(scoped, REGULAR)


@wrong(pltpu.UnfinishedCopyError, 1, [DMA], None, grid=(4,), in_specs=[ANY], out_specs=ANY)
def the_copies_of_all_grid_steps_and_one_wait(x_ref, out_ref, sem):
    rows = pl.ds(pl.program_id(0) * 2, 2)
    copy = pltpu.make_async_copy(x_ref.at[rows], out_ref.at[rows], sem)
    copy.start()  # here
    if pl.program_id(0) == 3:
        copy.wait()


@wrong(pltpu.UnfinishedCopyError, 2, [DMA, DMA], None)
def the_receiver_does_not_wait(x_ref, out_ref, send, receive):
    other = 1 - lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": other})
    copy.start()  # here
    copy.wait_send()


@wrong(pltpu.SemaphoreError, 2, [], None)
def a_signal_to_a_scope_that_the_other_never_enters(x_ref, out_ref):
    me = lax.axis_index("x")

    def scoped(sem):
        pltpu.semaphore_signal(sem, device_id={"x": 1})  # here

    @pl.when(me == 0)
    def _():
        pl.run_scoped(scoped, REGULAR)


@wrong(pltpu.SemaphoreError, 2, [])
def a_semaphore_of_the_next_scope_while_the_other_may_be_in_this_one(x_ref, out_ref):
    other = 1 - lax.axis_index("x")
    barrier(other)

    def scoped(sem):
        pltpu.semaphore_signal(sem, device_id={"x": other})  # here
        pltpu.semaphore_wait(sem)

    for _ in range(2):
        pl.run_scoped(scoped, REGULAR)

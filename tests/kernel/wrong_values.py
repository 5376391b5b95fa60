"""Wrong kernels: values of memory that nobody wrote, followed to where they are used; results that are not written."""

from __future__ import annotations

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR, barrier
from tests.kernel.corpus import F32, TWO, VMEM, around, wrong

UNSET = pltpu.UninitializedError
ROWS = pl.BlockSpec((2, 16), lambda i: (i, 0))
RAGGED = pl.BlockSpec((3, 16), lambda i: (i, 0))
FLAG = pltpu.SMEM((1,), mnp.int32)
REAL = pltpu.SMEM((1,), F32)

# What is computed from memory that nobody wrote is stored to a result


@wrong(UNSET, 1, [VMEM])
def a_sum_over_rows_that_were_not_written(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    total = scratch[...].sum(0)  # here
    out_ref[...] = mnp.broadcast_to(total, (8, 16))  # here


@wrong(UNSET, 1, [VMEM])
def a_product_with_what_was_not_written(x_ref, out_ref, scratch):
    scratch[0:7] = x_ref[0:7]
    out_ref[...] = (x_ref[...] @ scratch[...].T) @ x_ref[...]  # here


@wrong(UNSET, 1, [VMEM])
def a_mask_that_is_one_row_short(x_ref, out_ref, scratch):
    scratch[0:6] = x_ref[0:6]
    row = lax.broadcasted_iota(mnp.int32, (8, 16), 0)
    out_ref[...] = mnp.where(row < 7, scratch[...], 0.0)  # here


@wrong(UNSET, 1, [VMEM])
def a_mask_the_wrong_way_round(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    row = lax.broadcasted_iota(mnp.int32, (8, 16), 0)
    out_ref[...] = mnp.where(row < 4, 0.0, scratch[...])  # here


@wrong(UNSET, 1, [VMEM])
def zero_times_what_was_not_written_is_no_mask(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    keep = (lax.broadcasted_iota(mnp.int32, (8, 16), 0) < 4).astype(mnp.float32)
    out_ref[...] = scratch[...] * keep  # here


@wrong(UNSET, 1, [VMEM])
def the_mask_comes_after_the_sum(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    total = scratch[...].sum(0, keepdims=True)  # here
    row = lax.broadcasted_iota(mnp.int32, (8, 16), 0)
    out_ref[...] = mnp.where(row < 4, total, 0.0)  # here


@wrong(UNSET, 1, [VMEM, VMEM])
def it_goes_through_other_scratch_memory(x_ref, out_ref, a, b):
    a[0:4] = x_ref[0:4]
    b[...] = a[...] * 2  # here
    out_ref[...] = b[...] + 1  # here


@wrong(UNSET, 1, [VMEM, VMEM, DMA])
def it_is_copied_and_then_stored(x_ref, out_ref, a, b, sem):
    a[0:4] = x_ref[0:4]
    pltpu.async_copy(a, b, sem).wait()  # here
    out_ref[...] = b[...]


@wrong(UNSET, 1, [VMEM])
def it_is_the_largest_of_a_row(x_ref, out_ref, scratch):
    scratch[:, 0:8] = x_ref[:, 0:8]
    largest = scratch[...].max(1, keepdims=True)  # here
    out_ref[...] = x_ref[...] - largest  # here


@wrong(UNSET, 1, [VMEM])
def it_comes_out_of_a_loop(x_ref, out_ref, scratch):
    scratch[0:7] = x_ref[0:7]
    total = lax.fori_loop(0, 8, lambda i, acc: acc + scratch[i], mnp.zeros(16))  # here
    out_ref[...] = mnp.broadcast_to(total, (8, 16))  # here


@wrong(UNSET, 1, [VMEM])
def a_running_maximum_that_nothing_starts(x_ref, out_ref, m_ref):
    m_ref[...] = mnp.maximum(m_ref[...], x_ref[...])  # here
    out_ref[...] = m_ref[...]  # here


@wrong(UNSET, 1, [VMEM], grid=(4,), in_specs=[ROWS], out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)))
def a_sum_over_the_grid_that_nothing_starts(x_ref, out_ref, acc):
    acc[0:2] += x_ref[...]  # here

    @pl.when(pl.program_id(0) == 3)
    def _():
        out_ref[...] = mnp.broadcast_to(acc[0:1], (8, 16))  # here


@wrong(UNSET, 1, [VMEM], grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def a_sum_over_the_grid_that_is_started_one_step_late(x_ref, out_ref, acc):
    acc[0:2] += x_ref[...]  # here
    out_ref[...] = acc[0:2]  # here

    @pl.when(pl.program_id(0) == 0)
    def _():
        acc[...] = mnp.zeros_like(acc)


@wrong(UNSET, 1, [VMEM])
def it_is_carried_by_a_scan(x_ref, out_ref, scratch):
    scratch[0:6] = x_ref[0:6]
    _, rows = lax.scan(lambda total, x: (total + x, total + x), mnp.zeros(16), scratch[...])  # here
    out_ref[...] = rows  # here


@wrong(UNSET, 1, [VMEM])
def it_is_turned_over_and_sliced(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    turned = scratch[...].T[:, 2:6]  # here
    out_ref[...] = mnp.concatenate([turned.T, turned.T])  # here


@wrong(UNSET, 1, [pltpu.VMEM((8, 16), mnp.int32)])
def integers_that_nobody_wrote_are_compared(x_ref, out_ref, counts):
    counts[0:4] = mnp.ones((4, 16), mnp.int32)
    out_ref[...] = mnp.where(counts[...] > 0, x_ref[...], 0.0)  # here


@wrong(UNSET, 1, [VMEM])
def a_sort_of_what_nobody_wrote(x_ref, out_ref, scratch):
    scratch[:, 0:12] = x_ref[:, 0:12]
    out_ref[...] = mnp.sort(scratch[...], axis=1)  # here


@wrong(UNSET, 1, [], grid=(3,), in_specs=[RAGGED], out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)))
def rows_beyond_the_operand_are_added_up(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    out_ref[...] += x_ref[...].sum(0, keepdims=True)  # here


@wrong(
    UNSET, 1, [], grid=(4,), in_specs=[pl.BlockSpec((8, 5), lambda k: (0, k))],
    out_specs=pl.BlockSpec((8, 16), lambda k: (0, 0)),
)  # fmt: skip
def columns_beyond_the_operand_are_multiplied(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    out_ref[:, 0:8] += x_ref[...] @ x_ref[...].T  # here


@wrong(
    UNSET,
    1,
    [],
    grid=(4,),
    in_specs=[pl.BlockSpec((8, 5), lambda k: (0, k))],
    out_specs=pl.BlockSpec((8, 16), lambda k: (0, 0)),
)
def a_softmax_over_columns_beyond_the_operand(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    weights = mnp.exp(x_ref[...] - x_ref[...].max(1, keepdims=True))  # here
    out_ref[:, 0:1] += weights.sum(1, keepdims=True)  # here


@wrong(UNSET, 1, [TWO], grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def the_other_slot_is_read_in_the_first_step(x_ref, out_ref, slots):
    i = pl.program_id(0)
    slots[i % 2, 0:2] = x_ref[...]
    out_ref[...] = slots[(i + 1) % 2, 0:2]  # here


# It decides what the kernel does


@wrong(UNSET, 1, [FLAG])
def a_flag_that_nobody_set_is_asked(x_ref, out_ref, flag):
    out_ref[...] = x_ref[...]

    @pl.when(flag[0] == 1)  # here
    def _():
        out_ref[...] = x_ref[...] * 2


@wrong(UNSET, 1, [FLAG])
def a_loop_runs_as_often_as_nobody_said(x_ref, out_ref, count):
    out_ref[...] = lax.fori_loop(0, count[0], lambda i, acc: acc + 1, x_ref[...])  # here


@wrong(UNSET, 1, [REAL])
def a_branch_of_a_number_that_nobody_wrote(x_ref, out_ref, number):
    out_ref[...] = lax.cond(number[0] > 0, lambda: x_ref[...], lambda: -x_ref[...])  # here


@wrong(UNSET, 1, [REAL])
def a_while_loop_until_a_number_that_nobody_wrote(x_ref, out_ref, number):
    limit = number[0]  # here
    out_ref[...] = x_ref[...]
    lax.while_loop(lambda x: x < limit, lambda x: x + 1, mnp.float32(0))


@wrong(UNSET, 1, [pltpu.SMEM((4,), mnp.int32)])
def a_row_that_nobody_chose(x_ref, out_ref, rows):
    rows[0] = 1
    out_ref[...] = x_ref[...]
    out_ref[0] = x_ref[rows[2]]  # here


@wrong(UNSET, 1, [VMEM])
def all_is_well_if_what_nobody_wrote_is_small(x_ref, out_ref, scratch):
    out_ref[...] = x_ref[...]
    small = (scratch[...] < 1).all()  # here

    @pl.when(small)  # here
    def _():
        out_ref[...] = -x_ref[...]


@wrong(UNSET, 2, [pltpu.SMEM((2,), mnp.int32), DMA, DMA])
def a_device_that_nobody_named(x_ref, out_ref, ids, send, receive):
    other = 1 - lax.axis_index("x")
    ids[0] = other
    barrier(other)
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": ids[1]}).wait()  # here


# It is sent


@wrong(UNSET, 2, [VMEM, DMA, DMA])
def memory_that_nobody_wrote_is_sent(x_ref, out_ref, scratch, send, receive):
    other = 1 - lax.axis_index("x")
    barrier(other)
    pltpu.async_remote_copy(scratch, out_ref, send, receive, device_id={"x": other}).wait()  # here


@wrong(UNSET, 2, [VMEM, DMA, DMA])
def half_of_what_is_sent_was_written(x_ref, out_ref, scratch, send, receive):
    other = 1 - lax.axis_index("x")
    scratch[0:4] = x_ref[0:4]
    barrier(other)
    pltpu.async_remote_copy(scratch, out_ref, send, receive, device_id={"x": other}).wait()  # here


@wrong(UNSET, 4, [TWO, DMA, DMA])
def the_slot_after_the_last_is_sent(x_ref, out_ref, slots, send, receive):
    left, right = around()
    barrier(left, right)
    slots[0] = x_ref[...]
    for step in range(2):
        copy = pltpu.make_async_remote_copy(slots.at[step], out_ref, send, receive, device_id={"x": right})
        copy.start()  # here
        copy.wait()


# Results that are not written


@wrong(UNSET, 1)  # here
def nothing_is_stored(x_ref, out_ref):
    x_ref[...] * 2


@wrong(UNSET, 1)  # here
def half_of_the_result_is_stored(x_ref, out_ref):
    out_ref[0:4] = x_ref[0:4]


@wrong(UNSET, 1)  # here
def one_element_of_the_result_is_left_out(x_ref, out_ref):
    out_ref[0:7] = x_ref[0:7]
    out_ref[7, 0:15] = x_ref[7, 0:15]


@wrong(UNSET, 1, grid=(3,), in_specs=[ROWS], out_specs=ROWS)  # here
def the_grid_is_one_step_short(x_ref, out_ref):
    out_ref[...] = x_ref[...]


@wrong(UNSET, 1, grid=(4,), in_specs=[ROWS], out_specs=pl.BlockSpec((2, 16), lambda i: (i // 2, 0)))  # here
def two_steps_write_one_block(x_ref, out_ref):
    out_ref[...] = x_ref[...]


@wrong(UNSET, 1, grid=(4,), in_specs=[ROWS], out_specs=ROWS)  # here
def only_even_steps_store(x_ref, out_ref):
    @pl.when(pl.program_id(0) % 2 == 0)
    def _():
        out_ref[...] = x_ref[...]


@wrong(UNSET, 1, grid=(4,), in_specs=[ROWS], out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)))  # here
def the_last_step_never_comes(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 4)
    def _():
        out_ref[...] = mnp.ones_like(out_ref)


@wrong(UNSET, 1, [DMA], in_specs=[ANY], out_specs=ANY)  # here
def half_of_the_result_is_copied(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref.at[0:4], out_ref.at[0:4], sem).wait()


@wrong(UNSET, 1, [VMEM], in_specs=[ANY], out_specs=ANY)  # here
def half_of_the_result_is_copied_and_read_again(x_ref, out_ref, block):
    pltpu.sync_copy(x_ref.at[0:4], out_ref.at[0:4])
    pltpu.sync_copy(out_ref.at[0:4], block.at[0:4])


@wrong(UNSET, 1, out_specs=pl.BlockSpec(memory_space=pltpu.VMEM))  # here
def half_of_the_result_is_worked_on_where_it_is(x_ref, out_ref):
    out_ref[0:4] = x_ref[0:4]
    out_ref[0:4] = out_ref[0:4] * 2


@wrong(UNSET, 1, in_specs=[ANY], out_specs=ANY)  # here
def a_pipeline_over_half_of_the_result(x_ref, out_ref):
    def body(x, out):
        out[...] = x[...]

    pltpu.emit_pipeline(body, grid=(2,), in_specs=[ROWS], out_specs=ROWS)(x_ref, out_ref)


@wrong(UNSET, 4, [DMA, DMA], in_specs=[ANY], out_specs=ANY)  # here
def one_device_receives_half(x_ref, out_ref, send, receive):
    left, right = around()
    barrier(left, right)
    half = pl.ds(0, 4)
    pltpu.async_remote_copy(x_ref.at[half], out_ref.at[half], send, receive, device_id={"x": right}).wait()


@wrong(UNSET, 2)  # here
def the_second_device_stores_nothing(x_ref, out_ref):
    barrier(1 - lax.axis_index("x"))

    @pl.when(lax.axis_index("x") == 0)
    def _():
        out_ref[...] = x_ref[...]


@wrong(UNSET, 1)  # here
def a_masked_store_leaves_columns_out(x_ref, out_ref):
    mask = lax.broadcasted_iota(mnp.int32, (8, 16), 1) < 10
    pltpu.store(out_ref, x_ref[...], mask=mask)


# Values that go from step to step along a parallel axis

PARALLEL = {"dimension_semantics": ("parallel",), "collective_id": None}


@wrong(pltpu.KernelError, 1, [VMEM], grid=(4,), in_specs=[ROWS], out_specs=ROWS, params=PARALLEL)
def a_sum_along_a_parallel_axis(x_ref, out_ref, acc):
    @pl.when(pl.program_id(0) == 0)
    def _():
        acc[...] = mnp.zeros_like(acc)

    acc[0:2] += x_ref[...]  # here
    out_ref[...] = acc[0:2]


@wrong(
    pltpu.KernelError, 1, grid=(4,), in_specs=[ROWS], out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)), params=PARALLEL
)
def a_result_added_to_along_a_parallel_axis(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    out_ref[0:2] += x_ref[...]  # here


@wrong(pltpu.KernelError, 1, [VMEM], grid=(4,), in_specs=[ROWS], out_specs=ROWS, params=PARALLEL)
def a_table_made_in_the_first_step_of_a_parallel_axis(x_ref, out_ref, table):
    @pl.when(pl.program_id(0) == 0)
    def _():
        table[...] = mnp.ones_like(table)  # here

    out_ref[...] = x_ref[...] * table[0:2]  # here


@wrong(
    pltpu.KernelError, 1, [VMEM], grid=(2, 2), in_specs=[pl.BlockSpec((4, 8), lambda i, j: (i, j))],
    out_specs=pl.BlockSpec((4, 8), lambda i, j: (i, j)),
    params={"dimension_semantics": ("parallel", "arbitrary"), "collective_id": None},
)  # fmt: skip
def a_sum_over_both_axes_of_which_one_is_parallel(x_ref, out_ref, acc):
    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _():
        acc[...] = mnp.zeros_like(acc)

    acc[0:4, 0:8] += x_ref[...]  # here
    out_ref[...] = acc[0:4, 0:8]


# Barriers


@wrong(pltpu.BarrierError, 2)  # here
def an_id_without_a_barrier(x_ref, out_ref):
    out_ref[...] = x_ref[...]


@wrong(pltpu.BarrierError, 3, [REGULAR])
def a_semaphore_in_the_place_of_the_barrier(x_ref, out_ref, ready):
    left, right = around()
    for neighbor in (left, right):
        pltpu.semaphore_signal(ready, device_id={"x": neighbor})  # here
    pltpu.semaphore_wait(ready, 2)
    out_ref[...] = x_ref[...]


def twice(x_ref, out_ref):
    left, right = around()
    for _again in range(2):
        semaphore = pltpu.get_barrier_semaphore()
        for neighbor in (left, right):
            pltpu.semaphore_signal(semaphore, device_id={"x": neighbor})  # here
        pltpu.semaphore_wait(semaphore, 2)
    out_ref[...] = x_ref[...]


for devices in (3, 4, 5, 8, 16):
    made = type(twice)(twice.__code__, twice.__globals__, f"a_barrier_again_at_once_on_{devices}")
    wrong(pltpu.BarrierError, devices, debug=pl.Debug())(made)


@wrong(pltpu.BarrierError, 4, [DMA, DMA], pl.Debug())
def a_barrier_at_the_end_of_a_permute(x_ref, out_ref, send, receive):
    left, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    for neighbor in (left, right):
        pltpu.semaphore_signal(semaphore, device_id={"x": neighbor})
    pltpu.semaphore_wait(semaphore, 2)
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).wait()
    for neighbor in (left, right):
        pltpu.semaphore_signal(semaphore, device_id={"x": neighbor})  # here
    pltpu.semaphore_wait(semaphore, 2)


@wrong(pltpu.BarrierError, 4, [REGULAR], pl.Debug())
def a_scoped_barrier_is_used_again(x_ref, out_ref, ready):
    left, right = around()
    barrier(left, right)
    for _again in range(2):
        for neighbor in (left, right):
            pltpu.semaphore_signal(ready, device_id={"x": neighbor})  # here
        pltpu.semaphore_wait(ready, 2)
    out_ref[...] = x_ref[...]


@wrong(pltpu.BarrierError, 8, debug=pl.Debug())
def a_barrier_of_all_is_used_again(x_ref, out_ref):
    me, n = lax.axis_index("x"), lax.axis_size("x")
    semaphore = pltpu.get_barrier_semaphore()
    for _again in range(2):
        for other in range(1, n):
            pltpu.semaphore_signal(semaphore, device_id={"x": lax.rem(me + other, n)})  # here
        pltpu.semaphore_wait(semaphore, n - 1)
    out_ref[...] = x_ref[...]

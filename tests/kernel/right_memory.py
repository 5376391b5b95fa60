"""Right kernels that look as if they were wrong: memory, windows and pipelines of one device."""

from __future__ import annotations

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR
from tests.kernel.corpus import F32, TWO, VMEM, right

SAME = lambda x: x
TWICE = lambda x: 2 * x
ROWS = pl.BlockSpec((2, 16), lambda i: (i, 0))
MAIN = {"in_specs": [ANY], "out_specs": ANY}


def double(row_ref, block_ref):
    block_ref[...] = row_ref[...] * 2


@right(TWICE, 1, [VMEM, VMEM, DMA])
def a_source_is_read_while_a_copy_reads_it(x_ref, out_ref, a, b, sem):
    a[...] = x_ref[...]
    copy = pltpu.async_copy(a, b, sem)
    out_ref[...] = a[...]
    copy.wait()
    out_ref[...] += b[...]


@right(TWICE, 1, [VMEM, DMA])
def a_buffer_is_used_again_after_the_wait(x_ref, out_ref, scratch, sem):
    for half in range(2):
        rows = pl.ds(half * 4, 4)
        pltpu.async_copy(x_ref.at[rows], scratch.at[0:4], sem).wait()
        scratch[0:4] *= 2
        out_ref[rows] = scratch[0:4]


@right(SAME, 1, [VMEM, VMEM, DMA])
def two_copies_share_a_semaphore_and_both_are_waited_for_before_either_is_used(x_ref, out_ref, a, b, sem):
    copies = [pltpu.async_copy(x_ref, buffer, sem) for buffer in (a, b)]
    for copy in copies:
        copy.wait()
    out_ref[...] = (a[...] + b[...]) / 2


@right(SAME, 1, [VMEM, DMA])
def a_copy_is_waited_for_in_two_parts(x_ref, out_ref, scratch, sem):
    pltpu.async_copy(x_ref, scratch, sem)
    for rows in (slice(0, 4), slice(4, 8)):
        pltpu.make_async_copy(x_ref.at[rows], scratch.at[rows], sem).wait()
    out_ref[...] = scratch[...]


@right(SAME, 1, [VMEM, DMA])
def halves_are_waited_for_as_a_whole(x_ref, out_ref, scratch, sem):
    for rows in (slice(0, 4), slice(4, 8)):
        pltpu.make_async_copy(x_ref.at[rows], scratch.at[rows], sem).start()
    pltpu.make_async_copy(x_ref, scratch, sem).wait()
    out_ref[...] = scratch[...]


@right(lambda x: np.where(np.arange(16) < 8, x, -1), 1, [VMEM, DMA])
def other_columns_are_stored_while_a_copy_writes(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref.at[:, 0:8], scratch.at[:, 0:8], sem)
    scratch[:, 8:16] = mnp.full((8, 8), -1.0)
    copy.wait()
    out_ref[...] = scratch[...]


@right(lambda x: np.where(np.arange(8)[:, None] % 2, x, 0), 1, [VMEM, DMA])
def even_rows_are_stored_while_a_copy_writes_the_odd_ones(x_ref, out_ref, scratch, sem):
    odd = pl.ds(1, 4, 2)
    copy = pltpu.async_copy(x_ref.at[odd], scratch.at[odd], sem)
    scratch[pl.ds(0, 4, 2)] = mnp.zeros((4, 16))
    copy.wait()
    out_ref[...] = scratch[...]


@right(lambda x: np.where(np.arange(8)[:, None] < 3, x, -x), 1, [VMEM, DMA])
def masked_lanes_are_not_written_while_a_copy_writes_them(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref.at[0:3], scratch.at[0:3], sem)
    mask = mnp.broadcast_to(mnp.arange(8)[:, None] >= 3, (8, 16))
    pl.store(scratch, ..., -x_ref[...], mask=mask)
    copy.wait()
    out_ref[...] = scratch[...]


@right(lambda x: 3 * x, 1, [VMEM, DMA])
def copies_add_one_after_the_other(x_ref, out_ref, scratch, sem):
    scratch[...] = x_ref[...]
    for _ in range(2):
        pltpu.async_copy(x_ref, scratch, sem, add=True).wait()
    out_ref[...] = scratch[...]


@right(SAME, 1, [VMEM, VMEM, DMA])
def memory_without_a_value_is_copied_and_not_read(x_ref, out_ref, a, b, sem):
    pltpu.async_copy(a, b, sem).wait()
    b[...] = x_ref[...]
    out_ref[...] = b[...]


@right(lambda x: np.where(np.arange(8)[:, None] < 4, x, 0), 1, [VMEM])
def only_the_part_that_is_read_has_a_value(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    out_ref[...] = mnp.zeros_like(out_ref)
    out_ref[0:4] = scratch[0:4]


@right(SAME, 1, [REGULAR])
def signals_are_waited_for_in_other_amounts(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, 5)
    pltpu.semaphore_wait(sem, 2)
    pltpu.semaphore_wait(sem, 3, decrement=False)
    pltpu.semaphore_wait(sem, 3)
    out_ref[...] = x_ref[...]


@right(SAME, 1, [DMA((2,)), TWO], grid=(4,), **MAIN)
def two_buffers_over_grid_steps(x_ref, out_ref, sems, buffers):
    """What a step needs was started by the one before, with semaphores of its own."""
    i = pl.program_id(0)

    def fetch(step):
        slot = lax.rem(step, 2)
        rows = buffers.at[slot, pl.ds(0, 2)]
        return pltpu.make_async_copy(x_ref.at[pl.ds(step * 2, 2)], rows, sems.at[slot])

    @pl.when(i == 0)
    def _():
        fetch(i).start()

    @pl.when(i < 3)
    def _():
        fetch(i + 1).start()

    fetch(i).wait()
    pltpu.sync_copy(buffers.at[lax.rem(i, 2), pl.ds(0, 2)], out_ref.at[pl.ds(i * 2, 2)])


@right(SAME, 1, [DMA((3,)), pltpu.VMEM((3, 1, 16), F32)], **MAIN)
def three_buffers_and_results_that_leave_late(x_ref, out_ref, sems, buffers):
    def come(i):
        return pltpu.make_async_copy(x_ref.at[pl.ds(i, 1)], buffers.at[i % 3], sems.at[i % 3])

    def go(i):
        return pltpu.make_async_copy(buffers.at[i % 3], out_ref.at[pl.ds(i, 1)], sems.at[i % 3])

    come(0).start()
    come(1).start()
    for i in range(8):
        come(i).wait()
        go(i).start()
        if i + 2 < 8:
            if i >= 1:
                go(i - 1).wait()
            come(i + 2).start()
    for i in range(5, 8):
        go(i).wait()


@right(SAME, 1, [REGULAR, VMEM], grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def a_signal_of_one_grid_step_is_waited_for_in_the_next(x_ref, out_ref, sem, scratch):
    i = pl.program_id(0)

    @pl.when(i > 0)
    def _():
        pltpu.semaphore_wait(sem)

    scratch[0:2] = x_ref[...]
    out_ref[...] = scratch[0:2]

    @pl.when(i < 3)
    def _():
        pltpu.semaphore_signal(sem)


@right(TWICE, 1, [], grid=(4,), in_specs=[ROWS], out_specs=ROWS, input_output_aliases={0: 0})
def an_operand_is_updated_in_place(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


@right(SAME, 1, [DMA, VMEM], grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def a_window_is_copied_from_and_waited_for_in_the_same_step(x_ref, out_ref, sem, scratch):
    copy = pltpu.async_copy(x_ref, scratch.at[0:2], sem)
    first = x_ref[...]
    copy.wait()
    out_ref[...] = (scratch[0:2] + first) / 2


@right(SAME, 1, [DMA], grid=(4,), in_specs=[ROWS], out_specs=ROWS)
def a_window_is_copied_to_and_waited_for_in_the_same_step(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref, out_ref, sem).wait()


@right(
    lambda x: np.broadcast_to(x.sum(1, keepdims=True), x.shape), 1, [], grid=(8,),
    in_specs=[pl.BlockSpec((1, 16), lambda i: (i, 0))], out_specs=pl.BlockSpec((8, 16), lambda i: (0, 0)),
)  # fmt: skip
def an_output_stays_in_its_window_while_it_is_added_to(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = mnp.zeros_like(out_ref)

    out_ref[...] += x_ref[...]


@right(lambda x: 4 * x, 1, [], **MAIN)
def a_pipeline_reads_what_the_one_before_has_written(x_ref, out_ref):
    pipeline = pltpu.emit_pipeline(double, grid=(4,), in_specs=[ROWS], out_specs=ROWS)
    pipeline(x_ref, out_ref)
    pipeline(out_ref, out_ref)


@right(lambda x: 6 * x, 1, [], **MAIN)
def three_pipelines_add_to_the_same_rows(x_ref, out_ref):
    for n in range(3):
        pltpu.emit_pipeline(double, grid=(4,), in_specs=[ROWS], out_specs=ROWS, should_accumulate_out=n > 0)(
            x_ref, out_ref
        )


@right(TWICE, 1, [pltpu.SMEM((4,), mnp.int32)], **MAIN)
def blocks_are_chosen_by_numbers_that_the_kernel_has_stored(x_ref, out_ref, order):
    for i, block in enumerate((3, 1, 0, 2)):
        order[i] = block
    spec = pl.BlockSpec((2, 16), lambda i: (order[i], 0))
    pltpu.emit_pipeline(double, grid=(4,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)


@right(TWICE, 1, [], **MAIN)
def blocks_that_do_not_divide_and_a_pipeline_in_a_pipeline(x_ref, out_ref):
    inner = pl.BlockSpec((1, 16), lambda i: (i, 0))

    def outer(row_ref, block_ref):
        pltpu.emit_pipeline(double, grid=(3,), in_specs=[inner], out_specs=inner)(row_ref, block_ref)

    spec = pl.BlockSpec((3, 16), lambda i: (i, 0))
    pltpu.emit_pipeline(outer, grid=(3,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)


@right(lambda x: 5 * x, 1, [], grid=(2,), **MAIN)
def a_run_leaves_its_writes_to_the_next_one_which_adds_to_them(x_ref, out_ref):
    def body(row_ref, block_ref):
        block_ref[...] = row_ref[...] * 2

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        body, grid=(4,), in_specs=[ROWS], out_specs=ROWS, should_accumulate_out=True
    )

    def scoped(allocations):
        for run in range(2):
            pipeline(
                x_ref, out_ref, allocations=allocations, init_allocations=run == 0,
                out_epilogue=lambda _, run=run: run == 0,
            )  # fmt: skip

    def once(a, b):
        pltpu.sync_copy(x_ref, a)
        pltpu.sync_copy(out_ref, b)
        b[...] += a[...]
        pltpu.sync_copy(b, out_ref)

    @pl.when(pl.program_id(0) == 0)
    def _():
        pl.run_scoped(scoped, allocate(x_ref, out_ref))

    @pl.when(pl.program_id(0) == 1)
    def _():
        pl.run_scoped(once, VMEM, VMEM)


@right(lambda x: x[:, ::-1], 1, [VMEM, DMA((8,))])
def a_loop_starts_all_copies_and_another_waits_the_last_first(x_ref, out_ref, scratch, sems):
    def copy(i):
        return pltpu.make_async_copy(x_ref.at[pl.ds(7 - i, 1)], scratch.at[pl.ds(i, 1)], sems.at[i])

    lax.fori_loop(0, 8, lambda i, _: copy(i).start(), None)
    lax.fori_loop(0, 8, lambda i, _: copy(7 - i).wait(), None)
    out_ref[...] = scratch[...]


@right(SAME, 1, [VMEM, DMA])
def a_copy_is_waited_for_in_both_branches(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref, scratch, sem)
    lax.cond(x_ref[0, 0] > 5, copy.wait, copy.wait)
    out_ref[...] = scratch[...]


@right(TWICE, 1, [])
def scopes_one_after_the_other_use_the_same_memory(x_ref, out_ref):
    def scoped(scratch, sem):
        pltpu.async_copy(x_ref, scratch, sem).wait()
        return scratch[...]

    out_ref[...] = pl.run_scoped(scoped, VMEM, DMA) + pl.run_scoped(scoped, VMEM, DMA)

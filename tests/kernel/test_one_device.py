"""What else kernels of one device may say, against NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, close, debugs, numbers, out


@debugs
def test_a_pipeline_adds_to_what_is_in_main_memory(debug):
    def kernel(x_ref, old_ref, out_ref):
        def body(block_ref, total_ref):
            total_ref[...] = block_ref[...] * 2

        spec = pl.BlockSpec((4, 8), lambda i: (i, 0))
        pltpu.emit_pipeline(body, grid=(3,), in_specs=[spec], out_specs=spec, should_accumulate_out=[True])(
            x_ref, out_ref
        )

    x, old = numbers(12, 8), numbers(12, 8, seed=1)
    call = pl.pallas_call(
        kernel, out(12, 8), in_specs=[ANY, ANY], out_specs=ANY, input_output_aliases={1: 0}, debug=debug
    )
    close(call(x, old), old + 2 * x)


@debugs
def test_loops_and_branches_may_read_and_write_memory(debug):
    def kernel(x_ref, out_ref, total_ref):
        total_ref[0] = 0.0

        def add(i, count):
            total_ref[0] = total_ref[0] + x_ref[i, 0]
            return count + 1

        count = lax.fori_loop(0, 4, add, 0)

        @pl.loop(4, 8)
        def _(i):
            total_ref[0] += x_ref[i, 0]

        count = lax.while_loop(lambda n: n < 8, lambda n: n + 1, count)

        def store(value):
            out_ref[0, 0] = total_ref[0] + value

        lax.cond(count == 8, store, lambda value: None, 10.0)
        lax.switch(count - 7, [lambda: None, lambda: store(20.0)])

    x = numbers(8, 1)
    call = pl.pallas_call(kernel, out(1, 1), scratch_shapes=[pltpu.SMEM((1,), F32)], debug=debug)
    close(call(x), [[x.sum() + 20]])


@debugs
def test_masked_loads_and_stores(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = mnp.zeros_like(out_ref)
        mask = mnp.arange(4) < 3
        row = pl.load(x_ref, (1, pl.ds(2, 4)), mask=mask, other=-1.0)
        pl.store(out_ref, (0, pl.ds(0, 4)), row, mask=mnp.arange(4) != 1)

    x = numbers(2, 5)
    row = np.array([x[1, 2], 0, x[1, 4], -1], np.float32)
    close(pl.pallas_call(kernel, out(1, 4), debug=debug)(x), row[None])


def test_numbers_keep_their_dtypes():
    def kernel(x_ref, out_ref):
        assert pl.program_id(0).dtype == np.int32
        assert (x_ref[...] * 2.5).dtype == mnp.bfloat16
        out_ref[...] = mnp.dot(x_ref[...], x_ref[...], preferred_element_type=F32)

    x = mnp.asarray(numbers(8, 8)).astype("bfloat16")
    call = pl.pallas_call(kernel, out(8, 8), grid=(1,))
    close(call(x), np.asarray(x, np.float32) @ np.asarray(x, np.float32))


def test_arguments_and_results_may_be_trees():
    def kernel(refs, outs):
        outs["sum"][...] = refs["a"][...] + refs["b"][...]

    a, b = numbers(4), numbers(4, seed=1)
    found = pl.pallas_call(kernel, [{"sum": out(4)}])({"a": a, "b": b})
    close(found[0]["sum"], a + b)


def test_adding_copies_and_reshaped_refs():
    def kernel(x_ref, out_ref):
        out_ref[...] = mnp.ones_like(out_ref)
        pltpu.sync_copy(x_ref.reshape(2, 8), out_ref, add=True)

    x = numbers(4, 4)
    close(pl.pallas_call(kernel, out(2, 8))(x), 1 + x.reshape(2, 8))


@debugs
def test_semaphores_count_are_read_and_waited_for_without_taking(debug):
    def kernel(out_ref, sems):
        pltpu.semaphore_signal(sems.at[1, 0], 3)
        pltpu.semaphore_wait(sems.at[1, 0], 2, decrement=False)
        out_ref[0] = pltpu.semaphore_read(sems.at[1].at[0])
        pltpu.semaphore_wait(sems.at[1, 0], 2)
        out_ref[1] = pltpu.semaphore_read(sems.at[1, 0])
        pltpu.semaphore_wait(sems.at[1, 0])
        out_ref[2] = pltpu.semaphore_read(sems.at[1, 0]) + pltpu.semaphore_read(sems.at[0, 0])

    scratch = [pltpu.SemaphoreType.REGULAR((2, 1))]
    assert pl.pallas_call(kernel, out(3, dtype=mnp.int32), scratch_shapes=scratch, debug=debug)().tolist() == [3, 1, 0]


@debugs
def test_scratch_memory_by_name_and_partial_kernels(debug):
    def kernel(scale, x_ref, out_ref, *, total, copied):
        pltpu.async_copy(x_ref, total, copied).wait()
        out_ref[...] = total[...] * scale

    x = numbers(4, 8)
    call = pl.pallas_call(
        partial(kernel, 3.0), out(4, 8), in_specs=[ANY], debug=debug,
        scratch_shapes={"total": pltpu.VMEM((4, 8), F32), "copied": pltpu.SemaphoreType.DMA},
    )  # fmt: skip
    close(call(x), 3 * x)


def test_an_empty_grid_leaves_poison_and_an_empty_output_is_empty():
    def kernel(out_ref):
        out_ref[...] = mnp.zeros_like(out_ref)

    spec = pl.BlockSpec((1, 2), lambda i: (i, 0))
    assert np.isnan(np.asarray(pl.pallas_call(kernel, out(2, 2), grid=(0,), out_specs=spec)())).all()
    large = pl.pallas_call(lambda out_ref: None, out(300, 300), out_specs=ANY)()
    assert np.isnan(np.asarray(large)).all()


@debugs
def test_a_block_in_main_memory_is_a_part_of_the_operand(debug):
    def kernel(x_ref, out_ref, scratch_ref):
        assert x_ref.shape == out_ref.shape == (4, 8)
        pltpu.sync_copy(x_ref, scratch_ref)
        scratch_ref[...] *= 2 + pl.program_id(0)
        pltpu.sync_copy(scratch_ref, out_ref)

    block = pl.BlockSpec((4, 8), lambda i: (2 - i, 0), memory_space=pl.ANY)
    x = numbers(12, 8)
    call = pl.pallas_call(
        kernel, out(12, 8), grid=(3,), in_specs=[block], out_specs=block, scratch_shapes=[pltpu.VMEM((4, 8), F32)],
        debug=debug,
    )  # fmt: skip
    close(call(x), x * np.repeat([4, 3, 2], 4)[:, None])


@debugs
def test_a_sum_may_come_back_to_a_block(debug):
    def product(x_ref, y_ref, z_ref):
        z_ref[...] = x_ref[...] @ y_ref[...]

    def kernel(x_ref, y_ref, old_ref, z_ref):
        pltpu.emit_pipeline(
            product,
            grid=(3, 2, 2),  # what is summed over runs slowest
            in_specs=[pl.BlockSpec((4, 4), lambda k, i, j: (i, k)), pl.BlockSpec((4, 4), lambda k, i, j: (k, j))],
            out_specs=pl.BlockSpec((4, 4), lambda k, i, j: (i, j)),
            should_accumulate_out=True,
        )(x_ref, y_ref, z_ref)

    x, y, old = numbers(8, 12), numbers(12, 8, seed=1), numbers(8, 8, seed=2)
    call = pl.pallas_call(
        kernel, out(8, 8), in_specs=[ANY] * 3, out_specs=ANY, input_output_aliases={2: 0}, debug=debug
    )
    close(call(x, y, old), old + x @ y)

"""Kernels of one device against NumPy: grids, blocks, windows, pipelines. Each is run in order and over schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu

F32 = mnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
debugs = pytest.mark.parametrize("debug", [None, pl.Debug(schedules=8)], ids=["plain", "debug"])


def out(*shape: int, dtype: Any = F32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)


@debugs
def test_local_copy_views(debug):
    def kernel(x_ref, out_ref, sem):
        out_ref[...] = mnp.zeros_like(out_ref)
        for start in (0, 8):
            copy = pltpu.make_async_copy(x_ref, out_ref.at[pl.ds(start, 8)], sem)
            copy.start()
            copy.wait()

    x = numbers(8, 128)
    call = pl.pallas_call(kernel, out(16, 128), scratch_shapes=[pltpu.SemaphoreType.DMA], debug=debug)
    close(call(x), np.concatenate([x, x]))


@debugs
def test_a_copy_is_started_in_one_step_and_waited_for_in_the_next_with_a_descriptor_made_anew(debug):
    def kernel(x_ref, out_ref, sem):
        i = pl.program_id(0)

        def copy(step):
            return pltpu.make_async_copy(x_ref.at[step], out_ref.at[step], sem.at[lax.rem(step, 2)])

        @pl.when(i > 0)
        def _():
            copy(i - 1).wait()

        copy(i).start()

        @pl.when(i == pl.num_programs(0) - 1)
        def _():
            copy(i).wait()

    x = numbers(5, 8, 128)
    call = pl.pallas_call(
        kernel, out(5, 8, 128), grid=(5,), in_specs=[ANY], out_specs=ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,))], debug=debug,
    )  # fmt: skip
    close(call(x), x)


@debugs
def test_index_maps_see_the_grid_last_axis_fastest(debug):
    def kernel(out_ref):
        out_ref[...] = mnp.full(out_ref.shape, pl.program_id(0) * 10 + pl.program_id(1))

    call = pl.pallas_call(
        kernel,
        out(8, 4, dtype=mnp.int32),
        grid=(4, 2),
        out_specs=pl.BlockSpec((2, 2), lambda i, j: (i, j)),
        debug=debug,
    )
    expected = np.kron(np.arange(4)[:, None] * 10 + np.arange(2)[None], np.ones((2, 2), int))
    np.testing.assert_array_equal(call(), expected)


@debugs
def test_ragged_edges_keep_the_block_shape_and_drop_what_is_outside(debug):
    def kernel(x_ref, out_ref):
        assert x_ref.shape == (2, 3)
        out_ref[...] = x_ref[...] + 1

    x = numbers(7, 5)
    spec = pl.BlockSpec((2, 3), lambda i, j: (i, j))
    call = pl.pallas_call(kernel, out(7, 5), grid=(4, 2), in_specs=[spec], out_specs=spec, debug=debug)
    close(call(x), x + 1)


@debugs
def test_a_block_may_be_larger_than_the_array(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    x = numbers(3, 2)
    spec = pl.BlockSpec((8, 4), lambda: (0, 0))
    close(pl.pallas_call(kernel, out(3, 2), in_specs=[spec], out_specs=spec, debug=debug)(x), 2 * x)


@debugs
def test_an_output_is_revisited_in_consecutive_steps(debug):
    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = mnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    x = numbers(4, 6, 8)
    call = pl.pallas_call(
        kernel, out(4, 6), grid=(2, 3, 8),
        in_specs=[pl.BlockSpec((2, 2, None), lambda i, j, k: (i, j, k))],
        out_specs=pl.BlockSpec((2, 2), lambda i, j, k: (i, j)), debug=debug,
    )  # fmt: skip
    close(call(x), x.sum(2))


@debugs
@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (2, 0), (0, 1)])
def test_element_indices_with_padding(debug, padding):
    before, after = padding
    steps = 5 + before + after - 1

    def kernel(x_ref, out_ref):
        out_ref[0] = x_ref[0]
        out_ref[1] = x_ref[1]

    x = numbers(5)
    call = pl.pallas_call(
        kernel, out(steps, 2), grid=(steps,),
        in_specs=[pl.BlockSpec((pl.Element(2, padding),), lambda i: (i,))],
        out_specs=pl.BlockSpec((None, 2), lambda i: (i, 0)), debug=debug,
    )  # fmt: skip
    padded = np.concatenate([np.full(before, np.nan), x, np.full(after, np.nan)])
    np.testing.assert_array_equal(call(x), np.stack([padded[i : i + 2] for i in range(steps)]).astype(np.float32))


@debugs
@pytest.mark.parametrize("one", [None, pl.Squeezed()], ids=["None", "Squeezed"])
def test_squeezed_dims_are_not_seen(debug, one):
    def kernel(x_ref, out_ref):
        assert x_ref.shape == (4,) and out_ref.shape == ()
        out_ref[...] = x_ref[...].sum()

    x = numbers(3, 4)
    call = pl.pallas_call(
        kernel, out(3), grid=(3,),
        in_specs=[pl.BlockSpec((one, 4), lambda i: (i, 0))], out_specs=pl.BlockSpec((one,), lambda i: (i,)),
        debug=debug,
    )  # fmt: skip
    close(call(x), x.sum(1))


@debugs
def test_scalars_are_there_before_the_grid_and_choose_blocks(debug):
    def kernel(which_ref, x_ref, out_ref):
        out_ref[...] = x_ref[...] * which_ref[pl.program_id(0)]

    x, which = numbers(6, 4), np.array([3, 0, 5], np.int32)
    call = pl.pallas_call(
        kernel, out(3, 4), debug=debug,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((1, 4), lambda i, which_ref: (which_ref[i], 0))],
            out_specs=pl.BlockSpec((1, 4), lambda i, which_ref: (i, 0)),
        ),
    )  # fmt: skip
    close(call(which, x), x[which] * which[:, None])


@debugs
def test_a_grid_of_computed_size_updates_an_aliased_input(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    x = numbers(6, 4)
    spec = pl.BlockSpec((1, 4), lambda i: (i, 0))
    steps = mnp.asarray(4)
    call = pl.pallas_call(
        kernel, out(6, 4), grid=(steps,), in_specs=[spec], out_specs=spec, input_output_aliases={0: 0}, debug=debug
    )
    close(call(x), np.concatenate([x[:4] + 1, x[4:]]))


def matmul_body(x_ref, y_ref, z_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        z_ref[...] = mnp.zeros_like(z_ref)

    z_ref[...] += x_ref[...] @ y_ref[...]


def nested_matmul(m, k, n, t, in_mode=None, **options):
    def kernel(x_ref, y_ref, z_ref):
        pltpu.emit_pipeline(
            matmul_body,
            grid=(m // t, n // t, k // t),
            in_specs=[
                pl.BlockSpec((t, t), lambda i, j, k: (i, k), pipeline_mode=in_mode),
                pl.BlockSpec((t, t), lambda i, j, k: (k, j), pipeline_mode=in_mode),
            ],
            out_specs=pl.BlockSpec((t, t), lambda i, j, k: (i, j)),
        )(x_ref, y_ref, z_ref)

    return pl.pallas_call(kernel, out(m, n), in_specs=[ANY, ANY], out_specs=ANY, **options)


@debugs
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("lookahead", [False, True])
def test_any_number_of_buffers_gives_the_same(debug, count, lookahead):
    x, y = numbers(32, 24), numbers(24, 16, seed=1)
    call = nested_matmul(32, 24, 16, 8, pl.Buffered(count, lookahead), debug=debug)
    close(call(x, y), x @ y)


LISTS = [list(range(6)), [2] * 6, [0, 0, 7, 7, 4, 4], [3, 3, 7, 7, 5, 3, 3], [5]]


@debugs
@pytest.mark.parametrize("blocks", LISTS)
@pytest.mark.parametrize("mode", [pl.Buffered(n, ahead) for n in (1, 2, 3) for ahead in (False, True)])
def test_gathered_blocks(debug, blocks, mode):
    def kernel(which_ref, x_ref, out_ref):
        def body(block_ref, row_ref):
            row_ref[...] = block_ref[...]

        pltpu.emit_pipeline(
            body,
            grid=(len(blocks),),
            in_specs=[pl.BlockSpec((1, 8), lambda i: (which_ref[i], 0), pipeline_mode=mode)],
            out_specs=pl.BlockSpec((1, 8), lambda i: (i, 0)),
        )(x_ref, out_ref)

    x = numbers(8, 8)
    call = pl.pallas_call(
        kernel, out(len(blocks), 8), debug=debug,
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, in_specs=[ANY], out_specs=ANY),
    )  # fmt: skip
    close(call(np.array(blocks, np.int32), x), x[blocks])


@debugs
@pytest.mark.parametrize("blocks", [list(range(6)), [0, 0, 7, 7, 4, 4], [5]])
def test_scattered_blocks(debug, blocks):
    def kernel(which_ref, x_ref, old_ref, out_ref):
        def body(row_ref, block_ref):
            block_ref[...] = row_ref[...]

        pltpu.emit_pipeline(
            body,
            grid=(len(blocks),),
            in_specs=[pl.BlockSpec((1, 8), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((1, 8), lambda i: (which_ref[i], 0)),
        )(x_ref, out_ref)

    x, old = numbers(len(blocks), 8), numbers(8, 8, seed=1)
    expected = old.copy()
    for i, block in enumerate(blocks):
        expected[block] = x[i]
    call = pl.pallas_call(
        kernel, out(8, 8), debug=debug, input_output_aliases={2: 0},
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, in_specs=[ANY, ANY], out_specs=ANY),
    )  # fmt: skip
    close(call(np.array(blocks, np.int32), x, old), expected)


@debugs
def test_slices_of_bounded_size(debug):
    slices = np.array([[0, 2], [2, 3], [3, 5], [5, 8]], np.int32)

    def kernel(slices_ref, x_ref, out_ref):
        def index(i):
            start, stop = slices_ref[i, 0], slices_ref[i, 1]
            return (pl.ds(start, stop - start), 0)

        def body(block_ref, row_ref):
            row_ref[...] = block_ref[...] * (pl.program_id(0) + 1)

        spec = pl.BlockSpec((pl.BoundedSlice(4), 8), index)
        pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)

    x = numbers(8, 8)
    call = pl.pallas_call(
        kernel, out(8, 8), debug=debug,
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, in_specs=[ANY], out_specs=ANY),
    )  # fmt: skip
    scale = np.repeat([1, 2, 3, 4], slices[:, 1] - slices[:, 0])
    close(call(slices, x), x * scale[:, None])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_sizes_that_blocks_do_not_divide_with_masks(m, k, n):
    def body(x_ref, y_ref, z_ref):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            z_ref[...] = mnp.zeros_like(z_ref)

        left = k - step * 8
        x = mnp.where(mnp.arange(8)[None, :] < left, x_ref[...], 0)
        y = mnp.where(mnp.arange(8)[:, None] < left, y_ref[...], 0)
        z_ref[...] += x @ y

    x, y = numbers(m, k), numbers(k, n, seed=1)
    call = pl.pallas_call(
        body, out(m, n), grid=(pl.cdiv(m, 8), pl.cdiv(n, 8), pl.cdiv(k, 8)),
        in_specs=[pl.BlockSpec((8, 8), lambda i, j, k: (i, k)), pl.BlockSpec((8, 8), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((8, 8), lambda i, j, k: (i, j)), debug=pl.Debug(),
    )  # fmt: skip
    close(call(x, y), x @ y)


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


def fused(blocks: int, runs: int, debug: Any = None) -> Any:
    """A pipeline run several times over memory of its parent, each run prefetching for the next one."""
    spec = pl.BlockSpec((4, 8), lambda i: (i, 0))

    def body(block_ref, total_ref):
        total_ref[...] = block_ref[...]

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        body, grid=(blocks,), in_specs=[spec], out_specs=spec, should_accumulate_out=True
    )

    def kernel(x_ref, out_ref, allocations):
        step = pl.program_id(0)
        first, last = step == 0, step == runs - 1

        def epilogue(args):
            def prefetch():
                refs = args.make_pipeline_refs(x_ref.at[step + 1], out_ref)
                given = pltpu.PipelinePrefetchArgs(refs, args.pipeline_allocations, args.pipeline_buffers)
                return args.start_pipeline_prefetch(given, force_copy=([True], False))

            return lax.cond(last, lambda: (args.pipeline_buffers.input, args.pipeline_buffers.in_out), prefetch)

        pipeline(
            x_ref.at[step], out_ref, allocations=allocations, init_allocations=first,
            prologue=lambda _: ((not first, not first), ([True], False)),
            epilogue=epilogue, out_prologue=lambda _: first, out_epilogue=lambda _: not last,
        )  # fmt: skip

    return pl.pallas_call(
        kernel, out(4 * blocks, 8), grid=(runs,), in_specs=[ANY], out_specs=ANY, debug=debug,
        scratch_shapes=[allocate(pltpu.ANY((), F32), pltpu.ANY((), F32))],
    )  # fmt: skip


@debugs
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("runs", [1, 2, 5])
def test_runs_of_a_pipeline_fuse_over_shared_allocations(debug, blocks, runs):
    x = numbers(runs, 4 * blocks, 8)
    close(fused(blocks, runs, debug)(x), x.sum(0))


@debugs
def test_views_of_views_through_three_pipelines(debug):
    def inner(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    def middle(x_ref, out_ref):
        spec = pl.BlockSpec((2, 8), lambda i: (i, 0))
        pltpu.emit_pipeline(inner, grid=(2,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)

    def outer(x_ref, out_ref):
        spec = pl.BlockSpec((4, 8), lambda i: (i, 0))
        pltpu.emit_pipeline(middle, grid=(2,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)

    def kernel(x_ref, out_ref):
        for part in range(2):
            outer(x_ref.at[part].at[pl.ds(8, 8)], out_ref.at[part])

    x = numbers(2, 16, 8)
    call = pl.pallas_call(kernel, out(2, 8, 8), in_specs=[ANY], out_specs=ANY, debug=debug)
    close(call(x), x[:, 8:] + 1)


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

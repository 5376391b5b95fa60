"""Programs 10 to 20 of the conformance suite: pipelines, against NumPy. Each is run in order and over schedules."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.kernel.run.machine import KernelMachine
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, close, debugs, numbers, out


def copies_of(call: Any, *args: Any) -> int:
    """How many copies a kernel starts."""
    with mock.patch.object(KernelMachine, "finish", autospec=True) as finish:
        call(*args)
    ((machine,), _) = finish.call_args
    return machine.copies


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
def test_10_nested_matmul(debug):
    x, y = numbers(512, 512), numbers(512, 512, seed=1)
    np.testing.assert_allclose(nested_matmul(512, 512, 512, 128, debug=debug)(x, y), x @ y, rtol=1e-5, atol=1e-3)


@debugs
def test_11_nested_matmul_twice_the_second_time_accumulating(debug):
    def kernel(x_ref, y_ref, z_ref):
        for accumulate in (False, True):
            pltpu.emit_pipeline(
                matmul_body,
                grid=(2, 3, 4),
                in_specs=[
                    pl.BlockSpec((8, 8), lambda i, j, k: (i, k)),
                    pl.BlockSpec((8, 8), lambda i, j, k: (k, j)),
                ],
                out_specs=pl.BlockSpec((8, 8), lambda i, j, k: (i, j)),
                should_accumulate_out=accumulate,
            )(x_ref, y_ref, z_ref)

    x, y = numbers(16, 32), numbers(32, 24, seed=1)
    close(pl.pallas_call(kernel, out(16, 24), in_specs=[ANY, ANY], out_specs=ANY, debug=debug)(x, y), 2 * x @ y)


@debugs
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("lookahead", [False, True])
def test_12_any_number_of_buffers_gives_the_same(debug, count, lookahead):
    x, y = numbers(32, 24), numbers(24, 16, seed=1)
    call = nested_matmul(32, 24, 16, 8, pl.Buffered(count, lookahead), debug=debug)
    close(call(x, y), x @ y)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("lookahead", [False, True])
def test_12_a_block_is_fetched_once_while_it_is_used(count, lookahead):
    # 2 x 3 output blocks of 1 step each along k: the left block changes with i alone.
    x, y = np.ones((16, 8), np.float32), np.ones((8, 24), np.float32)
    call = nested_matmul(16, 8, 24, 8, pl.Buffered(count, lookahead))
    assert copies_of(call, x, y) == 2 + 6 + 6


LISTS = [list(range(6)), [2] * 6, [0, 0, 7, 7, 4, 4], [3, 3, 7, 7, 5, 3, 3], [5]]


@debugs
@pytest.mark.parametrize("blocks", LISTS)
@pytest.mark.parametrize("mode", [pl.Buffered(n, ahead) for n in (1, 2, 3) for ahead in (False, True)])
def test_13_gathered_blocks(debug, blocks, mode):
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
def test_14_scattered_blocks(debug, blocks):
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
def test_15_slices_of_bounded_size(debug):
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
def test_16_sizes_that_blocks_do_not_divide_with_masks(m, k, n):
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
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("blocks", [[0, 1, 2, 3], [0, 0, 1, 1], [3, 3, 0, 2], [2]])
def test_17_blocks_of_an_output_come_and_go_and_are_added_to(debug, count, blocks):
    rows = pl.BlockSpec((4, 8), lambda i: (i, 0))

    def body(row_ref, total_ref):
        total_ref[...] += row_ref[...]

    def kernel(which_ref, x_ref, old_ref, out_ref):
        totals = pl.BlockSpec((4, 8), lambda i: (which_ref[i], 0))
        pipeline = pltpu.emit_pipeline(body, grid=(len(blocks),), in_specs=[rows], out_specs=[totals])

        def twice(allocations):
            for _ in range(2):
                pipeline(x_ref, out_ref, allocations=allocations)

        pl.run_scoped(
            twice, [pltpu.BufferedRef.input(rows, F32), pltpu.BufferedRef.input_output(totals, F32, buffer_count=count)]
        )

    x, old = numbers(4 * len(blocks), 8), numbers(16, 8, seed=1)
    expected = old.copy()
    for i, block in enumerate(blocks):
        expected[4 * block : 4 * block + 4] += 2 * x[4 * i : 4 * i + 4]
    call = pl.pallas_call(
        kernel, out(16, 8), debug=debug, input_output_aliases={2: 0},
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, in_specs=[ANY, ANY], out_specs=ANY),
    )  # fmt: skip
    close(call(np.array(blocks, np.int32), x, old), expected)


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
def test_18_runs_of_a_pipeline_fuse_over_shared_allocations(debug, blocks, runs):
    x = numbers(runs, 4 * blocks, 8)
    close(fused(blocks, runs, debug)(x), x.sum(0))


@debugs
def test_18_some_operands_are_prefetched_and_others_are_not(debug):
    """The left side is fetched by the run before; the right side, which changes after that, by each run itself."""
    spec = pl.BlockSpec((4, 8), lambda i: (i, 0))

    def body(x_ref, y_ref, z_ref):
        z_ref[...] = x_ref[...] * y_ref[...]

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        body, grid=(2,), in_specs=[spec, spec], out_specs=spec, should_accumulate_out=True
    )

    def kernel(x_ref, z_ref, y_ref, scale_ref, allocations):
        run = pl.program_id(0)
        first, last = run == 0, run == 2
        scale_ref[...] = mnp.full(scale_ref.shape, 1.0) + run
        pltpu.sync_copy(scale_ref, y_ref)

        def epilogue(args):
            if not last:
                refs = args.make_pipeline_refs(x_ref.at[run + 1], y_ref, z_ref)
                given = pltpu.PipelinePrefetchArgs(refs, args.pipeline_allocations, args.pipeline_buffers)
                args.start_pipeline_prefetch(given, force_copy=([True, False], False), force_skip=([False, True], True))

        pipeline(
            x_ref.at[run], y_ref, z_ref, allocations=allocations, init_allocations=first,
            prologue=lambda _: (([not first, False], False), ([True, False], False)), epilogue=epilogue,
        )  # fmt: skip

    call = pl.pallas_call(
        kernel, [out(8, 8), out(8, 8)], grid=(3,), in_specs=[ANY], out_specs=[ANY, ANY], debug=debug,
        scratch_shapes=[pltpu.VMEM((8, 8), F32), allocate(*[pltpu.ANY((), F32)] * 3)],
    )  # fmt: skip
    x = numbers(3, 8, 8)
    close(call(x)[0], x[0] + 2 * x[1] + 3 * x[2])


def accumulated(fixed: bool, debug: Any = None) -> Any:
    """Two runs that add one product each; operands that are ``fixed`` stay in their buffers between the runs."""
    whole = pl.BlockSpec((8, 8), lambda i: (0, 0))

    def body(x_ref, y_ref, z_ref):
        z_ref[...] = x_ref[...] @ y_ref[...]

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        body, grid=(1,), in_specs=[whole, whole], out_specs=whole, should_accumulate_out=True
    )

    def kernel(x_ref, y_ref, z_ref, allocations):
        run = pl.program_id(0)
        first, last = run == 0, run == 1

        def epilogue(args):
            if first:
                refs = args.make_pipeline_refs(x_ref.at[1], y_ref, z_ref)
                given = pltpu.PipelinePrefetchArgs(refs, args.pipeline_allocations, args.pipeline_buffers)
                # The left side is another one in the next run; the right side is the same.
                args.start_pipeline_prefetch(given, force_copy=([True, not fixed], False))

        pipeline(
            x_ref.at[run], y_ref, z_ref, allocations=allocations, init_allocations=first,
            prologue=lambda _: ((not first, not first), ([True, not fixed], False)), epilogue=epilogue,
            out_prologue=lambda _: first, out_epilogue=lambda _: not last,
        )  # fmt: skip

    return pl.pallas_call(
        kernel, out(8, 8), grid=(2,), in_specs=[ANY, ANY], out_specs=ANY, debug=debug,
        scratch_shapes=[allocate(*[pltpu.ANY((), F32)] * 3)],
    )  # fmt: skip


@debugs
@pytest.mark.parametrize("fixed", [False, True])
def test_19_sums_over_two_runs_with_operands_that_are_fixed(debug, fixed):
    x, y = numbers(2, 8, 8), numbers(8, 8, seed=1)
    close(accumulated(fixed, debug)(x, y), x[0] @ y + x[1] @ y)


def test_19_what_is_fixed_is_fetched_once():
    x, y = numbers(2, 8, 8), numbers(8, 8, seed=1)
    # Both left sides, the right side once or twice, and two results.
    assert [copies_of(accumulated(fixed), x, y) for fixed in (True, False)] == [2 + 1 + 2, 2 + 2 + 2]


@debugs
def test_20_views_of_views_through_three_pipelines(debug):
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

"""Programs 1 to 9 of the conformance suite: copies, grids and blocks, against NumPy.

Each is run in order and over schedules. Programs 10 to 20 are in ``test_conformance_pipelines``, 21 to 36 in
``test_conformance_devices``, 37 (wrong kernels) in ``test_wrong_kernels``; ``test_conformance`` counts them.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, close, debugs, numbers, on_devices, out
from tests.tour import test_seed_004 as seed_004


@debugs
def test_01_local_copy_to_views(debug):
    def kernel(x_ref, out_ref, sem):
        out_ref[...] = mnp.zeros_like(out_ref)
        for start in (0, 8):
            copy = pltpu.make_async_copy(x_ref, out_ref.at[pl.ds(start, 8)], sem)
            copy.start()
            copy.wait()

    x = numbers(8, 128)
    call = pl.pallas_call(kernel, out(16, 128), scratch_shapes=[pltpu.SemaphoreType.DMA], debug=debug)
    close(call(x), np.concatenate([x, x]))


def test_02_two_devices_swap():
    def kernel(x_ref, out_ref, send, receive):
        other = 1 - pltpu.device_id()
        barrier = pltpu.get_barrier_semaphore()
        pltpu.semaphore_signal(barrier, device_id=other, device_id_type=pltpu.DeviceIdType.LOGICAL)
        pltpu.semaphore_wait(barrier)
        copy = pltpu.make_async_remote_copy(
            x_ref, out_ref.at[pl.ds(8, 8)], send, receive, other, device_id_type=pltpu.DeviceIdType.LOGICAL
        )
        copy.start()
        out_ref[0:8] = x_ref[...]
        copy.wait_send()
        copy.wait_recv()

    call = pl.pallas_call(
        kernel, out(16, 128), scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        compiler_params=pltpu.CompilerParams(collective_id=0), debug=pl.Debug(schedules=16),
    )  # fmt: skip
    x = numbers(2, 8, 128)
    found = on_devices(call, {"x": 2}, [[x[0]], [x[1]]])
    close([block for (block,) in found], np.concatenate([x, x[::-1]], axis=1))


@debugs
def test_03_a_copy_is_waited_for_in_the_next_grid_step_with_a_descriptor_made_anew(debug):
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


def test_04_a_product_of_1024_over_a_grid_of_2_by_2():
    x, y = numbers(1024, 1024), numbers(1024, 1024, seed=1)
    np.testing.assert_allclose(seed_004.matmul(mnp.asarray(x), mnp.asarray(y)), x @ y, rtol=1e-5, atol=1e-3)


@debugs
def test_05_index_maps_see_the_grid_last_axis_fastest(debug):
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
def test_05_ragged_edges_keep_the_block_shape_and_drop_what_is_outside(debug):
    def kernel(x_ref, out_ref):
        assert x_ref.shape == (2, 3)
        out_ref[...] = x_ref[...] + 1

    x = numbers(7, 5)
    spec = pl.BlockSpec((2, 3), lambda i, j: (i, j))
    call = pl.pallas_call(kernel, out(7, 5), grid=(4, 2), in_specs=[spec], out_specs=spec, debug=debug)
    close(call(x), x + 1)


@debugs
def test_05_a_block_may_be_larger_than_the_array(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    x = numbers(3, 2)
    spec = pl.BlockSpec((8, 4), lambda: (0, 0))
    close(pl.pallas_call(kernel, out(3, 2), in_specs=[spec], out_specs=spec, debug=debug)(x), 2 * x)


@debugs
def test_05_an_output_is_revisited_in_consecutive_steps(debug):
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
def test_06_element_indices_with_padding(debug, padding):
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
    if debug is not None and any(padding):  # what stands in padding is arbitrary, and here it is in the result
        with pytest.raises(pltpu.UninitializedError):
            call(x)
        return
    padded = np.concatenate([np.full(before, np.nan), x, np.full(after, np.nan)])
    np.testing.assert_array_equal(call(x), np.stack([padded[i : i + 2] for i in range(steps)]).astype(np.float32))


@debugs
@pytest.mark.parametrize("one", [None, pl.Squeezed()], ids=["None", "Squeezed"])
def test_07_squeezed_dims_are_not_seen(debug, one):
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
def test_08_prefetched_scalars_choose_blocks(debug):
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
def test_09_a_grid_of_computed_size_updates_an_aliased_input(debug):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    x = numbers(6, 4)
    spec = pl.BlockSpec((1, 4), lambda i: (i, 0))
    steps = mnp.asarray(4)
    call = pl.pallas_call(
        kernel, out(6, 4), grid=(steps,), in_specs=[spec], out_specs=spec, input_output_aliases={0: 0}, debug=debug
    )
    close(call(x), np.concatenate([x[:4] + 1, x[4:]]))

    @mw.jit
    def traced(steps, x):
        return pl.pallas_call(
            kernel, out(6, 4), grid=(steps,), in_specs=[spec], out_specs=spec, input_output_aliases={0: 0}, debug=debug
        )(x)

    for n in (0, 3, 6):
        close(traced(n, x), np.concatenate([x[:n] + 1, x[n:]]))

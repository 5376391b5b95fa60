"""Seed 004, "Fusing Nested Pipelines (Realistic AG Matmul)": the listing, its numbers, and its races.

The listing is the document's, with ``jax`` replaced. Its ``existing_matmul_kernel`` is not shown there: it sums into an
accumulator and stores once per block. Copies on one link in order, the numbers are right; three things make it wrong
when they are not:

- forward copies of step 0 send on what the prologue's forward copy has not been waited for to bring;
- the prologue's copies and those of the steps share semaphores, so that a wait may be for the other's bytes;
- nothing stops a device from sending into a slot that its neighbor still reads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.hardware.topology import Topology
from meshwright.pallas import tpu as pltpu


def existing_matmul_kernel(x_ref, y_ref, z_ref, acc_ref, *, acc_steps):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == acc_steps - 1)
    def _():
        z_ref[...] = acc_ref[...].astype(z_ref.dtype)


def make_kernel(num_devices, m, sharded_k, sharded_n, tm, tk, tn, debug=None):
    steps = num_devices // 2
    out_dtype = jnp.float32
    x = mw.ShapeDtypeStruct((m, sharded_k), jnp.float32)
    y = mw.ShapeDtypeStruct((sharded_k * num_devices, sharded_n), jnp.float32)
    grid_k = sharded_k // tk
    pipeline, make_pipeline_allocations = pltpu.emit_pipeline_with_allocations(
        partial(existing_matmul_kernel, acc_steps=grid_k),
        grid=(sharded_n // tn, m // tm, grid_k),
        in_specs=[
            pl.BlockSpec(lambda n, m, k: (m, k), (tm, tk)),
            pl.BlockSpec(lambda n, m, k: (k, n), (tk, tn)),
        ],
        out_specs=pl.BlockSpec(lambda n, m, k: (m, n), (tm, tn)),
        # Prefix-pytree of out_specs.
        should_accumulate_out=True,
    )

    # Given shapes:
    # lhs: A 2d, jnp.ndarray with shape [m, k // lax.psum(1, collective_axes.axes)].
    # rhs: A wd, jnp.ndarray with shape [k, n].

    # We start with a prologue that gets us the lhs chunk that our left neighbor
    # will send backward for us to send forward. After that at every step we do
    # compute on our local chunks while overlapping the backward and forward
    # collective permutes of lhs. We add to the same accumulator at every step.
    # Effectively, this permute + compute pattern achieves an all-gather of lhs
    # that is overlapped with the matmul.

    # We wait for the permutes in the pipeline epilogues so we can fuse the
    # inner compute pipeline across matmul steps and avoid bubbles.
    def all_gather_lhs_matmul_kernel(
        lhs_ref,  # [m, sharded_k]
        rhs_ref,  # [k, n]
        out_ref,  # [m, n]
        # Fwd/bwd, and double buffered.
        lhs_scratch_ref,  # [2, 2, m, sharded_k]
        acc_scratch_ref,  # [tm, tn]
        bwd_recv_sem,
        bwd_send_sem,
        fwd_recv_sem,
        fwd_send_sem,
        pipeline_allocations,
    ):
        step = pl.program_id(0)
        fwd_bwd = pl.program_id(1)
        is_first_step = step == 0
        is_not_last_step = step != steps - 1
        is_start_of_step = fwd_bwd == 0
        is_end_of_step = jnp.logical_not(is_start_of_step)
        is_start = jnp.logical_and(is_first_step, is_start_of_step)
        is_end = jnp.logical_and(step == steps - 1, is_end_of_step)
        compute_buffer = lax.rem(step, 2)
        send_buffer = 1 - compute_buffer
        my_id = lax.axis_index("x")
        right_neighbor = lax.rem(my_id + 1, num_devices)
        left_neighbor = lax.rem(my_id - 1, num_devices)
        left_neighbor = jnp.where(left_neighbor < 0, left_neighbor + num_devices, left_neighbor)

        prologue_fwd_copy = pltpu.make_async_remote_copy(
            lhs_ref,
            lhs_scratch_ref.at[1, compute_buffer],
            fwd_send_sem,
            fwd_recv_sem,
            device_id=right_neighbor,
        )

        @pl.when(is_start)
        @pltpu.trace("sync_and_bwd_prologue")
        def _sync_and_bwd_prologue():
            barrier_sem = pltpu.get_barrier_semaphore()
            pltpu.semaphore_signal(barrier_sem, device_id=left_neighbor)
            pltpu.semaphore_signal(barrier_sem, device_id=right_neighbor)
            pltpu.semaphore_wait(barrier_sem, 2)
            prologue_bwd_copy = pltpu.make_async_copy(
                lhs_ref,
                lhs_scratch_ref.at[0, compute_buffer],
                bwd_send_sem,
            )
            prologue_bwd_copy.start()
            prologue_fwd_copy.start()
            prologue_bwd_copy.wait()

        bwd_kwargs, fwd_kwargs = [
            {
                "src_ref": scratch_ref.at[compute_buffer],
                "dst_ref": scratch_ref.at[send_buffer],
                "send_sem": send_sem,
                "recv_sem": recv_sem,
                "device_id": device_id,
            }
            for scratch_ref, send_sem, recv_sem, device_id in [
                (
                    lhs_scratch_ref.at[0],
                    bwd_send_sem,
                    bwd_recv_sem,
                    left_neighbor,
                ),
                (
                    lhs_scratch_ref.at[1],
                    fwd_send_sem,
                    fwd_recv_sem,
                    right_neighbor,
                ),
            ]
        ]

        @pl.when(jnp.logical_and(is_not_last_step, is_start_of_step))
        @pltpu.trace("send_next_dma")
        def _send_next_dma():
            pltpu.make_async_remote_copy(**bwd_kwargs).start()
            pltpu.make_async_remote_copy(**fwd_kwargs).start()

        def get_rhs_slice(step, is_start_of_step=is_start_of_step):
            bwd_rhs_offset = lax.rem(my_id + step, num_devices)
            fwd_rhs_offset = lax.rem(my_id - step - 1, num_devices)
            fwd_rhs_offset = jnp.where(fwd_rhs_offset < 0, fwd_rhs_offset + num_devices, fwd_rhs_offset)
            offset = jnp.where(is_start_of_step, bwd_rhs_offset, fwd_rhs_offset)
            return pl.ds(
                pl.multiple_of(offset * sharded_k, sharded_k),
                sharded_k,
            )

        with pltpu.trace("dots"):

            def epilogue(epilogue_args: pltpu.PipelineCallbackArgs):

                @pl.when(is_start)
                @pltpu.trace("fwd_prologue")
                def _fwd_prologue():
                    prologue_fwd_copy.wait()

                @pl.when(jnp.logical_and(is_not_last_step, is_end_of_step))
                @pltpu.trace("wait_on_prev_dma")
                def _wait_on_prev_dma():
                    pltpu.make_async_remote_copy(**bwd_kwargs).wait()
                    pltpu.make_async_remote_copy(**fwd_kwargs).wait()

                def prefetch_pipeline_inputs():
                    prefetch_compute_buffer = jnp.where(is_start_of_step, compute_buffer, send_buffer)
                    prefetch_fwd_bwd = lax.rem(fwd_bwd + 1, 2)
                    prefetch_pipeline_refs = epilogue_args.make_pipeline_refs(
                        lhs_scratch_ref.at[prefetch_fwd_bwd, prefetch_compute_buffer],
                        rhs_ref.at[
                            get_rhs_slice(
                                jnp.where(is_start_of_step, step, step + 1),
                                jnp.logical_not(is_start_of_step),
                            )
                        ],
                        out_ref,
                    )
                    return epilogue_args.start_pipeline_prefetch(
                        pltpu.PipelinePrefetchArgs(
                            prefetch_pipeline_refs,
                            epilogue_args.pipeline_allocations,
                            epilogue_args.pipeline_buffers,
                        ),
                        # Force copy lhs because we just permuted it.
                        force_copy=([True, False], False),
                    )

                return lax.cond(
                    jnp.logical_not(is_end),
                    prefetch_pipeline_inputs,
                    lambda: (
                        epilogue_args.pipeline_buffers.input,
                        epilogue_args.pipeline_buffers.in_out,
                    ),
                )

            pipeline(
                lhs_scratch_ref.at[fwd_bwd, compute_buffer],
                rhs_ref.at[get_rhs_slice(step)],
                out_ref,
                scratchs=[acc_scratch_ref],
                allocations=pipeline_allocations,
                init_allocations=is_start,
                prologue=lambda _: (
                    # Input and accum prologue input copy start skip conditions.
                    (
                        # Prefix-pytree support means this broadcasts up to both inputs.
                        jnp.logical_not(is_start),
                        jnp.logical_not(is_start),
                    ),
                    # Force input and accum input copy wait.
                    ([True, False], False),
                ),
                epilogue=epilogue,
                # Only skip prologue output copy wait if starting and there is no
                # previous output.
                out_prologue=lambda _: is_start,
                # Skip epilogue output copy wait unless it's the end.
                out_epilogue=lambda _: jnp.logical_not(is_end),
            )

    kernel = pl.pallas_call(
        all_gather_lhs_matmul_kernel,
        out_shape=[
            mw.ShapeDtypeStruct((m, sharded_n), out_dtype),
            mw.ShapeDtypeStruct((2, 2, m, sharded_k), x.dtype),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
                pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
            ],
            out_specs=[pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY)] * 2,
            grid=(steps, 2),
            scratch_shapes=[pltpu.VMEM((tm, tn), jnp.float32)]
            + [pltpu.SemaphoreType.DMA] * 4
            + [
                make_pipeline_allocations(
                    pltpu.TPUMemorySpace.ANY((), x.dtype),
                    pltpu.TPUMemorySpace.ANY((), y.dtype),
                    pltpu.TPUMemorySpace.ANY((), out_dtype),
                )
            ],
        ),
        # Needed for barrier semaphore.
        mosaic_params=dict(collective_id=0),  # noqa: C408
        debug=debug,
    )

    return kernel


SHAPES = [(16, 16, 16, 8, 8, 8), (16, 16, 8, 8, 8, 8), (8, 16, 8, 8, 8, 8), (8, 16, 8, 8, 4, 8), (16, 8, 16, 8, 8, 8)]


def run(devices: int, shape: tuple[int, ...], debug: pl.Debug | None = None) -> tuple[Any, Any]:
    """The product of a left side and a right side cut along their columns, and what NumPy says it is."""
    m, sharded_k, sharded_n = shape[:3]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(m, sharded_k * devices)).astype(np.float32)
    y = generator.normal(size=(sharded_k * devices, sharded_n * devices)).astype(np.float32)
    columns = mw.P(None, "x")
    matmul = mw.jit(
        mw.shard_map(
            lambda lhs, rhs: make_kernel(devices, *shape, debug=debug)(lhs, rhs)[0],
            mesh=mw.make_mesh((devices,), ("x",)),
            in_specs=(columns, columns),
            out_specs=columns,
        )
    )
    return matmul(x, y), x @ y


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_are_right_when_links_keep_order(devices, shape):
    found, expected = run(devices, shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_devices_have_one_step_and_no_race(shape):
    found, expected = run(2, shape, pl.Debug(schedules=16))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def lines(races: Any) -> set[tuple[str, str]]:
    """The texts of the two lines of each race."""
    return {
        tuple(access.source.show().split("   ")[1] for access in (race.first, race.second))  # type: ignore[misc]
        for race in races
    }


def test_its_races_are_reported_with_their_lines():
    with pytest.raises(pltpu.RaceError) as caught:
        run(8, SHAPES[0], pl.Debug())
    prologue, forward = "prologue_fwd_copy.start()", "pltpu.make_async_remote_copy(**fwd_kwargs).start()"
    backward, prefetch = forward.replace("fwd", "bwd"), "return epilogue_args.start_pipeline_prefetch("
    found = lines(caught.value.races)
    assert (prologue, forward) in found  # sent on before it is known to have come
    assert (prologue, prefetch) in found  # waited for, on a semaphore that others signal, too
    assert (forward, forward) in found or (backward, backward) in found  # sent into a slot that is still read
    shared = next(race for race in caught.value.races if race.second.source.show().endswith(prefetch))
    assert shared.why.startswith(
        "the semaphore fwd_recv_sem is shared: what was waited for may have been the signal of"
    )


def test_with_links_in_order_shared_semaphores_are_no_hazard_and_the_others_are():
    with pytest.raises(pltpu.RaceError) as caught:
        run(8, SHAPES[0], pl.Debug(order="fifo"))
    assert not any("is shared" in race.why for race in caught.value.races)
    assert len(caught.value.races) >= 2


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_sending_is_hidden_behind_computing_on_the_timeline(devices):
    shape = (1024, 1024, 8192, 1024, 1024, 1024)
    columns = mw.P(None, "x")
    matmul = mw.shard_map(
        lambda lhs, rhs: make_kernel(devices, *shape)(lhs, rhs)[0],
        mesh=mw.make_mesh((devices,), ("x",)),
        in_specs=(columns, columns),
        out_specs=columns,
    )
    m, k, n = shape[0], shape[1] * devices, shape[2] * devices
    operands = mw.ShapeDtypeStruct((m, k), jnp.float32), mw.ShapeDtypeStruct((k, n), jnp.float32)
    timeline = mw.simulate(mw.make_program(matmul)(*operands), Topology("tpu v5p", devices, wrap=True))
    assert all(timeline.overlap(device) > 0.6 for device in range(devices))
    named = {region for span in timeline.spans for region in span.name.split(" / ")}
    assert {"sync_and_bwd_prologue", "dots", "fwd_prologue"} <= named

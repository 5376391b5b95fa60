"""Seed 004, "Pallas Collectives": every listing, after replacing its imports.

Slips of the document, and what is run instead:

- The first listing uses ``neighbor`` without defining it (the other device is meant), and gives one semaphore where the
  kernel takes three. A kernel with a barrier needs a ``collective_id``, which the listing leaves out.
- The listing with accumulation calls ``emit_pipeline(False)`` where it means its own ``parent_matmul_kernel(False)``.
- In the last listing ``existing_matmul_kernel`` takes ``acc_steps`` and an accumulator, which the one shown does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import on_devices

# Manual DMAs


def move_data(src_ref, dst_ref, sem, send_sem, recv_sem):
    local_copy = pltpu.async_copy(src_ref, dst_ref.at[0:8], sem)
    local_copy.wait()

    dev_id = pltpu.device_id()
    other_dev_id = 1 - dev_id

    # Should do a barrier the first time we communicate
    # with another chip.
    barrier_sem = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(barrier_sem, device_id=other_dev_id)
    pltpu.semaphore_wait(barrier_sem)

    remote_copy = pltpu.async_remote_copy(
        src_ref,
        dst_ref.at[0:8],
        send_sem,
        recv_sem,
        other_dev_id,
        device_id_type=pltpu.DeviceIdType.LOGICAL,
    )
    # remote_copy.wait() for both.
    remote_copy.wait_send()
    remote_copy.wait_recv()

    # Both APIs have make_ variants for building a descriptor without starting
    # it. This allows us to start a DMA in one grid iteration and wait for it
    # in another.
    local_copy = pltpu.make_async_copy(src_ref, dst_ref.at[0:8], sem)
    local_copy.start()
    local_copy.wait()


src_data = pltpu.VMEM((8, 128), jnp.float32)
dst_data = pltpu.VMEM((16, 128), jnp.float32)
semaphore = pltpu.SemaphoreType.DMA
COLLECTIVE = pltpu.CompilerParams(collective_id=0)


def test_data_is_moved_in_a_scope_inside_a_kernel():
    def kernel(out_ref):
        def scoped(src_ref, dst_ref, *sems):
            src_ref[...] = jnp.full(src_ref.shape, 1.0) + pltpu.device_id()
            move_data(src_ref, dst_ref, *sems)
            out_ref[...] = dst_ref[0:8]

        pltpu.run_scoped(scoped, src_data, dst_data, *((semaphore,) * 3))

    call = pl.pallas_call(
        kernel, out_shape=mw.ShapeDtypeStruct((8, 128), jnp.float32), compiler_params=COLLECTIVE, debug=pl.Debug()
    )
    # The last local copy has put a device's own data where the other's had come.
    for device, (out,) in enumerate(on_devices(call, {"x": 2}, [[], []])):
        np.testing.assert_array_equal(out, np.full((8, 128), device + 1.0))


def test_data_is_moved_in_scratch_memory_that_lives_as_long_as_the_call():
    def kernel(out_ref, src_ref, dst_ref, *sems):
        @pl.when(pl.program_id(0) == 0)
        def _():
            src_ref[...] = jnp.full(src_ref.shape, 1.0) + pltpu.device_id()
            move_data(src_ref, dst_ref, *sems)

        out_ref[...] = dst_ref[0:8] + pl.program_id(0)

    call = pl.pallas_call(
        kernel,
        out_shape=mw.ShapeDtypeStruct((8, 128), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(3,),
            # Could also use other memory spaces and input/outputs.
            scratch_shapes=[src_data, dst_data, *((semaphore,) * 3)],
        ),
        compiler_params=COLLECTIVE,
        debug=pl.Debug(schedules=8),
    )
    for device, (out,) in enumerate(on_devices(call, {"x": 2}, [[], []])):
        np.testing.assert_array_equal(out, np.full((8, 128), device + 3.0))


def test_the_swap_of_the_first_listing_without_its_last_copy():
    def kernel(x_ref, out_ref, send_sem, recv_sem):
        other = 1 - pltpu.device_id()
        barrier_sem = pltpu.get_barrier_semaphore()
        pltpu.semaphore_signal(barrier_sem, device_id=other)
        pltpu.semaphore_wait(barrier_sem)
        logical = pltpu.DeviceIdType.LOGICAL
        remote_copy = pltpu.async_remote_copy(x_ref, out_ref, send_sem, recv_sem, other, device_id_type=logical)
        remote_copy.wait_send()
        remote_copy.wait_recv()

    call = pl.pallas_call(
        kernel,
        out_shape=mw.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[semaphore] * 2,
        compiler_params=COLLECTIVE,
        debug=pl.Debug(schedules=16),
    )
    x = np.arange(2 * 8 * 128, dtype=np.float32).reshape(2, 8, 128)
    outs = on_devices(call, {"x": 2}, [[x[0]], [x[1]]])
    np.testing.assert_array_equal([out for (out,) in outs], x[::-1])


# Custom pipelines


def matmul_kernel(x_ref, y_ref, z_ref):
    z_ref[...] = x_ref[...] @ y_ref[...]


def matmul(x, y):
    return pl.pallas_call(
        matmul_kernel,
        out_shape=mw.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec(lambda i, j: (i, 0), (x.shape[0] // 2, x.shape[1])),
            pl.BlockSpec(lambda i, j: (0, j), (y.shape[0], y.shape[1] // 2)),
        ],
        out_specs=pl.BlockSpec(lambda i, j: (i, j), (x.shape[0] // 2, y.shape[1] // 2)),
    )(x, y)


def test_grid_recap():
    k1, k2 = mw.random.split(mw.random.PRNGKey(0))
    x = mw.random.normal(k1, (1024, 1024))
    y = mw.random.normal(k2, (1024, 1024))
    z = matmul(x, y)
    np.testing.assert_allclose(z, x @ y, rtol=1e-5, atol=1e-4)


def test_enough_compute_to_hide_all_transfers():
    m, k, chips, flops, bw = 1024, 8192, 4, 2e14, 1e12
    for n in (400, 800, 801, 1600):
        num_flops = (2 * m * n * k) / chips
        # Assume 2 bytes per element.
        data = 2 * m * k
        is_compute_bound = (num_flops / data) > (flops / bw)
        assert is_compute_bound == (n > chips * (flops / bw))


def existing_matmul_kernel(x_ref, y_ref, z_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        z_ref[...] = jnp.zeros(z_ref.shape, jnp.float32)

    z_ref[...] += x_ref[...] @ y_ref[...]


def operands() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return tuple(jnp.asarray(generator.normal(size=(512, 512)).astype(np.float32)) for _ in range(2))


def test_basic_nested_pipeline():
    def parent_matmul_kernel(x_ref, y_ref, z_ref):
        pltpu.emit_pipeline(
            existing_matmul_kernel,
            grid=(4, 4, 4),
            in_specs=[
                pl.BlockSpec(lambda i, j, k: (i, k), (128, 128)),
                pl.BlockSpec(lambda i, j, k: (k, j), (128, 128)),
            ],
            out_specs=pl.BlockSpec(lambda i, j, k: (i, j), (128, 128)),
        )(x_ref, y_ref, z_ref)

    x, y = operands()
    z = pl.pallas_call(
        parent_matmul_kernel,
        out_shape=mw.ShapeDtypeStruct((512, 512), jnp.float32),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
            pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
    )(x, y)
    np.testing.assert_allclose(z, x @ y, rtol=1e-5, atol=1e-4)


def test_nested_pipeline_with_output_accumulation():
    def matmul_kernel(x_ref, y_ref, z_ref):
        def parent_matmul_kernel(should_accumulate_out):
            pltpu.emit_pipeline(
                existing_matmul_kernel,
                grid=(4, 4, 4),
                in_specs=[
                    pl.BlockSpec(lambda i, j, k: (i, k), (128, 128)),
                    pl.BlockSpec(lambda i, j, k: (k, j), (128, 128)),
                ],
                out_specs=pl.BlockSpec(lambda i, j, k: (i, j), (128, 128)),
                # Prefix-pytree of out_specs.
                should_accumulate_out=should_accumulate_out,
            )(x_ref, y_ref, z_ref)

        parent_matmul_kernel(False)
        parent_matmul_kernel(True)

    x, y = operands()
    z = pl.pallas_call(
        matmul_kernel,
        out_shape=mw.ShapeDtypeStruct((512, 512), jnp.float32),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
            pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
        ],
        out_specs=pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY),
        debug=pl.Debug(schedules=4),
    )(x, y)
    np.testing.assert_allclose(z, 2 * (x @ y), rtol=1e-5, atol=1e-4)

"""Devices of several cores: each with its own scratch memory and semaphores, main memory in common."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import DMA, REGULAR, struct

MANY = pl.Debug(schedules=16)
CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)
BLOCK = pltpu.VMEM((4, 8), mnp.float32)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, size=shape).astype(np.float32)


def test_two_cores_swap_their_blocks():
    def body(x_ref, out_ref, mine, other, send, receive, ready, local):
        core = lax.axis_index("core")
        pltpu.async_copy(x_ref.at[core], mine, local).wait()
        pltpu.semaphore_signal(ready, device_id={"core": 1 - core})
        pltpu.semaphore_wait(ready)
        pltpu.async_remote_copy(mine, other, send, receive, device_id={"core": 1 - core}).wait()
        pltpu.async_copy(other, out_ref.at[core], local).wait()

    call = pl.kernel(
        body, struct((2, 4, 8)), mesh=CORES, scratch_shapes=[BLOCK, BLOCK, DMA, DMA, REGULAR, DMA], debug=MANY
    )
    x = numbers(2, 4, 8)
    np.testing.assert_array_equal(call(x), x[::-1])


def test_cores_that_write_the_same_rows_race():
    def body(x_ref, out_ref, sem):
        pltpu.async_copy(x_ref, out_ref, sem).wait()

    call = pl.kernel(body, struct((4, 8)), mesh=CORES, scratch_shapes=[DMA], debug=pl.Debug())
    with pytest.raises(pltpu.RaceError, match="core 1"):
        call(numbers(4, 8))


def matmul_body(x_ref, y_ref, z_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        z_ref[...] = mnp.zeros_like(z_ref)

    z_ref[...] += x_ref[...] @ y_ref[...]


SPECS = {
    "in_specs": [pl.BlockSpec((4, 4), lambda i, j, k: (i, k)), pl.BlockSpec((4, 4), lambda i, j, k: (k, j))],
    "out_specs": pl.BlockSpec((4, 4), lambda i, j, k: (i, j)),
}
MATMUL = ("parallel", "parallel", "arbitrary")


@pytest.mark.parametrize("m", [8, 12, 20])
@pytest.mark.parametrize("cores", [2, 3])
def test_a_parallel_axis_is_divided_among_cores_evenly_or_not(m, cores):
    x, y = numbers(m, 8), numbers(8, 12, seed=1)
    grid = (m // 4, 3, 2)
    params = pltpu.CompilerParams(dimension_semantics=MATMUL, num_cores=cores)
    call = pl.pallas_call(matmul_body, struct((m, 12)), grid=grid, compiler_params=params, debug=MANY, **SPECS)
    np.testing.assert_array_equal(call(x, y), x @ y)

    def body(x_ref, y_ref, z_ref):
        pltpu.emit_pipeline(matmul_body, grid=grid, core_axis=0, dimension_semantics=MATMUL, **SPECS)(
            x_ref, y_ref, z_ref
        )

    mesh = pltpu.create_tensorcore_mesh("core", num_cores=cores)
    np.testing.assert_array_equal(pl.kernel(body, struct((m, 12)), mesh=mesh, debug=MANY)(x, y), x @ y)


def test_an_axis_must_be_parallel_to_be_divided():
    params = pltpu.CompilerParams(num_cores=2)
    call = pl.pallas_call(matmul_body, struct((8, 12)), grid=(2, 3, 2), compiler_params=params, **SPECS)
    with pytest.raises(pltpu.KernelError, match="no axis of it is parallel"):
        call(numbers(8, 8), numbers(8, 12))

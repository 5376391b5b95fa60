"""Devices of several cores: each with its own scratch memory and semaphores, main memory in common."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import DMA, struct
from tests.kernel.test_conformance_devices import SPECS
from tests.kernel.test_conformance_pipelines import matmul_body

CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, size=shape).astype(np.float32)


def test_cores_that_write_the_same_rows_race():
    def body(x_ref, out_ref, sem):
        pltpu.async_copy(x_ref, out_ref, sem).wait()

    call = pl.kernel(body, struct((4, 8)), mesh=CORES, scratch_shapes=[DMA], debug=pl.Debug())
    with pytest.raises(pltpu.RaceError, match="core 1"):
        call(numbers(4, 8))


def test_an_axis_must_be_parallel_to_be_divided():
    params = pltpu.CompilerParams(num_cores=2)
    call = pl.pallas_call(matmul_body, struct((8, 12)), grid=(2, 3, 2), compiler_params=params, **SPECS)
    with pytest.raises(pltpu.KernelError, match="no axis of it is parallel"):
        call(numbers(8, 8), numbers(8, 12))

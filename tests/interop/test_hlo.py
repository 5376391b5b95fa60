"""HLO text beside XLA, which reads, compiles and runs it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.program import Program, Var
from meshwright.core.trace import run as run_program
from meshwright.core.types import TensorType
from meshwright.interop import mlir
from meshwright.interop.hlo import hlo_text
from tests.interop import hlo_by_xla
from tests.interop.test_load_and_dump import CASES, FIRST, arrays, assert_close, by_xla, drawn, program_of

BY_NAME = {"lu", "qr", "eigh", "svd", "eig"}  # custom calls, which are XLA's neither by name nor by what they take
WRITTEN = [case for case in CASES if case[0].name not in BY_NAME]
FIRST_WRITTEN = [case for case in FIRST if case[0].name not in BY_NAME]


@pytest.fixture
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def check_op(op: Op, index: int) -> None:
    sample = op.samples()[index]
    values = drawn(op, sample)
    program = program_of(op, values, sample.params)
    expected = [x.data for x in run_program(program, arrays(values))]
    found = hlo_by_xla.run(hlo_text(program), [[x] for x in values])
    assert_close([parts[0] for parts in found], expected)


@pytest.mark.parametrize(("op", "index"), FIRST_WRITTEN, ids=[op.name for op, _ in FIRST_WRITTEN])
def test_an_op_written_as_hlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), WRITTEN, ids=[f"{op.name}-{index}" for op, index in WRITTEN])
def test_every_sample_of_an_op_written_as_hlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)


CONSTANTS = [
    np.array([[1.1, 3.3e-25, -2.5e20]] * 2, np.float32),
    np.array([0.1, 1 / 3], np.float64),
    np.array([np.inf, -np.inf, np.nan, -0.0], np.float32),
    np.array([0.0, -0.0], np.float32),
    np.array([1 + 2j, complex(np.nan, 3), complex(-0.0, np.inf), complex(2, np.nan)], np.complex64),
    np.array([True, False, True]),
    np.array([2**31 - 1, -(2**31)], np.int32),
    np.array([2**64 - 1, 1], np.uint64),
    np.array([1.1, 3.3e-5, -0.0], dtypes.BFLOAT16),
    np.array([1.125, -0.5], dtypes.FLOAT8_E4M3FN),
    np.zeros((0, 3), np.float32),
    np.full((2, 2), -0.0, np.float32),
]


@pytest.mark.parametrize("value", CONSTANTS, ids=[f"{x.dtype}-{index}" for index, x in enumerate(CONSTANTS)])
def test_a_constant_keeps_its_bits(value: np.ndarray[Any, Any], wide: None) -> None:
    var = Var(TensorType(value.shape, value.dtype))
    program = Program((), (), (var,), ((var, value),))
    for found in (hlo_by_xla.run(hlo_text(program), [])[0][0], by_xla(mlir.dump(program), [])[0]):
        assert found.shape == value.shape and found.tobytes() == value.tobytes()

"""HLO text beside XLA, which reads, compiles and runs it."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from meshwright.core.op import Op
from meshwright.core.trace import run as run_program
from meshwright.interop.hlo import hlo_text
from tests.interop import hlo_by_xla
from tests.interop.test_load_and_dump import CASES, FIRST, arrays, assert_close, drawn, program_of


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


@pytest.mark.parametrize(("op", "index"), FIRST, ids=[op.name for op, _ in FIRST])
def test_an_op_written_as_hlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), CASES, ids=[f"{op.name}-{index}" for op, index in CASES])
def test_every_sample_of_an_op_written_as_hlo_computes_the_same(op: Op, index: int, wide: None) -> None:
    check_op(op, index)

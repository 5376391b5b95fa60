"""Every op on operands in every layout: partitioned, it gives what it gives whole, and so does its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.mesh import Mesh
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.program import Program
from meshwright.core.sharding import TensorSharding
from meshwright.core.trace import close, to_array, trace
from meshwright.engine.compile import compile_program
from meshwright.partition.layouts import closed
from meshwright.partition.partition import partition
from meshwright.propagate.from_program import propagate_program
from meshwright.sharding import enumerate_shardings
from tests.ops.drawing import draw, rng

MESHES = {name: mw.make_mesh(shape, ("x", "y")) for name, shape in {"2x2": (2, 2), "2x3": (2, 3)}.items()}
OPS = [op for name, op in sorted(REGISTRY.items()) if op.samples()]
TRIES = 4


@cache
def layouts(mesh: Mesh, rank: int) -> list[TensorSharding]:
    return [closed(s.to_tensor_sharding(rank)) for s in enumerate_shardings(mesh, rank, compound=True)]


def program_of(op: Op, sample: Sample, arrays: Sequence[Any]) -> Program:
    def body(*values: Any) -> list[Any]:
        outs = op(*values, **sample.params)
        return list(outs) if isinstance(outs, tuple) else [outs]

    return close(*trace(body, [to_array(x).type for x in arrays]))


def dtype_of(op: Op) -> Any:
    return next((d for d in (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32) if d in op.dtypes), op.dtypes[0])


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_in_random_layouts(op: Op, mesh_name: str) -> None:
    mesh = MESHES[mesh_name]
    generator = rng(op.name, mesh_name)
    for index, sample in enumerate(op.samples()):
        arrays = [np.asarray(to_array(x)) for x in draw(sample, dtype_of(op), op.name, index)]
        program = program_of(op, sample, arrays)
        expected = compile_program(program)(*arrays)
        for _ in range(TRIES):
            ins = [layouts(mesh, x.ndim)[generator.integers(len(layouts(mesh, x.ndim)))] for x in arrays]
            outs: list[TensorSharding | None] = [
                layouts(mesh, t.ndim)[generator.integers(len(layouts(mesh, t.ndim)))] if generator.integers(2) else None
                for t in program.out_types
            ]
            propagated = propagate_program(program, mesh, ins, outs)
            done = partition(program, mesh, ins, outs, propagated.shardings)
            check(done.program, "partitioning")
            found = compile_program(done.program)(*arrays)
            for x, y in zip(found, expected, strict=True):
                text = f"{sample.params} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
                assert x.dtype == y.dtype, text
                wide = np.complex128 if x.dtype.kind == "c" else np.float64
                np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=2e-5, atol=2e-5, err_msg=text)

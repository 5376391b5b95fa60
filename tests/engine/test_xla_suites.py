"""Every op in random layouts, on XLA's devices and stacked on one, against the op whole on NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meshwright.core.op import Op
from meshwright.core.program import Program
from meshwright.engine.compile import compile_program
from meshwright.engine.xla import emit_xla
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.stack import stack
from tests.partition import test_every_op as suite
from tests.partition.partitioning import assert_equal, partitioned, tolerance_of

FEW = 24  # every so many ops are quick


def on_xla(
    program: Program,
    arrays: Sequence[Any],
    mesh: Mesh,
    ins: Sequence[TensorSharding],
    outs: Sequence[TensorSharding | None],
    what: str,
) -> None:
    expected = compile_program(program)(*arrays)
    done = partitioned(program, mesh, ins, outs)
    text = f"{what} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
    tolerance = max(2e-4, tolerance_of(program))
    for whole, placed in ((done.whole, True), (stack(done.whole), False)):
        found = emit_xla(whole, placed).function(*arrays)
        assert_equal([np.asarray(x) for x in found], expected, tolerance, f"{text}, {'devices' if placed else 'one'}")


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=[pytest.mark.slow] if n % FEW else [], id=f":{op.name}:")
        for n, op in enumerate(suite.OPS)
    ],
)
def test_every_op_in_random_layouts(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "assert_same", on_xla)
    meshes = [name for name, mesh in suite.MESHES.items() if mesh.size <= 8]
    for index, sample in enumerate(op.samples()):
        arrays = suite.drawn(op, sample, index)
        what = f"{op.name} {dict(sample.params)}"
        suite.in_random_layouts(suite.program_of(op, sample, arrays), arrays, meshes[index % len(meshes)], 1, what)

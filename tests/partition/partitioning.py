"""Programs partitioned in given layouts, compared with what they are whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.program import Program, Var
from meshwright.engine.compile import compile_program
from meshwright.partition.layouts import closed
from meshwright.partition.partition import LocalProgram, combined, partition
from meshwright.partition.rules import halo, indexing, prefix, windows
from meshwright.partition.rules.strategies import BlockStrategy
from meshwright.propagate.from_program import propagate_program
from meshwright.sharding import enumerate_shardings
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.stack import inline_calls


@cache
def layouts(mesh: Mesh, rank: int) -> list[TensorSharding]:
    """All layouts of arrays of a rank, compound axes included."""
    return [closed(s.to_tensor_sharding(rank)) for s in enumerate_shardings(mesh, rank, compound=True)]


def partitioned(
    program: Program, mesh: Mesh, ins: Sequence[TensorSharding], outs: Sequence[TensorSharding | None]
) -> LocalProgram:
    """The program on all devices, in the layouts that propagation finds: what jit tries first."""
    program = inline_calls(program, shard_maps=False)
    propagated = propagate_program(program, mesh, list(ins), list(outs)).shardings
    wanted = [
        propagated.get(atom) if out is None and isinstance(atom, Var) else out
        for out, atom in zip(outs, program.outputs, strict=True)
    ]
    return combined(partition(program, mesh, ins, wanted, propagated))


def take_ways(
    monkeypatch: pytest.MonkeyPatch, choose: Callable[[Sequence[BlockStrategy]], Sequence[BlockStrategy]]
) -> None:
    """Run equations in the first of the ways that ``choose`` returns, whatever it costs, if there is one that can."""

    def eager(original: Callable[..., Any]) -> Callable[..., Any]:
        def cheapest(local: Any, eqn: Any, ways: Sequence[BlockStrategy], plain: bool = True) -> Any:
            for way in choose(ways):
                choice = local.choice(eqn, way.factors)
                if way.extra(choice) is not None:
                    return way.run(choice)
            return original(local, eqn, ways, plain)

        return cheapest

    for module in (halo, indexing, prefix, windows):
        monkeypatch.setattr(module, "cheapest", eager(module.cheapest))


def tolerance_of(program: Program, tolerance: float = 2e-5) -> float:
    """How far results may be apart: sums of parts are rounded to the width of their type before they are summed up."""
    narrow = [t.dtype.itemsize for t in (*program.in_types, *program.out_types) if dtypes.is_float(t.dtype)]
    if min(narrow, default=4) < 4:
        tolerance = max(tolerance, 3e-2 if min(narrow) == 2 else 0.4)
    return tolerance


def assert_equal(found: Sequence[Any], expected: Sequence[Any], tolerance: float, text: str) -> None:
    """Raise unless arrays have the same dtypes, and numbers within a tolerance."""
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), text
        if x.tobytes() != y.tobytes():
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=tolerance, atol=tolerance, err_msg=text)


def assert_same(
    program: Program,
    arrays: Sequence[Any],
    mesh: Mesh,
    ins: Sequence[TensorSharding],
    outs: Sequence[TensorSharding | None],
    what: str,
    tolerance: float = 2e-5,
) -> None:
    """Partitioned, a program computes what it computes whole."""
    expected = compile_program(program)(*arrays)
    done = partitioned(program, mesh, ins, outs)
    check(done.whole, "partitioning")
    found = compile_program(done.whole)(*arrays)
    text = f"{what} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
    assert_equal(found, expected, tolerance_of(program, tolerance), text)

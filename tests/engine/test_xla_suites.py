"""What the partitioner is tested with, on XLA's devices and stacked on one, against NumPy: every op in random layouts,
random programs, models, programs for devices. And the collectives that XLA has in the end, against those explained."""

from __future__ import annotations

import pathlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings

import meshwright as mw
from meshwright.core.op import Op
from meshwright.core.program import Program
from meshwright.core.trace import on_host
from meshwright.engine.compile import compile_program
from meshwright.engine.xla import emit_local, emit_xla, on_devices
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.stack import stack
from tests.partition import test_every_op as suite
from tests.partition import test_random_programs as random_suite
from tests.partition.models import setting
from tests.partition.partitioning import assert_equal, partitioned, tolerance_of
from tests.partition.test_model_collectives import CONFIGS, compiled
from tests.partition.test_models import CASES
from tests.shard_map.random_programs import Manual, manual_programs
from tests.shard_map.test_random_programs import QUIET, _arrays, _close

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from hlo_bytes import moved_by_kind

FEW = 24  # every so many ops are quick
ON_XLA = ("xla", "xla-stacked")


def on_xla(
    program: Program,
    arrays: Sequence[Any],
    mesh: Mesh,
    ins: Sequence[TensorSharding],
    outs: Sequence[TensorSharding | None],
    what: str,
    tolerance: float = 2e-4,
) -> None:
    expected = compile_program(program)(*arrays)
    done = partitioned(program, mesh, ins, outs)
    text = f"{what} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
    tolerance = max(tolerance, tolerance_of(program))
    by_engine = {"xla": emit_local(done), "xla-stacked": emit_xla(stack(done.whole), False)}
    for engine, code in by_engine.items():
        found = [on_host(x, y.shape) for x, y in zip(code.function(*arrays), expected, strict=True)]
        assert_equal(found, expected, tolerance, f"{text} on {engine}")


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


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 1)) for n in range(40)])
@pytest.mark.parametrize("case", ["forward_case", "backward_case"])
def test_random_programs(case: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_suite, "assert_same", on_xla)
    getattr(random_suite, case)(seed)


def check_manual(program: Manual, engine: str) -> None:
    f, args = program.mapped(), _arrays(program.shapes, 0)
    weights = _arrays([x.shape for x in f(*args)], 1)

    def both(*args: Any) -> Any:
        loss = lambda *xs: sum((x * w).sum() for x, w in zip(f(*xs), weights, strict=True))
        return f(*args), mw.grad(loss, argnums=tuple(range(len(args))))(*args)

    _close(mw.jit(both, engine=engine)(*args), mw.jit(both)(*args), engine)


@pytest.mark.parametrize("engine", ON_XLA)
@settings(max_examples=2, derandomize=True, **QUIET)
@given(program=manual_programs())
def test_some_programs_for_devices(engine: str, program: Manual, x64: Any) -> None:
    check_manual(program, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ON_XLA)
@settings(max_examples=60, derandomize=True, **QUIET)
@given(program=manual_programs())
def test_programs_for_devices(engine: str, program: Manual, x64: Any) -> None:
    check_manual(program, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("name, layout", CASES)
def test_train_steps_of_models(name: str, layout: str, engine: str) -> None:
    found = setting(name, layout)
    results = mw.tree.map(lambda x: x.sharding, found.placed)
    losses = {}
    for one in ("numpy", engine):
        step = mw.jit(found.module.train_step, static_argnames="config", out_shardings=(None, results), engine=one)
        params, losses[one] = found.placed, []
        for _ in range(5):
            value, params = step(params, found.split, config=found.config)
            losses[one].append(float(value))
    np.testing.assert_allclose(losses[engine], losses["numpy"], rtol=1e-4)


BY_XLA = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
          "all_to_all": "all-to-all", "permute": "collective-permute"}  # fmt: skip
LAYOUTS_OF = [
    ("mlp", "tensor parallel"),
    ("mlp", "fully sharded"),
    ("transformer", "data parallel"),
    ("transformer", "tensor parallel"),
    ("transformer", "fully sharded, activations by batch"),
    ("transformer", "fully sharded and tensor parallel"),
    ("moe", "expert parallel"),
]


@pytest.mark.parametrize(
    ("model", "layout"), [pytest.param(*one, marks=[pytest.mark.slow] * (n > 0)) for n, one in enumerate(LAYOUTS_OF)]
)
def test_the_collectives_of_the_optimized_program_are_those_explained(model: str, layout: str) -> None:
    """The same kinds and bytes; XLA takes several of a kind as one, so their number may be lower."""
    assert model in CONFIGS
    found = compiled(mw, model, layout, batch=64)
    on = on_devices(found._executable.placed.compilation.local.on_blocks, placed=True)
    types = [
        jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s)
        for t, s in zip(on.program.in_types, on.arguments, strict=True)
    ]
    text = jax.jit(on.bind, out_shardings=list(on.results)).lower(*types).compile().as_text()
    explained, numbers = Counter[str](), Counter[str]()
    for one in found.collectives:
        explained[BY_XLA[one.kind]] += one.total_bytes * one.times
        numbers[BY_XLA[one.kind]] += one.times
    moved = moved_by_kind(text, on.mesh.size)
    assert {kind: nbytes for kind, (nbytes, _) in moved.items()} == pytest.approx(dict(explained), rel=1e-3)
    assert all(count <= numbers[kind] for kind, (_, count) in moved.items())

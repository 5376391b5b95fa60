"""What the partitioner is tested with, on XLA's devices and stacked on one, against NumPy: every op in random layouts,
random programs, models, programs for devices. And the collectives that XLA has in the end, against those explained."""

from __future__ import annotations

import pathlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings

import meshwright as mw
from meshwright.core import dtypes
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
from tests.partition.models import USUAL, setting
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
def test_every_op_in_random_layouts(op: Op, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if dtypes.FLOAT32 not in op.dtypes and dtypes.FLOAT64 in op.dtypes:  # eigenvectors, whose phase is LAPACK's
        request.getfixturevalue("x64")
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
MORE_CONFIGS: dict[str, dict[str, int]] = {"convnet": {}, "gpt": {}}
LAYOUTS_OF = [
    ("mlp", "tensor parallel"),
    *[(name, layout) for name in ("mlp", "transformer", "moe") for layout in USUAL],
    ("transformer", "fully sharded, activations by batch"),
    ("transformer", "sequence parallel"),
    ("moe", "expert parallel"),
    *[(name, layout) for name in MORE_CONFIGS for layout in USUAL[::2]],
    ("convnet", "tensor parallel"),
]
Groups = frozenset[frozenset[int]]


def groups_over(axes: Sequence[str], shape: dict[str, int]) -> Groups:
    """The positions on a mesh of devices that differ along some axes alone."""
    names = list(shape)
    axes = [part for axis in axes for part in names if part == axis or part.startswith(f"{axis}:(")]
    positions = np.arange(np.prod(list(shape.values()))).reshape(list(shape.values()))
    last = [names.index(axis) for axis in axes]
    rows = np.moveaxis(positions, last, range(-len(last), 0)).reshape(-1, int(np.prod([shape[axis] for axis in axes])))
    return frozenset(frozenset(row.tolist()) for row in rows)


def groups_of(line: str) -> Groups:
    """Those of a collective in XLA's text: ``{{0,1},{2,3}}`` or ``[2,4]<=[4,2]T(1,0)``."""
    text = line.split("replica_groups=")[1]
    if listed := re.match(r"\{(\{[\d,{}]*\})\}", text):
        return frozenset(frozenset(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1]))
    iota = re.match(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert iota is not None, text
    positions = np.arange(int(iota[1]) * int(iota[2])).reshape(list(map(int, iota[3].split(","))))
    order = list(map(int, iota[4].split(","))) if iota[4] else range(positions.ndim)
    return frozenset(frozenset(row.tolist()) for row in positions.transpose(order).reshape(int(iota[1]), -1))


@pytest.mark.parametrize(
    ("model", "layout"), [pytest.param(*one, marks=[pytest.mark.slow] * (n > 0)) for n, one in enumerate(LAYOUTS_OF)]
)
def test_the_collectives_of_the_optimized_program_are_those_explained(
    model: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kinds among the same groups of devices, with the same bytes. Sums that are taken together are handed to
    XLA one by one, and XLA takes those together that are ready together: their number may be another."""
    if model in MORE_CONFIGS:
        monkeypatch.setitem(CONFIGS, model, MORE_CONFIGS[model])
    found = compiled(mw, model, layout, batch=64)
    on = on_devices(found._executable.placed.compilation.local.on_blocks, placed=True)
    types = [
        jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s)
        for t, s in zip(on.program.in_types, on.arguments, strict=True)
    ]
    text = jax.jit(on.bind, out_shardings=list(on.results)).lower(*types).compile().as_text()
    explained, numbers = Counter[Any](), Counter[Any]()
    for one in found.collectives:
        # A permute need not reach all devices of a group.
        key = BY_XLA[one.kind], None if one.kind == "permute" else groups_over(one.axes, dict(on.mesh.shape))
        explained[key] += one.total_bytes * one.times
        numbers[key] += one.times * len(one.values)
    moved, counts = Counter[Any](), Counter[Any]()
    for line in text.splitlines():
        for kind, (nbytes, count) in moved_by_kind(line, on.mesh.size).items():
            key = kind, None if kind == "collective-permute" else groups_of(line)
            moved[key] += nbytes
            counts[key] += count
    assert sum(numbers.values())
    print(f"{model}, {layout}: {len(found.collectives)} explained, {sum(counts.values())} in XLA's program")
    assert dict(moved) == pytest.approx(dict(explained), rel=1e-3)
    assert all(count <= numbers[key] for key, count in counts.items())

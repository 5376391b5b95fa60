"""Every op on operands in layouts drawn at random, run by the engine: partitioned, it gives what it gives whole, and so
do its derivatives. All layouts are tried in test_every_layout.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.core import dtypes
from meshwright.core.facts import Across
from meshwright.core.op import REGISTRY, No, Op, Sample
from meshwright.core.program import Program
from meshwright.core.trace import close, to_array, trace
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import draw, rng
from tests.partition.partitioning import assert_same, layouts, take_ways

MESHES = {name: mw.make_mesh(shape, ("x", "y")) for name, shape in {"2x2": (2, 2), "2x3": (2, 3)}.items()}
OPS = [op for name, op in sorted(REGISTRY.items()) if op.samples()]
OF_THEIR_OWN = [op.name for op in OPS if op.split.across not in (Across.NOT, Across.COUNTED)]
RUNS = {"few": 2, "many": 12}


def program_of(op: Op, sample: Sample, arrays: Sequence[Any]) -> Program:
    def body(*values: Any) -> list[Any]:
        outs = op(*values, **sample.params)
        return list(outs) if isinstance(outs, tuple) else [outs]

    return close(*trace(body, [to_array(x).type for x in arrays]))


def derivative_of(op: Op, sample: Sample, arrays: Sequence[Any]) -> tuple[Program, list[Any]] | None:
    """The program of the op's cotangents, and cotangents to give it besides the operands."""
    floats = [n for n, x in enumerate(arrays) if dtypes.is_inexact(x.dtype)]
    if isinstance(op.jvp, No) or not floats:
        return None
    program = program_of(op, sample, arrays)
    returned = [n for n, t in enumerate(program.out_types) if dtypes.is_inexact(t.dtype)]
    if not returned:
        return None
    random = rng(op.name, "cotangents")
    cotangents = [
        random.uniform(0.5, 1.5, program.out_types[n].shape).astype(program.out_types[n].dtype) for n in returned
    ]

    def body(*values: Any) -> list[Any]:
        operands, given = list(values[: len(arrays)]), values[len(arrays) :]

        def function(*inputs: Any) -> tuple[Any, ...]:
            full = list(operands)
            for n, x in zip(floats, inputs, strict=True):
                full[n] = x
            outs = op(*full, **sample.params)
            outs = outs if isinstance(outs, tuple) else (outs,)
            return tuple(outs[n] for n in returned)

        _, back = mw.vjp(function, *(operands[n] for n in floats))
        return list(back(tuple(given)))

    return close(*trace(body, [to_array(x).type for x in (*arrays, *cotangents)])), cotangents


def dtype_of(op: Op) -> Any:
    return next((d for d in (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32) if d in op.dtypes), op.dtypes[0])


def drawn(op: Op, sample: Sample, index: int) -> list[Any]:
    return [np.asarray(to_array(x)) for x in draw(sample, dtype_of(op), op.name, index)]


def in_random_layouts(program: Program, arrays: Sequence[Any], mesh_name: str, tries: int, what: str) -> None:
    mesh, generator = MESHES[mesh_name], rng(what, mesh_name)

    def one(rank: int) -> TensorSharding:
        found = layouts(mesh, rank)
        return found[generator.integers(len(found))]

    for _ in range(tries):
        ins = [one(x.ndim) for x in arrays]
        outs = [one(t.ndim) if generator.integers(2) else None for t in program.out_types]
        assert_same(program, arrays, mesh, ins, outs, what)


@pytest.mark.parametrize("runs", ["few", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_in_random_layouts(op: Op, mesh_name: str, runs: str) -> None:
    for index, sample in enumerate(op.samples()):
        arrays = drawn(op, sample, index)
        what = f"{op.name} {dict(sample.params)}"
        in_random_layouts(program_of(op, sample, arrays), arrays, mesh_name, RUNS[runs], what)


@pytest.mark.slow
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_backward_in_random_layouts(op: Op, mesh_name: str) -> None:
    for index, sample in enumerate(op.samples()):
        arrays = drawn(op, sample, index)
        found = derivative_of(op, sample, arrays)
        if found is not None:
            program, cotangents = found
            what = f"derivative of {op.name} {dict(sample.params)}"
            in_random_layouts(program, [*arrays, *cotangents], mesh_name, RUNS["many"], what)


@pytest.fixture
def own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op is run in a way of its own wherever there is one, whatever it costs."""

    generator = rng("ways")
    take_ways(monkeypatch, lambda ways: [ways[n] for n in generator.permutation(len(ways))])


@pytest.mark.parametrize("runs", ["few", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_in_ways_of_their_own(own_ways: None, name: str, mesh_name: str, runs: str) -> None:
    op = REGISTRY[name]
    for index, sample in enumerate(op.samples()):
        arrays = drawn(op, sample, index)
        what = f"{op.name} {dict(sample.params)} in a way of its own"
        in_random_layouts(program_of(op, sample, arrays), arrays, mesh_name, RUNS[runs], what)

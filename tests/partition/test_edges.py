"""Every op on NaN, infinities, negative zeros and the limits of integers, in layouts drawn at random and in all ways in
which it may be partitioned: what an op moves comes out bit by bit, and what it computes is infinite, NaN or a negative
zero only where it is on one device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.core.check import check
from meshwright.core.dtypes import DType
from meshwright.core.op import Op, Sample
from meshwright.engine.compile import compile_program
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import draw, rng
from tests.partition.partial_sums import assert_same_bits, at_edges, computes
from tests.partition.partitioning import assert_equal, layouts, partitioned, take_ways, tolerance_of
from tests.partition.test_every_op import MESHES, OPS, program_of

RUNS = 2


@pytest.fixture(autouse=True)
def _sixty_four_bits(x64: None) -> Iterator[None]:
    yield


@pytest.fixture
def any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that can be partitioned in ways of its own is, in any of them."""
    generator = rng("any way")
    take_ways(monkeypatch, lambda ways: [ways[n] for n in generator.permutation(len(ways))])


def operands(op: Op, index: int, sample: Sample, dtype: DType | None) -> list[Any]:
    found = [np.asarray(x) for x in draw(sample, dtype, op.name, index)]
    return at_edges(op, sample, found, rng("edges", op.name, index, dtype))


def run(op: Op, index: int, sample: Sample, dtype: DType | None, mesh_name: str, runs: int) -> None:
    mesh, generator = MESHES[mesh_name], rng("layouts", op.name, index, dtype, mesh_name)

    def one(rank: int) -> TensorSharding:
        found = layouts(mesh, rank)
        return found[generator.integers(len(found))]

    arrays = operands(op, index, sample, dtype)
    program = program_of(op, sample, arrays)
    expected = compile_program(program)(*arrays)
    for _ in range(runs):
        ins = [one(x.ndim) for x in arrays]
        outs = [one(t.ndim) if generator.integers(2) else None for t in program.out_types]
        done = partitioned(program, mesh, ins, outs)
        check(done.whole, "partitioning")
        text = f"{op.name} {index} {dtype} {dict(sample.params)} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
        for x, y in zip(compile_program(done.whole)(*arrays), expected, strict=True):
            if any(computes(eqn) for eqn in program.eqns):
                assert_equal([x], [y], tolerance_of(program), text)
            else:
                assert_same_bits(x, y, text)


def samples(op: Op) -> Iterator[tuple[int, Sample, DType | None]]:
    for index, sample in enumerate(op.samples()):
        own = all(operand.dtype is not None for operand in sample.operands)
        for dtype in (None,) if own else op.dtypes:
            yield index, sample, dtype


@pytest.mark.parametrize("mesh_name", MESHES)
def test_some_ops_at_edges(any_way: None, mesh_name: str) -> None:
    generator = random.Random(1)
    for _ in range(60):
        op = generator.choice(OPS)
        run(op, *generator.choice(list(samples(op))), mesh_name, runs=1)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_every_op_at_edges(any_way: None, op: Op) -> None:
    for index, sample, dtype in samples(op):
        for mesh_name in MESHES:
            run(op, index, sample, dtype, mesh_name, RUNS)


@pytest.mark.parametrize("devices", [3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_a_dilated_convolution_has_no_zeros_between_elements(any_way: None, dilation: int, devices: int) -> None:
    """Infinity times a zero that is not there is no NaN."""
    mesh = mw.make_mesh((devices,), ("x",))
    split = mw.NamedSharding(mesh, mw.P(None, None, "x"))
    generator = rng("dilated", dilation, devices)
    for stride, hop, padding in product((1, 2), (1, 2), ((0, 0), (1, 2))):
        x = generator.integers(-3, 4, (1, 1, 12)).astype(np.float32)
        w = generator.integers(-3, 4, (1, 1, 3)).astype(np.float32)
        w[0, 0, generator.integers(3)] = np.inf

        def function(x: Any, w: Any, strides: Any = (stride,), pads: Any = (padding,), hops: Any = (hop,)) -> Any:
            return lax.conv_general_dilated(x, w, strides, pads, lhs_dilation=(dilation,), rhs_dilation=hops)

        expected = np.asarray(mw.jit(function)(x, w))
        found = mw.jit(function, out_shardings=split)(mw.device_put(x, split), w)
        np.testing.assert_array_equal(np.asarray(found), expected, err_msg=f"{stride} {hop} {padding}")

"""Every op × every layout of operands, cotangents and results, on the meshes (2, 2) and (2, 3), forward and backward.

A *case* is a layout for each operand (and cotangent), and for each result a layout or none (then the result comes out
as propagation finds, as under jit). An array of rank r has 1 + 3r + r² layouts: each axis on any dim or on none, both
on one dim in either order. Dims that the axes do not divide are among the samples of every op on (2, 3), and of most
on (2, 2). For each sample of each op, on each mesh:

- Where all cases together are at most ``MOST``, all of them are run.
- Elsewhere every combination of the layouts of each two of the operands, cotangents and results is; of each three, and
  so on, where that takes at most ``MOST`` cases. These are orthogonal arrays: the values of all polynomials of degree
  < t over a field of p elements at as many places as there are arrays, in which any t columns hold all p^t rows.
- Forward, all combinations of the operands' layouts are run besides with results as propagation finds them, where they
  are at most ``MOST_OPERANDS``.

On each mesh these are 322,352 cases forward, of 429 samples of 121 ops: all there are for 349 samples, all combinations
of operands' layouts for 418; and 242,801 backward, of 335 samples: all there are for 146. Operands are of one dtype,
float32 where the op takes it. Ops with regions have no samples, test_random_programs.py draws programs with them; nor
have collectives, which a user writes for one device.

Every case is propagated and partitioned as jit does first, its program is type-checked, run device by device, and
compared with the program on one device; devices that hold the same part of a result must hold the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from meshwright.core.check import check
from meshwright.core.op import Op
from meshwright.core.program import Program
from meshwright.engine.compile import compile_program
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import rng
from tests.partition.device_by_device import run_by_device
from tests.partition.partitioning import assert_equal, layouts, partitioned, tolerance_of
from tests.partition.test_every_op import MESHES, OPS, derivative_of, drawn, program_of

MOST = {"forward": 3000, "backward": 1500}
MOST_OPERANDS = 4000
PRIMES = [p for p in range(2, 100) if all(p % q for q in range(2, p))]
SAMPLES = [pytest.param(op, index, id=f":{op.name}:{index}") for op in OPS for index in range(len(op.samples()))]

Layout = TensorSharding | None


def orthogonal(levels: Sequence[int], strength: int, prime: int) -> Iterator[tuple[int, ...]]:
    """Rows in which any ``strength`` columns hold every combination of their levels."""
    for coefficients in product(range(prime), repeat=strength):
        row = []
        for place, count in enumerate(levels):
            value = 0
            for coefficient in coefficients:
                value = (value * place + coefficient) % prime
            row.append(value % count)
        yield tuple(row)


def strongest(levels: Sequence[int], most: int) -> tuple[int, int]:
    """The largest strength that takes at most so many rows, two at least, and the field for it."""
    prime = next(p for p in PRIMES if p >= max(*levels, len(levels)))
    strength = max([2, *(t for t in range(2, len(levels)) if prime**t <= most)])
    return strength, prime


def rows_for(levels: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    if prod(levels) <= most or len(levels) <= 2:
        yield from product(*map(range, levels))
    else:
        yield from orthogonal(levels, *strongest(levels, most))


def cases(
    program: Program, mesh: Any, direction: str
) -> Iterator[tuple[tuple[TensorSharding, ...], tuple[Layout, ...]]]:
    """The layouts of operands and results that are tried, each once."""
    ins = [layouts(mesh, t.ndim) for t in program.in_types]
    outs: list[list[Layout]] = [[None, *layouts(mesh, t.ndim)] for t in program.out_types]
    options: list[Any] = [*ins, *outs]
    seen = set()
    for row in rows_for([len(found) for found in options], MOST[direction]):
        if row not in seen:
            seen.add(row)
            case = tuple(found[n] for found, n in zip(options, row, strict=True))
            yield case[: len(ins)], case[len(ins) :]
    if direction == "forward" and prod(map(len, ins)) <= MOST_OPERANDS:
        nothing = (0,) * len(outs)
        for row in product(*(range(len(found)) for found in ins)):
            if (*row, *nothing) not in seen:
                yield tuple(found[n] for found, n in zip(ins, row, strict=True)), (None,) * len(outs)


def compare(op: Op, index: int, mesh_name: str, direction: str, most: int | None = None) -> None:
    """A sample of an op in all its cases, or in some, drawn at random."""
    mesh, sample = MESHES[mesh_name], op.samples()[index]
    arrays = drawn(op, sample, index)
    what = f"{direction} {op.name} {dict(sample.params)}"
    if direction == "forward":
        program = program_of(op, sample, arrays)
    else:
        found = derivative_of(op, sample, arrays)
        if found is None:
            return
        program, arrays = found[0], [*arrays, *found[1]]
    expected, tolerance = compile_program(program)(*arrays), tolerance_of(program)
    tried = list(cases(program, mesh, direction))
    if most is not None:
        tried = [tried[n] for n in rng(what, mesh_name).integers(len(tried), size=most)]
    for ins, outs in tried:
        text = f"{what} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
        try:
            done = partitioned(program, mesh, ins, outs).whole
            check(done, "partitioning")
            assert_equal(run_by_device(done, arrays), expected, tolerance, "")
        except Exception as error:
            raise AssertionError(text) from error


@pytest.mark.slow
@pytest.mark.parametrize("direction", MOST)
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("op, index", SAMPLES)
def test_all(op: Op, index: int, mesh_name: str, direction: str) -> None:
    compare(op, index, mesh_name, direction)


@pytest.mark.parametrize("op", OPS, ids=lambda op: f":{op.name}:")
def test_some(op: Op) -> None:
    for index in range(len(op.samples())):
        compare(op, index, list(MESHES)[index % 2], "backward", most=1)


def test_orthogonal_arrays() -> None:
    """Any two, or three, columns hold every combination."""
    for levels, strength in (((5, 3, 11, 12), 2), ((5, 5, 3, 4, 5), 3)):
        rows = np.array(list(orthogonal(levels, strength, 13 if strength == 2 else 5)))
        for columns in product(range(len(levels)), repeat=strength):
            if len(set(columns)) == strength:
                found = {tuple(row) for row in rows[:, columns]}
                assert found == set(product(*(range(levels[c]) for c in columns)))

"""Every op on operands that devices hold as partial sums, at every dtype, in every operand position: partitioned, it
gives what it gives whole, whatever comes after it. What is read from a split dim is exact to the sign of zeros."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P
from meshwright.core import dtypes
from meshwright.core.check import check
from meshwright.core.op import REGISTRY, No
from meshwright.core.program import Program
from meshwright.core.trace import close, to_array, trace
from meshwright.engine.compile import compile_program
from meshwright.errors import VarianceError
from meshwright.ops.basic import reduce_sum
from meshwright.partition.layouts import READ, replicated
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import rng
from tests.partition.partial_sums import (
    READS,
    SUMS,
    Case,
    Producer,
    assert_same_bits,
    computes,
    every_case,
    on_grid,
    summands,
    written,
)
from tests.partition.partitioning import assert_equal, layouts, partitioned, take_ways, tolerance_of

MESHES = {"4": mw.make_mesh((4,), ("x",)), "2x2": mw.make_mesh((2, 2), ("x", "y"))}
MESH_NAMES = list(MESHES)
EXPLICIT = mw.make_mesh((4,), ("x",), axis_types=(mw.AxisType.Explicit,))
NAMES = [name for name, op in sorted(REGISTRY.items()) if any(sample.operands for sample in op.samples())]


@pytest.fixture(autouse=True)
def _sixty_four_bits(x64: None) -> Iterator[None]:
    yield


def cases_of(name: str, producers: Sequence[Producer]) -> list[Case]:
    return [case for case in every_case(producers) if case.op.name == name]


def some_cases(producers: Sequence[Producer], count: int) -> list[Case]:
    """Cases drawn so that each op is as likely as any other."""
    found: dict[str, list[Case]] = {}
    for case in every_case(producers):
        found.setdefault(case.op.name, []).append(case)
    generator = random.Random(0)
    return [generator.choice(found[generator.choice(sorted(found))]) for _ in range(count)]


def compare(found: Sequence[Any], expected: Sequence[Any], tolerance: float, text: str, exact: bool = False) -> None:
    """Floats within what sums in another order may differ by, everything else exactly.

    Where a number is infinite on one device, it may be NaN unless it is to be ``exact``: zeros among its summands may
    have been multiplied by an infinity that was not known before.
    """
    for x, y in zip(found, expected, strict=True):
        if dtypes.is_inexact(x.dtype):
            lost = np.isinf(y) & np.isnan(x) & (not exact)
            assert_equal([np.where(lost, y, x).astype(x.dtype)], [y], tolerance, text)
        else:
            assert_same_bits(x, y, text)


def partition_and_compare(
    program: Program, arrays: Sequence[Any], split: Collection[int], mesh: Mesh, text: str, exact: bool = False
) -> None:
    """The program with the first dims of some arrays split, against itself on one device."""
    generator = rng("layouts", text)

    def some(rank: int, first: bool) -> TensorSharding:
        """Any layout, whose first dim is split where that is asked for."""
        found = [s for s in layouts(mesh, rank) if s.dims[0].axes or not first] if rank else layouts(mesh, 0)
        return found[generator.integers(len(found))] if first or generator.integers(2) else replicated(mesh, rank)

    whole = exact  # besides what is read, so that nothing else is computed in parts
    ins = [
        replicated(mesh, x.ndim) if whole and n not in split else some(x.ndim, n in split) for n, x in enumerate(arrays)
    ]
    outs = [None if whole or generator.integers(2) else some(t.ndim, False) for t in program.out_types]
    text = f"{text} {[str(s) for s in ins]} -> {[str(s) for s in outs]}"
    expected = compile_program(program)(*arrays)
    done = partitioned(program, mesh, ins, outs)
    check(done.whole, "partitioning")
    found = compile_program(done.whole)(*arrays)
    compare(found, expected, tolerance_of(program), text, exact)
    if exact and not any(map(computes, program.eqns)):
        for x, y in zip(found, expected, strict=True):
            assert_same_bits(x, y, text)


def run_case(case: Case, mesh_name: str, consumer: str | None = None) -> None:
    made = written(case, consumer)
    if made.is_coarse:
        return
    text = f"{case} {consumer} on {mesh_name}"
    split = range(case.producer.split)
    partition_and_compare(made.program, made.arrays, split, MESHES[mesh_name], text, case.producer.exact)


# Partial sums


@pytest.mark.parametrize("mesh_name", MESHES)
def test_some_ops_on_partial_sums(mesh_name: str) -> None:
    for case in some_cases(SUMS, 60):
        run_case(case, mesh_name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_op_on_partial_sums(name: str) -> None:
    for n, case in enumerate(cases_of(name, SUMS)):
        run_case(case, MESH_NAMES[n % 2], "returned")
        run_case(case, MESH_NAMES[1 - n % 2])


# Reads of split dims


@pytest.fixture
def reads_as_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read from a split dim is read by the device that holds it, whatever that costs."""
    take_ways(monkeypatch, lambda ways: [way for way in ways if way.factors.combine == READ])


@pytest.mark.parametrize("mesh_name", MESHES)
def test_some_ops_on_what_is_read(reads_as_sums: None, mesh_name: str) -> None:
    for case in some_cases(READS, 60):
        run_case(case, mesh_name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_op_on_what_is_read(reads_as_sums: None, name: str) -> None:
    for n, case in enumerate(cases_of(name, READS)):
        run_case(case, MESH_NAMES[n % 2], ("returned", None)[n // 2 % 2])


# Derivatives: the cotangents of the results are partial sums as well


def run_derivative(case: Case, mesh_name: str) -> None:
    made = written(case, "returned")
    out_types = made.program.out_types
    returned = [n for n, t in enumerate(out_types) if dtypes.is_inexact(t.dtype)]
    floats = [n for n, x in enumerate(case.operands()) if dtypes.is_inexact(x.dtype)]
    if isinstance(case.op.jvp, No) or not returned or not floats or case.own_dtype.itemsize == 1:
        return
    generator = rng("cotangents", str(case))
    drawn = (generator.uniform(0.5, 1.5, out_types[n].shape).astype(out_types[n].dtype) for n in returned)
    cotangents = [summands(on_grid(np.asarray(x)), generator) for x in drawn]

    def body(*values: Any) -> list[Any]:
        given, rows = values[: len(made.arrays)], values[len(made.arrays) :]
        operands = list(given[made.sources :])
        operands.insert(case.position, case.producer.make(*given[: made.sources]))

        def function(*inputs: Any) -> tuple[Any, ...]:
            full = list(operands)
            for n, x in zip(floats, inputs, strict=True):
                full[n] = x
            outs = case.op(*full, **case.sample.params)
            outs = outs if isinstance(outs, tuple) else (outs,)
            return tuple(outs[n] for n in returned)

        _, back = mw.vjp(function, *(operands[n] for n in floats))
        return list(back(tuple(reduce_sum(x, axes=(0,)) for x in rows)))

    arrays = [*made.arrays, *cotangents]
    program = close(*trace(body, [to_array(x).type for x in arrays]))
    split = [*range(case.producer.split), *range(len(made.arrays), len(arrays))]
    partition_and_compare(program, arrays, split, MESHES[mesh_name], f"derivative of {case} on {mesh_name}")


@pytest.mark.parametrize("mesh_name", MESHES)
def test_some_derivatives_of_partial_sums(mesh_name: str) -> None:
    for case in some_cases(SUMS, 30):
        run_derivative(case, mesh_name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_derivative_of_partial_sums(name: str) -> None:
    for n, case in enumerate(cases_of(name, SUMS)):
        run_derivative(case, MESH_NAMES[n % 2])


# Explicit axes


def on(*spec: Any, unreduced: Collection[str] = ()) -> mw.NamedSharding:
    return mw.NamedSharding(EXPLICIT, P(*spec, unreduced=unreduced))


def run_explicit(case: Case) -> None:
    made = written(case)
    if made.is_coarse:
        return
    expected = compile_program(made.program)(*made.arrays)
    placed = [mw.device_put(x, on("x") if n < case.producer.split else on()) for n, x in enumerate(made.arrays)]
    found = [np.asarray(x) for x in mw.jit(made.body)(*placed)]
    compare(found, expected, tolerance_of(made.program), f"{case} over Explicit axes")


def run_unreduced(case: Case) -> None:
    """An operand that is unreduced in its type: the op takes it if it is linear in it alone, and else refuses it."""
    made = written(case, "returned")
    program = made.program
    rows, _, *others = made.arrays
    types = [to_array(x).type for x in others]
    types.insert(case.position, to_array(rows[0]).type)
    groups = case.op.groups(types, program.out_types, case.sample.params)

    def body(rows: Any, signs: Any, *others: Any) -> list[Any]:
        operands = list(others)
        value = mnp.tensordot(signs, rows, axes=(0, 0), out_sharding=on(unreduced={"x"}))
        operands.insert(case.position, value)
        outs = case.op(*operands, **case.sample.params)
        return [mw.reshard(out, on()) for out in (outs if isinstance(outs, tuple) else (outs,))]

    placed = [mw.device_put(x, on("x") if n < 2 else on()) for n, x in enumerate(made.arrays)]
    if all(group.operands != (case.position,) for group in groups):
        with pytest.raises(VarianceError, match="each device holds a summand"):
            mw.jit(body)(*placed)
        return
    if made.is_coarse:
        return
    expected = compile_program(program)(*made.arrays)
    found = [np.asarray(x) for x in mw.jit(body)(*placed)]
    compare(found, expected, tolerance_of(program), f"{case}, unreduced in its type")


EXPLICIT_SUMS = [producer for producer in SUMS if producer.name != "product"]  # which does not say how it is laid out
PRODUCT = [producer for producer in SUMS if producer.name == "product"]


def test_some_ops_on_partial_sums_over_explicit_axes() -> None:
    for case in some_cases(EXPLICIT_SUMS, 25):
        run_explicit(case)
    for case in some_cases(PRODUCT, 25):
        run_unreduced(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_op_on_partial_sums_over_explicit_axes(name: str) -> None:
    for case in cases_of(name, EXPLICIT_SUMS)[::3]:
        run_explicit(case)
    for case in cases_of(name, PRODUCT):
        run_unreduced(case)

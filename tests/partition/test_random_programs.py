"""Random programs, partitioned in random layouts: they compute what they compute whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.arrays.tracing import trace_flat
from meshwright.core import dtypes, tree
from meshwright.core.program import Program
from meshwright.core.trace import close, to_array
from meshwright.partition.layouts import layout
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.named import TensorSharding
from tests.ops.drawing import rng
from tests.partition.partitioning import assert_same, layouts
from tests.transform.random_programs import EVERYTHING, ROUNDED, WHILE, Drawn, write

MESHES = [mw.make_mesh(shape, ("x", "y")) for shape in ((2, 2), (2, 3))]
IN_PARTS = mw.make_mesh((4, 3), ("x", "y"))
FORWARD = EVERYTHING - {ROUNDED}
REVERSE = EVERYTHING - {ROUNDED, WHILE}


def drawn(seed: int, features: frozenset[str]) -> Drawn:
    return write(rng("partitioned programs", seed).bytes(300), features, 1, 8)


def program_of(function: Any, arrays: list[Any]) -> Program:
    _, in_tree = tree.flatten((tuple(arrays), {}))
    traced = trace_flat(function, in_tree, [to_array(x).type for x in arrays])
    return close(traced.program, traced.captured)


def backward(one: Drawn, arrays: list[Any]) -> Any:
    """The gradient of a weighted sum of the float results with respect to the float arguments."""
    program = one.on(mw)

    def loss(*args: Any) -> Any:
        total = 0.0
        for out in program(*args):
            if dtypes.is_float(out.dtype):
                weights = np.cos(np.arange(out.size) + 1.0).reshape(out.shape).astype(out.dtype)
                total = total + (out * weights).sum()
        return total

    return mw.grad(loss, argnums=tuple(one.floats))


def layout_of_parts(rank: int, generator: np.random.Generator) -> TensorSharding:
    """Each axis or part of an axis on some dim, or on none."""
    x, y = IN_PARTS.axes
    parts = [x.part(1, 2), x.part(2, 4), y]
    dims: list[tuple[AxisRef, ...]] = [()] * rank
    for n in generator.permutation(len(parts)):
        dim = generator.integers(rank + 1)
        if dim < rank:
            dims[dim] = (*dims[dim], parts[n])
    return layout(IN_PARTS, tuple(dims))


def compare(function: Any, arrays: list[Any], seed: int, what: str, in_parts: bool = False) -> None:
    generator = rng("layouts", seed)
    mesh = IN_PARTS if in_parts else MESHES[generator.integers(len(MESHES))]
    program = program_of(function, arrays)

    def one(rank: int) -> TensorSharding:
        if in_parts:
            return layout_of_parts(rank, generator)
        found = layouts(mesh, rank)
        return found[generator.integers(len(found))]

    ins = [one(x.ndim) for x in arrays]
    outs = [one(t.ndim) if generator.integers(2) else None for t in program.out_types]
    assert_same(program, arrays, mesh, ins, outs, what, tolerance=2e-3)


def forward_case(seed: int) -> None:
    one = drawn(seed, FORWARD)
    compare(one.on(mw), one.arrays(), seed, repr(one))


def backward_case(seed: int) -> None:
    one = drawn(seed, REVERSE)
    if one.floats:
        arrays = one.arrays()
        compare(backward(one, arrays), arrays, seed, repr(one))


@pytest.mark.parametrize("seed", range(40))
def test_values(seed: int) -> None:
    forward_case(seed)


@pytest.mark.parametrize("seed", range(20))
def test_gradients(seed: int) -> None:
    backward_case(seed)


@pytest.mark.parametrize("seed", range(10))
def test_in_parts_of_axes(seed: int) -> None:
    one = drawn(seed, FORWARD)
    compare(one.on(mw), one.arrays(), seed, repr(one), in_parts=True)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(15))
def test_many_values(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        forward_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(8))
def test_many_gradients(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        backward_case(seed)

"""Matmuls in all shardings against the programs of textbooks, written by hand: on no machine are these faster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.hardware.machines import machine_for
from tests.partition.test_products import MESH, REGIMES, SPECS, Case, every_case, on

MACHINES = ("tpu v5e", "h100")
Axes = tuple[str, ...]


def axes_of(spec: mw.P) -> tuple[Axes, Axes]:
    """The axes of both dims."""
    rows, columns = [*spec, None, None][:2]
    split = lambda entry: () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    return split(rows), split(columns)


def sliced(x: Any, dim: int, axes: Axes) -> Any:
    """The part of a dim that a device has if axes split it."""
    for axis in axes:
        size = x.shape[dim] // MESH.shape[axis]
        x = lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, dim)
    return x


def gathered(x: Any, dim: int, axes: Axes) -> Any:
    return lax.all_gather(x, axes, axis=dim, tiled=True) if axes else x


def without(axes: Axes, ending: Axes) -> Axes:
    return axes[: len(axes) - len(ending)]


def common(one: Axes, other: Axes) -> Axes:
    """The axes that both begin with."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


class Textbook(NamedTuple):
    """A program: what is gathered of both dims of each operand, and what then splits rows, columns and the sum.

    The sum is taken in parts where the result is to be split over its axes, and for all devices elsewhere; a result
    that is split over others is gathered, and one that is split too little is sliced.
    """

    left: tuple[Axes, Axes]
    right: tuple[Axes, Axes]
    rows: Axes
    columns: Axes
    inner: Axes
    out: tuple[Axes, Axes]

    def compiled(self, case: Case) -> Any:
        left_inner, right_inner = axes_of(case.left)[1], axes_of(case.right)[0]

        def body(a: Any, b: Any) -> Any:
            a = gathered(gathered(a, 0, self.left[0]), 1, self.left[1])
            b = gathered(gathered(b, 0, self.right[0]), 1, self.right[1])
            a = sliced(a, 1, self.inner) if without(left_inner, self.left[1]) != self.inner else a
            b = sliced(b, 0, self.inner) if without(right_inner, self.right[0]) != self.inner else b
            c, summed = a @ b, self.inner
            kept = [common(*pair) for pair in zip((self.rows, self.columns), self.out, strict=True)]
            for dim, have in enumerate((self.rows, self.columns)):
                c = gathered(c, dim, have[len(kept[dim]) :])
            for dim, want in enumerate(self.out):
                rest = want[len(kept[dim]) :]
                if rest and {*rest} <= {*summed}:
                    c = lax.psum_scatter(c, rest, scatter_dimension=dim, tiled=True)
                    summed = tuple(axis for axis in summed if axis not in rest)
                else:
                    c = lax.psum(c, summed) if {*rest} & {*summed} else c
                    summed = () if {*rest} & {*summed} else summed
                    c = sliced(c, dim, rest)
            return lax.psum(c, summed) if summed else c

        same = {*MESH.axis_names} - {*self.out[0], *self.out[1]}
        out = mw.P(*(axes or None for axes in self.out), replicated=same)
        f = mw.shard_map(body, mesh=MESH, in_specs=(case.left, case.right), out_specs=out)
        return mw.jit(f).lower(*operands(case)).compile()


def operands(case: Case) -> list[mw.ShapeDtypeStruct]:
    return [
        mw.ShapeDtypeStruct(shape, "float32", sharding=on(spec))
        for shape, spec in zip(case.shapes, case[1:3], strict=False)
    ]


def textbooks(case: Case) -> Iterator[Textbook]:
    """Every way to gather operands after which the product is local."""
    (left_rows, left_inner), (right_inner, right_columns) = axes_of(case.left), axes_of(case.right)
    endings = lambda axes: [axes[n:] for n in range(len(axes) + 1)]
    gathers = product(*map(endings, (left_rows, left_inner, right_inner, right_columns)))
    for of_rows, of_left, of_right, of_columns in gathers:
        rows, columns = without(left_rows, of_rows), without(right_columns, of_columns)
        one, other = without(left_inner, of_left), without(right_inner, of_right)
        inner = one or other
        if (one and other and one != other) or len({*rows, *columns, *inner}) < len((*rows, *columns, *inner)):
            continue
        assert case.out is not None
        yield Textbook((of_rows, of_left), (of_right, of_columns), rows, columns, inner, axes_of(case.out))


def seconds(program: Any, machine: str) -> float:
    return program.simulate(machine, overlap="none").seconds  # type: ignore[no-any-return]


def check(cases: Sequence[Case], machine: str) -> None:
    """Ours is as fast as the fastest of the textbooks', and has more collectives only where that is faster.

    A result that nobody placed is compared with the textbooks' in the sharding that it has.
    """
    for case in cases:
        wanted = None if case.out is None else on(case.out)
        ours = mw.jit(mnp.matmul, out_shardings=wanted, hardware=machine).lower(*operands(case)).compile()
        case = case._replace(out=ours.out_shardings.spec)
        books = [one.compiled(case) for one in textbooks(case)]
        best = min(books, key=lambda one: seconds(one, machine))
        took, least = seconds(ours, machine), seconds(best, machine)
        assert took <= least * (1 + 1e-9), case
        assert len(ours.collectives) <= len(best.collectives) or took < least * (1 - 1e-9), case


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_of_textbooks_are_not_faster(machine: str) -> None:
    cases = [case for regime in REGIMES for case in every_case(regime)]
    check(random.Random(3).sample(cases, 24), machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("left", SPECS, ids=str)
def test_programs_of_textbooks_are_not_faster_in_any_sharding(left: mw.P, machine: str) -> None:
    check([case for regime in REGIMES for case in every_case(regime) if case.left == left], machine)


@pytest.mark.parametrize("seed", range(6))
def test_programs_of_textbooks_are_products(seed: int) -> None:
    case = random.Random(seed).choice([case for case in every_case("cube") if case.out is not None])
    a, b = (np.random.default_rng(seed).normal(size=shape).astype("float32") for shape in case.shapes[:2])
    placed = mw.device_put(a, on(case.left)), mw.device_put(b, on(case.right))
    for one in textbooks(case):
        np.testing.assert_allclose(one.compiled(case)(*placed), a @ b, rtol=1e-3, atol=1e-3)


def notation(name: str, indices: str, spec: mw.P) -> str:
    """``A[I_x,J]``."""
    dims = (index + ("_" + "".join(axes) if axes else "") for index, axes in zip(indices, axes_of(spec), strict=True))
    return f"{name}[{','.join(dims)}]"


def check_plan(cases: Sequence[Case], machine: str, most_faster: float) -> None:
    """`plan_matmul` names a choice that takes as long as the program that is made; seldom, parts of axes are faster."""
    faster = 0
    for case in cases:
        assert case.out is not None
        ours = mw.jit(mnp.matmul, out_shardings=on(case.out), hardware=machine).lower(*operands(case)).compile()
        arrays = zip("ABC", ("IJ", "JK", "IK"), (case.left, case.right, case.out), strict=True)
        left, right, result = (notation(*array) for array in arrays)
        sizes = dict(zip("IJK", REGIMES[case.regime], strict=True))
        machine_of = machine_for(machine, MESH.shape, "program")
        plan = mw.plan_matmul(f"{left} @ {right} -> {result}", MESH, sizes, "f32", machine_of)
        took = seconds(ours, machine)
        assert took <= plan.seconds * (1 + 1e-9), case
        faster += took < plan.seconds * (1 - 1e-9)
    assert faster <= most_faster * len(cases)


@pytest.mark.parametrize("machine", MACHINES)
def test_plan_matmul_names_the_same_choice(machine: str) -> None:
    cases = [case for regime in REGIMES for case in every_case(regime) if case.out is not None]
    check_plan(random.Random(4).sample(cases, 16), machine, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("left", SPECS, ids=str)
def test_plan_matmul_names_the_same_choice_in_any_sharding(left: mw.P, machine: str) -> None:
    cases = [case for regime in REGIMES for case in every_case(regime) if case.left == left]
    check_plan([case for case in cases if case.out is not None], machine, 0.05)

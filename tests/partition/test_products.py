"""Products in all layouts on 2 × 4 devices: what moves beside XLA's program, and beside every way to split them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.types import tensor
from meshwright.ops.contraction import dot_general
from meshwright.partition.choose import Assignment, _choice, _handed, question, rule_of
from meshwright.partition.cost import Planning, reshard_plan
from meshwright.partition.layouts import closed
from meshwright.sharding import enumerate_shardings

MESH = mw.make_mesh((2, 4), ("x", "y"))
SPECS = [s.spec for s in enumerate_shardings(MESH, 2, compound=True)]
RESULTS = [*SPECS, None]  # None: where propagation puts it
REGIMES = {"cube": (64, 64, 64), "long rows": (512, 64, 64), "long sum": (64, 2048, 64)}
PARAMS = (("contract", ((1,), (0,))), ("batch", ((), ())), ("dtype", None))


class Case(NamedTuple):
    """A product: its size, and the layouts of its operands and its result."""

    regime: str
    left: mw.P
    right: mw.P
    out: mw.P | None

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        rows, inner, columns = REGIMES[self.regime]
        return (rows, inner), (inner, columns), (rows, columns)


def every_case(regime: str) -> list[Case]:
    return [Case(regime, *specs) for specs in product(SPECS, SPECS, RESULTS)]


def on(spec: mw.P) -> mw.NamedSharding:
    return mw.NamedSharding(MESH, spec)


def compiled(case: Case, thorough: bool = False) -> Any:
    operands = [
        mw.ShapeDtypeStruct(shape, "float32", sharding=on(spec))
        for shape, spec in zip(case.shapes, case[1:3], strict=False)
    ]
    out = None if case.out is None else on(case.out)
    return mw.jit(mnp.matmul, out_shardings=out, thorough=thorough).lower(*operands).compile()


def our_bytes(program: Any) -> int:
    return sum(one.total_bytes for one in program.collectives)


def xla_bytes(case: Case) -> int:
    """What all devices receive in the program that XLA makes of the same."""
    path = Path(__file__).parents[2] / "benchmarks" / "hlo_bytes.py"
    found = spec_from_file_location("hlo_bytes", path)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = lambda spec: None if spec is None else jax.NamedSharding(mesh, jax.P(*spec))
    operands = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place(spec))
        for shape, spec in zip(case.shapes, case[1:3], strict=False)
    ]
    text = jax.jit(jnp.matmul, out_shardings=place(case.out)).lower(*operands).compile().as_text()
    total, _ = module.moved_bytes(text, MESH.size)
    return int(total)


def assignments() -> Iterator[Assignment]:
    """Every way to give x and the two halves of y to rows, columns and the sum, in every order."""
    x, y = MESH.axes
    for spots in product([None, 0, 1, 2], repeat=3):
        groups: dict[int, list] = {}  # type: ignore[type-arg]
        for atom, spot in zip((x, *y.split(2, 2)), spots, strict=True):
            if spot is not None:
                groups.setdefault(spot, []).append(atom)
        for orders in product(*map(permutations, groups.values())):
            yield dict(zip(groups, orders, strict=True))


def fewest_bytes(case: Case, out: mw.NamedSharding) -> int:
    """The fewest bytes that any assignment moves, from the operands as given to the result as wanted."""
    a, b, c = (tensor(shape, "float32") for shape in case.shapes)
    left, right, want = (closed(s.to_tensor_sharding(2)) for s in (on(case.left), on(case.right), out))
    rule = rule_of(dot_general, (a, b), (c,), PARAMS)
    asked = question(MESH, rule, (), (a, b), (c,), (left, right), (want,), (1,), Planning(thorough=True))

    def moved(choice: Any) -> int:
        ways = ((a, left, choice.operands[0]), (b, right, choice.operands[1]), (c, choice.results[0], want))
        return sum(reshard_plan(t.shape, t.dtype, one, other).total_bytes for t, one, other in ways)

    found = [_choice(asked, one, handed) for one in assignments() for handed in _handed(asked, one)]
    return min(moved(choice) for choice in found if choice is not None)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("count", [30, pytest.param(len(SPECS) ** 2 * len(RESULTS), marks=pytest.mark.slow)])
def test_nearly_always_no_assignment_moves_less(regime: str, count: int) -> None:
    """The exceptions weigh the work of a device."""
    worse = 0
    for case in random.Random(0).sample(every_case(regime), count):
        program = compiled(case, thorough=True)
        worse += our_bytes(program) > fewest_bytes(case, program.out_shardings)
    assert worse <= count * 0.05


def test_layouts_are_in_whole_axes_unless_a_search_is_asked_for() -> None:
    """Nobody wrote a part of an axis, so that no value is laid out in one."""
    free = [case for regime in REGIMES for case in every_case(regime) if case.out is None]
    for case in random.Random(2).sample(free, 20):
        assert ":(" not in str(compiled(case).out_shardings.spec), case
    mesh = mw.make_mesh((4,), ("x",))
    places = [mw.NamedSharding(mesh, spec) for spec in (mw.P(None, "x"), mw.P("x"))]
    operands = [mw.ShapeDtypeStruct((1024, 1024), "float32", sharding=place) for place in places]
    found = [mw.jit(mnp.matmul, thorough=thorough).lower(*operands).compile() for thorough in (False, True)]
    assert [":(" in str(one.out_shardings.spec) for one in found] == [False, True]


def test_a_sum_over_the_devices_of_an_axis_is_one_collective() -> None:
    """Both operands split over what is summed: one all-reduce; one reduce-scatter where the result is to be split."""
    mesh = mw.make_mesh((4, 1), ("x", "one"))
    place = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
    x, y = (mw.ShapeDtypeStruct((1024, 1024), "float32", sharding=s) for s in (place(None, "x"), place("x")))
    for out, kind in ((place(), "all_reduce"), (place("x"), "reduce_scatter"), (place(None, "x"), "reduce_scatter")):
        found = mw.jit(mnp.matmul, out_shardings=out).lower(x, y).compile()
        assert [(one.kind, one.axes) for one in found.collectives] == [(kind, ("x",))]


def test_operands_that_are_split_alike_stay_where_they_are() -> None:
    """Nobody placed the result: what each device has is multiplied, and the sum is taken for all."""
    mesh = mw.make_mesh((4,), ("x",))
    places = [mw.NamedSharding(mesh, spec) for spec in (mw.P(None, "x"), mw.P("x"))]
    operands = [mw.ShapeDtypeStruct((1024, 1024), "float32", sharding=place) for place in places]
    found = mw.jit(mnp.matmul).lower(*operands).compile()
    assert [(one.kind, one.axes) for one in found.collectives] == [("all_reduce", ("x",))]
    assert found.out_shardings.spec == mw.P(None, None)


def test_a_machine_that_is_named_decides() -> None:
    """Nobody placed the result: a reduce-scatter is faster than an all-reduce."""
    mesh = mw.make_mesh((4,), ("x",))
    places = [mw.NamedSharding(mesh, spec) for spec in (mw.P(None, "x"), mw.P("x"))]
    operands = [mw.ShapeDtypeStruct((1024, 1024), "float32", sharding=place) for place in places]
    for hardware in ("tpu v5e", "h100"):
        for f in (mnp.matmul, lambda x, y: mnp.maximum(x @ y, 0)):
            found = mw.jit(f, hardware=hardware).lower(*operands).compile()
            assert [one.kind for one in found.collectives] == ["reduce_scatter"]


def test_xla_never_moves_less() -> None:
    cases = [case for regime in REGIMES for case in every_case(regime)]
    for case in random.Random(1).sample(cases, 24):
        assert our_bytes(compiled(case)) <= xla_bytes(case), case


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("left", SPECS, ids=str)
@pytest.mark.parametrize("right", SPECS, ids=str)
def test_xla_never_moves_less_in_any_layout(regime: str, left: mw.P, right: mw.P) -> None:
    cases = [Case(regime, left, right, out) for out in RESULTS]
    found = [(case, our_bytes(compiled(case)), xla_bytes(case)) for case in cases]
    assert [one for one in found if one[1] > one[2]] == []

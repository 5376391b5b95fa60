"""Sums that are only cut into parts are reduce-scatters; what depends on no argument is never sent."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.program import Program
from meshwright.core.text.parse import parse_program
from meshwright.partition.combine import CollectiveReason
from meshwright.partition.scattered import scatter_sums

MESH = mw.make_mesh((2, 2), ("x", "y"))


def rewritten(text: str, written: bool = False) -> Program:
    program = parse_program(text)
    whys = {v: CollectiveReason("", v.type) for eqn in program.eqns for v in eqn.outputs if eqn.op.name == "psum"}
    return scatter_sums(program, {} if written else whys)


CUT = """
    program(a: f32[8]{i}) {
      b: f32[8] = psum a axes=('i',)
      c: f32[2,4] = reshape b shape=(2, 4)
      d: f32[1,4]{i} = pscatter c axes=('i',) sizes=(2,) dim=0
      return d
    }"""


def test_a_sum_that_is_cut() -> None:
    assert rewritten(CUT) == parse_program("""
        program(a: f32[8]{i}) {
          c: f32[2,4]{i} = reshape a shape=(2, 4)
          d: f32[1,4]{i} = psum_scatter c axes=('i',) sizes=(2,) dim=0
          return d
        }""")


def test_the_reason_is_what_leaves_the_sum_and_what_reads_the_parts() -> None:
    program = parse_program(CUT)
    total, _, cut = (eqn.outputs[0] for eqn in program.eqns)
    summed = "the matmul leaves partial sums over i"
    whys = {
        total: CollectiveReason(f"{summed}; the reshape needs it whole", total.type, True),
        cut: CollectiveReason("the reshape gives it whole; the tanh needs it in parts", cut.type),
    }
    (result,) = scatter_sums(program, whys).outputs
    assert whys[result] == CollectiveReason(f"{summed}; the tanh needs it in parts", total.type, True)  # type: ignore[index]


def test_over_another_axis_what_is_left_is_summed() -> None:
    assert rewritten("""
        program(a: f32[8]{i,j}) {
          b: f32[8] = psum a axes=('i', 'j')
          c: f32[4]{i} = pscatter b axes=('i',) sizes=(2,) dim=0
          return c
        }""") == parse_program("""
        program(a: f32[8]{i,j}) {
          b: f32[4]{i,j} = psum_scatter a axes=('i',) sizes=(2,) dim=0
          c: f32[4]{i} = psum b axes=('j',)
          return c
        }""")


def test_sums_that_others_read_or_that_were_written_stay() -> None:
    assert rewritten(CUT, written=True) == parse_program(CUT)
    twice = """
        program(a: f32[8]{i}) {
          b: f32[8] = psum a axes=('i',)
          c: f32[4]{i} = pscatter b axes=('i',) sizes=(2,) dim=0
          return b, c
        }"""
    assert rewritten(twice) == parse_program(twice)


def compiled(f: Any, *specs: P) -> Any:
    arrays = [
        mw.device_put(np.arange(64, dtype=np.float32).reshape(8, 8) + n, mw.NamedSharding(MESH, spec))
        for n, spec in enumerate(specs)
    ]
    found = mw.jit(f).lower(*arrays).compile()
    expected = mw.jit(f)(*(np.asarray(x) for x in arrays))
    for x, y in zip(mw.tree.leaves(found(*arrays)), mw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5)
    return found


def test_a_constraint_between_a_sum_and_its_parts_costs_nothing() -> None:
    whole, parts = mw.NamedSharding(MESH, P()), mw.NamedSharding(MESH, P("x"))

    def f(a: Any, b: Any) -> Any:
        return lax.with_sharding_constraint(mnp.tanh(lax.with_sharding_constraint(a @ b, whole)), parts)

    found = compiled(f, P(None, "x"), P("x"))
    assert [(one.kind, one.axes) for one in found.collectives] == [("reduce_scatter", ("x",))]


def test_a_mask_is_made_in_every_layout_it_is_needed_in() -> None:
    def f(a: Any, b: Any) -> Any:
        places = mnp.arange(8)
        mask = mnp.where(places[:, None] >= places, 1.0, 0.5)
        return a * mask, b * mask, a + mnp.zeros((8, 8))

    assert not compiled(f, P("x", "y"), P("y", "x")).collectives


def test_summands_of_what_depends_on_no_argument() -> None:
    """One device of each sum holds it, the others nothing."""
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)

    def f(x: Any) -> Any:
        counted = mnp.ones((4, 4)) + mnp.arange(4)
        return x + mw.reshard(mw.reshard(counted, P(None, "y", unreduced={"x"})), P())

    with mw.set_mesh(mesh):
        found = mw.jit(f)(mw.device_put(np.zeros((4, 4), np.float32), P()))
    np.testing.assert_array_equal(np.asarray(found), np.tile(1.0 + np.arange(4), (4, 1)))

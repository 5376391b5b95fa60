"""Transposes that only exchange the sides of a matmul are part of it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.text.parse import parse_program
from meshwright.engine.compile import compile_program
from meshwright.transform.turned import turn_matmuls


def test_a_transposed_matmul_has_its_operands_exchanged() -> None:
    program = parse_program("""
        program(a: f32[2,8,3], b: f32[8,4]) {
          c: f32[2,3,4] = dot_general a b contract=((1,), (0,)) batch=((), ()) dtype=None
          d: f32[4,2,3] = transpose c permutation=(2, 0, 1)
          return d
        }""")
    expected = parse_program("""
        program(a: f32[2,8,3], b: f32[8,4]) {
          d: f32[4,2,3] = dot_general b a contract=((0,), (1,)) batch=((), ()) dtype=None
          return d
        }""")
    assert turn_matmuls(program) == expected


@pytest.mark.parametrize(
    "rest",
    [
        "d: f32[4,2] = transpose c permutation=(1, 0)  return c, d",  # which others read
        "d: f32[2,4] = neg c  e: f32[4,2] = transpose d permutation=(1, 0)  return e",
        "return c",
    ],
)
def test_other_matmuls_stay(rest: str) -> None:
    program = parse_program(f"""
        program(a: f32[2,8], b: f32[8,4]) {{
          c: f32[2,4] = dot_general a b contract=((1,), (0,)) batch=((), ()) dtype=None
          {rest}
        }}""")
    assert turn_matmuls(program) is program


@pytest.mark.parametrize(
    ("spec", "sides"),
    [("bij,bjk->bik", True), ("bij,kj->bik", True), ("ijk,jkl->il", True), ("bcik,bcjk->bcij", True),
     ("ij,j->i", False), ("i,j->ij", False)],
)  # fmt: skip
def test_all_transposes_of_products_are_those_of_numpy(spec: str, sides: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = dict(zip("bcijkl", (2, 3, 4, 5, 6, 7), strict=True))
    operands, result = spec.split("->")
    arrays = [rng.normal(size=[sizes[c] for c in word]).astype(np.float32) for word in operands.split(",")]
    turned = 0
    for order in permutations(range(len(result))):

        def f(*xs: Any, order: tuple[int, ...] = order) -> Any:
            return mnp.einsum(spec, *xs).transpose(order)

        program = mw.make_program(f)(*arrays)
        found = turn_matmuls(program)
        turned += len(found.eqns) < len(program.eqns)
        (value,) = compile_program(found)(*arrays)
        expected = np.einsum(spec, *arrays).transpose(order)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    assert turned == sides  # by one order: that which exchanges them


def test_a_gradient_of_a_weight_has_no_transpose_in_what_xla_is_given() -> None:
    def f(ws: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, Any]:
            return mnp.tanh(x @ w), mnp.einsum("ij,ik->jk", x, x @ w).T

        return mw.lax.scan(layer, x, ws)

    args = mnp.full((3, 4, 4), 0.1), mnp.ones((8, 4))
    compiled = mw.jit(f, engine="xla").lower(*args).compile()
    assert "stablehlo.transpose" not in compiled.stages[-1].text
    for one, other in zip(compiled(*args), mw.jit(f)(*args), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4)

"""The checker: each way a program can be wrong, and the whole message it gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.core.check import check
from meshwright.core.program import Eqn, Literal, Missing, Program, Var
from meshwright.core.source import Source
from meshwright.core.text.parse import parse_program
from meshwright.core.types import tensor
from meshwright.errors import CheckError
from meshwright.ops.basic import add, neg, reshape
from meshwright.transform.regions import control  # noqa: F401  so that the text knows scan

F3 = tensor((3,), "float32")


def message(program: Program, stage: str = "") -> str:
    with pytest.raises(CheckError) as error:
        check(program, stage)
    return str(error.value)


def refused(text: str) -> str:
    return message(parse_program(text))


def test_a_right_program_is_returned_as_it_is() -> None:
    program = parse_program("program(a: f32[3]) { b: f32[3] = neg a  c: f32[3] = mul b 2.0  return c, a, 1 }")
    assert check(program) is program


def test_a_result_must_have_the_type_its_op_gives() -> None:
    text = """\
program(a: f32[8,4]) {
  b: f32[4] = reduce_sum a axes=(0,)  # loss.py:7
  c: f32[8] = neg b  # loss.py:8
  d: f32[8] = add c c  # loss.py:9
  return d
}"""
    assert (
        refused(text)
        == """\
The program is not well formed.
  at:     program(a: f32[8,4]) {
            b: f32[4] = reduce_sum a axes=(0,)  # loss.py:7
        >   c: f32[8] = neg b  # loss.py:8
            d: f32[8] = add c c  # loss.py:9
            return d
        written at loss.py:8
  why:  its result is f32[8], but the op gives f32[4]
  fix:  correct the equation marked with >"""
    )


def test_a_result_must_be_as_weak_as_its_op_makes_it() -> None:
    assert (
        refused("program(a: f32[3]) { b: ~f32[3] = neg a  return b }")
        == """\
The program is not well formed.
  at:     program(a: f32[3]) {
        >   b: ~f32[3] = neg a
            return b
          }
  why:  its result is ~f32[3], but the op gives f32[3]
  fix:  correct the equation marked with >"""
    )


def test_an_op_must_give_as_many_results_as_are_named() -> None:
    assert (
        refused("program(a: f32[3]) { b: f32[3], c: f32[3] = neg a  return b }")
        == """\
The program is not well formed.
  at:     program(a: f32[3]) {
        >   b: f32[3], c: f32[3] = neg a
            return b
          }
  why:  its result is f32[3], f32[3], but the op gives f32[3]
  fix:  correct the equation marked with >"""
    )


def test_an_op_must_take_its_operands() -> None:
    assert (
        refused("program(a: f32[3], b: f32[4]) { c: f32[3] = add a b  return c }")
        == """\
The program is not well formed.
  at:     program(a: f32[3], b: f32[4]) {
        >   c: f32[3] = add a b
            return c
          }
  why:  add cannot take f32[3], f32[4]: the operands differ in shape and neither is a scalar
  fix:  correct the equation marked with >"""
    )


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("reshape a", "reshape missing 1 required positional argument: 'shape'"),
        ("reshape a axis=1 shape=(3,)", "reshape got an unexpected keyword argument 'axis'"),
        ("reshape a shape=(4,)", "reshape cannot take f32[3]: 3 elements do not fill (4,)"),
        ("reshape a shape=3", "shape is a tuple of ints, not 3"),
        (
            "reduce_sum a axes=(1,)",
            "reduce_sum cannot take f32[3]: axes (1,) are not increasing dims of a rank-1 array",
        ),
    ],
)
def test_an_op_must_have_its_params_and_no_others(equation: str, why: str) -> None:
    assert (
        refused(f"program(a: f32[3]) {{ b: f32[3] = {equation}  return b }}")
        == f"""\
The program is not well formed.
  at:     program(a: f32[3]) {{
        >   b: f32[3] = {equation}
            return b
          }}
  why:  {why}
  fix:  correct the equation marked with >"""
    )


def test_a_rule_that_stumbles_is_still_an_error_of_the_program() -> None:
    program = parse_program("program(a: f32[3]) { b: f32[3] = transpose a permutation=(None,)  return b }")
    assert "permutation=(None,)" in message(program)


def equation(inputs: Any, outputs: Any, op: Any = neg, params: Any = None, line: int = 0) -> Eqn:
    return Eqn(op, tuple(inputs), params or {}, tuple(outputs), Source("model.py", line) if line else None)


def test_a_value_must_be_defined_before_it_is_used() -> None:
    a, b, c = Var(F3), Var(F3), Var(F3)
    assert (
        message(Program((a,), (equation([c], [b], line=1), equation([a], [c], line=2)), (b,)))
        == """\
The program is not well formed.
  at:     program(a: f32[3]) {
        >   c: f32[3] = neg b  # model.py:1
            b: f32[3] = neg a  # model.py:2
            return c
        written at model.py:1
  why:  it uses a f32[3] that is not defined before it
  fix:  correct the equation marked with >"""
    )


def test_a_value_must_be_defined_once() -> None:
    a, b = Var(F3), Var(F3)
    assert (
        message(Program((a,), (equation([a], [b]), equation([b], [b])), (b,)))
        == """\
The program is not well formed.
  at:     program(a: f32[3]) {
            b: f32[3] = neg a
        >   b: f32[3] = neg b
            return b
          }
  why:  it defines a variable a second time
  fix:  correct the equation marked with >"""
    )


def test_an_input_must_be_listed_once() -> None:
    a = Var(F3)
    assert (
        message(Program((a, a), (), (a,)))
        == """\
The program is not well formed.
  at:   > program(a: f32[3], a: f32[3]) {
            return a
          }
  why:  an input is listed twice
  fix:  correct the equation marked with >"""
    )


def test_a_returned_value_must_be_defined() -> None:
    a, b = Var(F3), Var(F3)
    assert (
        message(Program((a,), (), (b,)), stage="dce")
        == """\
The program after dce is not well formed.
  at:     program(a: f32[3]) {
        >   return b
          }
  why:  a returned f32[3] is not defined
  fix:  correct the equation marked with >"""
    )


def test_a_constant_must_have_the_contents_its_type_says() -> None:
    a = Var(F3)
    assert (
        message(Program((), (), (a,), ((a, np.zeros(2, np.float32)),)))
        == """\
The program is not well formed.
  at:   > program() {
            const a: f32[3] = [0.0, 0.0]
            return a
  why:  a constant f32[3] has contents f32[2]
  fix:  correct the equation marked with >"""
    )
    check(Program((), (), (a,), ((a, Missing("00")),)))


def test_the_marked_line_is_right_below_constants() -> None:
    program = parse_program("program(a: f32[3]) { const b: f32[3] = [1.0, 2.0, 3.0]  c: f32[4] = neg b  return c }")
    assert (
        message(program)
        == """\
The program is not well formed.
  at:     program(a: f32[3]) {
            const b: f32[3] = [1.0, 2.0, 3.0]
        >   c: f32[4] = neg b
            return c
          }
  why:  its result is f32[4], but the op gives f32[3]
  fix:  correct the equation marked with >"""
    )


def scan_of(body: Program) -> Program:
    params = f"body={body} carry=1 consts=0 length=5 reverse=False"
    return parse_program(f"program(a: f32[], b: f32[5]) {{ c: f32[] = scan a b {params}  return c }}")


def test_regions_are_checked_and_shown_on_their_own() -> None:
    body = parse_program("program(a: f32[], b: f32[]) { c: f32[2] = add a b  return c }")
    assert (
        message(scan_of(body))
        == """\
The program is not well formed.
  at:     program(a: f32[], b: f32[]) {
        >   c: f32[2] = add a b
            return c
          }
  why:  its result is f32[2], but the op gives f32[]
  fix:  correct the equation marked with >"""
    )


def test_a_region_shows_as_one_line_in_the_error_of_its_equation() -> None:
    body = parse_program("program(a: f32[], b: i32[]) { return a }")
    assert (
        message(scan_of(body))
        == """\
The program is not well formed.
  at:     program(a: f32[], b: f32[5]) {
        >   c: f32[] = scan a b body='…' carry=1 consts=0 length=5 reverse=False
            return c
          }
  why:  The body of a scan does not fit its operands: it takes (f32[], i32[]) and returns (f32[]), for operands \
(f32[], f32[]) of which 1 are carried
  fix:  correct the equation marked with >"""
    )


def test_a_region_does_not_see_the_values_around_it() -> None:
    a, b = Var(F3), Var(F3)
    inner = Program((), (), (a,))
    program = Program((a,), (equation([a], [b], params={"body": inner}),), (b,))
    assert (
        message(program)
        == """\
The program is not well formed.
  at:     program() {
        >   return a
          }
  why:  a returned f32[3] is not defined
  fix:  correct the equation marked with >"""
    )


def test_operands_of_literals_are_checked_too() -> None:
    a = Var(F3)
    b = Var(F3)
    program = Program((a,), (equation([a, Literal(1, tensor((), "int32"))], [b], op=add),), (b,))
    assert message(program).splitlines()[-2] == "  why:  add cannot take f32[3], i32[]: the operands differ in dtype"
    wrong = Program((a,), (equation([a], [b], op=reshape, params={"shape": (3, 1)}),), (b,))
    assert message(wrong).splitlines()[-2] == "  why:  its result is f32[3], but the op gives f32[3,1]"


@pytest.mark.parametrize(
    ("type", "equation"),
    [
        ("f32[4611686018427387904,8]", "broadcast_in_dim a dims=() shape=(4611686018427387904, 8)"),
        ("f32[0,4611686018427387904,8]", "broadcast_in_dim a dims=() shape=(0, 4611686018427387904, 8)"),
        (f"f32[{','.join('1' * 65)}]", f"broadcast_in_dim a dims=() shape=({', '.join('1' * 65)})"),
    ],
)
def test_a_result_must_be_what_an_array_can_be(type: str, equation: str) -> None:
    assert (
        refused(f"program(a: f32[]) {{ b: {type} = {equation}  return b }}").splitlines()[-2]
        == f"  why:  {type} is more than an array can be: 64 dims and 2**63 - 1 bytes"
    )

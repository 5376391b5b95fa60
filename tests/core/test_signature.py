"""What an op takes is part of its type rule: the checker refuses other operands and other params, for every op."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.check import check
from meshwright.core.op import REGISTRY, Op
from meshwright.core.program import Eqn, Program, Var
from meshwright.core.signature import signature_of
from meshwright.core.text.parse import parse_program
from meshwright.core.types import TensorType, tensor
from meshwright.engine.compile import compile_program
from meshwright.errors import CheckError, ShapeError
from meshwright.ops.basic import neg, reshape
from tests.engine.mutated_programs import RARE, of_every_op, of_regions

F3 = tensor((3,), "float32")


def refused(text: str) -> str:
    with pytest.raises(CheckError) as error:
        check(parse_program(text))
    return str(error.value)


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("neg a b", "neg takes 1 operand, not 2"),
        ("neg", "neg takes 1 operand, not 0"),
        ("sub a", "sub takes 2 operands, not 1"),
        ("sub a b a", "sub takes 2 operands, not 3"),
        ("clamp a b", "clamp takes 3 operands, not 2"),
        ("iota a dim=0 dtype=f32 shape=(3,)", "iota takes no operands, not 1"),
        ("concatenate dim=0", "concatenate takes at least 1 operand, not 0"),
        ("sort dim=0 num_keys=1", "sort takes at least 1 operand, not 0"),
        ("reshape a b shape=(3,)", "reshape takes 1 operand, not 2"),
        ("neg a lambda=1", "neg got an unexpected keyword argument 'lambda'"),
        ("rem a b __debug__=1", "rem got an unexpected keyword argument '__debug__'"),
        ("add a b out=1", "add got an unexpected keyword argument 'out'"),
        ("round a", "round missing 1 required positional argument: 'away'"),
        ("gather a b mode='clip'", "gather missing 1 required positional argument: 'offset_dims'"),
        ("pad a 0.0 high=(0,) interior=(0,) low=('0',)", "low is a tuple of ints, not ('0',)"),
        ("triangular_solve a b conjugate_a=0 left_side=True lower=True transpose_a=True unit_diagonal=True",
         "conjugate_a is True or False, not 0"),
        ("reduce_window_sum a base_dilation=(1,) padding=((0, 0, 0),) strides=(1,) window=(1,) window_dilation=(1,)",
         "padding is a tuple of pairs of ints, not ((0, 0, 0),)"),
        ("dot_general a b batch=((), (), ()) contract=((0,), (0,)) dtype=None", "batch has 2 entries, not 3"),
        ("sharding_constraint a spec='x'", "spec is a partition spec, not 'x'"),
        ("cond a branches=((1,), 2)", "branches is a tuple of programs, not ((1,), 2)"),
        ("checkpoint a program=rule('f')", "program is a program, not rule('f')"),
        ("pallas_call a kernel='f' mesh=() out=() rows=()", "kernel is a rule, not 'f'"),
        ("pallas_call a kernel=rule('f') mesh=(('x', 2, 3),) out=() rows=()",
         "mesh is a tuple of tuples of a string and an int, not (('x', 2, 3),)"),
    ],
)  # fmt: skip
def test_an_equation_takes_what_its_op_takes(equation: str, why: str) -> None:
    assert (
        refused(f"program(a: f32[3], b: f32[3]) {{ c: f32[3] = {equation}  return c }}")
        == f"""\
The program is not well formed.
  at:     program(a: f32[3], b: f32[3]) {{
        >   c: f32[3] = {equation}
            return c
          }}
  why:  {why}
  fix:  correct the equation marked with >"""
    )


def test_a_call_of_an_op_is_held_to_the_same() -> None:
    x = mw.numpy.ones(3)
    with pytest.raises(ShapeError) as error:
        neg(x, x)
    assert str(error.value).splitlines()[0] == "neg cannot be called so."
    assert str(error.value).splitlines()[-2:] == ["  why:  neg takes 1 operand, not 2", "  fix:  neg(x)"]
    with pytest.raises(ShapeError) as error:
        mw.make_program(lambda x: reshape(x, shape=(3,), axis=0))(x)
    assert str(error.value).splitlines()[-2:] == [
        "  why:  reshape got an unexpected keyword argument 'axis'",
        "  fix:  reshape(x, shape=…)",
    ]


def kinds(annotation: Any) -> Iterator[Any]:
    """All parts of an annotation."""
    yield annotation
    if get_origin(annotation) is not np.dtype:
        for part in get_args(annotation):
            yield from kinds(part)


@pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.name)
def test_every_param_has_a_kind(op: Op) -> None:
    signature = signature_of(op.type)
    assert Any not in [part for kind in signature.params.values() for part in kinds(kind)]
    for sample in op.samples():
        assert signature.fault(op.name, len(sample.operands), sample.params) == ""


# Equations of every op, changed


@cache
def equations() -> dict[str, list[Eqn]]:
    """Right equations by op: those of the samples, and of programs with loops, branches and collectives."""
    found: dict[str, list[Eqn]] = {}

    def collect(program: Program) -> None:
        for eqn in program.eqns:
            found.setdefault(eqn.op.name, []).append(eqn)
            for _, region in eqn.regions():
                collect(region)

    for text in (*of_every_op(), *RARE):
        collect(parse_program(text))
    for program in of_regions():
        collect(program)
    return found


def alone(eqn: Eqn, inputs: Any = None, params: Any = None) -> Program:
    """A program of one equation like this, with other operands or params; its inputs are the operands."""
    given = [Var(a.type) for a in (eqn.inputs if inputs is None else inputs)]
    outputs = [Var(v.type) for v in eqn.outputs]
    return Program(
        tuple(given), (Eqn(eqn.op, given, eqn.params if params is None else params, outputs),), tuple(outputs)
    )


def is_refused(program: Program) -> None:
    """The checker refuses a program with an error of its own, and so does the engine before it runs."""
    with pytest.raises(CheckError) as error:
        check(program)
    assert len(str(error.value)) < 20_000
    with pytest.raises(CheckError):
        compile_program(program)


def structure(value: Any) -> Any:
    """What a value is made of."""
    if isinstance(value, tuple):
        return ("tuple", *dict.fromkeys(map(structure, value)))
    return np.dtype if isinstance(value, np.dtype) else type(value)


OTHERS = (
    None, True, 3, -1, 10**30, 2.5, "x", (1,), ("x",), (2.5,), (True,), ((1,), (2,)), (None,), np.dtype("float32"),
    np.dtype("U3"), F3, Program((), (), ()), [1], {}, b"x", np.int64(1), np.ones(2), object(),
)  # fmt: skip


def other_values(value: Any) -> Iterator[Any]:
    """Values that are made of other things than this one."""
    for other in OTHERS:
        empty = value == () and isinstance(other, tuple)  # what is inside of an empty tuple nobody knows
        unsure = value is None or other is None  # a param that may be left out
        if structure(other) != structure(value) and not empty and not unsure:
            yield other


# Nothing in these equations says how many operands the Python function takes that they name.
ANY_NUMBER = ("custom_vjp_tangents", "pallas_call", "debug_callback", "io_callback", "pure_callback")


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_an_op_refuses_other_operands_and_other_params(name: str) -> None:
    for eqn in equations()[name][:2]:
        check(alone(eqn))
        more = Var(F3)
        if name not in ANY_NUMBER:
            is_refused(alone(eqn, (*eqn.inputs, more)))
            is_refused(alone(eqn, (*eqn.inputs, *eqn.inputs, more, more)))
        if eqn.inputs and name not in ANY_NUMBER:
            is_refused(alone(eqn, eqn.inputs[:-1]))
            is_refused(alone(eqn, ()))
        for unknown in ("lambda", "out", "xp", "where", "__debug__"):
            is_refused(alone(eqn, params={**eqn.params, unknown: 1}))
        for param, value in eqn.params.items():
            if param != "out_sharding":
                is_refused(alone(eqn, params={k: v for k, v in eqn.params.items() if k != param}))
            for other in other_values(value):
                is_refused(alone(eqn, params={**eqn.params, param: other}))
            if isinstance(value, tuple) and value:
                is_refused(alone(eqn, params={**eqn.params, param: (*value, object())}))


def test_the_engine_does_not_write_to_what_it_is_given_too_much_of() -> None:
    program = parse_program("program(a: f32[3], b: f32[3]) { c: f32[3] = neg a b  return c }")
    with pytest.raises(CheckError):
        compile_program(program)


def test_a_rule_says_what_its_params_are() -> None:
    def rule(x: TensorType, axis) -> TensorType:  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(ValueError, match=r"^a type rule does not say what 'axis' is: annotate it$"):
        signature_of(rule)

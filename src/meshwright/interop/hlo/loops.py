"""Loops and choices in HLO: computations see nothing but a tuple, so everything they read travels in it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.program import Eqn, Program
from meshwright.core.types import TensorType
from meshwright.interop.hlo.writer import PRED, S32, Computation, HloValue, Write, numbers

Types = list[TensorType]


def _types(values: Sequence[HloValue]) -> Types:
    return [x.type for x in values]


def _while(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    p = eqn.params
    first, second = p["cond_consts"], p["cond_consts"] + p["body_consts"]
    test = Computation.of_tuple(c.module, _types(operands))
    test.eqn = c.eqn
    consts, carry = test.parameters[:first], test.parameters[second:]
    condition = test.finish("while_condition", test.program(p["cond"], [*consts, *carry]))
    step = Computation.of_tuple(c.module, _types(operands))
    step.eqn = c.eqn
    outs = step.program(p["body"], step.parameters[first:])
    body = step.finish("while_body", [*step.parameters[:second], *outs], one_as_tuple=True)
    text = f"condition={condition}, body={body}"
    return c.from_tuple("while", [c.tuple(operands)], _types(operands), text)[second:]


def _scan(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    """A loop that counts, reads a row of each scanned array and writes a row of each result."""
    p = eqn.params
    consts, carry, length = p["consts"], p["carry"], p["length"]
    number, truth = TensorType((), S32), TensorType((), PRED)
    rows = [c.constant(0, t) for t in results[carry:]]
    carried = [c.number(0), *operands, *rows]
    types = _types(carried)

    test = Computation.of_tuple(c.module, types)
    test.eqn = c.eqn
    less = test.op("compare", [test.parameters[0], test.number(length)], [truth], "direction=LT")
    condition = test.finish("scan_condition", less)

    step = Computation.of_tuple(c.module, types)
    step.eqn = c.eqn
    count, *given = step.parameters
    at = count
    if p["reverse"]:
        (at,) = step.op("subtract", [step.number(length - 1), count], [number])
    given, buffers = given[: len(operands)], given[len(operands) :]
    zero = step.number(0)
    scanned = []
    for x in given[consts + carry :]:
        row = TensorType((1, *x.type.shape[1:]), x.type.dtype)
        places = [at, *[zero] * (x.type.ndim - 1)]
        (cut,) = step.op("dynamic-slice", [x, *places], [row], f"dynamic_slice_sizes={numbers(row.shape)}")
        scanned.append(step.reshape(cut, row.shape[1:]))
    outs = step.program(p["body"], [*given[: consts + carry], *scanned])
    written = []
    for out, buffer in zip(outs[carry:], buffers, strict=True):
        one = step.reshape(out, (1, *out.type.shape))
        written += step.op("dynamic-update-slice", [buffer, one, at, *[zero] * out.type.ndim], [buffer.type])
    (following,) = step.op("add", [count, step.number(1)], [number])
    new = [following, *given[:consts], *outs[:carry], *given[consts + carry :], *written]
    body = step.finish("scan_body", new, one_as_tuple=True)
    found = c.from_tuple("while", [c.tuple(carried)], types, f"condition={condition}, body={body}")
    return [*found[1 + consts : 1 + consts + carry], *found[1 + len(operands) :]]


def _cond(c: Computation, eqn: Eqn, operands: list[HloValue], results: Types) -> list[HloValue]:
    index, *rest = operands
    branches: Sequence[Program] = eqn.params["branches"]
    number = TensorType((), S32)
    if index.type.dtype != S32:
        (index,) = c.op("convert", [index], [number])
    (index,) = c.op("clamp", [c.number(0), index, c.number(len(branches) - 1)], [number])
    names = []
    for branch in branches:
        inside = Computation.of_tuple(c.module, _types(rest))
        inside.eqn = c.eqn
        names.append(inside.finish("branch", inside.program(branch, inside.parameters), one_as_tuple=True))
    given = c.tuple(rest)
    text = f"branch_computations={{{', '.join(names)}}}"
    return c.from_tuple("conditional", [index.name, *[given] * len(branches)], results, text)


def _inlined(param: str) -> Write:
    return lambda c, eqn, operands, results: c.program(eqn.params[param], operands)


LOOPS: dict[str, Write] = {
    "checkpoint": _inlined("program"),
    "cond": _cond,
    "custom_jvp_call": _inlined("call"),
    "custom_vjp_call": _inlined("call"),
    "scan": _scan,
    "while": _while,
}

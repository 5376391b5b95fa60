"""Forward derivatives: push tangents through a program, either beside the values (jvp) or into a program of their own
(linearize). A tangent that is zero is None and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.core import dtypes
from meshwright.core.op import No
from meshwright.core.program import Atom, Eqn, Literal, Program
from meshwright.core.source import here
from meshwright.core.trace import Array, Builder, Value, apply, make_varying, read, state
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError


def jvp_program(
    program: Program, primals: Sequence[Any], tangents: Sequence[Any | None]
) -> tuple[list[Any], list[Any | None]]:
    """The outputs of ``program`` and their tangents, added to the trace going on (or computed)."""
    return _push(program, primals, tangents, "jvp")


class Linearized(NamedTuple):
    """A linear program: inputs are ``residuals`` (values kept from the forward run), then the active tangents.

    Its outputs are the tangents of those outputs that ``nonzero`` marks.
    """

    program: Program
    residuals: list[Value]
    nonzero: tuple[bool, ...]


def linearize_program(program: Program, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], Linearized]:
    """Run ``program`` forward, and collect what is linear in the ``active`` inputs' tangents as a program."""
    linear = Builder(state.builder)
    try:
        tangents = [linear.input(tangent_type(x.type)) if a else None for x, a in zip(primals, active, strict=True)]
        outs, out_tangents = _push(program, primals, tangents, "linearize")
        kept = [t for t in out_tangents if t is not None]
        result, residuals = linear.finish(kept)
    finally:
        linear.closed = True
    return outs, Linearized(result, residuals, tuple(t is not None for t in out_tangents))


def tangent_type(type: TensorType) -> TensorType:
    """The type of a tangent (and of a cotangent): the value's own."""
    return type


def _push(
    program: Program, primals: Sequence[Any], tangents: Sequence[Any | None], rule_name: str
) -> tuple[list[Any], list[Any | None]]:
    values: dict[Atom, Any] = dict(zip(program.inputs, primals, strict=True))
    tangent_of: dict[Atom, Any] = {
        v: make_varying(t, v.type.varying) for v, t in zip(program.inputs, tangents, strict=True) if t is not None
    }
    for var, data in program.constants:
        values[var] = Array(data, var.type)
    outer = state.source
    try:
        for eqn in program.eqns:
            state.source = eqn.source or outer
            ins = [read(values, a) for a in eqn.inputs]
            ts = [tangent_of.get(a) for a in eqn.inputs]
            if all(t is None for t in ts):
                outs = apply(eqn.op, ins, eqn.params)
                outs = outs if outs.__class__ is tuple else (outs,)
            else:
                rule = getattr(eqn.op, rule_name)
                if rule.__class__ is No:
                    raise no_rule(eqn, "derivative", rule.reason)
                outs, out_tangents = rule(eqn.op, ins, ts, eqn.params)
                for var, t in zip(eqn.outputs, out_tangents, strict=True):
                    if t is not None and dtypes.is_inexact(var.type.dtype):
                        tangent_of[var] = make_varying(t, var.type.varying)
            values.update(zip(eqn.outputs, outs, strict=True))
    finally:
        state.source = outer
    return (
        [read(values, a) for a in program.outputs],
        [None if a.__class__ is Literal else tangent_of.get(a) for a in program.outputs],
    )


def no_rule(eqn: Eqn, what: str, reason: str) -> DifferentiationError:
    """The error for a rule an op does not have."""
    return DifferentiationError(
        f"{eqn.op.name} has no {what}.",
        where=eqn.source.show() if eqn.source else here(),
        why=reason,
        fix="keep it out of what is differentiated with mw.lax.stop_gradient(x), "
        "or give the function a rule of its own with mw.custom_jvp or mw.custom_vjp",
    )

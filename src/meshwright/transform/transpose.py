"""Transposition: run a program backward in the inputs it is linear in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.op import Linear, Linearity, No, NotLinear
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import Array, apply, read, state
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError, ShardingError, VarianceError
from meshwright.ops.cotangent import Cotangent, as_value, summed
from meshwright.ops.layout import laid_out
from meshwright.ops.rules import Negative
from meshwright.transform.jvp import no_rule


def transpose_program(
    program: Program, linear: Sequence[bool], args: Sequence[Any | None], cts: Sequence[Any | None]
) -> list[Any | None]:
    """The cotangents of all inputs (None where zero or not linear) for the cotangents of the outputs.

    Inputs marked ``linear`` have no value in ``args``. Equations that do not depend on them are run forward first.
    """
    values: dict[Atom, Any] = {
        v: x for v, x, is_linear in zip(program.inputs, args, linear, strict=True) if not is_linear
    }
    for var, data in program.constants:
        values[var] = Array(data, var.type)
    outer = state.source
    backward: list[Eqn] = []
    unknown: set[Var] = {v for v, is_linear in zip(program.inputs, linear, strict=True) if is_linear}
    try:
        for eqn in program.eqns:
            if any(a in unknown for a in eqn.inputs if a.__class__ is Var):
                backward.append(eqn)
                unknown.update(eqn.outputs)
            else:
                state.source = eqn.source or outer
                outs = apply(eqn.op, [read(values, a) for a in eqn.inputs], eqn.params)
                values.update(zip(eqn.outputs, outs if outs.__class__ is tuple else (outs,), strict=True))
        return _pull(program, backward, unknown, values, cts)
    finally:
        state.source = outer


def _pull(
    program: Program, backward: list[Eqn], unknown: set[Var], values: dict[Atom, Any], cts: Sequence[Any | None]
) -> list[Any | None]:
    outer = state.source
    ct_of: dict[Atom, Cotangent] = {}

    def accumulate(atom: Atom, ct: Any | None) -> None:
        if ct is not None and atom.__class__ is not Literal:
            ct_of.setdefault(atom, Cotangent(atom.type)).add(ct)

    for atom, ct in zip(program.outputs, cts, strict=True):
        accumulate(atom, ct)
    for eqn in reversed(backward):
        out_cts = [ct_of.pop(v).total() if v in ct_of else None for v in eqn.outputs]
        if all(ct is None for ct in out_cts):
            continue
        state.source = eqn.source.backward() if eqn.source else outer
        if isinstance(eqn.op.transpose, No):
            raise no_rule(eqn, "transpose", eqn.op.transpose.reason)
        inputs = [Linear(a.type) if a in unknown else read(values, a) for a in eqn.inputs]
        passed = eqn.op.linear is not Linearity.NONE  # rules that users write may not be linear
        negative = passed and all(ct is None or isinstance(ct, Negative) for ct in out_cts)
        given = [ct.x if negative and isinstance(ct, Negative) else as_value(ct) for ct in out_cts]
        try:
            in_cts = _transposed(eqn, given, inputs)
        except NotLinear:
            raise _not_linear(eqn, [a.type for a in eqn.inputs if a in unknown]) from None
        if negative:
            in_cts = [ct if ct is None else ct.x if isinstance(ct, Negative) else Negative(ct) for ct in in_cts]
        for atom, ct in zip(eqn.inputs, in_cts, strict=True):
            if ct is not None and atom in unknown:
                accumulate(atom, ct)
    return [as_value(ct_of[v].total()) if v in unknown and v in ct_of else None for v in program.inputs]


def _transposed(eqn: Eqn, cts: Sequence[Any | None], inputs: Sequence[Any]) -> Sequence[Any | None]:
    """What the transpose rule of an equation gives; of the sums of its cotangents, if it does not take partial sums, as
    that of a slice, which puts zeros around them; of whole ones, if types do not say how theirs go back."""
    rule = eqn.op.transpose
    assert not isinstance(rule, No)
    try:
        return rule(eqn.op, cts, inputs, eqn.params)
    except VarianceError:
        if not any(ct is not None and ct.type.unreduced for ct in cts):
            raise
        return rule(eqn.op, [summed(ct) for ct in cts], inputs, eqn.params)
    except ShardingError:
        if all(ct is None or ct.type.sharding is None for ct in cts):
            raise
        whole = [ct if ct is None else laid_out(ct, ct.type.with_(sharding=None)) for ct in cts]
        found = rule(eqn.op, whole, inputs, eqn.params)
        return [
            laid_out(as_value(ct), x.type) if ct is not None and isinstance(x, Linear) else ct
            for x, ct in zip(inputs, found, strict=True)
        ]


def _not_linear(eqn: Eqn, types: Sequence[TensorType]) -> DifferentiationError:
    """The error for an equation that is not linear in what the program is to be transposed in."""
    return DifferentiationError(
        f"{eqn.op.name} cannot be transposed here.",
        where=eqn.source.show() if eqn.source else here(),
        why=f"it is not linear in the operands that depend on the arguments: {', '.join(t.short() for t in types)}",
        fix="out, pull = mw.vjp(f, x); pull(ct), which transposes the derivative at x",
    )

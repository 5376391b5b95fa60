"""Batching: the program that does for a whole batch what a program does for one example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.op import No
from meshwright.core.program import Atom, Literal, Program
from meshwright.core.trace import Array, apply, read, state
from meshwright.errors import MeshwrightError


def batch_program(
    program: Program, size: int, args: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], list[bool]]:
    """The outputs for a batch of ``size``, and which of them are batched. A batched value has the batch as dim 0."""
    values: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    is_batched: set[Atom] = {v for v, b in zip(program.inputs, batched, strict=True) if b}
    for var, data in program.constants:
        values[var] = Array(data, var.type)
    outer = state.source
    try:
        for eqn in program.eqns:
            state.source = eqn.source or outer
            ins = [read(values, a) for a in eqn.inputs]
            flags = [a.__class__ is not Literal and a in is_batched for a in eqn.inputs]
            if not any(flags):
                outs = apply(eqn.op, ins, eqn.params)
                outs = outs if outs.__class__ is tuple else (outs,)
            else:
                rule = eqn.op.batch
                if isinstance(rule, No):
                    raise MeshwrightError(
                        f"{eqn.op.name} cannot be batched.",
                        where=eqn.source.show() if eqn.source else "",
                        why=rule.reason,
                        fix="write the loop with mw.lax.map(f, xs) instead of mw.vmap(f)(xs)",
                    )
                outs, out_flags = rule(eqn.op, size, ins, flags, eqn.params)
                is_batched.update(v for v, b in zip(eqn.outputs, out_flags, strict=True) if b)
            values.update(zip(eqn.outputs, outs, strict=True))
    finally:
        state.source = outer
    return (
        [read(values, a) for a in program.outputs],
        [a.__class__ is not Literal and a in is_batched for a in program.outputs],
    )

"""Dead-code and common-subexpression elimination, and substitution."""

from __future__ import annotations

from typing import Any

from meshwright.core.program import Atom, Eqn, Literal, Program, Var, param_key


def dce(program: Program) -> Program:
    """Drop the equations no output depends on, and the constants they used. Inputs stay.

    b: f32[3] = sin a            c: f32[3] = cos a
    c: f32[3] = cos a     ==>    return c
    return c
    """
    live: set[Atom] = set(program.outputs)
    kept: list[Eqn] = []
    for eqn in reversed(program.eqns):
        if any(v in live for v in eqn.outputs):
            kept.append(eqn)
            live.update(eqn.inputs)
    constants = tuple((v, x) for v, x in program.constants if v in live)
    return Program(program.inputs, tuple(reversed(kept)), program.outputs, constants)


def cse(program: Program) -> Program:
    """Compute equal expressions once. Regions are compared by identity of their program.

    b: f32[3] = sin a            b: f32[3] = sin a
    c: f32[3] = sin a     ==>    d: f32[3] = add b b
    d: f32[3] = add b c          return d
    return d
    """
    same: dict[Atom, Atom] = {}
    seen: dict[Any, Eqn] = {}
    kept: list[Eqn] = []
    for eqn in program.eqns:
        inputs = tuple([same.get(a, a) for a in eqn.inputs])
        key = (
            eqn.op.name,
            tuple([a.key() if a.__class__ is Literal else a for a in inputs]),  # type: ignore[union-attr]
            _params_identity(eqn),
        )
        found = seen.get(key)
        if found is None:
            fresh = Eqn(eqn.op, inputs, eqn.params, eqn.outputs, eqn.source)
            seen[key] = fresh
            kept.append(fresh)
        else:
            same.update(zip(eqn.outputs, found.outputs, strict=True))
    outputs = tuple(same.get(a, a) for a in program.outputs)
    return Program(program.inputs, tuple(kept), outputs, program.constants)


def _params_identity(eqn: Eqn) -> Any:
    for _, _region in eqn.regions():
        return id(eqn)  # a region is never merged with another: checkpoint relies on recomputing
    return param_key(eqn.params)


def uses(program: Program) -> dict[Var, int]:
    """How often each variable is read, outputs included."""
    count: dict[Var, int] = {}
    for eqn in program.eqns:
        for atom in eqn.inputs:
            if isinstance(atom, Var):
                count[atom] = count.get(atom, 0) + 1
    for atom in program.outputs:
        if isinstance(atom, Var):
            count[atom] = count.get(atom, 0) + 1
    return count

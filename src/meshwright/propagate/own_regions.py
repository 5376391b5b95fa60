"""Regions that several equations have (the body of a function that is called twice) as regions of their own.

The values of a program are told apart by their variables: two loops with one body can be sharded differently only if
the variables of their bodies differ.
"""

from __future__ import annotations

from typing import Any

from meshwright.core.facts import Structure
from meshwright.core.program import Atom, Eqn, Program, Var


def own_regions(program: Program) -> Program:
    """The program with a copy of each region that an earlier equation has, too; itself if there is none."""
    return _visit(program, set())


def _visit(program: Program, seen: set[int]) -> Program:
    eqns = [_with_regions(eqn, seen) for eqn in program.eqns]
    if all(new is old for new, old in zip(eqns, program.eqns, strict=True)):
        return program
    return Program(program.inputs, tuple(eqns), program.outputs, program.constants)


def _with_regions(eqn: Eqn, seen: set[int]) -> Eqn:
    if eqn.op.structure is Structure.DEVICE or not eqn.regions():
        return eqn

    def own(value: Any) -> Any:
        if isinstance(value, Program):
            if id(value) in seen:
                return _copy(value)
            seen.add(id(value))
            return _visit(value, seen)
        return tuple(own(item) for item in value) if value.__class__ is tuple else value

    params = {name: own(value) for name, value in eqn.params.items()}
    found = Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source)
    changed = any(new is not old for (_, new), (_, old) in zip(found.regions(), eqn.regions(), strict=True))
    return found if changed else eqn


def _copy(program: Program) -> Program:
    """The same program with variables of its own, in its regions, too."""
    vars: dict[Atom, Var] = {}

    def define(var: Var) -> Var:
        vars[var] = found = Var(var.type)
        return found

    def copied(value: Any) -> Any:
        if isinstance(value, Program):
            return _copy(value)
        return tuple(copied(item) for item in value) if value.__class__ is tuple else value

    inputs = tuple(map(define, program.inputs))
    constants = tuple((define(var), value) for var, value in program.constants)
    eqns = []
    for eqn in program.eqns:
        operands = tuple(vars.get(atom, atom) for atom in eqn.inputs)
        params = eqn.params
        if eqn.op.structure is not Structure.DEVICE and eqn.regions():
            params = {name: copied(value) for name, value in params.items()}
        eqns.append(Eqn(eqn.op, operands, params, tuple(map(define, eqn.outputs)), eqn.source))
    return Program(inputs, tuple(eqns), tuple(vars.get(atom, atom) for atom in program.outputs), constants)

"""Dead-code and common-subexpression elimination, and programs one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.core.program import Atom, Eqn, Literal, Program


def dce(program: Program, *, effects: bool = True) -> Program:
    """Drop the equations no output depends on, and the constants they used. Inputs stay, and so does what has effects,
    unless (``effects=False``) another program has them already.

    b: f32[3] = sin a            c: f32[3] = cos a
    c: f32[3] = cos a     ==>    return c
    return c
    """
    live: set[Atom] = set(program.outputs)
    kept: list[Eqn] = []
    for eqn in reversed(program.eqns):
        found = [v in live for v in eqn.outputs]
        if any(found) or (effects and eqn.effects):
            if eqn.op.prune is not None and not all(found):
                eqn = eqn.op.prune(eqn, found)
            kept.append(eqn)
            live.update(eqn.inputs)
    constants = tuple((v, x) for v, x in program.constants if v in live)
    return Program(program.inputs, tuple(reversed(kept)), program.outputs, constants)


def chain(first: Program, second: Program) -> Program:
    """Two programs as one: what the first returns, the second takes. Its equations stay as they are otherwise.

    b: f32[3] = sin a                  b: f32[3] = sin a
    return b                           d: f32[3] = cos b
                               ==>     return d
    d: f32[3] = cos c
    return d
    """
    given: dict[Atom, Atom] = dict(zip(second.inputs, first.outputs, strict=True))
    eqns = tuple(with_inputs(eqn, given) for eqn in second.eqns)
    outputs = tuple(given.get(a, a) for a in second.outputs)
    return Program(first.inputs, (*first.eqns, *eqns), outputs, (*first.constants, *second.constants))


def with_inputs(eqn: Eqn, given: Mapping[Atom, Atom]) -> Eqn:
    """The equation with other atoms in the place of those that are keys; itself where it has none of them."""
    if given.keys().isdisjoint(eqn.inputs):
        return eqn
    return Eqn(eqn.op, tuple(given.get(a, a) for a in eqn.inputs), eqn.params, eqn.outputs, eqn.source)


def cse(program: Program) -> Program:
    """Compute equal expressions once, inside regions too. Two equations with regions are never taken for equal:
    checkpoint relies on computing twice. Neither are two with effects.

        b: f32[3] = sin a            b: f32[3] = sin a
        c: f32[3] = sin a     ==>    d: f32[3] = add b b
        d: f32[3] = add b c          return d
        return d
    """
    return _cse(program, {})


def _cse(program: Program, done: dict[int, Program]) -> Program:
    same: dict[Atom, Atom] = {}
    seen: dict[Any, Eqn] = {}
    kept: list[Eqn] = []
    for eqn in program.eqns:
        inputs = tuple([same.get(a, a) for a in eqn.inputs])
        if eqn.regions():
            params = {name: _cse_regions(value, done) for name, value in eqn.params.items()}
            kept.append(Eqn(eqn.op, inputs, params, eqn.outputs, eqn.source))
            continue
        if eqn.op.effects:
            kept.append(Eqn(eqn.op, inputs, eqn.params, eqn.outputs, eqn.source))
            continue
        key = (
            eqn.op.name,
            tuple([a.key() if a.__class__ is Literal else a for a in inputs]),  # type: ignore[union-attr]
            tuple(eqn.params.items()),
        )
        found = seen.get(key)
        if found is None:
            fresh = seen[key] = Eqn(eqn.op, inputs, eqn.params, eqn.outputs, eqn.source)
            kept.append(fresh)
        else:
            same.update(zip(eqn.outputs, found.outputs, strict=True))
    outputs = tuple(same.get(a, a) for a in program.outputs)
    return Program(program.inputs, tuple(kept), outputs, program.constants)


def _cse_regions(value: Any, done: dict[int, Program]) -> Any:
    """A param with its programs simplified; a program that occurs twice stays one object."""
    if isinstance(value, Program):
        if id(value) not in done:
            done[id(value)] = dce(_cse(value, done))
        return done[id(value)]
    return tuple(_cse_regions(item, done) for item in value) if isinstance(value, tuple) else value

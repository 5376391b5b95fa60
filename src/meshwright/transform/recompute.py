"""A program split into a first run, which also returns the values that are kept, and a second one from these.

A policy says of each equation whether its results are kept. What is wanted again and not kept is computed again from
what is kept and from the inputs; equations with regions are split inside (the ``recompute`` rule of an op).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshwright.core.facts import Structure
from meshwright.core.op import Types
from meshwright.core.program import Atom, Eqn, Literal, Params, Program, Var
from meshwright.ops.residual import offload, reload
from meshwright.transform.simplify import dce


class Kept(NamedTuple):
    """Whether the results of an equation are kept, and if so, whether in the memory of the host."""

    kept: bool = False
    offloaded: bool = False


class KeepRule(NamedTuple):
    """What a policy says: of an equation, by its op, operand types and params; and the names it never keeps."""

    decide: Callable[[Any, Types, Params], Kept]
    never: frozenset[str] = frozenset()


class Recomputation(NamedTuple):
    """``first`` takes the inputs and returns all outputs, then ``kept`` values; ``again`` takes these values, then the
    inputs, and returns the outputs that were wanted."""

    first: Program
    again: Program
    kept: int


def split_program(program: Program, wanted: Sequence[bool], rule: KeepRule) -> Recomputation:
    """A program as one that keeps what a policy says and one that computes the ``wanted`` outputs again.

    b: f32[3,3] = dot_general a a          b = dot_general a a          (b, a)
    c: f32[3,3] = sin b             ==>    c = sin b                    c = sin b
    return c                               return c, b                  return c
    """
    never = _never_kept(program, rule.never)
    needed: set[Atom] = {a for a, flag in zip(program.outputs, wanted, strict=True) if flag}
    first: list[Eqn] = []
    again: list[Eqn] = []
    reloads: list[Eqn] = []
    kept: list[Var] = []
    for eqn in reversed(program.eqns):
        live = [v in needed for v in eqn.outputs]
        choice = _choice(eqn, rule) if any(live) and never.isdisjoint(eqn.outputs) else Kept()
        if not any(live):
            first.append(eqn)
        elif choice.offloaded:
            for var in [v for v in eqn.outputs if v in needed]:
                kept.append(there := Var(var.type))
                first.append(Eqn(offload, (var,), {}, (there,), eqn.source))
                reloads.append(Eqn(reload, (there,), {}, (var,), eqn.source))
            first.append(eqn)
        elif choice.kept:
            first.append(eqn)
            kept += [v for v in eqn.outputs if v in needed]
        else:
            inside: Sequence[Var] = ()
            rest = forward = eqn
            if eqn.op.recompute is not None:
                forward, rest, inside = eqn.op.recompute(eqn, live, lambda p, w: split_program(p, w, rule))
            first.append(forward)
            again.append(rest)
            kept += inside
            needed.update(a for a in rest.inputs if a not in inside)
    kept.reverse()
    outputs = tuple(a for a, flag in zip(program.outputs, wanted, strict=True) if flag)
    return Recomputation(
        Program(program.inputs, tuple(reversed(first)), (*program.outputs, *kept), program.constants),
        # What is reloaded comes first: it can be on its way while other things are computed.
        dce(
            Program((*kept, *program.inputs), (*reversed(reloads), *reversed(again)), outputs, program.constants),
            effects=False,
        ),
        len(kept),
    )


def _choice(eqn: Eqn, rule: KeepRule) -> Kept:
    """Whether the results of an equation are kept; what is made of numbers alone never is."""
    if all(a.__class__ is Literal for a in eqn.inputs):
        return Kept()
    return rule.decide(eqn.op, tuple(a.type for a in eqn.inputs), eqn.params)


def _never_kept(program: Program, names: frozenset[str]) -> set[Atom]:
    """The values that have one of the names, before and after it is given to them."""
    found: set[Atom] = set()
    for eqn in reversed(program.eqns) if names else ():
        if eqn.op.structure is Structure.NAMED and (eqn.params["name"] in names or eqn.outputs[0] in found):
            found.update((eqn.inputs[0], eqn.outputs[0]))
    return found


def used_inputs(program: Program) -> tuple[bool, ...]:
    """Which inputs an equation or an output of the program is or takes."""
    used: set[Atom] = {a for eqn in program.eqns for a in eqn.inputs}
    used.update(program.outputs)
    return tuple(v in used for v in program.inputs)


def second_run(program: Program) -> Program:
    """The program, its regions included, with every equation marked as computed a second time."""
    eqns = []
    for eqn in program.eqns:
        params = {name: _second_param(value) for name, value in eqn.params.items()} if eqn.regions() else eqn.params
        eqns.append(Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source.second() if eqn.source else None))
    return Program(program.inputs, tuple(eqns), program.outputs, program.constants)


def _second_param(value: Any) -> Any:
    if isinstance(value, Program):
        return second_run(value)
    return tuple(map(_second_param, value)) if isinstance(value, tuple) else value

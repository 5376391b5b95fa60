"""A program split into a first run, which also returns the values that are kept, and a second one from these.

A policy says of each equation whether its results are kept (`split_program`), or their sizes and what it costs to
compute them again (`split_by_size`). What is wanted again and not kept is computed again from what is kept and from the
inputs; equations with regions are split inside (the ``recompute`` rule of an op).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from meshwright.core.facts import CHEAP_FLOPS, Fusion, Structure
from meshwright.core.op import Types, fusion_of
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

    def choose(eqn: Eqn, needed: set[Atom]) -> Kept:
        return _choice(eqn, rule) if never.isdisjoint(eqn.outputs) else Kept()

    return _split(program, wanted, choose, lambda p, w: split_program(p, w, rule))


def split_by_size(program: Program, wanted: Sequence[bool], given: Sequence[bool]) -> Recomputation:
    """A program as one that keeps little and one that computes the ``wanted`` outputs again at little cost: from the
    inputs that are ``given`` anyway, and from what is cheap to make of values that take no more memory.

    b: f32[3,3] = sin a                      b = sin a                    (b)
    c: f32[3,3] = neg b             ==>      c = neg b                    c = neg b
    d: f32[9,3,3] = broadcast c              d = broadcast c              d = broadcast c
    return d                                 return d, b                  return d
    """
    made = {v: eqn for eqn in program.eqns if _takes_no_longer(eqn) for v in eqn.outputs}
    free: set[Atom] = {v for v, flag in zip(program.inputs, given, strict=True) if flag}
    free.update(v for v, _ in program.constants)

    def choose(eqn: Eqn, needed: set[Atom]) -> Kept:
        known: dict[Atom, frozenset[Atom]] = {}

        def sources(eqn: Eqn) -> frozenset[Atom]:
            """What must be kept so that an equation can be computed again."""
            return frozenset().union(*(source(a) for a in eqn.inputs))

        def source(atom: Atom) -> frozenset[Atom]:
            if atom.__class__ is Literal or atom in free or atom in needed:
                return frozenset()
            if atom not in known:
                known[atom] = itself = frozenset([atom])
                if atom in made and _nbytes(others := sources(made[atom])) <= _nbytes(itself):
                    known[atom] = others
            return known[atom]

        if eqn.outputs[0] not in made:
            return Kept(True)
        instead = sources(eqn)
        more = _nbytes(instead) - _nbytes(needed.intersection(eqn.outputs))
        # For as many bytes, another value may be kept if that is one: others may be made of it, too.
        return Kept(more > 0 or (more == 0 and (len(instead) > 1 or fusion_of(eqn) is Fusion.PERMUTATION)))

    return _split(program, wanted, choose, lambda p, w: split_by_size(p, w, [True] * len(p.inputs)))


def _takes_no_longer(eqn: Eqn) -> bool:
    """Whether computing an equation again takes about as long as writing its results and reading them."""
    fusion = fusion_of(eqn)
    if fusion is not Fusion.ELEMENTWISE:
        return fusion in (Fusion.VIEW, Fusion.CHEAP, Fusion.PERMUTATION)
    operands, results = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
    return eqn.op.cost(operands, results, eqn.params).flops <= CHEAP_FLOPS * sum(t.size for t in results)


def _nbytes(atoms: Iterable[Atom]) -> int:
    return sum(a.type.nbytes for a in atoms)


def _split(
    program: Program,
    wanted: Sequence[bool],
    choose: Callable[[Eqn, set[Atom]], Kept],
    inside_too: Callable[[Program, Sequence[bool]], Recomputation],
) -> Recomputation:
    needed: set[Atom] = {a for a, flag in zip(program.outputs, wanted, strict=True) if flag}
    first: list[Eqn] = []
    again: list[Eqn] = []
    reloads: list[Eqn] = []
    kept: list[Var] = []
    for eqn in reversed(program.eqns):
        live = [v in needed for v in eqn.outputs]
        choice = choose(eqn, needed) if any(live) else Kept()
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
                forward, rest, inside = eqn.op.recompute(eqn, live, inside_too)
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

"""Scores that a loop keeps for the loop of its backward pass, forgotten: that one computes them again.

The layers of a model in a ``scan`` stack what the backward pass needs of each, the weights of attention too. Where
fused attention computes these again from queries, keys and the statistics of each query, it is those that are stacked.

    y, q, k, p = scan x w                     y, q, k, m, l = scan x w
    dx, dw = scan dy w q k p reverse=True     dx, dw = scan dy w q k m l reverse=True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from meshwright.core.facts import Fusion, Structure
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.simulate.attention import Facts, Growing, copies, forward_of, grow, is_wide
from meshwright.transform.simplify import dce, with_inputs
from meshwright.transform.stack import inline_calls

_CHEAP = (Fusion.VIEW, Fusion.CHEAP, Fusion.PERMUTATION)


def forget_scores(program: Program) -> Program:
    """The program without calls, whose loops hand no scores of attention to each other; the same results."""
    program = inline_calls(program, shard_maps=False)
    eqns = [_in_regions(eqn) for eqn in program.eqns]
    loops = [n for n, eqn in enumerate(eqns) if eqn.op.structure is Structure.ROWS]
    changed = any(one is not other for one, other in zip(eqns, program.eqns, strict=True))
    for n in loops:
        for m in loops:
            if m > n and eqns[m].params["length"] == eqns[n].params["length"]:
                found = _Pair(eqns[n], eqns[m], _handed(program, eqns, n, m)).forgotten()
                if found is not None:
                    eqns[n], eqns[m] = found
                    changed = True
    return replace(program, eqns=tuple(eqns)) if changed else program


def _in_regions(eqn: Eqn) -> Eqn:
    """An equation with what its regions are without scores in their loops."""
    if eqn.op.structure not in (Structure.ROWS, Structure.LOOP, Structure.BRANCH) or not eqn.regions():
        return eqn
    new = {id(region): forget_scores(region) for _, region in eqn.regions()}
    if all(new[id(region)] is region for _, region in eqn.regions()):
        return eqn
    params = dict(eqn.params)
    for name, value in eqn.params.items():
        if isinstance(value, Program):
            params[name] = new[id(value)]
        elif isinstance(value, tuple):
            params[name] = tuple(new.get(id(one), one) for one in value)
    return Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source)


def _handed(program: Program, eqns: Sequence[Eqn], n: int, m: int) -> set[Atom]:
    """What one loop stacks for another and for nobody else."""
    first, second = eqns[n], eqns[m]
    rows = set(second.inputs[second.params["consts"] + second.params["carry"] :])
    others = {a for at, eqn in enumerate(eqns) if at != m for a in eqn.inputs} | set(program.outputs)
    others |= set(second.inputs[: second.params["consts"] + second.params["carry"]])
    return {v for v in first.outputs[first.params["carry"] :] if v in rows and v not in others}


class _Pair:
    """A loop, and one that reads what it stacks, row by row."""

    def __init__(self, first: Eqn, second: Eqn, handed: set[Atom]) -> None:
        self.first, self.second, self.handed = first, second, handed
        self.stacked: dict[Atom, Atom] = {}  # of a value in the body of the first: the array of its rows
        if not handed:
            return
        self.body = inline_calls(first.params["body"])
        carry = first.params["carry"]
        self.facts = Facts(self.body)
        self.rows: dict[Atom, Atom] = dict(zip(first.outputs[carry:], self.body.outputs[carry:], strict=True))
        fixed = {*self.body.outputs[:carry], *(a for v, a in self.rows.items() if v not in handed)}
        self.leaving = frozenset(a for v, a in self.rows.items() if v in handed and a not in fixed)
        self.stacked = {a: v for v, a in self.rows.items()}

    def forgotten(self) -> tuple[Eqn, Eqn] | None:
        """Both loops without the scores that one hands to the other, if there are any."""
        if not self.handed:
            return None
        dropped: dict[Atom, list[int]] = {}  # of a value that is not stacked: the equations that compute it again
        leaves: dict[Atom, None] = {}
        used = set(self.used())
        for n in range(len(self.facts.eqns)):
            growing = grow(self.facts, n, self.leaving) if self.facts.contracts(n) else None  # type: ignore[arg-type]
            if growing is None:
                continue
            inside = growing.inside()
            if not forward_of(growing, inside):
                continue
            for atom in self.leaving:
                if atom.__class__ is not Var or not is_wide(growing, atom) or atom in dropped:
                    continue
                numbers, ends = self.recipe(atom, growing, inside)
                new = sum(a.type.nbytes for a in ends if not self.is_there(a, growing))
                if new < atom.type.nbytes:
                    dropped[atom] = numbers if atom in used else []
                    leaves.update(dict.fromkeys(ends if atom in used else ()))
        return self.rewritten(dropped, [a for a in leaves if a not in dropped]) if dropped else None

    def used(self) -> Iterable[Atom]:
        """The values of the first body whose rows the second one reads."""
        body = self.second.params["body"]
        read = {a for eqn in body.eqns for a in eqn.inputs} | set(body.outputs)
        for outer, inner in zip(self.second.inputs, body.inputs, strict=True):
            if inner in read and outer in self.rows:
                yield self.rows[outer]

    def is_there(self, atom: Atom, growing: Growing) -> bool:
        """Whether the second loop can read a value of the first without anything more being stacked."""
        carried = self.body.inputs[self.first.params["consts"] :][: self.first.params["carry"]]
        kept = atom in self.stacked and not (atom in self.leaving and is_wide(growing, atom))
        return kept or (atom in self.body.inputs and atom not in carried)

    def recipe(self, wanted: Atom, growing: Growing, inside: set[int]) -> tuple[list[int], list[Atom]]:
        """The equations that compute a value again, and what they start from."""
        constants = {v for v, _ in self.body.constants}
        numbers: set[int] = set()
        ends: dict[Atom, None] = {}
        waiting, seen = [wanted], {wanted}
        while waiting:
            atom = waiting.pop()
            n = self.facts.made.get(atom)
            wide = n is not None and n in inside and is_wide(growing, atom)
            there = atom is not wanted and self.is_there(atom, growing)
            if n is None or there or not (wide or self.facts.kinds[n] in _CHEAP):
                ends.update({} if atom in constants else {atom: None})
                continue
            numbers.add(n)
            fresh = [a for a in self.facts.eqns[n].inputs if a.__class__ is Var and a not in seen]
            seen.update(fresh)
            waiting += fresh
        return sorted(numbers), list(ends)

    def rewritten(self, dropped: Mapping[Atom, list[int]], leaves: Sequence[Atom]) -> tuple[Eqn, Eqn]:
        """The loops with leaves stacked instead of what is dropped."""
        first, length = self.first, self.first.params["length"]
        carry, consts = first.params["carry"], first.params["consts"]
        given: dict[Atom, Atom] = dict(zip(self.body.inputs, first.inputs, strict=True))
        carried = set(self.body.inputs[consts : consts + carry])
        gone: set[Atom] = {v for v, a in self.rows.items() if a in dropped and v in self.handed}
        kept = [v for v in first.outputs[carry:] if v not in gone]
        there: dict[Atom, Atom] = {a: v for v, a in self.rows.items() if v not in gone}
        new = [a for a in leaves if a not in there and (a not in given or a in carried)]
        added = [Var(a.type.stack(length)) for a in new]
        there.update(zip(new, added, strict=True))
        body = dce(replace(self.body, outputs=(*self.body.outputs[:carry], *(self.rows[v] for v in kept), *new)))
        held = [*first.outputs[:carry], *kept, *added]
        one = Eqn(first.op, first.inputs, {**first.params, "body": body}, held, first.source)
        numbers = sorted({n for some in dropped.values() for n in some})
        shared: set[Atom] = {v for v in self.body.inputs[:consts] if v not in there}
        arrays = {atom: there.get(atom, given.get(atom, atom)) for atom in leaves}
        return one, self.computing(numbers, arrays, shared, gone)

    def computing(self, numbers: Sequence[int], arrays: Mapping[Atom, Atom], shared: set[Atom], gone: set[Atom]) -> Eqn:
        """The second loop with equations of the first in front: on constants that are ``shared``, and rows of the other
        ``arrays``. It does not read what is ``gone``."""
        second = self.second
        body = inline_calls(second.params["body"])
        ends = (0, second.params["consts"], second.params["consts"] + second.params["carry"], len(body.inputs))
        both: list[tuple[Atom, Var]] = list(zip(second.inputs, body.inputs, strict=True))
        constants, carried, rows = (both[low:high] for low, high in pairwise(ends))
        names: dict[Atom, Atom] = {}
        for atom, array in arrays.items():
            part = constants if atom in shared else rows
            found = next((var for operand, var in part if operand is array), None)
            if found is None:
                found = Var(atom.type)
                part.append((array, found))
            names[atom] = found
        again, fresh = copies([self.facts.eqns[n] for n in numbers], names)
        fresh.update({var: fresh[self.rows[a]] for a, var in rows if a in gone and self.rows[a] in fresh})
        pairs = [*constants, *carried, *(pair for pair in rows if pair[0] not in gone)]
        eqns = (*again, *(with_inputs(eqn, fresh) for eqn in body.eqns))
        outputs = tuple(fresh.get(a, a) for a in body.outputs)
        given = (*body.constants, *self.body.constants)
        params = {**second.params, "consts": len(constants)}
        params["body"] = dce(Program(tuple(v for _, v in pairs), eqns, outputs, given))
        return Eqn(second.op, [operand for operand, _ in pairs], params, second.outputs, second.source)

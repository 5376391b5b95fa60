"""What fusion never takes apart: the equations of a program, a contraction with what it computes as it reads.

b: bf16[64,32] = convert a           a kernel that reads int8 and writes bf16, and one that reads bf16
c: bf16[8,32] = dot_general x b  ==> one unit, [convert, dot_general], which reads x and the int8 array a
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var

COMPUTED_ON_READING = (Fusion.CHEAP, Fusion.PERMUTATION)
LONGEST_CHAIN = 32  # equations that an operand is computed by as it is read
SMALL = 16  # times smaller than an operand is a value that is stored for it


@dataclass
class Unit:
    """Equations that run in one kernel, the last of which says what kind it is, and the values that they hand on.

    ``reads`` are the values that several of them read from memory, with the bytes of each; of one equation alone
    what it reads depends on what is around it.
    """

    eqns: tuple[Eqn, ...]
    outputs: Sequence[Var]
    fusion: Fusion
    reads: dict[Var, int] | None = None

    @property
    def eqn(self) -> Eqn:
        """The equation that says what kind of kernel it is."""
        return self.eqns[-1]


@dataclass
class Chain:
    """Equations that compute a value from stored ones, in reverse order, and the bytes that they read of each."""

    eqns: list[Eqn] = field(default_factory=list)
    reads: dict[Var, int] = field(default_factory=dict)
    casts: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that it reads."""
        return sum(self.reads.values())


def stored(atom: Atom, views: Mapping[Var, Atom]) -> Atom:
    """The value in whose memory an atom is."""
    while atom.__class__ is Var and atom in views:
        atom = views[atom]
    return atom


def single(eqn: Eqn) -> Unit:
    """A unit of one equation."""
    return Unit((eqn,), eqn.outputs, fusion_of(eqn))


def units(program: Program, eqns: Sequence[Eqn], views: Mapping[Var, Atom]) -> list[Unit]:
    """The equations of a program that are no views, contractions with what they compute as they read.

    What nothing else reads is then no unit of its own.
    """
    found = [single(eqn) for eqn in eqns]
    chains = _computed_on_reading(program, found, views)
    if not chains:
        return found
    place = {id(unit.eqn): n for n, unit in enumerate(found)}
    for n, unit in enumerate(found):
        taken = [chains[v] for v in _roots(unit.eqn, views) if v in chains] if _contracts(unit) else []
        if taken:
            found[n] = _with_chains(unit.eqn, taken, chains, views, place)
    return _alive(program, found, views)


def _contracts(unit: Unit) -> bool:
    return unit.fusion is Fusion.CONTRACTION


def _roots(eqn: Eqn, views: Mapping[Var, Atom]) -> list[Var]:
    """The values in whose memory the operands of an equation are."""
    found = (stored(atom, views) for atom in eqn.inputs)
    return [atom for atom in found if atom.__class__ is Var]  # type: ignore[misc]


def _with_chains(
    eqn: Eqn, taken: list[Chain], chains: Mapping[Var, Chain], views: Mapping[Var, Atom], place: Mapping[int, int]
) -> Unit:
    reads: dict[Var, int] = {}
    for var in _roots(eqn, views):
        for root, nbytes in chains[var].reads.items() if var in chains else [(var, var.type.nbytes)]:
            reads[root] = min(root.type.nbytes, reads.get(root, 0) + nbytes)
    before = {id(e): e for chain in taken for e in chain.eqns}
    ordered = sorted(before.values(), key=lambda e: place[id(e)])
    return Unit((*ordered, eqn), eqn.outputs, Fusion.CONTRACTION, reads)


def _alive(program: Program, found: list[Unit], views: Mapping[Var, Atom]) -> list[Unit]:
    """Units without those whose results nobody reads any more."""
    read = {stored(atom, views) for atom in program.outputs}
    kept = []
    for unit in reversed(found):
        if unit.reads is not None or any(v in read for v in unit.outputs) or not _in_chains(unit):
            kept.append(unit)
            read.update(unit.reads if unit.reads is not None else _roots(unit.eqn, views))
    return kept[::-1]


def _in_chains(unit: Unit) -> bool:
    return unit.fusion in COMPUTED_ON_READING and not unit.eqn.effects and len(unit.outputs) == 1


def _computed_on_reading(program: Program, found: Sequence[Unit], views: Mapping[Var, Atom]) -> dict[Var, Chain]:
    """The operands of contractions that are computed as they are read, and how.

    With n contractions as its readers, a value of W bytes that is computed from R bytes costs R + W + n·W bytes if it
    is written, and n·R if it is not. It must be a cast or wider than what it is computed from: what only moves, as
    a product of two arrays, is a kernel of its own.
    """
    made = {v: unit for unit in found for v in unit.outputs}
    readers: dict[Var, list[Unit]] = {}
    for unit in found:
        for var in set(_roots(unit.eqn, views)):
            readers.setdefault(var, []).append(unit)
    returned = {stored(atom, views) for atom in program.outputs}
    chains: dict[Var, Chain] = {}
    for var, unit in made.items():
        contractions = [one for one in readers.get(var, ()) if _contracts(one)]
        others = [one for one in readers.get(var, ()) if one.fusion is Fusion.ALONE]
        if not contractions or others or var in returned or not _in_chains(unit):
            continue
        chain = chain_of(var, made, views)
        if chain is None:
            continue
        read, written, times = chain.nbytes, var.type.nbytes, len(contractions)
        if (chain.casts or read < written) and times * read < read + written + times * written:
            chains[var] = chain
    return chains


def chain_of(var: Var, made: Mapping[Var, Unit], views: Mapping[Var, Atom]) -> Chain | None:
    """The equations that compute a value out of stored ones: arguments, results of kernels of their own, small ones."""
    chain, seen = Chain(), set()
    waiting: list[tuple[Var, int]] = [(var, var.type.size)]
    while waiting:
        one, asked = waiting.pop()
        unit = made.get(one)
        if unit is None or unit.fusion.alone or (not _in_chains(unit) and one.type.size * SMALL <= var.type.size):
            size = one.type.nbytes * min(asked, one.type.size) // max(1, one.type.size)
            chain.reads[one] = min(one.type.nbytes, chain.reads.get(one, 0) + size)
            chain.casts |= one.type.size * SMALL > var.type.size and one.type.dtype != var.type.dtype
            continue
        if not _in_chains(unit):
            return None
        if one in seen:
            continue
        seen.add(one)
        chain.eqns.append(unit.eqn)
        if len(chain.eqns) > LONGEST_CHAIN:
            return None
        for at, atom in enumerate(unit.eqn.inputs):
            root = stored(atom, views)
            if root.__class__ is Var:
                size = atom.type.size
                passes = size == one.type.size or (at == 0 and size > one.type.size)
                waiting.append((root, asked if passes else size))  # type: ignore[arg-type]
    return chain

"""What fusion never takes apart: an equation, an attention, a contraction with what it computes as it reads.

b: bf16[64,32] = convert a           a kernel that reads int8 and writes bf16, and one that reads bf16
c: bf16[8,32] = dot_general x b  ==> one unit, [convert, dot_general], which reads x and the int8 array a
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.simulate.attention import Attention

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
    attention: Attention | None = None

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


def units(
    program: Program, eqns: Sequence[Eqn], views: Mapping[Var, Atom], attentions: Sequence[Attention] = ()
) -> list[Unit]:
    """The equations of a program that are no views, attentions, contractions with what they compute as they read.

    What nothing else reads is then no unit of its own. They are in an order in which they can run.
    """
    place = {id(eqn): n for n, eqn in enumerate(eqns)}
    found = _with_attentions(program, eqns, views, attentions, place) if attentions else [single(e) for e in eqns]
    chains = _computed_on_reading(program, found, views)
    if not chains:
        return found
    for n, unit in enumerate(found):
        if _contracts(unit) and any(v in chains for v in _roots(unit, views)):
            found[n] = _with_chains(unit, chains, views, place)
    return _alive(program, found, views)


def _contracts(unit: Unit) -> bool:
    return unit.fusion is Fusion.CONTRACTION


def _roots(unit: Unit, views: Mapping[Var, Atom]) -> list[Var]:
    """The values in whose memory the operands of a unit are."""
    if unit.reads is not None:
        return list(unit.reads)
    found = (stored(atom, views) for atom in unit.eqn.inputs)
    return [atom for atom in found if atom.__class__ is Var]  # type: ignore[misc]


def _with_attentions(
    program: Program,
    eqns: Sequence[Eqn],
    views: Mapping[Var, Atom],
    attentions: Sequence[Attention],
    place: Mapping[int, int],
) -> list[Unit]:
    """A unit of each attention, and one of each equation around them, in an order in which they can run."""
    owner = {id(eqn): n for n, one in enumerate(attentions) for eqn in one.eqns if id(eqn) in place}
    read: list[set[Atom]] = [set() for _ in attentions]  # outside of each attention
    returned = {stored(atom, views) for atom in program.outputs}
    for eqn in eqns:
        roots = [stored(atom, views) for atom in eqn.inputs]
        for n, outside in enumerate(read):
            if owner.get(id(eqn)) != n:
                outside.update(roots)
    found = [(place[id(eqn)], single(eqn)) for eqn in eqns if id(eqn) not in owner]
    for one, outside in zip(attentions, read, strict=True):
        own = [eqn for eqn in one.eqns if id(eqn) in place]
        unit, shared = _of_attention(one, own, {*outside, *returned}, views)
        found.append((place[id(own[-1])], unit))
        found += [(place[id(eqn)], single(eqn)) for eqn in shared]
    return _sorted(found, views)


def _of_attention(
    attention: Attention, own: Sequence[Eqn], outside: set[Atom], views: Mapping[Var, Atom]
) -> tuple[Unit, list[Eqn]]:
    """The unit of an attention, and what is cheaply computed in it and once more for others."""
    made = {v for eqn in own for v in eqn.outputs}
    outputs, shared = [], []
    for eqn in reversed(own):
        wanted = [v for v in eqn.outputs if v in outside]
        if wanted and fusion_of(eqn) is Fusion.CHEAP:
            shared.append(eqn)
            outside.update(stored(atom, views) for atom in eqn.inputs)
        else:
            outputs += wanted
    roots = [stored(atom, views) for eqn in own for atom in eqn.inputs]
    small = [v for v in attention.also if v.type.size <= attention.scores]
    reads = {v: v.type.nbytes for v in (*roots, *small) if v.__class__ is Var and v not in made}
    return Unit(tuple(own), outputs[::-1], Fusion.CONTRACTION, reads, attention), shared  # type: ignore[arg-type]


def _sorted(found: list[tuple[int, Unit]], views: Mapping[Var, Atom]) -> list[Unit]:
    """Units by place, each after those that it reads from."""
    maker = {v: n for n, (_, unit) in enumerate(found) for v in unit.outputs}
    before = [{maker[v] for v in _roots(unit, views) if v in maker} for _, unit in found]
    after: list[list[int]] = [[] for _ in found]
    for n, numbers in enumerate(before):
        for number in numbers:
            after[number].append(n)
    ready = [(place, n) for n, (place, _) in enumerate(found) if not before[n]]
    heapify(ready)
    out = []
    while ready:
        _, n = heappop(ready)
        out.append(found[n][1])
        for reader in after[n]:
            before[reader].discard(n)
            if not before[reader]:
                heappush(ready, (found[reader][0], reader))
    assert len(out) == len(found), "attentions wait for each other in a circle"
    return out


def _with_chains(unit: Unit, chains: Mapping[Var, Chain], views: Mapping[Var, Atom], place: Mapping[int, int]) -> Unit:
    reads: dict[Var, int] = {}
    before: dict[int, Eqn] = {}
    for var in _roots(unit, views):
        for root, nbytes in chains[var].reads.items() if var in chains else [(var, var.type.nbytes)]:
            reads[root] = min(root.type.nbytes, reads.get(root, 0) + nbytes)
        before.update((id(eqn), eqn) for eqn in (chains[var].eqns if var in chains else ()))
    ordered = sorted(before.values(), key=lambda eqn: place[id(eqn)])
    return Unit((*ordered, *unit.eqns), unit.outputs, Fusion.CONTRACTION, reads, unit.attention)


def _alive(program: Program, found: list[Unit], views: Mapping[Var, Atom]) -> list[Unit]:
    """Units without those whose results nobody reads any more."""
    read = {stored(atom, views) for atom in program.outputs}
    kept = []
    for unit in reversed(found):
        if unit.reads is not None or any(v in read for v in unit.outputs) or not _in_chains(unit):
            kept.append(unit)
            read.update(_roots(unit, views))
    return kept[::-1]


def _in_chains(unit: Unit) -> bool:
    return unit.fusion in COMPUTED_ON_READING and not unit.eqn.effects and len(unit.outputs) == 1


def _computed_on_reading(program: Program, found: Sequence[Unit], views: Mapping[Var, Atom]) -> dict[Var, Chain]:
    """The operands of contractions that are computed as they are read, and how.

    With n contractions as its readers, a value of W bytes that is computed from R bytes costs R + W + n·W bytes if it
    is written, and n·R if it is not. It must be a cast or wider than what it is computed from: what only moves, as
    a product of two arrays, is a kernel of its own. Attentions, which scale their queries, take what is as wide.
    """
    made = {v: unit for unit in found for v in unit.outputs}
    readers: dict[Var, list[Unit]] = {}
    for unit in found:
        for var in set(_roots(unit, views)):
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
        fused = read <= written and all(one.attention is not None for one in contractions)
        if (chain.casts or fused or read < written) and times * read < read + written + times * written:
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

"""Fused attention: the contractions, softmax and masks of one attention as one kernel, whose scores are never stored.

What makes an attention is its structure, read off factor rules and not off names. A contraction *scores* queries
against keys; elementwise ops, and reductions over keys, make weights of scores; a contraction over keys *mixes* values
by them. Its backward pass scores once more (the gradient of weights), and contracts over keys (for the gradient of
queries) or over queries (for those of keys and values). Whatever has a dim of keys on the way is *wide*, and an
attention is fused if nothing else reads that.

    s = dot_general q k           m, l, o = [dot_general, reduce_max, exp, reduce_sum, …, dot_general] q k v
    … softmax …              ==>  …
    o = dot_general p v           dq, dk, dv = [dot_general, exp, …] q k v m l o do
    … dv = dot_general p do …

Backward, weights are computed again from queries, keys and the rows' statistics, as flash attention does, so that no
wide value is kept between the two. Heads are kept on the chip, so they are at most `LARGEST_HEAD` long: a softmax over
a vocabulary between two products of the model's width is no attention. Where there are fewer keys than that, scores
are less than what is made of them, and there is nothing to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from meshwright.core.factors import Factors
from meshwright.core.facts import Fusion
from meshwright.core.op import No, fusion_of
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.simulate.remembered import remembered
from meshwright.simulate.visible import MaskReader, is_exponential
from meshwright.transform.simplify import with_inputs

LARGEST_HEAD = 576  # elements of a query, key or value that a kernel keeps on the chip
_SAME: Mapping[Atom, Atom] = {}
KEY, QUERY, OTHER = "key", "query", "other"
Labels = tuple[frozenset[str], ...]
_POINTWISE = (Fusion.VIEW, Fusion.CHEAP, Fusion.ELEMENTWISE, Fusion.PERMUTATION)


@dataclass
class Attention:
    """The equations of one fused attention, forward or backward, in the program's order.

    ``scores`` is the number of pairs of queries and keys. ``also`` are values that the kernel reads although no
    equation of it does: the result, backward.
    """

    eqns: list[Eqn]
    backward: bool
    scores: int
    share: Callable[[], float]
    also: list[Var] = field(default_factory=list)

    @cached_property
    def visible(self) -> float:
        """The share of pairs that a mask leaves which is known beforehand."""
        return self.share()


class _Escapes(Exception):
    """A wide value is read by what is no part of an attention."""


class Facts:
    """What growing an attention asks of a program: who makes and who reads a value, and factor rules."""

    def __init__(self, program: Program) -> None:
        self.program, self.eqns = program, program.eqns
        self.kinds = [fusion_of(eqn) for eqn in program.eqns]
        self.made: dict[Atom, int] = {v: n for n, eqn in enumerate(program.eqns) for v in eqn.outputs}
        self.readers: dict[Atom, list[int]] = {}
        for n, eqn in enumerate(program.eqns):
            for atom in dict.fromkeys(a for a in eqn.inputs if a.__class__ is Var):
                self.readers.setdefault(atom, []).append(n)
        self.returned = {atom for atom in program.outputs if atom.__class__ is Var}
        self.masks = MaskReader({v: eqn for eqn in program.eqns for v in eqn.outputs}, dict(program.constants))
        self._rules: dict[int, Factors | None] = {}

    def rule(self, n: int) -> Factors | None:
        """The factor rule of an equation, if it has one."""
        if n not in self._rules:
            eqn = self.eqns[n]
            plain = not isinstance(eqn.op.factors, No) and not eqn.effects and len(eqn.outputs) == 1
            types = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
            self._rules[n] = eqn.op.factors(*types, eqn.params) if plain else None  # type: ignore[operator]
        return self._rules[n]

    def contracts(self, n: int) -> bool:
        return self.kinds[n] is Fusion.CONTRACTION and len(self.eqns[n].inputs) == 2 and self.rule(n) is not None


def _names(dims: Iterable[Sequence[str]]) -> set[str]:
    return {name for dim in dims for name in dim}


class Growing:
    """All equations that have to do with the scores of one contraction.

    ``labels`` says of each dim of a value that was made of scores whether it counts keys, queries or something else.
    """

    def __init__(self, facts: Facts, first: int, keys_on: int, may_leave: frozenset[Var] = frozenset()) -> None:
        self.facts, self.may_leave = facts, may_leave
        self.labels: dict[Atom, Labels] = {}
        self.scoring: list[int] = []  # contractions that make wide values
        self.mixing: dict[int, str] = {}  # contractions that wide values end in, and what these sum over
        self.summing: set[int] = set()  # reductions that wide values end in, over neither alone
        self.pointwise: set[int] = set()
        self.over_keys: set[int] = set()  # reductions over keys, which weights are normalized by
        rule = facts.rule(first)
        assert rule is not None
        sides = [_names(dims) for dims in rule.operands]
        out = _names(rule.results[0])
        kinds = dict.fromkeys(out, OTHER)
        kinds.update(dict.fromkeys((sides[keys_on] - sides[1 - keys_on]) & out, KEY))
        kinds.update(dict.fromkeys((sides[1 - keys_on] - sides[keys_on]) & out, QUERY))
        found = tuple(frozenset(kinds[name] for name in dim if rule.sizes[name] > 1) for dim in rule.results[0])
        if not any(KEY in dim for dim in found):
            raise _Escapes
        self.size = facts.eqns[first].outputs[0].type.size
        self.waiting: list[Var] = []
        self.score(first, found)
        while self.waiting:
            self.follow(self.waiting.pop())

    def wide(self, atom: Atom) -> bool:
        return any(KEY in dim for dim in self.labels.get(atom, ()))

    def score(self, n: int, found: Labels) -> None:
        """A contraction that makes wide values."""
        rule = self.facts.rule(n)
        assert rule is not None
        size = 1
        for name in rule.reduced:
            size *= rule.sizes[name]
        if size > LARGEST_HEAD:
            raise _Escapes
        self.scoring.append(n)
        self.label(self.facts.eqns[n].outputs[0], found)

    def label(self, var: Var, found: Labels) -> None:
        old = self.labels.get(var)
        new = found if old is None else tuple(a | b for a, b in zip(old, found, strict=True))
        if any(KEY in dim and len(dim) > 1 for dim in new):
            raise _Escapes
        if new != old:
            self.labels[var] = new
            self.waiting.append(var)

    def follow(self, var: Var) -> None:
        """Whatever reads a value."""
        wide = self.wide(var)
        if wide and var in self.facts.returned and var not in self.may_leave:
            raise _Escapes
        for n in self.facts.readers.get(var, ()):
            kind, rule = self.facts.kinds[n], self.facts.rule(n)
            if rule is not None and kind in _POINTWISE and self.through(n, rule):
                continue
            if rule is not None and kind is Fusion.REDUCTION and wide and self.reduced(n, rule):
                continue
            if wide and self.facts.contracts(n) and rule is not None and self.mixed(n, rule):
                continue
            if wide:
                raise _Escapes

    def factor_labels(self, n: int, rule: Factors) -> dict[str, frozenset[str]]:
        """What the factors of an equation count, as far as its operands say."""
        found: dict[str, frozenset[str]] = {}
        for atom, dims in zip(self.facts.eqns[n].inputs, rule.operands):
            labels = self.labels.get(atom) if atom.__class__ is Var else None
            for dim, label in zip(dims, labels or ()):
                for name in dim:
                    if rule.sizes[name] > 1:
                        found[name] = found.get(name, frozenset()) | label
        return found

    def through(self, n: int, rule: Factors) -> bool:
        """An elementwise equation, or a view: whether its result has all dims of keys of its operands."""
        eqn, found = self.facts.eqns[n], self.factor_labels(n, rule)
        keys = {name for name, label in found.items() if KEY in label}
        out = _names(rule.results[0])
        if not keys <= out or not keys <= (rule.separable & rule.passing):
            return False
        result = eqn.outputs[0]
        none: frozenset[str] = frozenset()
        if not keys and self.leaves_rows(eqn):
            return False
        self.pointwise.add(n)
        self.label(result, tuple(none.union(*(found.get(name, none) for name in dim)) for dim in rule.results[0]))
        if keys:
            for atom, dims in zip(eqn.inputs, rule.operands):
                if atom.__class__ is Var and atom not in self.labels and atom.type.size == self.size:
                    self.climb(atom, tuple(none.union(*(found.get(name, none) for name in dim)) for dim in dims))
        return True

    def leaves_rows(self, eqn: Eqn) -> bool:
        """Whether what there is one of per query meets something else than scores, such as a sum of values."""
        size = eqn.outputs[0].type.size
        ours = max(a.type.size for a in eqn.inputs if a in self.labels)
        others = [a.type.size for a in eqn.inputs if a.__class__ is Var and a not in self.labels]
        return (size > ours and size != self.size) or any(other >= self.size for other in others)

    def climb(self, var: Var, found: Labels) -> None:
        """A value as large as the scores that meets them: it may be made of scores, too."""
        while var not in self.labels:
            n = self.facts.made.get(var)
            if n is None or not any(KEY in dim for dim in found):
                return
            rule, eqn = self.facts.rule(n), self.facts.eqns[n]
            if self.facts.contracts(n):
                self.score(n, found)
                return
            if rule is None or self.facts.kinds[n] not in _POINTWISE:
                return
            named = {name: label for dim, label in zip(rule.results[0], found) for name in dim}
            for atom, dims in zip(eqn.inputs, rule.operands):
                if atom.__class__ is Var and atom.type.size == self.size and atom not in self.labels:
                    none: frozenset[str] = frozenset()
                    labels = tuple(none.union(*(named.get(name, none) for name in dim)) for dim in dims)
                    self.climb(atom, labels)
            return

    def reduced(self, n: int, rule: Factors) -> bool:
        """A reduction of a wide value: over keys, or over all but keys and queries, as the gradient of a bias."""
        found = self.factor_labels(n, rule)
        over = {label for name in rule.reduced for label in found.get(name, ())}
        keys = {name for name, label in found.items() if KEY in label}
        if over == {KEY} and keys <= rule.reduced:
            self.over_keys.add(n)
            self.pointwise.add(n)
            none: frozenset[str] = frozenset()
            result = self.facts.eqns[n].outputs[0]
            self.label(result, tuple(none.union(*(found.get(name, none) for name in dim)) for dim in rule.results[0]))
            return True
        if rule.reduced and KEY not in over:
            self.summing.add(n)
            return True
        return False

    def mixed(self, n: int, rule: Factors) -> bool:
        """A contraction of a wide value and another."""
        eqn = self.facts.eqns[n]
        if self.wide(eqn.inputs[0]) and self.wide(eqn.inputs[1]):
            return False
        at = 0 if self.wide(eqn.inputs[0]) else 1
        found = self.factor_labels(n, rule)
        keys = {name for name, label in found.items() if KEY in label}
        queries = {name for name, label in found.items() if QUERY in label}
        summed = {name for name in rule.reduced if rule.sizes[name] > 1}
        size = 1
        for name in _names(rule.operands[1 - at]) - _names(rule.operands[at]):
            size *= rule.sizes[name]
        if size > LARGEST_HEAD:
            return False
        if summed and summed <= keys and keys <= summed:
            self.mixing[n] = KEY
        elif summed and not summed & keys and queries <= summed:
            self.mixing[n] = QUERY
        else:
            return False
        return True

    # What was found

    def inside(self) -> set[int]:
        """The equations of the attention: all that make or read wide values, and those between rows and wide values."""
        facts = self.facts
        found = {*self.scoring, *self.mixing, *self.summing}
        found.update(n for n in self.pointwise if self.wide(facts.eqns[n].outputs[0]) or
                     any(self.wide(a) for a in facts.eqns[n].inputs))  # fmt: skip
        waiting = list(found)
        while waiting:
            for atom in facts.eqns[waiting.pop()].inputs:
                n = facts.made.get(atom)
                if n is not None and n in self.pointwise and n not in found:
                    found.add(n)
                    waiting.append(n)
        return found

    def is_attention(self) -> bool:
        """Whether keys are normalized over and mixed, and gradients are those of scores that are here."""
        backward = QUERY in self.mixing.values()
        if any(self.facts.eqns[n].outputs[0].type.size > self.size for n, over in self.mixing.items() if over == KEY):
            return False
        return bool(self.over_keys) and KEY in self.mixing.values() and (not backward or len(self.scoring) > 1)


def _before(facts: Facts, ends: Iterable[int], inside: set[int]) -> set[int]:
    """The equations inside that lead to some of them, with these."""
    found, waiting = set(ends), list(ends)
    while waiting:
        for atom in facts.eqns[waiting.pop()].inputs:
            n = facts.made.get(atom)
            if n is not None and n in inside and n not in found:
                found.add(n)
                waiting.append(n)
    return found


def _convex(facts: Facts, numbers: set[int]) -> bool:
    """Whether no equation outside stands between two of them."""
    after: set[Atom] = set()  # values outside that depend on them
    own = {v for n in numbers for v in facts.eqns[n].outputs}
    last = max(numbers)
    for n in range(min(numbers), last + 1):
        eqn = facts.eqns[n]
        if n in numbers:
            if any(atom in after for atom in eqn.inputs):
                return False
        elif any(atom in own or atom in after for atom in eqn.inputs):
            after.update(eqn.outputs)
    return True


def forward_of(growing: Growing, inside: set[int]) -> set[int]:
    """The forward pass: what leads to contractions, and reductions, over keys of what one contraction has scored."""
    facts, found = growing.facts, set()
    scored: set[int] = set()
    for n, over in growing.mixing.items():
        before = _before(facts, [n], inside)
        if over == KEY and len(before & set(growing.scoring)) == 1:
            found |= before
            scored |= before & set(growing.scoring)
    for n in growing.over_keys & inside if found else ():
        before = _before(facts, [n], inside)
        found |= before if before & set(growing.scoring) <= scored else set()
    return found


def grow(facts: Facts, first: int, may_leave: frozenset[Var] = frozenset()) -> Growing | None:
    """The attention whose scores a contraction makes, if that is what it does."""
    for keys_on in (1, 0):
        try:
            found = Growing(facts, first, keys_on, may_leave)
        except _Escapes:
            continue
        if found.is_attention():
            return found
    return None


@remembered
def fuse_attention(program: Program) -> tuple[Program, list[Attention]]:
    """The program with weights computed again where the backward pass needs them, and its fused attentions.

    Without attention it is the program itself, and none.
    """
    found: list[Attention] = []
    taken: set[int] = set()
    added: dict[int, list[Eqn]] = {}  # equations to put in front of one
    renamed: dict[int, Eqn] = {}
    facts = Facts(program)
    for n in range(len(facts.eqns)):
        if n in taken or not facts.contracts(n):
            continue
        growing = grow(facts, n)
        if growing is None:
            continue
        inside = growing.inside()
        forward = forward_of(growing, inside)
        forward, backward = _turned(growing, forward), _turned(growing, inside - forward)
        inside = forward | backward
        if inside & taken or not all(_convex(facts, part) for part in (forward, backward) if part):
            continue
        taken |= inside
        share = cache(partial(_visible, growing, inside))
        if forward:
            found.append(Attention([facts.eqns[m] for m in sorted(forward)], False, growing.size, share))
        if backward:
            again, fresh = _again(growing, forward, backward)
            own = []
            for m in sorted(backward):
                eqn = facts.eqns[m]
                if any(atom in fresh for atom in eqn.inputs):
                    renamed[m] = eqn = with_inputs(eqn, fresh)
                own.append(eqn)
            if again:
                added[min(m for m in backward if m in renamed)] = again
            results = _results(growing, forward)
            found.append(Attention([*again, *own], True, growing.size, share, results))
    if not found:
        return program, []
    eqns = [one for n, eqn in enumerate(program.eqns) for one in (*added.get(n, ()), renamed.get(n, eqn))]
    return replace(program, eqns=tuple(_in_order(eqns))), found


def _in_order(eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations in an order in which they can run, near to the one given."""
    made: dict[Atom, int] = {v: n for n, eqn in enumerate(eqns) for v in eqn.outputs}
    done: set[int] = set()
    found: list[Eqn] = []
    for start in range(len(eqns)):
        waiting = [start]
        while waiting:
            n = waiting[-1]
            missing = [m for a in eqns[n].inputs if (m := made.get(a)) is not None and m not in done]
            if n in done or not missing:
                waiting.pop()
                found += [] if n in done else [eqns[n]]
                done.add(n)
            else:
                waiting += missing
    return found


def recomputed(growing: Growing, wanted: Iterable[Atom], among: set[int]) -> list[int]:
    """The equations among some that compute wide values out of queries, keys and what there is one of per query."""
    facts, found, waiting = growing.facts, set(), list(wanted)
    while waiting:
        n = facts.made[waiting.pop()]
        if n in found:
            continue
        found.add(n)
        waiting += [a for a in facts.eqns[n].inputs if facts.made.get(a) in among and is_wide(growing, a)]
    return sorted(found)


def is_wide(growing: Growing, atom: Atom) -> bool:
    """Whether a value has a dim of keys, or is repeated along one."""
    return growing.wide(atom) or atom.type.size >= growing.size


def _again(growing: Growing, forward: set[int], backward: set[int]) -> tuple[list[Eqn], dict[Atom, Atom]]:
    """The equations that compute the wide values of the forward pass once more, and what these are called there."""
    facts = growing.facts
    wanted = {a for n in backward for a in facts.eqns[n].inputs if facts.made.get(a) in forward and is_wide(growing, a)}
    return copies([facts.eqns[n] for n in recomputed(growing, wanted, forward)])


def copies(eqns: Iterable[Eqn], names: Mapping[Atom, Atom] = _SAME) -> tuple[list[Eqn], dict[Atom, Atom]]:
    """The same equations with results of their own, of operands with other ``names``; and what all are called."""
    fresh: dict[Atom, Atom] = dict(names)
    found = []
    for eqn in eqns:
        inputs, outputs = [fresh.get(a, a) for a in eqn.inputs], [Var(v.type) for v in eqn.outputs]
        fresh.update(zip(eqn.outputs, outputs, strict=True))
        found.append(Eqn(eqn.op, inputs, eqn.params, outputs, eqn.source.second() if eqn.source else None))
    return found, fresh


def _results(growing: Growing, forward: set[int]) -> list[Var]:
    """What the forward pass mixes, which the backward pass reads to sum gradients times weights."""
    facts = growing.facts
    own = [facts.eqns[n].outputs[0] for n in growing.mixing if n in forward]
    return [next((facts.eqns[m].outputs[0] for m in facts.readers.get(v, ()) if m in forward), v) for v in own]


def _turned(growing: Growing, numbers: set[int]) -> set[int]:
    """With what puts the dims of a result into another order, which a kernel writes it in."""
    facts, found = growing.facts, set(numbers)
    for n in numbers & set(growing.mixing):
        result = facts.eqns[n].outputs[0]
        readers = facts.readers.get(result, [])
        if len(readers) == 1 and facts.kinds[readers[0]] is Fusion.PERMUTATION and result not in facts.returned:
            found.add(readers[0])
    return found


def _visible(growing: Growing, inside: set[int]) -> float:
    """The share of scores that a mask leaves which is known beforehand."""
    facts = growing.facts
    scores = frozenset(facts.eqns[n].outputs[0] for n in growing.scoring)
    share = 1.0
    for n in sorted(inside):
        eqn = facts.eqns[n]
        if is_exponential(eqn, facts.kinds[n]) and growing.wide(eqn.inputs[0]):
            labels = growing.labels[eqn.inputs[0]]
            queries, keys = ([kind in label for label in labels] for kind in (QUERY, KEY))
            share = min(share, facts.masks.visible(eqn.inputs[0], queries, keys, scores))
    return share

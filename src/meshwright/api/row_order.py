"""Whether a program for a part of a batch gives for any rows what it gives for consecutive ones.

It does if every value has at most one dim that is that of the rows, unmixed with others, along which each op works row
by row or adds up: no reshape cuts or merges it, no slice or sort looks along it, and nothing beside it differs by row.
What was added up over the rows of a part is a partial sum, and only what is linear in it comes before the whole sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwright.core.facts import Structure
from meshwright.core.linearity import declared_groups
from meshwright.core.op import No, Op
from meshwright.core.program import Atom, Eqn, Program, Var, operand_types

_TRIES = 3  # that a loop's carry is looked at: what starts as zeros may become rows


class RowFacts(NamedTuple):
    """What is known of a value: the dim of its rows, if it has one, dims along which all elements are the same, and how
    the values of parts make that of the batch ("sum", "max", …) if it is of all rows of a part."""

    dim: int | None = None
    uniform: frozenset[int] = frozenset()
    partial: str = ""

    @property
    def key(self) -> tuple[int | None, str]:
        return self.dim, self.partial


NO_ROWS = RowFacts()


class BetweenParts(NamedTuple):
    """The ops between parts: those that leave a value as it is, the one that takes a part's rows of a whole value, and
    those that combine the values of all parts, with how they do."""

    same: tuple[Op, ...]
    rows: Op
    combined: Mapping[Op, str]


def rows_in_any_order(program: Program, batch: Sequence[bool], joined: Sequence[bool], between: BetweenParts) -> bool:
    """Whether the parts of a batch, the first dim of these inputs, may be any rows. Results that are ``joined`` must
    have rows of their own then."""
    found = _through(program, [RowFacts(0) if is_batch else NO_ROWS for is_batch in batch], between)
    if found is None:
        return False
    return all(one.dim is not None for one, is_joined in zip(found, joined, strict=True) if is_joined)


def _through(program: Program, given: Sequence[RowFacts], between: BetweenParts) -> list[RowFacts] | None:
    """What is known of the results; None if the order of rows counts."""
    env: dict[Atom, RowFacts] = dict(zip(program.inputs, given, strict=True))
    for eqn in program.eqns:
        found = _of_equation(eqn, [env.get(a, NO_ROWS) for a in eqn.inputs], between)
        if found is None:
            return None
        env.update(zip(eqn.outputs, found, strict=True))
    return [env.get(a, NO_ROWS) for a in program.outputs]


def _of_equation(eqn: Eqn, given: Sequence[RowFacts], between: BetweenParts) -> Sequence[RowFacts] | None:
    has_rows = any(one.dim is not None for one in given)
    partial = {one.partial for one in given if one.partial}
    if eqn.op in between.same:
        return given
    if eqn.op is between.rows:
        return None if partial else [RowFacts(eqn.params["dim"])]
    if eqn.op.stack is not None:  # what devices combine must have no rows any more
        right = partial <= {between.combined.get(eqn.op, "")}
        return [NO_ROWS] * len(eqn.outputs) if right and not has_rows else None
    if eqn.op.structure is Structure.ROWS:
        return _of_loop(eqn, given, between)
    if eqn.regions():
        return None if has_rows or partial else [NO_ROWS] * len(eqn.outputs)
    if partial:
        return _of_sums(eqn, given) if partial == {"sum"} and not has_rows else None
    return _by_factors(eqn, given, has_rows)


def _of_sums(eqn: Eqn, given: Sequence[RowFacts]) -> Sequence[RowFacts] | None:
    """An op on partial sums: it must be linear in them."""
    summed = {n for n, one in enumerate(given) if one.partial}
    types, results = operand_types(eqn.op, eqn.inputs), [v.type for v in eqn.outputs]
    groups = declared_groups(eqn.op.linear, types, results, eqn.params)
    if not any({*group.operands} == summed for group in groups):
        return None
    return [RowFacts(partial="sum")] * len(eqn.outputs)


def _of_loop(eqn: Eqn, given: Sequence[RowFacts], between: BetweenParts) -> Sequence[RowFacts] | None:
    consts, carry = eqn.params["consts"], eqn.params["carry"]
    if any(one.dim == 0 for one in given[consts + carry :]):
        return None
    scanned = [
        RowFacts(None if one.dim is None else one.dim - 1, frozenset(d - 1 for d in one.uniform if d), one.partial)
        for one in given[consts + carry :]
    ]
    start = given[consts : consts + carry]
    adding = [
        RowFacts(partial="sum") if one.key == NO_ROWS.key else one for one in start
    ]  # what gradients are added to
    for first in (start, adding):
        held = list(first)
        for _ in range(_TRIES):
            outs = _through(eqn.params["body"], [*given[:consts], *held, *scanned], between)
            if outs is None:
                break
            after = outs[:carry]
            if [one.key for one in after] == [one.key for one in held]:
                stacked = [
                    RowFacts(None if one.dim is None else one.dim + 1, partial=one.partial) for one in outs[carry:]
                ]
                return [*(one._replace(uniform=frozenset()) for one in after), *stacked]
            if any(
                was.key != now.key and not (was.key == NO_ROWS.key and now.dim in was.uniform)
                for was, now in zip(held, after, strict=True)
            ):
                break
            held = [one._replace(uniform=frozenset()) for one in after]
    return None


def _by_factors(eqn: Eqn, given: Sequence[RowFacts], has_rows: bool) -> Sequence[RowFacts] | None:
    if isinstance(eqn.op.factors, No):
        return None if has_rows else [NO_ROWS] * len(eqn.outputs)
    types = operand_types(eqn.op, eqn.inputs)
    rule = eqn.op.factors(types, [v.type for v in eqn.outputs], eqn.params)
    along = {rule.operands[n][one.dim] for n, one in enumerate(given) if one.dim is not None}
    row: str | None = None
    if along:
        only = along.pop()
        if along or len(only) != 1 or only[0] not in rule.separable | (rule.reduced - rule.replicated - rule.permuted):
            return None
        row = only[0]
    different = set() if eqn.inputs else {*rule.sizes} - rule.separable  # as places do along the dim they count
    for one, dims, atom in zip(given, rule.operands, eqn.inputs, strict=True):
        for d, factors in enumerate(dims):
            if one.dim == d:
                continue
            if row in factors and not (isinstance(atom, Var) and d in one.uniform):
                return None
            if d not in one.uniform:
                different.update(factors)
    results = []
    for dims in rule.results:
        found = [d for d, factors in enumerate(dims) if row is not None and row in factors]
        if len(found) > 1 or any(len(dims[d]) != 1 for d in found):
            return None
        if found or row is None:
            uniform = frozenset(d for d, factors in enumerate(dims) if not different & {*factors} and d not in found)
            results.append(RowFacts(found[0] if found else None, uniform))
        elif row in rule.reduced:
            results.append(RowFacts(partial=rule.combine))
        else:
            return None
    return results

"""Equal layers, counted once: the steps that play one role in each of them, and the transfers between these."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from meshwright.search.layout.graph import LayoutStep
from meshwright.search.layout.transfers import ValueTransfer

ROUNDS = 2  # how far around a step one looks for its role


class TiedTransfer(NamedTuple):
    """A transfer, the roles of its maker and its reader by their numbers, and how often it takes place, of all copies
    together."""

    one: ValueTransfer
    maker: int
    reader: int
    times: float


class Tied(NamedTuple):
    """The steps of each role, those of one copy at the same place, and the transfers within the copies."""

    roles: list[list[LayoutStep]]
    transfers: list[TiedTransfer]


def tied(steps: Sequence[LayoutStep], transfers: Sequence[ValueTransfer]) -> Tied:
    """Steps and transfers as copies of a part that no transfer joins.

    A transfer that each step of a role makes for one step of another puts those two into a copy. Transfers that would
    join several copies are left out: what is left costs, however the copies are laid out, at least as much as all of
    them laid out as the one that costs least.
    """
    role = _roles(steps, transfers)
    members: dict[int, list[LayoutStep]] = {}
    for step in steps:
        members.setdefault(role[step], []).append(step)
    numbers = {step: n for of in members.values() for n, step in enumerate(of)}
    joined = {one: [one] for one in members}  # the roles whose copies are numbered together
    kinds: dict[Hashable, list[ValueTransfer]] = {}
    for one in transfers:
        kinds.setdefault((role[one.maker], role[one.reader], _path(one)), []).append(one)
    order = {one: n for n, one in enumerate(members)}
    found = []
    for alike in sorted(kinds.values(), key=lambda of: -sum(one.nbytes * one.times * one.share for one in of)):
        maker, reader = role[alike[0].maker], role[alike[0].reader]
        makers, readers = {one.maker for one in alike}, {one.reader for one in alike}
        if not len(alike) == len(makers) == len(readers) == len(members[maker]) == len(members[reader]):
            continue
        if joined[maker] is not joined[reader]:
            new = {numbers[one.reader]: numbers[one.maker] for one in alike}
            for other in joined[reader]:
                for step in members[other]:
                    numbers[step] = new[numbers[step]]
            joined[maker] += joined[reader]
            for other in joined[reader]:
                joined[other] = joined[maker]
        elif any(numbers[one.maker] != numbers[one.reader] for one in alike):
            continue
        times = sum(one.times * one.share for one in alike)
        found.append(TiedTransfer(alike[0], order[maker], order[reader], times))
    return Tied([sorted(of, key=numbers.__getitem__) for of in members.values()], found)


def _roles(steps: Sequence[LayoutStep], transfers: Sequence[ValueTransfer]) -> dict[LayoutStep, int]:
    """The role of each step: steps of one role are of groups of one, and so are those that they meet."""
    known: dict[Hashable, int] = {}
    found = {step: known.setdefault((step.group.role, step.group.steps.index(step)), len(known))
             for step in steps if step.group is not None}  # fmt: skip
    for _ in range(ROUNDS):
        near: dict[LayoutStep, list[Hashable]] = {step: [] for step in steps}
        for one in transfers:
            near[one.maker].append(("to", found[one.reader], _path(one)))
            near[one.reader].append(("from", found[one.maker], _path(one)))
        known = {}
        found = {step: known.setdefault((found[step], tuple(sorted(map(repr, near[step])))), len(known))
                 for step in steps}  # fmt: skip
    return found


def _path(one: ValueTransfer) -> Hashable:
    """What is alike of transfers along equal paths."""
    return one.number, tuple((step.kind, "" if step.eqn is None else step.eqn.op.name, n) for step, n in one.links)

"""The ways that cost least together, exactly.

A role that meets one or two others is taken out by dynamic programming at once. Of those that are left, the cost of
pairs is shared out to their ends until the sum of what each role costs at least is as high as it gets: that bounds
every choice (it is the bound of the linear relaxation's dual). Ways that no choice better than one at hand can have
are taken out, and of what is left the best is found by dynamic programming, one role after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import NamedTuple

import numpy as np

MOST_ENTRIES = 1_000_000  # of the tables of the dynamic program
MOST_DIMS = 16  # of one of them
MOST_COLLAPSED = 300_000  # entries of a table in which a role that meets two others is taken out
IMPOSSIBLE = 1e6  # seconds
ROUNDS = (10, 20, 40, 80)  # of sharing out, before ways are taken out again

Pairs = dict[tuple[int, int], np.ndarray]


class Chosen(NamedTuple):
    """The way of each role, what they cost together, and what every choice costs at least."""

    ways: np.ndarray
    cost: float
    bound: float


class Choices:
    """Costs of choices, one for each of many roles: of each alone, and of pairs."""

    def __init__(self, alone: Sequence[np.ndarray], pairs: Pairs) -> None:
        self.alone = [np.minimum(u, IMPOSSIBLE) for u in alone]
        self.kept = [np.arange(len(u)) for u in alone]
        self.pairs: list[dict[int, np.ndarray]] = [{} for _ in alone]
        for (a, b), table in pairs.items():
            self.pairs[a][b] = np.minimum(table, IMPOSSIBLE)
            self.pairs[b][a] = self.pairs[a][b].T

    def only(self, roles: Sequence[int]) -> Choices:
        """The choices of some roles alone, which meet no others."""
        at = {n: k for k, n in enumerate(roles)}
        pairs = {(at[a], at[b]): self.pairs[a][b] for a, b in self.edges()}
        return Choices([self.alone[n] for n in roles], pairs)

    def edges(self) -> list[tuple[int, int]]:
        return [(a, b) for a, near in enumerate(self.pairs) for b in near if a < b]

    def cost(self, ways: np.ndarray) -> float:
        """What a choice of ways costs, by their places among those that are left."""
        total = sum(float(u[w]) for u, w in zip(self.alone, ways, strict=True))
        return total + sum(float(self.pairs[a][b][ways[a], ways[b]]) for a, b in self.edges())

    def share(self, rounds: int) -> float:
        """Share pairs' costs out to their ends, which changes no sum, and return the bound that this gives."""
        edges = self.edges()
        given = {(a, b): (np.zeros(len(self.alone[a])), np.zeros(len(self.alone[b]))) for a, b in edges}
        found = last = -inf
        for k in range(rounds):
            for a, b in edges if k % 2 == 0 else reversed(edges):
                table, (to_a, to_b) = self.pairs[a][b], given[a, b]
                rest_a, rest_b = self.alone[a] - to_a, self.alone[b] - to_b
                new_a = 0.5 * ((table + rest_b).min(axis=1) - rest_a)
                new_b = 0.5 * ((table + rest_a[:, None]).min(axis=0) - rest_b)
                given[a, b] = new_a, new_b
                self.alone[a], self.alone[b] = rest_a + new_a, rest_b + new_b
            if k % 5 == 4 or k == rounds - 1:
                found = sum(float(u.min()) for u in self.alone)
                found += sum(float((self.pairs[a][b] - x[:, None] - y).min()) for (a, b), (x, y) in given.items())
                if found - last < 1e-5 * abs(found):
                    break
                last = found
        for (a, b), (x, y) in given.items():
            self.pairs[a][b] = self.pairs[a][b] - x[:, None] - y
            self.pairs[b][a] = self.pairs[a][b].T
        return found

    def take_out(self, bound: float, most: float) -> None:
        """Take out ways that are in no choice that costs less than ``most``."""
        for n, u in enumerate(self.alone):
            left = np.nonzero(bound - u.min() + u <= most)[0]
            if 0 < len(left) < len(u):
                self.alone[n], self.kept[n] = u[left], self.kept[n][left]
                for other, table in self.pairs[n].items():
                    self.pairs[n][other] = table[left]
                    self.pairs[other][n] = self.pairs[n][other].T

    def descend(self, ways: np.ndarray) -> np.ndarray:
        """Ways from which no single change is better."""
        ways = ways.copy()
        todo, waiting = list(range(len(ways))), [True] * len(ways)
        while todo:
            n = todo.pop()
            waiting[n] = False
            costs = self.alone[n].copy()
            for other, table in self.pairs[n].items():
                costs += table[:, ways[other]]
            best = int(np.argmin(costs))
            if costs[best] < costs[ways[n]] - 1e-12:
                ways[n] = best
                for other in self.pairs[n]:
                    if not waiting[other]:
                        waiting[other] = True
                        todo.append(other)
        return ways

    def named(self, ways: np.ndarray) -> np.ndarray:
        """Ways by their numbers among all."""
        return np.array([kept[w] for kept, w in zip(self.kept, ways, strict=True)], int)


def best_choice(
    alone: Sequence[np.ndarray], pairs: Pairs, enough: float = inf, rounds: Sequence[int] = ROUNDS
) -> Chosen:
    """The best way for each role; if tables become too large, or if it is known to cost more than ``enough``, one from
    which no single change is better."""
    whole = Choices(alone, pairs)
    left, taken = _collapsed(whole)
    chosen = _best_of(whole.only(left), enough, rounds)
    ways = np.zeros(len(alone), int)
    ways[left] = chosen.ways
    for n, roles, table in reversed(taken):
        ways[n] = int(table[tuple(ways[m] for m in roles)])
    return chosen._replace(ways=ways)


def _best_of(choices: Choices, enough: float, rounds: Sequence[int]) -> Chosen:
    bound, cost = -inf, inf
    ways = np.zeros(len(choices.alone), int)
    for count in rounds:
        bound = max(bound, choices.share(count))
        found = choices.descend(np.array([int(u.argmin()) for u in choices.alone], int))
        if choices.cost(found) < cost:
            cost, ways = choices.cost(found), choices.named(found)
        if cost - bound <= 1e-6 * abs(cost) or bound > enough:
            return Chosen(ways, cost, bound)
        choices.take_out(bound, cost * (1 + 1e-9))
        exact = _eliminate(choices)
        if exact is not None:
            return Chosen(choices.named(exact), choices.cost(exact), choices.cost(exact))
    return Chosen(ways, cost, bound)


TakenOut = tuple[
    int, tuple[int, ...], np.ndarray
]  # a role that was taken out, those it met, and its best way for theirs


def _collapsed(choices: Choices) -> tuple[list[int], list[TakenOut]]:
    """Take out roles that meet no more than two others, as long as there are any; the roles that are left, and those
    taken out in order. One role is left in any case, with what the others cost."""
    alone, pairs = choices.alone, choices.pairs
    left, taken = dict.fromkeys(range(len(alone))), list[TakenOut]()
    todo = list(left)
    while todo and len(left) > 1:
        n = todo.pop()
        near = tuple(pairs[n])
        if n not in left or len(near) > 2 or prod(len(alone[m]) for m in (n, *near)) > MOST_COLLAPSED:
            continue
        total = alone[n]
        for place, m in enumerate(near):
            total = total[..., None] + pairs[n][m].reshape(len(alone[n]), *[1] * place, len(alone[m]))
        least = total.min(axis=0)
        if len(near) == 2:
            a, b = near
            pairs[a][b] = np.minimum(pairs[a][b] + least if b in pairs[a] else least, IMPOSSIBLE)
            pairs[b][a] = pairs[a][b].T
        else:
            other = near[0] if near else next(m for m in left if m != n)
            alone[other] = alone[other] + least
        for m in near:
            del pairs[m][n]
        pairs[n] = {}
        del left[n]
        taken.append((n, near, total.argmin(axis=0)))
        todo += near
    return list(left), taken


def _order(choices: Choices) -> list[int] | None:
    """The roles that have a choice in an order in which tables stay small; None if they would be too large."""
    sizes = [len(u) for u in choices.alone]
    near = [{m for m in found if sizes[m] > 1} for found in choices.pairs]
    left, order, entries = {n for n, size in enumerate(sizes) if size > 1}, [], 0
    while left:
        n = min(left, key=lambda n: prod(sizes[m] for m in near[n]))
        entries += sizes[n] * prod(sizes[m] for m in near[n])
        if entries > MOST_ENTRIES or len(near[n]) > MOST_DIMS:
            return None
        for m in near[n]:
            near[m] = (near[m] | near[n]) - {m, n}
        left.discard(n)
        order.append(n)
    return order


def _eliminate(choices: Choices) -> np.ndarray | None:
    """The best of all choices that are left, role by role; None if tables would be too large."""
    order = _order(choices)
    if order is None:
        return None
    sizes = [len(u) for u in choices.alone]
    open_ = set(order)
    tables: list[tuple[tuple[int, ...], np.ndarray]] = [((n,), choices.alone[n]) for n in order]
    for a, b in choices.edges():
        mine = tuple(n for n in (a, b) if n in open_)
        if mine:
            tables.append((mine, choices.pairs[a][b].reshape([sizes[n] for n in mine])))
    reading: dict[int, set[int]] = {n: set() for n in order}
    for k, (mine, _) in enumerate(tables):
        for n in mine:
            reading[n].add(k)
    steps = []
    for n in order:
        read = [tables[k] for k in reading[n]]
        roles = (*sorted({m for mine, _ in read for m in mine} - {n}), n)
        total = np.zeros([sizes[m] for m in roles])
        for mine, values in read:
            ranked = sorted(range(len(mine)), key=lambda i: roles.index(mine[i]))
            total += values.transpose(ranked).reshape([sizes[m] if m in mine else 1 for m in roles])
        for k in list(reading[n]):
            for m in tables[k][0]:
                reading[m].discard(k)
        for m in roles[:-1]:
            reading[m].add(len(tables))
        tables.append((roles[:-1], total.min(axis=-1)))
        steps.append((n, roles[:-1], total.argmin(axis=-1)))
    ways = np.zeros(len(sizes), int)
    for n, roles, table in reversed(steps):
        ways[n] = int(table[tuple(ways[m] for m in roles)])
    return ways

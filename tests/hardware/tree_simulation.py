"""Switched machines message by message: what every cut lets through, and collectives played piece by piece.

A GPU has a port to the switch of its node and an adapter to the leaf of its unit; leaves are joined by a core. Ports
and adapters work both ways at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Tree:
    chips: int
    node: int
    unit: int  # chips under one leaf
    port: float
    adapter: float
    uplink: float  # of a leaf

    def into(self, inside: np.ndarray, using: Sequence[int]) -> np.ndarray:
        """The smallest cut that parts each set of chips from the others, over ports and adapters of those ``using``
        them: rows of 0 and 1, one for each set.
        """
        every = np.zeros((1, self.chips), int)
        every[0, list(using)] = 1
        nodes, those = (sets.reshape(len(sets), -1, self.node).sum(2) for sets in (inside & every, every))
        ports = np.minimum(nodes, those - nodes).sum(1) * self.port
        units, those = (sets.reshape(len(sets), -1, self.unit).sum(2) for sets in (inside & every, every))
        within, without = units * self.adapter, (those - units) * self.adapter
        uplink = self.uplink if units.shape[1] > 1 else 0.0
        core_inside = np.minimum(without, within + uplink).sum(1)
        core_outside = np.minimum(without + uplink, within).sum(1)
        return ports + np.minimum(core_inside, core_outside)


def cut_bound(kind: str, groups: Groups, tree: Tree, using: Sequence[int] | None = None) -> float:
    """The least time in which what must enter every set of chips can enter it, in units of V, over all sets."""
    sets = np.arange(1, 2**tree.chips - 1)
    inside = (sets[:, None] >> np.arange(tree.chips)) & 1
    entering = np.zeros(len(sets))
    for group in groups:
        size = len(group)
        here = inside[:, list(group)].sum(1)
        apart = (here > 0) & (here < size)
        if kind in ("all_gather", "reduce_scatter"):
            # A reduce-scatter is an all-gather run backward: what enters a set leaves it, over the same links.
            entering += np.where(apart, (size - here) / size, 0)
        elif kind == "all_reduce":
            entering += apart
        elif kind == "all_to_all":
            entering += here * (size - here) / size**2
        elif kind == "permute":
            sources, targets = inside[:, list(group)], inside[:, [*group[1:], group[0]]]
            entering += ((1 - sources) & targets).sum(1) / size
        else:  # broadcast, from the first
            entering += apart & (inside[:, group[0]] == 0)
    cut = tree.into(inside, range(tree.chips) if using is None else using)
    return float(np.divide(entering, cut, out=np.zeros_like(cut), where=entering > 0).max())


@dataclass
class Traffic:
    """Shares of V that went in and out over ports and adapters, and over the uplinks of leaves."""

    tree: Tree
    ports: Counter[tuple[int, str]]
    adapters: Counter[tuple[int, str]]
    uplinks: Counter[tuple[int, str]]

    @classmethod
    def none(cls, tree: Tree) -> Traffic:
        return cls(tree, Counter(), Counter(), Counter())

    def send(self, source: int, target: int, share: Fraction) -> None:
        if source // self.tree.node == target // self.tree.node:
            used = self.ports
        else:
            used = self.adapters
            if source // self.tree.unit != target // self.tree.unit:
                self.uplinks[source // self.tree.unit, "out"] += share
                self.uplinks[target // self.tree.unit, "in"] += share
        used[source, "out"] += share
        used[target, "in"] += share

    @property
    def seconds(self) -> float:
        """With small pieces all links work at the same time, and the busiest decides."""
        parts = ((self.ports, self.tree.port), (self.adapters, self.tree.adapter), (self.uplinks, self.tree.uplink))
        return max(float(max(used.values(), default=0)) / rate for used, rate in parts)


def by_node(group: Sequence[int], tree: Tree) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for chip in group:
        found[chip // tree.node].append(chip)
    return dict(found)


def chain(nodes: Sequence[int], home: int, tree: Tree, turn: int) -> list[int]:
    """The nodes in the order in which a piece visits them: its own unit first, then unit by unit, each in turns."""
    units: dict[int, list[int]] = defaultdict(list)
    for node in sorted(nodes):
        units[node * tree.node // tree.unit].append(node)
    own = home * tree.node // tree.unit
    first = units[own].index(home)
    order = units[own][first:] + units[own][:first]
    numbers = sorted(units)
    for number in [*numbers[numbers.index(own) + 1 :], *numbers[: numbers.index(own)]]:
        at = turn % len(units[number])
        order += units[number][at:] + units[number][:at]
    return order


def play_gather(groups: Groups, tree: Tree) -> Traffic:
    """Pieces go from node to node, the members of each taking turns, and are spread in every node they reach."""
    traffic = Traffic.none(tree)
    for group in groups:
        nodes = by_node(group, tree)
        pieces = lcm(*(len(chips) for chips in nodes.values())) * 2
        share = Fraction(1, len(group) * pieces)
        holds: dict[int, set[tuple[int, int]]] = {c: {(c, piece) for piece in range(pieces)} for c in group}

        def pass_on(source: int, target: int, part: tuple[int, int], holds=holds, share=share) -> None:
            assert part in holds[source] and part not in holds[target]
            holds[target].add(part)
            traffic.send(source, target, share)

        for owner in group:
            for piece in range(pieces):
                keeper, before = owner, nodes[owner // tree.node]
                for number in chain(list(nodes), owner // tree.node, tree, piece):
                    here = nodes[number]
                    if number != owner // tree.node:
                        # Once it is spread there, any member of the node before can send it.
                        source, keeper = before[piece % len(before)], here[piece % len(here)]
                        pass_on(source, keeper, (owner, piece))
                    for chip in here:
                        if chip != keeper:
                            pass_on(keeper, chip, (owner, piece))
                    before = here
        assert all(len(parts) == len(group) * pieces for parts in holds.values())
    return traffic


def play_all_reduce(groups: Groups, tree: Tree) -> Traffic:
    """Sums are scattered in each node, then over nodes in equal parts; results go back the same way."""
    traffic = Traffic.none(tree)
    for group in groups:
        nodes = by_node(group, tree)
        count = 2 * len(nodes) * lcm(*map(len, nodes.values()))
        share = Fraction(1, count)
        for piece in range(count):
            keeper = {number: here[piece // len(nodes) % len(here)] for number, here in nodes.items()}
            home = sorted(nodes)[piece % len(nodes)]
            way = [keeper[number] for number in chain(list(nodes), home, tree, piece // len(nodes))]
            sums = {chip: frozenset([chip]) for chip in group}
            up = [(chip, keeper[chip // tree.node]) for chip in group if chip not in way]
            up += [(way[i], way[i - 1]) for i in range(len(way) - 1, 0, -1)]
            for source, target in up:
                assert not sums[source] & sums[target]
                sums[target] |= sums[source]
                traffic.send(source, target, share)
            for target, source in reversed(up):
                sums[target] = sums[source]
                traffic.send(source, target, share)
            assert all(summed == frozenset(group) for summed in sums.values())
    return traffic


def play_all_to_all(groups: Groups, tree: Tree) -> Traffic:
    """Every pair at once."""
    traffic = Traffic.none(tree)
    for group in groups:
        for source in group:
            for target in group:
                if source != target:
                    traffic.send(source, target, Fraction(1, len(group) ** 2))
    return traffic

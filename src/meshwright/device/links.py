"""The links that messages take on a torus, and how many of those that go at once share one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from meshwright.hardware.topology import Topology

Link = tuple[int, int, int, int]  # slice, chip, axis, direction
Chip = tuple[int, tuple[int, ...]]  # slice, coordinates


def chip_of(device: int, topology: Topology) -> Chip:
    """Where device n, which is chip n - 1, stands: slices one after another, the last axis the fastest."""
    number, rest = divmod(device - 1, prod(topology.shape))
    found = []
    for size in reversed(topology.shape):
        rest, at = divmod(rest, size)
        found.append(at)
    return number, tuple(reversed(found))


def route(source: int, target: int, topology: Topology) -> frozenset[Link]:
    """The links of the shortest ways of a message: one way begins with each axis, and both ways around half a ring.

    >>> line = Topology("tpu v5e", (1, 4))
    >>> sorted(link[1:] for link in route(1, 3, line))
    [(0, 1, 1), (1, 1, 1)]
    """
    (number, start), (other, stop) = chip_of(source, topology), chip_of(target, topology)
    if topology.switched or number != other:
        return frozenset()
    moves = []
    for axis, (a, b) in enumerate(zip(start, stop, strict=True)):
        size, steps = topology.shape[axis], b - a
        around = [s for s in (steps - size, steps, steps + size) if topology.wrap[axis]] or [steps]
        least = min(map(abs, around))
        if least:
            moves.append([(axis, s) for s in around if abs(s) == least])
    found: set[Link] = set()
    for first in range(len(moves)):
        order = moves[first:] + moves[:first]
        for way in {axis_moves[n % len(axis_moves)] for axis_moves in order[:1] for n in range(2)}:
            at = list(start)
            for axis, steps in (way, *(choices[0] for choices in order[1:])):
                direction = 1 if steps > 0 else -1
                for _ in range(abs(steps)):
                    found.add((number, _number(at, topology.shape), axis, direction))
                    at[axis] = (at[axis] + direction) % topology.shape[axis]
    return frozenset(found)


def load(messages: Iterable[tuple[int, int]], topology: Topology) -> int:
    """The most messages that go over one link, if all go at once.

    >>> load([(1, 3), (2, 4), (4, 3)], Topology("tpu v5e", (1, 4)))
    2
    """
    count: Counter[Link] = Counter()
    for source, target in messages:
        count.update(route(source, target, topology))
    return max(count.values(), default=1)


def _number(at: Sequence[int], shape: Sequence[int]) -> int:
    found = 0
    for place, size in zip(at, shape, strict=True):
        found = found * size + place
    return found

"""Collectives played message by message: who sends what over which link, round by round, with the data they carry."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

Chip = tuple[int, ...]
Link = tuple[Chip, Chip, int]  # from, to, and which way round: in a ring of two both ways lead to the same chip
Part = tuple[object, ...]
Message = tuple[Chip, Chip, int, Part, Fraction]  # from, to, direction, what, share of V


def chips(lengths: Sequence[int]) -> list[Chip]:
    return list(product(*map(range, lengths)))


def neighbour(chip: Chip, axis: int, way: int, lengths: Sequence[int], ring: bool) -> Chip | None:
    moved = chip[axis] + way
    if not 0 <= moved < lengths[axis]:
        if not ring:
            return None
        moved %= lengths[axis]
    return (*chip[:axis], moved, *chip[axis + 1 :])


@dataclass
class Played:
    """What was sent: for each round the share of V that crossed each link."""

    rounds: list[Counter[Link]] = field(default_factory=list)

    @property
    def bandwidth(self) -> Fraction:
        """Time in units of V over a link's bandwidth, a round lasting as long as its busiest link."""
        return sum((max(one.values(), default=Fraction(0)) for one in self.rounds), Fraction(0))

    @property
    def latency(self) -> int:
        return len(self.rounds)


def play_gather(schedule: Iterable[Sequence[Message]], holds: dict[Chip, set[Part]]) -> Played:
    """Send; a chip may pass on what it had when the round began."""
    played = Played()
    for messages in schedule:
        had = {chip: set(parts) for chip, parts in holds.items()}
        load: Counter[Link] = Counter()
        for source, target, way, part, share in messages:
            assert part in had[source], f"{source} sends {part}, which it does not have"
            holds[target].add(part)
            load[source, target, way] += share
        played.rounds.append(load)
    return played


def play_reduce(
    schedule: Iterable[Sequence[Message]], everyone: Sequence[Chip], parts: Iterable[Part]
) -> tuple[Played, dict[Part, dict[Chip, frozenset[Chip]]]]:
    """Send partial sums; a summand must never be added twice. A chip that sent its sum has it no more."""
    sums = {part: {chip: frozenset([chip]) for chip in everyone} for part in parts}
    played = Played()
    for messages in schedule:
        load: Counter[Link] = Counter()
        arriving: list[tuple[Part, Chip, frozenset[Chip]]] = []
        for source, target, way, part, share in messages:
            arriving.append((part, target, sums[part][source]))
            sums[part][source] = frozenset()
            load[source, target, way] += share
        for part, target, summands in arriving:
            assert not sums[part][target] & summands, f"{target} would count summands of {part} twice"
            sums[part][target] |= summands
        played.rounds.append(load)
    return played, sums


def reversed_schedule(schedule: Sequence[Sequence[Message]]) -> list[list[Message]]:
    """A reduce-scatter is an all-gather run backward: each message the other way, in reverse order."""
    return [[(t, s, -way, part, share) for s, t, way, part, share in messages] for messages in reversed(schedule)]


def axis_rounds(
    lengths: Sequence[int], axis: int, ring: bool, holds: dict[Chip, set[Part]], share: Fraction
) -> list[list[Message]]:
    """All-gather along one axis, in every row of it at once, both ways. ``share`` is the size of a part."""
    size, everyone = lengths[axis], chips(lengths)
    rounds: list[list[Message]] = []
    for number in range(1, (size // 2 if ring else size - 1) + 1):
        messages: list[Message] = []
        for chip in everyone:
            for way in (1, -1):
                target = neighbour(chip, axis, way, lengths, ring)
                at = chip[axis] - way * (number - 1)
                if target is None or not (ring or 0 <= at < size):
                    continue
                origin = (*chip[:axis], at % size, *chip[axis + 1 :])
                parts = sorted(holds[origin], key=repr)
                if ring and 2 * number == size:  # the opposite chip gets half from either side
                    parts = parts[::2] if way == 1 else parts[1::2]
                messages += [(chip, target, way, part, share) for part in parts]
        rounds.append(messages)
    return rounds


def gather_schedule(lengths: Sequence[int], rings: Sequence[bool]) -> tuple[list[list[Message]], dict[Chip, set[Part]]]:
    """All-gather over a square torus or grid: as many colours as axes, each colour taking the axes in its own
    order.
    """
    axes, everyone = len(lengths), chips(lengths)
    assert len(set(lengths)) == 1, "colours are balanced only where axes are equal"
    share = Fraction(1, 2 * axes * len(everyone))
    start = {chip: {(chip, colour, half) for colour in range(axes) for half in range(2)} for chip in everyone}
    holds = {chip: set(parts) for chip, parts in start.items()}
    schedule: list[list[Message]] = []
    for phase in range(axes):
        at_once = []
        for colour in range(axes):
            axis = (colour + phase) % axes
            mine = {chip: {part for part in parts if part[1] == colour} for chip, parts in holds.items()}
            at_once.append(axis_rounds(lengths, axis, rings[axis], mine, share))
        for rounds in zip(*at_once, strict=True):
            schedule.append([message for messages in rounds for message in messages])
        for messages in schedule[-len(at_once[0]) :]:
            for _, target, _, part, _ in messages:
                holds[target].add(part)
    return schedule, start


def chain_all_reduce(size: int, chunks: int) -> tuple[Played, bool]:
    """On a line: chunk k leaves chip i upward at step k + i, and comes down as soon as it is whole."""
    steps: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for chunk in range(chunks):
        for i in range(size - 1):
            steps[chunk + i].append((i, i + 1, chunk))
            steps[chunk + size - 1 + i].append((size - 1 - i, size - 2 - i, chunk))
    sums = [[{i} for _ in range(chunks)] for i in range(size)]
    played = Played()
    for number in sorted(steps):
        load: Counter[Link] = Counter()
        arriving = []
        for source, target, chunk in steps[number]:
            arriving.append((target, chunk, set(sums[source][chunk])))
            load[(source,), (target,), target - source] += Fraction(1, chunks)
        for target, chunk, summands in arriving:
            sums[target][chunk] |= summands
        played.rounds.append(load)
    return played, all(len(summands) == size for row in sums for summands in row)


# Messages that are routed: each in flits, over a shortest way, one flit per link and step.


def route(
    source: Chip, target: Chip, lengths: Sequence[int], rings: Sequence[bool], order: Sequence[int], flit: int
) -> list[Link]:
    """Axis by axis; flits to an opposite chip take turns in going either way."""
    path: list[Link] = []
    here = source
    for axis in order:
        ahead = target[axis] - here[axis]
        if rings[axis]:
            size = lengths[axis]
            ahead %= size
            if 2 * ahead > size or (2 * ahead == size and flit % 2):
                ahead -= size
        way = 1 if ahead > 0 else -1
        for _ in range(abs(ahead)):
            there = neighbour(here, axis, way, lengths, rings[axis])
            assert there is not None
            path.append((here, there, way * (axis + 1)))
            here = there
    assert here == target
    return path


def play_routed(paths: Sequence[list[Link]]) -> tuple[int, int]:
    """The busiest link's flits, and the step at which the last flit arrives if links serve the farthest-to-go
    first.
    """
    load = Counter(link for path in paths for link in path)
    waiting: dict[Link, list[tuple[int, int, int]]] = defaultdict(list)
    for number, path in enumerate(paths):
        if path:
            heapq.heappush(waiting[path[0]], (-len(path), number, 0))
    step = 0
    while any(waiting.values()):
        step += 1
        moved = [heapq.heappop(queue) for queue in waiting.values() if queue]
        for _, number, at in moved:
            if at + 1 < len(paths[number]):
                left = len(paths[number]) - at - 1
                heapq.heappush(waiting[paths[number][at + 1]], (-left, number, at + 1))
    return max(load.values(), default=0), step

"""Schedules: what happens next, where several things may. Each is a legal order of one run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class TaskSchedule:
    """In order: tasks run until they wait; copies are over in the order they were started, as late as possible.

    ``links_in_order``: whether copies on one link are known to arrive in the order they were sent.
    ``interrupts``: tasks may be interrupted wherever they signal, wait or copy.
    ``in_turn``: the first ready task, else the copy that is over first, without asking ``choose``.
    ``in_parts``: a copy's read and write are two things that happen.
    """

    name = "fifo"
    in_turn = True
    interrupts = False
    in_parts = False

    def __init__(self, links_in_order: bool = False) -> None:
        self.links_in_order = links_in_order
        self.decisions = 0

    def choose(self, tasks: Sequence[Any], copies: Sequence[Any]) -> Any:
        """The task to run or the copy to move on."""
        self.decisions += 1
        return tasks[0] if tasks else copies[0]

    def order(self, axis: int, size: int) -> Sequence[int]:
        """In which order the steps along a parallel axis of the grid are run."""
        return range(size)


class Adversarial(TaskSchedule):
    """Copies are over as late as possible, the newest first."""

    name = "adversarial"
    in_turn = False

    def choose(self, tasks: Sequence[Any], copies: Sequence[Any]) -> Any:
        self.decisions += 1
        return tasks[0] if tasks else copies[-1]

    def order(self, axis: int, size: int) -> Sequence[int]:
        return range(size)[::-1]


class Seeded(TaskSchedule):
    """Anything that may happen next is equally likely; the same seed gives the same run."""

    in_turn = False
    interrupts = True
    in_parts = True

    def __init__(self, seed: int, links_in_order: bool = False) -> None:
        super().__init__(links_in_order)
        self.name = f"seed {seed}"
        self.random = random.Random(seed)

    def choose(self, tasks: Sequence[Any], copies: Sequence[Any]) -> Any:
        self.decisions += 1
        n = self.random.randrange(len(tasks) + len(copies))
        return tasks[n] if n < len(tasks) else copies[n - len(tasks)]

    def order(self, axis: int, size: int) -> Sequence[int]:
        return random.Random(f"{self.name} axis {axis}").sample(range(size), size)


class Delayed(TaskSchedule):
    """As in order, but at the decisions in ``delays`` what would have come first is passed over."""

    in_turn = False
    interrupts = True
    in_parts = True

    def __init__(self, delays: frozenset[int], links_in_order: bool = False) -> None:
        super().__init__(links_in_order)
        self.name = f"delays {sorted(delays)}"
        self.delays = delays

    def choose(self, tasks: Sequence[Any], copies: Sequence[Any]) -> Any:
        late = self.decisions in self.delays
        self.decisions += 1
        if late and len(tasks) + len(copies) > 1:
            return tasks[1] if len(tasks) > 1 else copies[0] if tasks else copies[1]
        return tasks[0] if tasks else copies[0]


def nth(number: int, seed: int, decisions: int, links_in_order: bool) -> TaskSchedule:
    """Schedule ``number`` of an exploration: in order, adversarial, then by turns one or two delays and random ones.

    ``decisions`` is how many the run in order had to make; the delays are spread over them.
    """
    if number == 0:
        return TaskSchedule(links_in_order)
    if number == 1 and not links_in_order:
        return Adversarial()
    if number % 2 == 0:
        k = number // 2 - 1
        golden = 0.6180339887498949  # multiples of it, mod 1, fill an interval evenly
        points = {int((k * golden) % 1.0 * decisions)}
        if number % 4 == 0:
            points.add(int((k * golden * golden) % 1.0 * decisions))
        return Delayed(frozenset(points), links_in_order)
    return Seeded(seed * 1_000_003 + number, links_in_order)

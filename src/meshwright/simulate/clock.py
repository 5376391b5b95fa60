"""The event clock: when tasks start that wait for each other and share the parts of a machine.

A task starts as soon as those it waits for are done and every unit it needs is free; of several that could have a unit
at a moment, the most urgent gets it. What a unit is, the clock does not ask: the matrix unit of a chip, its port, a
link between two chips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

Follows = Sequence[Sequence[tuple[int, float]]]  # for each task those that wait for it, and how long after its start
Units = Mapping[Any, float]  # what a task keeps busy, and for how long


def start_times(
    seconds: Sequence[float],
    follows: Follows,
    units: Sequence[Units],
    priority: Sequence[float] | None = None,
    window: int | None = None,
) -> list[float]:
    """When each task starts; a task comes later in the lists than those it waits for.

    Of tasks that want the same unit the one with the least ``priority`` goes first; without priorities, the one that
    has been ready longest. Among equals it is the first in the lists. A task waits for all those that come ``window``
    or more before it to be done.

    The second task is the most urgent on the link; the third may start one second after the first is done:

    >>> start_times([2, 4, 1], [[(2, 3)], [], []], [{"port": 1, "link": 2}, {"link": 4}, {}], priority=[1, 0, 2])
    [4.0, 0.0, 7.0]
    """
    count = len(follows)
    limit = count if window is None else min(window, count)
    if limit == count and not any(units):
        return _unhindered(follows)
    waits = [0] * limit + [1] * (count - limit)
    for others in follows:
        for after, _ in others:
            waits[after] += 1
    ready, starts = [0.0] * count, [-1.0] * count
    free: dict[Any, float] = {}
    # Tasks that wait for the same units stand in one queue: its head alone is tried when they may be free.
    queues: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
    queued: dict[int, list[tuple[float, int]]] = {}
    heap = [(0.0, 0.0 if priority is None else priority[n], n) for n in range(count) if not waits[n]]
    heapify(heap)
    first, done = 0, 0.0  # all tasks before the first have started, and are done then
    while heap:
        at, urgency, n = heappop(heap)
        needed = units[n]
        if needed:
            queue = queued.get(n) if queued else None
            if starts[n] >= 0.0 or (queue is not None and queue[0][1] != n):
                continue  # it has started; or it is tried again as the head
            later = at
            for unit in needed:
                until = free.get(unit, 0.0)
                if until > later:
                    later = until
            if later > at:
                if queue is None:
                    queue = queued[n] = queues.setdefault(tuple(needed), [])
                    heappush(queue, (urgency, n))
                if queue[0][1] == n:
                    heappush(heap, (later, urgency, n))
                continue
            for unit, busy in needed.items():
                free[unit] = until = at + busy
                if until > later:
                    later = until
            if queue is not None:
                heappop(queue)
                del queued[n]
                if queue:
                    heappush(heap, (later, *queue[0]))
        starts[n] = at
        for after, delay in follows[n]:
            until = at + delay
            if until > ready[after]:
                ready[after] = until
            waits[after] -= 1
            if not waits[after]:
                since = ready[after]
                heappush(heap, (since, since if priority is None else priority[after], after))
        if limit < count:
            while first < count and starts[first] >= 0.0:
                done = max(done, starts[first] + seconds[first])
                after = first + limit
                first += 1
                if after < count:
                    ready[after] = since = max(ready[after], done)
                    waits[after] -= 1
                    if not waits[after]:
                        heappush(heap, (since, since if priority is None else priority[after], after))
    return starts


def _unhindered(follows: Follows) -> list[float]:
    """When each task starts where none needs a unit: as soon as those it waits for are done."""
    starts = [0.0] * len(follows)
    for at, others in zip(starts, follows):
        for after, delay in others:
            until = at + delay
            if until > starts[after]:
                starts[after] = until
    return starts

"""The event clock against one that looks at every task at every moment."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

from meshwright.simulate.clock import Follows, start_times

Units = Sequence[dict[Hashable, float]]


def slowly(
    seconds: Sequence[float], follows: Follows, units: Units, priority: Sequence[float] | None, window: int
) -> list[float]:
    """The rule, said once more: at each moment, as often as it helps, the most urgent of all that could start does."""
    count = len(seconds)
    starts: dict[int, float] = {}
    free: dict[Hashable, float] = {}
    now = 0.0
    while len(starts) < count:
        since = {}
        for n in set(range(count)) - starts.keys():
            before = [(b, delay) for b in range(n) for after, delay in follows[b] if after == n]
            before += [(b, seconds[b]) for b in range(n - window + 1)]
            if all(b in starts for b, _ in before):
                since[n] = max((starts[b] + delay for b, delay in before), default=0.0)
        able = [n for n, at in since.items() if at <= now and all(free.get(u, 0.0) <= now for u in units[n])]
        if able:
            n = min(able, key=lambda n: (since[n] if priority is None else priority[n], n))
            starts[n] = now
            free.update((u, now + busy) for u, busy in units[n].items())
        else:
            now = min(t for t in (*since.values(), *free.values()) if t > now)
    return [starts[n] for n in range(count)]


def tasks(choose: random.Random) -> tuple[list[float], list[list[tuple[int, float]]], list[dict[Hashable, float]]]:
    """A random graph; many tasks take as long as others, and some no time."""
    count = choose.randint(1, 30)
    seconds = [choose.choice([0.0, 1.0, 2.0, choose.random()]) for _ in range(count)]
    follows: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for n in range(1, count):
        for before in {choose.randrange(max(0, n - 8), n) for _ in range(choose.randint(0, 3))}:
            follows[before].append((n, choose.choice([seconds[before], seconds[before], 0.5])))
    kinds = [["c"], ["c"], ["link"], ["link", "port"], ["c", "port"], []]
    units = [{u: choose.choice([s, s, 0.0]) for u in choose.choice(kinds)} for s in seconds]
    return seconds, follows, units


def test_the_clock_is_as_one_that_looks_at_every_task_at_every_moment():
    for seed in range(400):
        choose = random.Random(seed)
        seconds, follows, units = tasks(choose)
        window = choose.choice([1, 3, 8, 1000])
        for priority in (None, list(range(len(seconds))), [choose.random() for _ in seconds]):
            expected = slowly(seconds, follows, units, priority, window)
            assert start_times(seconds, follows, units, priority, window) == expected, seed


def test_where_nothing_is_shared_tasks_start_when_those_before_them_are_done():
    assert start_times([1, 2, 1], [[(1, 1), (2, 0.5)], [(2, 2)], []], [{}, {}, {}]) == [0, 1, 3]
    assert start_times([], [], []) == []


def test_many_that_wait_for_one_unit_do_not_each_try_whenever_it_is_free():
    count = 20_000
    found = start_times([1.0] * count, [[] for _ in range(count)], [{"link": 1.0}] * count)
    assert found == [float(n) for n in range(count)]

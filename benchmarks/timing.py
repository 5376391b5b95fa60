"""Measuring two ways of doing one thing in one run: interleaved, so that both meet the same machine.

>>> measured = compare(lambda: sum(range(10)), lambda: sum(range(10)), repeats=3)
>>> measured.ratio > 0
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

Job = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """Median seconds of one run of each side."""

    ours_seconds: float
    theirs_seconds: float

    @property
    def ratio(self) -> float:
        """Our time in units of theirs: below 1 we are faster."""
        return self.ours_seconds / self.theirs_seconds


@dataclass(frozen=True)
class Row:
    """One line of a benchmark. The ratio must not be above the bar."""

    name: str
    ours_seconds: float
    theirs_seconds: float
    ratio: float
    bar: float
    passed: bool


def seconds(job: Job, number: int = 1) -> float:
    """Seconds per run, measured once over ``number`` runs. The job itself waits for its result."""
    start = perf_counter()
    for _ in range(number):
        job()
    return (perf_counter() - start) / number


def runs_for(job: Job, at_least_seconds: float = 0.01) -> int:
    """How many runs in a row take long enough for the clock; also warms the job up."""
    number = 1
    while (taken := seconds(job, number) * number) < at_least_seconds:
        number = max(2 * number, min(100 * number, int(number * at_least_seconds / max(taken, 1e-9)) + 1))
    return number


def compare(ours: Job, theirs: Job, repeats: int = 15, at_least_seconds: float = 0.01) -> Measured:
    """The medians of ``repeats`` measurements of each job, taken in turns; who goes first alternates too."""
    jobs = (ours, theirs)
    for job in jobs:
        job()
    numbers = [runs_for(job, at_least_seconds) for job in jobs]
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            taken[side].append(seconds(jobs[side], numbers[side]))
    return Measured(median(taken[0]), median(taken[1]))


def row(name: str, measured: Measured, bar: float) -> Row:
    """A measurement held against its bar."""
    passed = measured.ratio <= bar
    return Row(name, measured.ours_seconds, measured.theirs_seconds, measured.ratio, bar, passed)


def show_time(value: float) -> str:
    """Three digits and a unit.

    >>> show_time(0.0123), show_time(4.5e-6)
    ('12.3 ms', '4.50 us')
    """
    for unit, scale in (("s ", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            digits = max(0, 2 - len(str(int(value / scale))) + 1)
            return f"{value / scale:.{digits}f} {unit}".rstrip()
    return f"{value * 1e9:.0f} ns"


def print_rows(rows: Sequence[Row], peer: str = "jax", ours: str = "meshwright") -> None:
    """A table, one line per row: both medians, the ratio, the bar and whether it is met."""
    width = max([len(r.name) for r in rows] + [4])
    print(f"{'':{width}}  {ours:>10}  {peer:>10}  {'ratio':>7}  {'bar':>7}")
    for r in rows:
        times = f"{show_time(r.ours_seconds):>10}  {show_time(r.theirs_seconds):>10}"
        print(f"{r.name:{width}}  {times}  {r.ratio:7.3f}  {r.bar:7.3f}  {'ok' if r.passed else 'MISSED'}")


def report(rows: Iterable[Row], *, as_json: bool = False, peer: str = "jax", **facts: Any) -> int:
    """Print the rows as a table or as JSON (with ``facts`` beside them); the exit status, 0 if every bar is met."""
    found = list(rows)
    if as_json:
        print(json.dumps({"peer": peer, **facts, "rows": [asdict(r) for r in found]}, indent=2))
    else:
        print_rows(found, peer)
    return 0 if all(r.passed for r in found) else 1

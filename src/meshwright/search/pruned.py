"""Estimates of many strategies: those that bounds do not rule out, the most promising first, on one process or many."""

from __future__ import annotations

import os
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from multiprocessing import get_start_method
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from meshwright.search.strategy import Estimate, Least
from meshwright.simulate.transformer.strategy import Strategy

ALONE_SECONDS = 1.0  # that a search takes before it starts processes
CHUNK = 16  # strategies that a process is given at once,
WHOLE_GROUP = 256  # and those of a group whose program takes long to read
AHEAD = 3  # chunks that wait for each process
MANY = 64  # chunks that are under way on a pool that does not say how many workers it has
ROUNDING = 1e-9
ROOM = 0.5  # of memory: what is bounded by no more is likely to fit
SLOWEST = 2.0  # times the fastest: beyond, the front of time and memory is not looked for


class Plan(Protocol):
    """A model under a strategy. It may have `bounds`, too, each closer than the one before, and dearer."""

    def peak_bytes(self) -> int: ...
    def least_seconds(self) -> float: ...
    def seconds(self) -> tuple[float, float]: ...


def bounds_of(plan: Any) -> Iterator[Least]:
    """Bounds on the time and memory of a plan, each closer than the one before."""
    if hasattr(plan, "bounds"):
        yield from plan.bounds()
    yield Least(0.0, plan.peak_bytes())
    yield Least(plan.least_seconds(), plan.peak_bytes())


class BoundedStrategy(NamedTuple):
    """A strategy with bounds from below on its seconds and bytes, 0 where nothing is known.

    Those of one ``group`` share programs, and are best estimated one after the other.
    """

    strategy: Strategy
    seconds: float = 0.0
    nbytes: int = 0
    group: Hashable = None


@dataclass
class Standing:
    """What a search has found so far, as far as it decides what is still worth a look.

    A strategy is not if it cannot be among the ``top`` fastest, and something found is faster with no more memory.
    """

    memory_bytes: float | None
    top: int
    fastest: list[float] = field(default_factory=list)
    front: list[tuple[float, int]] = field(default_factory=list)

    def add(self, found: Estimate) -> None:
        """Take note of an estimate."""
        seconds, peak = found.seconds, found.peak_bytes_per_device
        if not found.fits:
            return
        insort(self.fastest, seconds)
        del self.fastest[self.top :]
        if not any(s <= seconds and n <= peak for s, n in self.front):
            self.front = [(s, n) for s, n in self.front if s < seconds or n < peak] + [(seconds, peak)]

    def rules_out(self, seconds: float, nbytes: int) -> bool:
        """Whether what takes no less than that need not be estimated."""
        if self.memory_bytes is not None and nbytes > self.memory_bytes:
            return True
        seconds *= 1 - ROUNDING
        if len(self.fastest) < self.top or seconds <= self.fastest[-1]:
            return False
        return seconds > SLOWEST * self.fastest[0] or any(s < seconds and n <= nbytes for s, n in self.front)


@dataclass(frozen=True)
class Estimator:
    """Estimates candidates: all, or those that a standing does not rule out. It goes to other processes as it is."""

    planned: Callable[[Strategy], Plan]
    batch: int
    memory_bytes: float | None
    chunk_size: int = CHUNK

    @property
    def ahead(self) -> int:
        """Chunks that wait for each process: of large ones few, so that they know what those before have found."""
        return AHEAD if self.chunk_size == CHUNK else 1

    def one(self, candidate: BoundedStrategy, standing: Standing | None) -> Estimate | Least:
        """The estimate of a candidate, which the standing takes note of; if it is ruled out, the bound that does so."""
        least = Least(candidate.seconds, candidate.nbytes)
        if standing is not None and standing.rules_out(*least):
            return least
        plan = self.planned(candidate.strategy)
        for closer in bounds_of(plan) if standing is not None else ():
            least = Least(max(least.seconds, closer.seconds), closer.nbytes)
            if standing is not None and standing.rules_out(*least):
                return least
        (seconds, bubble), peak = plan.seconds(), plan.peak_bytes()
        fits = self.memory_bytes is None or peak <= self.memory_bytes
        found = Estimate(candidate.strategy, seconds, peak, self.batch / seconds, bubble, fits)
        if standing is not None:
            standing.add(found)
        return found

    def chunk(self, given: tuple[Sequence[BoundedStrategy], Standing | None]) -> list[Estimate | Least]:
        """The estimates of some candidates; what is found among them rules out others of them, too."""
        candidates, standing = given
        return [self.one(candidate, standing) for candidate in candidates]


Made = Iterator[tuple[BoundedStrategy, Estimate | Least]]


def estimates(
    make: Estimator,
    candidates: Sequence[BoundedStrategy],
    standing: Standing | None,
    executor: Any = None,
    workers: int | None = None,
) -> Made:
    """Each candidate with its estimate, or with the bound that rules it out, as they are made.

    Without an executor the first are estimated here, and the others, if it takes long, by ``workers`` processes.
    """
    todo = deque(_by_promise(candidates, standing) if standing is not None else candidates)
    workers = (_cores() if get_start_method() == "fork" else 1) if workers is None else workers
    if executor is not None:
        count = getattr(executor, "_max_workers", MANY)
        yield from _by_pool(make, _chunks(todo, make.chunk_size), standing, executor, make.ahead * count)
        return
    start = perf_counter()
    while todo and (workers < 2 or perf_counter() - start < ALONE_SECONDS):
        candidate = todo.popleft()
        yield candidate, make.one(candidate, standing)
    left = []
    for candidate in todo:
        if standing is not None and standing.rules_out(candidate.seconds, candidate.nbytes):
            yield candidate, Least(candidate.seconds, candidate.nbytes)
        else:
            left.append(candidate)
    if left:
        with ProcessPoolExecutor(min(workers, -(-len(left) // CHUNK))) as pool:
            yield from _by_pool(make, _chunks(left, make.chunk_size), standing, pool, make.ahead * workers)


def _by_promise(candidates: Sequence[BoundedStrategy], standing: Standing) -> list[BoundedStrategy]:
    """Candidates by their bounds on time, those that are likely to fit first; before all, one that is quickly planned,
    so that there is an answer soon, and something to rule others out with."""
    room = inf if standing.memory_bytes is None else ROOM * standing.memory_bytes
    found = sorted(candidates, key=lambda c: (c.nbytes > room, c.seconds))
    if found and not standing.fastest:
        near = [c for c in found if c.seconds <= SLOWEST * found[0].seconds and c.nbytes <= room] or found
        first = min(near, key=lambda c: (c.strategy.tensor, c.strategy.pipeline, c.nbytes))
        found.remove(first)
        found.insert(0, first)
    return found


def _chunks(candidates: Sequence[BoundedStrategy], size: int) -> Iterator[list[BoundedStrategy]]:
    """Candidates of one group together, the group of the most promising first."""
    groups: dict[Hashable, list[BoundedStrategy]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.group, []).append(candidate)
    for group in groups.values():
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _by_pool(
    make: Estimator, chunks: Iterator[list[BoundedStrategy]], standing: Standing | None, pool: Any, ahead: int
) -> Made:
    """The estimates of chunks by a pool, of which `submit` is used, or else `map`; ``ahead`` chunks are under way."""
    if not hasattr(pool, "submit"):
        while some := list(islice(chunks, ahead)):
            given = [_given(chunk, standing) for chunk in some]
            for chunk, (left, _), made in zip(some, given, pool.map(make.chunk, given), strict=True):
                yield from _taken(chunk, left, made, standing)
        return
    waiting: deque[tuple[list[BoundedStrategy], list[BoundedStrategy], Any]] = deque()
    try:
        for chunk in chunks:
            given_now = _given(chunk, standing)
            waiting.append((chunk, given_now[0], pool.submit(make.chunk, given_now) if given_now[0] else None))
            if len(waiting) >= ahead:
                yield from _taken(*_done(waiting.popleft()), standing)
        while waiting:
            yield from _taken(*_done(waiting.popleft()), standing)
    finally:
        for _, _, future in waiting:
            getattr(future, "cancel", bool)()


def _given(chunk: list[BoundedStrategy], standing: Standing | None) -> tuple[list[BoundedStrategy], Standing | None]:
    """What is left of a chunk, and a standing of its own to go on with."""
    if standing is None:
        return chunk, None
    left = [c for c in chunk if not standing.rules_out(c.seconds, c.nbytes)]
    return left, replace(standing, fastest=list(standing.fastest), front=list(standing.front))


def _done(
    one: tuple[list[BoundedStrategy], list[BoundedStrategy], Any],
) -> tuple[list[BoundedStrategy], list[BoundedStrategy], Any]:
    chunk, left, future = one
    return chunk, left, future.result() if future is not None else []


def _taken(
    chunk: list[BoundedStrategy],
    left: list[BoundedStrategy],
    made: Sequence[Estimate | Least],
    standing: Standing | None,
) -> Made:
    found = dict(zip(left, made, strict=True))
    for candidate in chunk:
        one = found.get(candidate, Least(candidate.seconds, candidate.nbytes))
        if isinstance(one, Estimate) and standing is not None:
            standing.add(one)
        yield candidate, one


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""One pool of threads for all that the NumPy engine does in parts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import pairwise
from typing import Any

EACH = 4  # parts per thread, so that nobody waits long for the last one that another thread is at


class _Pool:
    """The threads beside the one that asks, made when they are first needed."""

    executor: ThreadPoolExecutor | None = None


_pool = _Pool()


def _after_fork() -> None:
    _pool.executor = None  # whose threads are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def cpus() -> int:
    """How many threads can run at the same time in this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_all(calls: Sequence[Callable[[], Any]]) -> None:
    """Make the calls by this thread and the others of the pool: each takes the next one that nobody has begun, so that
    a thread which the machine lets wait keeps nobody waiting. They must not call this in turn: all threads could be
    waiting then.

    >>> found = []
    >>> run_all([lambda: found.append(1), lambda: found.append(2)])
    >>> sorted(found)
    [1, 2]
    """
    left = deque(calls)
    failures: list[Exception] = []

    def work() -> None:
        while left:
            try:
                call = left.popleft()
            except IndexError:  # another thread took it
                return
            try:
                call()
            except Exception as failure:
                failures.append(failure)

    begun: list[Future[Any]] = []
    for _ in range(min(len(calls), cpus()) - 1):
        if _pool.executor is None:
            _pool.executor = ThreadPoolExecutor(max(1, cpus() - 1), "meshwright")
        try:
            begun.append(_pool.executor.submit(copy_context().run, work))  # in which NumPy warns, or does not
        except RuntimeError:  # the interpreter is about to end, and starts no thread
            break
    try:
        work()
    finally:
        left.clear()  # if this thread was interrupted
        wait([one for one in begun if not one.cancel()])
    if failures:
        raise failures[0]


def in_parts(function: Callable[[slice], Any], size: int, parts: int, unit: int = 1) -> None:
    """Call ``function`` on each of about equal parts of ``range(size)``, of multiples of ``unit`` but for the last."""
    parts = max(1, min(parts, -(-size // unit)))
    bounds = [min(size, size * n // parts // unit * unit) for n in range(parts)] + [size]
    run_all([lambda part=slice(start, stop): function(part) for start, stop in pairwise(bounds)])  # type: ignore[misc]

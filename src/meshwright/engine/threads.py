"""One pool of threads for all that the NumPy engine does in parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise
from typing import Any


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
    """Make the calls at the same time, the first one in this thread. They must not call this in turn: all threads could
    be waiting then.

    >>> found = []
    >>> run_all([lambda: found.append(1), lambda: found.append(2)])
    >>> sorted(found)
    [1, 2]
    """
    futures: list[Future[Any]] = []
    here = list(calls[:1])
    for call in calls[1:]:
        if _pool.executor is None:
            _pool.executor = ThreadPoolExecutor(max(1, cpus() - 1), "meshwright")
        try:
            futures.append(_pool.executor.submit(copy_context().run, call))  # in which NumPy warns, or does not
        except RuntimeError:  # the interpreter is about to end, and starts no thread
            here.append(call)
    try:
        for call in here:
            call()
    finally:
        failures = [failure for failure in [future.exception() for future in futures] if failure is not None]
    if failures:
        raise failures[0]


def in_parts(function: Callable[[slice], Any], size: int, parts: int, unit: int = 1) -> None:
    """Call ``function`` on each of about equal parts of ``range(size)``, of multiples of ``unit`` but for the last."""
    parts = max(1, min(parts, -(-size // unit)))
    bounds = [min(size, size * n // parts // unit * unit) for n in range(parts)] + [size]
    run_all([lambda part=slice(start, stop): function(part) for start, stop in pairwise(bounds)])  # type: ignore[misc]

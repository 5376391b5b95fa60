"""A watch over kernels that do not come to an end: a thread that looks, a few times a second, whether they go on.

A body in an endless loop of Python never comes back to the machine. Its thread is sent an exception, which it meets at
the line where it is. Nothing is done for kernels that are quick: they are entered in a dict and taken out again.
"""

from __future__ import annotations

import ctypes
import os
import threading
from time import monotonic, sleep
from typing import Any, Protocol

SECONDS = 120.0  # that a body may take without anything to be seen of it
_PAUSE, _SHORT_PAUSE = 0.1, 0.001
_IDLE = 100  # pauses without a kernel, after which the thread ends


class Stopped(BaseException):
    """What a body meets that does not come to an end; no ``except Exception`` takes it."""


class WatchedMachine(Protocol):
    """What is watched: a machine."""

    actions: int
    steps: int


class Watched:
    """A part of the run of a machine in this thread, for at most ``seconds`` without an action or a step."""

    def __init__(self, machine: WatchedMachine, seconds: float) -> None:
        self.machine, self.seconds = machine, seconds
        self.thread = threading.get_ident()
        self.seen = (machine.actions, machine.steps)
        self.since: float | None = None
        self.sent = False

    def __enter__(self) -> None:
        _watch.active[id(self)] = self
        if not _watch.running:
            _watch.start()

    def __exit__(self, *_: Any) -> None:
        while True:
            try:
                with _watch.lock:
                    _watch.active.pop(id(self), None)
                    if self.sent:
                        _send(self.thread, None)
                return
            except Stopped:  # it came just now: nothing is to be stopped any more
                continue

    def look(self, now: float) -> None:
        """Stop it if nothing has happened for too long."""
        seen = (self.machine.actions, self.machine.steps)
        if self.since is None or seen != self.seen:
            self.since, self.seen, self.sent = now, seen, False
        elif now - self.since > self.seconds:
            self.sent = True
            _send(self.thread, Stopped)


def _send(thread: int, what: type[BaseException] | None) -> None:
    """Let a thread meet an exception at its next step; None takes back one that it has not met."""
    exception = None if what is None else ctypes.py_object(what)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


class _Watch:
    """The thread, and what it watches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active: dict[int, Watched] = {}
        self.running = False

    def start(self) -> None:
        with self.lock:
            if not self.running:
                self.running = True
                threading.Thread(target=self.run, name="meshwright kernels", daemon=True).start()

    def run(self) -> None:
        idle = 0
        while True:
            # A body may take the exception and go on; what it does between is short, so it is met there soon.
            sleep(_SHORT_PAUSE if any(one.sent for one in list(self.active.values())) else _PAUSE)
            with self.lock:
                idle = 0 if self.active else idle + 1
                if idle > _IDLE:
                    self.running = False
                    return
                now = monotonic()
                for one in list(self.active.values()):
                    one.look(now)


_watch = _Watch()


def _after_fork() -> None:
    """In a new process there is no thread."""
    _watch.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

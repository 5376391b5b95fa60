"""The mesh, the device, the engine and the processes that are current, kept apart from these so that asking for them
does not load them."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

current_mesh: ContextVar[Any] = ContextVar("current_mesh", default=None)
# What is traced as if it were written below a line of the user's: what was traced without it is another program.
written_below: ContextVar[Any] = ContextVar("written_below", default=None)

ENGINES = ("numpy", "xla", "xla-stacked")


class _CurrentEngine:
    name = "numpy"
    disabled = 0  # how many ``disable_jit`` are entered: jitted functions then run op by op


current_engine = _CurrentEngine()  # what runs programs that name no engine


class Processes:
    """The processes that run the same program together: this one alone, until `distributed.initialize`."""

    count = 1
    index = 0

    def exchange(self, what: str, data: bytes) -> list[bytes]:
        """What every process gives, in their order; waits until all have, and says for whom. ``what`` says why."""
        return [data]

    def lost(self, error: BaseException) -> BaseException:
        """The error to raise where a program on all processes fails with an error while it runs."""
        return error


class _CurrentProcesses:
    all = Processes()


current_processes = _CurrentProcesses()


class CurrentWidth:
    """Whether 64-bit types are kept, where asking costs least: `Config` says the same, and sets it."""

    __slots__ = ("wide",)

    def __init__(self) -> None:
        self.wide = False


current_width = CurrentWidth()


class _CurrentDevice(threading.local):
    place: Any = None  # of all threads without one of their own


class _DeviceChosen:
    ever = False  # by any thread: until then, nobody need look at its own


current_device = _CurrentDevice()  # where arrays go that are put nowhere: a `DefaultDevice`, or None for the first one
device_chosen = _DeviceChosen()


def set_for_all(place: Any) -> None:
    """Say where arrays go that are put nowhere, in threads that do not say it for themselves."""
    device_chosen.ever = True
    _CurrentDevice.place = place


def set_here(place: Any) -> None:
    """Say where arrays go that this thread puts nowhere."""
    device_chosen.ever = True
    current_device.place = place

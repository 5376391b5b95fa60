"""Tasks: one per core of every device, each running the kernel's body."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from meshwright.core.source import Source, here, user_source
from meshwright.kernel.run.faults import KernelError

if TYPE_CHECKING:
    from meshwright.kernel.language.semaphores import Semaphore
    from meshwright.kernel.run.machine import KernelMachine


class KernelTask:
    """The run of a kernel's body on one core of a device."""

    __slots__ = (
        "clock", "coordinates", "core", "device", "done", "entity", "generator", "greenlet", "grids", "looks",
        "machine", "need", "regions", "scopes", "seen", "steps", "time", "units", "used", "waiting", "why", "windows",
    )  # fmt: skip

    def __init__(
        self, machine: KernelMachine, entity: int, device: int, core: int, coordinates: dict[str, int]
    ) -> None:
        self.machine = machine
        self.entity = entity
        self.device = device
        self.core = core
        self.coordinates = coordinates
        self.greenlet: Any = None
        self.clock: Any = None  # what this task knows of every other, when races are looked for
        self.time = 0.0
        self.waiting: Semaphore | None = None
        self.need = 0
        self.why = ""
        self.done = False
        self.seen: dict[Semaphore, int] = {}  # the values of semaphores it has looked at
        self.looks = 0  # how often in vain
        self.grids: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # indices and sizes, innermost last
        self.scopes: list[Any] = []  # what is allocated, in order: positions are addresses
        self.regions: list[str] = []  # names given by ``trace``
        self.windows: dict[int, Any] = {}  # of pipelines whose memory their parent owns
        self.steps: list[tuple[int, tuple[int, ...]]] = []  # of the grid's: the first event, where along parallel axes
        self.units: dict[int, Any] = {}  # matrix units that are used step by step
        self.generator: Any = None  # of random numbers, once it is seeded
        self.used: dict[Any, int] = {}  # bytes in use by space

    @property
    def name(self) -> str:
        """``device 3``, with its coordinates on a mesh and its core where there are several."""
        return self.machine.device_name(self.device, self.core)

    def source(self) -> Source | None:
        """The user's line being run, or the line of the call that started the kernel."""
        return user_source() or self.machine.home


class _TaskState(threading.local):
    task: KernelTask | None = None


state = _TaskState()


def current(what: str) -> KernelTask:
    """The task being run; ``what`` says in an error what was asked for."""
    task = state.task
    if task is None:
        raise KernelError(
            f"{what} is used outside a kernel.",
            where=here(),
            why="it needs the device and the grid step that the body is run for",
            fix="call it in the function given to pl.pallas_call",
        )
    return task

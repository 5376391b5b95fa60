"""What happened before what: vector clocks of tasks, and who last touched each element of memory.

Every task counts its events; its *clock* says, for each task, up to which event it knows that task to have come. An
event ``n`` of task ``t`` happened before what a task does now if and only if ``clock[t] >= n``.

A copy is no task: it reads and writes at any time between its start and its semaphore's signal. It knows what its
starter knew. Others know it is over by one way only: somebody waited for the signal, and they know of that wait. So a
copy carries the event of the wait that proved its read over, and that of the wait that proved its write over.

Beside every buffer lies its *shadow*: per element the last write, and per reader the last read. An access compares and
marks the elements it touches, all at once, so its price is that of the elements, however many accesses there were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from meshwright.core.source import Source
from meshwright.kernel.faults import BarrierError, RaceError, UninitializedError
from meshwright.kernel.memory import Buffer, Data, Path, mark, put

if TYPE_CHECKING:
    from meshwright.kernel.tasks import Task
    from meshwright.kernel.transfers import Transfer

_EVENT_BITS = 40
_EVENT_MASK = (1 << _EVENT_BITS) - 1
_COPY = 1 << 61  # a write by a copy: the rest is the copy's number
_UNDEFINED = 1 << 62  # written, but with what nobody had written
INITIAL = 1 << _EVENT_BITS  # written before the kernel started


class Event(NamedTuple):
    """Something a task did: ``reads`` or ``writes``, and the line."""

    verb: str
    source: Source | None


class Access(NamedTuple):
    """A read or a write: by whom, and at which line."""

    who: str
    verb: str
    source: Source | None

    def show(self) -> str:
        return f"{self.source.show() if self.source else 'a line of the call'}   ({self.who} {self.verb})"


class Race(NamedTuple):
    """Two accesses to the same memory that nothing orders."""

    memory: str
    device: str
    first: Access
    second: Access
    why: str
    copy: Any


def race_error(races: list[Race]) -> RaceError:
    """The error for what was found: the first race in full, and the lines of the others."""
    race = races[0]
    more = "".join(
        f"\nalso  {other.first.show()}\nand   {other.second.show()}\n      {other.why}" for other in races[1:8]
    )
    error = RaceError(
        f"Two accesses to {race.memory} of {race.device} race."
        if len(races) == 1
        else f"{len(races)} pairs of accesses race; first, two to {race.memory} of {race.device}.",
        where=f"{race.first.show()}\n{race.second.show()}",
        why=race.why + more,
        fix="signal a semaphore after the first, and wait for it before the second"
        if race.copy is None
        else "wait for the copy, on a semaphore of its own, before the other access",
    )
    error.races = tuple(races)
    return error


class Actor(Protocol):
    """A task or a copy: something that knows of events."""

    clock: Any


class History:
    """All events of a run."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.events: list[list[Event]] = [[Event("starts", None)] for _ in tasks]
        self.copies: list[Transfer] = []
        self.races: dict[Any, Race] = {}  # by the two lines

    def event(self, task: Task, verb: str, source: Source | None) -> int:
        """Count an event of a task."""
        events = self.events[task.entity]
        number = len(events)
        events.append(Event(verb, source))
        task.clock[task.entity] = number
        return number

    def knows_write(self, who: Actor, copy: Transfer) -> bool:
        """Whether ``who`` comes after a copy's write."""
        over = copy.write_over
        return over is not None and bool(who.clock[over[0]] >= over[1])

    def knows_read(self, who: Actor, copy: Transfer) -> bool:
        """Whether ``who`` comes after a copy's read; what was written had been read."""
        over = copy.read_over
        return (over is not None and bool(who.clock[over[0]] >= over[1])) or self.knows_write(who, copy)

    def require_birth(self, copy_clock: Any, owner: Task, birth: int, what: str, source: Source | None) -> None:
        """Refuse a use of another device's memory before that device is known to have made it."""
        if copy_clock[owner.entity] < birth:
            raise BarrierError(
                f"{what} before {owner.name} is known to be ready.",
                where=source.show() if source else "",
                why=f"nothing orders it after {owner.name} "
                + ("entering the kernel" if birth <= 1 else "allocating that memory")
                + ", so it may overwrite memory that is still used for something else",
                fix="barrier = pltpu.get_barrier_semaphore()\n"
                "pltpu.semaphore_signal(barrier, device_id=neighbor)\n"
                "pltpu.semaphore_wait(barrier)",
            )


class Shadow:
    """Who last wrote and read each element of a buffer."""

    __slots__ = ("buffer", "copies_reading", "history", "reads", "scratch", "writes")

    def __init__(self, history: History, buffer: Buffer, initialized: bool) -> None:
        self.history = history
        self.buffer = buffer
        shape = buffer.data.shape
        self.writes: Data = np.full(shape, INITIAL, np.int64) if initialized else np.zeros(shape, np.int64)
        self.reads: dict[int, Data] = {}
        self.copies_reading: list[tuple[Transfer, Path]] = []
        self.scratch: Data | None = None

    # Accesses of tasks

    def read_by_task(self, task: Task, path: Path) -> None:
        """A load."""
        source = task.source()
        view = mark(self.writes, path)
        for value in _distinct(view):
            if value == 0 or value & _UNDEFINED:
                if self._coming(task, path, source):
                    continue
                raise UninitializedError(
                    f"{task.name} reads memory that nothing was written to.",
                    where=source.show() if source else "",
                    why=f"{int(np.count_nonzero((view == 0) | (view & _UNDEFINED != 0)))} of the {view.size} elements"
                    f" of {self.buffer.label} it reads have no value yet",
                    fix="store to it first, or wait for the copy that fills it",
                )
            self._after_write(task, value, "reads", task.name, source)
        number = self.history.event(task, "reads", source)
        put(self._layer(task.entity), path, number)

    def _coming(self, task: Task, path: Path, source: Source | None) -> bool:
        """Whether a copy under way will write what a task reads: that is a race, lost this time."""
        for copy in task.machine.pending:
            if copy.lands_in(self.buffer) and self._overlap(path, copy.dst.path):
                self._race(copy.name, "writes", copy.source, task.name, "reads", source, copy)
                return True
        return False

    def write_by_task(self, task: Task, path: Path) -> None:
        """A store."""
        source = task.source()
        view = mark(self.writes, path)
        for value in _distinct(view):
            self._after_write(task, value, "writes", task.name, source)
        self._after_reads(task, path, task.entity, "writes", task.name, source)
        put(self.writes, path, (task.entity + 1) << _EVENT_BITS | self.history.event(task, "writes", source))

    # Accesses of copies

    def read_by_copy(self, copy: Transfer, path: Path) -> Data | None:
        """The source of a copy; where it has no value, which of its elements have none."""
        view = mark(self.writes, path)
        undefined = False
        for value in _distinct(view):
            undefined = undefined or value == 0 or value & _UNDEFINED != 0
            self._after_write(copy, value, "reads", copy.name, copy.source)
        self.copies_reading.append((copy, path))
        return (view == 0) | (view & _UNDEFINED != 0) if undefined else None

    def write_by_copy(self, copy: Transfer, path: Path, undefined: Data | None) -> None:
        """The destination of a copy."""
        view = mark(self.writes, path)
        for value in _distinct(view):
            self._after_write(copy, value, "writes", copy.name, copy.source)
        self._after_reads(copy, path, -1, "writes", copy.name, copy.source)
        view[...] = _COPY | copy.number
        if undefined is not None:
            view[undefined] |= _UNDEFINED

    def read_is_over(self, copy: Transfer, task: Task, number: int) -> None:
        """A task waited until a copy had read: from now on it is as if the task had read."""
        for n, (other, path) in enumerate(self.copies_reading):
            if other is copy:
                del self.copies_reading[n]
                layer = mark(self._layer(task.entity), path)
                np.maximum(layer, number, out=layer)
                return

    def fill(self, path: Path) -> None:
        """Padding: elements that have a value, though an arbitrary one."""
        mark(self.writes, path)[...] = INITIAL

    # Order

    def _layer(self, entity: int) -> Data:
        layer = self.reads.get(entity)
        if layer is None:
            layer = self.reads[entity] = np.zeros(self.buffer.data.shape, np.int64)
        return layer

    def _after_write(self, who: Any, value: int, verb: str, name: str, source: Source | None) -> None:
        """Require that the last write, as marked by ``value``, happened before what ``who`` does."""
        value &= ~_UNDEFINED
        if value & _COPY:
            copy = self.history.copies[value & ~_COPY]
            if copy is not who and not self.history.knows_write(who, copy):
                self._race(copy.name, "writes", copy.source, name, verb, source, copy)
        elif value:
            entity, number = (value >> _EVENT_BITS) - 1, value & _EVENT_MASK
            if who.clock[entity] < number:
                event = self.history.events[entity][number]
                self._race(self.history.tasks[entity].name, event.verb, event.source, name, verb, source, None)

    def _after_reads(self, who: Any, path: Path, own: int, verb: str, name: str, source: Source | None) -> None:
        for entity, layer in self.reads.items():
            if entity == own:
                continue
            last = int(mark(layer, path).max(initial=0))
            if last > who.clock[entity]:
                event = self.history.events[entity][last]
                self._race(self.history.tasks[entity].name, "reads", event.source, name, verb, source, None)
        for copy, read in self.copies_reading:
            if copy is not who and not self.history.knows_read(who, copy) and self._overlap(path, read):
                self._race(copy.name, "reads", copy.source, name, verb, source, copy)

    def _overlap(self, a: Path, b: Path) -> bool:
        if self.scratch is None:
            self.scratch = np.zeros(self.buffer.data.shape, np.int8)
        one, other = mark(self.scratch, a), mark(self.scratch, b)
        if not np.may_share_memory(one, other):
            return False
        one[...] = 1
        found = bool(other.any())
        one[...] = 0
        return found

    def _race(
        self, first: str, did: str, at: Source | None, second: str, does: str, source: Source | None, copy: Any
    ) -> None:
        key = (at, did, source, does)
        races = self.history.races
        if key in races:
            return
        device = self.history.tasks[0].machine.device_name(self.buffer.device, self.buffer.core)
        why = "no signal, wait or barrier orders the two" if copy is None else copy.never_proved_over(did)
        races[key] = Race(self.buffer.label, device, Access(first, did, at), Access(second, does, source), why, copy)


def _distinct(view: Data) -> tuple[int, ...]:
    """The values in an array of marks: mostly one."""
    if view.size == 0:
        return ()
    first = view.flat[0]
    if (view == first).all():
        return (int(first),)
    return tuple(int(x) for x in np.unique(view))

"""What happened before what: vector clocks of tasks, and who last touched each element of memory.

Every task counts its events; its *clock* says, for each task, up to which event it knows that task to have come. An
event ``n`` of task ``t`` happened before what a task does now if and only if ``clock[t] >= n``.

A copy is no task: it reads and writes at any time between its start and its semaphore's signal. It knows what its
starter knew. Others know it is over by one way only: somebody waited for the signal, and they know of that wait. So a
copy carries the event of the wait that proved its read over, and that of the wait that proved its write over.

Every buffer has an `AccessChecker` (``races.checker``): who last wrote and read each part. An access compares and
records the part it touches, so its price does not depend on how many accesses there were before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from meshwright.core.source import Source
from meshwright.kernel.run.faults import BarrierError, RaceError

if TYPE_CHECKING:
    from meshwright.kernel.language.semaphores import Semaphore, Signal
    from meshwright.kernel.run.tasks import KernelTask
    from meshwright.kernel.run.transfers import Transfer


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


def _inset(text: str) -> str:
    return text.replace("\n", "\n      ")


def race_error(races: list[Race]) -> RaceError:
    """The error for what was found: the first race in full, and the lines of the others."""
    race = races[0]
    more = "".join(
        f"\nalso  {other.first.show()}\nand   {other.second.show()}\n      {_inset(other.why)}" for other in races[1:8]
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
    """All events of a run; ``in_order``, of one in which copies on one link are over in the order they were started."""

    def __init__(self, tasks: list[KernelTask], in_order: bool = False) -> None:
        self.tasks = tasks
        self.in_order = in_order
        self.links: dict[Any, deque[Transfer]] = {}  # where in order, the copies that are not known to be over
        self.events: list[list[Source | None]] = [[None] for _ in tasks]  # of each task, the line of each event
        self.copies: list[Transfer] = []
        self.races: dict[Any, Race] = {}  # by the two lines

    def event(self, task: KernelTask, source: Source | None) -> int:
        """Count an event of a task."""
        events = self.events[task.entity]
        number = len(events)
        events.append(source)
        task.clock[task.entity] = number
        return number

    def start(self, copy: Transfer) -> None:
        """A copy starts, knowing what its starter knows."""
        copy.clock = copy.starter.clock.copy()
        self.copies.append(copy)
        if self.in_order:
            self.links.setdefault(copy.link, deque()).append(copy)

    def over(self, task: KernelTask, number: int, copy: Transfer, part: str) -> None:
        """A wait of a task, its event ``number``, has proved a part of a copy over; on a link in order, others, too."""
        self._over(task, number, copy, part)
        link = self.links.get(copy.link) if self.in_order else None
        if not link:
            return
        for earlier in link:
            if earlier.number >= copy.number:
                break
            if not (earlier.write_over if part == "write" else earlier.read_over):
                self._over(task, number, earlier, part)
        while link and link[0].write_over and (link[0].read_over or link[0].send is None):
            link.popleft()

    def _over(self, task: KernelTask, number: int, copy: Transfer, part: str) -> None:
        if part != "read":
            copy.write_over = copy.write_over or (task.entity, number)
        if part != "write":
            copy.read_over = (task.entity, number)

    def follows(self, who: Any, copy: Transfer) -> bool:
        """Whether ``who`` is a copy that a link in order lets come after another."""
        return (
            self.in_order
            and who.__class__ is copy.__class__
            and who.link == copy.link
            and bool(who.number > copy.number)
        )

    def knows_write(self, who: Actor, copy: Transfer) -> bool:
        """Whether ``who`` comes after a copy's write."""
        over = copy.write_over
        return over is not None and bool(who.clock[over[0]] >= over[1])

    def knows_read(self, who: Actor, copy: Transfer) -> bool:
        """Whether ``who`` comes after a copy's read; what was written had been read."""
        over = copy.read_over
        return (
            self.follows(who, copy)
            or (over is not None and bool(who.clock[over[0]] >= over[1]))
            or self.knows_write(who, copy)
        )

    def require_passed(self, task: KernelTask, semaphore: Semaphore, source: Source | None) -> None:
        """Refuse to signal a barrier again before the waiting device is known to have passed it."""
        owner, number, senders = semaphore.passed or (0, 0, frozenset())
        if task.entity not in senders or task.clock[owner] >= number:
            return
        raise self._too_early(self.tasks[owner], task, senders, semaphore, source)

    def require_once(self, task: KernelTask, semaphore: Semaphore) -> None:
        """Refuse a barrier whose wait may have been for two signals of one device in the place of another's."""
        sent: dict[int, list[Signal]] = {}
        for signal in semaphore.signals():
            if signal.copy is None and signal.sender is not task:
                sent.setdefault(signal.sender.entity, []).append(signal)
        again = [signals for signals in sent.values() if len(signals) > 1]
        if len(sent) > 1 and again:
            raise self._too_early(task, again[0][1].sender, frozenset(sent), semaphore, again[0][1].source)

    def _too_early(
        self, owner: KernelTask, task: KernelTask, senders: frozenset[int], semaphore: Semaphore, source: Source | None
    ) -> BarrierError:
        waiter, others = owner.name, [self.tasks[one].name for one in sorted(senders) if one != task.entity]
        return BarrierError(
            f"{semaphore.title} of {waiter} is signalled again before {waiter} is known to have passed it.",
            where=source.show() if source else "",
            why=f"nothing orders this signal of {task.name} after the wait of {waiter} for {task.name} and "
            f"{', '.join(others[:3])}:\nit may come before that of {others[0]} and let {waiter} pass without it",
            fix="a semaphore of its own for each barrier: pl.run_scoped(second_barrier, pltpu.SemaphoreType.REGULAR)",
        )

    def require_birth(self, copy_clock: Any, owner: KernelTask, birth: int, what: str, source: Source | None) -> None:
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

"""The machine: every core of every device runs its task, one thread in all, deterministically.

A task runs until it waits for a semaphore that is not there yet; then the schedule says what happens next: another
task, or a copy. When nothing can happen and tasks still wait, that is a deadlock, and it is said at once.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import prod
from typing import Any

import greenlet  # type: ignore[import-untyped]
import numpy as np

from meshwright.core.source import Source
from meshwright.kernel.language.mxu import require_spent
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import Semaphore, SemaphoreArray, Signal
from meshwright.kernel.language.spaces import MemorySpace, SemaphoreType
from meshwright.kernel.races.history import History
from meshwright.kernel.run.deadlocks import deadlock
from meshwright.kernel.run.endings import endless, left_by_exit, stopped
from meshwright.kernel.run.faults import EndlessError
from meshwright.kernel.run.memories import Memories
from meshwright.kernel.run.memory import Buffer
from meshwright.kernel.run.schedules import TaskSchedule
from meshwright.kernel.run.tasks import KernelTask, state
from meshwright.kernel.run.transfers import Transfer
from meshwright.kernel.run.watch import SECONDS, Stopped, Watched
from meshwright.kernel.timing.clock import Clock

ACTIONS = 1 << 24  # signals, waits, copies and steps of pipelines, of a core in one step of its grid
_MOST_REFUSALS = 100  # of a task that goes on although it is being ended
_left_behind: list[Any] = []
_MOST_LOOKS = 10_000  # at a semaphore that stays as it is, with nothing else to happen


class KernelMachine(Memories):
    """Devices of a mesh, their memories and what is under way between them."""

    def __init__(
        self,
        mesh: dict[str, int],
        *,
        cores: int = 1,
        schedule: TaskSchedule | None = None,
        races: bool = False,
        all_entered: bool = True,
        limits: dict[MemorySpace, float] | None = None,
        home: Source | None = None,
        core_axis: str = "core",
        clock: Clock | None = None,
        tiles: bool = False,
        checks: bool = False,
        most_seconds: float = SECONDS,
        most_actions: int = ACTIONS,
    ) -> None:
        super().__init__(limits or {}, home)
        self.mesh = mesh
        self.sizes = tuple(mesh.values())
        self.size = prod(self.sizes)
        self.cores = cores
        self.core_axis = core_axis
        self.clock = clock or Clock()
        self.tiles = tiles
        self.checks = checks  # whether ``debug_check`` looks at its conditions
        self.schedule = schedule or TaskSchedule()
        self.in_turn = self.schedule.in_turn and not self.clock.runs  # whether the first that is ready goes on
        self.axes: dict[Any, frozenset[str] | None] = {}  # by address: the mesh axes that operands vary over
        self.ready: list[KernelTask] = []
        self.looking: list[KernelTask] = []  # those that look at a semaphore again and again
        self.due: list[tuple[float, int]] = []  # a heap of when they are over
        self.signallers: dict[Any, set[tuple[int, Source | None]]] = {}  # who ever signalled what, from which line
        self.tasks = [
            KernelTask(self, device * cores + core, device, core, self.coordinates(device))
            for device in range(self.size)
            for core in range(cores)
        ]
        self.history = History(self.tasks, self.schedule.links_in_order) if races else None
        self.hub: Any = None
        self.stopped: KernelTask | None = None  # the task that did not come to an end
        self.closing = False  # whether tasks are being ended that the run has left behind
        self.refusals = 0  # how often they were told so
        self.most_seconds = most_seconds
        self.most_actions = most_actions * len(self.tasks)
        self.actions = 0  # since the last step of the grid
        self.steps = 0  # of grids
        self.copies = 0
        self.collective_id: int | None = None
        self.parallel: list[int] = []  # the axes of the kernel's own grid that are said to be parallel
        self.grid_names: tuple[str | None, ...] = ()  # of the axes of the kernel's own grid
        self.wanted: Any = None  # the windows of the kernel's own grid, once they are known
        # Whether a pipeline's own copy may be over as it starts: nobody asks when it happens.
        self.copies_at_once = self.in_turn and self.history is None
        if self.history is not None:
            for task in self.tasks:
                # Event 1 of a task is its entering the kernel; after a barrier at entry all know of all.
                task.clock = np.full(len(self.tasks), int(all_entered), np.int64)
                self.history.event(task, home)

    def coordinates(self, device: int) -> dict[str, int]:
        """Where a device is on the mesh."""
        position: list[int] = []
        for n in reversed(self.sizes):
            position.append(device % n)
            device //= n
        return dict(zip(self.mesh, reversed(position), strict=True))

    def device_name(self, device: int, core: int = 0) -> str:
        """``device 3 (x=1, y=1)``; one axis needs no coordinates."""
        name = f"device {device}"
        if len(self.sizes) > 1:
            name += " (" + ", ".join(f"{axis}={n}" for axis, n in self.coordinates(device).items()) + ")"
        return name + (f" core {core}" if self.cores > 1 and core >= 0 else "")

    # Signals

    def signal(self, task: KernelTask, semaphore: Semaphore, amount: int) -> None:
        """Add to a semaphore of any device."""
        self.actions += 1
        if self.actions > self.most_actions:
            raise self._no_end(task)
        if self.clock.runs:
            self.clock.charge_compute(task)
        if self.schedule.interrupts:
            self.pause(task)
        source = task.source()
        if self.history is not None and semaphore.passed is not None:
            self.history.require_passed(task, semaphore, source)
        self.signallers.setdefault(semaphore.array.key, set()).add((task.entity, source))
        semaphore.add(Signal(amount, task, source, task.entity), self.history is not None)
        if self.history is not None:
            self.history.event(task, source)
        self.arrive(semaphore, amount, self.clock.signal(task, semaphore.array.device))

    def arrive(self, semaphore: Semaphore, amount: int, time: float) -> None:
        """A signal comes."""
        semaphore.count += amount
        if self.clock.runs:
            semaphore.arrive(time, amount)
        waiter = semaphore.waiter
        if waiter is not None and semaphore.count >= waiter.need:
            semaphore.waiter = None
            waiter.waiting = None
            self.ready.append(waiter)

    def wait(self, task: KernelTask, semaphore: Semaphore, value: int, why: str, take: bool = True) -> None:
        """Run others until a semaphore holds ``value``, then take it."""
        self.actions += 1
        if self.actions > self.most_actions:
            raise self._no_end(task)
        if self.clock.runs:
            self.clock.charge_compute(task)
        if self.schedule.interrupts:
            self.pause(task)
        if semaphore.count < value:
            self._pass_until(task, semaphore, value, why)
        if self.clock.runs:
            since = task.time
            task.time = max(task.time, semaphore.reached(value, take))
            self.clock.waited(task, since, why)
        known = semaphore.take(value, not take)
        if self.history is not None:
            senders: frozenset[int] = frozenset()
            if semaphore.array.kind is not SemaphoreType.DMA:
                senders = frozenset([s.sender.entity for s in known if s.copy is None and s.sender is not task])
            number = self._learn(task, known, self.history)
            if len(senders) > 1:
                semaphore.passed = (task.entity, number, senders)
            elif semaphore.spent and semaphore.array.kind is SemaphoreType.BARRIER:
                self.history.require_once(task, semaphore)
        else:
            for signal in known:
                signal.copy = None  # lets go of the memory it was between

    def _pass_until(self, task: KernelTask, semaphore: Semaphore, value: int, why: str) -> None:
        """Let other things happen until a semaphore holds ``value``."""
        if self.in_turn and not self.closing:
            # Only copies can happen: what the hub would do next is done here.
            while self.due and not self.ready and semaphore.count < value:
                self.schedule.decisions += 1
                self.move(self.pending[heappop(self.due)[1]])
            if semaphore.count >= value and self.ready:
                self.ready.append(task)
                self.give_way()
        while semaphore.count < value:
            task.waiting, task.need, task.why = semaphore, value, why
            semaphore.waiter = task
            self.give_way()

    def look(self, task: KernelTask, semaphore: Semaphore) -> int:
        """The value of a semaphore; a task that has seen it before looks again when nothing else can happen."""
        self.act(task)
        if task.seen.get(semaphore) == semaphore.count:
            task.waiting, task.need, task.why = semaphore, semaphore.count + 1, "looks at it again and again"
            self.looking.append(task)
            self.give_way()
            task.waiting = None
            if self.clock.runs:
                task.time = max(task.time, semaphore.reached(semaphore.count, take=False))
        if task.seen.get(semaphore) != semaphore.count:
            task.seen[semaphore] = semaphore.count
            task.looks = 0
        return semaphore.count

    def _look_again(self) -> None:
        """Nothing else can happen: let those go on that only look, but not for ever."""
        for task in self.looking:
            task.looks += 1
            if task.looks > _MOST_LOOKS:
                raise deadlock(self.tasks, self.signallers, self.home)
        self.ready += self.looking
        self.looking.clear()

    def _learn(self, task: KernelTask, proved: list[Signal], history: History) -> int:
        """A wait has proved signals to have come: the task knows what their senders knew, and which copies are over.

        The number of the event that the wait is.
        """
        if not proved:
            return 0
        for signal in proved:
            if signal.sender is not task:
                known: Any = signal.clock if signal.copy is None else signal.copy.clock
                np.maximum(task.clock, known, out=task.clock)
        number = history.event(task, None)
        for signal in proved:
            copy = signal.copy
            if copy is None:
                continue
            history.over(task, number, copy, signal.part)
            signal.copy = None
            copy.let_go()
        return number

    # Copies

    def start(self, copy: Transfer, send: Semaphore | None, receive: Semaphore) -> None:
        """Let a copy begin; ``send`` and ``receive`` are told when it has read and written."""
        task = copy.starter
        self.actions += 1
        if self.actions > self.most_actions:
            raise self._no_end(task)
        if self.clock.runs:
            self.clock.charge_compute(task)
        if self.schedule.interrupts:
            self.pause(task)
        if not copy.nbytes:
            return
        copy.number = self.copies
        self.copies += 1
        copy.finish = self.clock.finish(copy, task.time) if self.clock.runs else task.time
        races = self.history is not None
        if self.history is not None:
            self.history.event(task, copy.source)
            self.history.start(copy)
            away = self.tasks[copy.device * self.cores + copy.core]
            if away is not task:
                own = copy.dst.buffer
                there = self.memory.get((away.device, away.core if own.core >= 0 else -1, own.key))
                birth = max(receive.array.free_since, 0 if there is None else there.birth)
                self.history.require_birth(copy.clock, away, birth, "A copy to another device starts", copy.source)
        chain: Any = copy.link if self.schedule.links_in_order else copy if races else None
        if send is not None:
            copy.send = (send, Signal(copy.nbytes, task, copy.source, chain, copy, "read"))
            send.add(copy.send[1], races)
        before = receive.last
        if before is None or before.source is not copy.source or before.sender is not task:
            self.signallers.setdefault(receive.array.key, set()).add((task.entity, copy.source))
        signal = Signal(copy.nbytes, task, copy.source, chain, copy, "both" if send is None else "write")
        copy.receive = (receive, signal)
        receive.add(signal, races)
        self.pending[copy.number] = copy
        if self.schedule.in_turn:
            heappush(self.due, (copy.finish, copy.number))

    def copy_now(self, source: Ref, target: Ref) -> bool:
        """A pipeline's own copy of a block that comes, over as it starts; False where it has to take its turn."""
        a, b = source.buffer, target.buffer
        if not self.copies_at_once or a.unfilled is not None or b.unfilled is not None or not a.alive:
            return False
        for copy in self.pending.values():
            if copy.pipelined and copy.dst.buffer is a:  # a block that goes may be the one that comes
                return False
        np.copyto(target.data, source.data)
        self.copies += 1
        return True

    def move(self, copy: Transfer) -> None:
        """The next part of a copy happens: its read, its write, or both."""
        in_parts = self.schedule.in_parts
        assert copy.receive is not None
        if self.history is None and not in_parts and copy.send is None and copy.plain:
            np.copyto(copy.dst.data, copy.src.data)
            del self.pending[copy.number]
            self.arrive(copy.receive[0], copy.nbytes, copy.finish)
            copy.receive = None
            return
        if copy.payload is None:
            copy.read(keep=in_parts)
            if copy.send is not None:
                self.arrive(copy.send[0], copy.nbytes, copy.finish)
            if in_parts:
                return
        copy.write()
        del self.pending[copy.number]
        self.arrive(copy.receive[0], copy.nbytes, copy.finish)
        if self.history is None:
            copy.send = copy.receive = None

    def movable(self) -> list[Transfer]:
        """The copies that may move on: all, or the first of each link where links keep order."""
        if not self.schedule.links_in_order:
            return list(self.pending.values())
        heads: dict[Any, Transfer] = {}
        for copy in self.pending.values():
            heads.setdefault(copy.link, copy)
        return list(heads.values())

    # Running

    def pause(self, task: KernelTask) -> None:
        """Let the schedule decide whether the task goes on."""
        self.ready.insert(0, task)
        self.give_way()

    def give_way(self) -> None:
        """Let other tasks run; one that goes on although it is being ended is told so, and left behind at last."""
        if self.closing and self.refusals < _MOST_REFUSALS:
            self.refusals += 1
            raise greenlet.GreenletExit
        if self.ready and self.in_turn and self.ready[0].greenlet and not self.closing:
            # What the hub would do next is done here: one switch in the place of two. It begins tasks itself, as they
            # count how deep calls are from where they begin.
            self.schedule.decisions += 1
            self._resume(self.ready.pop(0))
        else:
            self.hub.switch()

    def _resume(self, task: KernelTask) -> None:
        """Let a task run on, or begin."""
        state.task = task
        if task.greenlet:
            task.greenlet.switch()
        else:
            task.greenlet.switch(task)

    def step(self, task: KernelTask) -> None:
        """Count a step of a grid: of the kernel's own, which ends, or of a pipeline in its body."""
        self.steps += 1
        if len(task.grids) == 1:
            self.actions = 0
            if self.parallel and self.history is not None:
                place = tuple(task.grids[0][0][axis] for axis in self.parallel)
                task.steps.append((self.history.event(task, None), place))
        else:
            self.act(task)

    def act(self, task: KernelTask) -> None:
        """Count a look at a semaphore or a step of a pipeline, as signals, waits and copies are."""
        self.actions += 1
        if self.actions > self.most_actions:
            raise self._no_end(task)

    def _no_end(self, task: KernelTask) -> EndlessError:
        each = self.most_actions // len(self.tasks)
        why = f"in one step of the grid, each core has signalled, waited and copied {each} times on average"
        return endless(task, task.source(), why)

    def run(self, body: Callable[[KernelTask], Any]) -> list[Any]:
        """Run ``body`` as every task, and return what each returned."""
        results: list[Any] = [None] * len(self.tasks)
        self.hub = greenlet.getcurrent()

        def main(task: KernelTask) -> None:
            try:
                with np.errstate(all="ignore"):  # a task has a context of its own
                    results[task.entity] = body(task)
            except greenlet.GreenletExit as error:
                if not self.closing:
                    raise left_by_exit(task, error) from error
                raise
            self.clock.charge_compute(task)
            task.done = True

        for task in self.tasks:
            task.greenlet = greenlet.greenlet(main)
            self.ready.append(task)
        before = state.task
        try:
            with Watched(self, self.most_seconds):
                self._loop()
        except Stopped as error:
            raise stopped(self, error) from None
        finally:
            state.task = before
            self.closing = True
            for task in self.tasks:
                self._end(task)
            state.task = before
        return results

    def _end(self, task: KernelTask) -> None:
        """End a task that is still waiting; what it raises meanwhile tells nothing new."""
        if task.greenlet is None or task.greenlet.dead or not task.greenlet:
            return
        state.task = task
        try:
            with Watched(self, min(self.most_seconds, 5.0)):
                task.greenlet.throw()
        except (Exception, Stopped):
            pass
        if not task.greenlet.dead:
            _left_behind.append(task.greenlet)  # it would be told again and again

    def _loop(self) -> None:
        ready, schedule = self.ready, self.schedule
        while ready or self.pending or self.looking:
            chosen: Any
            if not ready and not self.pending:
                self._look_again()
            if schedule.in_turn:
                schedule.decisions += 1
                if ready:
                    # Who is behind goes first, so that links are taken in the order of time.
                    chosen = min(ready, key=_time) if self.clock.runs else ready[0]
                else:
                    chosen = self.pending[heappop(self.due)[1]]
            else:
                chosen = schedule.choose(ready, self.movable() if not ready or schedule.interrupts else [])
            if chosen.__class__ is KernelTask:
                ready.remove(chosen)
                try:
                    self._resume(chosen)
                except Stopped:
                    self.stopped = state.task
                    raise
                except Exception as error:
                    if self.size * self.cores > 1 and state.task is not None:
                        error.add_note(f"in the kernel on {state.task.name}")
                    raise
                finally:
                    state.task = None
            else:
                self.move(chosen)
        if not all(task.done for task in self.tasks):
            raise deadlock(self.tasks, self.signallers, self.home)

    def finish(self) -> None:
        """Require that nothing is left over: no copy under way and every semaphore zero."""
        for made in (*self.memory.values(), *self.early.values()):
            if isinstance(made, SemaphoreArray) and made.alive:
                self.check_spent(made)
        for task in self.tasks:
            if task.units:
                require_spent(task.units, self.home.show() if self.home else "")

    def close(self) -> None:
        """Let go of memory at once: what is left refers to itself in circles."""
        for made in self.memory.values():
            if isinstance(made, Buffer):
                made.accesses = None
            else:
                for semaphore in made:
                    semaphore.record = semaphore.last = None
                made.used.clear()
        self.memory.clear()
        self.early.clear()
        for task in self.tasks:
            task.windows.clear()
            task.scopes.clear()
            task.seen.clear()
        if self.history is not None:
            for copy in self.history.copies:
                copy.send = copy.receive = None
            self.history.copies.clear()
        self.tasks.clear()  # they know the machine


def _time(task: KernelTask) -> float:
    return task.time

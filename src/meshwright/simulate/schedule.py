"""The event engine: when each task runs, on the parts of one device and its links.

A task starts when the tasks before it are done and every part it needs is free. A device computes one kernel at a
time; a collective keeps the links of its axes busy and runs beside kernels. Out of a window of the program, ready tasks
start in the program's order or in that of the longest path to the end, whichever ends sooner: so a transfer that is
waited for does not stop what could run, and what a transfer waits for comes first.

The iterations of a loop may overlap by one: a task waits for what it reads, and for the end of the iteration before the
last. A few iterations are scheduled; those left out take as long as the middle ones of these, and no less than the
busiest part of the machine needs for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.core.program import Var
from meshwright.simulate.clock import start_times
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.tasks import Task, TaskBlock

WINDOW = 64  # tasks beyond the first unfinished one that may start
ITERATIONS = 8  # of a loop that are scheduled one by one

OVERLAPS = ("loops", "steps", "none")


class Event(NamedTuple):
    """A task on the clock: when, how long, on which parts of the device. ``rest`` stands for iterations not shown.

    What is inside of those is not in the timeline: they keep each part of the machine busy for a share of the time.
    """

    task: Task
    start: float
    seconds: float
    depth: int = 0
    rest: int = 0

    @property
    def end(self) -> float:
        return self.start + self.seconds


class BlockSchedule(NamedTuple):
    """A block on the clock: how long it takes, when each of its tasks starts, and the events of all."""

    seconds: float
    starts: tuple[float, ...]
    events: tuple[Event, ...]


class Scheduler:
    """Schedules blocks of tasks. A block that comes again takes as long as before."""

    def __init__(self, overlap: str) -> None:
        self.overlap = overlap
        self.blocks: dict[int, BlockSchedule] = {}
        self.loops: dict[tuple[int, int], BlockSchedule] = {}

    def schedule(self, block: TaskBlock) -> BlockSchedule:
        """One run of a block."""
        found = self.blocks.get(id(block))
        if found is None:
            found = self.blocks[id(block)] = self._schedule_block(block)
        return found

    def _schedule_block(self, block: TaskBlock) -> BlockSchedule:
        tasks = block.tasks
        inner = [self.loop(task) if task.body is not None else None for task in tasks]
        seconds = [task.cost.seconds if body is None else body.seconds for task, body in zip(tasks, inner)]
        starts = self.order(tasks, seconds, [task.after for task in tasks])
        events: list[Event] = []
        for task, start, length, body_schedule in zip(tasks, starts, seconds, inner, strict=True):
            events.append(Event(task, start, length))
            if body_schedule is not None:
                events += [e._replace(start=e.start + start, depth=e.depth + 1) for e in body_schedule.events]
        total = max((start + length for start, length in zip(starts, seconds)), default=0.0)
        return BlockSchedule(total, tuple(starts), tuple(events))

    def loop(self, task: Task) -> BlockSchedule:
        """All iterations of a loop: the first few as they come, the others as the last of these."""
        assert task.body is not None
        found = self.loops.get((id(task.body), task.times))
        if found is None:
            found = self.loops[id(task.body), task.times] = self._loop(task, task.body)
        return found

    def _loop(self, task: Task, body: TaskBlock) -> BlockSchedule:
        count = min(task.times, ITERATIONS)
        if count < 2 or self.overlap != "loops" or not _talks(body.tasks):
            once = self.schedule(body)
            rest = task.times - 1
            events = list(once.events) if task.times else []
            if rest > 0:
                events.append(Event(task, once.seconds, rest * once.seconds, rest=rest))
            return BlockSchedule(task.times * once.seconds, (0.0,) if task.times else (), tuple(events))
        size = len(body.tasks) + 1  # the tasks of an iteration, and its end
        inner = [self.loop(t) if t.body is not None else None for t in body.tasks]
        lengths = [t.cost.seconds if p is None else p.seconds for t, p in zip(body.tasks, inner, strict=True)]
        tasks: list[Task] = []
        seconds: list[float] = []
        after: list[tuple[int, ...]] = []
        nothing = Task("", "", None, task.cost._replace(seconds=0.0, units=()))
        for n in range(count):
            base = n * size
            waits: dict[int, list[int]] = {}
            for reader, maker in task.carried if n else ():
                waits.setdefault(reader, []).append(base - size + maker)
            for number, one in enumerate(body.tasks):
                barrier = (base - size - 1,) if n > 1 else ()
                tasks.append(one)
                seconds.append(lengths[number])
                after.append((*(base + a for a in one.after), *waits.get(number, ()), *barrier))
            tasks.append(nothing)
            seconds.append(0.0)
            before = (base - 1,) if n else ()
            after.append((*range(base, base + size - 1), *before))
        starts = self.order(tasks, seconds, after)
        ends = [starts[n * size + size - 1] for n in range(count)]
        rest = task.times - count
        middle = count // 2
        # The last two iterations are not like those before: nobody but the end waits for them.
        each = max((ends[-3] - ends[-3 - middle]) / middle if rest else 0.0, _busiest(body.tasks, lengths))
        events = []
        for number, (one, start, length) in enumerate(zip(tasks, starts, seconds, strict=True)):
            if one is nothing:
                continue
            events.append(Event(one, start, length))
            body_schedule = inner[number % size]
            if body_schedule is not None:
                events += [e._replace(start=e.start + start, depth=e.depth + 1) for e in body_schedule.events]
        if rest:
            events.append(Event(task, ends[-1], rest * each, rest=rest))
        return BlockSchedule(ends[-1] + rest * each, tuple(starts), tuple(events))

    def order(self, tasks: Sequence[Task], seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[float]:
        """When each task starts."""
        if self.overlap == "none":
            return _serial(seconds)
        follows = _followers(seconds, after)
        units = [dict.fromkeys(task.cost.units, length) for task, length in zip(tasks, seconds)]
        by_program = start_times(seconds, follows, units, range(len(tasks)), WINDOW)
        if not _talks(tasks):
            return by_program
        paths = _longest_paths(seconds, after)
        by_path = start_times(seconds, follows, units, [-path for path in paths], WINDOW)
        ends = [max(start + length for start, length in zip(s, seconds)) for s in (by_program, by_path)]
        return by_path if ends[1] < ends[0] * (1 - 1e-9) else by_program


def order_of(block: TaskBlock, starts: Sequence[float]) -> list[int]:
    """The tasks by their start; a kernel that makes more than it reads comes when its result is first needed.

    A kernel that waits for nothing, as one that fills an array, could start long before anybody needs what it makes,
    while the device waits for something else; memory would be taken for all that time. Arguments are there anyhow.
    """
    moments = list(starts)
    needed: dict[object, float] = {}  # when the first task starts that reads a value
    for n in reversed(range(len(moments))):
        task = block.tasks[n]
        wanted = [needed[v] for v in task.writes if v in needed]
        held = sum(v.type.nbytes for v in task.reads if _waits(block, v))
        if wanted and task.body is None and task.cost.units == (COMPUTE,):
            made = sum(v.type.nbytes for v in task.writes)
            moments[n] = max(moments[n], min(wanted)) if held < made else moments[n]
        needed.update((v, min(moments[n], needed.get(v, moments[n]))) for v in task.reads)
    return sorted(range(len(moments)), key=lambda n: (moments[n], n))


def _waits(block: TaskBlock, var: Var) -> bool:
    """Whether a value is made by a task that reads something, and is not there before."""
    return var in block.makers and bool(block.tasks[block.makers[var]].reads)


def _talks(tasks: Sequence[Task]) -> bool:
    """Whether a task keeps something busy beside the part of the device that computes."""
    return any(task.cost.axes or any(unit != COMPUTE for unit in task.cost.units) for task in tasks)


def _followers(seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[list[tuple[int, float]]]:
    """For each task, those that wait for it, and how long it takes."""
    follows: list[list[tuple[int, float]]] = [[] for _ in after]
    for n, others in enumerate(after):
        for before in set(others):
            follows[before].append((n, seconds[before]))
    return follows


def _busiest(tasks: Sequence[Task], seconds: Sequence[float]) -> float:
    """The least time in which the parts of the machine get through some tasks."""
    busy: dict[str, float] = {}
    for task, length in zip(tasks, seconds, strict=True):
        for unit in task.cost.units:
            busy[unit] = busy.get(unit, 0.0) + length
    return max(busy.values(), default=0.0)


def _serial(seconds: Sequence[float]) -> list[float]:
    starts, now = [], 0.0
    for length in seconds:
        starts.append(now)
        now += length
    return starts


def _longest_paths(seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[float]:
    """The longest path from the start of each task to the end; tasks come after those they wait for."""
    paths = list(seconds)
    beyond = [0.0] * len(paths)
    for n in reversed(range(len(paths))):
        paths[n] += beyond[n]
        for before in after[n]:
            beyond[before] = max(beyond[before], paths[n])
    return paths

"""Pipeline schedules as data: for each device, the tasks it runs, in order.

A task is forward (F) or backward (B) of one microbatch through one chunk of stages; with zero-bubble schedules the
backward is split into what other stages wait for (B) and what they do not (W).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from meshwright.errors import DeviceError, MeshwrightError, ShapeError
from meshwright.simulate.clock import start_times

MOST_TASKS = 1 << 18  # of a schedule that is written out and played in a second


class PipelineTask(NamedTuple):
    """One phase of one microbatch on one chunk."""

    phase: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.phase}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


Placed = tuple[int, PipelineTask]  # a task on a device
Starts = dict[Placed, float]


class TaskTime(NamedTuple):
    """How long a task keeps its device busy, and when, from its start, what it sends has arrived."""

    seconds: float
    arrives: float


@dataclass(frozen=True)
class Schedule:
    """The order of tasks on each device. Stage ``chunk * devices + device`` runs on that device.

    >>> print(one_f_one_b(2, 3))
    0: F0 F1 B0 F2 B1 B2
    1: F0 B0 F1 B1 F2 B2
    """

    name: str
    orders: tuple[tuple[PipelineTask, ...], ...]
    chunks: int = 1

    @property
    def devices(self) -> int:
        return len(self.orders)

    @cached_property
    def microbatches(self) -> int:
        return 1 + max((task.microbatch for order in self.orders for task in order), default=-1)

    def stage(self, device: int, task: PipelineTask) -> int:
        """The stage a task runs."""
        return task.chunk * self.devices + device

    def __str__(self) -> str:
        return "\n".join(f"{n}: {' '.join(map(str, order))}" for n, order in enumerate(self.orders))

    def needs(self, device: int, task: PipelineTask) -> list[Placed]:
        """What a task waits for on other devices or earlier on its own."""
        stage, phase = self.stage(device, task), task.phase
        waits = {"F": [(stage - 1, "F")], "W": [(stage, "B")]}.get(phase, [(stage, "F"), (stage + 1, "B")])
        last = self.devices * self.chunks
        return [
            (n % self.devices, PipelineTask(before, task.microbatch, n // self.devices))
            for n, before in waits
            if 0 <= n < last
        ]

    def in_order(self, example: str = "dist.SCHEDULES['1f1b'](stages, microbatches)") -> list[Placed]:
        """All tasks with their devices, each after those it waits for, in rounds of one task per device at most.

        A schedule that waits for itself is refused, with the example of one that does not.
        """
        rounds: dict[Placed, int] = {}
        at = [0] * self.devices
        turns = deque(range(self.devices))
        while turns:
            device = turns.popleft()
            order, before = self.orders[device], at[device]
            while at[device] < len(order):
                task = order[at[device]]
                needs = self.needs(device, task)
                if any(x not in rounds for x in needs):
                    break
                last = rounds[device, order[at[device] - 1]] if at[device] else -1
                rounds[device, task] = max([last + 1, *(rounds[x] + (x[0] > device) for x in needs)])
                at[device] += 1
            if at[device] > before:  # those next to it may wait for what it has done
                turns += ((device + 1) % self.devices, (device - 1) % self.devices)
        waiting = {d: order[at[d]] for d, order in enumerate(self.orders) if at[d] < len(order)}
        if waiting:
            raise self._waits_for_itself(waiting, rounds, example)
        return sorted(rounds, key=lambda placed: (rounds[placed], placed[0]))

    def _waits_for_itself(
        self, waiting: Mapping[int, PipelineTask], done: Mapping[Placed, int], example: str
    ) -> DeviceError:
        """The error for a schedule in which nothing can go on: it prints who waits for whom."""
        blocked = {d: next(x for x in self.needs(d, task) if x not in done) for d, task in waiting.items()}
        path: list[int] = []
        device = next(iter(waiting))
        while device in blocked and device not in path:
            path.append(device)
            device = blocked[device][0]
        cycle = path[path.index(device) :] if device in path else path
        lines = [f"device {d}: {waiting[d]} waits for {blocked[d][1]} of device {blocked[d][0]}" for d in cycle]
        if device not in path:
            lines.append(f"device {device}: never runs it")
        return DeviceError(
            f"The schedule {self.name} waits for itself.",
            why="\n".join(lines),
            fix=f"run each task after what it waits for; {example} is in order",
        )

    @cached_property
    def _links(self) -> tuple[tuple[Placed, int, int], ...]:
        """All tasks in order, each with the number of the one after it on its device, and of the one that its result is
        sent to; -1 is none."""
        tasks = self.in_order()
        number = {(task.phase, task.microbatch, self.stage(device, task)): n for n, (device, task) in enumerate(tasks)}
        following, last = [-1] * len(tasks), [-1] * self.devices
        told = []
        for n, (device, task) in enumerate(tasks):
            if last[device] >= 0:
                following[last[device]] = n
            last[device] = n
            to = self.stage(device, task) + {"F": 1, "B": -1}.get(task.phase, 0)
            told.append(number.get((task.phase, task.microbatch, to), -1) if task.phase in "FB" else -1)
        return tuple(zip(tasks, following, told, strict=True))

    def play(self, time: Callable[[str, int, int], TaskTime]) -> tuple[tuple[float, ...], Starts]:
        """When each device is done with its tasks, and when each task starts, if nobody waits to send messages.

        ``time`` is that of a phase, a microbatch and a stage.

        >>> one_f_one_b(2, 2).play(lambda phase, k, stage: TaskTime(1.0, 1.5))[0]
        (7.0, 5.5)
        """
        follows: list[list[tuple[int, float]]] = []
        seconds = []
        for (device, task), after, told in self._links:
            one = time(task.phase, task.microbatch, self.stage(device, task))
            seconds.append(one.seconds)
            follows.append([(n, delay) for n, delay in ((after, one.seconds), (told, one.arrives)) if n >= 0])
        starts = start_times(seconds, follows, [{}] * len(seconds))
        clock = [0.0] * self.devices
        for ((device, _), _, _), start, length in zip(self._links, starts, seconds, strict=True):
            clock[device] = max(clock[device], start + length)
        return tuple(clock), {placed: start for (placed, _, _), start in zip(self._links, starts, strict=True)}

    @cached_property
    def _messages(self) -> list[list[tuple[int, int, int]]]:
        """The tasks of each device: their kind, the message that each waits for, and the one that it sends; -1 is none.

        Kinds are numbered by phase, first microbatch or other, and stage; messages by phase, microbatch and stage.
        """
        devices, stages = self.devices, self.devices * self.chunks
        back, orders = self.microbatches * stages, []  # the number of the first message of B
        for device, order in enumerate(self.orders):
            found = []
            for phase, k, chunk in order:
                stage = chunk * devices + device
                kind, here = (stages if k else 0) + stage, k * stages + stage
                if phase == "F":
                    one = kind, here if stage else -1, here + 1 if stage < stages - 1 else -1
                elif phase == "B":
                    here += back
                    one = kind + 2 * stages, here if stage < stages - 1 else -1, here - 1 if stage else -1
                else:
                    one = kind + 4 * stages, -1, -1
                found.append(one)
            orders.append(found)
        return orders

    def ends(self, time: Callable[[str, int, int], TaskTime]) -> tuple[float, ...]:
        """When each device is done with its tasks, as `play` has it: the devices go ahead in turns as far as they can.

        ``time`` is that of a phase, of the first microbatch (0) or of any other (1), and of a stage.

        >>> one_f_one_b(2, 2).ends(lambda phase, k, stage: TaskTime(1.0, 1.5))
        (7.0, 5.5)
        """
        orders, devices, stages = self._messages, self.devices, self.devices * self.chunks
        times = [time(phase, k, stage) for phase in "FBW" for k in (0, 1) for stage in range(stages)]
        seconds, arrives = [one.seconds for one in times], [one.arrives for one in times]
        come = [-1.0] * (2 * self.microbatches * stages)  # when what a task waits for has come from another device
        at, clock = [0] * devices, [0.0] * devices
        turns = deque(range(devices))
        while turns:
            device = turns.popleft()
            order, now, first = orders[device], clock[device], at[device]
            n = first
            while n < len(order):
                kind, wanted, sent = order[n]
                if wanted >= 0:
                    ready = come[wanted]
                    if ready < 0:
                        break
                    if ready > now:
                        now = ready
                if sent >= 0:
                    come[sent] = now + arrives[kind]
                now += seconds[kind]
                n += 1
            at[device], clock[device] = n, now
            if n > first and devices > 1:  # those next to it may wait for what it has done
                turns += ((device + 1) % devices, (device - 1) % devices)
        if any(n < len(order) for n, order in zip(at, orders, strict=True)):
            self.in_order()  # which says what waits for what
        return tuple(clock)

    def run(self, seconds: Mapping[str, float] | None = None) -> Timing:
        """When each task runs if every stage takes the same time and nothing else costs any.

        >>> gpipe(4, 8).run().bubble_fraction == 3 / (8 + 3)
        True
        """
        _check_tasks(self)
        each = {"F": 1.0, "B": 1.0, "W": 1.0, **(seconds or {})}
        ends, starts = self.play(lambda phase, k, stage: TaskTime(each[phase], each[phase]))
        busy = max(sum(each[task.phase] for task in order) for order in self.orders)
        return Timing(max(ends), 1 - busy / max(ends), self._peaks(), starts)

    def _peaks(self) -> tuple[int, ...]:
        """The most activations that each device holds: from a forward pass to the last phase that reads them."""
        phases = {task.phase for order in self.orders for task in order}
        freed = next(phase for phase in "WBF" if phase in phases)
        found = []
        for order in self.orders:
            held = most = 0
            for task in order:
                held += task.phase == "F"
                most = max(most, held)
                held -= task.phase == freed
            found.append(most)
        return tuple(found)

    def gantt(self) -> str:
        """A picture: a row per device, a column per unit of time, of which every task takes one; a dot is idle.

        >>> print(one_f_one_b(2, 3).gantt())
        device 0  F0 F1 ·  B0 F2 B1 ·  B2
        device 1  ·  F0 B0 F1 B1 F2 B2 ·
        """
        timing = self.run()
        width = max(len(str(task)) for order in self.orders for task in order)
        rows = []
        for device, order in enumerate(self.orders):
            cells = ["·"] * round(timing.seconds)
            for task in order:
                cells[round(timing.starts[device, task])] = str(task)
            rows.append(f"device {device:<{len(str(self.devices - 1))}}  " + " ".join(c.ljust(width) for c in cells))
        return "\n".join(row.rstrip() for row in rows)


class Timing(NamedTuple):
    """What a schedule costs: its length, the idle part of it, and the most activations a device holds."""

    seconds: float
    bubble_fraction: float
    peak_activations: tuple[int, ...]
    starts: Starts


def _check_tasks(schedule: Schedule) -> None:
    """Refuse a schedule that has no tasks, runs one twice, or has what is no task."""
    for device, order in enumerate(schedule.orders):
        for task, count in Counter(order).items():
            if task.phase not in ("F", "B", "W") or task.microbatch < 0 or not 0 <= task.chunk < schedule.chunks:
                raise DeviceError(
                    f"The schedule {schedule.name} has no task {task}.",
                    why=f"a task is F, B or W of a microbatch from 0, and of a chunk from 0 to {schedule.chunks - 1}",
                    fix="Task('F', 0)",
                )
            if count > 1:
                raise not_once(DeviceError, schedule, task, count, device)
    if not any(schedule.orders):
        raise DeviceError(
            f"The schedule {schedule.name} has no tasks.",
            why=f"it has {schedule.devices} devices and no microbatches",
            fix="dist.SCHEDULES['1f1b'](2, 4)",
        )


def not_once(
    kind: type[MeshwrightError], schedule: Schedule, task: PipelineTask, count: int, device: int
) -> MeshwrightError:
    """The error for a task that a schedule leaves out or runs again."""
    return kind(
        f"The schedule {schedule.name} runs {task} {count} times on device {device}.",
        why="every stage computes each phase of each microbatch once",
        fix=f"{task} once among the tasks of device {device}",
    )


def check_counts(name: str, devices: int, microbatches: int, chunks: int = 1) -> None:
    """Refuse a schedule of nothing."""
    if any(not isinstance(n, int) or n < 1 for n in (devices, microbatches, chunks)):
        raise DeviceError(
            f"The schedule {name} has a device, a microbatch and a chunk at least.",
            why=f"devices={devices}, microbatches={microbatches}, chunks={chunks}",
            fix=f"dist.SCHEDULES[{name!r}](2, 4)",
        )
    tasks = 2 * devices * microbatches * chunks
    if tasks > MOST_TASKS:
        raise DeviceError(
            f"The schedule {name} has {tasks} tasks.",
            why=f"devices={devices}, microbatches={microbatches}, chunks={chunks}; up to {MOST_TASKS} are played",
            fix=f"microbatches={max(1, MOST_TASKS // (2 * devices * chunks))}, or fewer devices",
        )


def check_chunks(schedule: str, chunks: int) -> None:
    """Refuse several chunks per device where a schedule has one."""
    if schedule != "interleaved" and chunks != 1:
        raise ShapeError(
            f"The schedule {schedule} has one chunk per device.", why=f"chunks={chunks}", fix='schedule="interleaved"'
        )


def _interleaving(phase: str, devices: int, microbatches: int, chunks: int) -> list[PipelineTask]:
    """Microbatches in groups as large as the pipeline, each group through one chunk after the other."""
    return [
        PipelineTask(phase, k, chunk if phase == "F" else chunks - 1 - chunk)
        for first in range(0, microbatches, devices)
        for chunk in range(chunks)
        for k in range(first, min(first + devices, microbatches))
    ]


def _ahead(name: str, device: int, devices: int, microbatches: int, chunks: int) -> int:
    """The forward passes of a device before it alternates: gpipe runs all, the others as few as keep it busy."""
    if name == "gpipe" or (name == "interleaved" and microbatches == devices):
        return microbatches * chunks
    if name == "interleaved":
        return min(2 * (devices - device - 1) + (chunks - 1) * devices, microbatches * chunks)
    return min(devices - 1 - device, microbatches)


def _alternating(name: str, devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Some forward passes ahead, then one forward, one backward, then the backward passes that are left."""
    forward, backward = (_interleaving(phase, devices, microbatches, chunks) for phase in "FB")
    orders = []
    for device in range(devices):
        ahead = _ahead(name, device, devices, microbatches, chunks)
        pairs = chain.from_iterable(zip(forward[ahead:], backward, strict=False))
        orders.append((*forward[:ahead], *pairs, *backward[len(forward) - ahead :]))
    return Schedule(name, tuple(orders), chunks)


def forward_only(devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Forward passes alone."""
    return Schedule("forward", (tuple(_interleaving("F", devices, microbatches, chunks)),) * devices, chunks)


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    check_counts("gpipe", devices, microbatches)
    return _alternating("gpipe", devices, microbatches)


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """As few forward passes ahead as keep every stage busy, then one forward, one backward."""
    check_counts("1f1b", devices, microbatches)
    return _alternating("1f1b", devices, microbatches)


def interleaved(devices: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with several chunks of stages on each device: a bubble as many times shorter."""
    check_counts("interleaved", devices, microbatches, chunks)
    if microbatches % devices:
        raise DeviceError(
            f"{microbatches} microbatches do not divide among {devices} devices.",
            why="interleaved 1F1B runs microbatches in groups as large as the pipeline",
            fix=f"microbatches={-(-microbatches // devices) * devices}, or schedule='1f1b'",
        )
    return _alternating("interleaved", devices, microbatches, chunks)


def zb_h1(devices: int, microbatches: int) -> Schedule:
    """Zero bubble with the memory of 1F1B: weight gradients (W) fill the waits for input gradients (B).

    Device p runs the weight gradient of a microbatch p backward passes late, so that every device holds the activations
    of as many microbatches as there are devices.

    >>> print(zb_h1(2, 3))
    0: F0 F1 B0 W0 F2 B1 W1 B2 W2
    1: F0 B0 F1 B1 W0 F2 B2 W1 W2
    """
    check_counts("zb-h1", devices, microbatches)
    orders = []
    for device, order in enumerate(_alternating("1f1b", devices, microbatches).orders):
        tasks: list[PipelineTask] = []
        for task in order:
            late = task.phase == "B" and task.microbatch >= device
            tasks += [task, PipelineTask("W", task.microbatch - device)] if late else [task]
        tasks += [PipelineTask("W", k) for k in range(max(0, microbatches - device), microbatches)]
        orders.append(tuple(tasks))
    return Schedule("zb-h1", tuple(orders))


def peak_activations(name: str, devices: int, microbatches: int, chunks: int = 1) -> tuple[int, ...]:
    """The most activations that each device of a schedule holds, in closed form.

    >>> peak_activations("1f1b", 3, 8) == one_f_one_b(3, 8).run().peak_activations
    True
    """
    if name == "zb-h1":
        return (min(devices, microbatches),) * devices
    ahead = [_ahead(name, device, devices, microbatches, chunks) for device in range(devices)]
    return tuple(min(n + 1, microbatches * chunks) for n in ahead)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
}


@lru_cache(maxsize=256)
def schedule_of(name: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule by its name."""
    return SCHEDULES[name](devices, microbatches, *([chunks] if name == "interleaved" else []))

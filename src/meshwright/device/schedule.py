"""Pipeline schedules as data: for each device, the tasks it runs, in order.

A task is forward (F) or backward (B) of one microbatch through one chunk of stages; with zero-bubble schedules the
backward is split into what other stages wait for (B) and what they do not (W).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.errors import DeviceError, ShapeError

MOST_TASKS = 1 << 18  # of a schedule that is written out and played in a second


class PipelineTask(NamedTuple):
    """One phase of one microbatch on one chunk."""

    phase: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.phase}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


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

    @property
    def microbatches(self) -> int:
        return 1 + max((task.microbatch for order in self.orders for task in order), default=-1)

    def stage(self, device: int, task: PipelineTask) -> int:
        """The stage a task runs."""
        return task.chunk * self.devices + device

    def __str__(self) -> str:
        return "\n".join(f"{n}: {' '.join(map(str, order))}" for n, order in enumerate(self.orders))

    def run(self, seconds: Mapping[str, float] | None = None) -> Timing:
        """When each task runs if every stage takes the same time and nothing else costs any.

        >>> gpipe(4, 8).run().bubble_fraction == 3 / (8 + 3)
        True
        """
        return _run(self, {"F": 1.0, "B": 1.0, "W": 1.0, **(seconds or {})})

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
    starts: dict[tuple[int, PipelineTask], float]


def _needs(schedule: Schedule, device: int, task: PipelineTask, split: bool) -> list[tuple[int, PipelineTask]]:
    """What a task waits for on other devices or earlier on its own."""
    last = schedule.devices * schedule.chunks - 1
    stage = schedule.stage(device, task)

    def at(stage: int, phase: str) -> tuple[int, PipelineTask]:
        return stage % schedule.devices, PipelineTask(phase, task.microbatch, stage // schedule.devices)

    if task.phase == "F":
        return [at(stage - 1, "F")] if stage else []
    if task.phase == "W":
        return [at(stage, "B")]
    return [at(stage, "F"), *([at(stage + 1, "B")] if stage < last else [])]


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
                raise DeviceError(
                    f"The schedule {schedule.name} runs {task} {count} times on device {device}.",
                    why="every stage computes each phase of each microbatch once",
                    fix=f"{task} once among the tasks of device {device}",
                )
    if not any(schedule.orders):
        raise DeviceError(
            f"The schedule {schedule.name} has no tasks.",
            why=f"it has {schedule.devices} devices and no microbatches",
            fix="dist.SCHEDULES['1f1b'](2, 4)",
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


class Turns:
    """The devices of a pipeline to look at in turn: all of them, then those next to one that went on."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.queue = deque(range(devices))
        self.queued = [True] * devices

    def __iter__(self) -> Iterator[int]:
        while self.queue:
            device = self.queue.popleft()
            self.queued[device] = False
            yield device

    def went_on(self, device: int) -> None:
        """Look at the neighbours of a device: they may wait for what it has done."""
        for near in ((device + 1) % self.devices, (device - 1) % self.devices):
            if not self.queued[near]:
                self.queued[near] = True
                self.queue.append(near)


def _run(schedule: Schedule, seconds: Mapping[str, float]) -> Timing:
    _check_tasks(schedule)
    split = any(task.phase == "W" for order in schedule.orders for task in order)
    ends: dict[tuple[int, PipelineTask], float] = {}
    starts: dict[tuple[int, PipelineTask], float] = {}
    clock = [0.0] * schedule.devices
    at = [0] * schedule.devices
    held = [0] * schedule.devices
    peak = [0] * schedule.devices
    trains = any(task.phase != "F" for order in schedule.orders for task in order)
    turns = Turns(schedule.devices)
    for device in turns:
        order, before = schedule.orders[device], at[device]
        while at[device] < len(order):
            task = order[at[device]]
            needs = _needs(schedule, device, task, split)
            if any(need not in ends for need in needs):
                break
            starts[device, task] = max([clock[device], *(ends[need] for need in needs)])
            clock[device] = ends[device, task] = starts[device, task] + seconds[task.phase]
            if task.phase == "F":
                held[device] += 1
                peak[device] = max(peak[device], held[device])
            if task.phase == ("W" if split else "B" if trains else "F"):
                held[device] -= 1
            at[device] += 1
        if at[device] > before:
            turns.went_on(device)
    if any(place < len(order) for place, order in zip(at, schedule.orders, strict=True)):
        raise cyclic_wait(schedule, at, ends)
    total = max(clock)
    busy = max(sum(seconds[task.phase] for task in order) for order in schedule.orders)
    return Timing(total, 1 - busy / total, tuple(peak), starts)


def cyclic_wait(schedule: Schedule, at: Sequence[int], done: Mapping[tuple[int, PipelineTask], object]) -> DeviceError:
    """The error for a schedule in which nothing can go on: it prints who waits for whom."""
    waiting = {d: order[at[d]] for d, order in enumerate(schedule.orders) if at[d] < len(order)}
    blocked: dict[int, tuple[int, PipelineTask]] = {}
    for device, task in waiting.items():
        need = next(n for n in _needs(schedule, device, task, False) if n not in done)
        blocked[device] = need
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
        f"The schedule {schedule.name} waits for itself.",
        why="\n".join(lines),
        fix="run each task after what it waits for; dist.SCHEDULES['1f1b'](stages, microbatches) is in order",
    )


def forward_only(devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Forward passes alone."""
    order = tuple(PipelineTask("F", k, c) for k, c in _interleaving(devices, microbatches, chunks))
    return Schedule("forward", (order,) * devices, chunks)


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    check_counts("gpipe", devices, microbatches)
    order = (*(PipelineTask("F", k) for k in range(microbatches)), *(PipelineTask("B", k) for k in range(microbatches)))
    return Schedule("gpipe", (order,) * devices)


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """As few forward passes ahead as keep every stage busy, then one forward, one backward."""
    check_counts("1f1b", devices, microbatches)
    orders = []
    for device in range(devices):
        ahead = min(devices - 1 - device, microbatches)
        tasks = [PipelineTask("F", k) for k in range(ahead)]
        for k in range(ahead, microbatches):
            tasks += [PipelineTask("F", k), PipelineTask("B", k - ahead)]
        tasks += [PipelineTask("B", k) for k in range(microbatches - ahead, microbatches)]
        orders.append(tuple(tasks))
    return Schedule("1f1b", tuple(orders))


def _interleaving(devices: int, microbatches: int, chunks: int) -> list[tuple[int, int]]:
    """Microbatches in groups as large as the pipeline, each group through one chunk after the other."""
    found = []
    for first in range(0, microbatches, devices):
        group = range(first, min(first + devices, microbatches))
        found += [(k, chunk) for chunk in range(chunks) for k in group]
    return found


def interleaved(devices: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with several chunks of stages on each device: a bubble as many times shorter."""
    check_counts("interleaved", devices, microbatches, chunks)
    if microbatches % devices:
        raise DeviceError(
            f"{microbatches} microbatches do not divide among {devices} devices.",
            why="interleaved 1F1B runs microbatches in groups as large as the pipeline",
            fix=f"microbatches={-(-microbatches // devices) * devices}, or schedule='1f1b'",
        )
    forward = _interleaving(devices, microbatches, chunks)
    backward = [(k, chunks - 1 - c) for k, c in forward]
    orders = []
    for device in range(devices):
        ahead = min(2 * (devices - device - 1) + (chunks - 1) * devices, len(forward))
        if microbatches == devices:
            ahead = len(forward)
        tasks = [PipelineTask("F", k, c) for k, c in forward[:ahead]]
        for n in range(ahead, len(forward)):
            tasks += [PipelineTask("F", *forward[n]), PipelineTask("B", *backward[n - ahead])]
        tasks += [PipelineTask("B", *backward[n]) for n in range(len(forward) - ahead, len(forward))]
        orders.append(tuple(tasks))
    return Schedule("interleaved", tuple(orders), chunks)


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
    for device in range(devices):
        ahead = min(devices - device, microbatches)
        tasks = [PipelineTask("F", k) for k in range(ahead)]
        for k in range(microbatches):
            tasks.append(PipelineTask("B", k))
            if k >= device:
                tasks.append(PipelineTask("W", k - device))
            if ahead + k < microbatches:
                tasks.append(PipelineTask("F", ahead + k))
        tasks += [PipelineTask("W", k) for k in range(max(0, microbatches - device), microbatches)]
        orders.append(tuple(tasks))
    return Schedule("zb-h1", tuple(orders))


def peak_activations(name: str, devices: int, microbatches: int, chunks: int = 1) -> tuple[int, ...]:
    """The most activations that each device of a schedule holds, in closed form.

    >>> peak_activations("1f1b", 3, 8) == one_f_one_b(3, 8).run().peak_activations
    True
    """
    places = range(devices)
    if name == "gpipe":
        return (microbatches,) * devices
    if name == "zb-h1":
        return (min(devices, microbatches),) * devices
    if name == "1f1b":
        return tuple(min(devices - p, microbatches) for p in places)
    if microbatches == devices:
        return (chunks * microbatches,) * devices
    return tuple(min(2 * (devices - p - 1) + (chunks - 1) * devices + 1, chunks * microbatches) for p in places)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
}

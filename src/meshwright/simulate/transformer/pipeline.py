"""The clock of a pipeline: tasks of stages in the order of a schedule, with messages between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from meshwright.device.schedule import SCHEDULES, PipelineTask, Schedule
from meshwright.simulate.clock import start_times

Starts = dict[tuple[int, PipelineTask], float]


@lru_cache(maxsize=4096)
def schedule_of(name: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule by its name."""
    if name == "interleaved":
        return SCHEDULES[name](devices, microbatches, chunks)
    return SCHEDULES[name](devices, microbatches)


class _TaskOrder(NamedTuple):
    """All tasks of a schedule, each after those it waits for, by device and stage; and who is next to whom.

    ``next`` has, for each task, the number of the one after it on its device, ``told`` that of the one that its result
    is sent to; -1 is none.
    """

    tasks: tuple[tuple[int, int, PipelineTask], ...]
    next: tuple[int, ...]
    told: tuple[int, ...]


@lru_cache(maxsize=64)
def _order(name: str, devices: int, microbatches: int, chunks: int) -> _TaskOrder:
    schedule = schedule_of(name, devices, microbatches, chunks)
    tasks = tuple((device, schedule.stage(device, task), task) for device, task in schedule.in_order())
    number = {(task.phase, task.microbatch, stage): n for n, (_, stage, task) in enumerate(tasks)}
    following, last = [-1] * len(tasks), [-1] * devices
    for n, (device, _, _) in enumerate(tasks):
        if last[device] >= 0:
            following[last[device]] = n
        last[device] = n
    toward = {"F": 1, "B": -1}
    told = tuple(
        number.get((task.phase, task.microbatch, stage + toward[task.phase]), -1) if task.phase in toward else -1
        for _, stage, task in tasks
    )
    return _TaskOrder(tasks, tuple(following), told)


class TaskTime(NamedTuple):
    """How long a task keeps its device busy, and when, from its start, what it sends has arrived."""

    seconds: float
    arrives: float


def play(
    name: str, devices: int, microbatches: int, chunks: int, time: Callable[[str, int, int], TaskTime]
) -> tuple[tuple[float, ...], Starts]:
    """When each device is done with its tasks, and when each task starts, if nobody waits to send messages.

    ``time`` is that of a phase, a microbatch and a stage.

    >>> play("1f1b", 2, 2, 1, lambda phase, k, stage: TaskTime(1.0, 1.5))[0]
    (7.0, 5.5)
    """
    order = _order(name, devices, microbatches, chunks)
    follows: list[list[tuple[int, float]]] = []
    seconds = []
    for (_, stage, task), after, told in zip(*order, strict=True):
        one = time(task.phase, task.microbatch, stage)
        seconds.append(one.seconds)
        follows.append([(n, delay) for n, delay in ((after, one.seconds), (told, one.arrives)) if n >= 0])
    starts = start_times(seconds, follows, [{}] * len(seconds))
    clock = [0.0] * devices
    for (device, _, _), start, length in zip(order.tasks, starts, seconds, strict=True):
        clock[device] = max(clock[device], start + length)
    return tuple(clock), {(device, task): at for (device, _, task), at in zip(order.tasks, starts, strict=True)}

"""When the devices of a pipeline are done: each schedule is made once, and run once for the same times."""

from __future__ import annotations

from functools import lru_cache

from meshwright.device.schedule import SCHEDULES, PipelineTask, Schedule, Turns
from meshwright.search.unrolled import alternating


@lru_cache(maxsize=4096)
def schedule_of(name: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule by its name."""
    if name == "interleaved":
        return SCHEDULES[name](devices, microbatches, chunks)
    return SCHEDULES[name](devices, microbatches)


@lru_cache(maxsize=4096)
def overlapped(
    times: tuple[tuple[float, ...], ...],
    hops: tuple[tuple[float, ...], ...],
    name: str,
    devices: int,
    microbatches: int,
    chunks: int,
) -> tuple[float, ...]:
    """When each device is done with its tasks, if nobody waits to send messages.

    ``hops`` are the times of the messages to the stage after each, and of those back.
    """
    schedule = schedule_of(name, devices, microbatches, chunks)
    split = name == "zb-h1"
    last = devices * chunks - 1
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    clock = [0.0] * devices
    at = [0] * devices
    turns = Turns(devices)
    for device in turns:
        order, before = schedule.orders[device], at[device]
        while at[device] < len(order):
            phase, k, chunk = order[at[device]]
            stage = chunk * devices + device
            known: float | None = 0.0
            hop = 0.0
            if phase == "F" and stage:
                known, hop = forward.get((stage - 1, k)), hops[0][stage - 1]
            elif phase == "B" and stage < last:
                known, hop = backward.get((stage + 1, k)), hops[1][stage]
            if known is None:
                break
            cost = times[stage]
            first = 0 if k else 3
            if phase == "F":
                end = forward[stage, k] = max(clock[device], known + hop) + cost[first]
            elif phase == "B":
                end = max(clock[device], known + hop) + cost[first + 1] + (0.0 if split else cost[first + 2])
                backward[stage, k] = end
            else:
                end = clock[device] + cost[first + 2]
            clock[device] = end
            at[device] += 1
        if at[device] > before:
            turns.went_on(device)
    assert at == [*map(len, schedule.orders)], "schedules come to an end"
    return tuple(clock)


@lru_cache(maxsize=1024)
def steps_of(stages: int, microbatches: int) -> list[list[tuple[int, PipelineTask]]]:
    """The steps of a pipeline that blocks."""
    return alternating(stages, microbatches)

"""When the devices of a pipeline are done: each schedule is made once, and run once for the same times."""

from __future__ import annotations

from functools import lru_cache

from meshwright.search.unrolled import alternating
from meshwright.simulate.pipelines import PipelineTask, TaskTime, schedule_of


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

    ``times`` are, for each stage, those of F, B and W, and again for the first microbatch; ``hops`` are those of the
    messages to the stage after each, and of those back.
    """
    whole = name != "zb-h1"  # a backward that is not split has the gradients of weights in it

    def time(phase: str, k: int, stage: int) -> TaskTime:
        cost, first = times[stage], 0 if k else 3
        if phase == "F":
            return TaskTime(cost[first], cost[first] + hops[0][stage])
        if phase == "W":
            return TaskTime(cost[first + 2], cost[first + 2])
        length = cost[first + 1] + (cost[first + 2] if whole else 0.0)
        return TaskTime(length, length + (hops[1][stage - 1] if stage else 0.0))

    return schedule_of(name, devices, microbatches, chunks).ends(time)


@lru_cache(maxsize=1024)
def steps_of(stages: int, microbatches: int) -> list[list[tuple[int, PipelineTask]]]:
    """The steps of a pipeline that blocks."""
    return alternating(stages, microbatches)

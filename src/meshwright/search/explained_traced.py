"""Where the seconds and bytes of a strategy for a traced step go."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.chart.amounts import time_text
from meshwright.search.explained import MOST_WAITS, LayoutParts, Wait
from meshwright.search.strategy import Costs
from meshwright.search.traced_plan import TracedPlan
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.simulation import block_leaves


class WithoutSums(OnTopology):
    """A machine on which what replicas do together takes no time."""

    def group_seconds(self, kind: str, nbytes: float, count: int, stride: int) -> float:
        return 0.0


class WithoutHops(WithoutSums):
    """And what one stage of a pipeline sends to the next."""

    def hop_seconds(self, nbytes: float, stride: int) -> float:
        return 0.0


def traced_parts(plan: TracedPlan, again: Callable[[Costs], TracedPlan], name: str, room: float) -> LayoutParts:
    """The seconds of a strategy by what they are for, and the bytes of the device that has most.

    What replicas and stages wait for is what the step takes less where that takes no time (``again`` is the plan with
    other costs); devices that share tensors wait for the share of their collectives that nothing runs beside.
    """
    seconds, costs, strategy = plan.seconds()[0], plan.costs, plan.strategy
    rest, parts = seconds, dict[str, float]()
    bubble = 0.0
    for axis, kind in (("data", WithoutSums), ("pipeline", WithoutHops)):
        if getattr(strategy, axis) > 1:
            without, idle = again(kind(costs.topology, overlap=costs.overlap, mode=costs.mode)).seconds()
            parts[axis], rest, bubble = max(0.0, rest - without), min(rest, without), idle
    parts["bubble"] = bubble * rest if strategy.pipeline > 1 else 0.0
    compute, waited = plan.on.compute_seconds, plan.on.waited_seconds
    busy = rest - parts["bubble"]
    parts["tensor"] = busy * waited / (compute + waited) if waited else 0.0
    shown = {"compute": busy - parts["tensor"], "tensor": parts["tensor"], **parts}
    kept = {kind: one for kind, one in shown.items() if kind == "compute" or one}
    return LayoutParts(name, seconds, kept, plan.memory_by_kind(), plan.peak_bytes() <= room)


def traced_lines(plan: TracedPlan, parts: LayoutParts) -> list[str]:
    """What bounds a traced step in a strategy: its kernels, and the collectives that devices wait for."""
    leaves = list(block_leaves(plan.on.block))
    bounds, waits = dict[str, float](), dict[Wait, float]()
    for task, times in leaves:
        if COMPUTE in task.cost.units:
            bounds[task.cost.bound] = bounds.get(task.cost.bound, 0.0) + times * task.cost.seconds
        elif task.cost.axes and task.cost.seconds:
            wait = Wait(task.op, "tensor", task.source, task.cost.bound, 0.0)
            waits[wait] = waits.get(wait, 0.0) + times * task.cost.seconds
    total, kinds = sum(bounds.values()), {"compute": "the rate of matmuls", "memory": "the bandwidth of memory"}
    by_share = sorted(bounds.items(), key=lambda item: -item[1])
    said = [f"{one / total:.0%} of it bound by {kinds.get(name, name)}" for name, one in by_share if one]
    computes = f"  computes for {time_text(parts.parts['compute'])}" + (f", {', '.join(said)}" if said else "")
    lines = [f"{time_text(parts.seconds)} a step", computes]
    tensor = parts.parts.get("tensor", 0.0)
    if tensor:
        lines.append(f"  waits for {time_text(tensor)} for devices that share tensors, longest for")
        every = sum(waits.values())
        longest = sorted(waits.items(), key=lambda item: -item[1])[:MOST_WAITS]
        lines += [f"    {time_text(tensor * one / every):>7}  {wait}" for wait, one in longest]
    return lines

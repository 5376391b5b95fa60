"""A clock with the numbers of a chip and its network.

A core has two units that work side by side: one for products, one for everything else, which is bound by the bandwidth
of VMEM. What a core computes between two synchronizations takes as long as the busier of them. Indices cost nothing.
Copies within a device share its main memory; a copy to another device takes the links of a shortest way, one after
another's copies, and a hop's latency for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.trace import Array
from meshwright.hardware.topology import Topology
from meshwright.kernel.clock import Clock
from meshwright.kernel.tasks import Task, state
from meshwright.kernel.timeline import COMPUTE, MEMORY, WAITING, Span
from meshwright.kernel.transfers import Transfer

Link = tuple[Any, ...]


class HardwareClock(Clock):
    """Times on the chips of a topology, whose mesh is the kernel's. ``dry``: no floats are computed or moved."""

    runs = True

    def __init__(self, topology: Topology, mesh: dict[str, int], dry: bool = True) -> None:
        self.topology = topology
        self.mesh = mesh
        self.dry = dry
        self.spans: list[Span] = []
        self.free: dict[Link, float] = {}  # when each link and memory has done all it was given
        self.flops: dict[int, float] = {}  # of products, by task
        self.doing: dict[int, tuple[float, float, str]] = {}  # of each task: seconds of its units, and the longest op
        chip = topology.chip
        self.memory = chip.hbm_bytes_per_s
        self.vmem_bytes = chip.known("vmem_bytes", 0.0)
        self.vmem = chip.known("vmem_bytes_per_s", 22 * self.memory)
        self.link = chip.link_bytes_per_s
        self.hop = chip.known("hop_seconds", 0.0)

    # Copies

    def finish(self, copy: Transfer, now: float) -> float:
        """When a copy started now is over."""
        task = copy.starter
        if copy.device == task.device:
            away = [ref.buffer.space for ref in (copy.src, copy.dst) if not ref.buffer.space.addressable]
            links: list[Link] = [("memory", task.device)]
            seconds = len(away) * copy.nbytes / self.memory if away else 2 * copy.nbytes / self.vmem
            lane, latency = MEMORY, 0.0
        else:
            links = self.way(task.device, copy.device)
            seconds, latency = copy.nbytes / self.link, len(links) * self.hop
            lane = f"to device {copy.device}"
        start = max([now, *(self.free.get(link, 0.0) for link in links)])
        for link in links:
            self.free[link] = start + seconds
        end = start + seconds + latency
        self.spans.append(Span(task.device, task.core, lane, start, end, _name(task, "copy"), copy.source, copy.nbytes))
        return end

    def chip_at(self, device: int) -> list[int]:
        """Where a device of the mesh is on the torus."""
        at = [0] * len(self.topology.shape)
        for axis, size in reversed(self.mesh.items()):
            device, place = divmod(device, size)
            for span in reversed(self.topology.spans(axis)):
                place, part = divmod(place, span.size)
                if isinstance(span.axis, int) and 0 <= span.axis < len(at):
                    at[span.axis] += part * span.stride
        return at

    def way(self, source: int, target: int) -> list[Link]:
        """The links between two devices: one dim after the other, the shorter way round."""
        if self.topology.switched:
            return [("out of", source), ("into", target)]
        at, end = self.chip_at(source), self.chip_at(target)
        links: list[Link] = []
        for dim, (size, wraps) in enumerate(zip(self.topology.shape, self.topology.wrap, strict=True)):
            forward = (end[dim] - at[dim]) % size
            step = 1 if (forward <= size - forward if wraps else end[dim] > at[dim]) else -1
            while at[dim] != end[dim]:
                links.append((*at, dim, step))
                at[dim] = (at[dim] + step) % size
        return links

    # Computing

    def watch(self, op: Any, operands: Any, types: Any, params: Any) -> Any:
        """Count an op; in a dry run floats are zeros that take no memory."""
        task = state.task
        results = types if types.__class__ is tuple else (types,)
        if task is None or (not any(t.size > 1 for t in results) and all(x.type.size <= 1 for x in operands)):
            return None
        products, others, _ = self.doing.get(task.entity, (0.0, 0.0, ""))
        cost = op.cost([x.type for x in operands], results, params)
        if op.name in ("dot_general", "conv_general_dilated"):
            self.flops[task.entity] = self.flops.get(task.entity, 0.0) + cost.flops
            products += cost.flops / self.topology.chip.flops_per_s(operands[0].type.dtype)
        else:
            others += cost.nbytes / self.vmem
        self.doing[task.entity] = (products, others, op.name)
        if not self.dry or any(t.dtype.kind not in "fcV" for t in results):
            return None
        made = tuple(Array(_zeros(t.shape, t.dtype), t) for t in results)
        return made if types.__class__ is tuple else made[0]

    def settle(self, task: Task) -> None:
        """The task's computing takes its time."""
        products, others, name = self.doing.pop(task.entity, (0.0, 0.0, ""))
        seconds = max(products, others)
        if seconds:
            what = "products" if products >= others else name
            self.spans.append(
                Span(task.device, task.core, COMPUTE, task.time, task.time + seconds, _name(task, what), None, 0)
            )
            task.time += seconds

    def waited(self, task: Task, since: float, why: str) -> None:
        """A task has waited."""
        if task.time > since:
            self.spans.append(Span(task.device, task.core, WAITING, since, task.time, _name(task, why), None, 0))


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _name(task: Task, what: str) -> str:
    return " / ".join([*task.regions, what])

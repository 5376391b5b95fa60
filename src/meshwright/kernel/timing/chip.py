"""A clock with the numbers of a chip and its network.

A core has two units that work side by side: one for products, one for everything else, which is bound by the bandwidth
of VMEM. What a core computes between two synchronizations takes as long as the busier of them. Indices cost nothing.

Copies within a device follow each other through its memory. A copy to another device takes the links of a shortest
way, one after another's copies, and a hop's latency for each; while it lasts, the memories at both of its ends have
that much less left for copies of their own. A signal to another device takes the latency of the way, one to a semaphore
of the same device as long as its counter takes to be written.
"""

from __future__ import annotations

from typing import Any

from meshwright.core.op import is_contraction
from meshwright.hardware.topology import NetworkLevel, Topology
from meshwright.kernel.run.tasks import KernelTask, state
from meshwright.kernel.run.transfers import Transfer
from meshwright.kernel.timing.clock import Clock, counts_nothing
from meshwright.kernel.timing.timeline import COMPUTE, MEMORY, WAITING, TimedSpan

Link = tuple[Any, ...]
COUNTER_BYTES = 4  # of a semaphore


class HardwareClock(Clock):
    """Times on the chips of a topology, whose mesh is the kernel's. ``dry``: no floats are computed or moved."""

    runs = True

    def __init__(self, topology: Topology, mesh: dict[str, int], dry: bool = True) -> None:
        self.topology = topology
        self.mesh = mesh
        self.dry = dry
        self.spans: list[TimedSpan] = []
        self.free: dict[Link, float] = {}  # when each link and memory has done all it was given
        # Copies to and from other devices: from when to when they use a device's memory or VMEM, and how much of it.
        self.flows: dict[tuple[int, bool], list[tuple[float, float, float]]] = {}
        self.moved: dict[int, int] = {}  # bytes to and from main memory, by device
        self.flops: dict[int, float] = {}  # of products, by task
        self.doing: dict[int, tuple[float, float, str]] = {}  # of each task: seconds of its units, and the longest op
        chip = topology.chip
        self.chip = chip.name
        self.memory = chip.hbm_bytes_per_s
        self.vmem_bytes = chip.known("vmem_bytes", 0.0)
        self.vmem = chip.known("vmem_bytes_per_s", 22 * self.memory)
        self.link = chip.nvlink_bytes_per_s if topology.switched else chip.link_bytes_per_s
        self.hop = chip.known("nvlink_hop_seconds" if topology.switched else "hop_seconds", 0.0)

    # Copies and signals

    def finish(self, copy: Transfer, now: float) -> float:
        """When a copy started now is over."""
        task = copy.starter
        ends = ((task.device, copy.src.buffer), (copy.device, copy.dst.buffer))
        for device, buffer in ends:
            if not buffer.addressable:
                self.moved[device] = self.moved.get(device, 0) + copy.nbytes
        if copy.device == task.device:
            start, end = self._within(task.device, [buffer.addressable for _, buffer in ends], copy.nbytes, now)
            lane, latency = MEMORY, 0.0
        else:
            links, latency = self.way(task.device, copy.device), self.latency(task.device, copy.device)
            between = self.link_rate(task.device, copy.device)
            rate = min([between, *(self._rate(buffer.addressable) for _, buffer in ends)])
            start = max([now, *(self.free.get(link, 0.0) for link in links)])
            end = start + copy.nbytes / rate
            for link in links:
                self.free[link] = end
            for device, buffer in ends:
                self.flows.setdefault((device, buffer.addressable), []).append((start, end, rate))
            lane = f"to device {copy.device}"
        end += latency
        self.spans.append(
            TimedSpan(task.device, task.core, lane, start, end, _name(task, "copy"), copy.source, copy.nbytes)
        )
        return end

    def signal(self, task: KernelTask, device: int) -> float:
        """When a signal that a task sends now comes to a device."""
        if device == task.device:
            return task.time + COUNTER_BYTES / self.vmem
        return task.time + self.latency(task.device, device)

    def _rate(self, vmem: bool) -> float:
        return self.vmem if vmem else self.memory

    def _within(self, device: int, ends: list[bool], nbytes: int, now: float) -> tuple[float, float]:
        """When a copy within a device starts and ends; ``ends``: which of its two ends are in VMEM.

        Main memory is the slower one: a copy between it and VMEM takes as long as there, one within a memory reads and
        writes it.
        """
        vmem = all(ends)
        start = max(now, self.free.get(("memory", device), 0.0))
        # Copies within a device start in order: what has ended before this one never matters again.
        flows = self.flows[device, vmem] = [flow for flow in self.flows.get((device, vmem), ()) if flow[1] > start]
        at, left = start, float(nbytes * (2 if vmem else 2 - sum(ends)))
        while left > 0:
            rate = self._rate(vmem)
            rate = max(rate - sum(flow for since, until, flow in flows if since <= at < until), rate / 2)
            change = min((time for flow in flows for time in flow[:2] if time > at), default=float("inf"))
            at, left = (change, left - rate * (change - at)) if at + left / rate > change else (at + left / rate, 0.0)
        self.free[("memory", device)] = at
        return start, at

    def latency(self, source: int, target: int) -> float:
        """How long the first byte is on its way between two devices."""
        if self.topology.switched:
            return sum(level.hop_seconds for level in self.crossed(source, target)) or self.hop
        return len(self.way(source, target)) * self.hop

    def crossed(self, source: int, target: int) -> list[NetworkLevel]:
        """The levels of a switched network above NVLink on the way between two devices: of nodes, of units."""
        chips = [self.chip_at(device)[0] for device in (source, target)]
        return [level for level in self.topology.levels[1:] if len({chip // level.size for chip in chips}) > 1]

    def link_rate(self, source: int, target: int) -> float:
        """Bytes per second between two devices: over a link, or beyond a node through a device's own adapter."""
        above = self.crossed(source, target) if self.topology.switched else []
        return above[0].bytes_per_s / above[0].size if above else self.link

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
            by = "adapter " if self.crossed(source, target) else ""
            return [(f"{by}out of", source), (f"{by}into", target)]
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
        if task is None or counts_nothing(operands, results):
            return None
        products, others, _ = self.doing.get(task.entity, (0.0, 0.0, ""))
        given = tuple(x.type for x in operands)
        cost = op.cost(given, results, params)
        if is_contraction(op, given, results, params):
            self.flops[task.entity] = self.flops.get(task.entity, 0.0) + cost.flops
            products += cost.flops / self.topology.chip.flops_per_s(operands[0].type.dtype)
        else:
            others += cost.nbytes / self.vmem
        self.doing[task.entity] = (products, others, op.name)
        return self.left_out(types)

    def charge_compute(self, task: KernelTask) -> None:
        """The task's computing takes its time."""
        products, others, name = self.doing.pop(task.entity, (0.0, 0.0, ""))
        seconds = max(products, others)
        if seconds:
            what = "products" if products >= others else name
            self.spans.append(
                TimedSpan(task.device, task.core, COMPUTE, task.time, task.time + seconds, _name(task, what), None, 0)
            )
            task.time += seconds

    def waited(self, task: KernelTask, since: float, why: str) -> None:
        """A task has waited."""
        if task.time > since:
            self.spans.append(TimedSpan(task.device, task.core, WAITING, since, task.time, _name(task, why), None, 0))


def _name(task: KernelTask, what: str) -> str:
    return " / ".join([*task.regions, what])

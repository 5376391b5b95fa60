"""The timeline of a kernel: what every device computes, copies and waits for, and when."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.chart.amounts import time_text
from meshwright.core.files import write_whole
from meshwright.core.source import Source
from meshwright.hardware.topology import Topology

COMPUTE, MEMORY, WAITING = "compute", "memory", "waiting"


class TimedSpan(NamedTuple):
    """Something that takes time: on which device, in which lane, from when to when."""

    device: int
    core: int
    lane: str
    start: float
    end: float
    name: str
    source: Source | None
    nbytes: int


@dataclass(frozen=True)
class Timeline:
    """One run of a kernel on all devices of a machine."""

    seconds: float
    spans: tuple[TimedSpan, ...]
    topology: Topology
    mesh: dict[str, int]
    name: str
    flops: float = 0.0  # of products, on the device with the most
    nbytes: float = 0.0  # to and from its main memory

    def busy(self, device: int, *lanes: str) -> float:
        """How long a device is busy in some of its lanes ("compute", "memory", "links"; overlaps count once)."""
        return sum(end - start for start, end in self._joined(device, lanes))

    def overlap(self, device: int) -> float:
        """The share of a device's sends during which it computes."""
        sends = self._joined(device, ("links",))
        total = sum(end - start for start, end in sends)
        both = sum(
            max(0.0, min(end, stop) - max(start, begin))
            for start, end in sends
            for begin, stop in self._joined(device, (COMPUTE,))
        )
        return both / total if total else 0.0

    def bubbles(self, device: int) -> list[tuple[float, float]]:
        """When a device does not compute."""
        found, at = [], 0.0
        for start, end in [*self._joined(device, (COMPUTE,)), (self.seconds, self.seconds)]:
            if start > at:
                found.append((at, start))
            at = max(at, end)
        return found

    def _joined(self, device: int, lanes: Iterable[str]) -> list[tuple[float, float]]:
        wanted = set(lanes)
        times = sorted(
            (span.start, span.end)
            for span in self.spans
            if span.device == device and (span.lane in wanted or ("links" in wanted and span.lane.startswith("to ")))
        )
        out: list[tuple[float, float]] = []
        for start, end in times:
            if out and start <= out[-1][1]:
                out[-1] = (out[-1][0], max(out[-1][1], end))
            else:
                out.append((start, end))
        return out

    def lanes(self, device: int) -> list[str]:
        """The lanes of a device that are ever busy."""
        found = {span.lane for span in self.spans if span.device == device and span.lane != WAITING}
        return sorted(found, key=lambda lane: ((COMPUTE, MEMORY).index(lane) if lane in (COMPUTE, MEMORY) else 2, lane))

    def __str__(self) -> str:
        devices = {span.device for span in self.spans}
        compute = [self.busy(device, COMPUTE) for device in devices] or [0.0]
        sends = [self.overlap(device) for device in devices if self.busy(device, "links")]
        lines = [
            f"{time_text(self.seconds)} for {self.name} on {self.topology.text}",
            f"  computing {max(compute) / self.seconds:.0%} of the time" if self.seconds else "  nothing takes time",
        ]
        if sends:
            lines.append(f"  {min(sends):.0%} of what is sent is hidden behind computing")
        return "\n".join(lines)

    def gantt(self, width: int = 72, devices: int = 4) -> str:
        """The timeline as text: a row for each lane of the first devices, filled where it is busy."""
        shown = sorted({span.device for span in self.spans})
        rows = [(device, lane) for device in shown[:devices] for lane in self.lanes(device)]
        label = max([len(f"device {device} {lane}") for device, lane in rows], default=0)
        lines = []
        for device, lane in rows:
            cells = [0.0] * width
            for start, end in self._joined(device, (lane,)):
                first, last = (at / self.seconds * width for at in (start, end))
                for n in range(int(first), min(width, int(last) + 1)):
                    cells[n] += max(0.0, min(last, n + 1) - max(first, n))
            text = "".join(" ░▒▓█"[min(4, round(4 * cell))] for cell in cells)
            lines.append(f"{f'device {device} {lane}':<{label}} |{text}|")
        lines.append(f"{'':<{label}}  0{time_text(self.seconds):>{width - 1}}")
        if len(shown) > devices:
            lines.append(f"and {len(shown) - devices} more devices")
        return "\n".join(lines)

    def perfetto(self) -> dict[str, Any]:
        """The timeline as trace events, in microseconds: a process for each device, a track for each lane."""
        events: list[dict[str, Any]] = []
        for device in sorted({span.device for span in self.spans}):
            events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"device {device}"}})
            for track, lane in enumerate([*self.lanes(device), WAITING]):
                named = {"ph": "M", "pid": device, "tid": track, "name": "thread_name", "args": {"name": lane}}
                events.append(named)
                for span in self.spans:
                    if span.device == device and span.lane == lane:
                        args = {"line": str(span.source) if span.source else "", "bytes": span.nbytes}
                        times = {"ts": span.start * 1e6, "dur": (span.end - span.start) * 1e6}
                        event = {"ph": "X", "pid": device, "tid": track, "name": span.name, "cat": lane}
                        events.append({**event, **times, "args": args})
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline for https://ui.perfetto.dev."""
        write_whole(path, json.dumps(self.perfetto()))

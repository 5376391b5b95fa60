"""The timeline of a kernel: what every device computes, copies and waits for, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.chart.amounts import time_text
from meshwright.chart.gantt import Chart, Charted, GanttBar, Lane
from meshwright.chart.page import Figure, Part, text_part
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
class Timeline(Charted):
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

    def page_figures(self) -> list[Figure]:
        most = max((self.busy(device, "compute") for device in self._devices()), default=0.0)
        return [
            ("in all", time_text(self.seconds), f"on {self.topology.text}"),
            ("computing", time_text(most), "of the device that computes most"),
        ]

    def page_parts(self) -> list[Part]:
        return [text_part("", str(self))]

    def chart(self, devices: int | None = None) -> Chart:
        """The timeline as rows, one for each lane of the first ``devices`` devices, or of all."""
        rows: dict[tuple[int, str], list[GanttBar]] = {
            (device, lane): [] for device in self._devices()[:devices] for lane in [*self.lanes(device), WAITING]
        }
        for span in sorted(self.spans, key=lambda span: (span.start, span.end)):
            row = rows.get((span.device, span.lane))
            if row is not None and span.end > span.start:
                facts = {"line": str(span.source) if span.source else "", "bytes": span.nbytes}
                kind = WAITING if span.lane == WAITING else span.name
                row.append(GanttBar(span.start, span.end - span.start, span.name, kind, span.nbytes, facts=facts))
        lanes = (Lane(f"device {device}", lane, tuple(bars)) for (device, lane), bars in rows.items() if bars)
        return Chart(f"{self.name} on {self.topology.text}", self.seconds, tuple(lanes))

    def gantt(self, width: int | None = None, devices: int = 4) -> str:
        """The chart of the first devices as text, ``width`` characters wide, or as wide as the terminal."""
        more = len(self._devices()) - devices
        return str(self.chart(devices).view(width)) + (f"\nand {more} more devices" if more > 0 else "")

    def _devices(self) -> list[int]:
        return sorted({span.device for span in self.spans})

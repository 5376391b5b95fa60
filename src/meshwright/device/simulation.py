"""Simulation of resolved programs: when each op runs, on which device, and what memory it takes.

`device.queues` finds out when each op runs, `device.liveness` the memory; this is what they found, and its pictures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshwright.core.files import write_whole
from meshwright.device.alike import Alike
from meshwright.device.function import Eqn
from meshwright.device.timeline import Event, chart_of
from meshwright.report.gantt import Chart, trace


class Assumptions(Protocol):
    """What ops cost, and what may happen at once."""

    @property
    def overlap(self) -> bool: ...
    @property
    def reuses(self) -> bool: ...

    def seconds(self, eqn: Eqn) -> dict[int, float]:
        """Time on each device that takes part."""
        ...

    def is_communication(self, eqn: Eqn) -> bool: ...

    def links(self, eqn: Eqn) -> tuple[Hashable, ...]:
        """What the op has for itself while it communicates, other than its devices."""
        ...

    def in_place(self, eqn: Eqn) -> bool:
        """Whether the results take the memory of operands."""
        ...


@dataclass
class Simulation:
    """The outcome: ``seconds`` in all, memory and busy time per device, and the events in order.

    Where devices that do the same are simulated once, ``alike`` are those that each one stands for.

    >>> from meshwright import dist, hardware
    >>> fn = dist.parse("def f(w: Tensor[(64, 64), 0], x: Tensor[(64, 64), 0]): y = MatMul(x, w) z = tanh(y) return z")
    >>> found = dist.simulate(dist.data_parallel(fn, {"x": 0}), [1, 2], hardware.Topology("h100", 2), steady=True)
    >>> print(found.gantt(width=48))
    devices 1-2 compute |MMMMMMMMMMMMMMttttttt| 100%
                         0             14.7 ns
    M MatMul, t tanh, · idle
    """

    seconds: float
    peak_bytes: dict[int, int]
    base_bytes: dict[int, int]
    busy_seconds: dict[int, float]
    link_seconds: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    find_alike: Callable[[], Alike] = field(default=dict, repr=False, compare=False)

    @property
    def alike(self) -> Alike:
        """The devices that each device stands for."""
        found = self.__dict__.get("_alike")
        if found is None:
            found = self.__dict__["_alike"] = self.find_alike()
        return found  # type: ignore[no-any-return]

    @property
    def bubble_fraction(self) -> float:
        """The part of all devices' time in which they do not compute; the host (device 0) counts if it is alone."""
        busy = {device: seconds for device, seconds in self.busy_seconds.items() if device} or self.busy_seconds
        counts = {device: len(self.alike.get(device, (device,))) for device in busy}
        most = self.seconds * sum(counts.values())
        return 1 - sum(counts[d] * seconds for d, seconds in busy.items()) / most if most else 0.0

    @property
    def timeline(self) -> list[Event]:
        return self.events

    # Pictures

    def chart(self) -> Chart:
        """The events as rows of a Gantt chart; devices that do the same share one."""
        return chart_of(self.events, self.seconds, self.alike)

    def gantt(self, width: int | None = None) -> str:
        """The events as text, a row for each device's compute and communication; as wide as the terminal."""
        return str(self.chart().view(width))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the Gantt chart as a page of its own: what an op is, when it runs and its bytes show on hovering."""
        self.chart().view().to_html(path)

    def perfetto(self) -> dict[str, Any]:
        """The events as a trace: a process for each device, a track for compute and one for communication."""
        return trace(self.chart())

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the events for https://ui.perfetto.dev or chrome://tracing."""
        write_whole(path, json.dumps(self.perfetto()))

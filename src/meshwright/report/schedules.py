"""Pictures of pipeline schedules."""

from __future__ import annotations

import re

from meshwright.chart.colors import color
from meshwright.chart.gantt import Chart, GanttBar, Lane, fragment, timeline_part
from meshwright.chart.views import TextPiece, View
from meshwright.simulate.pipelines import Schedule

_PHASES = {"F": "forward", "B": "backward", "W": "weights"}


def schedule_view(schedule: Schedule) -> View:
    """A schedule to look at: a column per unit of time in text, boxes on a page."""
    timing = schedule.run()
    lanes = []
    for device, order in enumerate(schedule.orders):
        spans = [GanttBar(timing.starts[device, t], 1.0, str(t), _PHASES.get(t.phase, t.phase)) for t in order]
        lanes.append(Lane(f"device {device}", "", tuple(spans)))
    title = f"{schedule.name} on {schedule.devices} devices, {timing.bubble_fraction:.0%} idle"
    chart = Chart(title, timing.seconds, tuple(lanes), in_seconds=False)
    lines = lambda: [_tasks(line) for line in schedule.gantt().splitlines()]
    return View(title, lines, lambda: fragment(chart), lambda: [timeline_part(chart)])


def _tasks(line: str) -> list[TextPiece]:
    """A line of a schedule, each phase in a colour."""
    return [
        TextPiece(part, color("FBW".index(part[0]), 3) if re.fullmatch(r"[FBW][0-9.]+", part) else None)
        for part in re.split(r"(\b[FBW][0-9.]+)", line)
    ]

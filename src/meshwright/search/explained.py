"""Where the seconds and bytes of a layout go, what others lose against it, and which change would make another best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.gantt import Chart, GanttBar, Lane
from meshwright.core.source import Source
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip
from meshwright.hardware.chips import get as get_chip
from meshwright.hardware.chips import names as chip_names
from meshwright.hardware.topology import Topology
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.simulation import Simulation, block_leaves
from meshwright.simulate.transformer.step import StepSimulation

NOISE = 1e-6  # of the time of a step; less is a rest of rounding
SMALL = 1e-3  # of the memory that is held; what is less in all rows has no column
MOST_WAITS = 4


class Wait(NamedTuple):
    """Time in which a device does nothing but wait for collectives of a line along some axes."""

    op: str
    axes: str
    source: Source | None
    bound: str
    seconds: float

    def __str__(self) -> str:
        along = f" along {self.axes}" if self.axes else ""
        return f"{self.op}{along} ({self.bound})" + (f"  {self.source.show()}" if self.source is not None else "")


class LayoutParts(NamedTuple):
    """One layout or strategy: ``parts`` add up to its seconds, ``memory`` to what a device holds at the peak.

    ``parts`` are ``compute``, the waits for collectives by mesh axis, and, where there are such, ``bubble`` and
    ``optimizer``. ``note`` says what is different from the best.
    """

    name: str
    seconds: float
    parts: dict[str, float]
    memory: dict[str, int]
    fits: bool
    note: str = ""

    @property
    def peak_bytes(self) -> int:
        """The most that a device holds at a time."""
        return sum(self.memory.values())


class WhatIf(NamedTuple):
    """What is best after one change of the machine or of the batch.

    ``seconds`` are those of what is best then, ``kept_seconds`` those of what is best now, infinite where that does not
    fit any more or cannot be laid out; without ``divides``, nothing that was found can be. Where tokens are made, it is
    their rate that is compared.
    """

    change: str
    name: str
    seconds: float
    kept_seconds: float
    other: bool
    tokens_per_s: float | None = None
    kept_tokens_per_s: float | None = None
    divides: bool = True

    def __str__(self) -> str:
        if self.seconds == inf:
            why = "fits" if self.divides else "divides what there is then"
            return f"{self.change}: nothing that was found {why}"
        then, now = time_text(self.seconds), time_text(self.kept_seconds)
        if self.tokens_per_s is not None:
            then, now = (f"{one or 0:,.0f} tokens/s" for one in (self.tokens_per_s, self.kept_tokens_per_s))
        if not self.other:
            return f"{self.change}: the same, {then}"
        against = "what is best now cannot be had" if self.kept_seconds == inf else f"against {now}"
        return f"{self.change}: {self.name}, {then}, {against}"


def shown_time(seconds: float, of: float) -> str:
    """A part of so many seconds; what is a rest of rounding is 0.

    >>> shown_time(3e-12, 0.004), shown_time(0.00123, 0.004)
    ('0', '1.23 ms')
    """
    return time_text(seconds) if seconds > NOISE * of else "0"


def parts_of(simulation: Simulation) -> dict[str, float]:
    """Where the seconds of a step go: they add up to its time."""
    if isinstance(simulation, StepSimulation):
        found = simulation.parts
    else:
        found = {"compute": simulation.compute_seconds}
        for wait in waits_of(simulation):
            found[wait.axes or "host"] = found.get(wait.axes or "host", 0.0) + wait.seconds
        found["compute"] = simulation.seconds - sum(found.values()) + found["compute"]
    return {name: one for name, one in found.items() if name == "compute" or one > NOISE * simulation.seconds}


def waits_of(simulation: Simulation) -> list[Wait]:
    """The waits of a device, the longest first: while nothing is computed, for what is under way.

    They add up to the exposed seconds of the simulation. What is under way at once shares the time; of iterations of a
    loop that are not in the timeline, collectives share it by their lengths.
    """
    exposed = simulation.exposed_seconds
    if exposed <= NOISE * simulation.seconds:
        return []
    found: dict[Wait, float] = {}
    moments: list[tuple[float, int, Any]] = []
    for event in simulation.timeline:
        if event.rest and event.task.body is not None:
            _add(found, _rest(event))
        if event.seconds and (event.rest or event.task.body is None):
            talks = None if event.rest or COMPUTE in event.task.cost.units else event.task
            moments += [(event.start, 1, talks), (event.end, -1, talks)]
    computing, talking, now = 0, list[Any](), 0.0
    for moment, change, task in sorted(moments, key=lambda m: (m[0], m[1])):
        if not computing and talking and moment > now:
            _add(found, [(_wait(one), (moment - now) / len(talking)) for one in talking])
        now = moment
        if task is None:
            computing += change
        elif change > 0:
            talking.append(task)
        else:
            talking.remove(task)
    total = sum(found.values())
    made = [wait._replace(seconds=one * exposed / total) for wait, one in found.items()] if total else []
    return sorted((wait for wait in made if wait.seconds > NOISE * simulation.seconds), key=lambda w: -w.seconds)


def _rest(event: Any) -> list[tuple[Wait, float]]:
    """The waits in iterations of a loop that are not shown."""
    tasks = list(block_leaves(event.task.body))
    gap = event.seconds - event.rest * sum(n * t.cost.seconds for t, n in tasks if COMPUTE in t.cost.units)
    talks = [(t, n * t.cost.seconds) for t, n in tasks if COMPUTE not in t.cost.units and t.cost.seconds]
    total = sum(seconds for _, seconds in talks)
    return [(_wait(task), gap * seconds / total) for task, seconds in talks] if gap > 0 else []


def _wait(task: Any) -> Wait:
    axes = ",".join(dict.fromkeys(axis.split(":")[0] for axis in task.cost.axes))
    return Wait(task.op, axes, task.source, task.cost.bound, 0.0)


def _add(found: dict[Wait, float], more: Iterable[tuple[Wait, float]]) -> None:
    for wait, seconds in more:
        found[wait] = found.get(wait, 0.0) + seconds


def bound_lines(simulation: Simulation, sources: bool = True) -> list[str]:
    """What bounds a step: its busiest part, its kernels, and the collectives that it waits for, with their lines."""
    lines = [f"{time_text(simulation.seconds)} a step, {simulation.bound}"]
    compute, bounds = simulation.compute_seconds, dict[str, float]()
    for task, times in simulation.leaves():
        if COMPUTE in task.cost.units:
            bounds[task.cost.bound] = bounds.get(task.cost.bound, 0.0) + times * task.cost.seconds
    if compute:
        kinds = {"compute": "the rate of matmuls", "memory": "the bandwidth of memory"}
        shares = sorted(bounds.items(), key=lambda item: -item[1])
        said = [f"{one / compute:.0%} of it bound by {kinds.get(name, name)}" for name, one in shares]
        lines.append(f"  computes for {time_text(compute)}, {', '.join(said)}")
    waits = waits_of(simulation) if not isinstance(simulation, StepSimulation) else []
    if waits:
        lines.append(f"  waits for {time_text(simulation.exposed_seconds)}, longest for")
        shown = waits if sources else [wait._replace(source=None) for wait in waits]
        lines += [f"    {time_text(wait.seconds):>7}  {wait}" for wait in shown[:MOST_WAITS]]
        if len(waits) > MOST_WAITS:
            rest = sum(wait.seconds for wait in waits[MOST_WAITS:])
            lines.append(f"    {time_text(rest):>7}  in {len(waits) - MOST_WAITS} more")
    return lines


def memory_line(memory: Mapping[str, int], room: float) -> str:
    """What a device holds at the peak, by kind."""
    of = f" of {size_text(room)}" if room < inf else ""
    held = ", ".join(f"{name} {size_text(size)}" for name, size in memory.items() if size)
    return f"  holds {size_text(sum(memory.values()))}{of}: {held}"


def table_of(rows: Sequence[LayoutParts], loses: bool = True) -> str:
    """What each takes, what it ``loses`` against the first, and where: a line for each, a column for each part."""
    kinds = list(dict.fromkeys(name for row in rows for name in row.parts))
    held = list(dict.fromkeys(n for row in rows for n, size in row.memory.items() if size > SMALL * row.peak_bytes))
    waits = [name if name in ("compute", "bubble", "optimizer") else f"{name} waits" for name in kinds]
    cells: list[tuple[str, ...]] = [("", "seconds", "loses", *waits, *held, "")]
    best = rows[0]
    for row in rows:
        cells.append(
            (
                row.name,
                time_text(row.seconds),
                "" if row is best else _difference(row.seconds - best.seconds, best.seconds),
                *(shown_time(row.parts.get(name, 0.0), row.seconds) for name in kinds),
                *(size_text(row.memory.get(name, 0)) for name in held),
                "; ".join(part for part in (row.note, "" if row.fits else "does not fit") if part),
            )
        )
    if not loses:
        cells = [row[:2] + row[3:] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _difference(seconds: float, of: float) -> str:
    return ("-" if seconds < 0 else "+") + shown_time(abs(seconds), of) if abs(seconds) > NOISE * of else "0"


def compare_chart(title: str, rows: Sequence[LayoutParts]) -> Chart:
    """A row for each, made up of its parts."""
    lanes = []
    for row in rows:
        at, bars = 0.0, []
        for name, seconds in row.parts.items():
            kind = name if name in ("compute", "bubble", "optimizer") else f"{name} waits"
            bars.append(GanttBar(at, seconds, row.name, kind))
            at += seconds
        lanes.append(Lane("", row.name, tuple(bars)))
    return Chart(title, max(row.seconds for row in rows), tuple(lanes), compare=True)


def what_if_lines(found: Sequence[WhatIf]) -> list[str]:
    """What single changes do, those that make another best first."""
    others = [one for one in found if one.other]
    lines = ["what would make another best:" if others else "no change tried makes another best:"]
    return lines + [f"  {one}" for one in [*others, *(one for one in found if not one.other)]]


# Changes of a machine

_LINKS = ("link_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s", "node_bytes_per_s", "unit_bytes_per_s",
          "spine_bytes_per_s", "dcn_bytes_per_s", "dcn_bytes_per_s_per_host", "measured_bus_bytes_per_s",
          "nccl_max_bus_bytes_per_s")  # fmt: skip
NEXT = 2  # chips of the same kind that are tried


class ChangedMachine(NamedTuple):
    """A machine after a change, and the memory of a device of it, as a multiple of what it was."""

    change: str
    topology: Topology
    memory: float


def changed_machines(topology: Topology) -> Iterator[ChangedMachine]:
    """The machine with faster and slower links, with more and less memory, and of the next chips of its kind.

    >>> [one.change for one in changed_machines(Topology("h100", 8))][:4]
    ['twice the bandwidth of links', 'half the bandwidth of links', 'twice the memory', 'half the memory']
    """
    chip = topology.chip
    for word, factor in (("twice", 2.0), ("half", 0.5)):
        rates = {name: factor * chip.facts[name].value for name in _LINKS if name in chip.facts}
        yield ChangedMachine(f"{word} the bandwidth of links", with_chip(topology, chip.replace(**rates)), 1.0)
    yield ChangedMachine("twice the memory", topology, 2.0)
    yield ChangedMachine("half the memory", topology, 0.5)
    kin = [name for name in chip_names() if get_chip(name).kind == chip.kind]
    for name in kin[kin.index(chip.name) + 1 :][:NEXT] if chip.name in kin else ():
        other = get_chip(name)
        if "hbm_bytes" in other.facts and "hbm_bytes" in chip.facts:
            with suppress(HardwareError):
                yield ChangedMachine(f"{name} chips", with_chip(topology, other), other.hbm_bytes / chip.hbm_bytes)


def with_chip(topology: Topology, chip: Chip, chips: int | None = None) -> Topology:
    """The machine of another chip, or of another number of chips, which lie as such a number does by default."""
    if chips is None and (topology.chip.kind == "gpu" or chip.name == topology.chip.name):
        return Topology(chip, topology.shape, wrap=topology.wrap, slices=topology.slices)
    return Topology(chip, topology.size if chips is None else chips)

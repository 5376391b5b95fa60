"""What a simulation found: time, memory, what bounds it, where the time goes; and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from math import inf, prod
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.gantt import Chart, Charted, GanttBar, Lane
from meshwright.chart.page import Figure, Part, text_part
from meshwright.hardware.topology import Topology
from meshwright.simulate.machine import COMPUTE, FROM_HOST, TO_HOST, Machine, whole_axes
from meshwright.simulate.memory import MemoryUse
from meshwright.simulate.schedule import Event
from meshwright.simulate.tasks import Task, TaskBlock


class Share(NamedTuple):
    """A part of the work: what it is, how often it comes, its seconds on the machine's parts, FLOPs and bytes."""

    name: str
    times: int
    seconds: float
    flops: float
    nbytes: float
    moved: float


@dataclass(frozen=True)
class Simulation(Charted):
    """One device of a machine that runs a program: they all do the same at the same time."""

    seconds: float
    timeline: tuple[Event, ...]
    memory: MemoryUse
    topology: Topology
    mesh: dict[str, int]
    notes: tuple[str, ...]
    block: TaskBlock = field(repr=False)
    machine: Machine = field(repr=False)

    @property
    def peak_bytes_per_device(self) -> int:
        """The most that the memory of a device holds at a time."""
        return self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether that is no more than the chip has, as far as that is known."""
        return self.memory.peak_bytes <= self.topology.chip.known("hbm_bytes", inf)

    # Sums over tasks, with loops counted in full.

    def leaves(self) -> Iterator[tuple[Task, int]]:
        """Every kernel and collective, and how often it runs."""
        yield from block_leaves(self.block, 1)

    @property
    def flops(self) -> float:
        """Floating-point operations of one device."""
        return sum(times * task.cost.flops for task, times in self.leaves())

    @property
    def product_flops(self) -> float:
        """The FLOPs of matmuls and convolutions."""
        return sum(times * task.cost.matmul_flops for task, times in self.leaves())

    @property
    def compute_seconds(self) -> float:
        """How long a device computes, or moves memory for it."""
        return sum(times * task.cost.seconds for task, times in self.leaves() if COMPUTE in task.cost.units)

    @property
    def communication_seconds(self) -> float:
        """How long collectives take, one after another."""
        return sum(times * task.cost.seconds for task, times in self.leaves() if task.cost.axes)

    @property
    def host_seconds(self) -> float:
        """How long values are on their way to the memory of the host and back, one after another."""
        return sum(times * task.cost.seconds for task, times in self.leaves() if task.cost.bound == "host link")

    @property
    def idle_seconds(self) -> float:
        """Time in which a device waits for the work of others: the bubble of a pipeline."""
        return 0.0

    @property
    def exposed_seconds(self) -> float:
        """Time in which a device waits for communication, or for the host."""
        return max(0.0, self.seconds - self.compute_seconds - self.idle_seconds)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the share of the chip's peak rate that the model's matmuls and convolutions reach.

        What a checkpoint computes again in the backward pass is not the model's; elementwise FLOPs and time in which
        nothing is multiplied count for nothing.
        """
        return self._utilization(recomputed=False)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: as ``mfu``, with what is computed again.

        >>> import meshwright as mw
        >>> x = mw.ShapeDtypeStruct((4096, 4096), "bfloat16")
        >>> f = mw.checkpoint(lambda x: mw.numpy.tanh(x @ x))
        >>> result = mw.simulate(mw.make_program(mw.value_and_grad(lambda x: f(x).sum()))(x), "h100")
        >>> round(result.hfu / result.mfu, 6)
        1.333333
        """
        return self._utilization(recomputed=True)

    def _utilization(self, recomputed: bool) -> float:
        if not self.seconds:
            return 0.0
        work: dict[str, float] = {}
        for task, times in self.leaves():
            flops = task.cost.matmul_flops if recomputed else task.model_flops
            if flops:
                work[task.cost.dtype] = work.get(task.cost.dtype, 0.0) + times * flops
        peak = sum(flops / self.topology.chip.flops_per_s(dtype) for dtype, flops in work.items())
        return peak / self.seconds

    def axis_seconds(self) -> dict[str, float]:
        """Seconds of collectives along each mesh axis, or along several at once.

        >>> from meshwright.simulate import simulate
        >>> import meshwright as mw
        >>> f = lambda x: mw.lax.psum(x, "i")
        >>> g = mw.shard_map(f, mesh=mw.make_mesh((8,), ("i",)), in_specs=mw.P("i"), out_specs=mw.P())
        >>> result = simulate(mw.make_program(g)(mw.numpy.ones((8, 1024))), "tpu v5e")
        >>> {axis: round(seconds * 1e6) for axis, seconds in result.axis_seconds().items()}
        {'i': 14}
        """
        found: dict[str, float] = {}
        for task, times in self.leaves():
            if task.cost.axes:
                name = ",".join(task.cost.axes)
                found[name] = found.get(name, 0.0) + times * task.cost.seconds
        return found

    def unit_seconds(self) -> dict[str, float]:
        """How long each part of the machine is busy: "compute" and its networks."""
        found = {COMPUTE: 0.0}
        for task, times in self.leaves():
            for unit in task.cost.units:
                found[unit] = found.get(unit, 0.0) + times * task.cost.seconds
        return found

    @property
    def bound(self) -> str:
        """The part of the machine that decides the time, and how far it is from what comes next.

        ``communication-bound on axis model by 2.1x``: collectives along it take 2.1 times as long as all kernels. Axes
        that lie on one network take turns on it, and are named together: ``axes data, model (nvlink)``.
        """
        units, compute = self.unit_seconds(), self.compute_seconds
        host = max(units.get(unit, 0.0) for unit in (TO_HOST, FROM_HOST))
        networks = {unit: seconds for unit, seconds in units.items() if unit not in (COMPUTE, TO_HOST, FROM_HOST)}
        worst = max(networks, key=lambda unit: networks[unit], default="")
        busiest = networks.get(worst, 0.0)
        if host > max(compute, busiest):
            return "bound by the link to the host" + (f", by {host / compute:.1f}x over compute" if compute else "")
        if busiest > compute:
            by = f" by {busiest / compute:.1f}x" if compute else ""
            return f"communication-bound on {self._axes_on(worst)}{by}"
        busy = {"compute": 0.0, "memory": 0.0}
        for task, times in self.leaves():
            if task.cost.bound in busy:
                busy[task.cost.bound] += times * task.cost.seconds
        kind = max(busy, key=lambda name: busy[name])
        if not compute:
            return "nothing to do"
        if not busiest:
            return f"{kind}-bound, without communication"
        return f"{kind}-bound by {compute / busiest:.1f}x over {self._axes_on(worst)}"

    def _axes_on(self, unit: str) -> str:
        """The mesh axes whose collectives keep a network busy; of several collectives, with its name."""
        found = dict.fromkeys(task.cost.axes for task, _ in self.leaves() if task.cost.axes and unit in task.cost.units)
        groups = list(found) or [self.machine.lying_on(unit)]
        names = list(dict.fromkeys(axis for axes in groups for axis in axes))
        text = (", " if len(groups) > 1 else ",").join(names)
        return f"{'axes' if len(names) > 1 else 'axis'} {text}{f' ({unit})' if len(groups) > 1 else ''}"

    def by_op(self) -> list[Share]:
        """The work by op, from the longest on; "fused" are chains of elementwise ops and reductions."""
        return self._by(lambda task: task.op)

    def by_line(self) -> list[Share]:
        """The work by the line of the user's code that it came from, from the longest on."""
        return self._by(lambda task: str(task.source) if task.source else "(no line)")

    def _by(self, key: Callable[[Task], str]) -> list[Share]:
        found: dict[str, Share] = {}
        for task, times in self.leaves():
            cost, name = task.cost, key(task)
            old = found.get(name, Share(name, 0, 0.0, 0.0, 0.0, 0.0))
            found[name] = Share(
                name,
                old.times + times,
                old.seconds + times * cost.seconds,
                old.flops + times * cost.flops,
                old.nbytes + times * cost.nbytes,
                old.moved + times * cost.moved,
            )
        return sorted(found.values(), key=lambda share: (-share.seconds, share.name))

    # Texts and files

    def __str__(self) -> str:
        chip = self.topology.chip
        devices = f"{self.topology.size:,} chips" if self.topology.size > 1 else "1 chip"
        mesh = ", mesh " + " ".join(f"{name}={size}" for name, size in self.mesh.items()) if self.mesh else ""
        there = f", {size_text(self.memory.host_bytes)} on the host" if self.memory.host_bytes else ""
        room = f"of {size_text(chip.hbm_bytes)}" if "hbm_bytes" in chip.facts else ""
        spill = "" if not room or self.fits else "  DOES NOT FIT"
        hidden = self.communication_seconds - min(self.communication_seconds, self.exposed_seconds)
        lines = [
            f"{time_text(self.seconds)} on {self.topology.text} ({devices}{mesh}), {self.machine.mode}",
            f"  {self.bound}",
            f"  compute {time_text(self.compute_seconds)}, communication {time_text(self.communication_seconds)}"
            + (f", {hidden / self.communication_seconds:.0%} of it hidden" if self.communication_seconds else "")
            + (f", to and from the host {time_text(self.host_seconds)}" if self.host_seconds else "")
            + (f", waiting for other stages {time_text(self.idle_seconds)}" if self.idle_seconds else ""),
            f"  {self.flops:.3g} FLOPs a device, MFU {self.mfu:.1%}"
            + (f", HFU {self.hfu:.1%} with what is computed again" if self.hfu != self.mfu else ""),
            f"  memory {size_text(self.peak_bytes_per_device)} {room}{spill}".rstrip() + there,
        ]
        lines += [*self._idle(), *(f"  note: {note}" for note in self.notes)]
        return "\n".join(lines)

    @property
    def idle_chips(self) -> int:
        """Chips of the machine that the program does not run on."""
        return self.topology.size - prod(whole_axes(self.mesh).values())

    def _idle(self) -> list[str]:
        """A line about chips that do nothing, if there are any."""
        size, idle = self.topology.size, self.idle_chips
        return [f"  {idle:,} of {size:,} chips do nothing: the program is for {size - idle:,}"] if idle else []

    def cost(self) -> str:
        """The work of a device as a table, whatever overlaps: FLOPs, memory traffic, communication, memory."""
        nbytes = sum(times * task.cost.nbytes for task, times in self.leaves())
        lines = [
            f"one device of {self.topology.text}",
            f"  {self.flops:.3g} FLOPs, {self.product_flops:.3g} of them in products",
            f"  {size_text(nbytes)} of memory traffic"
            + (f", {self.flops / nbytes:.3g} FLOPs a byte" if nbytes else ""),
            f"  compute {time_text(self.compute_seconds)}",
        ]
        moved: dict[str, float] = {}
        for task, times in self.leaves():
            if task.cost.axes:
                name = ",".join(task.cost.axes)
                moved[name] = moved.get(name, 0.0) + times * task.cost.moved
        seconds = self.axis_seconds()
        lines += [f"  along {axis}: {size_text(moved[axis])} received, {time_text(seconds[axis])}" for axis in moved]
        lines += [f"  {self.bound}", *self._idle(), *(f"  note: {note}" for note in self.notes)]
        if not self.fits:
            room = size_text(self.topology.chip.hbm_bytes)
            lines.append(f"  memory {size_text(self.peak_bytes_per_device)} of {room}  DOES NOT FIT")
        return "\n".join([*lines, "", self.breakdown(), "", str(self.memory)])

    def breakdown(self, rows: int = 12) -> str:
        """The longest ops and, unless all is from one line, lines as tables."""
        total = sum(share.seconds for share in self.by_op()) or 1.0
        parts = []
        tables = [("op", self.by_op()), ("line", self.by_line())]
        for title, shares in tables if len(tables[1][1]) > 1 else tables[:1]:
            width = max([len(title), *(len(share.name) for share in shares[:rows])])
            heads = f"{'times':>7}  {'time':>9}  {'share':>5}  {'FLOPs':>9}  {'memory':>9}  received"
            lines = [f"{title:<{width}}  {heads}"]
            for share in shares[:rows]:
                lines.append(
                    f"{share.name:<{width}}  {share.times:>7}  {time_text(share.seconds):>9}  "
                    f"{share.seconds / total:>5.0%}  {share.flops:>9.3g}  {size_text(share.nbytes):>9}  "
                    f"{size_text(share.moved):>8}".rstrip()
                )
            if len(shares) > rows:
                lines.append(f"and {len(shares) - rows} more")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def chart(self) -> Chart:
        """The timeline as rows, one for each part of the machine; loop iterations that are not shown are one box."""
        lanes = (Lane("", self._unit_name(unit), tuple(self._bars(unit))) for unit in self.unit_seconds())
        return Chart(f"one device of {self.topology.text}", self.seconds, tuple(lanes))

    def page_figures(self) -> list[Figure]:
        chip = self.topology.chip
        memory = f"of {size_text(chip.hbm_bytes)}" if "hbm_bytes" in chip.facts else ""
        return [
            ("a step", time_text(self.seconds), self.bound),
            ("exposed", time_text(self.exposed_seconds), f"of {time_text(self.communication_seconds)} of collectives"),
            ("MFU", f"{self.mfu:.1%}", f"compute {time_text(self.compute_seconds)}"),
            ("memory", size_text(self.peak_bytes_per_device), memory),
        ]

    def page_parts(self) -> list[Part]:
        return [text_part("Where the time goes", str(self))]

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self), quote=False)}</pre>{super()._repr_html_()}"

    def _unit_name(self, unit: str) -> str:
        axes = self.machine.lying_on(unit) if unit != COMPUTE else ()
        return f"{unit} ({', '.join(axes)})" if axes else unit

    def _bars(self, unit: str) -> Iterator[GanttBar]:
        """What keeps a part of the machine busy, in the order of time."""
        for event in sorted(self.timeline, key=lambda event: event.start):
            task = event.task
            if event.rest:
                share = event.rest * _unit_time(task, unit) / event.seconds if event.seconds else 0.0
                if share:
                    name = f"{event.rest} more steps of {task.name}" if event.rest < task.times else task.name
                    yield GanttBar(event.start, event.seconds, name, task.op, 0, min(1.0, share), _facts(task))
            elif task.body is None and unit in task.cost.units and event.seconds:
                yield GanttBar(event.start, event.seconds, task.name, task.op, facts=_facts(task))


def _facts(task: Task) -> dict[str, Any]:
    """What a page and a trace say of a task."""
    return {
        "line": str(task.source) if task.source else "",
        "flops": task.cost.flops,
        "memory bytes": task.cost.nbytes,
        "bytes received": task.cost.moved,
        "bound": task.cost.bound,
    }


def block_leaves(block: TaskBlock, times: int = 1) -> Iterator[tuple[Task, int]]:
    """Every kernel and collective of a block and of the loops in it, and how often it runs."""
    for task in block.tasks:
        if task.body is None:
            yield task, times
        else:
            yield from block_leaves(task.body, times * task.times)


def _unit_time(task: Task, unit: str) -> float:
    """How long one iteration of a loop keeps a part of the machine busy."""
    assert task.body is not None
    return sum(times * one.cost.seconds for one, times in block_leaves(task.body, 1) if unit in one.cost.units)

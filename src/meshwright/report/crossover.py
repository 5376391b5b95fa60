"""When a kernel that sends beside computing is faster than a collective and computing after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from meshwright.chart.amounts import time_text
from meshwright.core.program import Program
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.hardware.collectives import collective_seconds
from meshwright.kernel.timing.timeline import Timeline
from meshwright.simulate.spmd import simulate

SCALES = tuple(Fraction(1, 1 << n) if n >= 0 else Fraction(1 << -n) for n in range(5, -3, -1))
MORE_SCALES = (Fraction(8), Fraction(16), Fraction(32))  # while it is not faster yet, and comes nearer to it


@dataclass(frozen=True)
class CrossoverRow:
    """A kernel at one size: its time on the machine, and that of its parts one after the other."""

    size: int  # of the last dim of the last argument
    kernel_seconds: float
    sent_bytes: int  # by the device that sends most
    collective_seconds: float  # an all-gather by which every device receives as much, as the hardware model has it
    compute_seconds: float

    @property
    def apart_seconds(self) -> float:
        """First the collective, then the computing."""
        return self.collective_seconds + self.compute_seconds

    @property
    def ratio(self) -> float:
        """The kernel's time in units of that of its parts one after the other."""
        return self.kernel_seconds / self.apart_seconds if self.apart_seconds else 1.0

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "apart_seconds": self.apart_seconds, "ratio": self.ratio}


def crossover(
    trace: Callable[[Sequence[TensorType]], Program], types: Sequence[TensorType], machine: Any
) -> tuple[list[CrossoverRow], Timeline]:
    """The kernel of a function at several sizes of the last dim of its last argument, and its timeline as given.

    ``trace`` gives the program for types of its arguments. Sizes that the function refuses, or at which its grid is
    empty, are left out. Where it is faster at none of them, larger ones follow as long as it comes nearer. A kernel
    that sends nothing has one row, of the size given: it has no collective to be compared with.
    """
    rows: list[CrossoverRow] = []
    given = _timeline(trace(types), machine)
    last = types[-1]
    if given.spans and not any(span.lane.startswith("to ") for span in given.spans):
        return [_row(last.shape[-1] if last.shape else 1, given)], given
    for scale in (*SCALES, *MORE_SCALES):
        if scale in MORE_SCALES and (len(rows) < 2 or not 1 <= rows[-1].ratio < rows[-2].ratio):
            break
        size = last.shape[-1] * scale if last.shape else Fraction(0)
        if size.denominator != 1 or size < 1:
            continue
        scaled = [*types[:-1], last.with_(shape=(*last.shape[:-1], int(size)))]
        try:
            found = given if scale == 1 else _timeline(trace(scaled), machine)
        except MeshwrightError:
            continue
        if found.spans:
            rows.append(_row(int(size), found))
    return rows, given


def _timeline(program: Program, machine: Any) -> Timeline:
    found: Any = simulate(program, machine)
    if not isinstance(found, Timeline):
        raise MeshwrightError(
            "The program is more than one kernel.",
            why="what a kernel hides is known of a kernel alone",
            fix="a function whose shard_map calls one pl.pallas_call and returns its result",
        )
    return found


def _row(size: int, found: Timeline) -> CrossoverRow:
    sent: dict[int, int] = {}
    for span in found.spans:
        if span.lane.startswith("to "):
            sent[span.device] = sent.get(span.device, 0) + span.nbytes
    most, devices = max(sent.values(), default=0), 1
    for n in found.mesh.values():
        devices *= n
    gathered = most * devices / max(devices - 1, 1)
    seconds = collective_seconds("all_gather", gathered, found.topology, tuple(found.mesh)) if most else 0.0
    compute = max((found.busy(device, "compute") for device in range(devices)), default=0.0)
    return CrossoverRow(size, found.seconds, most, seconds, compute)


def crossover_text(rows: Sequence[CrossoverRow], timeline: Timeline) -> str:
    """The table, and from which size on the kernel is faster."""
    machine = f"{timeline.topology.chip.name} {'x'.join(map(str, timeline.topology.shape))}"
    lines = [
        f"{timeline.name} on {machine}: sending beside computing, and one after the other",
        f"{'last dim':>10} {'kernel':>10} {'gather':>10} {'compute':>10} {'apart':>10} {'ratio':>7}",
    ]
    for row in rows:
        times = (row.kernel_seconds, row.collective_seconds, row.compute_seconds, row.apart_seconds)
        lines.append(f"{row.size:>10} " + " ".join(f"{time_text(t):>10}" for t in times) + f" {row.ratio:7.2f}")
    faster = [row.size for row in rows if row.ratio < 1]
    lines.append(
        f"The kernel is faster from a last dim of {min(faster)} on." if faster else "The kernel is at no size faster."
    )
    return "\n".join(lines)

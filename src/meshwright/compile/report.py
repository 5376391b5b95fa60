"""The report: one page about a compiled program on a machine, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from meshwright.compile.explain import Explanation
from meshwright.compile.findings import Hidden, Measured
from meshwright.compile.stacks import StackFolder
from meshwright.compile.value_names import of_any_index
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.source import Source
from meshwright.core.text.printing import print_params
from meshwright.partition.combine import dearest
from meshwright.sharding.named import TensorSharding
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.memory import MemoryUse
from meshwright.simulate.simulation import Simulation

COMPUTED, HIDDEN, EXPOSED, NOT_SHOWN = range(4)  # what a box of the timeline is
MOST_TEXT = 160  # characters of an equation


def report_data(found: Explanation, title: str) -> dict[str, Any]:
    """What the page shows of a program, as JSON has it; `frontend/src/data.ts` says the same in TypeScript."""
    lines = _Lines(StackFolder([found.placed.source if found.placed is not None else found.program]))
    equations, values, numbers = _equations(found, lines)
    listed = [
        {
            **one.record(),
            "axes": one.collective.whole_axes,
            "exposed_seconds": one.exposed_seconds,
            "values": len(one.collective.values),
            "var": numbers.get(one.collective.var) if one.collective.var is not None else None,
        }
        for one in found.findings
    ]
    measured = found.measured if isinstance(found.measured, Measured) else None
    return {
        "title": title,
        "mesh": [] if found.compiled.mesh is None else list(found.compiled.mesh.shape.items()),
        **_totals(found),
        **_simulated(measured.simulation if measured is not None else None, lines, found.names),
        "collectives": listed,
        "rows": _rows(found),
        "cheaper": [{"text": str(one), "fix": one.fix} for one in found.cheaper()],
        "equations": equations,
        "values": values,
        "notes": [f"no times: {found.measured}"] if measured is None else list(measured.simulation.notes),
        "lines": [(str(one), one.text) for one in lines.all],
    }


def _rows(found: Explanation) -> list[dict[str, Any]]:
    """The rows of the text of `explain`, each with the numbers of the collectives in it."""
    numbers = {id(one): n for n, one in enumerate(found.findings)}
    return [
        {
            "members": [numbers[id(one)] for one in row.members],
            "bytes": row.bytes_text,
            "line": row.line,
            "value": row.value,
            "why": row.why,
            "written": list(found.written(row.first.collective)),
            "inside": [*row.scopes, *map(str, row.first.collective.loops), *map(str, row.first.collective.within)],
        }
        for row in found.rows()
    ]


def _totals(found: Explanation) -> dict[str, Any]:
    """Bytes and seconds of collectives by axis and by kind: of branches, those of the dearest."""
    by_axis: dict[str, list[float]] = {}
    by_kind: dict[str, list[float]] = {}
    received = 0
    for c in dearest(found.collectives):
        nbytes, seconds = c.bytes_received_per_device * c.times, c.seconds(found.machine) * c.times
        received += nbytes
        for sums, key in ((by_axis, ",".join(c.whole_axes)), (by_kind, c.kind)):
            total = sums.setdefault(key, [0, 0.0])
            total[0] += nbytes
            total[1] += seconds
    by_time = [sorted(sums.items(), key=lambda one: -one[1][1]) for sums in (by_axis, by_kind)]
    axes, kinds = ([[name, *total] for name, total in rows] for rows in by_time)
    return {"received_bytes": received, "by_axis": axes, "by_kind": kinds}


def _at_peak(use: MemoryUse, lines: _Lines, names: Sequence[str]) -> list[dict[str, Any]]:
    """What is alive at the peak, equal values of one line together, and arguments of all layers, the most bytes
    first."""
    found: dict[tuple[str, int], list[int]] = {}
    for one in use.at_peak:
        named = one.input is not None and one.input < len(names)
        what = f"{of_any_index(names[one.input])} {one.what}" if named and one.input is not None else one.what
        found.setdefault((what, lines.of(one.source)), []).append(one.nbytes)
    rows = [
        {"what": what if len(sizes) == 1 else f"{len(sizes)} × {what}", "bytes": sum(sizes), "line": line}
        for (what, line), sizes in found.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def _simulated(run: Simulation | None, lines: _Lines, arguments: Sequence[str]) -> dict[str, Any]:
    """What a simulation found: its figures, timeline and memory."""
    if run is None:
        figures = ("compute_seconds", "communication_seconds", "exposed_seconds", "peak_bytes", "argument_bytes")
        nothing: dict[str, Any] = dict.fromkeys((*figures, "output_bytes", "temporary_bytes"), 0)
        nothing |= dict.fromkeys(("machine", "seconds", "mfu", "hfu", "hbm_bytes"))
        return nothing | {"bound": "", "names": [], "lanes": [], "memory": {"curve": [], "peak": [], "line": None}}
    use, chip = run.memory, run.topology.chip
    names = _Numbered()
    return {
        "machine": run.topology.text,
        "seconds": run.seconds,
        "bound": run.bound,
        "mfu": run.mfu,
        "hfu": run.hfu,
        "compute_seconds": run.compute_seconds,
        "communication_seconds": run.communication_seconds,
        "exposed_seconds": min(run.exposed_seconds, run.communication_seconds),
        "peak_bytes": use.peak_bytes,
        "hbm_bytes": chip.hbm_bytes if "hbm_bytes" in chip.facts else None,
        "argument_bytes": use.argument_bytes,
        "output_bytes": use.output_bytes,
        "temporary_bytes": use.temporary_bytes,
        "lanes": _lanes(run, names, lines),
        "names": names.all,
        "memory": {
            "curve": list(use.curve),
            "peak": _at_peak(use, lines, arguments),
            "line": lines.place(use.peak_source),
        },
    }


def _lanes(run: Simulation, names: _Numbered, lines: _Lines) -> list[dict[str, Any]]:
    """What keeps each part of the machine busy: boxes in the order of time."""
    hidden = Hidden(run)
    bars: dict[str, list[list[float]]] = {unit: [] for unit in run.unit_seconds()}
    for event in sorted(run.timeline, key=lambda one: one.start):
        task = event.task
        if event.rest:
            text = f"{event.rest} more steps of {task.name}" if event.rest < task.times else task.name
            kind = NOT_SHOWN
        elif task.body is None and event.seconds:
            text = task.name
            kind = COMPUTED
            if task.cost.axes:
                kind = HIDDEN if hidden.seconds(event) > event.seconds / 2 else EXPOSED
        else:
            continue
        for unit in task.cost.units:
            if unit in bars:
                bars[unit].append([event.start, event.seconds, names.of(text), lines.of(task.source), kind])
    return [
        {"name": unit if unit == COMPUTE else ", ".join(run.machine.lying_on(unit)) or unit, "bars": boxes}
        for unit, boxes in bars.items()
        if boxes
    ]


class _Numbered:
    """Things that are written once, and named by their numbers."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._known: dict[Any, int] = {}

    def of(self, one: Any) -> int:
        """The number of a thing; −1 of none."""
        if one is None:
            return -1
        if one not in self._known:
            self._known[one] = len(self.all)
            self.all.append(one)
        return self._known[one]


class _Lines(_Numbered):
    """Lines by their numbers: of a helper, the line that called it."""

    def __init__(self, folder: StackFolder) -> None:
        super().__init__()
        self.folder = folder

    def of(self, one: Source | None) -> int:
        """The number of a line; −1 of none."""
        return super().of(self.folder.fold(one).line)

    def place(self, one: Source | None) -> str | None:
        """A line as text."""
        line = self.folder.fold(one).line
        return str(line) if line is not None else None


def _equations(found: Explanation, lines: _Lines) -> tuple[list[list[Any]], list[dict[str, Any]], dict[Atom, int]]:
    """The equations of the program before it was partitioned, its values with their shardings, and their numbers."""
    placed = found.placed
    program = placed.source if placed is not None else found.program
    shardings = placed.propagated.shardings if placed is not None else {}
    numbers: dict[Atom, int] = {}
    values: list[dict[str, Any]] = []
    letters = _letters()

    def define(var: Var, name: str) -> int:
        numbers[var] = len(values)
        sharding = shardings.get(var)
        values.append({"name": name, **_value(var, sharding)})
        return numbers[var]

    def name(atom: Atom) -> str:
        return (
            str(atom.value) if isinstance(atom, Literal) else values[numbers[atom]]["name"] if atom in numbers else "?"
        )

    rows: list[list[Any]] = []

    def walk(part: Program, depth: int, names: Sequence[str] | None) -> None:
        for n, var in enumerate(part.inputs):
            number = define(var, names[n] if names is not None else next(letters))
            if names is not None:
                rows.append(["argument", -1, [number], depth])
        for var, _ in part.constants:
            define(var, next(letters))
        for eqn in part.eqns:
            made = [define(var, next(letters)) for var in eqn.outputs]
            rows.append([_text(eqn, name), lines.of(eqn.source), made, depth])
            for _, region in eqn.regions():
                walk(region, depth + 1, None)

    walk(program, 0, found.names)
    return rows, values, numbers


def _text(eqn: Eqn, name: Any) -> str:
    regions = {key.split("[")[0] for key, _ in eqn.regions()}
    params = {key: value for key, value in eqn.params.items() if key not in regions}
    text = " ".join([eqn.op.name, *map(name, eqn.inputs), print_params(params)]).rstrip()
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _value(var: Var, sharding: TensorSharding | None) -> dict[str, Any]:
    dims = [[axis.short() for axis in dim.axes] for dim in sharding.dims] if sharding is not None else []
    shown = var.type.short()
    if any(dims) and sharding is not None:
        shown = f"{shown.partition('[')[0]}[{','.join(sharding.type_dims(var.type.shape))}]"
    return {
        "type": shown,
        "shape": list(var.type.shape),
        "dims": dims or [[] for _ in var.type.shape],
        "unreduced": [axis.short() for axis in sharding.unreduced] if sharding is not None else [],
    }


def _letters() -> Iterator[str]:
    """a, b, …, z, aa, ab, …"""
    for n in count():
        text, rest = "", n
        while rest >= 0:
            text, rest = chr(ord("a") + rest % 26) + text, rest // 26 - 1
        yield text

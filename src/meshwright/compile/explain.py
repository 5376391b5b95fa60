"""Why a partitioned program communicates as it does, what would be cheaper, and what is held twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from meshwright.chart.amounts import numbers_text, size_text, time_text
from meshwright.compile.findings import Finding, Measured, findings, measure
from meshwright.compile.partitioning import Collective, PartitionedProgram
from meshwright.compile.stacks import StackFolder
from meshwright.compile.suggestions import Suggestion, axes_written, suggestions
from meshwright.compile.value_names import GRADIENT, ValueNames, general, of_any_index
from meshwright.core import tree
from meshwright.core.program import Program, Var
from meshwright.core.source import FORWARD
from meshwright.core.types import TensorType
from meshwright.partition.combine import dearest, received
from meshwright.partition.cost import DEFAULT_CHIP
from meshwright.partition.layouts import axes_used
from meshwright.partition.reshard.plan import show_bytes
from meshwright.propagate.reasons import Reasons

SCHEMA = "meshwright.explain/1"
SHOWN = 5
MOST_ROWS = 15  # of a text that nobody asked for more of
MOST_WRITTEN = 4  # places where an axis is written
WORTH_SPLITTING = 1 << 20  # bytes


class ReplicatedValue(NamedTuple):
    """A value that devices hold more than once although an axis is free that could split it."""

    name: str
    type: TensorType
    free: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.type.short()}, {show_bytes(self.type.nbytes)}: free {', '.join(self.free)}"


class Filter(NamedTuple):
    """Which collectives are wanted: those over an axis, of a kind, of a line, in a scope; and at most so many rows."""

    axis: str | None = None
    kind: str | None = None
    line: str | None = None
    scope: str | None = None
    top: int | None = None

    def wants(self, one: Finding) -> bool:
        """Whether a collective is wanted. A line is meant by any line of its stack, a scope by a part of its name."""
        c = one.collective
        return (
            (self.axis is None or any(axis.split(":")[0] == self.axis for axis in c.axes))
            and (self.kind is None or c.kind == self.kind.replace("-", "_"))
            and (self.line is None or any(self.line in (str(s), f"{s.file}:{s.line}") for s in _lines(one)))
            and (self.scope is None or any(self.scope in scope for scope in one.around))
        )


EVERYTHING = Filter()


def _lines(one: Finding) -> list[Any]:
    return one.collective.origin.stack() if one.collective.origin is not None else []


@dataclass(frozen=True)
class Row:
    """Collectives that are the same but for the layer: one line of the table."""

    members: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.members[0]

    @property
    def times(self) -> int:
        return sum(one.times for one in self.members)

    @property
    def seconds(self) -> float:
        """The seconds of all runs of these collectives, one after another."""
        return sum(one.seconds * one.collective.times for one in self.members)

    @property
    def share(self) -> float | None:
        """The part of the simulated step that these collectives take; None if they are not in it."""
        known = [one.share for one in self.members if one.share is not None]
        return sum(known) if known else None

    @property
    def exposed_seconds(self) -> float | None:
        """The seconds of these collectives in which the device computes nothing."""
        known = [one.exposed_seconds * one.collective.times for one in self.members if one.exposed_seconds is not None]
        return sum(known) if known else None

    @property
    def bytes_text(self) -> str:
        """What a device receives in one run; of combined ones, the least and the most."""
        sizes = [one.collective.bytes_received_per_device * one.permutes for one in self.members]
        least, most = size_text(min(sizes)), size_text(max(sizes))
        if least == most:
            return least
        (low, unit), (high, other) = least.split(), most.split()
        return f"{low}–{high} {unit}" if unit == other else f"{least}–{most}"

    @property
    def line(self) -> str:
        """The line that all come from; of more, the first."""
        lines = list(dict.fromkeys(str(one.stack.line or "") for one in self.members))
        return lines[0] + ", …" * (len(lines) > 1)

    @property
    def value(self) -> str:
        """What is moved; of what was combined, how many values that is."""
        one = self.first
        if not one.is_combined or len(self.members) == 1:
            return one.called(self.common([member.name for member in self.members]))
        number = sum(len(member.collective.values) for member in self.members)
        of_gradients = all(member.name.startswith(GRADIENT) for member in self.members)
        what = "gradients" if of_gradients else "values"
        return f"{number} {what}: {one.name.removeprefix(GRADIENT) if of_gradients else one.name or one.made_by}, …"

    @property
    def why(self) -> str:
        """The reason; of what was combined, that of the first."""
        if not self.first.is_combined or len(self.members) == 1:
            return self.first.why
        more = sum(len(member.collective.values) for member in self.members) - 1
        return f"{self.first.why.partition(' (and ')[0]} (and {more} more sums, in {len(self.members)} collectives)"

    @property
    def scopes(self) -> list[str]:
        """The scopes around all of them, loops and branches not among them; none of values of many layers in one."""
        if self.first.is_combined or len({len(member.scopes) for member in self.members}) > 1:
            return []
        return [self.common(list(texts)) for texts in zip(*(member.scopes for member in self.members), strict=True)]

    def common(self, texts: Sequence[str]) -> str:
        """What is the same for all, numbers that differ as ranges: ``layers[0-31]``."""
        if len(set(texts)) == 1:
            return texts[0]
        if len({general(text) for text in texts}) > 1:
            return texts[0] + ", …"
        parts, numbers = general(texts[0]).split("*"), list(zip(*map(_numbers, texts), strict=True))
        shown = [numbers_text(sorted(set(column))) for column in numbers]
        return "".join(part + number for part, number in zip(parts, [*shown, ""], strict=True))


def _numbers(text: str) -> list[int]:
    found, digits = [], ""
    for letter in text + " ":
        if letter.isdigit():
            digits += letter
        elif digits:
            found.append(int(digits))
            digits = ""
    return found


@dataclass(frozen=True)
class Explanation:
    """What is known of the communication of a compiled program on a machine.

    ``names`` and ``out_names`` are what a user calls the arguments and results.
    """

    collectives: Sequence[Collective]
    placed: PartitionedProgram | None
    program: Program
    names: Sequence[str]
    out_names: Sequence[str]
    compiled: Any
    hardware: Any = None
    tries: bool = True  # whether other shardings of arguments are tried
    again: Any = None  # traces the program once more, and what that gave before
    in_tree: tree.TreeDef | None = None  # of the arguments

    @cached_property
    def machine(self) -> Any:
        """The machine that was asked about, that jit was told, or one of `DEFAULT_CHIP`."""
        told = self.placed.placement.hardware if self.placed is not None else None
        return self.hardware or told or DEFAULT_CHIP

    @cached_property
    def measured(self) -> Measured | str:
        return measure(self.compiled, self.machine, self.compiled.donated)

    @cached_property
    def value_names(self) -> ValueNames | None:
        """What a user calls the values, if the program is on a mesh."""
        return ValueNames(self.placed.source, self.names, self.out_names) if self.placed is not None else None

    @cached_property
    def reasons(self) -> Reasons | None:
        """Why values are sharded as they are, if the program is on a mesh."""
        return Reasons(self.placed.propagated, self.names, self.out_names) if self.placed is not None else None

    @cached_property
    def findings(self) -> list[Finding]:
        """Every collective, in the order of the program."""
        placed = self.placed
        measured = self.measured if isinstance(self.measured, Measured) else None
        names: ValueNames | None = None
        instead: list[Suggestion | None] = [None] * len(self.collectives)
        if placed is not None and self.collectives:
            names = self.value_names
            now = measured.simulation if measured is not None else None
            if self.tries:
                assert names is not None and self.reasons is not None
                instead = suggestions(placed, names, self.machine, now, self.reasons, self.again, self.in_tree)
        programs = [placed.source] if placed is not None else [self.program]
        return findings(self.collectives, programs, names, self.machine, measured, instead)

    def rows(self, wanted: Filter = EVERYTHING) -> list[Row]:
        """The collectives that are wanted, those of equal layers in one row, from the longest on."""
        groups: dict[Any, list[Finding]] = {}
        for one in filter(wanted.wants, self.findings):
            groups.setdefault(repr(one.group), []).append(one)
        found = sorted((Row(tuple(group)) for group in groups.values()), key=lambda row: -row.seconds)
        return found[: wanted.top]

    def cheaper(self) -> list[Suggestion]:
        """The shardings of arguments that save most, the best first."""
        found = {one.suggestion for one in self.findings if one.suggestion is not None and one.suggestion.saves}
        return sorted(found, key=lambda one: (-one.saved_seconds, -one.saved_bytes, one.argument))

    # Text

    def text(self, wanted: Filter = EVERYTHING) -> str:
        """A table of the collectives, cheaper shardings, and values that could be split further."""
        if not self.collectives:
            if self.placed is None:
                return "no collectives: the program runs on one device"
            return "\n".join(["no collectives: no device needs what another has", *self._audit_lines()])
        rows = self.rows(wanted)
        shown = rows if wanted.top is not None else rows[:MOST_ROWS]
        lines = [_summary(self.collectives), self._step(), *self.table(shown)]
        if len(shown) < len(rows):
            rest = sum(row.seconds for row in rows[len(shown) :])
            lines.append(f"and {len(rows) - len(shown)} more rows, {time_text(rest)} in all: top={len(rows)}")
        if self.placed is not None and wanted == EVERYTHING:
            cheaper = [f"    {one}" for one in self.cheaper()]
            lines += [*self._instead_lines(), *(["cheaper:", *cheaper] if cheaper else []), *self._audit_lines()]
        return "\n".join(lines)

    def _step(self) -> str:
        """How long the step takes, and how much of that is communication."""
        if isinstance(self.measured, str):
            return f"no times: {self.measured}"
        found = self.measured.simulation
        parts = found.communication_seconds, found.exposed_seconds
        share = f" ({parts[0] / found.seconds:.0%})" if found.seconds else ""
        return (
            f"a step takes {time_text(found.seconds)} on {found.topology.text}; "
            f"collectives {time_text(parts[0])}{share}, {time_text(min(parts))} of that exposed"
        )

    def table(self, rows: Sequence[Row]) -> list[str]:
        """Lines that say of every row what it moves, where and why."""
        cells = [["time", "share", "kind", "axes", "bytes", "times", "line", "value"], *map(self._cells, rows)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
        shown = ["  ".join(c.ljust(width) for c, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines = shown[:1]
        for text, row in zip(shown[1:], rows, strict=True):
            lines += [text, *(f"    {one}" for one in self._details(row))]
        return lines

    def _cells(self, row: Row) -> list[str]:
        one, share, c = row.first, row.share, row.first.collective
        ring = ""
        if c.overlap is not None and c.overlap.permutes:
            ring = f"{c.overlap.kind} as {one.permutes} permute{'s' * (one.permutes > 1)}"
        return [
            time_text(row.seconds),
            "–" if share is None else f"{share:.0%}" if share >= 0.005 or not share else "<1%",
            ring or c.kind,
            ",".join(c.whole_axes),
            row.bytes_text,
            str(row.times),
            row.line,
            row.value,
        ]

    def _details(self, row: Row) -> Iterator[str]:
        one = row.first
        yield row.why
        yield from self.written(one.collective)
        inside = [*(["/".join(row.scopes)] if row.scopes else []), *map(str, one.collective.loops)]
        if one.direction != FORWARD:
            inside.insert(0, one.direction)
        if inside:
            yield ", ".join(inside)
        yield from map(str, one.collective.within)
        stack = one.stack.show()
        if stack and (len(stack) > 1 or one.stack.helpers or "   " in stack[0]):
            yield "at " + " ← ".join([stack[0], *(line.split("   ")[0] for line in stack[1:])])
        exposed = row.exposed_seconds
        if exposed is not None and row.seconds:
            hidden = 1 - exposed / row.seconds
            if hidden > 0.005:
                yield f"{hidden:.0%} of it overlapped by compute, {time_text(exposed)} exposed"
        yield from _overlap_lines(one.collective)
        if one.suggestion is not None:
            yield f"{'instead' if one.suggestion.saves else 'next best'}: {one.suggestion}"

    def written(self, c: Collective) -> Iterator[str]:
        """Where the axes are written that a value has, and that stand against them, if it is gathered or moved."""
        if not c.implicit or c.kind not in ("all_gather", "all_to_all", "permute") or not isinstance(c.var, Var):
            return
        assert self.value_names is not None and self.reasons is not None
        axes = {axis.split(":")[0] for axis in c.axes}
        found: dict[tuple[str, str], None] = {}
        for axis, step in axes_written(self.value_names, self.reasons, c.var, axes):
            where = f" at {step.where}" if step.where else ""
            argument = step.op.removeprefix("argument ")
            name = of_any_index(argument) if argument != step.op else step.op + where
            found[axis, f"dim {step.dim} of {name}"] = None
        for axis in dict.fromkeys(axis for axis, _ in found):
            places = [place for other, place in found if other == axis]
            more = f" and {len(places) - MOST_WRITTEN} more" if len(places) > MOST_WRITTEN else ""
            yield f"{axis} is written on {', '.join(places[:MOST_WRITTEN])}{more}"

    def _instead_lines(self) -> list[str]:
        """What the planner left of the shardings that propagation found, and what that saves."""
        placed = self.placed
        if placed is None or placed.instead is None:
            return []
        argument, saved = placed.instead
        groups = placed.placement.groups or (0,) * len(self.names)
        less = f", which saves {show_bytes(saved)} per device" if saved > 0 else ""
        left = "instead of what propagation found, values"
        if argument is None:
            return [f"{left} without a constraint are sharded as they are used{less}"]
        return [f"{left} inside get their shardings from {_root(self.names[groups.index(argument)])} alone{less}"]

    def _audit_lines(self) -> list[str]:
        """What `audit` found, values that read the same on one line."""
        if self.placed is None:
            return []
        held = Counter(map(str, audit(self.placed, self.names, StackFolder([self.placed.source]))))
        if not held:
            return []
        shown = list(held.items())[:SHOWN]
        rest = held.total() - sum(count for _, count in shown)
        lines = [f"    {text}{f' ({count} of these)' if count > 1 else ''}" for text, count in shown]
        return ["whole along a free axis:", *lines, *([f"    and {rest} more"] if rest else [])]

    # For programs

    def to_json(self, wanted: Filter = EVERYTHING) -> dict[str, Any]:
        """What ``meshwright explain --json`` prints; ``meshwright schema explain`` says what is in it."""
        found = self.measured.simulation if isinstance(self.measured, Measured) else None
        shown = {id(one) for row in self.rows(wanted) for one in row.members}
        listed = [one for one in self.findings if id(one) in shown]
        counted = {id(one) for one in dearest(self.collectives)}
        return {
            "schema": SCHEMA,
            "machine": found.topology.text if found is not None else None,
            "mesh": {} if self.compiled.mesh is None else dict(self.compiled.mesh.shape),
            "seconds": found.seconds if found is not None else None,
            "exposed_seconds": found.exposed_seconds if found is not None else None,
            "peak_bytes_per_device": found.peak_bytes_per_device if found is not None else None,
            "bytes_received_per_device": received(self.collectives),
            "collectives": [
                one.record()
                | {
                    "exposed_seconds": one.exposed_seconds,
                    "values": len(one.collective.values),
                    "implicit": one.collective.implicit,
                    "counted": id(one.collective) in counted,
                }
                for one in listed
            ],
            "cheaper": [
                {
                    "kind": one.kind,
                    "arguments": list(one.arguments),
                    "spec": str(one.spec),
                    "saved_bytes": one.saved_bytes,
                    "saved_seconds": one.saved_seconds,
                    "saved_memory_bytes": one.saved_memory,
                    "fix": one.fix,
                }
                for one in self.cheaper()
            ],
        }

    def records(self, wanted: Filter = EVERYTHING) -> list[dict[str, Any]]:
        """A dict for each collective that is wanted; of rows, those that are shown."""
        if wanted.top is not None:
            shown = {id(one) for row in self.rows(wanted) for one in row.members}
            return [one.record() for one in self.findings if id(one) in shown]
        return [one.record() for one in self.findings if wanted.wants(one)]


def _root(name: str) -> str:
    """The argument that ``params['w']`` is part of."""
    return name.split("[")[0].split(".")[0]


def _summary(found: Sequence[Collective]) -> str:
    """How many collectives run and what a device receives: of a cond, in its dearest branch."""
    kinds: Counter[str] = Counter()
    for c in dearest(found):
        kinds[c.kind] += c.times
    total = sum(kinds.values())
    inside = [one for c in found for one in c.within]
    most = "at most " if any(one.branches for one in inside) else ""
    loops = {one for one in inside if not one.branches}
    steps = f", counting one step of {'the' if len(loops) == 1 else 'each'} while loop" if loops else ""
    counts = ", ".join(f"{kind} {n}" for kind, n in kinds.items())
    return (
        f"{most}{total} collective{'s' * (total != 1)}: {counts}; "
        f"{most}{received(found)} bytes received per device{steps}"
    )


def _overlap_lines(c: Collective) -> list[str]:
    """What overlap made of a collective, or why it did nothing."""
    if c.overlap is None:
        return []
    if c.overlap.why_not:
        return [f"not overlapped: {c.overlap.why_not}"]
    matmuls = "the matmul" if c.overlap.matmuls == 1 else f"{c.overlap.matmuls} matmuls"
    seconds = c.overlap.saved_seconds
    saved = f", saves {time_text(seconds)}{' each time' * (c.times > max(1, c.overlap.permutes))}" if seconds else ""
    return [f"{'in one kernel with' if c.overlap.kernel else 'under'} {matmuls}{saved}"]


def audit(placed: PartitionedProgram, names: Sequence[str], folder: StackFolder) -> list[ReplicatedValue]:
    """Large arguments and values that leave an axis unused which could split one of their dims, the largest first."""
    labels = dict(zip(placed.source.inputs, names, strict=True))
    sources = {v: e.source for e in placed.source.eqns for v in e.outputs}
    found = []
    for var, sharding in placed.propagated.shardings.items():
        if var.type.nbytes < WORTH_SPLITTING or (var not in labels and var not in sources):
            continue
        used = {axis.name for axis in axes_used(sharding)}
        local = sharding.local_shape(var.type.shape)
        idle = [axis for axis in sharding.mesh.axes if axis.size > 1 and axis.name not in used]
        free = tuple(axis.name for axis in idle if any(n % axis.size == 0 for n in local))
        if free:
            line = folder.fold(sources.get(var)).line
            found.append(ReplicatedValue(labels.get(var) or f"a value of line {line}", var.type, free))
    return sorted(found, key=lambda one: -one.type.nbytes)

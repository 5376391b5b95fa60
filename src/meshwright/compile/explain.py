"""Why a partitioned program communicates as it does, what would be cheaper, and what is held twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.chart.amounts import time_text
from meshwright.compile.partitioning import Collective, PartitionedProgram, with_argument
from meshwright.core.types import TensorType
from meshwright.partition.combine import dearest, received
from meshwright.partition.cost import DEFAULT_CHIP
from meshwright.partition.layouts import axes_used
from meshwright.partition.reshard.plan import show_bytes
from meshwright.sharding.spec import PartitionSpec, pasted

MOST_TRIED = 4  # arguments for which another layout is tried
SHOWN = 5
WORTH_SPLITTING = 1 << 20  # bytes


class Suggestion(NamedTuple):
    """A layout for an argument that saves communication: bytes that each device would not receive."""

    argument: str
    spec: PartitionSpec
    saved_bytes: int

    def __str__(self) -> str:
        return f"lay out {self.argument} as {self.spec}: −{show_bytes(self.saved_bytes)} per device"

    @property
    def fix(self) -> str:
        """Code to paste."""
        return f"mw.device_put({self.argument}, mw.NamedSharding(mesh, {pasted(self.spec)}))"


class ReplicatedValue(NamedTuple):
    """A value that devices hold more than once although an axis is free that could split it."""

    name: str
    type: TensorType
    free: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.type.short()}, {show_bytes(self.type.nbytes)}: free {', '.join(self.free)}"


def explain(placed: PartitionedProgram, names: Sequence[str]) -> str:
    """A table of the collectives, cheaper layouts, and values that could be split further.

    ``names`` are those of the arguments.
    """
    if not placed.collectives:
        return "\n".join(["no collectives: no device needs what another has", *_audit_lines(placed, names)])
    lines = [*table(placed.collectives), *_instead_lines(placed, names)]
    cheaper = suggestions(placed, names)
    if cheaper:
        lines += ["cheaper:", *(f"    {one}" for one in cheaper)]
    return "\n".join([*lines, *_audit_lines(placed, names)])


def _instead_lines(placed: PartitionedProgram, names: Sequence[str]) -> list[str]:
    """What the planner left of the shardings that propagation found, and what that saves."""
    if placed.instead is None:
        return []
    argument, saved = placed.instead
    groups = placed.placement.groups or (0,) * len(names)
    less = f", which saves {show_bytes(saved)} per device" if saved > 0 else ""
    if argument is None:
        return [f"instead of what propagation found, values without a constraint are sharded as they are used{less}"]
    source = _root(names[groups.index(argument)])
    return [f"instead of what propagation found, values inside get their shardings from {source} alone{less}"]


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


def table(found: Sequence[Collective]) -> list[str]:
    """Lines that say of every collective what it moves and why; of those that need not run, when they do."""
    bytes_, taken = received(found), set(map(id, dearest(found)))
    lines = [_summary(found)]
    rows = [["kind", "axes", "bytes", "times", "share", "value", "line"]]
    for c in found:
        more = ", …" if len(c.values) > 1 else ""
        permutes = c.overlap.permutes if c.overlap is not None else 0  # a ring is one row
        rows.append(
            [
                f"{c.overlap.kind} as {permutes} permute{'s' * (permutes > 1)}" if c.overlap and permutes else c.kind,
                ",".join(c.axes),
                str(c.bytes_received_per_device * (permutes or 1)),
                str(c.times // (permutes or 1)),
                _share(c, bytes_) if id(c) in taken else "–",
                c.values[0].short() + more,
                str(c.source or ""),
            ]
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(shown[0])
    for text, c in zip(shown[1:], found, strict=True):
        lines += [text, f"    {c.why}", *(f"    {one}" for one in c.within), *_overlap_lines(c)]
    return lines


def _share(c: Collective, total: int) -> str:
    return f"{100 * c.bytes_received_per_device * c.times / total:.0f} %" if total else "0 %"


def _overlap_lines(c: Collective) -> list[str]:
    """What overlap made of a collective, or why it did nothing."""
    if c.overlap is None:
        return []
    if c.overlap.why_not:
        return [f"    not overlapped: {c.overlap.why_not}"]
    matmuls = "dot_general" if c.overlap.matmuls == 1 else f"{c.overlap.matmuls} dot_generals"
    seconds = c.overlap.saved_seconds
    saved = f", saves {time_text(seconds)}{' each time' * (c.times > max(1, c.overlap.permutes))}" if seconds else ""
    return [f"    {'in one kernel with' if c.overlap.kernel else 'under'} {matmuls}{saved}"]


def suggestions(placed: PartitionedProgram, names: Sequence[str]) -> list[Suggestion]:
    """Layouts for arguments with which the program would move less, the best first.

    Tried are the layouts that the program brings an argument into when it first uses it.
    """
    return [one for one, _ in _tried(placed, names)]


def _tried(placed: PartitionedProgram, names: Sequence[str]) -> list[tuple[Suggestion, Sequence[Collective]]]:
    """Suggestions, each with the collectives that the program would have."""
    now = received(placed.collectives)
    found = []
    for index, layout in list(placed.moved.items())[:MOST_TRIED]:
        sharding = layout.to_named()
        others = with_argument(placed, index, sharding)
        saved = now - received(others)
        if saved > 0:
            found.append((Suggestion(names[index], sharding.spec, saved), others))
    return sorted(found, key=lambda one: -one[0].saved_bytes)


def facts(found: Sequence[Collective], placed: PartitionedProgram | None, names: Sequence[str]) -> list[dict[str, Any]]:
    """What is known of each collective, for programs: ``compiled.explain(json=True)``.

    ``seconds`` are those of one run on the machine that jit was told, or on one of `DEFAULT_CHIP`; ``share`` is that of
    all bytes, None in a branch that is not the dearest. ``stack`` has the one line that is known of an equation,
    ``scopes`` the loops and branches around it; which derivative it belongs to, its ``direction``, is not known. An
    ``alternative`` is a layout of an argument with which the collective would not be there, ``fix`` how to ask for it.
    """
    hardware = placed.placement.hardware if placed is not None else None
    total, counted = received(found), set(map(id, dearest(found)))
    instead: list[Suggestion | None] = [None] * len(found)
    for one, others in reversed(_tried(placed, names) if placed is not None else []):  # the best comes last
        left = Counter(map(_key, others))
        for n, c in enumerate(found):
            left[_key(c)] -= 1
            if left[_key(c)] < 0:
                instead[n] = one
    return [
        {
            "kind": c.kind,
            "axes": list(c.axes),
            "bytes": c.bytes_received_per_device,
            "seconds": c.seconds(hardware or DEFAULT_CHIP),
            "share": c.bytes_received_per_device * c.times / max(total, 1) if id(c) in counted else None,
            "times": c.times,
            "line": str(c.source) if c.source is not None else None,
            "stack": [c.source.show()] if c.source is not None else [],
            "scopes": [str(one) for one in c.within],
            "direction": None,
            "value": c.values[0].short(),
            "why": c.why,
            "alternative": None if other is None else str(other),
            "fix": None if other is None else other.fix,
        }
        for c, other in zip(found, instead, strict=True)
    ]


def _key(c: Collective) -> tuple[Any, ...]:
    """What makes a collective the same in another layout of the program."""
    return c.kind, c.axes, c.bytes_received_per_device, c.times, c.source, c.values


def audit(placed: PartitionedProgram, names: Sequence[str]) -> list[ReplicatedValue]:
    """Large arguments and values that leave an axis unused which could split one of their dims, the largest first."""
    labels = dict(zip(placed.source.inputs, names, strict=True))
    lines = {v: f"a value of line {e.source}" for e in placed.source.eqns for v in e.outputs}
    known = lines | labels
    found = []
    for var, sharding in placed.propagated.shardings.items():
        if var.type.nbytes < WORTH_SPLITTING or var not in known:
            continue
        used = {axis.name for axis in axes_used(sharding)}
        local = sharding.local_shape(var.type.shape)
        idle = [axis for axis in sharding.mesh.axes if axis.size > 1 and axis.name not in used]
        free = tuple(axis.name for axis in idle if any(n % axis.size == 0 for n in local))
        if free:
            found.append(ReplicatedValue(known[var], var.type, free))
    return sorted(found, key=lambda one: -one.type.nbytes)


def _audit_lines(placed: PartitionedProgram, names: Sequence[str]) -> list[str]:
    """What `audit` found, values that read the same on one line."""
    held = Counter(map(str, audit(placed, names)))
    if not held:
        return []
    shown = list(held.items())[:SHOWN]
    rest = held.total() - sum(count for _, count in shown)
    lines = [f"    {text}{f' ({count} of these)' if count > 1 else ''}" for text, count in shown]
    return ["whole along a free axis:", *lines, *([f"    and {rest} more"] if rest else [])]

"""What is known of each collective of a compiled program: where it comes from, what it costs, what would be instead."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from meshwright.compile.partitioning import Collective
from meshwright.compile.stacks import FoldedStack, StackFolder
from meshwright.compile.suggestions import Suggestion, simulated
from meshwright.compile.value_names import ValueNames, general
from meshwright.core.op import Op
from meshwright.core.program import Program, Var
from meshwright.core.source import FORWARD, Source
from meshwright.errors import MeshwrightError
from meshwright.simulate.machine import COMPUTE
from meshwright.simulate.schedule import Event
from meshwright.simulate.simulation import Simulation

# What a reason says of the op that left a value as it is, and of the one that needs it otherwise.
_LEFT = re.compile(r"^the ([\w ]+?)(?: at \S+)? (leaves|gives it) ")
_NEEDED = re.compile(r"; the ([\w ]+?) needs ")


@dataclass(frozen=True)
class Finding:
    """A collective: ``seconds`` of one run on the machine, the ``share`` of the step that all its runs take, and how
    much of one run nothing is computed in; None where a simulation does not have it, as in a branch not taken."""

    collective: Collective
    seconds: float
    share: float | None
    exposed_seconds: float | None
    stack: FoldedStack
    scopes: tuple[str, ...]
    direction: str
    name: str
    made_by: str
    why: str
    suggestion: Suggestion | None = None

    @property
    def times(self) -> int:
        """How often the collective runs; all permutes of a ring are one run."""
        return self.collective.times // self.permutes

    @property
    def permutes(self) -> int:
        return max(1, self.collective.overlap.permutes) if self.collective.overlap is not None else 1

    @property
    def around(self) -> tuple[str, ...]:
        """The scopes, loops and branches that it is in."""
        c = self.collective
        return (*self.scopes, *map(str, c.loops), *map(str, c.within))

    @property
    def value(self) -> str:
        """The value that it moves: its name or what made it, and its type."""
        return self.called(self.name)

    def called(self, name: str) -> str:
        """The value by another name, as that of all layers."""
        more = ", …" if len(self.collective.values) > 1 else ""
        return f"{name or self.made_by} {self.collective.values[0].short()}{more}".strip()

    @property
    def is_combined(self) -> bool:
        """Whether it is one for several values, as for the gradients of many parameters."""
        return len(self.collective.values) > 1

    @property
    def group(self) -> tuple[Any, ...]:
        """What is equal for the same collective of equal layers, and for all that values were combined into: where one
        of these ends and the next begins says nothing."""
        c = self.collective
        if self.is_combined:
            inside = (*map(str, c.loops), *map(str, c.within))
            return c.kind, c.whole_axes, c.overlap, self.direction, inside, self.exposed_seconds is None
        return (
            c.kind, c.whole_axes, c.bytes_received_per_device, c.overlap, self.why, self.stack.show()[:1],
            self.direction, tuple(map(general, self.around)), general(self.name), self.made_by, c.values,
            self.exposed_seconds is None,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """The collective as ``compiled.explain(json=True)`` has it."""
        c = self.collective
        return {
            "kind": c.kind,
            "axes": list(c.whole_axes),
            "bytes": c.bytes_received_per_device,
            "seconds": self.seconds,
            "share": self.share,
            "times": c.times,
            "line": str(self.stack.line) if self.stack.line is not None else None,
            "stack": self.stack.show(),
            "scopes": list(self.around),
            "direction": self.direction,
            "value": self.value,
            "why": self.why,
            "alternative": None if self.suggestion is None else str(self.suggestion),
            "fix": None if self.suggestion is None or not self.suggestion.saves else self.suggestion.fix,
        }


class Measured(NamedTuple):
    """A simulation, and by the first result of each collective in it, the seconds of a run that are exposed."""

    simulation: Simulation
    exposed: dict[Var, float]


def measure(program: Any, hardware: Any, donated: Sequence[bool]) -> Measured | str:
    """A run of a compiled program on hardware, in which loops of unknown length run one step; or why there is none."""
    try:
        found = simulated(program, hardware, donated)
    except MeshwrightError as error:
        return error.what
    return Measured(found, exposed_seconds(found))


class Hidden:
    """How much of an event of a simulation something is computed in."""

    def __init__(self, found: Simulation) -> None:
        self.events = sorted((e for e in found.timeline if e.task.body is None and not e.rest), key=lambda e: e.start)
        computing = [(e.start, e.end) for e in self.events if COMPUTE in e.task.cost.units and not e.task.cost.axes]
        self._starts = [start for start, _ in computing]  # a device computes one kernel at a time
        self._ends = [end for _, end in computing]
        self._before = [0.0, *accumulate(end - start for start, end in computing)]

    def _computed(self, until: float) -> float:
        n = bisect_right(self._starts, until)
        return self._before[n] - (max(0.0, self._ends[n - 1] - until) if n else 0.0)

    def seconds(self, event: Event) -> float:
        """The seconds of an event in which something is computed."""
        return self._computed(event.end) - self._computed(event.start)


def exposed_seconds(found: Simulation) -> dict[Var, float]:
    """By the first result of each collective, the mean seconds of a run in which nothing is computed beside it."""
    hidden = Hidden(found)
    runs: dict[Var, list[float]] = {}
    for e in hidden.events:
        if e.task.cost.axes and e.task.writes:
            exposed = e.seconds - hidden.seconds(e)
            runs.setdefault(e.task.writes[0], []).append(exposed if exposed > 1e-9 * e.seconds else 0.0)
    return {var: sum(one) / len(one) for var, one in runs.items()}


def findings(
    found: Sequence[Collective],
    programs: Sequence[Program],
    names: ValueNames | None,
    hardware: Any,
    measured: Measured | None,
    suggestions: Sequence[Suggestion | None],
) -> list[Finding]:
    """What is known of each collective; ``programs`` are those whose lines say which functions are helpers."""
    folder = StackFolder(programs)
    makers = {var: eqn.op for program in programs[:1] for eqn in _all(program) for var in eqn.outputs}
    listed = []
    for c, suggestion in zip(found, suggestions, strict=True):
        call = c.origin.call if c.origin is not None else None
        name = names.of(c.var, c.direction != FORWARD) if names is not None else ""
        maker: Op | None = makers.get(c.var) if isinstance(c.var, Var) else None
        exposed = measured.exposed.get(c.result) if measured is not None and c.result is not None else None
        seconds = c.seconds(hardware)
        whole = measured.simulation.seconds if measured is not None else 0.0
        stack = folder.fold(c.origin)
        listed.append(
            Finding(
                c,
                seconds,
                seconds * c.times / whole if exposed is not None and whole else None,
                exposed,
                stack,
                call.scopes if call is not None else (),
                c.direction,
                name,
                f"result of the {maker.word}" if maker is not None else "",
                _why(c, stack.line, folder),
                suggestion,
            )
        )
    return listed


def _why(c: Collective, line: Source | None, folder: StackFolder) -> str:
    """The reason of a collective, its ops at lines that are no helper's, if these are not its own ``line``."""
    if c.reason is None:
        return c.why

    def at(source: Source | None) -> str:
        found = folder.fold(source).line
        return "" if found is None or str(found) == str(line) else f" at {found}"

    made, needed = at(c.reason.made), at(c.source)
    told = _LEFT.sub(lambda m: f"the {m[1]}{made} {m[2]} ", c.why) if c.reason.made is not None else c.why
    return _NEEDED.sub(lambda m: f"; the {m[1]}{needed} needs ", told)


def _all(program: Program) -> Iterator[Any]:
    for eqn in program.eqns:
        yield eqn
        for _, region in eqn.regions():
            yield from _all(region)

"""The stages of a compilation, in order: what each makes of the program, and how long it takes.

A stage is a pure function of a program; what it makes passes the checker. ``partition`` is asked for several layouts
and keeps the cheapest: its seconds are those of all of them, ``combine`` and ``overlap`` are stages of the one kept.
Code for the engine is made when the function is first called or its stages are asked for: a program for other hardware
may be too large to run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from meshwright.core.check import check
from meshwright.core.program import Eqn, Program, Var
from meshwright.core.text.printing import print_program
from meshwright.engine.compile import python_text
from meshwright.transform.simplify import cse, dce
from meshwright.transform.stack import inline_calls

STAGES = {
    "simplify": "without dead and repeated equations",
    "inline": "calls inlined; shardings that types say become constraints",
    "propagate": "a sharding for every value",
    "partition": "the program of one device, with collectives",
    "combine": "sums over the same devices as one all-reduce, sums that are then sliced as reduce-scatters",
    "overlap": "gathers and sums beside the matmuls next to them",
    "stack": "all devices in one program",
    "emit": "Python for NumPy",
}


@dataclass(frozen=True)
class Stage:
    """What one stage made: a program and, after propagation, the sharding of each value; after ``emit``, its text."""

    name: str
    program: Program
    seconds: float
    shardings: Mapping[Var, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def about(self) -> str:
        """What the stage is for."""
        return STAGES[self.name]

    def __str__(self) -> str:
        if self.text:
            return self.text

        def said(eqn: Eqn) -> str:
            found = [str(self.shardings[v]) for v in eqn.outputs if v in self.shardings]
            return ", ".join(text.removeprefix("#sdy.sharding<@mesh, ").removesuffix(">") for text in found)

        return print_program(self.program, said if self.shardings else False)


class StageRecorder:
    """The stages of one compilation, as they are run."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._since = perf_counter()

    def copy(self) -> StageRecorder:
        """A record to go on with; several compilations may start from one program."""
        found = StageRecorder()
        found.stages = list(self.stages)
        return found

    def done(self, name: str, program: Program) -> Program:
        """Check and keep what a stage made."""
        check(program, name)
        self._keep(Stage(name, program, self._seconds()))
        return program

    def propagated(self, program: Program, shardings: Mapping[Var, Any]) -> None:
        """Keep what was found for the values of a program."""
        self._keep(Stage("propagate", program, self._seconds(), shardings))

    def partitioned(self, steps: Sequence[tuple[str, Program, float]]) -> None:
        """Keep how the program of one device came about; what other layouts took is in the seconds of the first."""
        (name, program, _), *rest = steps
        self._keep(Stage(name, program, self._seconds() - sum(seconds for _, _, seconds in rest)))
        for step in rest:
            self._keep(Stage(*step))

    def _seconds(self) -> float:
        return perf_counter() - self._since

    def _keep(self, stage: Stage) -> None:
        self.stages.append(stage)
        self._since = perf_counter()

    def last(self, program: Program, donated: Sequence[bool]) -> list[Stage]:
        """All stages, with those that make code of the program which runs."""
        own = StageRecorder()
        whole = own.done("stack", dce(inline_calls(program)))
        text = python_text(whole, donated)
        own._keep(Stage("emit", whole, own._seconds(), text=text))
        return [*self.stages, *own.stages]


def simplify(program: Program) -> StageRecorder:
    """The first stage: the program without what nobody needs, and with nothing computed twice."""
    record = StageRecorder()
    record.done("simplify", cse(dce(program)))
    return record

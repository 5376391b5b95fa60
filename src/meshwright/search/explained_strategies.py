"""Why a strategy is the best of a search for a transformer, or for a traced step: its parts, what others lose, what
would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError, MeshwrightError, ShapeError
from meshwright.hardware.topology import Topology
from meshwright.search.bounds import machine_of
from meshwright.search.explained import (
    LayoutParts,
    WhatIf,
    bound_lines,
    changed_machines,
    memory_line,
    parts_of,
    table_of,
    what_if_lines,
)
from meshwright.search.explained_traced import traced_lines, traced_parts
from meshwright.search.strategy import Costs, Estimate
from meshwright.search.traced_plan import TracedPlan
from meshwright.search.transformer_plan import fits_on, transformer_of
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.transformer.step import step_totals, train_step
from meshwright.simulate.transformer.step_program import StepDtypes
from meshwright.simulate.transformer.strategy import Strategy

OTHER = 1e-2  # of the time of a step, by which another strategy must be faster after a change to be named
SHOWN = 4  # strategies in the table


@dataclass(frozen=True)
class SearchedFor:
    """What a search was asked: a model, a machine, a batch and what `simulate.transformer.train` takes beside.

    ``again`` makes the same search on another machine, with another batch and memory; ``plan`` is what a traced step
    takes with a strategy, a batch and costs.
    """

    model: Any
    topology: Topology
    batch: int
    sequence: int | None = None
    dtypes: StepDtypes = StepDtypes()  # noqa: RUF009 - it is frozen
    mode: str = "exact"
    overlap: str = "loops"
    memory_bytes: float | None = None
    again: Callable[[Topology, int, float], Iterable[Estimate]] | None = None
    plan: Callable[[Strategy, int, Costs], TracedPlan] | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"dtypes": self.dtypes, "mode": self.mode, "overlap": self.overlap}

    def costs_on(self, topology: Topology) -> OnTopology:
        """The costs on a machine, as the search had them."""
        return OnTopology(topology, overlap=self.overlap != "none", mode=self.mode)

    @property
    def room(self) -> float:
        """The memory of a device."""
        chip = self.topology.chip
        return chip.known("hbm_bytes", inf) if self.memory_bytes is None else self.memory_bytes


def explained(found: Sequence[Estimate], asked: SearchedFor, search: bool = False) -> str:
    """What bounds the best strategy, what the next ones lose and where, and which single change of the machine or of
    the batch would make another best: of those found, or in a ``search`` after each change."""
    known = asked.plan is not None or transformer_of(asked.model, asked.sequence) is not None
    fitting = [e for e in found if e.fits]
    if not known or not fitting:
        raise ShapeError(
            "There is no strategy to explain." if known else f"The model is {type(asked.model).__name__}.",
            where=here(),
            why="none fits into memory" if known else "transformers and traced steps are known by their parts",
            fix="a search with more chips or a smaller batch" if known else "a dist.GPT, or dist.traced",
        )
    shown = [e.strategy for e in fitting[:SHOWN]]
    lines, rows = _traced_rows(shown, asked) if asked.plan is not None else _transformer_rows(shown, asked)
    changes = what_if_lines(what_if(fitting, asked, search))
    changes[0] = changes[0].removesuffix(":") + (", each searched for:" if search else ", of those found:")
    first = [f"best: {strategy_name(shown[0])}", *lines, memory_line(rows[0].memory, asked.room)]
    return "\n".join([*first, "", table_of(rows), "", *changes])


def compared(found: Sequence[Estimate], asked: SearchedFor) -> list[LayoutParts]:
    """Where the seconds of the fastest go; nothing of models that are not known by their parts."""
    shown = [e.strategy for e in found if e.fits][:SHOWN]
    if asked.plan is not None:
        return _traced_rows(shown, asked)[1] if shown else []
    known = shown and transformer_of(asked.model, asked.sequence) is not None
    return _transformer_rows(shown, asked)[1] if known else []


def _transformer_rows(shown: Sequence[Strategy], asked: SearchedFor) -> tuple[list[str], list[LayoutParts]]:
    sizes = transformer_of(asked.model, asked.sequence)
    assert sizes is not None
    shape, length = sizes
    steps = [train_step(shape, machine_of(asked.topology, s), s, asked.batch, length, **asked.options) for s in shown]
    rows = [
        LayoutParts(
            strategy_name(s), one.seconds, parts_of(one), one.memory_by_kind, one.peak_bytes_per_device <= asked.room
        )
        for s, one in zip(shown, steps, strict=True)
    ]
    return bound_lines(steps[0]), rows


def _traced_rows(shown: Sequence[Strategy], asked: SearchedFor) -> tuple[list[str], list[LayoutParts]]:
    assert asked.plan is not None
    plans = [asked.plan(s, asked.batch, asked.costs_on(asked.topology)) for s in shown]
    rows = [
        traced_parts(plan, partial(asked.plan, s, asked.batch), strategy_name(s), asked.room)
        for s, plan in zip(shown, plans, strict=True)
    ]
    return traced_lines(plans[0], rows[0]), rows


def what_if(fitting: Sequence[Estimate], asked: SearchedFor, search: bool = False) -> list[WhatIf]:
    """What is best after each of some single changes: of what was found, or of a search on the changed machine.

    Of what was found, where times change, the fastest few and those that need the least memory are simulated again.
    """
    topology, batch, room = asked.topology, asked.batch, asked.room
    changes = [(one.change, one.topology, batch, room * one.memory) for one in changed_machines(topology)]
    changes += [("twice the batch", topology, 2 * batch, room)]
    changes += [("half the batch", topology, batch // 2, room)] if batch > 1 else []
    few = [*fitting[:SHOWN], *sorted(fitting[SHOWN:], key=lambda e: e.peak_bytes_per_device)[:SHOWN]]
    tried = []
    for change, on, samples, memory in changes:
        if (on, samples) == (topology, batch):
            seconds = {e.strategy: e.seconds if e.peak_bytes_per_device <= memory else inf for e in fitting}
        else:
            then = [one for e in few for one in _with_batch(e.strategy, batch, samples)]
            seconds = {strategy: _seconds(asked, strategy, on, samples, memory) for strategy in then}
        now = {one: seconds[one] for one in _with_batch(fitting[0].strategy, batch, samples)}
        kept = min(now.values())
        if search and asked.again is not None:
            seconds = {e.strategy: e.seconds for e in asked.again(on, samples, memory) if e.fits} | now
        best = min(seconds, key=lambda strategy: seconds[strategy])
        other = seconds[best] < (1 - OTHER) * kept
        least = seconds[best] if other else kept
        tried.append(WhatIf(change, strategy_name(best), least, kept, other or least == inf))
    return tried


def _with_batch(strategy: Strategy, batch: int, samples: int) -> list[Strategy]:
    """A strategy for a batch with another one: with as many microbatches, or with as large ones."""
    count, rest = divmod(strategy.microbatches * samples, batch)
    return [strategy] if rest or not count else list({strategy: 0, strategy.with_(microbatches=count): 0})


def _seconds(asked: SearchedFor, strategy: Strategy, on: Topology, batch: int, memory: float) -> float:
    """What a strategy takes on another machine; infinite where it does not fit or cannot be laid out."""
    if asked.plan is not None:
        try:
            plan = asked.plan(strategy, batch, asked.costs_on(on))
            return plan.seconds()[0] if plan.peak_bytes() <= memory else inf
        except MeshwrightError:  # the machine does not lie so, or the batch does not divide
            return inf
    sizes = transformer_of(asked.model, asked.sequence)
    assert sizes is not None
    shape, length = sizes
    if not fits_on(shape, strategy, batch, length):
        return inf
    try:
        found = step_totals(shape, machine_of(on, strategy), strategy, batch, length, **asked.options)
        return found.seconds[0] if found.peak_bytes <= memory else inf
    except HardwareError:  # the machine does not lie so
        return inf


def strategy_name(strategy: Strategy) -> str:
    """``data=8 tensor=4``: what a strategy says of its own."""
    return repr(strategy).removeprefix("Strategy(").removesuffix(")").replace(", ", " ") or "one device"

"""Why a strategy for a transformer is the best of a search: its parts, what others lose, what would change it."""

from __future__ import annotations

from math import inf
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError, ShapeError
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
from meshwright.search.result import SearchResult
from meshwright.search.transformer_plan import fits_on, transformer_of
from meshwright.simulate.transformer import StepSimulation, train
from meshwright.simulate.transformer.strategy import Strategy

OTHER = 1e-2  # of the time of a step, by which another strategy must be faster after a change to be named


def explain_search(found: SearchResult, model: Any, topology: Topology, batch: int, sequence: int | None = None) -> str:
    """What bounds the best strategy for a transformer, what the next ones lose and where, and which single change of
    the machine or of the batch would make another of them best.

    ``found`` is what `grid_search` returned for the same model, machine and batch, with parameters of 2 bytes and an
    optimizer of 12.

    >>> from meshwright import dist, hardware
    >>> model, machine = dist.GPT(layers=4, dim=256, heads=4), hardware.Topology("h100", 2)
    >>> found = dist.grid_search(model, machine, batch=8, microbatches=[1], zero=[0])
    >>> dist.explain_search(found, model, machine, batch=8).startswith("best: ")
    True
    """
    sizes = transformer_of(model, sequence)
    best = found.best
    if sizes is None or best is None:
        raise ShapeError(
            "There is no strategy to explain." if sizes is not None else f"The model is {type(model).__name__}.",
            where=here(),
            why="none fits into memory" if sizes is not None else "steps of transformers are known by their parts",
            fix="a search with more chips or a smaller batch" if sizes is not None else "a dist.GPT",
        )
    shape, length = sizes
    strategies = [best.strategy, *(e.strategy for e in found.estimates if e.fits and e is not best)][:4]

    def played(strategy: Strategy, on: Topology, rows: int) -> StepSimulation:
        return train(shape, machine_of(on, strategy), strategy, rows, length)

    steps = [played(strategy, topology, batch) for strategy in strategies]
    named = [(_name(strategy), one) for strategy, one in zip(strategies, steps, strict=True)]
    rows = [LayoutParts(name, one.seconds, parts_of(one), one.memory_by_kind, one.fits) for name, one in named]
    room = topology.chip.known("hbm_bytes", inf)
    changes = [(one.change, one.topology, batch, room * one.memory) for one in changed_machines(topology)]
    changes += [("twice the batch", topology, 2 * batch, room), ("half the batch", topology, batch // 2, room)]
    tried = []
    for change, on, samples, memory in changes:
        seconds = []
        for strategy in strategies:
            try:
                one = played(strategy, on, samples) if fits_on(shape, strategy, samples, length) else None
            except HardwareError:  # the machine does not lie so
                one = None
            seconds.append(one.seconds if one is not None and one.peak_bytes_per_device <= memory else inf)
        least = min(seconds)
        other = least < (1 - OTHER) * seconds[0]
        name = _name(strategies[seconds.index(least)])
        tried.append(WhatIf(change, name, least if other else seconds[0], seconds[0], other or least == inf))
    lines = [f"best: {_name(best.strategy)}", *bound_lines(steps[0]), memory_line(rows[0].memory, room)]
    return "\n".join([*lines, "", table_of(rows), "", *what_if_lines(tried)])


def _name(strategy: Strategy) -> str:
    """``data=8 tensor=4``: what a strategy says of its own."""
    return repr(strategy).removeprefix("Strategy(").removesuffix(")").replace(", ", " ") or "one device"

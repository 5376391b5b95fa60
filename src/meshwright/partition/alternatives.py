"""Other layouts for the values inside of a program, where those that propagation found move more than need be.

Where two arguments want one axis for different dims, propagation lets the one go ahead that it meets first. Which one
should give way depends on sizes: with parameters and a batch both split over one axis, the parameters are to be
gathered if the batch is large. So the arguments are let go ahead in turn, and the program that costs least is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import fusion_of
from meshwright.core.program import Program, Var
from meshwright.partition.combine import dearest, received
from meshwright.partition.cost import PLAINLY, Planning
from meshwright.partition.layouts import axes_used
from meshwright.partition.partition import LocalProgram, combined, partition
from meshwright.propagate.from_program import Propagated
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.regions.region import program_cost

Wanted = Mapping[Var, TensorSharding]

MOST_GROUPS = 2  # of arguments that are let go ahead
CLEARLY = 0.9  # of the time of collectives is all that may be left for another layout to be worth it
LARGE = 2000  # equations of a program for which the likeliest alternative must do


class Instead(NamedTuple):
    """Shardings of the values inside that were taken instead of those that propagation found: the ones that follow from
    an argument alone, by its number, or (None) from constraints alone; and the bytes that a device does not receive."""

    argument: int | None
    saved_bytes: int


class Cheapest(NamedTuple):
    """The program of one device in the layouts that cost least: as it was partitioned, with its sums combined where
    that was needed to compare it with others, what was left of propagation's layouts, how many were tried, and what
    they were chosen by."""

    local: LocalProgram
    combined: LocalProgram | None = None
    instead: Instead | None = None
    tried: int = 1
    how: Planning = PLAINLY


def cheapest_partition(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    groups: Sequence[int] | None,
    how: Planning = PLAINLY,
    like: Cheapest | None = None,
) -> Cheapest:
    """`partition` with the layouts that propagation found, or with others that make it cheaper.

    On a machine that is named, each equation runs where that equation is fastest, which in all may take longer than
    the layouts that are chosen without one: so these are tried, too.
    ``given`` are the shardings of arguments that the user wrote, ``groups`` says which of the user's arguments each of
    them is part of; without them no other layouts are tried.
    ``like`` was found for the same program with another sharding of an argument: its kind of layout is taken again.
    """

    def cheapest(how: Planning) -> Cheapest:
        return _cheapest(propagated, mesh, given, in_shardings, out_shardings, groups, how, like)

    if like is not None or groups is None or how.cost.topology is None:
        return cheapest(how if like is None else like.how)
    found = cheapest(how)
    together = found.combined or combined(found.local)
    if not together.records:
        return found
    plain = cheapest(how._replace(cost=PLAINLY.cost))
    other = plain.combined or combined(plain.local)
    here, there = _seconds(together, how), _seconds(other, how)
    faster = there.moving < here.moving and sum(there) < sum(here)  # the work is that before fusion: too much
    best, rest = (plain, other) if faster else (found, together)
    return best._replace(combined=rest, tried=found.tried + plain.tried)


def _cheapest(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    groups: Sequence[int] | None,
    how: Planning,
    like: Cheapest | None,
) -> Cheapest:
    """The same, all layouts chosen by one cost."""
    program = propagated.program
    if like is not None and like.instead is not None and groups is not None:
        rivals = _rivals(program, given, groups)
        for argument, wanted in _alternatives(propagated, given, groups, rivals, only=like.instead):
            if argument == like.instead.argument:
                return Cheapest(partition(program, mesh, in_shardings, out_shardings, wanted, how), how=how)
    first = partition(program, mesh, in_shardings, out_shardings, propagated.shardings, how)
    if groups is None or like is not None:
        return Cheapest(first, how=how)
    rivals = _rivals(program, given, groups)
    if not _may_gain(program, first, bool(rivals)):
        return Cheapest(first, how=how)
    together = combined(first)
    best, least, tried = Cheapest(first, together, how=how), _seconds(together, how), 1
    before = received(together.records)
    for argument, wanted in _alternatives(propagated, given, groups, rivals):
        local = partition(program, mesh, in_shardings, out_shardings, wanted, how)
        found = combined(local)
        seconds, tried = _seconds(found, how), tried + 1
        if _is_clearly_faster(seconds, least):
            instead = Instead(argument, before - received(found.records))
            best, least = Cheapest(local, found, instead, how=how), seconds
    return best._replace(tried=tried)


def _may_gain(program: Program, found: LocalProgram, rivals: bool) -> bool:
    """Whether values move between equations that could have agreed; without rivals, gathers are part of sums."""
    moving = {"all_to_all", "permute", "all_gather"} if rivals else {"all_to_all", "permute"}
    moved = any(record.why is not None and record.kind in moving for record in found.records)
    return moved and _contractions(program) > 1


def _contractions(program: Program) -> int:
    inside = sum(_contractions(region) for eqn in program.eqns for _, region in eqn.regions())
    return inside + sum(fusion_of(eqn) is Fusion.CONTRACTION for eqn in program.eqns)


class Seconds(NamedTuple):
    """The seconds of a program: of its collectives, and of the work of one device."""

    moving: float
    work: float


def _seconds(found: LocalProgram, how: Planning) -> Seconds:
    work = program_cost(found.program)
    moving = sum(how.cost.collective(record, found.mesh) for record in dearest(found.records))
    return Seconds(moving, how.cost.work(work.flops, work.nbytes, "f32"))


def _is_clearly_faster(one: Seconds, other: Seconds) -> bool:
    """Whether a program is faster by so much that layouts are worth it which propagation did not find."""
    saved = sum(other) - sum(one)
    return saved > (1 - CLEARLY) * other.moving


def _alternatives(
    propagated: Propagated,
    given: Sequence[TensorSharding | None],
    groups: Sequence[int],
    rivals: Sequence[int],
    only: Instead | None = None,
) -> Iterator[tuple[int | None, Wanted]]:
    """What the user constrained alone; and by its number what follows from one argument, the rest from all of them."""
    program, every = propagated.program, propagated.shardings
    kept = set(_constrained(program))
    large = len(program.eqns) > LARGE
    if not rivals or not large:
        yield None, {var: sharding for var, sharding in every.items() if var in kept}
    kept |= {*program.inputs, *(atom for atom in program.outputs if isinstance(atom, Var))}
    for group in rivals[: 1 if large else MOST_GROUPS]:
        if only is not None and group != only.argument:
            continue
        seeds = [s if mine == group else None for s, mine in zip(given, groups, strict=True)]
        ahead = propagated.graph.propagate(seeds, [None] * len(program.outputs)).shardings
        yield (
            group,
            {
                var: sharding if var in kept or var not in ahead or not axes_used(ahead[var]) else ahead[var]
                for var, sharding in every.items()
            },
        )


def _constrained(program: Program) -> Iterator[Var]:
    for eqn in program.eqns:
        if eqn.op.structure is Structure.CONSTRAINT:
            yield from eqn.outputs
        for _, region in eqn.regions():
            yield from _constrained(region)


def _rivals(program: Program, given: Sequence[TensorSharding | None], groups: Sequence[int]) -> list[int]:
    """The groups of arguments that want axes which others want, too; those with the fewest bytes first."""
    axes: dict[int, set[str]] = {}
    sizes: dict[int, int] = {}
    for var, sharding, group in zip(program.inputs, given, groups, strict=True):
        used = {axis.name for axis in axes_used(sharding)} if sharding is not None else set()
        axes.setdefault(group, set()).update(used)
        sizes[group] = sizes.get(group, 0) + var.type.nbytes
    rivals = [
        group for group, mine in axes.items() if any(mine & others for other, others in axes.items() if other != group)
    ]
    return sorted(rivals, key=lambda group: sizes[group])

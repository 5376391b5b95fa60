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
from meshwright.partition.overlap.matmuls import Overlap
from meshwright.partition.partition import Instead, Partitioned, partition
from meshwright.propagate.from_program import Propagated, propagate_program
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.regions.region import program_cost

Wanted = Mapping[Var, TensorSharding]

MOST_GROUPS = 2  # of arguments that are let go ahead
CLEARLY = 0.9  # of the time of collectives is all that may be left for another layout to be worth it
LARGE = 2000  # equations of a program for which the likeliest alternative must do


def cheapest_partition(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    groups: Sequence[int],
    overlapped: Overlap | None = None,
    how: Planning = PLAINLY,
) -> Partitioned:
    """`partition` with the layouts that propagation found, or with others that make it cheaper.

    ``given`` are the shardings of arguments that the user wrote, ``groups`` says which of the user's arguments each of
    them is part of.
    """
    program = propagated.program
    layouts = propagated.shardings
    best = partition(program, mesh, in_shardings, out_shardings, layouts, how=how)
    rivals = _rivals(program, given, groups)
    if _may_gain(program, best, bool(rivals)):
        first = received(best.records)
        for argument, wanted in _alternatives(propagated, mesh, given, groups, rivals):
            found = partition(program, mesh, in_shardings, out_shardings, wanted, how=how)
            if _is_clearly_faster(_seconds(found, mesh, how), _seconds(best, mesh, how)):
                best, layouts = found._replace(instead=Instead(argument, first - received(found.records))), wanted
    if overlapped is None:
        return best
    again = partition(program, mesh, in_shardings, out_shardings, layouts, overlapped, how)
    return again._replace(instead=best.instead)


def _may_gain(program: Program, found: Partitioned, rivals: bool) -> bool:
    """Whether values move between equations that could have agreed; without rivals, gathers are part of sums."""
    moving = {"all_to_all", "permute", "all_gather"} if rivals else {"all_to_all", "permute"}
    moved = any(record.why is not None and record.kind in moving for record in found.records)
    return moved and _contractions(program) > 1


def _contractions(program: Program) -> int:
    inside = sum(_contractions(region) for eqn in program.eqns for _, region in eqn.regions())
    return inside + sum(fusion_of(eqn) is Fusion.CONTRACTION for eqn in program.eqns)


class Seconds(NamedTuple):
    """Of a program: those of its collectives, and of the work of one device."""

    moving: float
    work: float


def _seconds(found: Partitioned, mesh: BaseMesh, how: Planning) -> Seconds:
    work = program_cost(found.local)
    moving = sum(how.cost.collective(record, mesh) for record in dearest(found.records))
    return Seconds(moving, how.cost.work(work.flops, work.nbytes, "f32"))


def _is_clearly_faster(one: Seconds, other: Seconds) -> bool:
    """Whether a program is faster by so much that layouts are worth it which propagation did not find."""
    saved = sum(other) - sum(one)
    return saved > (1 - CLEARLY) * other.moving


def _alternatives(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    groups: Sequence[int],
    rivals: Sequence[int],
) -> Iterator[tuple[int | None, Wanted]]:
    """What the user constrained alone; and by its number what follows from one argument, the rest from all of them."""
    program, every = propagated.program, propagated.shardings
    kept = set(_constrained(program))
    large = len(program.eqns) > LARGE
    if not rivals or not large:
        yield None, {var: sharding for var, sharding in every.items() if var in kept}
    kept |= {*program.inputs, *(atom for atom in program.outputs if isinstance(atom, Var))}
    for group in rivals[: 1 if large else MOST_GROUPS]:
        seeds = [s if mine == group else None for s, mine in zip(given, groups, strict=True)]
        ahead = propagate_program(program, mesh, seeds, [None] * len(program.outputs)).shardings
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

"""Other layouts for the values inside of a program, where those that propagation found move more than need be.

Where two arguments want one axis for different dims, propagation lets the one go ahead that it meets first. Which one
should give way depends on sizes: with parameters and a batch both split over one axis, the parameters are to be
gathered if the batch is large. So the arguments are let go ahead in turn, and the program that costs least is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.core.facts import Fusion
from meshwright.core.op import fusion_of
from meshwright.core.program import Program, Var
from meshwright.partition.choose import FLOPS_PER_BYTE
from meshwright.partition.combine import dearest
from meshwright.partition.layouts import axes_used
from meshwright.partition.overlap.products import Overlap
from meshwright.partition.partition import Partitioned, partition
from meshwright.propagate.from_program import Propagated, propagate_program
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.regions.region import program_cost

Wanted = Mapping[Var, TensorSharding]

MOST_GROUPS = 2  # of arguments that are let go ahead
LARGE = 2000  # equations of a program for which the likeliest alternative must do
START_BYTES = 1 << 14  # what a link carries in the time that a collective takes to start


def cheapest_partition(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    groups: Sequence[int],
    overlapped: Overlap | None = None,
    thorough: bool = False,
) -> Partitioned:
    """`partition` with the layouts that propagation found, or with others that make it cheaper.

    ``given`` are the shardings of arguments that the user wrote, ``groups`` says which of the user's arguments each of
    them is part of.
    """
    program = propagated.program
    layouts = propagated.shardings
    best = partition(program, mesh, in_shardings, out_shardings, layouts, thorough=thorough)
    rivals = _rivals(program, given, groups)
    if _may_gain(program, best, bool(rivals)):
        for wanted in _alternatives(propagated, mesh, given, groups, rivals):
            found = partition(program, mesh, in_shardings, out_shardings, wanted, thorough=thorough)
            if _cost(found, mesh) < _cost(best, mesh):
                best, layouts = found, wanted
    if overlapped is None:
        return best
    return partition(program, mesh, in_shardings, out_shardings, layouts, overlapped, thorough)


def _may_gain(program: Program, found: Partitioned, rivals: bool) -> bool:
    """Whether values move between equations that could have agreed; without rivals, gathers are part of sums."""
    moving = {"all_to_all", "permute", "all_gather"} if rivals else {"all_to_all", "permute"}
    moved = any(record.why is not None and record.kind in moving for record in found.records)
    return moved and _contractions(program) > 1


def _contractions(program: Program) -> int:
    inside = sum(_contractions(region) for eqn in program.eqns for _, region in eqn.regions())
    return inside + sum(fusion_of(eqn) is Fusion.CONTRACTION for eqn in program.eqns)


def _cost(found: Partitioned, mesh: BaseMesh) -> float:
    taken = dearest(found.records)
    received = sum(record.total_bytes * record.times for record in taken) / mesh.size
    collectives = sum(record.times for record in taken)
    work = program_cost(found.local).flops
    return (received + START_BYTES * collectives) * FLOPS_PER_BYTE + work


def _alternatives(
    propagated: Propagated,
    mesh: BaseMesh,
    given: Sequence[TensorSharding | None],
    groups: Sequence[int],
    rivals: Sequence[int],
) -> Iterator[Wanted]:
    """What the user constrained alone; and what follows from one argument, the rest from all of them."""
    program, every = propagated.program, propagated.shardings
    kept = set(_constrained(program))
    large = len(program.eqns) > LARGE
    if not rivals or not large:
        yield {var: sharding for var, sharding in every.items() if var in kept}
    kept |= {*program.inputs, *(atom for atom in program.outputs if isinstance(atom, Var))}
    for group in rivals[: 1 if large else MOST_GROUPS]:
        seeds = [s if mine == group else None for s, mine in zip(given, groups, strict=True)]
        ahead = propagate_program(program, mesh, seeds, [None] * len(program.outputs)).shardings
        yield {
            var: sharding if var in kept or var not in ahead or not axes_used(ahead[var]) else ahead[var]
            for var, sharding in every.items()
        }


def _constrained(program: Program) -> Iterator[Var]:
    for eqn in program.eqns:
        if eqn.op.name == "sharding_constraint":
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

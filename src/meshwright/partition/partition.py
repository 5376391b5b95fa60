"""partition: a global program with layouts becomes one shard_map whose body is the program of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from meshwright.core.facts import Structure
from meshwright.core.op import Value
from meshwright.core.program import Program, Var
from meshwright.partition.across import is_on
from meshwright.partition.combine import (
    CollectiveReason,
    CollectiveRecord,
    OverlapOutcome,
    combine,
    records,
    written_for,
)
from meshwright.partition.cost import PLAINLY, Planning, taken
from meshwright.partition.cuts import Cuts, MeshCutNeeded, written, written_parts
from meshwright.partition.entry import Entry, Exit
from meshwright.partition.layouts import axes_used, closed
from meshwright.partition.localize import Localizer, sharded_as
from meshwright.partition.overlap.matmuls import Overlap, overlap
from meshwright.partition.rules import halo, indexing, iota, prefix, regions, windows
from meshwright.partition.scattered import scatter_sums
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.transform.regions.region import region, region_with
from meshwright.transform.regions.shard_map import shard_map, varying_axes
from meshwright.transform.simplify import dce
from meshwright.transform.stack import inline_calls

RULES = (halo, indexing, iota, prefix, regions, windows)  # of ops that are partitioned in a way of their own


class PartitionStep(NamedTuple):
    """The program of one device after a stage, and the seconds it took."""

    name: str
    program: Program
    seconds: float


class Instead(NamedTuple):
    """Shardings of the values inside that were taken instead of those that propagation found: the ones that follow from
    an argument alone, by its number, or (None) from constraints alone; and the bytes that a device does not receive."""

    argument: int | None
    saved_bytes: int


class Partitioned(NamedTuple):
    """A program on all devices, the layouts of its results, and its collectives."""

    program: Program
    out_shardings: tuple[TensorSharding, ...]
    records: tuple[CollectiveRecord, ...]
    moved: dict[int, TensorSharding]  # the layouts that arguments were first brought into, by number
    written: dict[Var, str]  # by the results of collectives that were put in, the op that they are for
    steps: tuple[PartitionStep, ...]  # how the program of one device came about
    instead: Instead | None = None  # of what propagation found

    @property
    def local(self) -> Program:
        """The program of one device."""
        return next(eqn.params["body"] for eqn in self.program.eqns if eqn.op.structure is Structure.DEVICE)  # type: ignore[no-any-return]


def partition(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    wanted: Mapping[Var, TensorSharding],
    overlapped: Overlap | None = None,
    how: Planning = PLAINLY,
) -> Partitioned:
    """The program of all devices for operands in the given layouts.

    ``wanted`` are layouts that propagation found for values inside; results without a layout come out as they are.
    Axes are cut into parts where somebody wrote parts, or (``how.thorough``) wherever that is faster.
    """
    program = inline_calls(program, shard_maps=False)
    given = [s for s in (*in_shardings, *out_shardings) if s is not None and is_on(s, mesh)]
    by_hand = [axis for eqn in written(program) for axis in written_parts(eqn, mesh)]
    sums = [axis for s in given for axis in s.unreduced]
    cuts = Cuts(mesh).where_they_fit([*by_hand, *sums, *(axis for s in given for axis in axes_used(s))])
    while True:  # every part that is needed and fits in cuts the mesh further, which ends with parts of prime size
        try:
            return _partition(program, mesh, in_shardings, out_shardings, wanted, cuts, overlapped, how)
        except MeshCutNeeded as needed:
            assert cuts.fits(needed.axis), f"{needed.axis} does not nest with {cuts.axes}"
            cuts = cuts.at(needed.axis)


def _partition(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    wanted: Mapping[Var, TensorSharding],
    cuts: Cuts,
    overlapped: Overlap | None,
    how: Planning,
) -> Partitioned:
    def fitted(s: TensorSharding) -> TensorSharding:
        return cuts.fitted(s) if is_on(s, mesh) else closed(s)

    known = {var: fitted(s) for var, s in wanted.items()}
    used = {atom for eqn in program.eqns for atom in eqn.inputs}
    for atom, s in zip(program.outputs, out_shardings, strict=True):
        if s is not None and isinstance(atom, Var) and (atom not in used or atom not in known):
            known[atom] = fitted(s)
    local = Localizer(mesh, known, cuts, how=how, returned={*program.outputs})
    axes = cuts.axes
    entries = [Entry.of(local, t, closed(s)) for t, s in zip(program.in_types, in_shardings, strict=True)]

    def body(*values: Value) -> tuple[list[Value], list[Exit]]:
        for var, entry, value in zip(program.inputs, entries, values, strict=True):
            local.define(var, entry.inside(local, value))
        local.run(program)
        found = []
        for atom, given in zip(program.outputs, out_shardings, strict=True):
            need = taken(atom.type, local.as_it_is(atom), how) if given is None else fitted(given)
            exit = Exit.of(local, atom.type, need)
            why = f"a result is returned {sharded_as(need, atom.type)}"
            found.append((exit.inside(local, local.get(atom, need, why)), exit))
        return [value for value, _ in found], [exit for _, exit in found]

    start = perf_counter()
    block_program, results = region_with(body, [entry.block(local) for entry in entries])
    block_program = dce(block_program)
    steps = [PartitionStep("partition", block_program, perf_counter() - start)]
    start = perf_counter()
    block_program = combine(scatter_sums(block_program, local.whys))
    steps.append(PartitionStep("combine", block_program, perf_counter() - start))
    whys: dict[Var, CollectiveReason] = local.whys
    overlaps: dict[Var, OverlapOutcome] = {}
    if overlapped is not None:
        start = perf_counter()
        block_program, whys, overlaps = overlap(block_program, mesh, dict(axes), whys, overlapped)
        steps.append(PartitionStep("overlap", block_program, perf_counter() - start))
    out_specs = []
    for t, exit in zip(block_program.out_types, results, strict=True):
        spec = exit.spec(local)
        extra = [axis for axis in t.varying if axis not in varying_axes(spec)]
        out_specs.append(spec.update(replicated=extra))

    def whole(*values: Value) -> list[Value]:
        given = [entry.outside(x) for entry, x in zip(entries, values, strict=True)]
        outs = shard_map(
            *given, body=block_program, mesh=axes, manual=tuple(name for name, _ in axes),
            in_specs=tuple(entry.spec for entry in entries), out_specs=tuple(out_specs),
        )  # fmt: skip
        return [exit.outside(x, t) for exit, x, t in zip(results, outs, program.out_types, strict=True)]

    found = tuple(records(block_program, dict(axes), whys, overlaps))
    moved = {n: local.moved[v] for n, v in enumerate(program.inputs) if v in local.moved}
    # What is not split over parts that do not fit in is on every device that is to have a part of it.
    outs = [exit.sharding if s is None else closed(s) for exit, s in zip(results, out_shardings, strict=True)]
    return Partitioned(
        region(whole, [entry.type for entry in entries]),
        tuple(outs),
        found,
        moved,
        written_for(block_program, whys),
        tuple(steps),
    )

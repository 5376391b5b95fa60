"""partition: a global program with layouts becomes one shard_map whose body is the program of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.core.op import Value
from meshwright.core.program import Program, Var
from meshwright.core.types import TensorType
from meshwright.partition.across import is_on
from meshwright.partition.combine import (
    CollectiveReason,
    CollectiveRecord,
    OverlapOutcome,
    combine,
    records,
    written_for,
)
from meshwright.partition.cost import PLAINLY, MachineCost, Planning, taken
from meshwright.partition.cuts import Cuts, MeshCutNeeded, written, written_parts
from meshwright.partition.entry import Entry, Exit
from meshwright.partition.layouts import axes_used, closed
from meshwright.partition.localize import Localizer, sharded_as
from meshwright.partition.overlap.matmuls import Overlap, overlap
from meshwright.partition.rules import halo, indexing, iota, prefix, regions, windows
from meshwright.partition.scattered import scatter_sums
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.regions.region import region, region_with
from meshwright.transform.regions.shard_map import shard_map, varying_axes
from meshwright.transform.simplify import dce

RULES = (halo, indexing, iota, prefix, regions, windows)  # of ops that are partitioned in a way of their own


@dataclass(frozen=True)
class LocalProgram:
    """The program of one device with its collectives, and how it stands in the program of all devices.

    ``moved`` are the shardings that arguments were first brought into, by number; ``out_shardings`` those of the
    results, ``out_types`` their types outside, ``out_specs`` the specs by which they leave; ``cost`` decides.
    """

    program: Program
    mesh: BaseMesh
    cuts: Cuts
    entries: tuple[Entry, ...]
    exits: tuple[Exit, ...]
    out_specs: tuple[PartitionSpec, ...]
    out_types: tuple[TensorType, ...]
    out_shardings: tuple[TensorSharding, ...]
    moved: Mapping[int, TensorSharding]
    whys: Mapping[Var, CollectiveReason]
    overlaps: Mapping[Var, OverlapOutcome]
    cost: MachineCost

    @cached_property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """The collectives, in order."""
        return tuple(records(self.program, dict(self.cuts.axes), self.whys, self.overlaps))

    @cached_property
    def whole(self) -> Program:
        """The program of all devices: a shard_map between arrays as they lie outside."""

        def body(*values: Value) -> list[Value]:
            outs = self._mapped(*(entry.outside(x) for entry, x in zip(self.entries, values, strict=True)))
            return [exit.outside(x, t) for exit, x, t in zip(self.exits, outs, self.out_types, strict=True)]

        return region(body, [entry.type for entry in self.entries])

    @cached_property
    def on_blocks(self) -> Program:
        """The program of all devices: a shard_map between arrays as the blocks of the devices make them, with padding,
        or in rows."""
        return region(self._mapped, [entry.of_blocks for entry in self.entries])

    def _mapped(self, *values: Value) -> list[Value]:
        out_specs = []
        for t, spec in zip(self.program.out_types, self.out_specs, strict=True):
            extra = [axis for axis in t.varying if axis not in varying_axes(spec)]
            out_specs.append(spec.update(replicated=extra))
        return shard_map(  # type: ignore[no-any-return]
            *values, body=self.program, mesh=self.cuts.axes, manual=tuple(name for name, _ in self.cuts.axes),
            in_specs=tuple(entry.spec for entry in self.entries), out_specs=tuple(out_specs),
        )  # fmt: skip

    def written(self) -> dict[Var, str]:
        """By the results of collectives that were put in, the op that they are for."""
        return written_for(self.program, self.whys)


def partition(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    wanted: Mapping[Var, TensorSharding],
    how: Planning = PLAINLY,
) -> LocalProgram:
    """The program of one device for operands in the given layouts; the program has no calls.

    ``wanted`` are layouts that propagation found for values inside; results without a layout come out as they are.
    Axes are cut into parts where somebody wrote parts, or (``how.thorough``) wherever that is faster.
    """
    given = [s for s in (*in_shardings, *out_shardings) if s is not None and is_on(s, mesh)]
    by_hand = [axis for eqn in written(program) for axis in written_parts(eqn, mesh)]
    sums = [axis for s in given for axis in s.unreduced]
    cuts = Cuts(mesh).where_they_fit([*by_hand, *sums, *(axis for s in given for axis in axes_used(s))])
    while True:  # every part that is needed and fits in cuts the mesh further, which ends with parts of prime size
        try:
            return _partition(program, mesh, in_shardings, out_shardings, wanted, cuts, how)
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
    how: Planning,
) -> LocalProgram:
    def fitted(s: TensorSharding) -> TensorSharding:
        return cuts.fitted(s) if is_on(s, mesh) else closed(s)

    known = {var: fitted(s) for var, s in wanted.items()}
    used = {atom for eqn in program.eqns for atom in eqn.inputs}
    for atom, s in zip(program.outputs, out_shardings, strict=True):
        if s is not None and isinstance(atom, Var) and (atom not in used or atom not in known):
            known[atom] = fitted(s)
    local = Localizer(mesh, known, cuts, how=how, returned={*program.outputs})
    entries = [Entry.of(local, t, closed(s)) for t, s in zip(program.in_types, in_shardings, strict=True)]

    def body(*values: Value) -> tuple[list[Value], list[Exit]]:
        for var, entry, value in zip(program.inputs, entries, values, strict=True):
            local.define(var, entry.inside(local, value))
        local.run(program)
        found = []
        for atom, given in zip(program.outputs, out_shardings, strict=True):
            need = taken(atom.type, local.as_it_is(atom), how) if given is None else fitted(given)
            exit = Exit.of(local, atom.type, need)
            why = f"the program returns it {sharded_as(need, atom.type)}"
            found.append((exit.inside(local, local.get(atom, need, why)), exit))
        return [value for value, _ in found], [exit for _, exit in found]

    block_program, exits = region_with(body, [entry.block(local) for entry in entries])
    # What is not split over parts that do not fit in is on every device that is to have a part of it.
    outs = [exit.sharding if s is None else closed(s) for exit, s in zip(exits, out_shardings, strict=True)]
    return LocalProgram(
        dce(block_program),
        mesh,
        cuts,
        tuple(entries),
        tuple(exits),
        tuple(exit.spec(local) for exit in exits),
        program.out_types,
        tuple(outs),
        {n: local.moved[v] for n, v in enumerate(program.inputs) if v in local.moved},
        local.whys,
        {},
        how.cost,
    )


def combined(found: LocalProgram) -> LocalProgram:
    """The program of one device with sums over the same devices taken together, small gathers too, and reduce-scatters
    for sums of which each device keeps a part."""
    whys = dict(found.whys)
    return replace(found, program=combine(scatter_sums(found.program, whys, found.cost), whys), whys=whys)


def overlapped(found: LocalProgram, how: Overlap) -> LocalProgram:
    """The program of one device with gathers and reduce-scatters beside the matmuls next to them, as rings."""
    program, whys, overlaps = overlap(found.program, found.mesh, dict(found.cuts.axes), found.whys, how)
    return replace(found, program=program, whys=whys, overlaps=overlaps)

"""partition: a global program with layouts becomes one shard_map whose body is the program of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.core.axes import AxisRef, quoted
from meshwright.core.mesh import BaseMesh
from meshwright.core.op import Value
from meshwright.core.partition_spec import PartitionSpec
from meshwright.core.program import Program, Var
from meshwright.core.sharding import TensorSharding
from meshwright.core.source import here
from meshwright.core.trace import Array, lift
from meshwright.core.types import TensorType, union
from meshwright.errors import ShardingError
from meshwright.ops.regions import region, region_with
from meshwright.ops.shape import pad, slice_
from meshwright.ops.shard_map import block_type, shard_map, varying_axes
from meshwright.ops.stacked import inline_calls
from meshwright.partition import halo, indexing, places, prefix, regions, windows
from meshwright.partition.combine import Beside, Record, Why, combine, records
from meshwright.partition.layouts import axes_used, closed, finished, nesting
from meshwright.partition.localize import CutNeeded, Localizer, Version
from meshwright.partition.overlap import Overlap, overlap
from meshwright.partition.scattered import scatter_sums
from meshwright.transform.simplify import dce

RULES = (halo, indexing, places, prefix, regions, windows)  # of ops that are partitioned in a way of their own


class Partitioned(NamedTuple):
    """A program on all devices, the layouts of its results, and its collectives."""

    program: Program
    out_shardings: tuple[TensorSharding, ...]
    records: tuple[Record, ...]
    moved: dict[int, TensorSharding]  # the layouts that arguments were first brought into, by number

    @property
    def local(self) -> Program:
        """The program of one device."""
        return next(eqn.params["body"] for eqn in self.program.eqns if eqn.op is shard_map)  # type: ignore[no-any-return]


def partition(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    wanted: Mapping[Var, TensorSharding],
    overlapped: Overlap | None = None,
) -> Partitioned:
    """The program of all devices for operands in the given layouts.

    ``wanted`` are layouts that propagation found for values inside; results without a layout come out as they are.
    """
    program = inline_calls(program, shard_maps=False)
    cuts: set[AxisRef] = set()
    nested = False  # whether what is planned must nest with the cuts
    while True:
        try:
            with nesting(tuple(sorted(cuts, key=str)) if nested else ()):
                return _partition(program, mesh, in_shardings, out_shardings, wanted, cuts, overlapped)
        except CutNeeded as needed:
            if not _crosses(needed.axis, cuts):
                cuts.add(needed.axis)
            elif nested:
                raise _crossing(needed.axis, cuts) from None
            else:
                nested, cuts = True, set()
                for sharding in (*in_shardings, *(s for s in out_shardings if s is not None)):
                    _add_cuts(sharding, cuts)
                wanted = {var: sharding for var, sharding in wanted.items() if _nests(sharding, cuts)}


def _crosses(axis: AxisRef, cuts: set[AxisRef]) -> bool:
    """Whether an axis cannot be cut at the ends of a part and of those that it is cut into already."""
    ends = sorted({end for cut in (*cuts, axis) if cut.name == axis.name for end in (cut.pre, cut.next)})
    return any(after % before for before, after in pairwise(ends))


def _add_cuts(sharding: TensorSharding, cuts: set[AxisRef]) -> None:
    for axis in axes_used(sharding):
        if not axis.is_full:
            if _crosses(axis, cuts):
                raise _crossing(axis, cuts)
            cuts.add(axis)


def _nests(sharding: TensorSharding, cuts: set[AxisRef]) -> bool:
    """Whether the parts of axes of a sharding nest with the cuts, and with each other; if so they join them."""
    new = set(cuts)
    for axis in axes_used(sharding):
        if not axis.is_full:
            if _crosses(axis, new):
                return False
            new.add(axis)
    cuts |= new
    return True


def _crossing(axis: AxisRef, cuts: set[AxisRef]) -> ShardingError:
    other = next(cut for cut in sorted(cuts, key=str) if cut.name == axis.name and _crosses(axis, {cut}))
    return ShardingError(
        f"One program cannot split its values over {other} and over {axis}.",
        where=here(),
        why=f"devices along the axis {quoted(axis.name)} of size {axis.whole} are counted in parts that all values "
        "have in common, and these two do not nest",
        fix=f"parts that nest, such as {axis.part(1, axis.next)}, or whole axes",
    )


def _atoms(mesh: BaseMesh, cuts: set[AxisRef]) -> dict[AxisRef, tuple[tuple[str, int], ...]]:
    """Each axis as the parts that it is cut into."""
    found = {}
    for whole in mesh.axes:
        at = sorted({1, whole.size} | {n for cut in cuts if cut.name == whole.name for n in (cut.pre, cut.next)})
        parts = [whole.part(low, high) for low, high in pairwise(at)] or [whole]
        found[whole] = tuple((part.short(), part.size) for part in parts)
    return found


def _partition(
    program: Program,
    mesh: BaseMesh,
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding | None],
    wanted: Mapping[Var, TensorSharding],
    cuts: set[AxisRef],
    overlapped: Overlap | None,
) -> Partitioned:
    atoms = _atoms(mesh, cuts)
    known = {var: closed(s) for var, s in wanted.items()}
    used = {atom for eqn in program.eqns for atom in eqn.inputs}
    for atom, s in zip(program.outputs, out_shardings, strict=True):
        if s is not None and isinstance(atom, Var) and (atom not in used or atom not in known):
            known[atom] = closed(s)
    local = Localizer(mesh, known, atoms)
    axes = tuple(pair for pairs in atoms.values() for pair in pairs)
    layouts = [closed(s) for s in in_shardings]
    in_specs = tuple(_spec(local, s) for s in layouts)
    types = [t.with_(unreduced=tuple(spec.unreduced)) for t, spec in zip(program.in_types, in_specs, strict=True)]
    padded = [t.with_(shape=s.padded_shape(t.shape)) for t, s in zip(types, layouts, strict=True)]
    blocks = [block_type(t, spec, axes) for t, spec in zip(padded, in_specs, strict=True)]

    def body(*values: Value) -> tuple[list[Value], list[TensorSharding]]:
        for var, layout, value in zip(program.inputs, layouts, values, strict=True):
            local.define(var, Version(layout, value))
        local.run(program)
        found = []
        for atom, given in zip(program.outputs, out_shardings, strict=True):
            need = finished(local.best(atom, owed=False)) if given is None else closed(given)
            value = local.get(atom, need, "a result is returned so")
            found.append((lift(value, union((value.type.varying, varying_axes(_spec(local, need))))), need))
        return [value for value, _ in found], [need for _, need in found]

    block_program, results = region_with(body, blocks)
    block_program = combine(scatter_sums(dce(block_program), local.whys))
    whys: dict[Var, Why] = local.whys
    beside: dict[Var, Beside] = {}
    if overlapped is not None:
        block_program, whys, beside = overlap(block_program, mesh, dict(axes), whys, overlapped)
    out_specs = []
    for t, layout in zip(block_program.out_types, results, strict=True):
        spec = _spec(local, layout)
        extra = [axis for axis in t.varying if axis not in varying_axes(spec)]
        out_specs.append(spec.update(replicated=extra))

    def whole(*values: Value) -> list[Value]:
        given = [_padded(x, t.shape) for x, t in zip(values, padded, strict=True)]
        outs = shard_map(
            *given, body=block_program, mesh=axes, manual=tuple(name for name, _ in axes),
            in_specs=in_specs, out_specs=tuple(out_specs),
        )  # fmt: skip
        return [_cropped(x, t) for x, t in zip(outs, program.out_types, strict=True)]

    found = tuple(records(block_program, dict(axes), whys, beside))
    moved = {n: local.moved[v] for n, v in enumerate(program.inputs) if v in local.moved}
    return Partitioned(region(whole, types), tuple(results), found, moved)


def _spec(local: Localizer, sharding: TensorSharding) -> PartitionSpec:
    """A layout in terms of the axes of the local program."""
    dims = [tuple(name for axis in dim.axes for name, _ in local.names(axis)) or None for dim in sharding.dims]
    return PartitionSpec(*dims, unreduced=[name for axis in sharding.unreduced for name, _ in local.names(axis)])


def _padded(x: Value, shape: tuple[int, ...]) -> Value:
    if x.shape == shape:
        return x
    high = tuple(n - m for n, m in zip(shape, x.shape, strict=True))
    zero = Array(np.zeros((), x.dtype), TensorType((), x.dtype, unreduced=x.type.unreduced))
    return pad(x, zero, low=(0,) * x.ndim, high=high, interior=(0,) * x.ndim)


def _cropped(x: Value, t: TensorType) -> Value:
    if x.shape == t.shape:
        return x
    return slice_(x, starts=(0,) * x.ndim, limits=t.shape, strides=(1,) * x.ndim)

"""Partial sums at the edge of a jitted function: their shardings there, and that of the rows that the program has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.program import Program
from meshwright.core.trace import run
from meshwright.core.types import TensorType
from meshwright.ops.collective import finish_sum
from meshwright.ops.placement import sharding_constraint
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.regions.region import region
from meshwright.transform.summands import has_partial_sums, rows_spec, summed_spec, sums_as_rows


def finished_sums(program: Program, places: Sequence[Any]) -> Program:
    """The program with the sums taken of results that are to be put somewhere; a place that is unreduced, as the result
    is, leaves the sum open."""
    to_reduce = [
        bool(t.unreduced and place is not None and set(_spec(place).unreduced) != set(t.unreduced))
        for t, place in zip(program.out_types, places, strict=True)
    ]
    if not any(to_reduce):
        return program

    def whole(*args: Any) -> list[Any]:
        found = zip(run(program, args), places, to_reduce, strict=True)
        return [_taken(x, _spec(place)) if reduces else x for x, place, reduces in found]

    return region(whole, program.in_types)


def _taken(x: Any, spec: PartitionSpec) -> Any:
    """The sum of a partial sum, where the user asked for it."""
    total = finish_sum(x, axes=x.type.unreduced)
    return total if x.type.sharding is not None else sharding_constraint(total, spec=spec)


def _spec(place: Any) -> PartitionSpec:
    spec = getattr(place, "spec", place)
    return spec if isinstance(spec, PartitionSpec) else PartitionSpec()


def with_rows(
    program: Program, mesh: BaseMesh, in_shardings: Sequence[Any], out_shardings: Sequence[Any]
) -> tuple[Program, Sequence[Any], Sequence[Any]]:
    """A program with rows for partial sums, and the shardings of its arguments and results. Over Explicit axes, types
    say how summands are laid out, and they stay as they are."""
    if mesh.explicit_mesh is not None or not has_partial_sums(program):
        return program, in_shardings, out_shardings
    ins = _rows_shardings(in_shardings, program.in_types, mesh)
    outs = _rows_shardings(out_shardings, program.out_types, mesh)
    return sums_as_rows(program, mesh.shape), ins, outs


def _rows_shardings(places: Sequence[Any], types: Sequence[TensorType], mesh: BaseMesh) -> list[Any]:
    """The shardings of the rows of partial sums, and of all else as they are."""
    free = PartitionSpec.UNCONSTRAINED
    found = []
    for place, t in zip(places, types, strict=True):
        if t.unreduced and place is None:
            place = NamedSharding(mesh, rows_spec(PartitionSpec(*[free] * t.ndim), t.unreduced))
        elif t.unreduced:
            place = NamedSharding(mesh, rows_spec(_spec(place), t.unreduced))
        found.append(place)
    return found


def summed_shardings(shardings: Sequence[NamedSharding], types: Sequence[TensorType]) -> list[NamedSharding]:
    """The shardings of partial sums, from those of their rows; of all else as they are."""
    return [
        NamedSharding(s.mesh, summed_spec(s.spec, t.unreduced)) if t.unreduced and not s.spec.unreduced else s
        for s, t in zip(shardings, types, strict=True)
    ]

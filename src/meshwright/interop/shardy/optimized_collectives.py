"""``-sdy-optimize-collectives``: collectives that do together what cheaper ones do, too.

A permute that only changes the order of the axes of one dim, so that an all-to-all can take the last of them, moves
everything once more. With a dim for each axis, all-to-alls alone bring each of them where it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from meshwright.interop.shardy.communication import created, listed
from meshwright.interop.shardy.made_ops import tensor
from meshwright.interop.shardy.module_shardings import per_value_text
from meshwright.interop.shardy.module_walk import SHARDING, walk
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import context, run_mlir
from meshwright.sharding.axes import Axes, AxisRef, total_size
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

_ONE = re.compile(r"[^:]*\{[^{}]*\}: (\d+)->(\d+)\]>")  # of which dim into which, if there is one


class AxisStep(NamedTuple):
    """Where an axis goes: from one of the dims that a dim was split into to another, which is empty."""

    axis: AxisRef
    source: int
    target: int


def optimize_collectives(module: Any) -> None:
    """Replace permutes within a dim before an all-to-all; what is computed of constants, or for nobody, goes as well.

    %1 = sdy.collective_permute %0 out_sharding=[{}, {"y", "x"}]   ==>   %1 = reshape %0 : 8x8 -> 8x2x2x2
    %2 = sdy.all_to_all [{"x"}: 1->0] %1                                 %2 = sdy.all_to_all [{"x"}: 1->0] %1
                                                                         %3 = sdy.all_to_all [{"y"}: 2->1] %2
                                                                         %4 = reshape %3 : 8x2x2x2 -> 8x8
    """
    from jaxlib.mlir import ir

    known = ValueShardings(module)
    with context(), ir.Location.unknown():
        for op in [op for op in walk(module.operation) if op.name == "sdy.all_to_all"]:
            _without_permute(op, known)
    run_mlir("canonicalize{enable-patterns=none}", module, "after sdy-optimize-collectives")


def _without_permute(op: Any, known: ValueShardings) -> None:
    from jaxlib.mlir import ir

    value = op.operands[0]
    found = _ONE.search(str(op.attributes["params"]))
    if found is None or isinstance(value.owner, ir.Block) or len(list(value.uses)) != 1:
        return
    permute, dim, target = value.owner.operation, int(found[1]), int(found[2])
    if permute.name != "sdy.collective_permute":
        return
    before, between, (after,) = known(permute.operands[0]), known(value), known.of_results(op)
    if before is None or between is None or after is None or not _is_reordered(before, between, dim):
        return
    axes = [sharding.dims[dim].axes for sharding in (before, between, after)]
    cuts = _cuts(axis for some in axes for axis in some)
    parts = [[part for axis in some for part in _parts(axis, cuts)] for some in axes]
    moved = parts[1][len(parts[2]) :]
    swaps = planned(parts[0], moved, parts[2])
    if swaps is None or op.results[0].type.shape[dim] % total_size(parts[0]):
        return
    made = _DimPerAxis(permute.operands[0], before, after, dim, parts[0], ir.InsertionPoint(op), op.location).moved(
        moved[0], target, swaps
    )
    op.results[0].replace_all_uses_with(made)
    op.erase()
    permute.erase()


def _is_reordered(before: TensorSharding, between: TensorSharding, dim: int) -> bool:
    """Whether two shardings differ in the order of the axes of one dim only."""
    if before.mesh.order != between.mesh.order or before.mesh.shape != between.mesh.shape:
        return False
    rest = (before.replicated, before.unreduced) == (between.replicated, between.unreduced)
    same = all(one == other for n, (one, other) in enumerate(zip(before.dims, between.dims, strict=True)) if n != dim)
    sides = before.dims[dim], between.dims[dim]
    return rest and same and sides[0] != sides[1] and not any(side.is_open or side.priority for side in sides)


def _cuts(axes: Iterable[AxisRef]) -> dict[str, list[int]]:
    """Where the parts of each axis begin and end."""
    found: dict[str, set[int]] = {}
    for axis in axes:
        found.setdefault(axis.name, set()).update((axis.pre, axis.next))
    return {name: sorted(places) for name, places in found.items()}


def _parts(axis: AxisRef, cuts: dict[str, list[int]]) -> Axes:
    """An axis as parts, each between two cuts."""
    places = [place for place in cuts[axis.name] if axis.pre <= place <= axis.next]
    if any(after % before for before, after in pairwise(places)):
        return (axis,)
    return tuple(axis.part(before, after) for before, after in pairwise(places))


def planned(axes: list[AxisRef], moved: list[AxisRef], wanted: list[AxisRef]) -> list[AxisStep] | None:
    """How axes, each in a place of its own, come into a wanted order after one has left; None if they do not.

    An axis goes where none is, and where as much room is as it takes; the last may leave some.

    >>> x, y, z = (AxisRef.full(name, 2) for name in "xyz")
    >>> [(str(axis), source, target) for axis, source, target in planned([x, y, z], [x], [z, y])]
    [('"z"', 2, 0)]
    >>> planned([x, y, z], [z], [y, x])
    """
    if len(moved) != 1 or not wanted or sorted(map(str, axes)) != sorted(map(str, [*moved, *wanted])):
        return None
    held: list[AxisRef | None] = [None if axis is moved[0] else axis for axis in axes]
    found = []
    for place, axis in enumerate(wanted):
        if held[place] is axis:
            continue
        room, is_last = axes[place].size, place == len(wanted) - 1
        if held[place] is not None or not (room == axis.size or (is_last and room % axis.size == 0)):
            return None
        source = held.index(axis)
        held[source], held[place] = None, axis
        found.append(AxisStep(axis, source, place))
    return found


class _DimPerAxis:
    """A value with a dim for each axis of one of its dims."""

    def __init__(
        self, value: Any, before: TensorSharding, after: TensorSharding, dim: int, axes: list[AxisRef], place: Any,
        location: Any,
    ) -> None:  # fmt: skip
        self._value, self._before, self._after, self._dim, self._place = value, before, after, dim, place
        self._location = location
        rest = value.type.shape[dim] // total_size(axes)
        self._sizes = [*(axis.size for axis in axes), *([rest] if rest > 1 else [])]
        self._held: list[Axes] = [dims.axes for dims in before.dims]
        self._held[dim : dim + 1] = [*((axis,) for axis in axes), *([()] if rest > 1 else [])]

    def moved(self, first: AxisRef, target: int, swaps: list[AxisStep]) -> Any:
        """The value after the axis that leaves the dim, and after those that take its place."""
        shape = list(self._value.type.shape)
        whole = list(shape)
        shape[self._dim : self._dim + 1] = self._sizes
        value = self._reshaped(self._value, shape, self._sharding())
        source = next(n for n, axes in enumerate(self._held) if axes == (first,))
        into = target if target < self._dim else target + len(self._sizes) - 1
        value = self._exchanged(value, first, source, into)
        for swap in swaps:
            value = self._exchanged(value, swap.axis, self._dim + swap.source, self._dim + swap.target)
        return self._reshaped(value, whole, self._after)

    def _sharding(self) -> TensorSharding:
        like = self._before
        dims = tuple(map(DimensionSharding, self._held))
        return TensorSharding.unchecked(like.mesh, dims, like.replicated, like.unreduced, like.reduction)

    def _exchanged(self, value: Any, axis: AxisRef, source: int, target: int) -> Any:
        self._held[source] = ()
        self._held[target] = (*self._held[target], axis)
        text = f"#sdy<all_to_all_param_list[{listed([axis])}: {source}->{target}]>"
        return created(self._place, "all_to_all", value, self._sharding(), params=text)

    def _reshaped(self, value: Any, shape: list[int], sharding: TensorSharding) -> Any:
        from jaxlib.mlir import ir

        return ir.Operation.create(
            "stablehlo.reshape",
            results=[tensor(shape, value.type.element_type)],
            operands=[value],
            attributes={SHARDING: ir.Attribute.parse(per_value_text([sharding]))},
            loc=self._location,
            ip=self._place,
        ).result

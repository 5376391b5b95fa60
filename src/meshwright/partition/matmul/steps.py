"""The collectives that take an array from one sharding to another, in the index notation of seed 001.

They are those of the reshard planner, which is what a program that is partitioned runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from math import prod
from typing import NamedTuple

from meshwright.hardware.layouts import Layout, subscript
from meshwright.partition.reshard.blocks import BlockExchange
from meshwright.partition.reshard.plan import ReshardPlan, every_plan
from meshwright.partition.reshard.steps import Mapped, ReshardStep, Rounds
from meshwright.sharding.axes import Axes, AxisRef, merged, total_size
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.named import TensorSharding

HELD = "·"  # in ``A[I_·x]``: blocks of I are cut into parts, and a device holds its part of each
FEW_AXES = 4  # of a mesh, on which every plan is looked at
FEW_PLANS = 2  # those with the fewest bytes, on meshes of more axes
_TITLES = {
    "slice": "Slice",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
}


@dataclass(frozen=True)
class ConversionStep:
    """One collective (or slice, which is local) over ``along``, from one layout to the next.

    ``blocks`` is how many the array is cut into before it and after it; ``rounds`` how often it runs, each time with
    its part of the block.
    """

    kind: str
    along: Axes
    before: Layout
    after: Layout
    blocks: tuple[float, float]
    rounds: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes, parts of axes with what lies before them."""
        return tuple(axis.short() for axis in self.along)

    @property
    def name(self) -> str:
        """``AllGather_x(A)``."""
        return f"{_TITLES[self.kind]}{subscript(self.axes)}({self.before.name})"

    def __str__(self) -> str:
        return f"{_TITLES[self.kind]}{subscript(self.axes)}({self.before}) -> {self.after}"

    @property
    def group(self) -> int:
        """Devices that take part together."""
        return total_size(self.along)

    def elements(self, sizes: Mapping[str, float]) -> float:
        """V of one round, in elements: see `meshwright.hardware.links`."""
        blocks = self.blocks[1] if self.kind == "all_gather" else self.blocks[0]
        held = prod(sizes[index] for index in self.before.indices) / (blocks * self.rounds)
        return held * self.group if self.kind in ("all_to_all", "permute") else held

    def received(self, sizes: Mapping[str, float]) -> float:
        """Elements that each device takes in during one round."""
        group = self.group
        share = {
            "slice": 0.0,
            "all_reduce": 2 * (group - 1) / group,
            "all_to_all": (group - 1) / group**2,
            "permute": 1 / group,
        }.get(self.kind, (group - 1) / group)
        return share * self.elements(sizes)


class ArrayConversion(NamedTuple):
    """Steps from one layout of an array to another, and how often a device reads or writes the array meanwhile.

    ``copied`` counts reads and writes of elements, in units of the elements of the whole array.
    """

    steps: tuple[ConversionStep, ...] = ()
    copied: float = 0.0


def conversions(source: Layout, target: Layout, mesh: Mapping[str, int]) -> tuple[ArrayConversion, ...]:
    """Every conversion that the reshard planner knows, the one with the fewest bytes first; none if a sum would have to
    be taken apart.

        A[I_x,J] -> A[I,J]       AllGather_x
        A[I_x,J] -> A[I,J_x]     AllToAll_x
        A[I]{U_x} -> A[I_x]      ReduceScatter_x

    >>> mesh = {"x": 2, "y": 2}
    >>> from meshwright.hardware.layouts import parse_layout
    >>> source, target = parse_layout("A[I_x,J]{U_y}", mesh)[0], parse_layout("A[I,J_y]", mesh)[0]
    >>> for step in conversions(source, target, mesh)[0].steps: print(step)
    ReduceScatter_y(A[I_x,J]{U_y}) -> A[I_x,J_y]
    AllGather_x(A[I_x,J_y]) -> A[I,J_y]
    """
    if set(target.unreduced) - set(source.unreduced):
        return ()
    if (source.axes, set(source.unreduced)) == (target.axes, set(target.unreduced)):
        return (ArrayConversion(),)
    found = _converted(source.axes, source.unreduced, target.axes, target.unreduced, tuple(mesh.items()))
    return tuple(_named(one, source, target) for one in found)


Split = tuple[tuple[str, ...], ...]


@lru_cache(maxsize=4096)
def _converted(
    source: Split, sums: tuple[str, ...], target: Split, left: tuple[str, ...], mesh: tuple[tuple[str, int], ...]
) -> tuple[ArrayConversion, ...]:
    """Conversions of an array without a name, and as large as can be divided in every way."""
    names, sizes = zip(*mesh, strict=True)
    on = AbstractMesh(sizes, names)
    whole = {axis.name: axis for axis in on.axes}
    ends = [
        TensorSharding(on, [[whole[axis] for axis in axes] for axes in dims], unreduced=[whole[axis] for axis in open_])
        for dims, open_ in ((source, sums), (target, left))
    ]
    shape = (on.size**2,) * len(source)
    found: dict[tuple[str, ...], ArrayConversion] = {}
    few = len(names) <= FEW_AXES
    plans = every_plan(shape, "int8", ends[0], ends[1], on_machine=few)
    for plan in plans if few else plans[:FEW_PLANS]:
        one = _conversion(plan)
        found.setdefault(tuple(f"{step} {step.rounds}" for step in one.steps), one)
    return tuple(found.values())


def _conversion(plan: ReshardPlan) -> ArrayConversion:
    """A reshard plan in the notation of layouts."""
    sums, dims = tuple(plan.source.unreduced), plan.common_dims
    layouts = [_layout(plan.mapped[0], sums, dims)]
    steps: list[ConversionStep] = []
    for step, (before, after) in zip(plan.steps, pairwise(plan.mapped), strict=True):
        sums = _left(sums, step)
        layouts.append(_layout(after, sums, dims))
        rounds = step.collectives if isinstance(step, Rounds) else 1
        blocks = total_size(before.values()), total_size(after.values())
        repeated = _exchanged(step, plan) if isinstance(step, BlockExchange) else [(blocks, rounds)]
        steps += [ConversionStep(step.kind, merged(step.axes), layouts[-2], layouts[-1], *each) for each in repeated]
    return ArrayConversion(tuple(steps), plan.copied_bytes / prod(plan.shape))


def _exchanged(step: BlockExchange, plan: ReshardPlan) -> list[tuple[tuple[float, float], int]]:
    """The permutes of an exchange of blocks that do not nest: how small a part of the array each moves, how often."""
    whole = prod(plan.shape) / prod(plan.units)
    return [((whole / (prod(shape) * times),) * 2, times) for shape, times in step.missing.counts]  # type: ignore[misc]


def _left(sums: Axes, step: ReshardStep) -> Axes:
    """The axes over which an array is unreduced behind a step."""
    if step.kind not in ("all_reduce", "reduce_scatter"):
        return sums
    parts = [part for axis in sums for part in _cut(axis, step.axes)]
    return merged(part for part in parts if part not in step.axes)


def _cut(axis: AxisRef, at: Axes) -> list[AxisRef]:
    """An axis in the parts that some of its parts leave of it."""
    ends = {axis.pre, axis.next, *(end for one in at if axis.contains(one) for end in (one.pre, one.next))}
    return [axis.part(low, high) for low, high in pairwise(sorted(ends))]


def _layout(mapped: Mapped, sums: Axes, common: Sequence[bool]) -> Layout:
    """The layout in which the digits of dims lie on axes.

    `HELD` stands for digits before these that devices hold, and for a dim whose blocks do not nest with the others'.
    """
    split: list[tuple[str, ...]] = []
    for dim, has_digits in enumerate(common):
        if not has_digits:
            split.append((HELD,))
            continue
        on_axes = {position.digit: axis for position, axis in mapped.items() if position.dim == dim}
        names: list[str] = []
        digits = [on_axes.get(digit) for digit in range(max(on_axes, default=-1) + 1)]
        for held, found in groupby(digits, lambda axis: axis is None):
            names += [HELD] if held else [axis.short() for axis in merged(axis for axis in found if axis is not None)]
        split.append(tuple(names))
    return Layout("", ("",) * len(split), tuple(split), tuple(axis.short() for axis in sums))


def _named(one: ArrayConversion, source: Layout, target: Layout) -> ArrayConversion:
    """A conversion with the array's name and indices; it ends with the target, as that is written."""
    steps: list[ConversionStep] = []
    for number, step in enumerate(one.steps, 1):
        last = steps[-1].after if steps else source
        after = Layout(source.name, source.indices, step.after.axes, step.after.unreduced)
        if number == len(one.steps):
            after = Layout(source.name, source.indices, target.axes, target.unreduced)
        steps.append(replace(step, before=last, after=after))
    return ArrayConversion(tuple(steps), one.copied)

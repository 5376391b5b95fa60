"""Which axes the factors of an op are split over where its operands and results are split differently.

This is the choice of ``opt -sdy-insert-explicit-reshards``, which is Shardy's: it weighs sizes of tensors, op by op.
Programs of ours are partitioned by ``partition.choose``, which counts the bytes that each choice moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meshwright.core.factors import Factors
from meshwright.propagate.problem import FactorRule
from meshwright.propagate.project import Projection, Shape, shapes_of
from meshwright.sharding.axes import Axes, AxisRef, by_name, common_prefix, overlap, prefix_without, total_size

Assignment = dict[int, Axes]  # the axes of each factor, by number


class SplitOp(NamedTuple):
    """An op whose tensors are split in given ways: its rule, and each tensor's factors with their axes."""

    rule: Factors
    shapes: tuple[Shape, ...]  # operands, then results
    elements: tuple[int, ...]
    axes: tuple[dict[int, Axes], ...]

    @staticmethod
    def of(rule: Factors, elements: Sequence[int], projections: Sequence[Projection]) -> SplitOp:
        """The op with tensors of so many elements, split as projections say."""
        shapes, _ = shapes_of(FactorRule.of(rule))
        axes = tuple({factor: found[0] for factor, found in one.items()} for one in projections)
        return SplitOp(rule, shapes, tuple(elements), axes)

    def numbers(self, names: frozenset[str]) -> set[int]:
        """Factors by number."""
        return {number for number, name in enumerate(self.rule.sizes) if name in names}

    @property
    def tensors(self) -> list[int]:
        """The tensors that are no scalars."""
        return [number for number, shape in enumerate(self.shapes) if shape.dims]


def common_axes(split: SplitOp) -> Assignment:
    """The axes of each factor, the same in all tensors that have it."""
    return _agreed(split) or _as_one_of_two(split) or _greedily(split)


def within_reach(shapes: Sequence[Shape], chosen: Assignment) -> Assignment:
    """The same without the axes of a factor that is minor, in a dim of some tensor, to one that is not split whole."""
    found = dict(chosen)
    dims = [(shape, before, factor) for shape in shapes for dim in shape.dims for before, factor in pairwise(dim)]
    while unreachable := {
        factor for shape, before, factor in dims if found[factor] and total_size(found[before]) != shape.sizes[before]
    }:
        found |= dict.fromkeys(unreachable, ())
    return found


def _agreed(split: SplitOp) -> Assignment | None:
    """What all tensors say, if they say the same."""
    found: Assignment = {}
    for axes in split.axes:
        for factor, one in axes.items():
            if found.setdefault(factor, one) != one:
                return None
    whole = split.numbers(split.rule.replicated)
    used: list[AxisRef] = []
    for factor, axes_of in found.items():
        if (axes_of and factor in whole) or overlap(axes_of, used):
            return None
        used += axes_of
    return found


def _as_one_of_two(split: SplitOp) -> Assignment | None:
    """The axes of the larger of two tensors, if nothing stands against splitting the op as it is split."""
    tensors = split.tensors
    if len(tensors) != 2 or split.rule.replicated or any(len(dim) > 1 for s in split.shapes for dim in s.dims):
        return None
    moving = split.numbers(split.rule.permuted)

    def merit(tensor: int) -> tuple[bool, int, int, bool]:
        axes = split.axes[tensor]
        still = not any(axes[factor] for factor in moving if factor in axes)
        ways = total_size(axis for one in axes.values() for axis in one)
        return still, split.elements[tensor], ways, tensor == tensors[0]

    first = max(tensors, key=merit)
    other = next(tensor for tensor in tensors if tensor != first)
    found = dict(split.axes[first])
    for factor, axes_of in split.axes[other].items():
        if factor not in found:
            found[factor] = prefix_without(axes_of, [a for one in found.values() for a in one])
    return found


class _AxesCandidate(NamedTuple):
    """Axes for a factor. Candidates compare: more elements split so first, then kinds of factors, then more ways."""

    elements: int
    kind: int
    ways: int
    factor: int
    length: int
    order: tuple[tuple[str, int, int], ...]
    axes: Axes

    def cut(self, axes: Axes, ways: int) -> _AxesCandidate:
        """The same with other axes."""
        return self._replace(ways=ways, length=len(axes), order=tuple(map(by_name, axes)), axes=axes)


def _greedily(split: SplitOp) -> Assignment:
    """One factor after another: that and those axes first that most elements are split by already."""
    found: Assignment = dict.fromkeys(range(len(split.rule.sizes)), ())

    def in_reach(one: _AxesCandidate) -> bool:
        return all(
            total_size(found[before]) == shape.sizes[before]
            for shape in split.shapes
            for dim in shape.dims
            for before, factor in pairwise(dim)
            if factor == one.factor
        )

    candidates = _candidates(split)
    while ready := [one for one in candidates if in_reach(one)]:
        best = max(ready)
        found[best.factor] = best.axes
        left = []
        for one in candidates:
            if one.factor == best.factor:
                if one.axes != best.axes and common_prefix(one.axes, best.axes) == best.axes:
                    left.append(one._replace(ways=total_size(one.axes) // total_size(best.axes)))
                continue
            axes = prefix_without(one.axes, best.axes)
            if axes != found[one.factor] and common_prefix(axes, found[one.factor]) == found[one.factor]:
                left.append(one.cut(axes, total_size(axes)))
        candidates = left
    _spread_to_batches(split, found)
    return found


def _candidates(split: SplitOp) -> list[_AxesCandidate]:
    """For each factor, what each tensor splits it over, and all beginnings of that."""
    rule = split.rule
    kinds = {**dict.fromkeys(split.numbers(rule.passing), 3), **dict.fromkeys(split.numbers(rule.reduced), 2)}
    kinds |= dict.fromkeys(split.numbers(rule.permuted), 1)
    begun = {
        (factor, axes[:end])
        for tensor in split.tensors
        for factor, axes in split.axes[tensor].items()
        for end in range(1, len(axes) + 1)
    }
    found = []
    for factor, axes in begun:
        split_so = [n for n in split.tensors if common_prefix(split.axes[n].get(factor, ()), axes) == axes]
        elements = sum(split.elements[n] for n in split_so)
        order = tuple(map(by_name, axes))
        found.append(_AxesCandidate(elements, kinds.get(factor, 0), total_size(axes), factor, len(axes), order, axes))
    return found


def _spread_to_batches(split: SplitOp, found: Assignment) -> None:
    """Move the axes of factors that must be whole to factors that all tensors have, as far as they fit."""
    everywhere = [n for n in sorted(found) if all(n in split.axes[tensor] for tensor in split.tensors)]
    passing = split.numbers(split.rule.passing)
    sizes = list(split.rule.sizes.values())
    for factor in sorted(split.numbers(split.rule.replicated)):
        axes, found[factor] = found[factor], ()
        left = list(axes) if factor in everywhere else []
        for n in everywhere:
            while n in passing and left and sizes[n] % total_size((*found[n], left[0])) == 0:
                found[n] = (*found[n], left.pop(0))

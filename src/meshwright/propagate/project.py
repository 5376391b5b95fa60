"""Shardings of tensors as shardings of factors, and back.

A dim of factors ``(i j)`` that is sharded over ``x`` then ``y`` gives to ``i`` what fits into it and to ``j`` the rest.
Where an axis fits only in part, it is cut; where it does not fit at all because the sizes share no divisor, it and all
that follow it *overflow*: they stay with the factor, and nothing can be added to the dim.
"""

from __future__ import annotations

from math import gcd
from typing import Any, ClassVar

from meshwright.propagate.problem import Dims, FactorRule
from meshwright.sharding.axes import Axes, AxisRef, append
from meshwright.sharding.dimension import DimensionSharding
from meshwright.sharding.named import TensorSharding

FactorSharding = tuple[Axes, Axes, bool, bool]  # its axes, those that overflow, if it is closed, if it is minor-most
Projection = dict[int, FactorSharding]


class Shape:
    """The dims of one tensor of a rule as factors, with their sizes. Equal ones are the same object."""

    __slots__ = ("dims", "elements", "factors", "missing", "sizes")

    dims: Dims
    sizes: tuple[int, ...]  # of all factors of the rule
    factors: frozenset[int]
    elements: int

    _interned: ClassVar[dict[Any, Shape]] = {}

    def __new__(cls, dims: Dims, sizes: tuple[int, ...]) -> Shape:
        key = (dims, sizes)
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.dims, found.sizes = dims, sizes
            found.factors = frozenset(factor for dim in dims for factor in dim)
            found.elements = 1
            for factor in found.factors:
                found.elements *= sizes[factor]
            found.missing = {
                factor: ((), (), False, place == len(dim) - 1) for dim in dims for place, factor in enumerate(dim)
            }
            cls._interned[key] = found
        return found

    missing: Projection  # of a tensor of which nothing is known


def project(shape: Shape, sharding: TensorSharding | None) -> Projection:
    """The factor shardings of a tensor."""
    if sharding is None:
        return shape.missing
    found: Projection = {}
    for factors, dim in zip(shape.dims, sharding.dims, strict=True):
        closed = not dim.is_open
        if len(factors) == 1:
            found[factors[0]] = (dim.axes, (), closed, True)
        else:
            _project_dim(found, factors, shape.sizes, dim.axes, closed)
    return found


def _project_dim(found: Projection, factors: tuple[int, ...], sizes: tuple[int, ...], axes: Axes, closed: bool) -> None:
    left = list(axes)
    last = len(factors) - 1
    for place, factor in enumerate(factors):
        if place == last:
            found[factor] = (tuple(left), (), closed, True)
            return
        taken: list[AxisRef] = []
        size = sizes[factor]
        while left:
            axis = left[0]
            common = gcd(size, axis.size)
            if axis.size != 1 and common == 1:
                break
            if axis.size > common:
                cut = axis.pre * common
                taken.append(axis.part(axis.pre, cut))
                left[0] = axis.part(cut, axis.next)
            else:
                taken.append(axis)
                del left[0]
            size //= common
        overflow = tuple(left) if left and size > 1 else ()
        found[factor] = (tuple(taken), overflow, closed, False)
        if overflow:
            found[factors[place + 1]] = ((), (), True, place + 1 == last)
            return


def unproject(shape: Shape, projection: Projection) -> tuple[DimensionSharding, ...]:
    """The dims that a projection stands for."""
    dims = []
    for factors in shape.dims:
        if len(factors) == 1:
            axes, _, closed, _ = projection[factors[0]]
            dims.append(DimensionSharding(axes, not closed))
            continue
        whole: Axes = ()
        any_closed = False
        for factor in factors:
            axes, overflow, closed, _ = projection[factor]
            any_closed = any_closed or closed
            shards = 1
            for position, axis in enumerate(axes):
                whole = append(whole, axis) if position == 0 else (*whole, axis)
                shards *= axis.size
            if overflow:
                for position, axis in enumerate(overflow):
                    whole = append(whole, axis) if position == 0 else (*whole, axis)
                break
            if shards < shape.sizes[factor]:
                break
        dims.append(DimensionSharding(whole, not any_closed))
    return tuple(dims)


def shapes_of(rule: FactorRule) -> tuple[tuple[Shape, ...], int]:
    """The tensors of a rule, operands then results, and how many are operands."""
    found = rule.cache.get("shapes")
    if found is None:
        tensors = tuple(Shape(dims, rule.sizes) for dims in (*rule.operands, *rule.results))
        found = rule.cache["shapes"] = (tensors, len(rule.operands))
    return found  # type: ignore[no-any-return]

"""The ways to split a group of steps over a mesh, and the layouts of its values in each of them.

A way of a group is a way of its first step: axes of the mesh for factors of its op. What follows from that for the
other steps, factor rules say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.facts import Across, Fusion
from meshwright.core.op import No, Op, fusion_of
from meshwright.core.types import TensorType
from meshwright.partition.choose import Assignment, Numbered, groups_of, numbered, rule_of, split_dims
from meshwright.partition.layouts import finished, layout, replicated
from meshwright.partition.rules.indexing import gather_factors, scatter_factors
from meshwright.propagate.problem import FactorRule
from meshwright.propagate.project import project, shapes_of
from meshwright.search.layout.graph import LaidValue, LayoutGroup, LayoutStep
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.placement import block_size

Params = tuple[tuple[str, Any], ...]
Types = tuple[TensorType, ...]


class GroupSplit(NamedTuple):
    """One way to split a group: the layouts of the operands and results of its first step, and how many times smaller
    a device's share of that is."""

    operands: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    degree: float


class Followed(NamedTuple):
    """What follows for a step from the layout of its main operand."""

    operands: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]


Keep = Callable[[LayoutStep, GroupSplit], bool]  # which ways of a group's first step are looked at
Need = tuple[LaidValue, list[TensorSharding], LayoutStep]  # what a step asks of a value, in each way


@lru_cache(maxsize=65536)
def _assignments(rule: FactorRule, separable: frozenset[int], mesh: BaseMesh) -> tuple[Assignment, ...]:
    """Every assignment of axes to factors that can be in so many parts, in the order of the mesh."""
    factors = [f for f in sorted(separable) if rule.sizes[f] > 1]
    axes = [axis for axis in mesh.axes if axis.size > 1]
    found = []
    for spots in product([None, *factors], repeat=len(axes)):
        given: dict[int, tuple[AxisRef, ...]] = {}
        for axis, factor in zip(axes, spots, strict=True):
            if factor is not None:
                given[factor] = (*given.get(factor, ()), axis)
        if all(is_splittable(rule.sizes[f], prod(a.size for a in of)) for f, of in given.items()):
            found.append(given)
    return tuple(found)


def is_splittable(size: int, parts: int) -> bool:
    """Whether a dim is looked at in so many parts: they are equal, or less than a quarter of them together is padding.

    >>> is_splittable(50257, 8), is_splittable(12, 4), is_splittable(12, 8), is_splittable(1, 2)
    (True, True, False, False)
    """
    return size % parts == 0 or 4 * size > 3 * parts * block_size(size, parts)


def split_rule(step: LayoutStep) -> Numbered:
    """The factor rule by which an op is split; at indices, each device may read and write what it holds."""
    eqn = step.eqn
    assert eqn is not None
    operands, results, params = types_of(step)
    rule = rule_of(eqn.op, operands, results, params)
    if eqn.op.split.across is Across.READ:
        read = gather_factors(eqn)
        rule = numbered(read[0], operands[0].dtype) if read is not None else rule
    elif eqn.op.split.across is Across.WRITTEN:
        rule = numbered(scatter_factors(eqn)[0], operands[0].dtype)
    return rule


@lru_cache(maxsize=65536)
def _ways(rule: Numbered, operands: Types, results: Types, mesh: BaseMesh) -> tuple[GroupSplit, ...]:
    found = []
    for given in _assignments(rule.rule, rule.separable, mesh):
        way = _way(rule, (*operands, *results), len(operands), given, mesh)
        if way is not None:
            found.append(way)
    return tuple(dict.fromkeys(found))


def _way(rule: Numbered, types: Types, count: int, given: Assignment, mesh: BaseMesh) -> GroupSplit | None:
    shapes, _ = shapes_of(rule.rule)
    dims = []
    for shape, t in zip(shapes, types, strict=True):
        found = split_dims(shape.dims, shape.sizes, given, t)
        if found is None:
            return None
        dims.append(found)
    reduced = tuple(axis for factor in sorted(rule.reduced) for axis in given.get(factor, ()))
    operands = tuple(layout(mesh, d) for d in dims[:count])
    results = tuple(layout(mesh, d, reduced, rule.combine if reduced else "sum") for d in dims[count:])
    parts = {factor: prod(axis.size for axis in axes) for factor, axes in given.items()}
    return GroupSplit(operands, results, prod(times_smaller(rule.rule.sizes[f], count) for f, count in parts.items()))


@lru_cache(maxsize=65536)
def layouts_of(t: TensorType, mesh: BaseMesh) -> tuple[TensorSharding, ...]:
    """Every layout of a value in which its dims are splittable."""
    rule = FactorRule.identity(t.shape)
    found = [
        tuple(given.get(d, ()) for d in range(t.ndim)) for given in _assignments(rule, frozenset(range(t.ndim)), mesh)
    ]
    return tuple(layout(mesh, dims) for dims in found)


@lru_cache(maxsize=262144)
def followed(op: Op, operands: Types, results: Types, params: Params, main: int, have: TensorSharding) -> Followed:
    """The layouts of a step's operands and results that follow from that of one operand."""
    rule = rule_of(op, operands, results, params)
    shapes, count = shapes_of(rule.rule)
    given = {}
    for factor, (axes, overflow, _, _) in project(shapes[main], have).items():
        if not overflow and factor in rule.separable and _are_whole(rule.rule.sizes[factor], axes):
            given[factor] = axes
    mesh = have.mesh
    even = {f: axes for f, axes in given.items() if rule.rule.sizes[f] % prod(axis.size for axis in axes) == 0}
    tried = (_way(rule, (*operands, *results), count, one, mesh) for one in (given, even, {}))
    way = next(one for one in tried if one is not None)
    if have.unreduced and any(group.operands == (main,) for group in groups_of(op, operands, results, params)):
        used = {a.name for r in way.results for d in r.dims for a in d.axes}
        if not used & {a.name for a in have.unreduced} and not any(r.unreduced for r in way.results):
            kept = [layout(mesh, tuple(d.axes for d in r.dims), have.unreduced) for r in way.results]
            need = list(way.operands)
            need[main] = layout(mesh, tuple(d.axes for d in need[main].dims), have.unreduced)
            return Followed(tuple(need), tuple(kept))
    return Followed(way.operands, way.results)


@lru_cache(maxsize=262144)
def asked_of(
    op: Op, operands: Types, results: Types, params: Params, number: int, need: TensorSharding
) -> TensorSharding:
    """The layout that an operand must have for the result to be in this one."""
    rule = rule_of(op, operands, results, params).rule
    shapes, count = shapes_of(rule)
    given = {
        factor: axes
        for factor, (axes, overflow, _, _) in project(shapes[count], need).items()
        if not overflow and factor in shapes[number].factors and _are_whole(rule.sizes[factor], axes)
    }
    dims = split_dims(shapes[number].dims, shapes[number].sizes, given, operands[number])
    return layout(need.mesh, dims) if dims is not None else replicated(need.mesh, operands[number].ndim)


def _are_whole(size: int, axes: Axes) -> bool:
    """Whether these are whole axes, into whose parts a factor is splittable."""
    return bool(axes) and all(axis.is_full for axis in axes) and is_splittable(size, prod(a.size for a in axes))


def times_smaller(size: int, parts: int) -> float:
    """How many times smaller than a dim one of its parts is, padding included."""
    return parts if size % parts == 0 else size / block_size(size, parts)


@lru_cache(maxsize=65536)
def blocks(s: TensorSharding, t: TensorType) -> float:
    """How many times smaller than a value a device's block is, padding included."""
    return prod(map(times_smaller, t.shape, s.shards))


@lru_cache(maxsize=65536)
def summands(s: TensorSharding, t: TensorType) -> float:
    """How many times smaller than all summands of a value what a device has of them is."""
    return blocks(s, t) * prod(axis.size for axis in s.unreduced)


def types_of(step: LayoutStep) -> tuple[Types, Types, Params]:
    """The types of a step's operands and results, and its params: what rules of its op are asked with."""
    assert step.eqn is not None
    return (
        tuple(x.type for x in step.inputs),
        tuple(x.type for x in step.outputs),
        tuple(step.eqn.params.items()),
    )


class GroupWays:
    """A group on a mesh: its ways, the layouts of its values in each, and the costs that depend on it alone."""

    def __init__(
        self, group: LayoutGroup, mesh: BaseMesh, memory_bytes_per_s: float = inf, keep: Keep | None = None
    ) -> None:
        self.group, self.mesh, self.memory_bytes_per_s = group, mesh, memory_bytes_per_s
        ways = splits_of(group.first, mesh)
        self.ways = ways if keep is None else [way for way in ways if keep(group.first, way)]
        self.layouts: dict[LaidValue, list[TensorSharding]] = {}
        self.needs: list[Need] = []  # from outside, or from within
        self.seconds = np.zeros(len(self.ways))
        for step in group.steps:
            self.add(step)

    def add(self, step: LayoutStep) -> None:
        """Lay a step out in each way."""
        if step is self.group.first:
            for n, value in enumerate(step.outputs):
                self.layouts[value] = [way.results[n] for way in self.ways]
            for n, value in enumerate(step.inputs):
                self.needs.append((value, [way.operands[n] for way in self.ways], step))
            degrees = np.array([way.degree for way in self.ways], float)
        elif step.kind in ("input", "carry"):  # another argument of the same layout
            self.layouts[step.outputs[0]] = [way.results[0] for way in self.ways]
            for value in step.inputs:
                self.needs.append((value, [way.results[0] for way in self.ways], step))
            degrees = np.ones(len(self.ways))
        elif step.kind in ("row", "stack"):
            have = self.layouts[step.inputs[0]]
            if step.kind == "row":
                whole = [_with_rows(_row(s)) for s in have]
                self.layouts[step.outputs[0]] = [_row(s) for s in have]
            else:
                whole = [finished(s) for s in have]
                self.layouts[step.outputs[0]] = [_with_rows(finished(s)) for s in have]
            self.needs.append((step.inputs[0], whole, step))
            degrees = np.ones(len(self.ways))
        elif step.main is None:
            assert step.eqn is not None and step.like is not None
            operands, results, params = types_of(step)
            have = [finished(s) for s in self.layouts[step.like]]
            self.layouts[step.outputs[0]] = have
            for n, value in enumerate(step.inputs):
                self.needs.append((value, [asked_of(step.eqn.op, operands, results, params, n, s) for s in have], step))
            degrees = np.array([summands(s, step.outputs[0].type) for s in have], float)
        else:
            assert step.eqn is not None
            operands, results, params = types_of(step)
            have = self.layouts[step.inputs[step.main]]
            found = [followed(step.eqn.op, operands, results, params, step.main, s) for s in have]
            for n, value in enumerate(step.outputs):
                self.layouts[value] = [one.results[n] for one in found]
            for n, value in enumerate(step.inputs):
                self.needs.append((value, [one.operands[n] for one in found], step))
            degrees = np.array([summands(one.results[0], step.outputs[0].type) for one in found], float)
        self.seconds += step.times * np.maximum(step.seconds / degrees, self.reading(step))

    def reading(self, step: LayoutStep) -> np.ndarray | float:
        """The seconds in which a product reads what a device has of its operands, in each way: of a few rows by a whole
        matrix, no share of the rows takes less."""
        if not step.seconds or step.eqn is None or fusion_of(step.eqn) is not Fusion.CONTRACTION:
            return 0.0
        given = [(value, needs) for value, needs, of in self.needs if of is step and not _inside(value, step)]
        shares = [value.type.nbytes / np.array([blocks(s, value.type) for s in needs]) for value, needs in given]
        total: np.ndarray | float = sum(shares, 0.0)
        return total / self.memory_bytes_per_s


def _inside(value: LaidValue, step: LayoutStep) -> bool:
    """Whether a value is made in the kernel that reads it, or by each device for itself."""
    return value.free or (step.kernel is not None and value.step is not None and value.step.kernel == step.kernel)


def splits_of(first: LayoutStep, mesh: BaseMesh) -> list[GroupSplit]:
    """The ways of a group, which are those of its first step."""
    if first.eqn is None:
        t = first.outputs[0].type
        found = layouts_of(t, mesh)
        if first.kind == "stack":
            return [GroupSplit((_row(s),), (s,), blocks(s, t)) for s in found if not s.dims[0].axes]
        return [GroupSplit((_with_rows(s) if first.kind == "row" else s,), (s,), blocks(s, t)) for s in found]
    operands, results, _ = types_of(first)
    if isinstance(first.eqn.op.factors, No):
        whole = [tuple(replicated(mesh, t.ndim) for t in types) for types in (operands, results)]
        return [GroupSplit(whole[0], whole[1], 1)]
    ways = list(_ways(split_rule(first), operands, results, mesh))
    return [*ways, *_summed_ways(ways, mesh)] if _adds(first) else ways


def _adds(step: LayoutStep) -> bool:
    """Whether a step adds two values, which may both be summands."""
    assert step.eqn is not None
    groups = groups_of(step.eqn.op, *types_of(step))
    return len(step.inputs) == 2 and any(len(g.operands) == 2 for g in groups)


def _summed_ways(ways: Sequence[GroupSplit], mesh: BaseMesh) -> list[GroupSplit]:
    """The ways of a sum of summands over an axis."""
    found = []
    for axis in mesh.axes:
        for way in ways:
            used = [a.name for d in way.results[0].dims for a in d.axes]
            if axis.size > 1 and axis.name not in used:
                s = layout(mesh, tuple(d.axes for d in way.results[0].dims), (axis,))
                found.append(GroupSplit((s, s), (s,), way.degree * axis.size))
    return found


def _row(s: TensorSharding) -> TensorSharding:
    """The layout of a row of an array."""
    return layout(s.mesh, tuple(d.axes for d in s.dims[1:]))


def _with_rows(s: TensorSharding) -> TensorSharding:
    """The layout of an array of such rows, each of which is on all devices."""
    return layout(s.mesh, ((), *(d.axes for d in s.dims)))

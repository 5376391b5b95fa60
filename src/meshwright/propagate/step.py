"""One step: what one node, seen alone, makes of the shardings of its operands and results.

Everything here works on projections. ``basic`` adds an axis only where every tensor of the node can take it;
``aggressive`` gives each tensor what it can take, and where two factors want one axis, the one that comes from the
larger tensor has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from meshwright.propagate.graph import Known
from meshwright.propagate.problem import Direction, FactorRule
from meshwright.propagate.project import Projection, Shape, project, shapes_of, unproject
from meshwright.sharding.axes import Axes, AxisRef
from meshwright.sharding.named import TensorSharding

Directions = Sequence[Direction]  # per factor


class NodeTensor:
    """A tensor of the node: its factors, their shardings now, and the axes that it may not use."""

    __slots__ = ("changed", "projection", "reserved", "shape")

    def __init__(self, shape: Shape, sharding: TensorSharding | None) -> None:
        self.shape = shape
        self.projection: Projection = dict(project(shape, sharding))
        self.reserved: Axes = () if sharding is None else (*sharding.replicated, *sharding.unreduced)
        self.changed = False

    def axes(self, factor: int) -> Axes:
        return self.projection[factor][0]

    def expand(self, factor: int, axes: Axes) -> None:
        _, overflow, closed, minor_most = self.projection[factor]
        self.projection[factor] = (axes, overflow, closed, minor_most)
        self.changed = True


def is_prefix(axes: Axes, of: Axes) -> bool:
    """Whether a list begins with another; its last axis may be the major part of the other's."""
    count = len(axes)
    if not count:
        return True
    if count > len(of):
        return False
    if axes[:-1] != of[: count - 1]:
        return False
    return of[count - 1].has_prefix(axes[-1])


def is_strict_prefix(axes: Axes, of: Axes) -> bool:
    """Whether a list begins with another and goes on."""
    return axes != of and is_prefix(axes, of)


# What the tensors agree on


def agree(old: Axes, new: Axes, can_expand: bool) -> tuple[Axes, bool]:
    """The major axes that two lists allow; the second may make the first longer only if ``can_expand``."""
    if not new or old is new:
        return old, can_expand
    if not old:
        return (new if can_expand else old), can_expand
    kept: list[AxisRef] = []
    shorter = min(len(old), len(new))
    for place in range(shorter):
        one, other = old[place], new[place]
        if one is other:
            kept.append(one)
        elif one.name != other.name:
            return tuple(kept), False
        elif one.has_prefix(other):
            if len(new) > place + 1:
                return (*kept, other), False
            kept.append(one)
        elif other.has_prefix(one):
            if not can_expand or len(old) > place + 1:
                return (*kept, one), False
            kept.append(other)
        else:
            return tuple(kept), False
    kept.extend(old[shorter:])
    if can_expand:
        kept.extend(new[shorter:])
    return tuple(kept), can_expand


def wanted(tensors: Sequence[NodeTensor], operands: int, factor: int, direction: Direction) -> Axes:
    """The axes that the tensors, operands before results unless backward, want for a factor."""
    if direction is Direction.NONE:
        return ()
    first, second = tensors[:operands], tensors[operands:]
    if direction is Direction.BACKWARD:
        first, second = second, first
    axes: Axes = ()
    can_expand = True
    for tensor in first:
        found = tensor.projection.get(factor)
        if found is not None:
            axes, can_expand = agree(axes, found[0], can_expand)
    if direction is not Direction.BOTH:
        can_expand = False
    for tensor in second:
        found = tensor.projection.get(factor)
        if found is not None:
            axes, can_expand = agree(axes, found[0], can_expand)
    return axes


# What a tensor can take

Shrink = Callable[[AxisRef, int], AxisRef | None]


def truncate(axes: Axes, shrink: Shrink, conservative: bool) -> Axes:
    """The axes as long as ``shrink`` leaves them whole, then what it leaves of the next one."""
    shards = 1
    for place, axis in enumerate(axes):
        left = shrink(axis, shards)
        if left is None or (conservative and not left.is_full):
            return axes[:place]
        if left is not axis:
            return (*axes[:place], left)
        shards *= axis.size
    return axes


def _sharded_by_others(tensor: NodeTensor, factor: int, axis: AxisRef) -> AxisRef | None:
    """The part of an axis that no other factor of the tensor has."""
    left: AxisRef | None = axis
    for other, (axes, overflow, _, _) in tensor.projection.items():
        if other == factor:
            continue
        for taken in (*overflow, *axes):
            if taken.name == axis.name:
                if left is None:
                    return None
                left = left.prefix_without(taken)
    return left


def _within_factor(tensor: NodeTensor, factor: int, axis: AxisRef, shards: int) -> AxisRef | None:
    """The part of an axis that can shard a factor of the tensor that is already sharded ``shards`` ways by the list."""
    for taken in tensor.reserved:
        if taken.name == axis.name:
            left = axis.prefix_without(taken)
            if left is None:
                return None
            axis = left
    axes, overflow, closed, minor_most = tensor.projection[factor]
    for own in axes:
        if own.contains(axis):
            return axis
    if not closed and not overflow:
        if minor_most:
            return axis
        size = tensor.shape.sizes[factor]
        if size % shards == 0:
            common = gcd(size // shards, axis.size)
            if common == axis.size:
                return axis
            if common > 1:
                return axis.part(axis.pre, axis.pre * common)
    return axes[-1] if axes and axis.has_prefix(axes[-1]) else None


# The two strategies


def basic(
    tensors: Sequence[NodeTensor], operands: int, factors: int, directions: Directions, conservative: bool
) -> None:
    """Factor by factor, what all tensors agree on and can take."""
    for factor in range(factors):
        axes = wanted(tensors, operands, factor, directions[factor])
        if not axes:
            continue

        def shrink(axis: AxisRef, shards: int, factor: int = factor) -> AxisRef | None:
            left: AxisRef | None = axis
            for tensor in tensors:
                left = None if left is None else _sharded_by_others(tensor, factor, left)
                if left is not None and factor in tensor.projection:
                    left = _within_factor(tensor, factor, left, shards)
                if left is None:
                    return None
            return left

        axes = truncate(axes, shrink, conservative)
        for tensor in tensors:
            if factor in tensor.projection and is_strict_prefix(tensor.axes(factor), axes):
                tensor.expand(factor, axes)


def aggressive(
    tensors: Sequence[NodeTensor],
    operands: int,
    factors: int,
    directions: Directions,
    conservative: bool,
    elementwise: bool,
) -> None:
    """Each tensor takes what it can, factors of the largest tensors first."""
    lists = [wanted(tensors, operands, factor, directions[factor]) for factor in range(factors)]
    order = _order(tensors, lists, elementwise)
    if not order:
        return
    results = range(operands, len(tensors))
    for number in (*results, *range(operands)):
        tensor = tensors[number]
        for factor in order:
            if factor not in tensor.projection:
                continue
            old = tensor.axes(factor)
            axes = truncate(
                lists[factor],
                lambda axis, shards, t=tensor, f=factor: _within_factor(t, f, axis, shards),  # type: ignore[misc]
                conservative,
            )
            if not is_strict_prefix(old, axes):
                continue
            axes = truncate(
                axes,
                lambda axis, shards, t=tensor, f=factor: _sharded_by_others(t, f, axis),  # type: ignore[misc]
                conservative,
            )
            if elementwise and number < operands:
                for result in results:
                    found = tensors[result].projection.get(factor)
                    if found is not None and is_strict_prefix(found[0], axes):
                        axes = found[0]
            if is_strict_prefix(old, axes):
                tensor.expand(factor, axes)


def _order(tensors: Sequence[NodeTensor], lists: Sequence[Axes], elementwise: bool) -> list[int]:
    """The factors that want axes: those first whose axes come from the largest tensor."""
    keys = []
    for factor, axes in enumerate(lists):
        if not axes:
            continue
        size, source = -1, 0
        for number, tensor in enumerate(tensors):
            found = tensor.projection.get(factor)
            if found is not None and tensor.shape.elements > size and is_prefix(axes, found[0]):
                size, source = tensor.shape.elements, number
        shards = 1
        if elementwise:
            for axis in axes:
                shards *= axis.size
        keys.append((-size, -shards, source, factor))
    return [key[3] for key in sorted(keys)]


Changes = tuple[tuple[int, Known], ...]
Make = Callable[..., Known]


def step(
    rule: FactorRule,
    shardings: Sequence[Known | None],
    directions: Directions,
    make: Make,
    *,
    use_basic: bool,
    conservative: bool = False,
    elementwise: bool = False,
) -> Changes:
    """The tensors, by number, that the node gives a new sharding. ``make`` interns one."""
    mesh = None
    for sharding in shardings:
        if sharding is not None and not sharding.mesh.empty:
            if mesh is None:
                mesh = sharding.mesh
            elif mesh is not sharding.mesh and mesh != sharding.mesh:
                return ()
    if mesh is None or mesh.is_maximal:
        return ()
    shapes, operands = shapes_of(rule)
    tensors = [NodeTensor(shape, sharding) for shape, sharding in zip(shapes, shardings, strict=True)]
    if use_basic:
        basic(tensors, operands, len(rule.sizes), directions, conservative)
    else:
        aggressive(tensors, operands, len(rule.sizes), directions, conservative, elementwise)
    changes = []
    for number, tensor in enumerate(tensors):
        if not tensor.changed:
            continue
        old = shardings[number]
        dims = unproject(tensor.shape, tensor.projection)
        if old is None:
            if any(dim.axes for dim in dims):
                changes.append((number, make(mesh, dims)))
            continue
        new = make(mesh, dims, old.replicated, old.unreduced, old.reduction)
        if new is not old:
            changes.append((number, new))
    return tuple(changes)

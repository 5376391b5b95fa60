"""One StableHLO op as it stands in a module: its name, types and attributes, and where it meets our ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshwright.core.factors import Dims, Factors, name, names
from meshwright.core.op import Op
from meshwright.core.program import Params
from meshwright.core.types import TensorType


class Instance(NamedTuple):
    """An op of a module. ``op`` is MLIR's own, for regions and neighbours."""

    name: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attributes: dict[str, Any]
    op: Any

    @property
    def tensors(self) -> tuple[TensorType, ...]:
        return (*self.operands, *self.results)

    def get(self, name: str, read: Callable[[Any], Any], default: Any = None) -> Any:
        """An attribute as a Python value, or ``default`` if it is not there."""
        found = self.attributes.get(name)
        return default if found is None else read(found)


class TensorPosition(NamedTuple):
    """Where one of our tensors stands in an instance: as which of its tensors (operands first), and how turned.

    ``order[d]`` is the dim of theirs that our dim ``d`` is, -1 if they do not write it. Several tensors stand for one
    where the op does the same to each.
    """

    tensors: tuple[int, ...]
    order: tuple[int, ...] | None = None


class Match(NamedTuple):
    """An instance as a call of one of our ops: ``places`` are those of its operands, then of its results."""

    op: Op
    params: Params
    places: tuple[TensorPosition, ...]


def plain_match(instance: Instance, op: Op, **params: Any) -> Match:
    """Our op on the same operands."""
    return Match(op, params, tuple(TensorPosition((index,)) for index in range(len(instance.tensors))))


def matched_types(instance: Instance, match: Match) -> list[TensorType]:
    """The types our op sees, operands first."""
    found = []
    for place in match.places:
        t = instance.tensors[place.tensors[0]]
        if place.order is not None:
            t = t.with_(shape=tuple(1 if d < 0 else t.shape[d] for d in place.order))
        found.append(t)
    return found


def matched_factors(instance: Instance, match: Match) -> Factors | None:
    """The factor rule of the instance, from that of our op; None if our op has none."""
    if not callable(match.op.factors):
        return None
    types = matched_types(instance, match)
    result_count = sum(place.tensors[0] >= len(instance.operands) for place in match.places)
    operands = types[: len(types) - result_count]
    return placed(instance, match.places, match.op.factors(operands, types[len(operands) :], match.params))


def _is_placed(instance: Instance, places: tuple[TensorPosition, ...], rule: Factors) -> bool:
    """Whether a rule of ours is the instance's as it is: tensors are where they were, and names in their order."""
    if rule.fillable or len(places) != len(instance.operands) + len(instance.results):
        return False
    for number, place in enumerate(places):
        if place.order is not None or place.tensors != (number,):
            return False
    used = [factor for tensor in (*rule.operands, *rule.results) for dim in tensor for factor in dim or ("",)]
    return list(rule.sizes) == names(len(rule.sizes)) and rule.sizes.keys() == set(used)


def placed(instance: Instance, places: tuple[TensorPosition, ...], rule: Factors) -> Factors:
    """A rule of ours with its dims put where the instance has them; dims it does not mention get factors of size 1."""
    if _is_placed(instance, places, rule):
        return rule
    dims: list[Dims] = [((),) * t.ndim for t in instance.tensors]
    for place, ours in zip(places, (*rule.operands, *rule.results), strict=True):
        for tensor in place.tensors:
            if place.order is None:
                dims[tensor] = ours
            else:
                at = {d: factors for d, factors in zip(place.order, ours, strict=True) if d >= 0}
                dims[tensor] = tuple(at.get(d, ()) for d in range(instance.tensors[tensor].ndim))
    used = {factor for tensor in dims for dim in tensor for factor in dim}
    new = {old: name(index) for index, old in enumerate(old for old in rule.sizes if old in used)}
    sizes = {new[old]: size for old, size in rule.sizes.items() if old in used}
    guarded = {new[f] for f in rule.guarded if f in used}

    def fresh(n: int) -> tuple[str]:
        factor = name(len(sizes))
        sizes[factor] = 1
        if n != 1:
            guarded.add(factor)
        return (factor,)

    renamed = tuple(
        tuple(tuple(new[f] for f in dim) or fresh(n) for dim, n in zip(tensor, t.shape, strict=True))
        for tensor, t in zip(dims, instance.tensors, strict=True)
    )

    def kind(names: frozenset[str]) -> frozenset[str]:
        return frozenset(new[f] for f in names if f in used)

    count = len(instance.operands)
    return Factors(
        renamed[:count],
        renamed[count:],
        sizes,
        kind(rule.replicated),
        kind(rule.permuted),
        kind(rule.blocked),
        rule.combine,
        kind(rule.reduced),
        frozenset(guarded),
    )

"""Which dims horizontal parallelism splits: the most work for the least communication, no op twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.device.classes import Classes, Place, contracts, divides, leading, tensor_of
from meshwright.device.dims import Size
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.spread import Planner
from meshwright.device.symbolic import flops_of, nbytes_of
from meshwright.errors import ShapeError


class _SplitCandidate(NamedTuple):
    root: Place
    work: float
    moved: float
    eqns: frozenset[DeviceEqn]


def choose_classes(
    bodies: Sequence[Function], classes: Classes, parts: Size, taken: frozenset[Place], known: bool
) -> frozenset[Place]:
    """The classes to split in all bodies of a level; ``taken`` are not among them, and hold the batch if ``known``."""
    inputs = dict.fromkeys(classes.root(p) for body in bodies for p in _places(body.inputs))
    returned = {classes.root(p) for body in bodies for p in _places(body.outputs)}
    members: dict[Place, list[Place]] = {}
    for place, root in classes.members():
        members.setdefault(root, []).append(place)
    roots = [
        root
        for root in inputs
        if root not in taken
        and all(_divisible(place, parts) for place in members[root])
        and (known or root not in returned)
    ]
    # Dims whose parts are never put together again come first; where there are none, any that parallelizes will do.
    found = [c for root in roots if (c := _evaluate(bodies, classes, root, parts, gathers=False)) is not None]
    if not found:
        found = [c for root in roots if (c := _evaluate(bodies, classes, root, parts, gathers=True)) is not None]
    if not found and not known and any(_contractions(body) for body in bodies):
        raise ShapeError(
            "Horizontal parallelism cannot tell the batch from the weights.",
            why="every dim that could be split is also a dim of a result",
            fix=f"horizontal_parallel(fn, batch={{{bodies[0].inputs[-1].name!r}: 0}}, …)",
        )
    chosen: list[_SplitCandidate] = []
    for candidate in sorted(found, key=lambda c: (c.moved / c.work, -c.work)):
        if not any(candidate.eqns & other.eqns for other in chosen):
            chosen.append(candidate)
    return frozenset(c.root for c in chosen)


def _places(values: Sequence[DeviceValue]) -> list[Place]:
    return [(v, d) for v in values for d in range(len(tensor_of(v).shape))]


def _divisible(place: Place, parts: Size) -> bool:
    size = tensor_of(place[0]).shape[place[1]]
    return (isinstance(size, int) and size == 1) or divides(size, parts)


def _contractions(body: Function) -> list[DeviceEqn]:
    return [eqn for eqn in body.eqns if contracts(eqn)]


def _evaluate(
    bodies: Sequence[Function], classes: Classes, root: Place, parts: Size, *, gathers: bool
) -> _SplitCandidate | None:
    """The work a class parallelizes and the bytes it moves; None for one that must be put together, unless allowed."""
    eqns: dict[DeviceEqn, float] = {}
    for body in bodies:
        for eqn in body.eqns:
            rule = classes.rules.get(eqn)
            if rule is None or not rule.reduced:
                continue
            for x, dims in zip((*eqn.inputs, *eqn.outputs), (*rule.operands, *rule.results), strict=True):
                if not isinstance(x, DeviceValue):
                    continue
                for d in range(len(dims)):
                    if leading(dims, d, rule) in classes.splittable(eqn) and classes.root((x, d)) == root:
                        eqns[eqn] = eqns.get(eqn) or flops_of(eqn)
    work = sum(eqns.values())
    if not work:
        return None
    moved = 0.0
    for body in bodies:
        planner = Planner(body, classes, frozenset({root}), parts)
        if not gathers and any(c.op in ("allgather", "own_part") for c in planner.plan.conversions):
            return None
        moved += sum(2.0 * nbytes_of(c.source[0]) for c in planner.plan.conversions)
        for v in body.outputs:
            kind = planner.original[v].kind if v in planner.original else "copy"
            moved += {"copy": 0.0, "part": 1.0, "summand": 2.0}[kind] * nbytes_of(v)
    return _SplitCandidate(root, work, moved, frozenset(eqns))

"""Which dims horizontal parallelism splits: the most work for the least communication, no op twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from meshwright.device.classes import Classes, Place, divides, leading
from meshwright.device.dims import Size
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.spread import COPY, Planner, SpreadSharding, Version
from meshwright.device.tensor_ops import contracts, flops_of, nbytes_of, tensor_of
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
    touched = [_Touched(body, classes) for body in bodies]
    found = [c for root in roots if (c := _evaluate(touched, root, parts, gathers=False)) is not None]
    if not found:
        found = [c for root in roots if (c := _evaluate(touched, root, parts, gathers=True)) is not None]
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


class _Touched:
    """Of each class, the equations of a body that have a dim of it, and the work that a split along it divides."""

    def __init__(self, body: Function, classes: Classes) -> None:
        self.body, self.classes = body, classes
        self.seeds: dict[Place, list[int]] = {}
        self.split: dict[Place, dict[DeviceEqn, float]] = {}
        self.readers: dict[DeviceValue, list[int]] = {}
        for number, eqn in enumerate(body.eqns):
            for v in eqn.values:
                self.readers.setdefault(v, []).append(number)
            for place in _places((*eqn.values, *eqn.outputs)):
                self.seeds.setdefault(classes.root(place), []).append(number)
            rule = classes.rules.get(eqn)
            if rule is None or not rule.reduced:
                continue
            for x, dims in zip((*eqn.inputs, *eqn.outputs), (*rule.operands, *rule.results), strict=True):
                for d in range(len(dims) if isinstance(x, DeviceValue) else 0):
                    if leading(dims, d, rule) in classes.splittable(eqn):
                        saved = self.split.setdefault(classes.root((x, d)), {})  # type: ignore[arg-type]
                        saved[eqn] = saved.get(eqn) or flops_of(eqn)


class _Reached(Planner):
    """A plan of the equations alone that a split of one class reaches; all others are left with copies."""

    def __init__(self, touched: _Touched, root: Place, parts: Size) -> None:
        self.touched, self.root = touched, root
        super().__init__(touched.body, touched.classes, frozenset({root}), parts)

    def equations(self) -> Iterator[DeviceEqn]:
        heap = sorted(set(self.touched.seeds.get(self.root, ())))
        done = -1
        while heap:
            number = heappop(heap)
            if number == done:
                continue
            done = number
            eqn = self.body.eqns[number]
            yield eqn
            for v in eqn.outputs:
                if self.original[v] != COPY:
                    for reader in self.touched.readers.get(v, ()):
                        heappush(heap, reader)

    def version(self, value: DeviceValue, layout: SpreadSharding) -> Version:
        if value not in self.inputs and value not in self.original:
            self.original[value] = COPY
            self.plan.depth[value, COPY] = 0
        return super().version(value, layout)


def _evaluate(bodies: Sequence[_Touched], root: Place, parts: Size, *, gathers: bool) -> _SplitCandidate | None:
    """The work a class parallelizes and the bytes it moves; None for one that must be put together, unless allowed."""
    eqns = {eqn: flops for touched in bodies for eqn, flops in touched.split.get(root, {}).items()}
    work = sum(eqns.values())
    if not work:
        return None
    moved = 0.0
    for touched in bodies:
        planner = _Reached(touched, root, parts)
        if not gathers and any(c.op in ("allgather", "own_part") for c in planner.plan.conversions):
            return None
        moved += sum(2.0 * nbytes_of(c.source[0]) for c in planner.plan.conversions)
        for v in touched.body.outputs:
            layout = planner.original.get(v, COPY)
            if layout != COPY:
                moved += {"part": 1.0, "summand": 2.0}[layout.kind] * nbytes_of(v)
    return _SplitCandidate(root, work, moved, frozenset(eqns))

"""Which dims horizontal parallelism splits: the most work for the least communication, no op twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from meshwright.device.classes import Classes, Place, divides, leading, places
from meshwright.device.dims import Size
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.spread import COPY, Planner, SpreadSharding, Version
from meshwright.device.tensor_ops import contracts, flops_of, nbytes_of, tensor_of
from meshwright.errors import ShapeError

MOST_BEYOND = 64  # equations that a sum is put off for, beyond which it counts as taken


class _SplitCandidate(NamedTuple):
    root: Place
    work: float
    moved: float
    gathers: bool  # whether parts are put together again
    eqns: frozenset[DeviceEqn]


def choose_classes(
    bodies: Sequence[Function], classes: Classes, parts: Size, taken: frozenset[Place], known: bool
) -> frozenset[Place]:
    """The classes to split in all bodies of a level; ``taken`` are not among them, and hold the batch if ``known``."""
    inputs = dict.fromkeys(classes.root(p) for body in bodies for p in places(body.inputs))
    left_out = {root for (v, d), root in classes.members() if _is_uneven(tensor_of(v).shape[d], parts)} | taken
    if not known:
        left_out |= {classes.root(p) for body in bodies for p in places(body.outputs)}
    touched = [_Touched(body, classes) for body in bodies]
    every = [_evaluate(touched, root, parts) for root in inputs if root not in left_out]
    candidates = [c for c in every if c.work]
    # Dims whose parts are never put together again come first; where there are none, any that parallelizes will do.
    found = [c for c in candidates if not c.gathers] or candidates
    if not found and not known and any(contracts(eqn) for body in bodies for eqn in body.eqns):
        raise ShapeError(
            "Horizontal parallelism cannot tell the batch from the weights.",
            why="every dim that could be split is also a dim of a result",
            fix=f"horizontal_parallel(fn, batch={{{bodies[0].inputs[-1].name!r}: 0}}, …)",
        )
    chosen: set[Place] = set()
    split: set[DeviceEqn] = set()
    for candidate in sorted(found, key=lambda c: (c.moved / c.work, -c.work)):
        if split.isdisjoint(candidate.eqns):
            chosen.add(candidate.root)
            split |= candidate.eqns
    return frozenset(chosen)


def _is_uneven(size: Size, parts: Size) -> bool:
    return size != 1 and not divides(size, parts)


class _Touched:
    """Of each class, the equations of a body that have a dim of it, and the work that a split along it divides."""

    def __init__(self, body: Function, classes: Classes) -> None:
        self.body, self.classes = body, classes
        self.eqns: dict[Place, dict[int, None]] = {}
        self.split: dict[Place, dict[DeviceEqn, float]] = {}
        self.readers: dict[DeviceValue, list[int]] = {}
        for number, eqn in enumerate(body.eqns):
            for v in eqn.values:
                self.readers.setdefault(v, []).append(number)
            for place in places((*eqn.values, *eqn.outputs)):
                self.eqns.setdefault(classes.root(place), {})[number] = None
            rule = classes.rules[eqn]
            if rule is None or not rule.reduced:
                continue
            for x, dims in zip((*eqn.inputs, *eqn.outputs), (*rule.operands, *rule.results), strict=True):
                for d in range(len(dims) if isinstance(x, DeviceValue) else 0):
                    if leading(dims, d, rule) in rule.separable:
                        saved = self.split.setdefault(classes.root((x, d)), {})  # type: ignore[arg-type]
                        saved[eqn] = saved.get(eqn) or flops_of(eqn)


class _Reached(Planner):
    """A plan of the equations alone that have a dim of one class, and of `MOST_BEYOND` that are handed summands of
    theirs; what they read of others is there as copies."""

    def __init__(self, touched: _Touched, root: Place, parts: Size) -> None:
        self.touched, self.own = touched, touched.eqns.get(root, {})
        self.reached: set[int] = set()
        super().__init__(touched.body, touched.classes, frozenset({root}), parts)

    def equations(self) -> Iterator[DeviceEqn]:
        heap, last = list(self.own), len(self.own) + MOST_BEYOND
        while heap and len(self.reached) < last:
            number = heappop(heap)
            if number in self.reached:
                continue
            self.reached.add(number)
            eqn = self.body.eqns[number]
            yield eqn
            for v in eqn.outputs:
                if self.original[v] != COPY:
                    for reader in self.touched.readers.get(v, ()):
                        heappush(heap, reader)

    def version(self, value: DeviceValue, layout: SpreadSharding) -> Version:
        if value not in self.inputs and value not in self.original:
            self.original[value] = COPY
            self.depth[value, COPY] = 0
        return super().version(value, layout)

    def moved(self) -> float:
        """The bytes that conversions move, and those of what is returned or is a summand in the end."""
        found = sum(2.0 * nbytes_of(c.source[0]) for c in self.conversions)
        returned = set(self.body.outputs)
        for v, layout in self.original.items():
            left = layout.kind == "summand" and not self.reached.issuperset(self.touched.readers.get(v, ()))
            if layout != COPY and (left or v in returned):
                found += {"part": 1.0, "summand": 2.0}[layout.kind] * nbytes_of(v)
        return found


def _evaluate(bodies: Sequence[_Touched], root: Place, parts: Size) -> _SplitCandidate:
    """The work that a split of a class divides, and the bytes that it moves."""
    eqns = {eqn: flops for touched in bodies for eqn, flops in touched.split.get(root, {}).items()}
    plans = [_Reached(touched, root, parts) for touched in bodies] if any(eqns.values()) else []
    gathers = any(c.op in ("allgather", "own_part") for plan in plans for c in plan.conversions)
    return _SplitCandidate(root, sum(eqns.values()), sum(plan.moved() for plan in plans), gathers, frozenset(eqns))

"""Plans that reshard through other shardings, for more blocks than can be matched one by one.

A dim whose blocks do not nest is made whole on the way, or as whole as both sides have it: all such dims at once; some
of them, so that few blocks are left; or one after another, each given its axes as soon as the next one has left them.
What is gathered and not kept is moved for nothing: such a plan may be far above the lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise, permutations
from math import prod
from typing import NamedTuple

from meshwright.partition.reshard.blocks import MOST_CELLS
from meshwright.partition.reshard.direct import direct_sketches
from meshwright.partition.reshard.search import Name, rest_of, sketches
from meshwright.partition.reshard.sketch import Sketch
from meshwright.partition.reshard.steps import Recut, ReshardStep
from meshwright.partition.reshard.structure import DigitStructure, Frame, atoms_of, structure
from meshwright.sharding.placement import DigitLayout, Digits

MOST_DIMS = 4  # whose orders and subsets are all looked at


class Sums(NamedTuple):
    """By which reductions the source and the target are unreduced."""

    source: str
    target: str


def sketches_through(
    found: Frame, parts: DigitStructure, shape: Sequence[int], name: Name, reduction: str, sums_by: str
) -> list[Sketch]:
    """Sketches of plans through other shardings; there is always one."""
    layouts = _Layouts(found, parts)
    sums = Sums(reduction, sums_by)
    every: list[Sketch] = []
    for chain in layouts.chains():
        sketch = _best_through(found, chain, parts.atoms, shape, name, sums)
        every += [sketch] if sketch is not None else []
    for chain in layouts.with_blocks():
        sketch = _best_through(found, chain, parts.atoms, shape, name, sums)
        if sketch is not None:
            return [*every, sketch]  # later ones gather more
    return every


class _Layouts:
    """Layouts in which each dim is as in the source, as in the target, or as whole as both have it."""

    def __init__(self, found: Frame, parts: DigitStructure) -> None:
        self.source, self.target = found.source, found.target
        self.apart = [dim for dim, pieces in enumerate(parts.dims) if pieces is None]
        self.atoms = parts.atoms
        kept = tuple(atom for atom in parts.source_sums if atom not in parts.to_reduce)
        self.sums = [kept, found.source.unreduced] if parts.to_reduce else [kept]

    def chains(self) -> Iterator[list[DigitLayout]]:
        """Shardings to go through in turn."""
        common = [dim for dim in range(len(self.source.dims)) if dim not in self.apart]
        orders = permutations(self.apart) if 1 < len(self.apart) <= MOST_DIMS else ()
        turns = [[dict.fromkeys(self.apart, "whole")]]
        for order in orders:
            for rest in ("source", "target"):
                turn = [
                    {**dict.fromkeys(common, rest), **dict.fromkeys(order[:index], "target"), dim: "whole"}
                    for index, dim in enumerate(order)
                ]
                turns.append(turn)
        yield from self._layouts(turns)

    def with_blocks(self) -> Iterator[list[DigitLayout]]:
        """Shardings with some dims whole, those with the fewest elements to gather first."""
        counts = range(1, len(self.apart)) if len(self.apart) <= MOST_DIMS else ()
        fewer = [dims for count in counts for dims in combinations(self.apart, count)]
        fewer.sort(key=lambda dims: prod(digit.size for dim in dims for digit in self.source.dims[dim]))
        yield from self._layouts([[dict.fromkeys(dims, "whole")] for dims in fewer])

    def _layouts(self, turns: Iterable[list[dict[int, str]]]) -> Iterator[list[DigitLayout]]:
        for turn in turns:
            for sums in self.sums:
                for joined in (True, False) if any(self._shared(dim) for dim in self.apart) else (False,):
                    chain = [self._layout(states, sums, joined) for states in turn]
                    if all(map(self._valid, chain)):
                        yield chain

    def _layout(self, states: dict[int, str], sums: Digits, shared: bool) -> DigitLayout:
        dims = []
        for dim, (one, other) in enumerate(zip(self.source.dims, self.target.dims, strict=True)):
            state = states.get(dim, "source")
            whole = self._shared(dim) if shared else ()
            dims.append({"source": one, "target": other, "whole": whole}[state])
        return self.source._replace(dims=tuple(dims), unreduced=sums)

    def _shared(self, dim: int) -> Digits:
        """The major atoms that a dim has on both sides."""
        one, other = (atoms_of(side.dims[dim], self.atoms) for side in (self.source, self.target))
        count = 0
        while count < min(len(one), len(other)) and one[count] == other[count]:
            count += 1
        return one[:count]

    def _valid(self, layout: DigitLayout) -> bool:
        used = [atom for digits in (*layout.dims, layout.unreduced) for atom in atoms_of(digits, self.atoms)]
        return len(set(used)) == len(used)


def _best_through(
    found: Frame, chain: Sequence[DigitLayout], atoms: Digits, shape: Sequence[int], name: Name, sums: Sums
) -> Sketch | None:
    """The best sketch through a chain of shardings, each leg by itself; None if one of them needs many blocks."""
    legs = [found._replace(source=one, target=other) for one, other in pairwise([found.source, *chain, found.target])]
    for leg in legs:  # all legs are then written with the parts of axes that any of them needs
        parts = structure(leg, shape, atoms)
        assert parts is not None, "atoms of both sides nest"
        atoms = parts.atoms
    best: list[Sketch] = []
    for leg in legs:
        parts = structure(leg, shape, atoms)
        assert parts is not None
        if None in parts.dims:
            every = direct_sketches(leg, parts, shape, name, sums.source, sums.target, MOST_CELLS // 4)
        else:
            every = sketches(parts, rest_of(parts, shape), name, sums.source, sums.target, False)
        if not every:
            return None
        best.append(min(every, key=Sketch.score))
    return joined(best)


def joined(legs: Sequence[Sketch]) -> Sketch:
    """Join sketches of legs, each of which begins at the sharding where the last one ends."""
    first, *others = legs
    cuts, steps, last = list(first.cuts), list[ReshardStep](first.steps), first
    for sketch in others:
        before, after = (
            cuts[-1].view(last.maps()[-1], (1,) * len(cuts[-1].rest)),
            sketch.views((1,) * len(sketch.cuts[0].rest))[0],
        )
        dims = tuple(dim for dim, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)
        steps.append(Recut(dims, tuple(sketch.start.items())))
        cuts += sketch.cuts
        steps += sketch.steps
        last = sketch
    return Sketch(tuple(cuts), first.start, tuple(steps))

"""Which axes split which factor of an op: the choice that costs least in all.

A choice gives each factor the axes it is split over. The operands must then be laid out accordingly, and the results
come out so; a split factor that is reduced leaves a partial sum. The cost of a choice is what it takes to bring
the operands there from where they are, and the results to where they are wanted, plus the work left to each device:
seconds on a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product
from math import inf, prod
from typing import Any, NamedTuple

from meshwright.core.dtypes import BOOL, DType
from meshwright.core.factors import Factors
from meshwright.core.linearity import Does, LinearGroup
from meshwright.core.op import Op
from meshwright.core.types import TensorType
from meshwright.partition.cost import (
    EQUAL_DIGITS,
    PLAINLY,
    Planning,
    least_seconds,
    local_bytes,
    reshard_collectives,
    reshard_seconds,
    taken,
)
from meshwright.partition.layouts import READ, axes_used, layout
from meshwright.propagate.problem import FactorRule
from meshwright.propagate.project import Projection, project, shapes_of
from meshwright.sharding.axes import Axes, AxisRef, can_coexist, cut, overlap
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

MOST_TRIED = 512
MOST_ASSIGNMENTS = 256  # ways to give the parts of axes to factors, beyond which whole axes must do

_OF_BOOLS = {"and": "min", "or": "max"}  # how devices combine them

Assignment = dict[int, Axes]  # by the number of a factor
Move = tuple[TensorType, TensorSharding, TensorSharding, float]  # a value, from where to where, and how many share it


class Choice(NamedTuple):
    """How an op is split: layouts for its operands, and those its results come out in.

    ``padded`` are dims of operands, as (operand, dim), that are combined with others and whose blocks end in padding:
    there must stand what changes nothing in a ``combine``. ``moved`` is the part of the cost that is communication, and
    ``brought`` that of operands which are no partial sums. On a machine, ``collectives`` counts them; without one each
    has its cost.
    """

    operands: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    cost: float
    padded: tuple[tuple[int, int], ...] = ()
    combine: str = "sum"
    moved: float = 0.0
    brought: float = 0.0
    collectives: int = 0

    def preference(self, how: Planning) -> tuple[bool, float, int]:
        """What is best first: where types say how values are split, operands that stay as they are; then the cost, and
        for the same cost fewer collectives."""
        cost = self.cost if how.cost.topology is None else round(self.cost, EQUAL_DIGITS)
        return how.typed and self.brought > 0, cost, self.collectives


class Question(NamedTuple):
    """An equation, its operands' shardings and those wanted of its results: all that a choice depends on."""

    mesh: BaseMesh
    rule: FactorRule
    separable: frozenset[int]
    reduced: frozenset[int]
    combine: str
    groups: tuple[LinearGroup, ...]  # of operands that may be partial sums together
    operand_types: tuple[TensorType, ...]
    result_types: tuple[TensorType, ...]
    have: tuple[TensorSharding, ...]
    want: tuple[TensorSharding | None, ...]
    addends: tuple[int, ...]  # how many sums like this one each result meets before anything else happens to it
    how: Planning = PLAINLY
    cuts: Axes = ()  # parts of axes that others must nest with
    returned: bool = False  # whether the results are the program's
    beside: tuple[TensorSharding | None, ...] = ()  # the partial sum, there already, that each result is added to


class Numbered(NamedTuple):
    """A factor rule with its factors by number."""

    rule: FactorRule
    separable: frozenset[int]
    reduced: frozenset[int]
    combine: str


def numbered(factors: Factors, dtype: DType) -> Numbered:
    """A factor rule of an op on operands of a dtype."""
    number = {name: n for n, name in enumerate(factors.sizes)}
    separable = factors.separable
    if factors.combine in _OF_BOOLS and dtype != BOOL:
        separable -= factors.reduced  # devices combine bits of bools only
    return Numbered(
        FactorRule.of(factors),
        frozenset(number[name] for name in separable),
        frozenset(number[name] for name in factors.reduced),
        _OF_BOOLS.get(factors.combine, factors.combine),
    )


@lru_cache(maxsize=16384)
def rule_of(
    op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...]
) -> Numbered:
    """The factor rule of an op."""
    factors = op.factors(operands, results, dict(params))  # type: ignore[operator]
    return numbered(factors, operands[0].dtype if operands else BOOL)


@lru_cache(maxsize=16384)
def groups_of(
    op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...]
) -> tuple[LinearGroup, ...]:
    """The groups of operands in which an op is linear."""
    return op.groups(operands, results, dict(params))


def question(
    mesh: BaseMesh,
    numbered: Numbered,
    groups: Sequence[LinearGroup],
    operand_types: Sequence[TensorType],
    result_types: Sequence[TensorType],
    have: Sequence[TensorSharding],
    want: Sequence[TensorSharding | None],
    addends: Sequence[int],
    how: Planning = PLAINLY,
    cuts: Axes = (),
    returned: bool = False,
    beside: Sequence[TensorSharding | None] = (),
) -> Question:
    """The question for one equation."""
    return Question(
        mesh,
        *numbered,
        tuple(groups),
        tuple(operand_types),
        tuple(result_types),
        tuple(have),
        tuple(want),
        tuple(addends),
        how,
        cuts,
        returned,
        tuple(beside),
    )


@lru_cache(maxsize=16384)
def choose(asked: Question) -> Choice:
    """The cheapest choice; for results that nobody placed, if they are returned or reductions of one operand, that in
    which no operand moves, unless a machine is named."""
    placed = None not in asked.want
    reduction = bool(asked.reduced) and len(asked.operand_types) == 1
    unplaced = not placed and asked.how.predictable
    still = _still(asked) if unplaced else None
    if still is not None and (asked.returned or reduction):
        return still
    best = _cheapest(asked, _assignments(asked))
    assert best is not None, "to split nothing is always possible"
    if still is not None and best.brought and _is_as_cheap_in_parts(asked, still, best):
        return still
    share = asked.how.thorough or (asked.returned and not asked.how.typed)
    named = asked.how.cost.topology is not None
    if (best.moved or named) and asked.reduced and len(asked.operand_types) > 1 and share:
        # Axes that nothing is split over may carry a share of what moves; work alone is no reason to use them, unless a
        # machine is named.
        axes = [axis for axis in _atoms(asked) if axis.size > 1]
        everywhere = _everywhere(asked, [_parts(axes) if asked.how.thorough else _together(asked, axes)])
        below = inf if named else best.moved
        more = _cheapest(asked, (one for one in everywhere if _even(asked, one)), below)
        return best if more is None or more.preference(asked.how) >= best.preference(asked.how) else more
    return best


def _still(asked: Question) -> Choice | None:
    """The choice on operands that are split alike, as they are; None if they are not."""
    assignment = next(_assignments(asked))
    found = _choice(asked, assignment, next(_handed(asked, assignment)))
    return found if found is not None and found.operands == asked.have else None


def _is_as_cheap_in_parts(asked: Question, still: Choice, other: Choice) -> bool:
    """Whether the partial sums of one choice, taken in the layouts of another choice's results, cost no more than it:
    then no operand need move, whatever the results are used for."""
    moves = zip(asked.result_types, still.results, other.results, asked.addends, strict=True)
    seconds = [reshard_seconds(t, have, need, asked.how.cost) / addends for t, have, need, addends in moves]
    return still.cost - still.moved + sum(seconds) <= other.cost


def _cheapest(asked: Question, assignments: Iterable[Assignment], below: float = inf) -> Choice | None:
    """The cheapest of the choices that move less than ``below``."""
    best: Choice | None = None
    for assignment in assignments:
        for handed in _handed(asked, assignment):
            bound = inf if best is None or asked.how.typed else best.cost
            found = _choice(asked, assignment, handed, bound)
            if found is None or found.moved >= below:
                continue
            if best is None or found.preference(asked.how) < best.preference(asked.how):
                best = found
    return best


def _assignments(asked: Question) -> Iterator[Assignment]:
    """Assignments worth trying: what the layouts at hand suggest, in every order of precedence; none; and where factors
    are reduced, or axes split or sum what must be whole, every assignment of whole axes, if these are not too many."""
    atoms = _atoms(asked)
    suggested: list[dict[int, Axes]] = []
    stuck: list[AxisRef] = []
    for projection in _projections(asked):
        found = {}
        for factor, (axes, overflow, _, _) in projection.items():
            if axes and factor in asked.separable:
                found[factor] = _cut(axes, atoms)
            if overflow or factor not in asked.separable:
                stuck += (*axes, *overflow)
        suggested.append(found)
    if not asked.how.predictable:  # a sum may be taken in parts
        stuck += [axis for sharding in asked.have for axis in sharding.unreduced]
    seen: set[tuple[tuple[int, Axes], ...]] = set()

    def fresh(assignment: Assignment) -> bool:
        key = tuple(sorted((f, a) for f, a in assignment.items() if a))
        if key in seen or len(seen) >= MOST_TRIED:
            return False
        seen.add(key)
        return True

    tensors = range(len(suggested))
    beside = _beside(asked)
    for first in tensors:
        others = [t for t in tensors if t != first]
        for order in ([first, *others], [first, *reversed(others)]):
            merged: Assignment = {}
            for t in order:
                merged = _merge(merged, suggested[t], beside)
            if fresh(merged):
                yield merged
        if fresh(suggested[first]):
            yield dict(suggested[first])
    if fresh({}):
        yield {}
    used = [axis for found in suggested for axes in found.values() for axis in axes]
    whole = [atom for atom in atoms if overlap((atom,), (*used, *stuck))]
    if asked.how.thorough and asked.reduced and len(asked.operand_types) > 1:
        found_more = _everywhere(asked, (_parts(whole), _together(asked, whole)))
    else:
        found_more = _everywhere(asked, (_together(asked, whole),) if asked.reduced or stuck else ())
    for tried in found_more:
        if _even(asked, tried) and fresh(tried):
            yield tried


def _everywhere(asked: Question, choices: Sequence[Sequence[Axes]]) -> Iterator[Assignment]:
    """Every assignment of pieces of the mesh to factors, in every order: of the first pieces that are few enough."""
    factors = [None, *sorted(asked.separable)]
    pieces = next((found for found in choices if len(factors) ** len(found) <= MOST_ASSIGNMENTS), ())
    for spots in product(factors, repeat=len(pieces)):
        groups: dict[int, list[Axes]] = {}
        for piece, factor in zip(pieces, spots, strict=True):
            if factor is not None:
                groups.setdefault(factor, []).append(piece)
        for orders in product(*(permutations(group) for group in groups.values())):
            yield {factor: sum(order, ()) for factor, order in zip(groups, orders, strict=True)}


def _cut(axes: Axes, atoms: Sequence[AxisRef]) -> Axes:
    """Axes as the atoms that they are made of; one that cannot be cut so, because parts do not nest, as it is."""
    if all(axis in atoms for axis in axes):
        return axes
    return tuple(atom for axis in axes for atom in (cut((axis,), atoms) if can_coexist((axis,), atoms) else (axis,)))


def _together(asked: Question, axes: Sequence[AxisRef]) -> list[Axes]:
    """Atoms of the mesh, those in one piece that every layout at hand has one after the other, or not at all."""
    layouts = [s for s in (*asked.have, *asked.want) if s is not None]
    runs = [_cut(found, axes) for s in layouts for found in (*(dim.axes for dim in s.dims), s.unreduced) if found]
    after: dict[AxisRef, set[AxisRef | None]] = {axis: set() for axis in axes}
    before: dict[AxisRef, set[AxisRef | None]] = {axis: set() for axis in axes}
    for run in runs:
        for one, other in pairwise((None, *run, None)):
            if one in after:
                after[one].add(other)
            if other in before:
                before[other].add(one)
    pieces: list[Axes] = []
    for axis in axes:
        last = pieces[-1][-1] if pieces else None
        if last is not None and after[last] == {axis} and before[axis] == {last}:
            pieces[-1] = (*pieces[-1], axis)
        else:
            pieces.append((axis,))
    return pieces


def _projections(asked: Question) -> list[Projection]:
    """The axes of each factor in the shardings at hand, operand by operand and result by result."""
    shapes, _ = shapes_of(asked.rule)
    return [project(shape, s) for shape, s in zip(shapes, (*asked.have, *asked.want), strict=True)]


def _atoms(asked: Question) -> Axes:
    """The axes of the mesh, cut where a layout at hand, or a factor, has a part of one.

    Axes that are always used together so behave as the parts of one. They are in the order in which results and then
    operands, the last one (a weight, most often) first, name them: of choices that cost the same the first is taken,
    whatever the order of the axes in the mesh.
    """
    used = [axis for s in (*asked.want, *reversed(asked.have)) if s is not None for axis in axes_used(s)]
    used += [axis for found in _projections(asked) for axes, *_ in found.values() for axis in axes]
    parts = [axis for axis in used if not axis.is_full]
    found = [
        atom
        for axis in sorted(asked.mesh.axes, key=lambda axis: axis.size)
        for atom in (cut((axis,), parts) if can_coexist(parts, parts) else (axis,))
    ]
    return tuple(sorted(found, key=lambda atom: _place(atom, used)))


def _place(atom: AxisRef, used: Sequence[AxisRef]) -> int:
    """The first of the axes that have something in common with this one, by its number."""
    return next((n for n, axis in enumerate(used) if axis.overlaps(atom)), len(used))


def _even(asked: Question, assignment: Assignment) -> bool:
    """Whether no factor is cut into blocks that end in padding."""
    sizes = asked.rule.sizes
    return all(sizes[factor] % prod(axis.size for axis in axes) == 0 for factor, axes in assignment.items())


def _parts(axes: Sequence[AxisRef]) -> list[Axes]:
    """Axes cut into parts of prime size, from major to minor."""
    found: list[Axes] = []
    for rest in axes:
        while rest.size > 1:
            prime = next(n for n in range(2, rest.size + 1) if rest.size % n == 0)
            found.append((rest.part(rest.pre, rest.pre * prime),))
            if prime == rest.size:
                break
            rest = rest.part(rest.pre * prime, rest.next)
    return found


def _beside(asked: Question) -> dict[int, set[int]]:
    """For each factor those that some operand or result has, too: an axis that splits one of them does not split it."""
    found: dict[int, set[int]] = {}
    shapes, count = shapes_of(asked.rule)
    for n, shape in enumerate(shapes):
        factors = shape.factors if n < count else shape.factors | asked.reduced  # over which it is a partial sum
        for factor in factors:
            found.setdefault(factor, set()).update(factors)
    return found


def _merge(assignment: Assignment, more: Assignment, beside: Mapping[int, set[int]]) -> Assignment:
    """An assignment extended by another as far as no axis is used twice in one operand or result."""
    found = dict(assignment)
    for factor, axes in more.items():
        have = found.get(factor, ())
        if axes[: len(have)] != have:
            continue
        taken = [axis for other, used in found.items() if other != factor and other in beside[factor] for axis in used]
        kept: Axes = have
        for axis in axes[len(have) :]:
            if overlap((axis,), (*taken, *kept)):
                break
            kept = (*kept, axis)
        if kept:
            found[factor] = kept
    return found


class Handed(NamedTuple):
    """The operands that stay partial sums over some axes, and the reduction by which the results are."""

    operands: tuple[int, ...] = ()
    axes: Axes = ()
    reduction: str = "sum"


def _handed(asked: Question, assignment: Assignment) -> Iterator[Handed]:
    """What may be handed on: all partial sums (of two ways that cost the same, the one that puts the sum off), none,
    and some of them while the others are summed."""
    used = [axis for axes in assignment.values() for axis in axes]
    unreduced = tuple(n for n, s in enumerate(asked.have) if s.unreduced)
    found = [_through(asked, group) for group in asked.groups] if unreduced else []
    fitting = [one for one in found if one is not None and not overlap(one.axes, used)]
    yield from (one for one in fitting if one.operands == unreduced)
    yield Handed()
    yield from (one for one in fitting if one.operands != unreduced)


def _through(asked: Question, group: LinearGroup) -> Handed | None:
    """A group of operands as partial sums, if all of them are, over the same axes.

    A read (see ``layouts.READ``) stays one where it is moved, and becomes a sum where it is added up, with others or in
    a product. What else scales it needs the value itself: it would scale the zeros of the other devices as well.
    """
    have = [asked.have[n] for n in group.operands]
    axes, kinds = {s.unreduced for s in have}, {s.reduction for s in have}
    if len(axes) > 1 or () in axes or not kinds <= {"sum", READ}:
        return None
    if READ in kinds and group.does is Does.SCALES and not (group.factors and asked.reduced):
        return None
    return Handed(group.operands, axes.pop(), READ if kinds == {READ} and group.does is Does.MOVES else "sum")


def _joined(kinds: set[str]) -> str | None:
    """The reduction of what is left unreduced over several axes by these; None if there is no such."""
    if len(kinds) < 2:
        return next(iter(kinds), "sum")
    return "sum" if kinds == {"sum", READ} else None


def _choice(asked: Question, assignment: Assignment, handed: Handed, below: float = inf) -> Choice | None:
    """The layouts of an assignment and its cost; None if it is no layout, or one in parts that do not nest, or if it is
    seen to cost ``below`` or more before plans are made for it."""
    parts = [axis for axes in assignment.values() for axis in axes if not axis.is_full]
    if parts and not can_coexist(parts, (*parts, *asked.cuts)):
        return None
    shapes, count = shapes_of(asked.rule)
    types = (*asked.operand_types, *asked.result_types)
    dims: list[tuple[Axes, ...]] = []
    for shape, t in zip(shapes, types, strict=True):
        found = split_dims(shape.dims, shape.sizes, assignment, t)
        if found is None:
            return None
        dims.append(found)
    mesh = asked.mesh
    operands = tuple(
        layout(mesh, d, s.unreduced, s.reduction) if n in handed.operands else layout(mesh, d)
        for n, (d, s) in enumerate(zip(dims[:count], asked.have, strict=True))
    )
    reduced = tuple(axis for factor in sorted(asked.reduced) for axis in assignment.get(factor, ()))
    kinds = ((handed.axes, handed.reduction), (reduced, asked.combine))
    reduction = _joined({kind for axes, kind in kinds if axes})
    if reduction is None:
        return None
    results = tuple(layout(mesh, d, (*handed.axes, *reduced), reduction) for d in dims[count:])
    cost = asked.how.cost
    moves: list[Move] = [
        (t, have, need, 1) for t, have, need in zip(asked.operand_types, asked.have, operands, strict=True)
    ]
    for t, natural, want, addends in zip(asked.result_types, results, asked.want, asked.addends, strict=True):
        after = taken(t, natural, asked.how) if want is None else want
        moves.append((t, natural, after, addends if natural.unreduced else 1))  # sums that meet are added before
    for n, other in enumerate(asked.beside, len(operands)):
        if other is not None and other == moves[n][1]:
            moves[n] = (*moves[n][:3], inf)  # the other one is summed as it is
    split = prod(axis.size for axes in assignment.values() for axis in axes)
    flops = 2.0 * prod(asked.rule.sizes) / split if asked.rule.sizes else 0.0
    nbytes = local_bytes(asked.operand_types, operands) + local_bytes(asked.result_types, results)
    work = cost.work(flops, nbytes, types[0].dtype if types else BOOL)
    if work + sum(least_seconds(t, have, need, cost) / times for t, have, need, times in moves) >= below:
        return None
    seconds = [reshard_seconds(t, have, need, cost) / times for t, have, need, times in moves]
    brought = sum(one for one, have in zip(seconds, asked.have, strict=False) if not have.unreduced)
    moved = sum(seconds)
    count = sum(reshard_collectives(*move[:3], cost) for move in moves) if cost.topology is not None else 0
    padded = _padded(asked, assignment)
    return Choice(operands, results, moved + work, padded, asked.combine, moved, brought, count)


def _padded(asked: Question, assignment: Assignment) -> tuple[tuple[int, int], ...]:
    """The dims of operands that are combined and end in padding."""
    shapes, count = shapes_of(asked.rule)
    uneven = {
        factor
        for factor in asked.reduced
        if asked.rule.sizes[factor] % prod(axis.size for axis in assignment.get(factor, ()))
    }
    return tuple(
        (n, dim)
        for n, shape in enumerate(shapes[:count])
        for dim, factors in enumerate(shape.dims)
        if uneven.intersection(factors)
    )


def split_dims(
    dims: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], assignment: Assignment, t: TensorType
) -> tuple[Axes, ...] | None:
    """The axes of each dim of a tensor; None if they would not be the major part of a dim, or not divide a factor that
    shares its dim with others: a dim that is one factor may end in padding."""
    found: list[Axes] = []
    for factors, n in zip(dims, t.shape, strict=True):
        axes: tuple[AxisRef, ...] = ()
        full = True
        for factor in factors:
            mine = assignment.get(factor, ())
            parts = prod(axis.size for axis in mine)
            if mine and not full:
                return None
            if parts > 1 and (sizes[factor] % parts or n % parts) and (n == 1 or not _alone(factor, factors, sizes)):
                return None
            axes += mine
            full = full and parts == sizes[factor]
        found.append(axes)
    return tuple(found)


def _alone(factor: int, factors: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether a dim of these factors is one of them."""
    return sizes[factor] > 1 and all(other == factor or sizes[other] == 1 for other in factors)

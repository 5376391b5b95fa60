"""Sketches of reshard plans from the common digits of two shardings.

Where both sides have common digits, atoms and digits form paths and cycles: a digit leads from the atom it lies on in
the source to its atom in the target, and every atom has at most one digit each way. A path may begin with a digit that
the target splits and the source holds whole, and end with one of the opposite kind:

- from a split digit to an atom that is idle in the source: slice the digit by that atom, and the path is a cycle;
- from an atom that is idle in the target to a joined digit: close the cycle, and gather the digit over that atom;
- from an idle atom to an idle atom: close the cycle;
- from a split digit to a joined digit: an all-to-all over the atom, or over several a path of rounds.

Slices come first and gathers last, so no array in between is larger than both ends. Every device receives just the
bytes it lacks: one that agrees with all cycles and paths keeps its part and is left out. An unreduced atom is put on a
digit by a reduce-scatter, or freed by an all-reduce, and then is like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from math import prod
from operator import itemgetter
from typing import NamedTuple

from meshwright.partition.reshard.sketch import DigitView, Sketch
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    DigitOfDim,
    Expand,
    LocalSlice,
    Mask,
    Path,
    Permute,
    PlacedDigit,
    ReduceScatter,
    ReshardStep,
    Rounds,
    Select,
)
from meshwright.partition.reshard.structure import DigitEnds, DigitStructure
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.placement import Digit, Digits

Name = Callable[[Digit], AxisRef]
Digitwise = dict[DigitOfDim, DigitEnds]
MOST_PICKS = 300


class DigitMoves(NamedTuple):
    """Where digits move between atoms: slices, closed cycles, open paths, gathers."""

    slices: tuple[tuple[DigitOfDim, Digit], ...]
    cycles: tuple[Digits, ...]
    paths: tuple[tuple[Digits, DigitOfDim, DigitOfDim], ...]
    gathers: tuple[tuple[DigitOfDim, Digit], ...]


def digit_moves(pieces: Digitwise) -> DigitMoves:
    """Follow the digits from atom to atom, from the source to the target."""
    leaving = {piece.source: position for position, piece in pieces.items() if piece.source is not None}
    entered = {piece.target for piece in pieces.values() if piece.target is not None}
    slices, cycles, paths, gathers = [], [], [], []
    done: set[Digit] = set()

    def follow(first: Digit) -> tuple[Digits, DigitOfDim | None]:
        """The atoms from here on, and the digit that is joined at the end."""
        atoms = [first]
        while (position := leaving.get(atoms[-1])) is not None:
            following = pieces[position].target
            if following is None or following == first:
                break
            atoms.append(following)
        else:
            position = None
        done.update(atoms)
        return tuple(atoms), position if position is not None and pieces[position].target is None else None

    for position, piece in pieces.items():
        if piece.source is None and piece.target is not None:
            atoms, joined = follow(piece.target)
            if joined is not None:
                paths.append((atoms, position, joined))
            else:
                slices.append((position, atoms[-1]))
                cycles.append(atoms)
    for atom in (*(atom for atom in leaving if atom not in entered), *leaving):
        if atom not in done:
            atoms, joined = follow(atom)
            cycles.append(atoms)
            if joined is not None:
                gathers.append((joined, atom))
    return DigitMoves(tuple(slices), tuple(c for c in cycles if len(c) > 1), tuple(paths), tuple(gathers))


# All sketches


def sketches(
    parts: DigitStructure, rest: Sequence[int], name: Name, reduction: str, sums_by: str, on_machine: bool
) -> list[Sketch]:
    """Every sequence of steps that may be the cheapest.

    ``on_machine`` adds those that move more bytes than they must, and may be faster on a machine all the same: they
    gather over idle axes, in fewer collectives, or without copies inside of devices.
    """
    pieces: Digitwise = {
        DigitOfDim(dim, digit): piece for dim, found in enumerate(parts.dims) for digit, piece in enumerate(found or ())
    }
    first, last, mask = _introductions(pieces, parts.introduced)
    for position in first:
        pieces[position] = pieces[position]._replace(source=None)
    for position, atom in last:
        pieces[position] = pieces[position]._replace(target=atom)
    start = {p: piece.source for p, piece in pieces.items()}
    start.update(first)
    found: list[Sketch] = []
    for choice in _reduction_choices(parts, pieces, rest, on_machine):
        found += _sketches_of(choice, parts, first, name, reduction, on_machine)
    if on_machine and not parts.introduced:
        found += _whole_first(pieces, parts, rest, name, reduction)
    closing: list[ReshardStep] = [Expand(on_parts(last, name))] if last else []
    closing += [Mask(tuple(map(name, mask)), sums_by)] if mask else []
    named = {position: name(atom) for position, atom in start.items() if atom is not None}
    return [sketch._replace(start=named, steps=(*sketch.steps, *closing)) for sketch in found]


def rest_of(parts: DigitStructure, shape: Sequence[int]) -> list[int]:
    """The size of each dim that is left after its digits."""
    return [-(-n // prod(piece.size for piece in pieces or ())) for n, pieces in zip(shape, parts.dims, strict=True)]


def on_parts(pairs: Iterable[tuple[DigitOfDim, Digit]], name: Name) -> tuple[PlacedDigit, ...]:
    return tuple(PlacedDigit(*position, name(atom)) for position, atom in sorted(pairs))


def _introductions(
    pieces: Digitwise, introduced: Digits
) -> tuple[dict[DigitOfDim, Digit], list[tuple[DigitOfDim, Digit]], Digits]:
    """Digits on atoms that the target is unreduced over: to expand at first, or last; and such atoms that are idle."""
    first: dict[DigitOfDim, Digit] = {}
    last: list[tuple[DigitOfDim, Digit]] = []
    for position, piece in pieces.items():
        if piece.source is not None and piece.source in introduced:
            if piece.target is None:
                last.append((position, piece.source))
            else:
                first[position] = piece.source
    used = {*first.values(), *(atom for _, atom in last)}
    return first, last, tuple(atom for atom in introduced if atom not in used)


class ReductionChoice(NamedTuple):
    """One way to reduce the partial sums: atoms that are reduced whole or onto digits, and what is sliced before."""

    pieces: Digitwise
    whole: Digits
    scattered: tuple[tuple[DigitOfDim, Digit], ...]
    sliced: tuple[tuple[DigitOfDim, Digit], ...]
    rest: tuple[int, ...]


def _reduction_choices(
    parts: DigitStructure, pieces: Digitwise, rest: Sequence[int], on_machine: bool
) -> Iterator[ReductionChoice]:
    """Every way to reduce: each unreduced atom onto a digit that is to be split, onto a spare digit, or whole."""
    used = {piece.source for piece in pieces.values()}
    free = tuple(a for a in parts.atoms if a not in used and a not in (*parts.source_sums, *parts.introduced))
    extras = {(), parts.idle, free} if parts.to_reduce else {(), parts.idle} if on_machine else {()}
    for picks in _picks(parts.to_reduce, pieces):
        positions = [pick for pick in picks if isinstance(pick, DigitOfDim)]
        if len(set(positions)) < len(positions):
            continue
        spare = [atom for atom, pick in zip(parts.to_reduce, picks, strict=True) if pick == "spare"]
        for extra in extras:
            room = _room([*spare, *extra], rest)
            if (spare or extra) and room is None:
                continue
            now = dict(pieces)
            scattered: list[tuple[DigitOfDim, Digit]] = []
            for atom, pick in zip(parts.to_reduce, picks, strict=True):
                if isinstance(pick, DigitOfDim):
                    now[pick] = now[pick]._replace(source=atom)
                    scattered.append((pick, atom))
            left = list(rest)
            sliced: list[tuple[DigitOfDim, Digit]] = []
            if room is not None:
                digit = len(parts.dims[room] or ())
                for index, atom in enumerate((*extra, *spare)):
                    position = DigitOfDim(room, digit + index)
                    now[position] = DigitEnds(atom.size, atom, None)
                    (scattered if index >= len(extra) else sliced).append((position, atom))
                    left[room] //= atom.size
            whole = tuple(atom for atom, pick in zip(parts.to_reduce, picks, strict=True) if pick == "whole")
            yield ReductionChoice(now, whole, tuple(scattered), tuple(sliced), tuple(left))


Pick = DigitOfDim | str


def _picks(to_reduce: Digits, pieces: Digitwise) -> Iterable[tuple[Pick, ...]]:
    """The digits onto which each partial sum may be scattered: all combinations of atoms that go on together, or of
    very many the natural ones."""
    split = {position: piece.target for position, piece in pieces.items() if piece.source is None and piece.target}
    groups = _together(to_reduce, pieces)
    options: list[list[tuple[Pick, ...]]] = [
        [*_rows(group, split, pieces), ("spare",) * len(group), ("whole",) * len(group)] for group in groups
    ]
    if prod(map(len, options)) > MOST_PICKS:
        own = {atom: position for position, atom in split.items()}
        return [tuple(own.get(atom, other) for atom in to_reduce) for other in ("spare", "whole")]
    order = [to_reduce.index(atom) for group in groups for atom in group]
    found = ([pick for picks in chosen for pick in picks] for chosen in product(*options))
    return (tuple(pick for _, pick in sorted(zip(order, picks, strict=True), key=itemgetter(0))) for picks in found)


def _together(to_reduce: Digits, pieces: Digitwise) -> list[list[Digit]]:
    """The atoms in groups: those that the target splits no dim over, and those that it splits a dim over one after
    the other. What is done with one of a group is done with all, so that axes used together are planned for as one."""
    targets = {piece.target: position for position, piece in pieces.items() if piece.target is not None}
    found: list[list[Digit]] = []
    for atom in sorted((atom for atom in to_reduce if atom in targets), key=lambda atom: targets[atom]):
        here = targets[atom]
        before = DigitOfDim(here.dim, here.digit - 1)
        alike = before in pieces and (pieces[before].source is None) == (pieces[here].source is None)
        if alike and found and targets[found[-1][-1]] == before:
            found[-1].append(atom)
        else:
            found.append([atom])
    rest = [atom for atom in to_reduce if atom not in targets]
    return [*found, rest] if rest else found


def _rows(
    group: Sequence[Digit], split: Mapping[DigitOfDim, Digit], pieces: Digitwise
) -> Iterator[tuple[DigitOfDim, ...]]:
    """The digits of a dim, one after the other, that are to be split and are as long as these atoms."""
    for first in split:
        row = tuple(DigitOfDim(first.dim, first.digit + n) for n in range(len(group)))
        if all(one in split and pieces[one].size == atom.size for one, atom in zip(row, group, strict=True)):
            yield row


def _room(atoms: Sequence[Digit], rest: Sequence[int]) -> int | None:
    """A dim whose rest can be split by all the atoms."""
    size = prod(atom.size for atom in atoms)
    return next((dim for dim, left in enumerate(rest) if left and left % size == 0), None) if atoms else None


def _sketches_of(
    choice: ReductionChoice,
    parts: DigitStructure,
    first: dict[DigitOfDim, Digit],
    name: Name,
    reduction: str,
    on_machine: bool,
) -> Iterator[Sketch]:
    todo = digit_moves(choice.pieces)
    cut = _cut(choice.pieces, choice.rest)
    onto = {position: atom for position, atom in todo.slices if position in first}
    slices = [each for each in todo.slices if each[0] not in onto]
    before: list[ReshardStep] = []
    if expanded := on_parts(((position, atom) for position, atom in first.items() if position not in onto), name):
        before.append(Expand(expanded))

    def cuts(atoms: Sequence[Digit], more: Iterable[tuple[DigitOfDim, Digit]] = ()) -> Iterator[ReshardStep]:
        """Selections and slices by these atoms."""
        if kept := on_parts(((position, first[position]) for position, atom in onto.items() if atom in atoms), name):
            yield Select(kept, tuple(name(onto[part.position]) for part in kept))
        if sliced := on_parts((*(each for each in slices if each[1] in atoms), *more), name):
            yield LocalSlice(sliced)

    before += cuts([atom for atom in parts.atoms if atom not in choice.whole], choice.sliced)
    if choice.scattered:
        before.append(ReduceScatter(on_parts(choice.scattered, name), reduction))
    if choice.whole:
        before.append(AllReduce(tuple(map(name, choice.whole)), reduction))
    before += cuts(choice.whole)
    for exchange, gathers in product(_exchanges(todo, name), _gathers(todo.gathers, name, on_machine)):
        yield Sketch((cut,), {}, (*before, *exchange, *gathers))


def _cut(pieces: Digitwise, rest: Sequence[int]) -> DigitView:
    """The digits of each dim, and what is left of it."""
    sizes: list[list[int]] = [[] for _ in rest]
    for position in sorted(pieces):
        sizes[position.dim].append(pieces[position].size)
    return DigitView(tuple(map(tuple, sizes)), tuple(rest))


def _gathers(
    pairs: Sequence[tuple[DigitOfDim, Digit]], name: Name, on_machine: bool
) -> Iterator[tuple[ReshardStep, ...]]:
    """Digits gathered in one collective; on a machine also dim by dim, in both orders, which needs no copies."""
    parts = on_parts(pairs, name)
    yield (AllGather(parts),) if parts else ()
    by_dim = [AllGather(tuple(found)) for _, found in groupby(parts, lambda part: part.dim)] if on_machine else []
    if len(by_dim) > 1:
        yield tuple(by_dim)
        yield tuple(reversed(by_dim))


def _whole_first(
    pieces: Digitwise, parts: DigitStructure, rest: Sequence[int], name: Name, reduction: str
) -> Iterator[Sketch]:
    """Gather every digit that leaves its axis, reduce, and slice: more bytes, where others exchange blocks.

    What can be sliced before is, so that there is less to gather, or all at the end, in one pass over memory.
    """
    sources = {piece.source for piece in pieces.values()}
    changed = {position: piece for position, piece in pieces.items() if not piece.kept}
    leaving = [(position, piece.source) for position, piece in changed.items() if piece.source is not None]
    targets = [(position, piece.target) for position, piece in changed.items() if piece.target is not None]
    scattered = [pair for pair in targets if pair[1] in parts.to_reduce]
    sliced = [pair for pair in targets if pair not in scattered]
    idle = [(position, atom) for position, atom in sliced if pieces[position].source is None and atom not in sources]
    whole = tuple(atom for atom in parts.to_reduce if atom not in [atom for _, atom in scattered])
    sums: list[ReshardStep] = [
        ReduceScatter(tuple(found), reduction) for _, found in groupby(on_parts(scattered, name), lambda part: part.dim)
    ]
    sums += [AllReduce(tuple(map(name, whole)), reduction)] if whole else []
    cut = _cut(pieces, rest)
    for early in ([], idle) if idle else ([],):
        late = [pair for pair in sliced if pair not in early]
        before, after = ([LocalSlice(on_parts(some, name))] if some else [] for some in (early, late))
        for gathers in _gathers(leaving, name, True):
            yield Sketch((cut,), {}, (*before, *gathers, *sums, *after))


def _exchanges(todo: DigitMoves, name: Name) -> Iterator[list[ReshardStep]]:
    """The moves at constant size: each byte once, or in two collectives where that takes many rounds."""
    cycles = tuple(tuple(map(name, atoms)) for atoms in todo.cycles)
    paths = tuple(Path(tuple(map(name, atoms)), split, join) for atoms, split, join in todo.paths)
    if not paths:
        yield [Permute(cycles)] if cycles else []
        return
    long = tuple(path.axes for path in paths if len(path.axes) > 1)
    swaps = AllToAll(tuple(Path(path.axes[:1], path.split, path.join) for path in paths))
    if not cycles and not long:
        yield [swaps]
        return
    yield [Rounds(cycles, paths)]
    yield [Permute((*cycles, *long)), swaps]

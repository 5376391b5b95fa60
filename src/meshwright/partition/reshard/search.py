"""The ways from one sharding to another.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from meshwright.partition.reshard.sketch import Cut, Sketch
from meshwright.partition.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Expand,
    Mask,
    Part,
    Path,
    Permute,
    Place,
    ReduceScatter,
    ReshardStep,
    Rounds,
    Select,
    Slice,
)
from meshwright.partition.reshard.structure import Piece, Structure
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.placement import Digit, Digits

Name = Callable[[Digit], AxisRef]
Digitwise = dict[Place, Piece]
MOST_PICKS = 300


class Ways(NamedTuple):
    """What is to be done with digits that all have a place: slices, closed cycles, open paths, gathers."""

    slices: tuple[tuple[Place, Digit], ...]
    cycles: tuple[Digits, ...]
    paths: tuple[tuple[Digits, Place, Place], ...]
    gathers: tuple[tuple[Place, Digit], ...]


def ways(pieces: Digitwise) -> Ways:
    """Follow the digits from atom to atom."""
    leaving = {piece.source: place for place, piece in pieces.items() if piece.source is not None}
    entered = {piece.target for piece in pieces.values() if piece.target is not None}
    slices, cycles, paths, gathers = [], [], [], []
    done: set[Digit] = set()

    def follow(first: Digit) -> tuple[Digits, Place | None]:
        """The atoms from here on, and the digit that is joined at the end."""
        atoms = [first]
        while (place := leaving.get(atoms[-1])) is not None:
            following = pieces[place].target
            if following is None or following == first:
                break
            atoms.append(following)
        else:
            place = None
        done.update(atoms)
        return tuple(atoms), place if place is not None and pieces[place].target is None else None

    for place, piece in pieces.items():
        if piece.source is None and piece.target is not None:
            atoms, joined = follow(piece.target)
            if joined is not None:
                paths.append((atoms, place, joined))
            else:
                slices.append((place, atoms[-1]))
                cycles.append(atoms)
    for atom in (*(atom for atom in leaving if atom not in entered), *leaving):
        if atom not in done:
            atoms, joined = follow(atom)
            cycles.append(atoms)
            if joined is not None:
                gathers.append((joined, atom))
    return Ways(tuple(slices), tuple(c for c in cycles if len(c) > 1), tuple(paths), tuple(gathers))


# All ways


def sketches(
    parts: Structure, rest: Sequence[int], name: Name, reduction: str, sums_by: str, idle: bool
) -> list[Sketch]:
    """Every way that may be the cheapest; with ``idle``, those that gather over idle axes too."""
    pieces: Digitwise = {
        Place(dim, digit): piece for dim, found in enumerate(parts.dims) for digit, piece in enumerate(found or ())
    }
    first, last, mask = _introductions(pieces, parts.introduced)
    for place in first:
        pieces[place] = pieces[place]._replace(source=None)
    for place, atom in last:
        pieces[place] = pieces[place]._replace(target=atom)
    start = {p: piece.source for p, piece in pieces.items()}
    start.update(first)
    found: list[Sketch] = []
    for choice in _reductions(parts, pieces, rest, idle):
        found += _sketches_of(choice, parts, first, name, reduction)
    closing: list[ReshardStep] = [Expand(on_parts(last, name))] if last else []
    closing += [Mask(tuple(map(name, mask)), sums_by)] if mask else []
    named = {place: name(atom) for place, atom in start.items() if atom is not None}
    return [sketch._replace(start=named, steps=(*sketch.steps, *closing)) for sketch in found]


def rest_of(parts: Structure, shape: Sequence[int]) -> list[int]:
    """What is left of each dim behind its digits."""
    return [-(-n // prod(piece.size for piece in pieces or ())) for n, pieces in zip(shape, parts.dims, strict=True)]


def on_parts(pairs: Iterable[tuple[Place, Digit]], name: Name) -> tuple[Part, ...]:
    return tuple(Part(*place, name(atom)) for place, atom in sorted(pairs))


def _introductions(
    pieces: Digitwise, introduced: Digits
) -> tuple[dict[Place, Digit], list[tuple[Place, Digit]], Digits]:
    """Digits on atoms that will owe sums: to expand at first, or last; and such atoms that are idle."""
    first: dict[Place, Digit] = {}
    last: list[tuple[Place, Digit]] = []
    for place, piece in pieces.items():
        if piece.source is not None and piece.source in introduced:
            if piece.target is None:
                last.append((place, piece.source))
            else:
                first[place] = piece.source
    used = {*first.values(), *(atom for _, atom in last)}
    return first, last, tuple(atom for atom in introduced if atom not in used)


class Choice(NamedTuple):
    """Digits once sums are taken care of: atoms that are reduced whole or onto digits, and what is sliced before."""

    pieces: Digitwise
    whole: Digits
    scattered: tuple[tuple[Place, Digit], ...]
    sliced: tuple[tuple[Place, Digit], ...]
    rest: tuple[int, ...]


def _reductions(parts: Structure, pieces: Digitwise, rest: Sequence[int], idle: bool) -> Iterator[Choice]:
    """Every way to reduce: each owed atom onto a digit that is to be split, onto a spare digit, or whole."""
    used = {piece.source for piece in pieces.values()}
    free = tuple(a for a in parts.atoms if a not in used and a not in (*parts.source_sums, *parts.introduced))
    extras = {(), parts.idle, free} if parts.owed else {(), parts.idle} if idle else {()}
    for picks in _picks(parts.owed, pieces):
        places = [pick for pick in picks if isinstance(pick, Place)]
        if len(set(places)) < len(places):
            continue
        spare = [atom for atom, pick in zip(parts.owed, picks, strict=True) if pick == "spare"]
        for extra in extras:
            room = _room([*spare, *extra], rest)
            if (spare or extra) and room is None:
                continue
            now = dict(pieces)
            scattered: list[tuple[Place, Digit]] = []
            for atom, pick in zip(parts.owed, picks, strict=True):
                if isinstance(pick, Place):
                    now[pick] = now[pick]._replace(source=atom)
                    scattered.append((pick, atom))
            left = list(rest)
            sliced: list[tuple[Place, Digit]] = []
            if room is not None:
                digit = len(parts.dims[room] or ())
                for index, atom in enumerate((*extra, *spare)):
                    place = Place(room, digit + index)
                    now[place] = Piece(atom.size, atom, None)
                    (scattered if index >= len(extra) else sliced).append((place, atom))
                    left[room] //= atom.size
            whole = tuple(atom for atom, pick in zip(parts.owed, picks, strict=True) if pick == "whole")
            yield Choice(now, whole, tuple(scattered), tuple(sliced), tuple(left))


Pick = Place | str


def _picks(owed: Digits, pieces: Digitwise) -> Iterable[tuple[Pick, ...]]:
    """Where the sums may go: all combinations, or where these are very many the natural ones."""
    split = {place: piece.target for place, piece in pieces.items() if piece.source is None and piece.target}
    options: list[list[Pick]] = [
        [*(place for place in split if pieces[place].size == atom.size), "spare", "whole"] for atom in owed
    ]
    if prod(map(len, options)) <= MOST_PICKS:
        return product(*options)
    own = {atom: place for place, atom in split.items()}
    return [tuple(own.get(atom, other) for atom in owed) for other in ("spare", "whole")]


def _room(atoms: Sequence[Digit], rest: Sequence[int]) -> int | None:
    """A dim whose rest can be split by all the atoms."""
    size = prod(atom.size for atom in atoms)
    return next((dim for dim, left in enumerate(rest) if left and left % size == 0), None) if atoms else None


def _sketches_of(
    choice: Choice, parts: Structure, first: dict[Place, Digit], name: Name, reduction: str
) -> Iterator[Sketch]:
    todo = ways(choice.pieces)
    counts = [len(dim or ()) for dim in parts.dims]
    for place in choice.pieces:
        counts[place.dim] = max(counts[place.dim], place.digit + 1)
    digits = tuple(
        tuple(choice.pieces[Place(dim, digit)].size for digit in range(count)) for dim, count in enumerate(counts)
    )
    onto = {place: atom for place, atom in todo.slices if place in first}
    slices = [each for each in todo.slices if each[0] not in onto]
    before: list[ReshardStep] = []
    if expanded := on_parts(((place, atom) for place, atom in first.items() if place not in onto), name):
        before.append(Expand(expanded))

    def cuts(atoms: Sequence[Digit], more: Iterable[tuple[Place, Digit]] = ()) -> Iterator[ReshardStep]:
        """Selections and slices by these atoms."""
        if kept := on_parts(((place, first[place]) for place, atom in onto.items() if atom in atoms), name):
            yield Select(kept, tuple(name(onto[part.place]) for part in kept))
        if sliced := on_parts((*(each for each in slices if each[1] in atoms), *more), name):
            yield Slice(sliced)

    before += cuts([atom for atom in parts.atoms if atom not in choice.whole], choice.sliced)
    if choice.scattered:
        before.append(ReduceScatter(on_parts(choice.scattered, name), reduction))
    if choice.whole:
        before.append(AllReduce(tuple(map(name, choice.whole)), reduction))
    before += cuts(choice.whole)
    after: list[ReshardStep] = [AllGather(on_parts(todo.gathers, name))] if todo.gathers else []
    for exchange in _exchanges(todo, name):
        yield Sketch((Cut(digits, choice.rest),), {}, (*before, *exchange, *after))


def _exchanges(todo: Ways, name: Name) -> Iterator[list[ReshardStep]]:
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

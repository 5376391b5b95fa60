"""The collectives that Shardy makes of a reshard: one slice, one permute, all-to-alls and one gather, in this order.

This is what ``opt -sdy-reshard-to-collectives`` prints. Programs of ours are partitioned by ``partition.reshard.plan``,
which looks for the fewest bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

from meshwright.sharding.axes import Axes, AxisRef, can_coexist, cut, merged, total_size

Dims = list[list[AxisRef]]


class Move(NamedTuple):
    """One collective: the axes it works on in each dim (of an all-to-all those that leave), and the layout after it."""

    kind: str
    axes: tuple[Axes, ...]
    dims: tuple[Axes, ...]
    source: int = 0  # of an all-to-all
    target: int = 0


def collectives(
    source: Sequence[Axes], target: Sequence[Axes], shape: Sequence[int], other_devices: bool = False
) -> list[Move]:
    """The collectives from one layout to another, as axes of each dim.

    ``other_devices``: the target's mesh has its devices in another order.

    >>> x, y = AxisRef.full("x", 2), AxisRef.full("y", 4)
    >>> for move in collectives([(x,), (y,)], [(y,), ()], (16, 16)):
    ...     print(move.kind, *move.dims)
    collective_permute (AxisRef("y":(1)2),) (AxisRef("x"), AxisRef("y":(2)2))
    all_to_all (AxisRef("y"),) (AxisRef("x"),)
    all_gather (AxisRef("y"),) ()
    """
    flat = [[axis for dim in side for axis in dim] for side in (source, target)]
    if not can_coexist(*flat):
        return _by_whole(source, target)
    found = _Route(source, target, flat, shape, other_devices)
    for _ in range(4):
        found.slice()
        found.permute()
        found.exchange()
        found.gather()
    return found.moves if found.done else [*found.moves, *_by_whole(found.dims, target)]


def _by_whole(source: Sequence[Axes], target: Sequence[Axes]) -> list[Move]:
    """Gather all and slice: for axes that have no common parts."""
    nothing = ((),) * len(source)
    moves = [Move("all_gather", tuple(source), nothing), Move("all_slice", tuple(target), tuple(target))]
    return [move for move in moves if any(move.axes)]


def _padded(size: int, axes: Axes) -> int:
    """The size of a dim whose parts are all as large as the largest."""
    parts = total_size(axes)
    return -(-size // parts) * parts


class _Route:
    """A layout on its way.

    ``held`` are the axes of each dim beyond those that are in their place, ``wanted`` those that should follow instead,
    both in the same parts. An axis is *free* if it is wanted and not held anywhere, and *surplus* if it is held and not
    wanted anywhere.

    A dim is *uneven* if it is padded to one size before and to another in the end. Its axes all leave it, in one
    all-to-all or in a gather, before others come; until then nothing is wanted in it, and nothing is permuted.
    """

    def __init__(
        self,
        source: Sequence[Axes],
        target: Sequence[Axes],
        flat: Sequence[Sequence[AxisRef]],
        shape: Sequence[int],
        other_devices: bool,
    ) -> None:
        self.held: Dims = [list(cut(dim, flat[1])) for dim in source]
        self.wanted: Dims = [list(cut(dim, flat[0])) for dim in target]
        self.matched: Dims = [[] for _ in source]
        self.moves: list[Move] = []
        self._shape, self._other_devices = shape, other_devices
        self._uneven = {
            dim
            for dim, (size, before, after) in enumerate(zip(shape, source, target, strict=True))
            if before and after and _padded(size, before) != _padded(size, after)
        }
        self._match()

    @property
    def done(self) -> bool:
        """Whether every axis is in its place; one of size 1 is wherever it is said to be."""
        left = any(axis.size > 1 for dim in (*self.held, *self.wanted) for axis in dim)
        return not left and not (self._other_devices and any(self.matched))

    @property
    def dims(self) -> tuple[Axes, ...]:
        """The layout now."""
        return tuple(merged((*done, *held)) for done, held in zip(self.matched, self.held, strict=True))

    def _match(self) -> None:
        self._uneven = {dim for dim in self._uneven if self.held[dim]}
        for held, wanted, matched in zip(self.held, self._wanted_now(), self.matched, strict=True):
            while held and wanted and held[0] is wanted[0]:
                matched.append(held.pop(0))
                wanted.pop(0)

    def _wanted_now(self) -> Dims:
        """``wanted``, of which nothing in uneven dims."""
        return [[] if dim in self._uneven else wanted for dim, wanted in enumerate(self.wanted)]

    def _add(self, kind: str, axes: Dims, source: int = 0, target: int = 0) -> None:
        found = tuple(merged(dim) for dim in axes)
        self.moves.append(Move(kind, found, self.dims, source, target))
        self._match()

    def _all_held(self) -> set[AxisRef]:
        return {axis for dim in self.held for axis in dim}

    def _targets(self) -> dict[AxisRef, tuple[int, int]]:
        """The dim and the position in which each axis is wanted."""
        return {axis: (d, n) for d, dim in enumerate(self._wanted_now()) for n, axis in enumerate(dim)}

    def _cut(self, axis: AxisRef, parts: Sequence[AxisRef]) -> None:
        for dim in (*self.held, *self.wanted):
            if axis in dim:
                at = dim.index(axis)
                dim[at : at + 1] = parts

    # Slices

    def slice(self) -> None:
        """Split what is free as early as possible: each dim by no more than it will be split in the end."""
        wanted_now = self._wanted_now()
        free = [axis for dim in wanted_now for axis in dim if axis not in self._all_held()]
        if not free:
            return
        taken: Dims = [[] for _ in self.held]
        room = [
            total_size(wanted) // gcd(total_size(held), total_size(wanted))
            for held, wanted in zip(self.held, wanted_now, strict=True)
        ]
        for target in range(len(room)):
            for source, moving, following in self._rows_to_extend(target):
                taken[source] += following
                self.held[source] += following
                for axis in (*moving, *following):
                    room[target] //= gcd(room[target], axis.size)
        left = []
        for dim, wanted in enumerate(wanted_now):
            for axis in [axis for axis in wanted if axis not in self._all_held()]:
                left += self._put(axis, [dim], room, taken)
        for axis in left:
            self._put(axis, range(len(room)), room, taken)
        for held, more in zip(self.held, taken, strict=True):
            held += [axis for axis in more if axis not in held]
        if any(taken):
            self._add("all_slice", taken)

    def _rows_to_extend(self, target: int) -> Iterator[tuple[int, list[AxisRef], list[AxisRef]]]:
        """Dims whose last axes will move to ``target`` as they are, with the free axes wanted right after them.

        Split where they come from, all go in one all-to-all, and no permute has to put them in order.
        """
        wanted = self.wanted[target]
        if self.held[target]:
            return
        for source, held in enumerate(self.held):
            if self.wanted[source]:
                continue
            start = len(held)
            while start and held[start - 1] in wanted:
                start -= 1
            moving = held[start:]
            if not moving or any(axis in wanted for axis in held[:start]):
                continue
            at = wanted.index(moving[0])
            if wanted[at : at + len(moving)] != moving:
                continue
            following: list[AxisRef] = []
            for axis in wanted[at + len(moving) :]:
                if axis in self._all_held():
                    break
                following.append(axis)
            split = total_size((*self.matched[source], *held, *following))
            if following and self._shape[source] % split == 0:
                yield source, moving, following

    def _put(self, axis: AxisRef, dims: Sequence[int], room: list[int], into: Dims) -> list[AxisRef]:
        """Enter an axis where there is room, in parts if need be; what is left of it."""
        for dim in dims:
            small = min(room[dim], axis.size)
            if room[dim] == 1 or max(room[dim], axis.size) % small:
                continue
            room[dim] //= small
            if small == axis.size:
                into[dim].append(axis)
                return []
            part, rest = axis.split(small, axis.size // small)
            self._cut(axis, (part, rest))
            into[dim].append(part)
            axis = rest
        return [axis]

    # Permutes

    def permute(self) -> None:
        """Exchange axes between and within dims, each split as many ways as before.

        First come those that are wanted in a dim, last others that are wanted somewhere, and surplus ones between them:
        after all-to-alls they are at the end, where a gather can reach them.
        """
        if not any(self.held) and not any(self.matched):
            return
        if self._uneven or not self._permute_pays():
            if self._other_devices and any((*self.matched, *self.wanted)):  # as it is, to the devices of the target
                self._other_devices = False
                self._add("collective_permute", [[] for _ in self.held])
            return
        room = [total_size(dim) for dim in self.held]
        places: list[Dims] = [[[] for _ in room] for _ in range(4)]
        own, strangers, stay, guests = places
        left = []
        for dim, wanted in enumerate(self.wanted):
            others: list[AxisRef] = []
            for axis in tuple(wanted):
                others += [axis] if others else self._put(axis, [dim], room, own)
            left += others
        for axis in left:
            self._put(axis, range(len(room)), room, guests)
        left = []
        wanted_somewhere = self._targets()
        for dim, held in enumerate(self.held):
            surplus = [axis for axis in held if axis not in wanted_somewhere]
            for axis in self._last_come_first(surplus, total_size(own[dim])):
                left += self._put(axis, [dim], room, stay)
        for axis in left:
            self._put(axis, range(len(room)), room, strangers)
        if any(n > 1 for n in room):
            return  # sizes that do not divide one another
        self.held = [[*a, *b, *c, *d] for a, b, c, d in zip(*places, strict=True)]
        self._other_devices = False
        self._add("collective_permute", [[] for _ in room])

    def _permute_pays(self) -> bool:
        targets = self._targets()

        def fit(one: AxisRef, other: AxisRef) -> bool:
            return max(one.size, other.size) % min(one.size, other.size) == 0

        free = [axis for axis in targets if axis not in self._all_held()]
        surplus = [axis for dim in self.held for axis in dim if axis not in targets]
        if free and surplus and fit(free[-1], surplus[-1]):
            return True
        for dim, (held, wanted) in enumerate(zip(self.held, self.wanted, strict=True)):
            if held and wanted and fit(held[0], wanted[0]):
                return True
            rows: dict[int, tuple[int, int]] = {}  # by target: the last position here, and there
            for at, axis in enumerate(held):
                if axis not in targets:
                    if rows and not wanted:
                        return True  # a surplus axis behind one that moves
                    continue
                target, there = targets[axis]
                if target == dim or rows.get(target, (at - 1, there - 1)) != (at - 1, there - 1):
                    return True
                rows[target] = (at, there)
        return False

    def _last_come_first(self, surplus: list[AxisRef], split: int) -> list[AxisRef]:
        """Surplus axes, those last whose place is taken by the axes wanted here, which split ``split`` ways."""
        displaced: list[AxisRef] = []
        while split > 1 and surplus:
            axis = surplus[0]
            small = min(split, axis.size)
            if max(split, axis.size) % small:
                break
            if small < axis.size:
                parts = axis.split(small, axis.size // small)
                self._cut(axis, parts)
                surplus[:1] = parts
            displaced.append(surplus.pop(0))
            split //= small
        return [*surplus, *displaced]

    # All-to-alls and gathers

    def exchange(self) -> None:
        """Move the last axes of a dim to the dim that wants them: first those that arrive in order."""
        moved = True
        while moved:
            moved = False
            for source in range(len(self.held)):
                while self._moved(source, in_order=True):
                    moved = True
        for source in range(len(self.held)):
            while self._moved(source, in_order=False):
                pass

    def _moved(self, source: int, in_order: bool) -> bool:
        moving, target = self._last_row(source)
        if not moving or target == source or (in_order and self.wanted[target][: len(moving)] != moving):
            return False
        if source in self._uneven and len(moving) < len(self.held[source]):
            return False
        del self.held[source][-len(moving) :]
        self.held[target] += moving
        self._add("all_to_all", [moving], source, target)
        return True

    def _last_row(self, source: int) -> tuple[list[AxisRef], int]:
        """The last axes of a dim that are wanted in one dim, and that dim."""
        targets, held = self._targets(), self.held[source]
        if not held or held[-1] not in targets:
            return [], source
        target, start = targets[held[-1]][0], len(held)
        while start and held[start - 1] in self.wanted[target]:
            start -= 1
        return held[start:], target

    def gather(self) -> None:
        """Gather what is surplus at the end of each dim, and uneven dims that cannot move as a whole."""
        targets = self._targets()
        taken: Dims = [[] for _ in self.held]
        for dim, (held, gone) in enumerate(zip(self.held, taken, strict=True)):
            whole = dim in self._uneven and len(self._last_row(dim)[0]) < len(held)
            while held and (whole or held[-1] not in targets):
                gone.insert(0, held.pop())
        if any(taken):
            self._add("all_gather", taken)

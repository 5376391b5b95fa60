"""What a reshard plan is made of: local steps and collectives on the digits of the dims.

Between two steps each device has one array. Its dims are read as the *digits* of the plan, major to minor, without
those that lie on an axis (the device's coordinate is their value); the rest of the dim comes last. A step turns the map
from digits to axes into another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

from meshwright.sharding.axes import Axes, AxisRef, merged


class DigitOfDim(NamedTuple):
    """A digit of a dim."""

    dim: int
    digit: int


class PlacedDigit(NamedTuple):
    """A digit of a dim and the axis it lies on, before or after a step."""

    dim: int
    digit: int
    axis: AxisRef

    @property
    def position(self) -> DigitOfDim:
        """The digit alone."""
        return DigitOfDim(self.dim, self.digit)


class AxisMove(NamedTuple):
    """A move of blocks between axes: a coordinate along ``source`` becomes that along ``target``."""

    source: AxisRef
    target: AxisRef


class Path(NamedTuple):
    """``split`` comes to lie on the first of ``axes``, what lies on each goes to the next, ``join`` leaves the last."""

    axes: Axes
    split: DigitOfDim
    join: DigitOfDim


Mapped = Mapping[DigitOfDim, AxisRef]


class Received(NamedTuple):
    """Elements that the worst device and the average device take in."""

    most: Fraction
    mean: Fraction


NOTHING = Received(Fraction(0), Fraction(0))


@dataclass(frozen=True)
class ReshardStep:
    """One step of a plan."""

    kind: ClassVar[str] = ""
    recuts: ClassVar[bool] = False  # whether dims are read as other digits behind it

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """The map from digits to axes behind the step."""
        raise NotImplementedError

    @property
    def axes(self) -> Axes:
        """The axes it works over."""
        raise NotImplementedError

    @property
    def collectives(self) -> int:
        """How many collectives it is."""
        return 1

    def received(self, before: int) -> Received:
        """Elements taken in, for local arrays of ``before`` elements."""
        return NOTHING

    @property
    def group(self) -> int:
        """How many devices exchange with each other."""
        return prod(axis.size for axis in self.axes)


def axes_text(axes: Iterable[AxisRef]) -> str:
    """``x``, ``x:(1)2``, ``(x,y)``."""
    names = [axis.short() for axis in merged(axes)]
    return names[0] if len(names) == 1 else f"({','.join(names)})"


def _parts_text(parts: Iterable[PlacedDigit]) -> str:
    """``dim 0 over x, dim 1 over (y,z)``."""
    by_dim: dict[int, list[AxisRef]] = {}
    for part in sorted(parts, key=lambda part: part.position):
        by_dim.setdefault(part.dim, []).append(part.axis)
    return ", ".join(f"dim {dim} over {axes_text(axes)}" for dim, axes in by_dim.items())


@dataclass(frozen=True)
class OnParts(ReshardStep):
    """A step on some digits."""

    parts: tuple[PlacedDigit, ...]

    @property
    def axes(self) -> Axes:
        """The axes of the parts."""
        return tuple(part.axis for part in self.parts)

    def _onto(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        return {**mapped, **{part.position: part.axis for part in self.parts}}

    def _off(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        gone = {part.position for part in self.parts}
        return {position: axis for position, axis in mapped.items() if position not in gone}

    def __str__(self) -> str:
        return f"{self.kind} {_parts_text(self.parts)}"


class LocalSlice(OnParts):
    """Each device keeps the part of its array that its coordinates name. Nothing is sent."""

    kind = "slice"
    after = OnParts._onto

    @property
    def collectives(self) -> int:
        """None: it is local."""
        return 0


class Expand(OnParts):
    """Each device puts its part into zeros: a dim that was split becomes a partial sum. Nothing is sent."""

    kind = "expand"
    after = OnParts._off

    @property
    def collectives(self) -> int:
        """None: it is local."""
        return 0


@dataclass(frozen=True)
class Select(OnParts):
    """Devices with equal coordinates along a part's axis and its new one keep their array, others have zeros.

    It is what `Expand` and `LocalSlice` would do to one digit: a partial sum over the axis it leaves. Nothing is sent.
    """

    onto: Axes
    kind = "select"

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """The digits are on their new axes."""
        moved = {part.position: axis for part, axis in zip(self.parts, self.onto, strict=True)}
        return {position: moved.get(position, axis) for position, axis in mapped.items()}

    @property
    def collectives(self) -> int:
        """None: it is local."""
        return 0

    def __str__(self) -> str:
        return f"{self.kind} " + ", ".join(
            f"dim {part.dim} from {part.axis.short()} onto {axis.short()}"
            for part, axis in zip(self.parts, self.onto, strict=True)
        )


class AllGather(OnParts):
    """Each device receives the other parts of the digits from the devices along the axes."""

    kind = "all_gather"
    after = OnParts._off

    def received(self, before: int) -> Received:
        """All but its own part."""
        more = Fraction(before * (self.group - 1))
        return Received(more, more)


@dataclass(frozen=True)
class ReduceScatter(OnParts):
    """Each device receives its part of the sum over the axes."""

    reduction: str = "sum"
    kind = "reduce_scatter"
    after = OnParts._onto

    def received(self, before: int) -> Received:
        """What the others have of its part."""
        share = Fraction(before * (self.group - 1), self.group)
        return Received(share, share)


@dataclass(frozen=True)
class AllReduce(ReshardStep):
    """Each device receives the sum over the axes."""

    over: Axes
    reduction: str = "sum"
    kind = "all_reduce"

    @property
    def axes(self) -> Axes:
        """The axes summed over."""
        return self.over

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """As before."""
        return dict(mapped)

    def received(self, before: int) -> Received:
        """As a reduce-scatter and an all-gather."""
        share = Fraction(2 * before * (self.group - 1), self.group)
        return Received(share, share)

    def __str__(self) -> str:
        return f"{self.kind} over {axes_text(self.over)}"


@dataclass(frozen=True)
class Mask(ReshardStep):
    """The first device along the axes keeps its array, the others have zeros: a partial sum. Nothing is sent."""

    over: Axes
    reduction: str = "sum"
    kind = "mask"

    @property
    def axes(self) -> Axes:
        """The axes over which the array is a partial sum after the step."""
        return self.over

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """As before."""
        return dict(mapped)

    @property
    def collectives(self) -> int:
        """None: it is local."""
        return 0

    def __str__(self) -> str:
        return f"{self.kind} over {axes_text(self.over)}"


@dataclass(frozen=True)
class Recut(ReshardStep):
    """Dims are read as other digits, with other padding at their ends. Nothing is sent."""

    dims: tuple[int, ...]
    mapped: tuple[tuple[DigitOfDim, AxisRef], ...]
    kind = "recut"
    recuts = True

    @property
    def axes(self) -> Axes:
        """None: each device holds what it held."""
        return ()

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """As the step says."""
        return dict(self.mapped)

    @property
    def collectives(self) -> int:
        """None: it is local."""
        return 0

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(f'dim {dim}' for dim in self.dims)}"


def agreement(cycles: Iterable[Axes]) -> Fraction:
    """The share of devices that have equal coordinates along all axes of each list."""
    return Fraction(1, prod(axes[0].size ** (len(axes) - 1) for axes in cycles))


def cycle_moves(axes: Axes) -> tuple[AxisMove, ...]:
    """From each axis to the next, and from the last to the first."""
    return tuple(AxisMove(axis, axes[(index + 1) % len(axes)]) for index, axis in enumerate(axes))


@dataclass(frozen=True)
class Permute(ReshardStep):
    """Each device sends its array to one other: its coordinate along each axis of a cycle becomes the next one's.

    Devices with equal coordinates along every cycle keep what they have.
    """

    cycles: tuple[Axes, ...]
    kind = "permute"

    @property
    def moves(self) -> tuple[AxisMove, ...]:
        """Where the coordinates go."""
        return tuple(move for axes in self.cycles for move in cycle_moves(axes))

    @property
    def axes(self) -> Axes:
        """All axes of the cycles."""
        return tuple(axis for axes in self.cycles for axis in axes)

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """Every digit on a source axis is on its target axis."""
        to = {move.source: move.target for move in self.moves}
        return {position: to.get(axis, axis) for position, axis in mapped.items()}

    def received(self, before: int) -> Received:
        """A whole array, on devices whose coordinates differ."""
        return Received(Fraction(before), before * (1 - agreement(self.cycles)))

    def __str__(self) -> str:
        return f"{self.kind} {_cycles_text(self.cycles)}"


def _cycles_text(cycles: Iterable[Axes]) -> str:
    return ", ".join("→".join(axis.short() for axis in (*axes, axes[0])) for axes in cycles)


@dataclass(frozen=True)
class AllToAll(ReshardStep):
    """Along each axis one digit is split and another joined."""

    swaps: tuple[Path, ...]
    kind = "all_to_all"

    @property
    def axes(self) -> Axes:
        """One axis for each swap."""
        return tuple(swap.axes[0] for swap in self.swaps)

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """The joined digits are local, the split ones on their axes."""
        gone = {swap.join for swap in self.swaps}
        found = {position: axis for position, axis in mapped.items() if position not in gone}
        return {**found, **{swap.split: swap.axes[0] for swap in self.swaps}}

    def received(self, before: int) -> Received:
        """All but the part that stays."""
        share = Fraction(before * (self.group - 1), self.group)
        return Received(share, share)

    def __str__(self) -> str:
        by_dims: dict[tuple[int, int], list[AxisRef]] = {}
        for swap in sorted(self.swaps, key=lambda swap: (swap.join, swap.split)):
            by_dims.setdefault((swap.join.dim, swap.split.dim), []).append(swap.axes[0])
        return f"{self.kind} " + ", ".join(
            f"dim {join} to dim {split} over {axes_text(axes)}" for (join, split), axes in by_dims.items()
        )


class Round(NamedTuple):
    """One permute of `Rounds`: by how much the coordinate of each path's last axis is shifted for its first."""

    shifts: tuple[int, ...]


@dataclass(frozen=True)
class Rounds(ReshardStep):
    """An all-to-all and a permute in one: as many permutes as there are parts, each byte sent once.

    In the round with the shifts ``r`` a device sends, of each path's split digit, the value that is its coordinate
    along the path's last axis plus ``r``, to the device that has this value along the path's first axis, its own first
    coordinate along the second, and so on, and its coordinates moved along the cycles. That device puts it where the
    joined digit has the sender's last coordinate, its own first one minus ``r``.
    """

    cycles: tuple[Axes, ...]
    paths: tuple[Path, ...]
    kind = "permute"

    @property
    def axes(self) -> Axes:
        """All axes of the cycles and the paths."""
        return tuple(axis for axes in (*self.cycles, *(path.axes for path in self.paths)) for axis in axes)

    @property
    def pieces(self) -> int:
        """Into how many parts each device's array is cut."""
        return prod(path.axes[0].size for path in self.paths)

    @property
    def collectives(self) -> int:
        """One permute for each part."""
        return self.pieces

    def rounds(self) -> Iterator[Round]:
        """The permutes, in order."""
        return map(Round, product(*(range(path.axes[0].size) for path in self.paths)))

    def after(self, mapped: Mapped) -> dict[DigitOfDim, AxisRef]:
        """As the permute of all axes, and the all-to-all."""
        to = {move.source: move.target for axes in self.cycles for move in cycle_moves(axes)}
        for path in self.paths:
            to.update(zip(path.axes, path.axes[1:], strict=False))
        gone = {path.join for path in self.paths}
        found = {position: to.get(axis, axis) for position, axis in mapped.items() if position not in gone}
        return {**found, **{path.split: path.axes[0] for path in self.paths}}

    def received(self, before: int) -> Received:
        """A whole array, but one part of it where all coordinates agree."""
        agreeing = agreement([*self.cycles, *(path.axes for path in self.paths)])
        most = Fraction(before) if agreeing < 1 else before * (1 - Fraction(1, self.pieces))
        return Received(most, before * (1 - agreeing / self.pieces))

    def __str__(self) -> str:
        paths = [
            f"dim {path.join.dim} to dim {path.split.dim} along {'→'.join(axis.short() for axis in path.axes)}"
            for path in self.paths
        ]
        cycles = [_cycles_text(self.cycles)] if self.cycles else []
        return f"{self.pieces} rounds of permute, {', '.join([*paths, *cycles])}"

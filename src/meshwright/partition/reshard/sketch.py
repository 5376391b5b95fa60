"""A sketch of a reshard plan: its steps, how dims are read as digits between them, and what that moves and holds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from meshwright.partition.reshard.steps import DigitOfDim, Mapped, PlacedDigit, Received, ReshardStep


class LocalDigit(NamedTuple):
    """A digit of a dim of the local array; the rest of the dim counts as its last digit."""

    digit: int
    size: int


View = tuple[tuple[LocalDigit, ...], ...]


class DigitView(NamedTuple):
    """The digits that each dim is read as, and the size that is left of each."""

    digits: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]

    def view(self, mapped: Mapped, units: Sequence[int]) -> View:
        """The digits of a local array, those on axes left out."""
        view: list[tuple[LocalDigit, ...]] = []
        for dim, (sizes, rest) in enumerate(zip(self.digits, self.rest, strict=True)):
            local = [
                LocalDigit(digit, size) for digit, size in enumerate(sizes) if DigitOfDim(dim, digit) not in mapped
            ]
            view.append((*local, LocalDigit(len(sizes), rest * units[dim])))
        return tuple(view)


class Sketch(NamedTuple):
    """A sketch of a reshard plan: how dims are read, where the digits lie at first, the steps.

    There is one `DigitView` at first and one more behind each step that cuts dims anew.
    """

    cuts: tuple[DigitView, ...]
    start: Mapped
    steps: tuple[ReshardStep, ...]

    def maps(self) -> tuple[Mapped, ...]:
        """The axis that each digit lies on, before each step and at the end."""
        found = [dict(self.start)]
        for step in self.steps:
            found.append(step.after(found[-1]))
        return tuple(found)

    def views(self, units: Sequence[int]) -> tuple[View, ...]:
        """The digits of the local array before each step and at the end."""
        return tuple(cut.view(mapped, units) for cut, mapped in zip(self._cut_at_each(), self.maps(), strict=True))

    def received(self) -> tuple[Received, ...]:
        """Elements that each step brings, in units."""
        return tuple(step.received(size) for step, size in zip(self.steps, self._sizes(), strict=False))

    def score(self) -> tuple[bool, Fraction, int, Fraction]:
        """The order of sketches, best first: memory, bytes, collectives, bytes of the worst device.

        Memory counts padding, which alone is no reason for another way.
        """
        sizes = self._sizes()
        received = [step.received(size) for step, size in zip(self.steps, sizes, strict=False)]
        return (
            max(sizes) > max(sizes[0], sizes[-1]),
            sum((r.mean for r in received), Fraction(0)),
            sum(step.collectives for step in self.steps),
            sum((r.most for r in received), Fraction(0)),
        )

    def _cut_at_each(self) -> list[DigitView]:
        found, index = [self.cuts[0]], 0
        for step in self.steps:
            index += step.recuts
            found.append(self.cuts[index])
        return found

    def _sizes(self) -> list[int]:
        """The elements of the local array before each step and at the end, padding included, in units."""
        found = []
        for cut, mapped in zip(self._cut_at_each(), self.maps(), strict=True):
            whole = prod(prod(sizes) for sizes in cut.digits) * prod(cut.rest)
            found.append(whole // prod(cut.digits[position.dim][position.digit] for position in mapped))
        return found


def local_sizes(views: Sequence[View], maps: Sequence[Mapped], shape: Sequence[int]) -> list[int]:
    """The elements of each local array; a dim that is whole has no padding."""
    found = []
    for view, mapped in zip(views, maps, strict=True):
        split = {position.dim for position in mapped}
        sizes = [prod(digit.size for digit in dim) for dim in view]
        found.append(prod(size if dim in split else min(size, shape[dim]) for dim, size in enumerate(sizes)))
    return found


def sizes_of(view: View) -> tuple[int, ...]:
    """The shape of a local array."""
    return tuple(prod(digit.size for digit in dim) for dim in view)


def digits_of(view: View) -> list[DigitOfDim]:
    """The digits of a local array, dim by dim."""
    return [DigitOfDim(dim, digit.digit) for dim, digits in enumerate(view) for digit in digits]


def major_dim(parts: Sequence[DigitOfDim | PlacedDigit], view: View) -> int | None:
    """The dim whose major digits are these, in this order; None if there is none.

    A collective on such digits works on whole dims, and nothing has to be copied before or after it.
    """
    dim = parts[0].dim
    places = [digit.digit for digit in view[dim]][: len(parts)]
    return dim if [(part.dim, part.digit) for part in parts] == [(dim, digit) for digit in places] else None

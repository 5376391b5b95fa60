"""Sizes of dims: numbers, or products of symbols such as ``B/2`` and ``2*H``, bound when a program is resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from meshwright.errors import ShapeError


@dataclass(frozen=True)
class Dim:
    """``coefficient * symbol**power * …``, the powers sorted by symbol; never a plain whole number.

    >>> str(Dim.symbol("B") / 2), str(2 * Dim.symbol("H")), str(Dim.symbol("B") / Dim.symbol("N"))
    ('B/2', '2*H', 'B/N')
    >>> Dim.symbol("B") / 2 * 2 == Dim.symbol("B")
    True
    """

    coefficient: Fraction
    powers: tuple[tuple[str, int], ...]

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim(Fraction(1), ((name, 1),))

    def __mul__(self, other: Size) -> Size:
        theirs = other if isinstance(other, Dim) else Dim(Fraction(other), ())
        powers = dict(self.powers)
        for name, power in theirs.powers:
            powers[name] = powers.get(name, 0) + power
        return _plain(self.coefficient * theirs.coefficient, powers)

    __rmul__ = __mul__

    def __truediv__(self, other: Size) -> Size:
        if isinstance(other, Dim):
            return self * Dim(1 / other.coefficient, tuple((name, -power) for name, power in other.powers))
        return _plain(self.coefficient / other, dict(self.powers))

    def __rtruediv__(self, other: int) -> Size:
        return Dim(Fraction(other), ()) / self

    def bind(self, sizes: Mapping[str, int]) -> Size:
        """This dim with some symbols replaced by numbers; a part of an element is an error."""
        value = self.coefficient
        powers: dict[str, int] = {}
        for name, power in self.powers:
            if name in sizes:
                value *= Fraction(sizes[name]) ** power
            else:
                powers[name] = power
        if not powers and value.denominator != 1:
            given = ", ".join(f"{name} = {sizes[name]}" for name, _ in self.powers)
            raise ShapeError(
                f"A dim of size {self} is not a whole number.",
                why=f"{given or 'the size'} makes it {value}",
                fix="choose sizes that the number of devices divides",
            )
        return _plain(value, powers)

    def __str__(self) -> str:
        above = [name for name, power in self.powers for _ in range(power)]
        below = [name for name, power in self.powers for _ in range(-power)]
        if self.coefficient.numerator != 1 or not above:
            above.insert(0, str(self.coefficient.numerator))
        if self.coefficient.denominator != 1:
            below.insert(0, str(self.coefficient.denominator))
        return "*".join(above) + "".join(f"/{name}" for name in below)

    __repr__ = __str__


Size = int | Dim
Sizes = tuple[Size, ...]


def _plain(coefficient: Fraction, powers: dict[str, int]) -> Size:
    left = tuple(sorted((name, power) for name, power in powers.items() if power and coefficient))
    if not left and coefficient.denominator == 1:
        return int(coefficient)
    return Dim(coefficient, left)


def divide(size: Size, parts: Size) -> Size:
    """``size / parts``, exact; it stays a fraction such as ``7/2`` where it does not come out."""
    if isinstance(size, int) and isinstance(parts, int):
        return _plain(Fraction(size, parts), {})
    return size / parts if isinstance(size, Dim) else Dim(Fraction(size), ()) / parts


def bind(size: Size, sizes: Mapping[str, int]) -> Size:
    """A size with its symbols replaced where they are known."""
    return size.bind(sizes) if isinstance(size, Dim) else size


def substitute(size: Size, sizes: Mapping[str, Size]) -> Size:
    """A size with other sizes for its symbols.

    >>> str(substitute(Dim.symbol("B") / 2, {"B": 4 * Dim.symbol("C")}))
    '2*C'
    """
    if not isinstance(size, Dim):
        return size
    found: Size = Dim(size.coefficient, ()) * 1
    for name, power in size.powers:
        factor = sizes.get(name, Dim.symbol(name))
        for _ in range(abs(power)):
            found = found * factor if power > 0 else divide(found, factor)
    return found


def is_whole(size: Size) -> bool:
    """Whether a size can be a number of elements: a fraction without symbols cannot."""
    return isinstance(size, int) or bool(size.powers)


def is_cut(size: Size) -> bool:
    """Whether a size is that of a part, such as ``B/2`` or ``8/N``."""
    return isinstance(size, Dim) and (size.coefficient.denominator > 1 or any(power < 0 for _, power in size.powers))


def solve(written: Size, found: Size) -> tuple[str, int] | None:
    """The one symbol that must be a certain number for two sizes to agree: ``B/N`` against ``B/2`` gives N = 2."""
    ratio = divide(found, written) if found != 0 and written != 0 else 0
    if isinstance(ratio, int) or len(ratio.powers) != 1:
        return None
    ((name, power),) = ratio.powers
    value = ratio.coefficient if power == -1 else 1 / ratio.coefficient if power == 1 else Fraction(0)
    return (name, int(value)) if value > 0 and value.denominator == 1 else None

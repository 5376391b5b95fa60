"""Sizes of dims: numbers, or products of symbols such as ``B/2`` and ``2*H``, bound when a program is resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Any

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
        found = substitute(self, sizes)
        if not is_whole(found):
            given = ", ".join(f"{name} = {sizes[name]}" for name, _ in self.powers)
            raise ShapeError(
                f"A dim of size {self} is not a whole number.",
                why=f"{given or 'the size'} makes it {found}",
                fix="choose sizes that the number of devices divides",
            )
        return found

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


# Sizes as numbers


# Symbols and fractions stand as large numbers without pattern, which sums and products of other sizes miss.
_STAND_INS: dict[str, int] = {}
_LEAST = 1 << 60


def _stand_in(name: str) -> int:
    found = _STAND_INS.get(name)
    if found is None:
        digits = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
        found = _STAND_INS[name] = _LEAST + digits % _LEAST
        _decoded.cache_clear()
    return found


def witness(size: Any) -> Any:
    """The number of a size: products of sizes have products of their numbers, as far as nothing cancels."""
    if not isinstance(size, Dim):
        return tuple(witness(item) for item in size) if isinstance(size, tuple) else size
    found = size.coefficient.numerator
    for name, power in size.powers:
        found *= _stand_in(name if power > 0 else f"1/{name}") ** abs(power)
    if size.coefficient.denominator != 1:
        found *= _stand_in(f"1/{size.coefficient.denominator}")
    return found


@lru_cache(maxsize=4096)
def _decoded(number: int) -> Size | None:
    """The size that a number stands for, None where it is none."""
    size: Size = 1
    for name, base in _STAND_INS.items():
        while number % base == 0 and number:
            number //= base
            below = name.removeprefix("1/")
            factor: Size = int(below) if below.isdecimal() else Dim.symbol(below)
            size = size * factor if below == name else divide(size, factor)
    return size * number if number < _LEAST else None


def unwitness(size: Any) -> Any:
    """The sizes that numbers stand for."""
    if isinstance(size, tuple):
        return tuple(unwitness(item) for item in size)
    if isinstance(size, int) and not isinstance(size, bool) and size >= _LEAST:
        found = _decoded(size)
        if found is None:
            raise ShapeError(
                "The sizes of this op do not follow from symbols.",
                why="it joins or cuts dims whose sizes are not known",
                fix="give the sizes as numbers: dist.resolve(fn, device_map, B=8, …)",
            )
        return found
    return size


def sized(size: int) -> Size:
    """The size that a number stands for, a symbol's included."""
    found = _decoded(size) if size >= _LEAST else size
    return size if found is None else found


def readable(text: str) -> str:
    """A message with symbols for the numbers that stand for them."""
    return re.sub(r"\d{19,}", lambda found: str(sized(int(found[0]))), text)

"""Draws the arguments of a call, as text that means the same on Meshwright and on JAX.

A table gives, for each public name, the calls it may be tested with: functions from a ``Drawer`` to the text of the
arguments, such as ``"v2, axis=-1"``. The drawer knows the values made so far, and makes a new argument of the chain
where no value fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

Shape = tuple[int, ...]
Draw = Callable[["Drawer"], str]

# Letters of kinds, and the dtypes of each that are drawn; the last ones exist only with 64-bit types on.
NARROW = {
    "b": ("bool",),
    "i": ("int32", "int8", "int16"),
    "u": ("uint8", "uint32", "uint16"),
    "f": ("float32", "bfloat16", "float16"),
    "c": ("complex64",),
}
WIDE = {
    "b": ("bool",),
    "i": ("int64", "int32", "int8"),
    "u": ("uint8", "uint64", "uint32"),
    "f": ("float64", "float32", "bfloat16"),
    "c": ("complex128", "complex64"),
}
ANY, NUMBER, REAL, INEXACT, WHOLE = "biufc", "iufc", "biuf", "fc", "biu"
SIZES = (0, 1, 2, 2, 3, 3, 4)
COMMON: tuple[Shape, ...] = (
    (), (), (1,), (3,), (4,), (2, 3), (3, 2), (2, 2), (1, 3), (4, 1), (2, 3, 2), (1, 2, 4), (3, 1, 2), (0,), (2, 0),
)  # fmt: skip
LARGEST = 128


@dataclass(frozen=True)
class NotDrawn:
    """Why no call of a public name is drawn."""

    why: str


@dataclass(frozen=True)
class Calls:
    """How a name may be called. ``concrete``: only outside of a trace, because a shape depends on contents."""

    draws: tuple[Draw, ...]
    concrete: bool = False


def calls(*draws: Draw, concrete: bool = False) -> Calls:
    """Some calls of a name."""
    return Calls(draws, concrete)


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name, NumPy's own or not."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def kind_of(dtype: Any) -> str:
    """The letter of a dtype's kind; those that NumPy does not know are floats."""
    return "f" if dtype.kind == "V" else dtype.kind


@dataclass(frozen=True)
class Operand:
    """A value by its name in the text."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return self.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)


class Drawer:
    """The choices of one chain, all from one seed."""

    def __init__(self, seed: int | Sequence[int], wide: bool = False, fresh: float = 0.25) -> None:
        self.random = np.random.default_rng(seed)
        self.dtypes = WIDE if wide else NARROW
        self.fresh = fresh  # how often an argument is new though a value would do
        self.arguments: dict[str, np.ndarray[Any, Any]] = {}
        self.scope: dict[str, Operand] = {}
        self.contents: dict[str, np.ndarray[Any, Any]] = {}

    # Choices

    def flag(self, chance: float = 0.5) -> bool:
        return bool(self.random.random() < chance)

    def integer(self, low: int, high: int) -> int:
        """One of low … high."""
        return int(self.random.integers(low, high + 1))

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def option(self, *texts: str, chance: float = 0.4) -> str:
        """One of the texts, or nothing."""
        return self.choose(texts) if self.flag(chance) else ""

    def options(self, *texts: str, chance: float = 0.3) -> str:
        """Some of the texts."""
        return "".join(text for text in texts if self.flag(chance))

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        found = list(items)
        return [found[n] for n in self.random.permutation(len(found))]

    # Values

    def add(self, name: str, value: Any) -> Operand:
        """Let later calls use a value."""
        contents = np.asarray(value)
        operand = self.scope[name] = Operand(name, contents.shape, contents.dtype)
        self.contents[name] = contents
        return operand

    def array(
        self,
        kinds: str = ANY,
        shape: Shape | None = None,
        rank: int | tuple[int, int] = (0, 3),
        within: tuple[float, float] | None = None,
        test: Callable[[Operand], bool] = lambda x: True,
        fresh: bool = False,
    ) -> Operand:
        """A value of one of these kinds, of a shape or of a rank in a range, with contents ``within`` bounds.

        Contents that are not finite, or large, are used rarely: nothing but infinities follows from them.
        """
        low, high = (rank, rank) if isinstance(rank, int) else rank
        found = [
            x
            for x in self.scope.values()
            if x.kind in kinds
            and (x.shape == shape if shape is not None else low <= x.ndim <= high)
            and test(x)
            and self._usable(x, within)
        ]
        if found and not fresh and not self.flag(self.fresh):
            recent = found[-4:] if self.flag(0.7) else found
            return self.choose(recent)  # type: ignore[no-any-return]
        for _ in range(20):
            drawn = self.shape(low, high) if shape is None else shape
            made = Operand("", drawn, dtype_of(self.dtype_name(kinds)))
            if test(made):
                break
        else:
            raise Unfit(f"no shape of rank {low} to {high} passes the test")
        return self.argument(drawn, made.dtype, within)

    def _usable(self, x: Operand, within: tuple[float, float] | None) -> bool:
        contents = self.contents[x.name]
        if x.kind in "b":
            return True
        size = np.abs(contents.astype(np.complex128))
        if within is not None:
            real = contents.astype(np.complex128).real
            return bool(np.all((real >= within[0]) & (real <= within[1])))
        return bool(np.all(size < 1e3)) or (x.kind in "iu" and self.flag(0.3)) or self.flag(0.03)

    def argument(self, shape: Shape, dtype: Any, within: tuple[float, float] | None = None) -> Operand:
        """A new argument of the chain."""
        name = f"a{len(self.arguments)}"
        self.arguments[name] = self.draw_contents(shape, np.dtype(dtype), within)
        return self.add(name, self.arguments[name])

    def draw_contents(self, shape: Shape, dtype: np.dtype[Any], within: tuple[float, float] | None = None) -> Any:
        low, high = within or (-3.0, 3.0)
        kind = kind_of(dtype)
        drawn = np.asarray(self.random.uniform(low, high, shape))
        if kind == "b":
            return drawn > (low + high) / 2
        if kind in "iu":
            low, high = within or ((0, 6) if kind == "u" else (-4, 5))
            whole = np.asarray(self.random.integers(int(np.ceil(low)), int(np.floor(high)) + 1, shape))
            if within is None and self.flag(0.08):
                limits = np.iinfo(dtype)
                far = np.asarray(self.choose((limits.min, limits.max)), dtype)
                whole = np.where(self.random.random(shape) < 0.3, far, whole.astype(dtype))
            return whole.astype(dtype)
        if within is None and self.flag(0.25):  # whole numbers and halves: ties, zeros, poles
            drawn = np.round(drawn * 2) / 2
        if kind == "c":
            return (drawn + 1j * self.random.uniform(low, high, shape)).astype(dtype)
        return drawn.astype(dtype)

    def shape(self, low: int = 0, high: int = 3) -> Shape:
        """A small shape, mostly one of a few: what JAX compiled for it serves again. A dim is rarely 0."""
        few = [shape for shape in COMMON if low <= len(shape) <= high]
        if few and self.flag(0.8):
            return self.choose(few)  # type: ignore[no-any-return]
        rank = self.integer(low, high)
        sizes = SIZES if self.flag(0.15) else SIZES[1:]
        while True:
            found = tuple(self.choose(sizes) for _ in range(rank))
            if prod(found) <= LARGEST:
                return found

    def dtype_name(self, kinds: str = ANY) -> str:
        """The name of a dtype of one of these kinds; the first one of a kind is drawn most often."""
        names = self.dtypes[self.choose([*kinds, *("f" if "f" in kinds else "")])]
        return names[0] if self.flag(0.5) else self.choose(names)  # type: ignore[no-any-return]

    def dtype(self, kinds: str = ANY) -> str:
        return repr(self.dtype_name(kinds))

    def number(self, kinds: str = "if") -> str:
        """A Python number."""
        kind = self.choose(kinds)
        real = round(float(self.random.uniform(-3, 3)), 2)
        return {
            "b": repr(self.flag()),
            "i": str(self.integer(-3, 4)),
            "u": str(self.integer(0, 4)),
            "f": repr(real),
        }.get(kind, f"({real} + {self.integer(-2, 2)}j)")

    def beside(self, x: Operand, kinds: str = ANY, numbers: bool = True) -> str:
        """A value that broadcasts with ``x``, or a number."""
        if numbers and self.flag(0.25):
            return self.number("".join(k for k in kinds if k in "bifc") or "i")
        return str(self.fitting(x.shape, kinds))

    def fitting(self, shape: Shape, kinds: str = ANY) -> Operand:
        """An array that broadcasts to ``shape``."""
        how = self.integer(0, 9)
        if how < 4:
            return self.array(kinds, shape)
        return self.array(kinds, self.thinner(shape))

    def thinner(self, shape: Shape) -> Shape:
        """A shape that broadcasts to ``shape``."""
        kept = shape[self.integer(0, len(shape)) :] if self.flag() else shape
        return tuple(1 if self.flag(0.3) else n for n in kept)

    # Axes and shapes

    def axis(self, x: Operand) -> int:
        """An axis of an array, counted from either end."""
        if not x.ndim:
            raise Unfit("a rank-0 array has no axes")
        return self.integer(-x.ndim, x.ndim - 1)

    def axes(self, x: Operand, least: int = 0) -> tuple[int, ...]:
        """Some axes of an array, each counted from either end."""
        count = self.integer(min(least, x.ndim), x.ndim)
        return tuple(n - x.ndim if self.flag(0.3) else n for n in self.shuffled(range(x.ndim))[:count])

    def over(self, x: Operand, key: str = "axis") -> str:
        """``, axis=…`` of a reduction: one, several, None, or left out."""
        how = self.integer(0, 9)
        if how < 3 or not x.ndim:
            return ""
        return f", {key}={self.axis(x) if how < 7 else self.axes(x) if how < 9 else None}"

    def along(self, x: Operand, key: str = "axis", none: bool = False) -> str:
        """``, axis=…`` of something that goes along one axis, or nothing."""
        if none and self.flag(0.15):
            return f", {key}=None"
        return f", {key}={self.axis(x)}" if x.ndim and self.flag(0.7) else ""

    def reshaped(self, x: Operand) -> Shape:
        """Another shape of as many elements."""
        if x.size == 0:
            return tuple(self.shuffled((0, *self.shape(0, 2))))
        sizes, rest = [], x.size
        while rest > 1 and len(sizes) < 3:
            divisors = [n for n in range(2, rest + 1) if rest % n == 0]
            sizes.append(self.choose(divisors))
            rest //= sizes[-1]
        if rest > 1:
            sizes[-1] *= rest
        return tuple(self.shuffled([*sizes, *[1] * self.integer(0, 1)]))


class Unfit(Exception):
    """No arguments can be drawn for a call here; another call is drawn."""


def draw_call(entry: Any, d: Drawer) -> tuple[str, str] | None:
    """The arguments of a valid call of an entry, and those of a call of its result; None where none can be drawn."""
    if not isinstance(entry, Calls):
        text, then = d.choose(entry)
        return text, then
    try:
        return d.choose(entry.draws)(d), ""
    except Unfit:
        return None

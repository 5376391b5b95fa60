"""Axes of a mesh, whole and in parts, and the algebra of lists of them.

The axis ``"x"`` of size ``n`` reshaped into ``[m, k, n / (m k)]`` has the sub-axis ``"x":(m)k`` in its middle. The
whole axis is ``"x":(1)n``, so every relation below is interval arithmetic on ``[m, m k)``: one sub-axis begins where
another ends, contains it, or shares a part with it. Whether such parts also divide each other is asked by
``can_coexist``. Lists of axes run from major to minor. All axes of one question belong to one mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

from meshwright.core.source import here
from meshwright.errors import ShardingError

PLAIN = frozenset(map(chr, range(32, 127))) - {'"', "\\"}


def quoted(text: str) -> str:
    r"""A string as MLIR writes it: bytes that are not plain ASCII as ``\0A``.

    >>> print(quoted('x'), quoted('a"b'))
    "x" "a\22b"
    """
    if PLAIN.issuperset(text):
        return f'"{text}"'
    signs = (chr(byte) for byte in text.encode("utf-8", "surrogateescape"))
    return '"' + "".join(c if c in PLAIN else "\\\\" if c == "\\" else f"\\{ord(c):02X}" for c in signs) + '"'


def _error(what: str, why: str, fix: str) -> ShardingError:
    return ShardingError(what, where=here(), why=why, fix=fix)


class AxisRef:
    """A mesh axis or a part of one: ``pre`` is what lies left of (major to) it, ``size`` its own, ``whole`` the axis's.

    Equal references are the same object, so comparing them is free.

    >>> x = AxisRef.full("x", 8)
    >>> major, minor = x.split(2, 4)
    >>> print(x, major, minor, major.merge(minor) is x)
    "x" "x":(1)2 "x":(2)4 True
    """

    __slots__ = ("__weakref__", "name", "pre", "size", "whole")

    name: str
    pre: int
    size: int
    whole: int

    _interned: ClassVar[dict[tuple[str, int, int, int], AxisRef]] = {}

    def __new__(cls, name: str, pre: int, size: int, whole: int) -> AxisRef:
        key = (name, pre, size, whole)
        try:
            found = cls._interned.get(key)
        except TypeError:  # something that cannot be hashed
            found = None
        if found is not None:
            return found
        if not isinstance(name, str) or not all(type(number) is int for number in key[1:]):
            raise _error(
                f"An AxisRef cannot be made of {key!r}.",
                "it is the name of an axis, what lies left of the part, the part's size and that of the axis",
                'mw.make_mesh((8,), ("x",)).axis_by_name["x"]',
            )
        if pre < 1 or size < 1 or whole < 1 or whole % (pre * size):
            raise _error(
                f"{quoted(name)}:({pre}){size} is no part of an axis of size {whole}.",
                "the sizes are at least 1, and pre-size * size divides the size of the axis",
                f"AxisRef.full({name!r}, {max(whole, 1)}), or a part of it by .split(…)",
            )
        self = super().__new__(cls)
        for field, value in zip(("name", "pre", "size", "whole"), key, strict=True):
            object.__setattr__(self, field, value)
        return cls._interned.setdefault(key, self)

    @classmethod
    def full(cls, name: str, size: int) -> AxisRef:
        """The whole axis."""
        return cls(name, 1, size, size)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an AxisRef is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return AxisRef, (self.name, self.pre, self.size, self.whole)

    @property
    def next(self) -> int:
        """The pre-size of whatever follows: ``pre * size``."""
        return self.pre * self.size

    @property
    def post(self) -> int:
        """The size of what lies right of (minor to) it."""
        return self.whole // self.next

    @property
    def is_full(self) -> bool:
        """Whether it is the whole axis."""
        return self.size == self.whole

    def part(self, pre: int, next: int) -> AxisRef:
        """The part of the same axis from ``pre`` to ``next``."""
        return AxisRef(self.name, pre, next // pre, self.whole)

    # Relations

    def contains(self, other: AxisRef) -> bool:
        """Whether ``other`` is this or lies inside it."""
        return self.name == other.name and self.pre <= other.pre and self.next >= other.next

    def has_prefix(self, other: AxisRef) -> bool:
        """Whether ``other`` is this or its major part."""
        return self.contains(other) and self.pre == other.pre

    def has_suffix(self, other: AxisRef) -> bool:
        """Whether ``other`` is this or its minor part."""
        return self.contains(other) and self.next == other.next

    def overlaps(self, other: AxisRef) -> bool:
        """Whether the two share devices' coordinates: equal, or the same axis and intervals that meet."""
        return self is other or (self.name == other.name and max(self.pre, other.pre) < min(self.next, other.next))

    def can_coexist(self, other: AxisRef) -> bool:
        """Whether one reshape of the axis has both as (products of) its dims.

        >>> def twelve(pre, size):
        ...     return AxisRef("x", pre, size, 12)
        >>> twelve(1, 4).can_coexist(twelve(2, 6)), twelve(1, 2).can_coexist(twelve(1, 3))
        (True, False)
        """
        if self.name != other.name:
            return True
        first, second = sorted((self.pre, other.pre))
        third, last = sorted((self.next, other.next))
        if third > second:  # first | second | third | last
            return second % first == 0 and third % second == 0 and last % third == 0
        return second % third == 0

    # Parts

    def overlap(self, other: AxisRef) -> AxisRef | None:
        """The sub-axis that two axes have in common, or None if there is none."""
        if not self.overlaps(other) or not self.can_coexist(other):
            return None
        return self if self is other else self.part(max(self.pre, other.pre), min(self.next, other.next))

    def prefix_without(self, other: AxisRef) -> AxisRef | None:
        """The major part of this that ``other`` leaves free; None if nothing, or if the two cannot coexist."""
        if not self.can_coexist(other):
            return None
        if not self.overlaps(other):
            return self
        return self.part(self.pre, other.pre) if self.pre < other.pre else None

    def suffix_without(self, other: AxisRef) -> AxisRef | None:
        """The minor part of this that ``other`` leaves free; None if nothing, or if the two cannot coexist."""
        if not self.can_coexist(other):
            return None
        if not self.overlaps(other):
            return self
        return self.part(other.next, self.next) if other.next < self.next else None

    def common_prefix(self, other: AxisRef) -> AxisRef | None:
        """The smaller of the two if it is the major part of the larger, else None."""
        if self.has_prefix(other):
            return other
        return self if other.has_prefix(self) else None

    def can_merge(self, minor: AxisRef) -> bool:
        """Whether ``minor`` begins where this ends."""
        return self.name == minor.name and self.next == minor.pre and not self.is_full and not minor.is_full

    def merge(self, minor: AxisRef) -> AxisRef:
        """This followed by ``minor`` as one."""
        if not self.can_merge(minor):
            raise _error(
                f"{minor} does not begin where {self} ends.",
                "two parts are merged into one if the second follows the first on the same axis",
                f"keep both: ({self.short()!r}, {minor.short()!r})",
            )
        return self.part(self.pre, minor.next)

    def split(self, *sizes: int) -> tuple[AxisRef, ...]:
        """This cut into parts of the given sizes, major to minor.

        >>> print(*AxisRef.full("x", 12).split(2, 3, 2))
        "x":(1)2 "x":(2)3 "x":(6)2
        """
        if prod(sizes) != self.size or min(sizes, default=1) < 1:
            raise _error(
                f"{self} of size {self.size} cannot be split into parts of sizes {sizes}.",
                "the sizes of the parts multiply to that of the whole",
                f".split(1, {self.size})",
            )
        parts, pre = [], self.pre
        for size in sizes:
            parts.append(self.part(pre, pre * size))
            pre *= size
        return tuple(parts)

    # Text

    def __str__(self) -> str:
        return quoted(self.name) + ("" if self.is_full else f":({self.pre}){self.size}")

    def __repr__(self) -> str:
        return f"AxisRef({self})"

    def short(self) -> str:
        """As types and partition specs write it: ``x``, ``x:(1)2``."""
        return self.name if self.is_full else f"{self.name}:({self.pre}){self.size}"


Axes = tuple[AxisRef, ...]


# Orders


def by_name(axis: AxisRef) -> tuple[str, int, int]:
    """Sorts by name, then from major to minor: ``(1)2`` before the whole axis before ``(2)2``."""
    return axis.name, axis.pre, axis.size


def in_mesh_order(axes: Iterable[AxisRef], names: Sequence[str]) -> Axes:
    """The axes in the order of the mesh, parts of one axis from major to minor.

    >>> x, y = AxisRef.full("x", 2), AxisRef.full("y", 8).split(2, 2, 2)
    >>> print(*in_mesh_order((y[2], x, y[0]), ["x", "y"]))
    "x" "y":(1)2 "y":(4)2
    """
    position = {name: index for index, name in enumerate(names)}
    return tuple(sorted(axes, key=lambda axis: (position[axis.name], axis.pre, axis.size)))


# Lists, major to minor


def total_size(axes: Iterable[AxisRef]) -> int:
    """How many ways a dim sharded over ``axes`` is cut."""
    return prod(axis.size for axis in axes)


def append(axes: Axes, axis: AxisRef) -> Axes:
    """``axes`` and then ``axis``, merged with the last one where it continues it."""
    if axes and axes[-1].can_merge(axis):
        return (*axes[:-1], axes[-1].merge(axis))
    return (*axes, axis)


def merged(axes: Iterable[AxisRef]) -> Axes:
    """The shortest list that means the same: neighbours that continue each other become one.

    >>> print(*merged(AxisRef.full("x", 8).split(2, 2, 2)))
    "x"
    """
    result: Axes = ()
    for axis in axes:
        result = append(result, axis)
    return result


def can_coexist(axes: Iterable[AxisRef], others: Iterable[AxisRef]) -> bool:
    """Whether every axis of one list can coexist with every axis of the other."""
    others = tuple(others)
    return all(axis.can_coexist(other) for axis in axes for other in others)


def overlap(axes: Iterable[AxisRef], others: Iterable[AxisRef]) -> bool:
    """Whether some axis of one list overlaps some axis of the other."""
    others = tuple(others)
    return any(axis.overlaps(other) for axis in axes for other in others)


def common_prefix(first: Axes, second: Axes) -> Axes:
    """The longest list that both begin with; its last axis may be a part of theirs.

    >>> x, y = AxisRef.full("x", 2), AxisRef.full("y", 4)
    >>> print(*common_prefix((x, y), (x, y.split(2, 2)[0])))
    "x" "y":(1)2
    """
    for position, (one, other) in enumerate(zip(first, second, strict=False)):
        if one is not other:
            shared = one.common_prefix(other)
            return first[:position] if shared is None else (*first[:position], shared)
    return min(first, second, key=len)


def prefix_without(axes: Axes, others: Iterable[AxisRef]) -> Axes:
    """The longest prefix of ``axes`` that overlaps none of ``others``; its last axis may be a part."""
    others = tuple(others)
    for position, axis in enumerate(axes):
        left: AxisRef | None = axis
        for other in others:
            left = left.prefix_without(other) if left is not None else None
        if left is not axis:
            return axes[:position] if left is None else (*axes[:position], left)
    return axes


def difference(axes: Iterable[AxisRef], others: Iterable[AxisRef]) -> Axes:
    """The parts of each of ``axes`` that none of ``others`` covers, in order.

    An axis that cannot coexist with one of ``others`` has no such parts and is left out.

    >>> y = AxisRef.full("y", 8)
    >>> print(*difference([y], [y.split(2, 2, 2)[1]]))
    "y":(1)2 "y":(4)2
    """
    left = tuple(axes)
    for other in others:
        kept: list[AxisRef] = []
        for axis in left:
            if axis.overlaps(other):
                kept.extend(p for p in (axis.prefix_without(other), axis.suffix_without(other)) if p is not None)
            elif axis.can_coexist(other):
                kept.append(axis)
        left = tuple(kept)
    return left


def cut(axes: Iterable[AxisRef], others: Iterable[AxisRef]) -> Axes:
    """``axes`` cut wherever one of ``others`` begins or ends, so that each piece is inside or outside of each of them.

    >>> x = AxisRef.full("x", 12)
    >>> print(*cut([x], [x.split(2, 3, 2)[1]]))
    "x":(1)2 "x":(2)3 "x":(6)2
    """
    others = tuple(others)
    pieces: list[AxisRef] = []
    for axis in axes:
        ends = {end for other in others if other.name == axis.name for end in (other.pre, other.next)}
        bounds = [axis.pre, *sorted(end for end in ends if axis.pre < end < axis.next), axis.next]
        if any(after % before for before, after in pairwise(bounds)):
            raise _error(
                f"{axis} cannot be cut at the ends of {', '.join(map(str, others))}.",
                "each end must divide the next, since parts of an axis nest",
                "axes whose parts nest, such as those of one mesh.axis_by_name[…].split(…)",
            )
        pieces.extend(axis.part(before, after) for before, after in pairwise(bounds))
    return tuple(pieces)

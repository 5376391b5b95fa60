"""Partition specs: for each dim of an array, the mesh axes it is split over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from meshwright.core.axis_names import PART
from meshwright.core.source import here
from meshwright.core.types import Spec
from meshwright.errors import ShardingError, TextError
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.text_sdy import WrittenAxis, pointing, read_integer


class _Unconstrained:
    """Stands for a dim that may be sharded in any way."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()


@dataclass(frozen=True, slots=True)
class DimSpec:
    """The entry of a dim that is split over some axes and open to more, or that has a priority; made by ``P.dim``."""

    axes: tuple[str, ...]
    is_open: bool
    priority: int | None

    def __repr__(self) -> str:
        parts = [*map(repr, self.axes), *["open=True"] * self.is_open]
        return f"P.dim({', '.join([*parts, *[f'priority={self.priority}'] * (self.priority is not None)])})"


def dim_entry(*axes: str | AxisRef, open: bool = False, priority: int | None = None) -> Entry:
    """The entry of a dim that is split over ``axes``; ``open`` to more of them, to be propagated at its priority.

    >>> P(P.dim("z", open=True), P.dim("x", priority=1), P.dim(open=True), P.dim("y"))
    P(P.dim('z', open=True), P.dim('x', priority=1), UNCONSTRAINED, 'y')
    """
    listed = _entry(tuple(axes))
    if not isinstance(open, bool):
        raise _bad_dim(f"open={open!r}", "open=True, or leave it out")
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool) or priority < 0):
        raise _bad_dim(f"priority={priority!r}", "priority=0, the first to be propagated, or 1, 2, …")
    if priority is None and (not open or listed is None):
        return UNCONSTRAINED if open else listed
    if listed is None and not open:
        alone = f"priority={priority}"
        raise _bad_dim(f"{alone} alone", f'mw.P.dim(open=True, {alone}), or mw.P.dim("x", {alone})')
    return DimSpec(entry_axes(listed), open, priority)


def _bad_dim(what: str, fix: str) -> ShardingError:
    return ShardingError(
        f"The dim of a partition spec cannot have {what}.",
        where=here(),
        why="it has axes, is open to more of them or not, and may have a priority, 0 or more, if there is "
        "something in it to propagate",
        fix=fix,
    )


Entry = None | str | tuple[str, ...] | _Unconstrained | DimSpec


class PartitionSpec(Spec):
    """For each dim of an array: None, an axis, several axes from major to minor, ``P.UNCONSTRAINED`` or ``P.dim(…)``.

    ``P.dim("z", open=True, priority=2)`` is Shardy's ``{"z", ?}p2``. Dims that are not mentioned are not split. A part
    of an axis is written ``"x:(1)2"``. ``unreduced`` names the axes over which each device holds a summand (``sum`` is
    another word for it), ``replicated`` the axes that must not be used to split the array further (``reduced`` in JAX:
    over them, the cotangent of the array is unreduced). Equal specs are the same object.

    >>> P("x", None, ("y", "z:(1)2"), unreduced={"w"})
    P('x', None, ('y', 'z:(1)2'), unreduced={'w'})
    >>> P(("x",)) is P("x"), P(sum="i") is P(unreduced={"i"})
    (True, True)
    """

    __slots__ = ("__weakref__", "partitions", "replicated", "unreduced")

    UNCONSTRAINED: ClassVar[_Unconstrained] = UNCONSTRAINED
    dim: ClassVar[Callable[..., Entry]] = staticmethod(dim_entry)
    partitions: tuple[Entry, ...]
    unreduced: frozenset[str]
    replicated: frozenset[str]

    _interned: ClassVar[dict[tuple[Any, ...], PartitionSpec]] = {}

    def __new__(
        cls,
        *partitions: Any,
        unreduced: str | AxisRef | Iterable[str | AxisRef] = (),
        replicated: str | AxisRef | Iterable[str | AxisRef] = (),
        sum: str | AxisRef | Iterable[str | AxisRef] = (),
        reduced: str | AxisRef | Iterable[str | AxisRef] = (),
    ) -> PartitionSpec:
        key = (
            tuple(_entry(entry) for entry in partitions),
            frozenset(_set("unreduced", unreduced)) | frozenset(_set("sum", sum)),
            frozenset(_set("replicated", replicated)) | frozenset(_set("reduced", reduced)),
        )
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            for name, value in zip(("partitions", "unreduced", "replicated"), key, strict=True):
                object.__setattr__(found, name, value)
            found = cls._interned.setdefault(key, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a PartitionSpec is immutable; use .update(…)")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.partitions, self.unreduced, self.replicated)

    @property
    def reduced(self) -> frozenset[str]:
        """``replicated`` by its name in JAX."""
        return self.replicated

    def update(
        self,
        partitions: Iterable[Any] | None = None,
        unreduced: Iterable[str] | None = None,
        replicated: Iterable[str] | None = None,
    ) -> PartitionSpec:
        """This spec with some of its parts replaced."""
        return PartitionSpec(
            *(self.partitions if partitions is None else partitions),
            unreduced=self.unreduced if unreduced is None else unreduced,
            replicated=self.replicated if replicated is None else replicated,
        )

    @property
    def is_closed(self) -> bool:
        """Whether it leaves nothing to propagation: no dim is open or has a priority."""
        return not any(isinstance(entry, _Unconstrained | DimSpec) for entry in self.partitions)

    def closed(self) -> PartitionSpec:
        """This spec with its axes alone: without open dims and priorities."""
        return self.update([entry_axes(entry) for entry in self.partitions])

    # A spec is a sequence of its entries.

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.partitions)

    def __getitem__(self, index: Any) -> Any:
        return self.partitions[index]

    def __add__(self, other: PartitionSpec | tuple[Any, ...]) -> PartitionSpec:
        if isinstance(other, tuple):
            return self.update((*self.partitions, *other))
        return PartitionSpec(
            *self.partitions,
            *other.partitions,
            unreduced=self.unreduced | other.unreduced,
            replicated=self.replicated | other.replicated,
        )

    def __radd__(self, other: tuple[Any, ...]) -> PartitionSpec:
        return self.update((*other, *self.partitions))

    def index(self, entry: Any) -> int:
        """The first dim with this entry."""
        return self.partitions.index(_entry(entry))

    def count(self, entry: Any) -> int:
        """How many dims have this entry."""
        return self.partitions.count(_entry(entry))

    def __repr__(self) -> str:
        entries = repr(self.partitions)[1:-1]
        sets = [
            f"{key}={{{', '.join(map(repr, sorted(axes)))}}}"
            for key, axes in (("replicated", self.replicated), ("unreduced", self.unreduced))
            if axes
        ]
        return f"P({', '.join([entries.rstrip(',')] * bool(entries) + sets) if sets else entries})"


P = PartitionSpec


def pasted(spec: PartitionSpec) -> str:
    """A spec as code that needs no other name than ``mw``.

    >>> pasted(P("x", P.UNCONSTRAINED))
    "mw.P('x', mw.P.UNCONSTRAINED)"
    """
    entries = repr(spec).replace("P.dim(", "mw.P.dim(").replace("UNCONSTRAINED", "mw.P.UNCONSTRAINED")
    return f"mw.{entries}"


def _rebuild(partitions: Any, unreduced: Any, replicated: Any) -> PartitionSpec:
    return PartitionSpec(*partitions, unreduced=unreduced, replicated=replicated)


def _entry(entry: Any) -> Entry:
    if entry is None or isinstance(entry, str | _Unconstrained | DimSpec):
        return entry
    if isinstance(entry, AxisRef):
        return entry.short()
    if isinstance(entry, tuple | list) and all(isinstance(axis, str | AxisRef) for axis in entry):
        names = _names(entry)
        return names if len(names) > 1 else (names[0] if names else None)
    raise ShardingError(
        f"A partition spec cannot have the entry {entry!r}.",
        where=here(),
        why='an entry is None, an axis "x", a part of one "x:(1)2", a tuple of these, P.UNCONSTRAINED or P.dim(…)',
        fix='mw.P("x", None, ("y", "z"))',
    )


def entry_axes(entry: Entry) -> tuple[str, ...]:
    """The axes of an entry, major to minor."""
    if entry is None or isinstance(entry, _Unconstrained):
        return ()
    if isinstance(entry, DimSpec):
        return entry.axes
    return (entry,) if isinstance(entry, str) else entry


def is_open(entry: Entry) -> bool:
    """Whether more axes may be added to those of an entry."""
    return entry is UNCONSTRAINED or (isinstance(entry, DimSpec) and entry.is_open)


def priority_of(entry: Entry) -> int | None:
    """The priority that an entry has, if any."""
    return entry.priority if isinstance(entry, DimSpec) else None


def _set(key: str, axes: Any) -> tuple[str, ...]:
    if axes == ():
        return ()
    one = isinstance(axes, str | AxisRef)
    given = tuple(axes) if isinstance(axes, Iterable) and not one else (axes,)
    if not all(isinstance(axis, str | AxisRef) for axis in given):
        raise ShardingError(
            f"A partition spec cannot have {key}={axes!r}.",
            where=here(),
            why='it is an axis "x", a part of one "x:(1)2", or a set of these',
            fix=f'mw.P({key}={{"x", "y"}})',
        )
    return _names(given)


def _names(axes: str | AxisRef | Iterable[str | AxisRef]) -> tuple[str, ...]:
    if isinstance(axes, str | AxisRef):
        axes = (axes,)
    return tuple(axis.short() if isinstance(axis, AxisRef) else axis for axis in axes)


def read_axis(text: str, where: Callable[[int], str] | None = None) -> WrittenAxis:
    """An axis as types and specs write it: ``x``, ``x:(1)2``; ``where`` shows a place of the text."""
    match = PART.fullmatch(text)
    if match is None:
        return WrittenAxis(text)
    pre, size = (_signed(match, group, where or partial(pointing, text)) for group in (2, 3))
    return WrittenAxis(match[1], pre, size)


def _signed(match: re.Match[str], group: int, where: Callable[[int], str]) -> int:
    digits = match[group]
    value = read_integer(digits.lstrip("-"))
    if value is None:
        at = match.start(group)
        raise TextError(
            f"This is not a part of an axis: character {at + 1}.",
            where=where(at),
            why="the integer does not fit into 64 bits",
            fix=f"{match[1]}:(1)2",
        )
    return -value if digits.startswith("-") else value

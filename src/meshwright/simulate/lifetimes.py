"""Lifetimes of values, in programs and in device programs: who takes memory at which step, and who gives it back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V", bound=Hashable)
Step = tuple[Collection[V], Collection[V]]  # what a step reads, and what it writes


class Change(NamedTuple, Generic[V]):
    """What a step does to memory.

    ``dying`` are the values that no later step reads, ``over`` the results that are written over one of these, with
    it, ``taken`` the other results; ``freed`` is what is no longer there when the step is done.
    """

    dying: list[V]
    over: dict[V, V]
    taken: list[V]
    freed: list[V]


def last_reads(steps: Sequence[Step[V]], returned: Iterable[V]) -> dict[V, int]:
    """The step that is the last to read each value; what is returned is read after them all."""
    last = {v: number for number, (reads, _) in enumerate(steps) for v in reads}
    last.update(dict.fromkeys(returned, len(steps)))
    return last


def lifetimes(
    steps: Sequence[Step[V]],
    last: Mapping[V, int],
    fixed: Collection[object],
    over: Callable[[int, list[V], list[V]], dict[V, V]],
) -> Iterator[Change[V]]:
    """What each step does to memory; ``over`` says which results of a step are written over which that die there.

    A value is held from the step that writes it to the last that reads it. Those that are ``fixed`` have memory of
    their own, which is neither taken nor given back.

    >>> steps = [(["x"], ["y"]), (["x", "y"], ["z"])]
    >>> for change in lifetimes(steps, last_reads(steps, ["z"]), ["x"], lambda number, dying, new: {}):
    ...     print(change.taken, change.freed)
    ['y'] []
    ['z'] ['y']
    """
    for number, (reads, writes) in enumerate(steps):
        dying = [v for v in reads if last.get(v) == number and v not in fixed]
        new = [v for v in writes if v not in fixed]
        replaced = over(number, dying, new)
        kept = set(replaced.values())
        freed = [*(v for v in dying if v not in kept), *(v for v in new if v not in last)]
        yield Change(dying, replaced, [v for v in new if v not in replaced], freed)

"""Where the axes of a mesh lie on the axes of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

DCN = -1  # the axis of slices, joined by the data-center network


class Span(NamedTuple):
    """A part of a physical axis: ``size`` chips that are ``stride`` apart."""

    axis: int
    size: int
    stride: int = 1


def place(mesh: Mapping[str, int], lengths: Sequence[int], slices: int = 1) -> dict[str, tuple[Span, ...]] | None:
    """Lay mesh axes on physical axes of ``lengths``, or None where they do not fit.

    The first mesh axes take the slices. Of the others as many as possible get whole physical axes; the rest share
    what is left, row-major.

        {x: 16, y: 4} on 4x4x4    x = axes 0 and 1, y = axis 2
        {x: 2, y: 8}  on 4x4      y = axis 1 and half of axis 0, x = the other half

    >>> place({"x": 16, "y": 4}, (4, 4, 4))
    {'x': (Span(axis=0, size=4, stride=1), Span(axis=1, size=4, stride=1)), 'y': (Span(axis=2, size=4, stride=1),)}
    >>> place({"x": 3}, (4, 4)) is None
    True
    """
    placed: dict[str, list[Span]] = {name: [] for name in mesh}
    wanted = dict(mesh)
    left = slices
    for name, size in mesh.items():
        if left == 1:
            break
        part = min(size, left)
        if size % part or left % part:
            return None
        left //= part
        wanted[name] = size // part
        if part > 1:
            placed[name].append(Span(DCN, part, left))
    wanted = {name: size for name, size in wanted.items() if size > 1}
    for deferred in range(max(0, len(wanted) - len(_free(lengths))), len(wanted) + 1):
        for rest in combinations(wanted, deferred):
            whole = _whole(tuple((n, s) for n, s in wanted.items() if n not in rest), _free(lengths), lengths)
            if whole is None:
                continue
            taken = {axis for axes in whole.values() for axis in axes}
            shared = _row_major([(n, wanted[n]) for n in rest], [a for a in _free(lengths) if a not in taken], lengths)
            if shared is None:
                continue
            for name, axes in whole.items():
                placed[name] += [Span(axis, lengths[axis]) for axis in axes]
            for name, spans in shared.items():
                placed[name] += spans
            return {name: tuple(spans) for name, spans in placed.items()}
    return None


def _free(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis, length in enumerate(lengths) if length > 1)


def _whole(
    wanted: Sequence[tuple[str, int]], free: Sequence[int], lengths: Sequence[int]
) -> dict[str, tuple[int, ...]] | None:
    """Give each wanted axis whole physical axes whose lengths multiply to its size; few rather than many."""
    if not wanted:
        return {}
    (name, size), *others = wanted
    for count in range(1, len(free) + 1):
        for axes in combinations(free, count):
            if prod(lengths[axis] for axis in axes) == size:
                rest = _whole(others, [axis for axis in free if axis not in axes], lengths)
                if rest is not None:
                    return {name: axes, **rest}
    return None


def _row_major(wanted: list[tuple[str, int]], free: list[int], lengths: Sequence[int]) -> dict[str, list[Span]] | None:
    """Cut the free axes into the wanted sizes, the last wanted from the last axis."""
    spans: dict[str, list[Span]] = {name: [] for name, _ in wanted}
    left = list(free)
    room, stride = (lengths[left[-1]], 1) if left else (1, 1)
    for name, size in reversed(wanted):
        while size > 1:
            if room == 1:
                left = left[:-1]
                if not left:
                    return None
                room, stride = lengths[left[-1]], 1
            part = min(size, room)
            if size % part or room % part:
                return None
            spans[name].insert(0, Span(left[-1], part, stride))
            size, room, stride = size // part, room // part, stride * part
    return spans


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same chips with adjoining parts of an axis as one.

    >>> merged([Span(0, 2, 4), Span(0, 4, 1)])
    (Span(axis=0, size=8, stride=1),)
    """
    out: list[Span] = []
    for span in sorted((s for s in spans if s.size > 1), key=lambda s: (s.axis, s.stride)):
        if out and out[-1].axis == span.axis and out[-1].stride * out[-1].size == span.stride:
            out[-1] = Span(span.axis, out[-1].size * span.size, out[-1].stride)
        else:
            out.append(span)
    return tuple(out)


def group_size(spans: Iterable[Span]) -> int:
    """How many chips take part in one group."""
    return prod(span.size for span in spans)

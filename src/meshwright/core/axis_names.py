"""Names of mesh axes and of their parts in the text of types and programs."""

from __future__ import annotations

import re
from typing import NamedTuple

# A part of an axis: the axis, the product of the sizes before the part, the part's own size.
PART = re.compile(r"(.+):\((-?\d+)\)(-?\d+)", re.ASCII | re.DOTALL)
# ``U:`` marks an axis over which a value is a partial sum.
_PLAIN = re.compile(r"(?!U:)[A-Za-z_]\w*(:\(\d+\)\d+)?", re.ASCII)


class AxisPart(NamedTuple):
    """A part of a mesh axis: the axis, the product of the sizes before the part, and the part's own size."""

    axis: str
    pre: int
    size: int


def axis_part(name: str) -> AxisPart | None:
    """The part of an axis that a name in a program stands for; None if it is a whole axis, or cannot be a part.

    >>> axis_part("x:(2)4"), axis_part("x")
    (AxisPart(axis='x', pre=2, size=4), None)
    """
    match = PART.fullmatch(name)
    if match is None or any(len(digits) > 18 or int(digits) < 1 for digits in match.groups()[1:]):
        return None
    return AxisPart(match[1], int(match[2]), int(match[3]))


def whole_axis(name: str) -> str:
    """The axis that a name in a program stands for, or a part of which it stands for.

    >>> whole_axis("x:(2)4"), whole_axis("x")
    ('x', 'x')
    """
    part = axis_part(name)
    return name if part is None else part.axis


def axis_text(name: str) -> str:
    """An axis or a part of one as text that is read back: in quotes, unless it is a word.

    >>> print(axis_text("x"), axis_text("x:(1)2"), axis_text("a b"), axis_text("a b:(1)2"))
    x x:(1)2 'a b' 'a b':(1)2
    """
    if _PLAIN.fullmatch(name):
        return name
    part = PART.fullmatch(name)
    return f"{part[1]!r}:({part[2]}){part[3]}" if part else repr(name)

"""Names of mesh axes and of their parts in the text of types and programs."""

from __future__ import annotations

import re

# A part of an axis: the axis, the product of the sizes before the part, the part's own size.
PART = re.compile(r"(.+):\((-?\d+)\)(-?\d+)", re.ASCII | re.DOTALL)
# ``U:`` marks an axis over which a value is a partial sum.
_PLAIN = re.compile(r"(?!U:)[A-Za-z_]\w*(:\(\d+\)\d+)?", re.ASCII)


def axis_text(name: str) -> str:
    """An axis or a part of one as text that is read back: in quotes, unless it is a word.

    >>> print(axis_text("x"), axis_text("x:(1)2"), axis_text("a b"), axis_text("a b:(1)2"))
    x x:(1)2 'a b' 'a b':(1)2
    """
    if _PLAIN.fullmatch(name):
        return name
    part = PART.fullmatch(name)
    return f"{part[1]!r}:({part[2]}){part[3]}" if part else repr(name)

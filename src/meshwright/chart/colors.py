"""A colour for each block, and one to write on it."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence

ColorMap = Callable[[float], Sequence[float]]
GOLDEN = 0.618033988749895  # steps of this size around a circle stay far from each other


def color(number: int, numbers: int, color_map: ColorMap | None = None) -> str:
    """The colour of a block as ``#rrggbb``. A ``color_map`` takes 0 … 1 to red, green and blue in 0 … 1.

    >>> color(0, 4), color(1, 2, lambda place: (place, 0, 0))
    ('#99c2eb', '#800000')
    """
    if color_map is not None:
        parts = [min(max(float(part), 0.0), 1.0) for part in color_map(number / max(numbers, 1))][:3]
    else:
        parts = list(colorsys.hls_to_rgb((0.583 + number * GOLDEN) % 1.0, 0.76, 0.67))
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def ink(background: str) -> str:
    """Black or white, whichever is read more easily on ``background``.

    >>> ink("#99c2eb"), ink("#800000")
    ('#000000', '#ffffff')
    """
    red, green, blue = (int(background[place : place + 2], 16) for place in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"

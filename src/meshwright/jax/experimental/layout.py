"""``jax.experimental.layout``: the order of an array's dims in memory, which is one and the same here."""

from __future__ import annotations

from typing import Any, NamedTuple


class Layout(NamedTuple):
    """The dims of an array from major to minor."""

    major_to_minor: tuple[int, ...] = ()
    tiling: Any = None


class Format(NamedTuple):
    """How an array lies in memory, and on which devices."""

    layout: Any = None
    sharding: Any = None


__all__ = ["Format", "Layout"]

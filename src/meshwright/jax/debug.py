"""``jax.debug`` over ``meshwright.debug``."""

from __future__ import annotations

import logging
import pdb
import sys
from typing import Any

from meshwright.debug import callback, inspect_array_sharding, print, visualize_sharding
from meshwright.debug import visualize_array_sharding as _visualize


def log(fmt: str | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
        skip_format_check: bool = False, **kwargs: Any) -> None:  # fmt: skip
    """As ``print``, to the log of the program.

    >>> log("x is {}", 1.0)
    """
    text = " ".join(["{}"] * len(args)) if fmt is None else fmt
    callback(lambda *xs, **named: logging.getLogger("jax").info(text.format(*xs, **named)), *args, **kwargs)


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """``mw.debug.visualize_array_sharding``."""
    _visualize(arr, **options)


class DebugEffect:
    """That an op shows something."""


class OrderedDebugEffect(DebugEffect):
    """That an op shows something, after what was shown before it."""


def breakpoint(
    *, backend: str | None = None, filter_frames: bool = True, num_frames: int | None = None, ordered: bool = False,
    token: Any = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Stop in Python's debugger at the line that calls this: when it is traced, if it is, with what is known then."""
    debugger = pdb.Pdb()
    debugger.set_trace(sys._getframe(1))


__all__ = [
    "DebugEffect",
    "OrderedDebugEffect",
    "breakpoint",
    "callback",
    "inspect_array_sharding",
    "log",
    "print",
    "visualize_array_sharding",
    "visualize_sharding",
]

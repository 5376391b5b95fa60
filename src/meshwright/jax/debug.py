"""``jax.debug`` over ``meshwright.debug``."""

from __future__ import annotations

import logging
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


__all__ = ["callback", "inspect_array_sharding", "log", "print", "visualize_array_sharding", "visualize_sharding"]

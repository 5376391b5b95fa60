"""What a terminal shows while a command works: a line on standard error, which is gone when it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what is being done; elsewhere, nothing.

    >>> with working("counting"):
    ...     print(1 + 1)
    2
    """
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"{what} …".replace("[", r"\[")):
        yield


def say(line: str) -> None:
    """Show one line in the place of the one before it; an empty one ends it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line[:110]}", end="", file=sys.stderr, flush=True)

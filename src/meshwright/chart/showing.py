"""Where a picture is shown: in a notebook, on a terminal, or as plain text."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any

# What stands in for the signs of a picture where they cannot be written.
ASCII = str.maketrans("┌┬┐├┼┤└┴┘─│…×∨∧", "+++++++++-|.xv^")


class Shown(ABC):
    """Something that can be printed, in colour and without, and that a notebook shows as HTML."""

    def show(self, use_color: bool = True) -> None:
        """Show it where we are: in a notebook, on a terminal in colour, or as plain text."""
        shell = notebook()
        if shell is not None:
            shell.display.display(self)
        elif use_color and sys.stdout.isatty():
            self._print_in_color()
        else:
            print(writable(str(self), getattr(sys.stdout, "encoding", None) or "utf-8"))

    @abstractmethod
    def _print_in_color(self) -> None: ...


def notebook() -> Any:
    """IPython, if this runs in a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return ipython if getattr(shell, "kernel", None) is not None else None


def writable(text: str, encoding: str) -> str:
    """The text in the signs that an encoding has."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text

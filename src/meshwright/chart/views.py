"""Something drawn as text and as HTML: plain where it is printed, in colour on a terminal, a page in a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwright.chart.colors import ink
from meshwright.chart.page import Part, picture_part, write_sheet
from meshwright.chart.showing import Shown


class TextPiece(NamedTuple):
    """A part of a line, on a background where it has one."""

    text: str
    color: str | None = None


Line = Sequence[TextPiece]


class View(Shown):
    """A picture: `str` is its text, `html` an element that stands by itself, and a page has its ``parts``; all are made
    when they are needed.

    >>> view = View("a title", lambda: [[TextPiece("two "), TextPiece("words", "#99c2eb")]], lambda: "<b>two words</b>")
    >>> print(view)
    two words
    """

    def __init__(
        self,
        title: str,
        lines: Callable[[], Sequence[Line]],
        html: Callable[[], str],
        parts: Callable[[], Sequence[Part]] | None = None,
    ) -> None:
        self.title, self._lines, self.html = title, lines, html
        self.parts = parts or (lambda: [picture_part("", html())])

    @cached_property
    def lines(self) -> Sequence[Line]:
        """The text, with its colours."""
        return self._lines()

    def __str__(self) -> str:
        return "\n".join("".join(piece.text for piece in line).rstrip() for line in self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html()

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing but itself: whole, or not at all."""
        write_sheet(path, self.title, self.parts())

    def _print_in_color(self) -> None:
        from rich.console import Console
        from rich.text import Text

        text = Text()
        for line in self.lines:
            for piece in line:
                text.append(piece.text, None if piece.color is None else f"{ink(piece.color)} on {piece.color}")
            text.append("\n")
        Console(highlight=False, soft_wrap=True).print(text, end="")


def terminal_width() -> int:
    """The characters of a line: those of the terminal, or 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns

"""Text with parts of it in colours: the lines of a program, each with what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from meshwright.chart.colors import color, ink
from meshwright.chart.views import Line, TextPiece, View

_BAR = "▌"


class Marked(NamedTuple):
    """A line of text: the key it belongs to (None: none), and parts of it that have keys of their own."""

    text: str
    key: str | None = None
    parts: tuple[tuple[int, int, str], ...] = ()  # from, to, key; in order


def listing_view(title: str, lines: Sequence[Marked], keys: Sequence[str], names: Sequence[str]) -> View:
    """Lines to look at, a colour for each key, and what the keys are called below them."""
    colors = {key: color(n, len(keys)) for n, key in enumerate(keys)}
    legend = [(name, colors[key]) for key, name in zip(keys, names, strict=True)]
    return View(title, lambda: _text(lines, colors, legend), lambda: _html(lines, colors, legend))


def _pieces(line: Marked, colors: dict[str, str]) -> list[TextPiece]:
    pieces, at = [TextPiece(_BAR if line.key is not None else " ", colors.get(line.key or "")), TextPiece(" ")], 0
    for start, stop, key in line.parts:
        pieces += [TextPiece(line.text[at:start]), TextPiece(line.text[start:stop], colors[key])]
        at = stop
    return [*pieces, TextPiece(line.text[at:])]


def _text(lines: Sequence[Marked], colors: dict[str, str], legend: Sequence[tuple[str, str]]) -> list[Line]:
    found: list[Line] = [_pieces(line, colors) for line in lines]
    return [*found, [TextPiece("")], *([TextPiece(f" {name} ", back)] for name, back in legend)]


def _html(lines: Sequence[Marked], colors: dict[str, str], legend: Sequence[tuple[str, str]]) -> str:
    def span(piece: TextPiece) -> str:
        if piece.color is None:
            return escape(piece.text)
        return f'<span style="background:{piece.color};color:{ink(piece.color)}">{escape(piece.text)}</span>'

    body = "\n".join("".join(map(span, _pieces(line, colors))) for line in lines)
    keys = "".join(
        f'<span style="background:{back};color:{ink(back)};padding:1px 6px;margin:0 6px 4px 0;display:inline-block">'
        f"{escape(name)}</span>"
        for name, back in legend
    )
    return (
        '<figure class="meshwright-program" style="margin:0"><pre style="font:13px/1.5 ui-monospace,monospace;'
        f'overflow-x:auto">{body}</pre><figcaption>{keys}</figcaption></figure>'
    )

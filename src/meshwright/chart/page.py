"""Pages that need nothing but themselves: the one bundle of `frontend/`, and the data that it shows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from meshwright.core.files import write_whole

Part = Mapping[str, Any]
Figure = tuple[str, str, str]  # what it is, the figure, and more about it


def page(shown: Sequence[Mapping[str, Any]]) -> str:
    """The page of a sheet, of a report of a compiled program, or of two to compare."""
    template = resources.files("meshwright.chart").joinpath("report.html").read_text(encoding="utf-8")
    data = json.dumps(list(shown), ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # no tag in a string ends the script that it is in
    title = " and ".join(str(one["title"]) for one in shown)
    return template.replace("TITLE", escape(title), 1).replace(">DATA<", f">{data}<", 1)


def write_sheet(
    path: str | os.PathLike[str], title: str, parts: Sequence[Part], figures: Sequence[Figure] = ()
) -> None:
    """Write a page of charts, tables, texts and pictures, whole or not at all; `frontend/src/data.ts` says what there
    is in each."""
    write_whole(path, page([{"title": title, "figures": list(figures), "parts": list(parts)}]))


Cell = str | float | tuple[str, float]  # a text, a number, or a text with the number that it is sorted by


def table_part(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Part:
    """A table that sorts and filters."""
    return {"part": "table", "title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def text_part(title: str, text: str) -> Part:
    """Text as it is."""
    return {"part": "text", "title": title, "text": text}


def picture_part(title: str, html: str) -> Part:
    """An element that stands by itself."""
    return {"part": "picture", "title": title, "html": html}

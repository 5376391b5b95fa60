"""Drawings as HTML that stands by itself: styles are inline, so that it can be pasted into a notebook or a page."""

from __future__ import annotations

from html import escape

from meshwright.chart.colors import ColorMap, color, ink
from meshwright.report.drawing import Drawing, Grid, LabelledBox, Table

_TABLE = "border-collapse:collapse;font:13px/1.4 ui-monospace,monospace;margin:2px 12px 8px 0"
_MARK = "border:none;font-weight:normal;opacity:.7;padding:0 6px;text-align:center"
_CHARACTER_PX, _LINE_PX = 8, 18


def fragment(drawing: Drawing, color_map: ColorMap | None = None) -> str:
    """The drawing as one element."""
    rows = "".join(
        f'<div style="display:flex;flex-wrap:wrap">{"".join(_item(item, drawing, color_map) for item in row)}</div>'
        for row in drawing.rows
    )
    captions = "".join(f"<figcaption>{escape(caption)}</figcaption>" for caption in drawing.captions)
    return f'<figure class="meshwright-picture" style="margin:0">{rows}{captions}</figure>'


def _item(item: Grid | Table, drawing: Drawing, color_map: ColorMap | None) -> str:
    return _table(item) if isinstance(item, Table) else _grid(item, drawing, color_map)


def _grid(grid: Grid, drawing: Drawing, color_map: ColorMap | None) -> str:
    title = f"<div>{escape(grid.title)}</div>" if grid.title else ""
    lines = []
    if grid.column_marks:
        corner = ["<td></td>"] if grid.row_marks else []
        marks = [f'<th scope="col" style="{_MARK}">{escape(mark)}</th>' for mark in grid.column_marks]
        lines.append("".join([*corner, *marks]))
    for i, row in enumerate(grid.cells):
        mark = [f'<th scope="row" style="{_MARK}">{escape(grid.row_marks[i])}</th>'] if grid.row_marks else []
        cells = [_cell(cell, grid.widths[j], grid.heights[i], drawing, color_map) for j, cell in enumerate(row)]
        lines.append("".join([*mark, *cells]))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div>{title}<table style="{_TABLE}">{body}</table></div>'


def _cell(cell: LabelledBox, width: int, height: int, drawing: Drawing, color_map: ColorMap | None) -> str:
    style = f"border:1px solid #555;padding:2px 6px;text-align:center;min-width:{width * _CHARACTER_PX}px"
    style += f";height:{max(height, 1) * _LINE_PX}px"
    if cell.number is not None:
        back = color(cell.number, drawing.numbers, color_map)
        style += f";background:{back};color:{ink(back)}"
    return f'<td style="{style}">{escape(cell.label)}</td>'


def _table(table: Table) -> str:
    style = "border:none;border-bottom:1px solid #999;padding:1px 12px 1px 0;text-align:left"
    heads = "".join(f'<th scope="col" style="{style}">{escape(head)}</th>' for head in table.heads)
    lines = []
    for line in table.lines:
        span = f' colspan="{len(table.heads)}"' if len(line) < len(table.heads) else ""
        lines.append("".join(f'<td{span} style="{style}">{escape(entry)}</td>' for entry in line))
    body = "".join(f"<tr>{line}</tr>" for line in (heads, *lines))
    return f'<div><div>{escape(table.title)}</div><table style="{_TABLE}">{body}</table></div>'

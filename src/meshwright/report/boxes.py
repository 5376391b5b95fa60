"""Drawings as text: boxes of lines, with the number of the block at each place so that it can be coloured."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.report.drawing import Drawing, Grid, LabelledBox, Table

MOST_CELLS, MOST_ROWS, MOST_GRIDS = 256, 31, 16

Segment = tuple[str, int | None]
Line = list[Segment]


def text_lines(drawing: Drawing, max_width: int, whatever: bool = False) -> list[Line] | None:
    """The lines of a picture; None if it has no room, unless it is wanted ``whatever`` its size."""
    grids = [item for row in drawing.rows for item in row if isinstance(item, Grid)]
    many = drawing.cells > MOST_CELLS or len(grids) > MOST_GRIDS or any(len(g.cells) > MOST_ROWS for g in grids)
    if many and not whatever:
        return None
    lines: list[Line] = []
    for row in drawing.rows:
        drawn = []
        for item in row:
            found = _table(item) if isinstance(item, Table) else _grid(item, None if whatever else max_width)
            if found is None:
                return None
            drawn.append(found)
        if lines:
            lines.append([])
        lines += _side_by_side(drawn, max_width)
    return lines + [[(caption, None)] for caption in drawing.captions]


def plain(lines: list[Line]) -> str:
    """The text alone."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _width(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _side_by_side(drawn: list[list[Line]], max_width: int) -> list[Line]:
    """Pictures next to each other, as many as have room, then the next ones below."""
    rows: list[list[Line]] = []
    for lines in drawn:
        width = max(map(_width, lines), default=0)
        lines = [[*line, (" " * (width - _width(line)), None)] for line in lines]
        last = rows[-1] if rows else []
        if last and _width(last[0]) + 2 + width <= max_width:
            before = _width(last[0])
            height = max(len(last), len(lines))
            left = last + [[(" " * before, None)] for _ in range(height - len(last))]
            right = lines + [[(" " * width, None)] for _ in range(height - len(lines))]
            rows[-1] = [[*one, ("  ", None), *other] for one, other in zip(left, right, strict=True)]
        else:
            rows.append(lines)
    result: list[Line] = []
    for row in rows:
        result += [[], *row] if result else row
    return result


def _grid(grid: Grid, max_width: int | None) -> list[Line] | None:
    title: list[Line] = [[(grid.title, None)]] if grid.title else []
    if not grid.cells:
        return title
    margin = max(map(len, grid.row_marks), default=-1) + 1
    columns = _columns(grid, None if max_width is None else max_width - margin)
    if columns is None:
        return None
    lines = title
    if grid.column_marks:
        marks = (mark.center(width) for mark, width in zip(grid.column_marks, columns, strict=True))
        lines.append([(" " * (margin + 1) + " ".join(marks), None)])

    def rule(left: str, middle: str, right: str) -> Line:
        return [(" " * margin + left + middle.join("─" * width for width in columns) + right, None)]

    lines.append(rule("┌", "┬", "┐"))
    for i, row in enumerate(grid.cells):
        if i:
            lines.append(rule("├", "┼", "┤"))
        mark = grid.row_marks[i] if grid.row_marks else ""
        lines += _row(row, grid.widths, columns, grid.heights[i], mark, margin)
    lines.append(rule("└", "┴", "┘"))
    return lines


def _row(
    row: Sequence[LabelledBox], wanted: Sequence[int], columns: Sequence[int], height: int, mark: str, margin: int
) -> list[Line]:
    """The lines of one row of boxes; a height counts the rule above it."""
    above = max((height - 2) // 2, 0)
    lines: list[Line] = []
    for number in range(max(height - 1, 1)):
        line: Line = [((mark if number == above else "").rjust(margin - 1) + " " if margin else "", None)]
        for cell, want, width in zip(row, wanted, columns, strict=True):
            text = _placed(cell.label, want - 2, width) if number == above else " " * width
            line += [("│", None), (text, cell.number)]
        lines.append([*line, ("│", None)])
    return lines


def _placed(label: str, wanted: int, width: int) -> str:
    """The label in the middle of what its own box asked for, and that in the middle of the column."""
    wanted = min(max(wanted, len(label)), width)
    left = (wanted - len(label)) // 2 + (width - wanted) // 2
    return " " * left + label + " " * (width - left - len(label))


def _columns(grid: Grid, room: int | None) -> list[int] | None:
    """The width of each column: as wanted, the widest ones narrower where there is no room; None if nothing helps."""
    needed = [max(len(row[j].label) for row in grid.cells) for j in range(len(grid.widths))]
    if grid.column_marks:
        needed = [max(need, len(mark)) for need, mark in zip(needed, grid.column_marks, strict=True)]
    wanted = [max(need, width - 2) for need, width in zip(needed, grid.widths, strict=True)]
    if room is None:
        return needed
    room -= len(needed) + 1
    if sum(wanted) <= room:
        return wanted
    if sum(needed) > room:
        return None
    for widest in range(max(wanted), 0, -1):
        columns = [max(need, min(want, widest)) for need, want in zip(needed, wanted, strict=True)]
        if sum(columns) <= room:
            return columns
    return needed


def _table(table: Table) -> list[Line]:
    full = [line for line in (table.heads, *table.lines) if len(line) == len(table.heads)]
    widths = [max(len(line[j]) for line in full) for j in range(len(table.heads))]

    def text(line: tuple[str, ...]) -> Line:
        return [("  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=False)), None)]

    return [[(table.title, None)], *(text(line) for line in (table.heads, *table.lines))]

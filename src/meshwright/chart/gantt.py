"""Gantt charts: who is busy when, as text, as a page, as a trace for Perfetto.

A chart has rows of spans. It knows nothing of what the rows are: parts of a chip, devices of a machine, or stages of a
schedule. What has a chart is `Charted`.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.colors import color, ink
from meshwright.chart.page import Figure, Part, write_sheet
from meshwright.chart.views import Line, TextPiece, View, terminal_width
from meshwright.core.files import write_whole

IDLE = "·"
MOST_SPANS = 20_000  # of a page; beyond, neighbours that are shorter than can be seen are drawn as one
MOST_LANES = 64
MOST_ROWS = 512  # of a page
NARROWEST = 10
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class GanttBar(NamedTuple):
    """Something that takes time: ``kind`` decides its colour, ``nbytes`` is what it makes or moves.

    ``share`` is the part of the time in which its row is busy with it, for many short things drawn as one. Where there
    are ``facts``, pages and traces say these in place of its bytes.
    """

    start: float
    seconds: float
    name: str
    kind: str
    nbytes: int = 0
    share: float = 1.0
    facts: Mapping[str, Any] = {}

    @property
    def end(self) -> float:
        return self.start + self.seconds


class Lane(NamedTuple):
    """A row: spans of one unit of one owner (or of several that do the same), in order.

    Without an ``owner`` it is a row of what the chart's title says.
    """

    owner: str
    unit: str
    spans: tuple[GanttBar, ...]

    @property
    def label(self) -> str:
        return f"{self.owner} {self.unit}".strip()

    def busy(self) -> float:
        """How long the row is busy; what overlaps counts once."""
        return sum((end - start) * span.share for span, start, end in self.one_at_a_time())

    def one_at_a_time(self) -> Iterator[tuple[GanttBar, float, float]]:
        """The spans, each from where those before it have ended; what is busy for a share leaves room for others."""
        at = 0.0
        for span in self.spans:
            if span.share < 1:
                yield span, span.start, span.end
            elif span.end > at:
                yield span, max(at, span.start), span.end
                at = span.end


class Chart(NamedTuple):
    """Rows, and how long all of it takes: in seconds, or in steps of a plan.

    Rows that ``compare`` are things of which each ends by itself: beside a row stands when, and there is no idle time.
    """

    title: str
    seconds: float
    lanes: tuple[Lane, ...]
    in_seconds: bool = True
    compare: bool = False

    def time_text(self, time: float) -> str:
        return time_text(time) if self.in_seconds else f"{time:g}"

    def beside(self, lane: Lane) -> str:
        """What stands beside a row: the share of the time in which it is busy, or when it ends."""
        if self.compare:
            return self.time_text(max((span.end for span in lane.spans), default=0.0))
        return f"{lane.busy() / self.seconds if self.seconds else 0.0:.0%}"

    def kinds(self) -> dict[str, float]:
        """How long each kind of span takes in all, the longest first."""
        found: dict[str, float] = {}
        for lane in self.lanes:
            for span in lane.spans:
                found[span.kind] = found.get(span.kind, 0.0) + span.seconds * span.share
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def view(self, width: int | None = None) -> View:
        """The chart to look at; as text ``width`` characters wide, or as wide as the terminal."""
        return View(self.title, lambda: text_lines(self, width), lambda: fragment(self), lambda: [timeline_part(self)])


class Charted(ABC):
    """What has a chart: it is drawn as text, as a page, and as a trace."""

    @abstractmethod
    def chart(self) -> Chart:
        """What is busy when, as rows."""

    def gantt(self, width: int | None = None) -> str:
        """The chart as text, ``width`` characters wide, or as wide as the terminal."""
        return str(self.chart().view(width))

    def _repr_html_(self) -> str:
        return self.chart().view().html()

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the chart as a page of its own: what a box is, when it runs and its facts show on hovering."""
        chart = self.chart()
        write_sheet(path, chart.title, [timeline_part(chart, "Timeline"), *self.page_parts()], self.page_figures())

    def page_figures(self) -> Sequence[Figure]:
        """What its page says at a first glance."""
        return ()

    def page_parts(self) -> Sequence[Part]:
        """What its page shows below the chart."""
        return ()

    def perfetto(self) -> dict[str, Any]:
        """The chart as trace events, in microseconds: a process for each device, a track for each of its parts."""
        return trace(self.chart())

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the chart for https://ui.perfetto.dev or chrome://tracing."""
        write_whole(path, json.dumps(self.perfetto()))


# Text


def text_lines(chart: Chart, width: int | None = None) -> list[Line]:
    """Rows of letters, one for each kind of span: the kind that takes most of the time a letter stands for.

    >>> lanes = (Lane("device 1", "compute", (GanttBar(0, 3, "y", "MatMul"), GanttBar(3, 1, "z", "tanh"))),)
    >>> for line in text_lines(Chart("", 8.0, lanes), 40):
    ...     print("".join(piece.text for piece in line))
    device 1 compute |MMMMMMtt········|  50%
                      0             8 s
    M MatMul, t tanh, · idle
    """
    kinds = list(chart.kinds())
    letters, colors = _letters(kinds), {kind: color(n, len(kinds)) for n, kind in enumerate(kinds)}
    shown = chart.lanes[:MOST_LANES]
    owners, units = (max((len(getattr(lane, of)) for lane in shown), default=0) for of in ("owner", "unit"))
    wide = terminal_width() if width is None else width
    label = owners + units + (1 if owners and units else 0)
    room = max(NARROWEST, wide - label - (12 if chart.compare else 8))
    nothing = " " if chart.compare else IDLE
    lines: list[Line] = []
    before = ""
    for lane in shown:
        owner = lane.owner if lane.owner != before else ""
        before = lane.owner
        cells = _cells(lane, chart.seconds, room)
        columns = ([f"{owner:<{owners}}"] if owners else []) + ([lane.unit] if units else [])
        line = [TextPiece(" ".join(columns).ljust(label) + " |")]
        for kind in cells:
            line.append(TextPiece(nothing) if kind is None else TextPiece(letters[kind], colors[kind]))
        lines.append([*line, TextPiece(f"| {chart.beside(lane):>4}")])
    end = chart.time_text(chart.seconds)
    lines.append([TextPiece(" " * (label + 2) + "0" + end.rjust(room - 1))])
    if len(chart.lanes) > len(shown):
        lines.append([TextPiece(f"and {len(chart.lanes) - len(shown)} more rows")])
    return lines + _legend(letters, colors, wide, () if chart.compare else ("idle",))


def _letters(kinds: Sequence[str]) -> dict[str, str]:
    """A letter for each kind: one of its own where it is free."""
    found: dict[str, str] = {}
    for kind in kinds:
        free = [letter for letter in (*kind, *kind.upper(), *_LETTERS) if letter.isalnum()]
        found[kind] = next((letter for letter in free if letter not in found.values()), "?")
    return found


def _cells(lane: Lane, seconds: float, count: int) -> list[str | None]:
    """For each part of the time, the kind that takes most of it; None where more than half of it is idle.

    Of a span that is busy for a share of its time, as many are busy as that share says, evenly spread.

    >>> "".join(kind or "." for kind in _cells(Lane("", "", (GanttBar(0, 9, "", "s", share=1 / 3),)), 12, 12))
    '.s..s..s....'
    """
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    spread = [False] * count
    if not seconds:
        return [None] * count
    scale = count / seconds
    for span, start, end in lane.one_at_a_time():
        low, high = start * scale, min(end * scale, count)
        for n in range(int(low), min(count, int(high) + 1)):
            share = (min(high, n + 1) - max(low, n)) * span.share
            if share > 0:
                shares[n][span.kind] = shares[n].get(span.kind, 0.0) + share
                spread[n] = spread[n] or span.share < 1
    found: list[str | None] = []
    left = 0.0  # busy time of a spread span that no cell has shown yet
    for cell, is_spread in zip(shares, spread, strict=True):
        busy = sum(cell.values()) + (left if is_spread else 0.0)
        found.append(max(cell, key=lambda kind: cell[kind]) if cell and busy >= 0.5 else None)
        left = busy - (found[-1] is not None) if is_spread else 0.0
    return found


def _legend(letters: dict[str, str], colors: dict[str, str], width: int, idle: Sequence[str]) -> list[Line]:
    """The kinds with their letters, as many on a line as have room."""
    entries = [[TextPiece(letter, colors[kind]), TextPiece(f" {kind}")] for kind, letter in letters.items()]
    entries += [[TextPiece(f"{IDLE} {name}")] for name in idle]
    lines: list[list[TextPiece]] = [[]]
    used = 0
    for n, entry in enumerate(entries):
        comma = [TextPiece(", ")] if n < len(entries) - 1 else []
        length = sum(len(piece.text) for piece in entry) + 2
        if used and used + length > width:
            lines.append([])
            used = 0
        lines[-1] += [*entry, *comma]
        used += length
    return list(lines)


# HTML

_ROW, _GAP, _WIDTH = 22, 4, 1000


def fragment(chart: Chart) -> str:
    """The chart as one element: rows of boxes that say what they are where the pointer rests, and a zoom."""
    kinds = list(chart.kinds())
    colors = {kind: color(n, len(kinds)) for n, kind in enumerate(kinds)}
    shortest = _shortest(chart)
    height = len(chart.lanes) * (_ROW + _GAP) + _GAP
    labels, boxes = [], []
    for row, lane in enumerate(chart.lanes):
        top = _GAP + row * (_ROW + _GAP)
        label = escape(f"{lane.label} {chart.beside(lane)}")
        labels.append(f'<div style="height:{_ROW + _GAP}px;white-space:nowrap">{label}</div>')
        boxes.append(f'<rect x="0" y="{top}" width="{_WIDTH}" height="{_ROW}" fill="#f1f1f1"/>')
        boxes += [_box(span, lane, chart, top, colors) for span in _merged(lane.spans, shortest)]
    keys = "".join(
        f'<span style="background:{back};color:{ink(back)};padding:1px 6px;margin:0 6px 4px 0;'
        f'display:inline-block">{escape(kind)} {chart.time_text(taken)}</span>'
        for (kind, taken), back in zip(chart.kinds().items(), colors.values(), strict=True)
    )
    zoom = (
        '<label>zoom <input type="range" min="1" max="40" value="1" '
        "oninput=\"this.closest('figure').querySelector('svg').style.width=this.value*100+'%'\"></label>"
    )
    return (
        '<figure class="meshwright-gantt" style="margin:0;font:13px/1.4 ui-monospace,monospace">'
        f'<div>{zoom}</div><div style="display:flex;align-items:flex-start">'
        f'<div style="padding:{_GAP}px 8px 0 0">{"".join(labels)}</div>'
        f'<div style="overflow-x:auto;flex:1"><svg viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" '
        f'style="width:100%;height:{height}px;display:block" xmlns="http://www.w3.org/2000/svg">{"".join(boxes)}</svg>'
        '<div style="display:flex;justify-content:space-between"><span>0</span>'
        f"<span>{chart.time_text(chart.seconds)}</span></div></div></div><figcaption>{keys}</figcaption></figure>"
    )


def _box(span: GanttBar, lane: Lane, chart: Chart, top: int, colors: dict[str, str]) -> str:
    left, width = (_WIDTH * t / chart.seconds if chart.seconds else 0.0 for t in (span.start, span.seconds))
    about = [f"{span.name}: {span.kind}" if span.name != span.kind else span.name]
    about.append(", ".join(part for part in (lane.owner, lane.unit) if part))
    start, end, taken = map(chart.time_text, (span.start, span.end, span.seconds))
    about.append(f"{start} to {end} ({taken})")
    about += [f"busy for {span.share:.0%} of it"] if span.share < 1 else []
    about += _facts(span)
    faint = f' fill-opacity="{span.share:.3g}"' if span.share < 1 else ""
    return (
        f'<rect x="{left:.4f}" y="{top}" width="{width:.4f}" height="{_ROW}" fill="{colors[span.kind]}"{faint}>'
        f"<title>{escape(chr(10).join(about))}</title></rect>"
    )


def _facts(span: GanttBar) -> list[str]:
    facts = [f"{name}: {_fact_text(name, fact)}" for name, fact in span.facts.items() if fact]
    return facts or ([size_text(span.nbytes)] if span.nbytes else [])


def _shortest(chart: Chart) -> float:
    """How long a box has to be to be drawn alone: of many, so that it can be seen."""
    return chart.seconds / 4000 if sum(len(lane.spans) for lane in chart.lanes) > MOST_SPANS else 0.0


def _fact_text(name: str, fact: Any) -> str:
    if isinstance(fact, str):
        return fact
    return size_text(fact) if "bytes" in name else f"{fact:.3g}"


def _merged(spans: Sequence[GanttBar], shortest: float) -> list[GanttBar]:
    """Spans, of which neighbours too short to be seen are one."""
    found: list[GanttBar] = []
    counts: list[int] = []
    for span in spans:
        last = found[-1] if found else None
        if last is not None and max(span.end - last.start, 0.0) < shortest:
            longer = max((last, span), key=lambda s: s.seconds)
            found[-1] = GanttBar(last.start, span.end - last.start, "", longer.kind, last.nbytes + span.nbytes)
            counts[-1] += 1
        else:
            found.append(span)
            counts.append(1)
    return [span if n == 1 else span._replace(name=f"{n} ops") for span, n in zip(found, counts, strict=True)]


# The page


def timeline_part(chart: Chart, title: str = "") -> Part:
    """The chart as a page draws it: boxes that are named and coloured by number."""
    kinds, seconds = list(chart.kinds()), chart.kinds()
    numbers = {kind: n for n, kind in enumerate(kinds)}
    names: dict[str, int] = {}
    texts: dict[str, int] = {}

    def box(bar: GanttBar) -> list[Any]:
        text = "\n".join(_facts(bar))
        name = names.setdefault(bar.name or bar.kind, len(names))
        about = texts.setdefault(text, len(texts)) if text else -1
        return [bar.start, bar.seconds, name, about, numbers[bar.kind], *([bar.share] if bar.share < 1 else [])]

    shortest = _shortest(chart)
    lanes = [
        {"name": lane.label, "beside": chart.beside(lane), "bars": [box(bar) for bar in _merged(lane.spans, shortest)]}
        for lane in chart.lanes[:MOST_ROWS]
    ]
    more = len(chart.lanes) - len(lanes)
    return {
        "part": "timeline",
        "title": title or chart.title + (f" (and {more} more rows)" if more else ""),
        "seconds": chart.seconds,
        "inSeconds": chart.in_seconds,
        "lanes": lanes,
        "names": list(names),
        "texts": list(texts),
        "kinds": [
            {"name": kind, "color": back, "ink": ink(back), "seconds": seconds[kind]}
            for kind, back in ((kind, color(n, len(kinds))) for kind, n in numbers.items())
        ],
    }


# Perfetto


def trace(chart: Chart) -> dict[str, Any]:
    """The chart as trace events, in microseconds: a process for each owner, a track for each of its units."""
    events: list[dict[str, Any]] = []
    processes: dict[str, int] = {}
    for track, lane in enumerate(chart.lanes):
        if lane.owner not in processes:
            processes[lane.owner] = len(processes) + 1
            named = {"args": {"name": lane.owner or chart.title}}
            events.append({"ph": "M", "pid": processes[lane.owner], "name": "process_name", **named})
        at = {"pid": processes[lane.owner], "tid": track + 1}
        events.append({"ph": "M", **at, "name": "thread_name", "args": {"name": lane.unit}})
        for span in lane.spans:
            times = {"ts": span.start * 1e6, "dur": span.seconds * 1e6}
            args = {"op": span.kind, **(span.facts or {"bytes": span.nbytes})}
            args |= {"share busy": span.share} if span.share < 1 else {}
            events.append({"ph": "X", **at, "name": span.name, "cat": span.kind, **times, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ns"}

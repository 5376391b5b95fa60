"""What changed in the communication of a program: collectives that appeared, went or grew; bytes, seconds, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.value_names import general, of_any_index

SCHEMA = "meshwright.diff/1"
MOST_ROWS = 10  # of each kind in a text that nobody asked for more of
COMBINED = "(combined)"  # the place of what values of several lines were combined into
_TOTALS = {
    "seconds": ("a step", time_text),
    "exposed_seconds": ("exposed communication", time_text),
    "peak_bytes_per_device": ("memory at the peak", size_text),
    "bytes_received_per_device": ("received per device", size_text),
}


class Amount(NamedTuple):
    """What collectives of a kind are in all: how many runs, bytes that a device receives, seconds."""

    times: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: Any) -> Amount:
        return Amount(self.times + other.times, self.nbytes + other.nbytes, self.seconds + other.seconds)

    def text(self) -> str:
        return f"{self.times} ×, {size_text(self.nbytes)}, {time_text(self.seconds)}"


class ChangedRow(NamedTuple):
    """Collectives of one kind over the same axes, that come from one place: before and after, one of them absent if
    they appeared or went. ``record`` is one of them, as ``explain`` has it."""

    record: Mapping[str, Any]
    before: Amount
    after: Amount

    @property
    def is_new(self) -> bool:
        return not self.before.times

    @property
    def is_gone(self) -> bool:
        return not self.after.times

    @property
    def saved_seconds(self) -> float:
        return self.before.seconds - self.after.seconds

    def text(self) -> list[str]:
        """Two lines: the collectives with their amounts and place, and the reason of one of them."""
        one = self.record
        head = f"{one['kind']} over {', '.join(one['axes'])}"
        if self.is_new or self.is_gone:
            amounts = (self.after if self.is_new else self.before).text()
        else:
            amounts = f"{self.before.text()} → {self.after.text()}"
        where = " ".join([one["line"] or "", *(["backward"] if one["direction"] == "backward" else [])])
        return [f"{head}: {amounts}  {where}".rstrip(), f"    {self.value}: {one['why']}"]

    @property
    def value(self) -> str:
        """What is moved; of several, by a name for all: ``params[*]['w']``."""
        value: str = self.record["value"]
        if max(self.before.times, self.after.times) == 1 or self.record.get("values", 1) > 1:
            return value
        name, space, kind = value.rpartition(" ")
        return of_any_index(name) + space + kind

    def to_json(self) -> dict[str, Any]:
        kept = ("kind", "axes", "line", "scopes", "direction", "value", "why")
        return {
            **{name: self.record[name] for name in kept},
            "before": self.before._asdict(),
            "after": self.after._asdict(),
        }


@dataclass(frozen=True)
class CommsDiff:
    """The difference of two explanations, both as ``meshwright explain --json`` prints them.

    Collectives are taken for the same if they are of one kind, over the same axes, in the same pass, and come from the
    same line: that is, from the same text in a function of the same name, wherever in the file that now is. Those that
    values of several lines were combined into are taken together.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @cached_property
    def rows(self) -> list[ChangedRow]:
        """What differs in the number of collectives or in bytes, from the largest change of time on."""
        was, now = (_sums(side["collectives"], _place) for side in (self.before, self.after))
        records = {_place(one): one for side in (self.before, self.after) for one in side["collectives"]}
        found = [ChangedRow(records[key], was.get(key, Amount()), now.get(key, Amount())) for key in records]
        changed = [row for row in found if row.before[:2] != row.after[:2]]
        return sorted(changed, key=lambda row: -abs(row.saved_seconds))

    @property
    def appeared(self) -> list[ChangedRow]:
        return [row for row in self.rows if row.is_new]

    @property
    def went(self) -> list[ChangedRow]:
        return [row for row in self.rows if row.is_gone]

    @property
    def changed(self) -> list[ChangedRow]:
        """Those of which there are more or fewer, or that move more or less."""
        return [row for row in self.rows if not row.is_new and not row.is_gone]

    def __bool__(self) -> bool:
        """Whether other collectives run, or other bytes are sent."""
        return bool(self.rows)

    def by(self, name: str) -> list[tuple[str, Amount, Amount]]:
        """Collectives before and after by ``line`` or by ``scope`` (the innermost), where they differ.

        A line is the same if its text and function are, and is called by its place after the change, where it has one.
        What values of several lines were combined into stands apart: it may begin with another of them now.
        """
        was, now = (_sums(side["collectives"], lambda one: _label(one, name)) for side in (self.before, self.after))
        places = {_label(one, name): one["line"] for side in (self.before, self.after) for one in side["collectives"]}
        found = [
            (places[key] or "" if isinstance(key, tuple) else key, was.get(key, Amount()), now.get(key, Amount()))
            for key in {**was, **now}
        ]
        found = [row for row in found if row[1][:2] != row[2][:2]]
        return sorted(found, key=lambda row: -abs(row[1].seconds - row[2].seconds))

    def __str__(self) -> str:
        return self.text()

    def text(self, top: int = MOST_ROWS) -> str:
        """The totals, and at most ``top`` collectives that appeared, went and changed each, the largest first."""
        lines = []
        if self.before["machine"] != self.after["machine"]:
            lines.append(f"on {self.before['machine']} before, on {self.after['machine']} after")
        for name, (title, text) in _TOTALS.items():
            was, now = self.before[name], self.after[name]
            if was is not None and now is not None:
                change = f"{text(was)} → {text(now)} ({_percent(was, now)})"
                lines.append(f"{title}: {change if was != now else f'{text(now)}, as before'}")
        if not self.rows:
            return "\n".join([*lines, "the same collectives"])
        for title, rows in (("appeared:", self.appeared), ("went:", self.went), ("changed:", self.changed)):
            if rows:
                lines += [title, *(f"    {line}" for row in rows[:top] for line in row.text())]
            if rows[top:]:
                was = sum((row.before for row in rows[top:]), Amount())
                now = sum((row.after for row in rows[top:]), Amount())
                both = f"{was.text()} → {now.text()}" if was.times and now.times else (was if was.times else now).text()
                lines.append(f"    and {len(rows) - top} more: {both}")
        for name in ("line", "scope"):
            table = self.by(name)
            if len(table) > 1:
                lines.append(f"by {name}:")
                lines += [f"    {key or '(none)'}: {was.text()} → {now.text()}" for key, was, now in table[:top]]
                if table[top:]:
                    lines.append(f"    and {len(table) - top} more")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The difference as ``meshwright diff --json`` prints it."""
        totals = ("machine", *_TOTALS)
        return {
            "schema": SCHEMA,
            "before": {name: self.before[name] for name in totals},
            "after": {name: self.after[name] for name in totals},
            "appeared": [row.to_json() for row in self.appeared],
            "went": [row.to_json() for row in self.went],
            "changed": [row.to_json() for row in self.changed],
            **{
                f"by_{name}": [
                    {name: key, "before": was._asdict(), "after": now._asdict()} for key, was, now in self.by(name)
                ]
                for name in ("line", "scope")
            },
        }


def _sums(records: Sequence[Mapping[str, Any]], key_of: Callable[[Any], Any]) -> dict[Any, Amount]:
    found: dict[Any, Amount] = {}
    for one in records:
        key = key_of(one)
        found[key] = found.get(key, Amount()) + _amount(one)
    return found


def _amount(one: Mapping[str, Any]) -> Amount:
    return Amount(one["times"], one["bytes"] * one["times"], one["seconds"] * one["times"])


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key by which collectives before and after a change are matched: kind, axes, pass, line, scopes, value."""
    if one.get("values", 1) > 1:
        return one["kind"], tuple(one["axes"]), one["direction"], "combined"
    scopes = tuple(map(general, one["scopes"]))
    return one["kind"], tuple(one["axes"]), one["direction"], _line(one), scopes, _name(one)


def _line(one: Mapping[str, Any]) -> str:
    """The text of a line with its function, or its place where there is no text."""
    first = one["stack"][0].partition(" ")[2] if one["stack"] else ""
    return first.partition("   (in ")[0] or one["line"] or ""


def _name(one: Mapping[str, Any]) -> str:
    """The value without its type, whose sizes may be what changed."""
    return general(one["value"].removesuffix(", …").rpartition(" ")[0])


def _label(one: Mapping[str, Any], name: str) -> str | tuple[str]:
    """What collectives are summed by: the text of a line (apart, as that is not what it is called), or a name."""
    if one.get("values", 1) > 1:
        return COMBINED
    if name == "line":
        return (_line(one),)
    return "/".join(general(scope) for scope in one["scopes"])


def _percent(was: float, now: float) -> str:
    return f"{(now - was) / was:+.1%}".replace("-", "−") if was else "new"

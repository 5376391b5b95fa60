"""Files of estimates: a search adds to them as it goes, and a later one goes on from there.

A line is a strategy and what it costs, with the ``case`` it is of: model, machine and batch. CSV, or JSON by line where
the name ends in .json or .jsonl. What was cut off in the midst of a line is left out.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TextIO

from meshwright.core.files import check_size
from meshwright.core.source import here
from meshwright.device.strategy import Estimate, Strategy
from meshwright.errors import MeshwrightError, ShapeError

_STRATEGY = [f.name for f in fields(Strategy)]
_NUMBERS = [f.name for f in fields(Estimate) if f.name != "strategy"]
_COLUMNS = [*_STRATEGY, *_NUMBERS, "case"]


class EstimateFile:
    """A file of estimates, open for more of them."""

    def __init__(self, path: str | os.PathLike[str], case: str) -> None:
        self.path, self.case = os.fspath(path), case
        self.is_json = self.path.endswith((".json", ".jsonl"))
        self.known: dict[Strategy, Estimate] = {}
        self.file: TextIO
        try:
            self.file = open(self.path, "a+", newline="", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            check_size(self.file.fileno())
            self._read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise MeshwrightError(
                f"{self.path} cannot be written.",
                where=here(),
                why=why or str(error),
                fix="name a file in a folder that exists",
            ) from error

    def _read(self) -> None:
        self.file.seek(0)
        text = self.file.read()
        whole = text[: text.rfind("\n") + 1]
        if len(whole) < len(text):  # a search was stopped while it wrote
            self.file.truncate(len(whole.encode()))
        try:
            for row in _json_rows(whole) if self.is_json else _csv_rows(whole):
                if sorted(row) != sorted(_COLUMNS):
                    raise ValueError
                if row["case"] == self.case:
                    estimate = _estimate(row)
                    self.known[estimate.strategy] = estimate
        except (ValueError, TypeError, KeyError, AttributeError, csv.Error, RecursionError) as error:
            self.file.close()
            shown = text.partition("\n")[0]
            raise ShapeError(
                f"{self.path} is not a file of estimates.",
                why=f"it begins with {shown[:60]!r}",
                fix="another file, or delete this one",
            ) from error
        if not whole and not self.is_json:
            self.file.write(_csv_line(_COLUMNS))

    def add(self, estimate: Estimate) -> None:
        """Write one more."""
        row = {**asdict(estimate.strategy), **{name: getattr(estimate, name) for name in _NUMBERS}, "case": self.case}
        self.file.write(json.dumps(row) + "\n" if self.is_json else _csv_line(list(row.values())))

    def close(self) -> None:
        self.file.close()


def _csv_line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _csv_rows(text: str) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in csv.DictReader(io.StringIO(text, newline=""))]


def _json_rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _estimate(row: Mapping[str, Any]) -> Estimate:
    def flag(name: str) -> bool:
        return str(row[name]) == "True"

    numbers = {name: int(row[name]) for name in _STRATEGY if name not in ("schedule", "recompute")}
    strategy = Strategy(**numbers, schedule=str(row["schedule"]), recompute=flag("recompute"))
    seconds, samples, bubble = (float(row[name]) for name in ("seconds", "samples_per_s", "bubble_fraction"))
    return Estimate(strategy, seconds, int(row["peak_bytes"]), samples, bubble, flag("fits"))

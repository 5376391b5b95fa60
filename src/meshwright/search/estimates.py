"""Files of estimates: a search adds to them as it goes, and a later one goes on from there.

A line is a strategy and what it costs, with the ``case`` it is of (model, machine and batch) and a checksum of both.
Where ``fits`` is "least", seconds and bytes are bounds that ruled the strategy out.
CSV, or JSON by line where the name ends in .json or .jsonl. A line that is damaged, or cut off, is told and left out.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TextIO
from zlib import crc32

from meshwright.core.files import check_size, write_whole
from meshwright.core.source import here, user_source
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.search.strategy import Estimate, Least
from meshwright.simulate.transformer.strategy import Strategy

_STRATEGY = [f.name for f in fields(Strategy)]
_NUMBERS = [f.name for f in fields(Estimate) if f.name != "strategy"]
_COLUMNS = [*_STRATEGY, *_NUMBERS, "case"]
_LEAST = "least"
_HEADER = ",".join([*_COLUMNS, "crc32"])
_JSON_LINE = re.compile(r'(\{.*), "crc32": "([0-9a-f]{8})"\}')
_CSV_LINE = re.compile(r"(.*),([0-9a-f]{8})")


class EstimateFile:
    """A file of estimates, open for more of them."""

    def __init__(self, path: str | os.PathLike[str], case: str) -> None:
        self.path, self.case = os.fspath(path), case
        self.is_json = self.path.endswith((".json", ".jsonl"))
        self.known: dict[Strategy, Estimate] = {}
        self.least: dict[Strategy, Least] = {}
        try:
            if os.path.exists(self.path):
                self._read()
            self.file: TextIO = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115 - closed by `close`
            if not self.is_json and not self.file.tell():
                self.file.write(f"{_HEADER}\n")
        except MeshwrightError:
            raise
        except (OSError, ValueError) as error:  # the latter for a name with a null in it
            raise MeshwrightError(
                f"{self.path} cannot be written.",
                where=here(),
                why=getattr(error, "strerror", None) or str(error),
                fix="name a file in a folder that exists",
            ) from error

    def _read(self) -> None:
        """Take over what the file has of this case; lines that are damaged are told and removed from it."""
        if not os.path.isfile(self.path):
            raise OSError("it is not a regular file")
        with open(self.path, "rb") as file:
            check_size(file.fileno())
            lines = file.read().split(b"\n")
        ended = not lines[-1]
        if ended:
            lines.pop()
        rows = [self._row(line) for line in lines]
        if lines and not any(rows) and lines[0] != _HEADER.encode():
            raise ShapeError(
                f"{self.path} is not a file of estimates.",
                why=f"it begins with {lines[0].decode(errors='backslashreplace')[:60]!r}",
                fix="another file, or delete this one",
            )
        for row in rows:
            if row and row["case"] == self.case:
                estimate = _estimate(row)
                if row["fits"] == _LEAST:
                    self.least[estimate.strategy] = Least(estimate.seconds, estimate.peak_bytes_per_device)
                else:
                    self.known[estimate.strategy] = estimate
        damaged = [n for n, row in enumerate(rows, 1) if row is None]
        if damaged:
            self._tell(damaged)
        if damaged or not ended:
            kept = [line.decode() for line, row in zip(lines, rows, strict=True) if row]
            write_whole(self.path, "".join(f"{line}\n" for line in ([] if self.is_json else [_HEADER]) + kept))

    def _row(self, line: bytes) -> dict[str, Any] | None:
        """What a line says: nothing if it is the first of a table, and None if it is damaged."""
        if not self.is_json and line == _HEADER.encode():
            return {}
        try:
            found = (_JSON_LINE if self.is_json else _CSV_LINE).fullmatch(line.decode())
            if found is None or _checksum(found[1]) != found[2]:
                return None
            row = json.loads(found[1] + "}") if self.is_json else dict(zip(_COLUMNS, *csv.reader([found[1]])))
            _estimate(row)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, csv.Error):
            return None
        return row if isinstance(row.get("case"), str) else None

    def _tell(self, damaged: list[int]) -> None:
        shown = ", ".join(map(str, damaged[:5])) + ", …" * (len(damaged) > 5)
        some = f"line {shown} of {self.path} is" if len(damaged) == 1 else f"lines {shown} of {self.path} are"
        source = user_source()
        where = (source.file, source.line) if source else (__file__, 1)
        warnings.warn_explicit(f"{some} damaged, and estimated again", UserWarning, *where)

    def add(self, estimate: Estimate) -> None:
        """Write one more."""
        self._write(estimate.strategy, {name: getattr(estimate, name) for name in _NUMBERS})

    def rule_out(self, strategy: Strategy, least: Least) -> None:
        """Write that a strategy takes no less than that."""
        numbers = {"seconds": least.seconds, "peak_bytes_per_device": least.nbytes, "fits": _LEAST}
        self._write(strategy, {name: numbers.get(name, 0.0) for name in _NUMBERS})

    def _write(self, strategy: Strategy, numbers: Mapping[str, Any]) -> None:
        row = {**asdict(strategy), **numbers, "case": self.case}
        if self.is_json:
            body = json.dumps(row).removesuffix("}")
            self.file.write(f'{body}, "crc32": "{_checksum(body)}"}}\n')
        else:
            body = _csv_line(list(row.values()))
            self.file.write(f"{body},{_checksum(body)}\n")

    def close(self) -> None:
        self.file.close()


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _csv_line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def _estimate(row: Mapping[str, Any]) -> Estimate:
    def flag(said: Any) -> bool:
        return str(said) == "True"

    read: dict[str, Callable[[Any], Any]] = {
        "schedule": str,
        "recompute": str,
        "sequence_parallel": flag,
        "flash": flag,
    }
    strategy = Strategy(**{name: read.get(name, int)(row[name]) for name in _STRATEGY})
    seconds, samples, bubble = (float(row[name]) for name in ("seconds", "samples_per_s", "bubble_fraction"))
    return Estimate(strategy, seconds, int(row["peak_bytes_per_device"]), samples, bubble, flag(row["fits"]))

"""The machines whose measurements are kept in benchmarks/data, and the table of the H200 in docs/calibration.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from meshwright.hardware.calibration import Compared, compare
from meshwright.hardware.kernels import Kernels
from meshwright.hardware.measurements import read_measurements

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "calibration.md"
BEGIN, END = "<!-- h200 -->\n", "\n<!-- end of h200 -->"


@cache
def measurements(name: str) -> dict[str, Any]:
    """One file of measurements."""
    return read_measurements(ROOT / "benchmarks" / "data" / f"{name}.json")


@cache
def compared() -> tuple[Compared, ...]:
    """What the H200's numbers, as they come with the package, predict for its measurements."""
    return compare(measurements("h200_jax"), Kernels.of("h200"))


def table() -> str:
    """Everything the fit has not seen: measured, predicted, off by."""
    lines = ["| | measured | predicted | off by |", "|---|---|---|---|"]
    for part in ("held out", "step"):
        for one in compared():
            if one.part == part:
                cells = [one.name, _time(one.measured), _time(one.predicted), f"{100 * one.error:+.1f} %"]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:before] + table() + text[after:], encoding="utf-8")

"""The tour is gone through: what it says is there, and its files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import main

Printed = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_the_tour_keeps_what_it_promises(tmp_path: Path, capsys: Printed) -> None:
    assert main(["tour", "--folder", str(tmp_path), "--json"]) == 0
    stops = {stop["title"].split(",")[0]: stop for stop in json.loads(capsys.readouterr().out)}
    assert stops["You say how a few arrays are laid out on 8 devices"]["largest_difference"] < 1e-4
    hint = stops["What do I change? A hint that was tried"]
    assert hint["saved_seconds"] == pytest.approx(hint["promised_seconds"]) and hint["saved_seconds"] > 0
    assert (tmp_path / "tour.html").stat().st_size > 100_000
    assert json.loads((tmp_path / "tour.perfetto.json").read_text())["traceEvents"]


def test_the_tour_writes_into_a_folder(capsys: Printed) -> None:
    assert main(["tour", "--folder", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "nowhere is no folder.\n  why:  two files are written into it\n  fix:  --folder .\n"
    )

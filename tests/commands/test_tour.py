"""The tour is gone through: what it says is there, and its files are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import meshwright.tour
from meshwright.cli import main
from meshwright.tour import TOPICS

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


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_shows_its_code_and_what_its_page_says_comes_out(name: str, capsys: Printed) -> None:
    assert main(["tour", name, "--json"]) == 0
    stops = json.loads(capsys.readouterr().out)
    page = (Path(meshwright.tour.__file__).parent / "topics" / f"{name}.md").read_text()
    assert [stop["title"] for stop in stops] == re.findall(r"^## (.*)", page, re.MULTILINE) and len(stops) > 4
    shown = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [trimmed(stop["printed"]) for stop in stops] == [trimmed(one) for one in shown]
    assert all(stop["text"].endswith(stop["printed"]) for stop in stops)


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_a_topic_is_printed_stop_by_stop(capsys: Printed) -> None:
    assert main(["tour", "representation"]) == 0
    out = capsys.readouterr().out
    assert "1. The text of a sharding" in out and '    mesh = Mesh.parse(\'<["x"=2, "y"=4, "z"=2]>\')' in out


def test_a_topic_that_is_not_there_is_named(capsys: Printed) -> None:
    assert main(["tour", "shardings"]) == 2
    assert capsys.readouterr().err == (
        "There is no tour of 'shardings'.\n"
        "  why:  there are sharding, shard_map, representation, devices, kernels, and the main job if none is named\n"
        "  fix:  meshwright tour sharding\n"
    )

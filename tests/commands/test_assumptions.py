"""Commands that say how long something takes say what that assumes, and where the rest stands."""

import re
from pathlib import Path

import pytest

from meshwright.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "assumptions.md"


@pytest.mark.parametrize("command", ["cost", "simulate", "search"])
def test_help_names_the_assumptions(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for word in ("Assumed:", "peak rates", "launches", "hierarchical", "alive at the same time", "14 bytes of state"):
        assert word in text
    assert text.partition(" examples: ")[0].endswith("docs/assumptions.md has all of it.")
    assert "--mode exact" in text


def test_the_page_says_what_help_says_and_fits_on_one():
    page = PAGE.read_text(encoding="utf-8")
    assert {"Rates", "Modes", "Collectives and messages", "Overlap", "Memory", "Defaults"} <= set(
        re.findall(r"^## (.*)$", page, re.MULTILINE)
    )
    assert len(page.splitlines()) < 130

"""The versions that tests run with: one file per Python, each complete, and nothing in it but versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.lowest import lowest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "constraints").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def pinned(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines()
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\d[\w.]*)", line) for line in lines]
    assert all(found), [line for line, one in zip(lines, found, strict=True) if one is None]
    return {one[1].lower().replace("-", "_"): one[2] for one in found if one}


def test_there_is_a_file_for_every_python_we_name() -> None:
    assert [file.name for file in FILES] == ["py3.11.txt", "py3.12.txt", "py3.13.txt"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_has_a_version_of_everything_that_is_declared(file: Path) -> None:
    versions = pinned(file)
    for requirement in (*PROJECT["dependencies"], *EXTRAS["jax"], *EXTRAS["dev"], *EXTRAS["docs"]):
        name, least = requirement.split(">=")
        assert numbers(versions[name.replace("-", "_")]) >= numbers(least)
    assert versions["jax"] == versions["jaxlib"]


def test_the_lowest_versions_are_those_declared() -> None:
    assert [one.replace("==", ">=") for one in lowest()] == PROJECT["dependencies"]
    assert all(re.fullmatch(r"\w+==[\d.]+", one) for one in lowest())

"""Print the lowest versions that the package declares, for ``make lowest``: ``numpy==2.1 …``."""

from __future__ import annotations

import tomllib
from pathlib import Path


def lowest() -> list[str]:
    """The dependencies of the package itself, each at its minimum."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    return [requirement.replace(">=", "==") for requirement in project["dependencies"]]


if __name__ == "__main__":
    print(*lowest())

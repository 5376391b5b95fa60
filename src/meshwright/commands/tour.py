"""``meshwright tour``: the main job in a minute."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator

from rich.console import Console
from rich.rule import Rule

from meshwright.errors import MeshwrightError
from meshwright.tour import TourStop, steps


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.epilog = "meshwright tour --folder /tmp"
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="where tour.html and tour.perfetto.json go (default: here)"
    )
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")


def run(args: argparse.Namespace) -> int:
    """Print each step as it is done."""
    if not os.path.isdir(args.folder):
        raise MeshwrightError(f"{args.folder} is no folder.", why="two files are written into it", fix="--folder .")
    if args.json:
        print(json.dumps([{"title": s.title, "text": s.text, **s.facts} for s in steps(args.folder)], indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(_with_progress(console, steps(args.folder)), 1):
        console.print(Rule(f"{number}. {step.title}", align="left"))
        console.print(step.text, markup=False)
        console.print()
    return 0


def _with_progress(console: Console, stops: Iterator[TourStop]) -> Iterator[TourStop]:
    """The stops; while one is worked at, a terminal says so."""
    while True:
        with console.status("working …"):
            stop = next(stops, None)
        if stop is None:
            return
        yield stop

"""``meshwright tour``: the main job in a minute, or a topic in seconds."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from difflib import get_close_matches

from rich.console import Console
from rich.rule import Rule

from meshwright.commands.progress import working
from meshwright.errors import MeshwrightError
from meshwright.tour import TOPICS, TourStop, topic
from meshwright.tour.decoder import steps


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    topics = "; ".join(f"{name}: {about}" for name, about in TOPICS.items())
    parser.description = (
        "Go through the main job: a decoder's train step, laid out, explained, simulated, improved, searched. "
        f"Or through a topic, its code printed with what comes out of it. {topics}."
    )
    parser.words = tuple(TOPICS)  # type: ignore[attr-defined]
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=f"one of {', '.join(TOPICS)} (default: the main job)")
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="where tour.html and tour.perfetto.json go (default: here)"
    )
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")


def run(args: argparse.Namespace) -> int:
    """Print each step as it is done."""
    if args.topic is not None and args.topic not in TOPICS:
        near = get_close_matches(args.topic, TOPICS, 1)
        raise MeshwrightError(
            f"There is no tour of {args.topic!r}.",
            why=f"there are {', '.join(TOPICS)}, and the main job if none is named",
            fix=f"meshwright tour {near[0] if near else 'sharding'}",
        )
    if not os.path.isdir(args.folder):
        raise MeshwrightError(f"{args.folder} is no folder.", why="two files are written into it", fix="--folder .")
    stops = steps(args.folder) if args.topic is None else topic(args.topic)
    if args.json:
        print(json.dumps([{"title": s.title, "text": s.text, **s.facts} for s in stops], indent=2, ensure_ascii=False))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(_with_progress(stops), 1):
        console.print(Rule(f"{number}. {step.title}", align="left"))
        console.print(step.text, markup=False)
        console.print()
    return 0


def _with_progress(stops: Iterator[TourStop]) -> Iterator[TourStop]:
    """The stops; while one is worked at, a terminal says so."""
    while True:
        with working("working"):
            stop = next(stops, None)
        if stop is None:
            return
        yield stop

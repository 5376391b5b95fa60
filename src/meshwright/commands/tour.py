"""``meshwright tour``: the main job in a minute."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.rule import Rule

from meshwright.tour import steps


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")


def run(args: argparse.Namespace) -> int:
    """Print each step as it is done."""
    if args.json:
        print(json.dumps([{"title": s.title, "text": s.text, **s.facts} for s in steps()], indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(steps(), 1):
        console.print(Rule(f"{number}. {step.title}", align="left"))
        console.print(step.text, markup=False)
        console.print()
    return 0

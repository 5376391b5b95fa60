"""The command line: ``meshwright COMMAND``. Exit code 0, 1 (the answer is no) or 2 (bad input, one message)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version

from meshwright.errors import MeshwrightError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    meshwright ...
    0
    """
    parser = argparse.ArgumentParser(
        prog="meshwright",
        description="Array programs on many devices: typed, differentiated, laid out, run and costed.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    tour = commands.add_parser("tour", help="the main job in a minute", description="The main job in a minute.")
    tour.add_argument("--json", action="store_true", help="print the steps as JSON")
    args = parser.parse_args(argv)
    if args.version:
        print(f"meshwright {version('meshwright')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return _tour(args.json)
    except MeshwrightError as error:
        print(error, file=sys.stderr)
        return 2


def _tour(as_json: bool) -> int:
    from meshwright.tour import steps

    if as_json:
        print(json.dumps([{"title": s.title, "text": s.text, **s.facts} for s in steps()], indent=2))
        return 0
    from rich.console import Console
    from rich.rule import Rule

    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(steps(), 1):
        console.print(Rule(f"{number}. {step.title}", align="left"))
        console.print(step.text, markup=False)
        console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())

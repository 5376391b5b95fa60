"""``meshwright diff``: what changed in the communication of a program."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshwright.commands.explain import compiled_of
from meshwright.commands.files import read_text
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, read_machine
from meshwright.commands.user_code import CALL
from meshwright.compile.diff import MOST_ROWS, CommsDiff
from meshwright.compile.saved import read_explanation


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Compile two programs, or read what meshwright explain --json printed of them, and print which collectives "
        "appeared, went or grew, and seconds, memory and bytes before and after."
    )
    for name in ("before", "after"):
        parser.add_argument(name, metavar="FILE.py:FUNC|FILE.json", help=f"FUNC() returns {CALL}")
    parser.add_argument("--hardware", "--chip", metavar="MACHINE", help="the machine that times are of: 'h100'")
    parser.add_argument(
        "--top", type=int, default=MOST_ROWS, metavar="N", help=f"of each kind of change so many ({MOST_ROWS})"
    )
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if collectives differ")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Compile or read both, and compare."""
    check_number(args, "top", MOST_ROWS)
    hardware = read_machine(args.hardware) if args.hardware else None
    found = CommsDiff(*(_explanation(one, hardware) for one in (args.before, args.after)))
    print(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if args.json else found.text(args.top))
    return 1 if args.exit_code and found else 0


def _explanation(text: str, hardware: Any) -> dict[str, Any]:
    if text.endswith(".json"):
        return read_explanation(read_text(text, "meshwright explain model.py:example --json > saved.json"), text)
    compiled = compiled_of(text)
    with as_typed():
        return compiled.explanation(hardware, tries=False).to_json()

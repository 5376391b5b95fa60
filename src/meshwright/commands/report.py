"""``meshwright report``: one page about a program on a machine."""

from __future__ import annotations

import argparse
import json

from meshwright.commands.explain import compiled_of
from meshwright.commands.files import check_folder
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import read_machine
from meshwright.commands.progress import working
from meshwright.commands.user_code import CALL


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Write a page about a program on a machine: time, memory, collectives with their reasons, timeline, shardings. "
        "It is one file that loads nothing from a network."
    )
    parser.add_argument("program", metavar="FILE.py:FUNC", help=f"FUNC() returns {CALL}")
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="the page (default: report.html)")
    parser.add_argument("--compare", metavar="FILE.py:FUNC", help="another program, to compare with on the same page")
    parser.add_argument("--hardware", "--chip", metavar="MACHINE", help="the machine: 'h100', 'tpu v5e 2x4'")
    parser.add_argument("--no-hints", action="store_true", help="write at once: other shardings are not tried")
    parser.add_argument("--json", action="store_true", help="print what the page shows as JSON, too")


def run(args: argparse.Namespace) -> int:
    """Compile, simulate and write."""
    check_folder(args.output)
    hardware = read_machine(args.hardware) if args.hardware else None
    compiled = compiled_of(args.program)
    other = compiled_of(args.compare) if args.compare else None
    with as_typed(), working(f"writing {args.output}"):
        written = compiled.report(args.output, hardware, other=other, tries=not args.no_hints)
    print(json.dumps(written, ensure_ascii=False) if args.json else f"wrote {args.output}: open it in a browser")
    return 0

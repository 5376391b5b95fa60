"""``meshwright calibrate``: measure the machine at hand and write its numbers to a chip file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from dataclasses import asdict
from typing import Any

from meshwright.commands.progress import say
from meshwright.core.files import write_whole
from meshwright.engine.measuring.run import BACKENDS, available, measure, raw_text
from meshwright.errors import MeshwrightError
from meshwright.hardware.calibration import Calibration, calibrate
from meshwright.hardware.measurements import read_measurements


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Measure the machine at hand, fit its numbers to some of the measurements and say how well they predict the "
        "others. Needs a machine that does nothing else meanwhile."
    )
    parser.add_argument("--out", metavar="CHIP.json", help="write the chip's numbers; hardware.get reads the file")
    parser.add_argument(
        "--from",
        dest="raw",
        metavar="RAW.json",
        help="fit these, measured before; - reads standard input",
    )
    parser.add_argument("--test", metavar="RAW.json", help="predict these measurements of the same machine too")
    parser.add_argument("--keep", metavar="RAW.json", help="write the measurements too")
    parser.add_argument("--engine", choices=sorted(BACKENDS), help="what measures (default: jax, torch or numpy)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a test of the command, not of the machine")
    parser.add_argument("--json", action="store_true", help="print the numbers and all predictions as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure, fit, report, write."""
    for path in (args.out, args.keep):  # before the work, not after it
        folder = os.path.dirname(os.path.abspath(path)) if path is not None else "."
        if not os.path.isdir(folder):
            raise MeshwrightError(
                f"{path} cannot be written.",
                why=f"there is no folder {folder}",
                fix="name a file in a folder that exists",
            )
    if args.raw is not None:
        raw = read_measurements(args.raw)
    else:
        engine = args.engine or available()
        if engine != "numpy" and importlib.util.find_spec(engine) is None:
            raise MeshwrightError(
                f"The machine cannot be measured through {engine}.", why="it is not installed", fix="--engine numpy"
            )
        try:
            raw = measure(engine, quick=args.quick, say=say)
        finally:
            say("")
    found = calibrate(raw)
    if args.test is not None:
        found = found.tested(read_measurements(args.test))
    if args.keep is not None:
        write_whole(args.keep, raw_text(raw))
    if args.out is not None:
        write_whole(args.out, found.file)
    print(json.dumps(facts(found), indent=2) if args.json else found.text)
    return 0


def facts(found: Calibration) -> dict[str, Any]:
    """A calibration as JSON: the machine, its numbers, each case with its prediction."""
    return {
        "device": found.name,
        "framework": found.framework,
        "machine": dict(found.machine),
        "kernels": asdict(found.kernels),
        "cases": [{**asdict(one), "error": one.error} for one in found.compared],
        "failed": list(found.failed),
        "median_error": found.errors("held out", "step")[0],
        "worst_error": found.errors("held out", "step")[1],
    }

"""``meshwright stages``: what each stage of the compiler makes of a program."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches

from meshwright.commands.explain import compiled_of
from meshwright.commands.user_code import CALL
from meshwright.compile.stages import STAGES, StageRecord
from meshwright.errors import MeshwrightError

NAMES = tuple(stage.name for stage in STAGES)


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Compile what a function of a Python file returns, a function and its arguments, and print the stages of that "
        "with the seconds of each; or the program after one of them."
    )
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNC",
        help=f"FUNC() returns {CALL}",
    )
    parser.add_argument("--stage", metavar="NAME", help=f"print what it made: {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Compile, and print the stages or one of them."""
    if args.stage is not None and args.stage not in NAMES:
        near = get_close_matches(args.stage, NAMES, 1)
        raise MeshwrightError(
            f"There is no stage {args.stage!r}.",
            why=f"the stages are {', '.join(NAMES)}",
            fix=f"--stage {near[0] if near else 'partition'}",
        )
    stages = compiled_of(args.program).stages
    chosen = [stage for stage in stages if args.stage in (None, stage.name)]
    if not chosen:
        raise MeshwrightError(
            f"This program has no stage {args.stage!r}.",
            why=f"it goes through {', '.join(stage.name for stage in stages)}",
            fix=f"--stage {stages[0].name}",
        )
    if args.json:
        print(json.dumps([_facts(stage) for stage in chosen], indent=2, ensure_ascii=False))
    elif args.stage is not None:
        print(chosen[0])
    else:
        print("\n".join(_row(stage) for stage in stages))
    return 0


def _row(stage: StageRecord) -> str:
    return f"{stage.name:<10}{1e3 * stage.seconds:9.2f} ms  {len(stage.program.eqns):5} equations  {stage.about}"


def _facts(stage: StageRecord) -> dict[str, object]:
    return {
        "stage": stage.name,
        "about": stage.about,
        "seconds": stage.seconds,
        "equations": len(stage.program.eqns),
        "text": str(stage).splitlines(),
    }

"""``meshwright explain``: why a program on a mesh communicates as it does, or why a value of it is sharded so."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshwright.commands.fixes import as_typed
from meshwright.commands.user_code import CALL, called, compiled, kind_of
from meshwright.compile.compiled import Compiled
from meshwright.compile.partitioning import Collective
from meshwright.compile.sharding_reasons import ShardingReasons
from meshwright.errors import MeshwrightError

_FIX = "def example(): return mw.jit(train_step), (params, batch)"


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Compile what a function of a Python file returns, a function and its arguments, and print every collective "
        "with its reason; or, for values, where each axis of their shardings came from."
    )
    parser.add_argument(
        "program",
        metavar="FILE.py:FUNC",
        help=f"FUNC() returns {CALL}",
    )
    parser.add_argument(
        "--value",
        action="append",
        metavar="NAME",
        help="an argument (params['w']), a result (result[0]) or a line (model.py:41); may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Compile and explain."""
    result = compiled_of(args.program)
    if args.value is None:
        text = result.explain()
        if args.json:
            found = {"collectives": [_collective(one) for one in result.collectives], "explanation": text.splitlines()}
            print(json.dumps(found, indent=2, ensure_ascii=False))
        else:
            print(text)
        return 0
    with as_typed():
        reasons = [result.explain_sharding(value) for value in args.value]
    if args.json:
        print(json.dumps([entry for one in reasons for entry in _facts(one)], indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(str, reasons)))
    return 0


def compiled_of(program: str) -> Compiled:
    """What a function of a file returns, compiled."""
    found: Any = called(program, fix=_FIX)
    result = compiled(found, program)
    if result is not None:
        return result
    raise MeshwrightError(
        f"{program} gives {kind_of(found)}, not a function and its arguments.",
        why="the function is compiled for them",
        fix=_FIX,
    )


def _collective(one: Collective) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "axes": list(one.axes),
        "bytes_received_per_device": one.bytes_received_per_device,
        "times": one.times,
        "values": [t.short() for t in one.values],
        "line": str(one.source) if one.source is not None else None,
        "why": one.why,
        "implicit": one.implicit,
    }


def _facts(found: ShardingReasons) -> list[dict[str, Any]]:
    return [
        {
            "value": one.name,
            "type": one.var.type.short(),
            "axes": [
                {
                    "dim": reason.dim,
                    "axis": str(reason.axis).replace('"', ""),
                    "origin": reason.origin.op,
                    "written": reason.origin.where,
                    "through": [{"op": step.op, "line": step.where} for step in reason.steps[:-1]],
                }
                for reason in one.reasons
            ],
            "conflicts": [clash._asdict() for clash in one.conflicts],
        }
        for one in found
    ]

"""``meshwright explain``: why a program on a mesh communicates as it does, or why a value of it is sharded so."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from typing import Any

from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, read_machine
from meshwright.commands.progress import working
from meshwright.commands.user_code import CALL, called, compiled, kind_of, named
from meshwright.compile.compiled import Compiled
from meshwright.compile.explain import EVERYTHING, Explanation, Filter
from meshwright.compile.sharding_reasons import ShardingReasons
from meshwright.errors import MeshwrightError

_KINDS = ("all_gather", "all_reduce", "all_to_all", "permute", "reduce_scatter")


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
    parser.add_argument(
        "--hardware", "--chip", metavar="MACHINE", help="the machine that times are of: 'h100', 'tpu v5e 2x4'"
    )
    parser.add_argument("--axis", metavar="NAME", help="collectives over a mesh axis alone")
    parser.add_argument("--kind", metavar="KIND", help="those of a kind alone: all_gather, all_to_all, …")
    parser.add_argument("--line", metavar="FILE.py:N", help="those that a line leads to alone")
    parser.add_argument("--scope", metavar="NAME", help="those in a named scope alone, or in a loop: 'scan'")
    parser.add_argument("--top", type=int, metavar="N", help="at most so many rows, those that take longest")
    parser.add_argument("--no-hints", action="store_true", help="answer at once: other shardings are not tried")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Compile and explain."""
    result = compiled_of(args.program)
    if args.value is None:
        check_number(args, "top", 5)
        hardware = read_machine(args.hardware) if args.hardware else None
        _check_filters(args, result)
        with as_typed(), working("trying other shardings"):
            found = result.explanation(hardware, tries=not args.no_hints)
            found.cheaper()
        wanted = Filter(args.axis, args.kind, args.line, args.scope, args.top)
        _check_some(args, found, wanted)
        print(json.dumps(found.to_json(wanted), indent=2, ensure_ascii=False) if args.json else found.text(wanted))
        return 0
    with as_typed():
        reasons = [result.explain_sharding(value) for value in args.value]
    if args.json:
        print(json.dumps([entry for one in reasons for entry in _facts(one)], indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(str, reasons)))
    return 0


def _check_filters(args: argparse.Namespace, result: Compiled) -> None:
    """Refuse an axis that the mesh does not have, and a kind that no collective is of."""
    axes = tuple(result.mesh.shape) if result.mesh is not None else ()
    for option, given, known in (("axis", args.axis, axes), ("kind", args.kind, _KINDS)):
        if given is not None and known and given.replace("-", "_") not in {one.replace("-", "_") for one in known}:
            near = get_close_matches(given.replace("-", "_"), known, 1) or known
            raise MeshwrightError(
                f"--{option} is {given!r}.", why=f"there are {', '.join(known)}", fix=f"--{option} {near[0]}"
            )


def _check_some(args: argparse.Namespace, found: Explanation, wanted: Filter) -> None:
    """Refuse a line or a scope that no collective is of."""
    scopes = dict.fromkeys(scope for one in found.findings for scope in one.around)
    lines = dict.fromkeys(row.line for row in found.rows())
    for option, given, known in (("line", args.line, lines), ("scope", args.scope, scopes)):
        alone = EVERYTHING._replace(**{option: given})
        if given is not None and found.findings and not found.rows(alone):
            near = get_close_matches(given, known, 1) or list(known)
            some = list(dict.fromkeys([*near[:1], *known]))[:5]
            raise MeshwrightError(
                f"--{option} is {given!r}.",
                why=f"collectives are of {', '.join(some)}" if known else f"no collective is in a {option}",
                fix=f"--{option} {near[0]}" if near else f"meshwright explain {args.program}",
            )


def compiled_of(program: str) -> Compiled:
    """What a function of a file returns, compiled."""
    one = named(program)
    fix = one.example()
    found: Any = called(one, fix=fix)
    with working(f"compiling {program}"):
        result = compiled(found, program)
    if result is not None:
        return result
    raise MeshwrightError(
        f"{program} gives {kind_of(found)}, not a function and its arguments.",
        why="the function is compiled for them",
        fix=fix,
    )


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

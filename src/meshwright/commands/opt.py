"""``meshwright opt``: read a module of StableHLO and sdy, run passes on it, print it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from meshwright.commands.files import read_text
from meshwright.core.files import STDIN
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.diagnostics import diagnosed, verified
from meshwright.interop.shardy.passes import OPTIONS, apply_passes, pass_names
from meshwright.interop.stablehlo.context import parse_module, plain_module
from meshwright.propagate.why import explain

SPLIT = "// -----"
_FIX = "meshwright opt FILE.mlir -sdy-user-priority-propagate --explain"


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Run passes, in the order given, on a module of StableHLO and sdy; print it as sdy_opt does."
    parser.add_argument("file", metavar="FILE.mlir", nargs="?", help="the module; - (or nothing) reads standard input")
    parser.add_argument(
        "-split-input-file",
        "--split-input-file",
        action="store_true",
        help=f"FILE has modules between lines {SPLIT}",
    )
    parser.add_argument("--json", action="store_true", help="print the modules and the warnings as JSON")
    parser.add_argument(
        "--explain", action="store_true", help="print, instead of the modules, where each axis of each value came from"
    )
    parser.add_argument(
        "-verify-diagnostics", "--verify-diagnostics", action="store_true",
        help="print no module, but whether what is said of it is what its comments // expected-error {{...}} expect",
    )  # fmt: skip
    parser.add_argument(
        "-allow-unregistered-dialect", "--allow-unregistered-dialect", action="store_true",
        help="with -verify-diagnostics: ops of unknown dialects are no error; they never are without",
    )  # fmt: skip
    parser.add_argument("--mlir-print-op-generic", action="store_true", help="print every op in its generic form")
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="print where every op was written")
    passes = parser.add_argument_group("passes")
    for name in pass_names():
        options = " ".join(f"{option}={{{','.join(values)}}}" for option, values in OPTIONS.get(name, {}).items())
        passes.add_argument(
            f"-{name}", f"--{name}", action=_AddPass, nargs="?", dest="passes", metavar="OPTIONS", help=options or None
        )


class _AddPass(argparse.Action):
    """A pass, perhaps with options: ``-sdy-x``, ``-sdy-x=a=true``; a word after it that is no option is the file."""

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, given: Any, option: str | None = None
    ) -> None:
        name = (option or "").lstrip("-")
        if given is not None and not re.match(r"[\w-]+=", given):
            if getattr(args, "file_after_pass", None) is not None:
                parser.error(f"unrecognized arguments: {given}")
            args.file_after_pass, given = given, None  # the parser would set args.file again
        args.passes = [*(args.passes or []), name if given is None else f"{name}={given}"]


def run(args: argparse.Namespace) -> int:
    """Read, run, print; warnings go to standard error."""
    args.file = args.file or getattr(args, "file_after_pass", None) or STDIN
    text = read_text(args.file, "name a file with a module, or - for standard input")
    parts = _split(text) if args.split_input_file else [(0, text)]
    if args.verify_diagnostics:
        return _verify(parts, args)
    found = []
    for skipped, part in parts:
        module = parse_module("\n" * skipped + part, "standard input" if args.file == STDIN else args.file)
        passed = apply_passes(module, args.passes or [], names=args.explain)
        entry: dict[str, Any] = {"module": _printed(passed.module, args), "warnings": passed.warnings}
        if args.explain:
            if passed.answer is None:
                raise MeshwrightError("There is nothing to explain.", why="no pass propagates", fix=_FIX)
            entry["why"] = list(explain(passed.answer))
        found.append(entry)
        if not args.json:
            for warning in passed.warnings:
                print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        print(json.dumps(found if args.split_input_file else found[0], indent=2))
    elif args.explain:
        print(f"\n{SPLIT}\n".join("\n".join(entry["why"]) for entry in found))
    else:
        print(f"{SPLIT}\n".join(f"{entry['module']}\n" for entry in found), end="")
    return 0


def _printed(module: Any, args: argparse.Namespace) -> str:
    generic, places = args.mlir_print_op_generic, args.mlir_print_debuginfo
    if not generic and not places:
        return str(module)
    text: str = module.operation.get_asm(print_generic_op_form=generic, enable_debug_info=places)
    return text


def _verify(parts: list[tuple[int, str]], args: argparse.Namespace) -> int:
    """Compare what is said of each module with what it expects; 1 if they differ."""
    wrong = []
    for skipped, part in parts:
        text = "\n" * skipped + part

        def run(text: str = text) -> None:
            apply_passes(plain_module(text, args.allow_unregistered_dialect), args.passes or [], names=True)

        wrong += verified(text, diagnosed(text, run), args.file)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _split(text: str) -> list[tuple[int, str]]:
    """The modules of a file, each with the number of lines before it."""
    found: list[tuple[int, str]] = []
    start, lines = 0, text.splitlines(keepends=True)
    for at, line in enumerate([*lines, SPLIT]):
        if line.startswith(SPLIT):
            found.append((start, "".join(lines[start:at])))
            start = at + 1
    return found

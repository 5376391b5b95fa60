"""The command line: ``meshwright COMMAND``. Exit code 0, 1 (the answer is no) or 2 (bad input, one message)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from meshwright.core.source import here
from meshwright.errors import MeshwrightError

# Each command is the module of its name in meshwright.commands; only the one asked for is loaded.
COMMANDS = {
    "tour": "the main job in a minute",
    "calibrate": "measure the machine at hand and write its numbers to a chip file",
    "cost": "what a program costs on a machine: FLOPs, bytes, communication, memory",
    "explain": "why a program on a mesh communicates as it does, or why a value of it is sharded so",
    "matmul": "ways to multiply two split matrices, and which is the fastest",
    "opt": "run sharding passes on a module of StableHLO and sdy",
    "reshard": "how an array gets from one sharding to another, and what that costs",
    "rules": "the factor rules of ops",
    "search": "how to spread the training of a model over a machine",
    "simulate": "how long a program takes on a machine, as a timeline",
    "visualize": "which devices hold which part of a tensor",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    meshwright ...
    0
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="meshwright",
        description="Array programs on many devices: typed, differentiated, laid out, run and costed.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = argv[0] if argv and argv[0] in COMMANDS else None
    module = import_module(f"meshwright.commands.{asked}") if asked else None
    for name, help_line in COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=help_line[0].upper() + help_line[1:] + ".")
        if module is not None and name == asked:
            module.describe(command)
    args = parser.parse_args(argv)
    if args.version:
        print(f"meshwright {version('meshwright')}")
        return 0
    if module is None:
        parser.print_help()
        return 0
    try:
        code: int = module.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"The output cannot be written: {error.strerror}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except MeshwrightError as error:
        if error.where == here():  # the line that started the command
            error.where = ""
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

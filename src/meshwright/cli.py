"""The command line: ``meshwright COMMAND``. Exit code 0, 1 (the answer is no) or 2 (bad input, one message)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from io import TextIOWrapper

from meshwright.commands.examples import EXAMPLES
from meshwright.commands.parsers import COMMANDS, CommandParser, description_of, module_of
from meshwright.core.source import here
from meshwright.errors import MeshwrightError

# What options are called elsewhere.
_OPTIONS = {"--topology": "--hardware", "--machine": "--hardware", "--devices": "--chips", "--gpus": "--chips"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    meshwright ...
    0
    """
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show is no reason to stop
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:  # nobody listens to a closed one
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        _silence()
        return 0
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # which rich takes for a failure
            _silence()
            return 0
        raise
    except KeyboardInterrupt:
        _silence()
        return INTERRUPTED
    except MeshwrightError as error:
        if error.where == here():  # the line that started the command
            error.where = ""
        return _refuse(error)
    except OSError as error:
        what = "The output" if error.filename is None else str(error.filename)
        _silence()
        return _refuse(MeshwrightError(f"{what} cannot be written.", why=error.strerror or str(error)))
    except MemoryError as error:
        return _refuse(MeshwrightError("This needs more memory than there is.", why=str(error), fix="smaller sizes"))
    except RecursionError:
        return _refuse(MeshwrightError("The input is nested too deeply.", why="parts of it are inside too many others"))


INTERRUPTED = 130  # as shells count: 128 and the number of the signal


def _run(argv: Sequence[str]) -> int:
    parser = CommandParser(
        prog="meshwright",
        description="Array programs on many devices: typed, differentiated, laid out, run and costed.",
        epilog="Exit codes: 0; 1, the answer is no; 2, the input is bad, and one message says how.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = argv[0] if argv and not argv[0].startswith("-") else None
    if asked is not None and asked not in COMMANDS:
        near = get_close_matches(asked, COMMANDS, 1)
        raise MeshwrightError(
            f"There is no command {asked!r}.",
            why=f"there are {', '.join(COMMANDS)}",
            fix=f"meshwright {near[0]}" if near else "meshwright --help",
        )
    module = module_of(asked) if asked else None
    reading = parser
    for name, help_line in COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=description_of(name))
        if module is not None and name == asked:
            module.describe(command)
            command.examples = EXAMPLES[name]
            reading = command
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        reading.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown, reading)}")
    if args.version:
        print(f"meshwright {version('meshwright')}")
        return 0
    if module is None:
        parser.print_help()
        return 0
    code: int = module.run(args)
    return code


def _meant(unknown: Sequence[str], parser: CommandParser) -> str:
    """Which option is meant by one that a command does not have, if that can be said."""
    options = [word for action in parser._actions for word in action.option_strings if word.startswith("--")]
    for one in unknown:
        if one in _OPTIONS:
            return f"; {one} is called {_OPTIONS[one]} here"
        near = get_close_matches(one.partition("=")[0], options, 1) if one.startswith("--") else []
        if near:
            return f"; there is {near[0]}"
    return ""


def _refuse(error: MeshwrightError) -> int:
    print(error, file=sys.stderr)
    return 2


def _silence() -> None:
    """Let what is still to be written go nowhere: nobody reads it."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, AttributeError):  # a buffer, or closed
        return


if __name__ == "__main__":
    sys.exit(main())

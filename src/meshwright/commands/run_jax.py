"""``meshwright run-jax``: run a JAX script as it is, its ``import jax`` meaning Meshwright."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import sys
import traceback

from meshwright import jax
from meshwright.core.source import is_users
from meshwright.errors import MeshwrightError, TextError
from meshwright.jax.devices import set_devices
from meshwright.jax.standing_in import stand_in

MOST_DEVICES = 1 << 20


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Run a script written for JAX as it is: its `import jax` means meshwright.jax, and its devices are virtual."
    )
    parser.epilog = "Exit code: the script's own; 1 if it raised an error."
    parser.add_argument(
        "--devices", type=int, metavar="N", help="how many devices it finds (default: as XLA_FLAGS say, or 1)"
    )
    parser.add_argument("--kind", default="cpu", help="what they are called: cpu, gpu, tpu (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the exit code as JSON at the end")
    parser.add_argument("script", metavar="SCRIPT.py", help="what is run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    """Run the script in this process, as Python would."""
    if args.devices is not None and not 1 <= args.devices <= MOST_DEVICES:
        raise TextError(
            f"--devices is {args.devices}.", why=f"it is a whole number from 1 to {MOST_DEVICES}", fix="--devices 8"
        )
    if not os.path.isfile(args.script):
        raise TextError(f"There is no file {args.script}.", why="a script is run", fix="meshwright run-jax script.py")
    set_devices(args.devices, args.kind)
    stand_in()
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.script)))
    sys.argv = [args.script, *args.arguments]
    code = _run(args.script)
    if args.json:
        print(json.dumps({"exit_code": code}))
    return code


def _by_jax_names(fix: str) -> str:
    """What an error says to write, by the names that a script for JAX has.

    >>> _by_jax_names("mw.reshard(x, mw.P('data'))"), _by_jax_names("mnp.sum(x), or mw.find_layout(f)")
    ("jax.reshard(x, jax.P('data'))", 'jax.numpy.sum(x), or mw.find_layout(f)')
    """
    fix = re.sub(r"\bmnp\.(?=\w)", "jax.numpy.", fix)
    return re.sub(r"\bmw\.(\w+)", lambda m: f"jax.{m[1]}" if hasattr(jax, m[1]) else m[0], fix)


def _run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
        print("Traceback (most recent call last):", file=sys.stderr)
        print("".join(traceback.format_list(frames)), end="", file=sys.stderr)
        name = type(error).__name__
        if isinstance(error, MeshwrightError):
            error.fix = _by_jax_names(error.fix)
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return 1
    return 0

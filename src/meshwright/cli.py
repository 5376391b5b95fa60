"""The command line: ``meshwright COMMAND``. Exit code 0, 1 (the answer is no) or 2 (bad input, one message)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version

from meshwright.core.source import here
from meshwright.errors import MeshwrightError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    meshwright ...
    0
    """
    parser = argparse.ArgumentParser(
        prog="meshwright",
        description="Array programs on many devices: typed, differentiated, laid out, run and costed.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    tour = commands.add_parser("tour", help="the main job in a minute", description="The main job in a minute.")
    tour.add_argument("--json", action="store_true", help="print the steps as JSON")
    visualize = commands.add_parser(
        "visualize",
        help="which devices hold which part of a tensor",
        description="Draw which devices hold which part of a tensor; without SPEC, the devices of the mesh.",
    )
    spec_help = "x,y or '(x,y),None' or 'x:(1)2,unreduced={y}' or the sdy grammar"
    visualize.add_argument("spec", metavar="SPEC", nargs="?", help=spec_help)
    visualize.add_argument("--mesh", required=True, help="x=2,y=4 (or sdy: '<[\"x\"=2]>')")
    visualize.add_argument("--shape", help="64x64; needed with SPEC")
    visualize.add_argument("--kind", default="cpu", help="what the devices are called: cpu, tpu, gpu (default: cpu)")
    visualize.add_argument("--json", action="store_true", help="print the blocks and their devices as JSON")
    visualize.add_argument("--html", metavar="FILE", help="write the picture to FILE as a page instead of printing it")
    args = parser.parse_args(argv)
    if args.version:
        print(f"meshwright {version('meshwright')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        code = _visualize(args) if args.command == "visualize" else _tour(args.json)
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


def _tour(as_json: bool) -> int:
    from meshwright.tour import steps

    if as_json:
        print(json.dumps([{"title": s.title, "text": s.text, **s.facts} for s in steps()], indent=2))
        return 0
    from rich.console import Console
    from rich.rule import Rule

    console = Console(highlight=False, soft_wrap=True)
    for number, step in enumerate(steps(), 1):
        console.print(Rule(f"{number}. {step.title}", align="left"))
        console.print(step.text, markup=False)
        console.print()
    return 0


def _visualize(args: argparse.Namespace) -> int:
    from meshwright.report.html import page
    from meshwright.report.spec_text import read_mesh, read_shape, read_spec
    from meshwright.report.visualize import facts, mesh_facts, picture

    mesh = read_mesh(args.mesh, args.kind)
    if args.spec is None and args.shape is None:
        title, drawn = f"Mesh {mesh}", picture(mesh)
        found = mesh_facts(mesh) if args.json else {}
    elif args.shape is None:
        raise MeshwrightError(
            "A sharding is drawn for a shape.", why="--shape is missing", fix=f"--shape 64x64 '{args.spec}'"
        )
    else:
        shape = read_shape(args.shape)
        sharding = read_spec(args.spec or "", mesh, shape)
        title, drawn = f"{args.shape} {sharding}", picture(shape, sharding)
        found = facts(shape, sharding) if args.json else {}
    if args.html is not None:
        _write_whole(args.html, page(title, drawn.html()))
    if args.json:
        print(json.dumps(found, indent=2))
    elif args.html is None:
        drawn.show()
    return 0


def _write_whole(path: str, text: str) -> None:
    """Write a file so that it is there whole or, whatever happens, as it was before."""
    folder, name = os.path.split(os.path.abspath(path))
    unfinished = ""
    try:
        handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except OSError as error:
        raise MeshwrightError(
            f"{path} cannot be written.", why=error.strerror or str(error), fix="name a file in a folder that exists"
        ) from error
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


if __name__ == "__main__":
    sys.exit(main())

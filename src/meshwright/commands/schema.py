"""``meshwright schema``: what a command prints with ``--json``, as a JSON Schema."""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from importlib import resources
from typing import Any

from meshwright.errors import MeshwrightError


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Print the JSON Schema of what a command prints with --json."
    parser.add_argument("of", metavar="COMMAND", help="explain, simulate, …")
    parser.add_argument("--json", action="store_true", help="the same: it is JSON")


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(schema_of(args.of), indent=2, ensure_ascii=False))
    return 0


def schema_of(command: str) -> dict[str, Any]:
    """The schema of what a command prints, with the definitions that it refers to.

    >>> schema_of("run-jax")["properties"]
    {'exit_code': {'type': 'integer'}}
    """
    whole = json.loads(resources.files("meshwright.commands").joinpath("schemas.json").read_text(encoding="utf-8"))
    commands: dict[str, Any] = whole["commands"]
    if command not in commands:
        near = get_close_matches(command, commands, 1)
        raise MeshwrightError(
            f"There is no command {command!r}.",
            why=f"there are {', '.join(commands)}",
            fix=f"meshwright schema {near[0] if near else 'explain'}",
        )
    found = commands[command]
    used = {name: whole["$defs"][name] for name in sorted(_references(found, whole["$defs"]))}
    title = f"What meshwright {command} --json prints"
    return {"$schema": whole["$schema"], "title": title, **found, **({"$defs": used} if used else {})}


def _references(part: Any, known: dict[str, Any]) -> set[str]:
    """The definitions that a part of a schema refers to, and those that these do."""
    if isinstance(part, list):
        return set().union(*(_references(one, known) for one in part))
    if not isinstance(part, dict):
        return set()
    name = str(part.get("$ref", "")).removeprefix("#/$defs/")
    found = {name} | _references(known[name], known) if name in known else set()
    return found.union(*(_references(one, known) for one in part.values()))

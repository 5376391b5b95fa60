"""The commands and what reads their arguments: each is the module of its name here, loaded when it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from meshwright.commands.examples import EXAMPLES

COMMANDS = {
    "tour": "the main job in a minute, or a topic in seconds",
    "calibrate": "measure the machine at hand and write its numbers to a chip file",
    "completion": "the script by which a shell completes commands and options",
    "cost": "what a program costs on a machine: FLOPs, bytes, communication, memory",
    "diff": "what changed in the communication of a program: collectives, bytes, seconds, memory",
    "explain": "why a program on a mesh communicates as it does, or why a value of it is sharded so",
    "kernel": "what a kernel copies, computes and sends at the same time",
    "launch": "run a script in several processes, as on several machines",
    "layout": "the mesh and the shardings in which a step is fastest on a machine",
    "matmul": "ways to multiply two split matrices, and which is the fastest",
    "opt": "run sharding passes on a module of StableHLO and sdy",
    "report": "a page about a program on a machine: time, memory, collectives, timeline, shardings",
    "reshard": "how an array gets from one sharding to another, and what that costs",
    "rules": "the factor rules of ops",
    "run-jax": "run a JAX script as it is, on Meshwright",
    "schema": "what a command prints with --json, as a JSON Schema",
    "search": "how to spread the training of a model over a machine",
    "serving": "how to serve a transformer on a machine, with answers in time",
    "simulate": "how long a program takes on a machine, as a timeline",
    "stages": "what each stage of the compiler makes of a program, and how long it takes",
    "visualize": "which devices hold which part of a tensor",
}


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples, each on a line of its own."""

    examples: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # that its arguments may be, for completion

    def format_help(self) -> str:
        """The help, and the examples."""
        shown = "".join(f"  {one}\n" for one in self.examples)
        return super().format_help() + (f"\nexamples:\n{shown}" if shown else "")


def module_of(name: str) -> Any:
    """The module of a command."""
    return import_module(f"meshwright.commands.{name.replace('-', '_')}")


def description_of(name: str) -> str:
    """What a command is for, as a sentence."""
    return f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}."


def command_parsers() -> Iterator[tuple[str, CommandParser]]:
    """Every command with its parser, all of it loaded."""
    for name in COMMANDS:
        parser = CommandParser(prog=f"meshwright {name}", description=description_of(name))
        module_of(name).describe(parser)
        parser.description = description_of(name)
        parser.examples = EXAMPLES[name]
        yield name, parser

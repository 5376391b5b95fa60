"""``meshwright cost``: the work of a program on a machine, op by op, without a timeline."""

from __future__ import annotations

import argparse
import json

from meshwright.commands.assumptions import assumptions
from meshwright.commands.machines import read_machine
from meshwright.commands.programs import describe_program, simulated
from meshwright.commands.simulate import UNFIT, facts
from meshwright.simulate.spmd import work


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "What a program costs: FLOPs, memory traffic, bytes over each axis of the mesh, memory."
    parser.epilog = f"{UNFIT} {assumptions()}"
    describe_program(parser)


def run(args: argparse.Namespace) -> int:
    """Count and print; 1 if the program does not fit into the chip's memory."""
    result = simulated(args, read_machine(args.hardware), work)
    if args.json:
        found = facts(result)
        for name in ("seconds", "exposed_seconds", "mfu", "hfu"):
            del found[name]
        print(json.dumps(found, indent=2))
    else:
        print(result.cost())
    return 0 if result.fits else 1

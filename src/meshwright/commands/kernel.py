"""``meshwright kernel``: what a kernel copies, computes and sends at the same time."""

from __future__ import annotations

import argparse
import json

from meshwright.chart.page import page
from meshwright.commands.machines import check_number
from meshwright.commands.programs import not_a_program, read_program
from meshwright.core.files import write_whole
from meshwright.core.program import Program
from meshwright.report.kernels import facts, kernel_picture, kernels_of, summary


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "What a kernel copies, computes and sends at the same time, in slots of time: in each a core computes once, "
        "and a block of each operand is copied. Numbers are left out, so any sizes will do."
    )
    parser.add_argument("program", metavar="PROGRAM", help="FILE.py:NAME, a function that calls a kernel, or a program")
    parser.add_argument("--args", metavar="TYPES", help="types of the function's arguments: 'f32[64,128] f32[128,64]'")
    parser.add_argument("--picture", action="store_true", help="draw the blocks, and what happens in each slot")
    parser.add_argument("--html", metavar="FILE", help="write the picture to FILE as a page instead of printing it")
    parser.add_argument("--slots", type=int, metavar="N", help="how many slots to draw (default: 12)")
    parser.add_argument("--devices", type=int, metavar="N", help="how many devices to draw (default: 2)")
    parser.add_argument("--json", action="store_true", help="print what every core does in every slot as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the picture, or what it shows in two lines."""
    sizes = {"slots": 12, "devices": 2}
    for name, default in sizes.items():
        check_number(args, name, default)
        sizes[name] = getattr(args, name) or default
    found = read_program(args.program, args.args)
    program = found if isinstance(found, Program) else getattr(found, "program", None)
    if not isinstance(program, Program):
        raise not_a_program("kernel", args.program, found)
    kernels = kernels_of(program)
    if args.html is not None:
        write_whole(args.html, page(f"Kernels of {args.program}", kernel_picture(program, **sizes).html()))
    if args.json:
        print(json.dumps([facts(one) for one in kernels], indent=2))
    elif args.picture and args.html is None:
        kernel_picture(program, **sizes).show()
    elif args.html is None:
        print("\n".join(line for one in kernels for line in summary(one.slots)))
    return 0

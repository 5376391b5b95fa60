"""``meshwright kernel``: what a kernel copies, computes and sends at the same time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from meshwright.chart.amounts import time_text
from meshwright.chart.gantt import timeline_part
from meshwright.chart.page import Cell, table_part, write_sheet
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, read_machine
from meshwright.commands.programs import not_a_program, read_program
from meshwright.commands.progress import working
from meshwright.core import dtypes
from meshwright.core.program import Program
from meshwright.core.text.types import parse_types
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.report.crossover import crossover, crossover_text
from meshwright.report.kernels import facts, kernel_picture, kernels_of, summary, write_kernels


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "What a kernel copies, computes and sends at the same time, in slots of time: in each a core computes once, "
        "and a block of each operand is copied. Numbers are left out, so any sizes will do."
    )
    parser.add_argument("program", metavar="PROGRAM", help="FILE.py:NAME, a function that calls a kernel, or a program")
    parser.add_argument("--args", metavar="TYPES", help="types of the function's arguments: 'f32[64,128] f32[128,64]'")
    parser.add_argument("--picture", action="store_true", help="draw the blocks, and what happens in each slot")
    parser.add_argument("--html", metavar="FILE", help="write it to FILE as a page, and with --picture do not print it")
    parser.add_argument("--slots", type=int, metavar="N", help="how many slots to draw (default: 12)")
    parser.add_argument("--devices", type=int, metavar="N", help="how many devices to draw (default: 2)")
    parser.add_argument("--hardware", metavar="MACHINE", help="time the kernel on this machine, 'tpu v5e 4x4', at some "
                        "sizes of the last dim, against a collective and computing after it")  # fmt: skip
    parser.add_argument("--perfetto", metavar="FILE", help="with --hardware: write the timeline for ui.perfetto.dev")
    parser.add_argument("--json", action="store_true", help="print what every core does in every slot as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the picture, or what it shows in two lines."""
    sizes = {"slots": 12, "devices": 2}
    for name, default in sizes.items():
        check_number(args, name, default)
        sizes[name] = getattr(args, name) or default
    if args.hardware is not None or args.perfetto is not None:
        return _on_hardware(args)
    found = read_program(args.program, args.args)
    program = found if isinstance(found, Program) else getattr(found, "program", None)
    if not isinstance(program, Program):
        raise not_a_program("kernel", args.program, found)
    kernels = kernels_of(program)
    for one in kernels:
        if not one.slots.count:
            raise _empty(one.slots.name)
    if args.html is not None:
        write_kernels(args.html, f"Kernels of {args.program}", program)
    if args.json:
        print(json.dumps([facts(one) for one in kernels], indent=2))
    elif args.picture and args.html is None:
        kernel_picture(program, **sizes).show()
    elif args.html is None:
        print("\n".join(line for one in kernels for line in summary(one.slots)))
    return 0


def _on_hardware(args: argparse.Namespace) -> int:
    """Print when the kernel is faster than its parts one after the other."""
    if args.hardware is None or args.args is None:
        raise MeshwrightError(
            f"{'--perfetto' if args.hardware is None else '--hardware'} needs "
            f"{'--hardware' if args.hardware is None else '--args'}.",
            why="a kernel takes time on a machine, at sizes of its arguments",
            fix="meshwright kernel model.py:f --args 'bf16[2048,8192] bf16[8192,4096]' --hardware 'tpu v5e 4x4'",
        )

    def trace(types: Sequence[TensorType]) -> Program:
        found = read_program(args.program, " ".join(f"{dtypes.short_name(t.dtype)}{list(t.shape)}" for t in types))
        program = found if isinstance(found, Program) else getattr(found, "program", None)
        if not isinstance(program, Program):
            raise not_a_program("kernel", args.program, found)
        return program

    with as_typed(), working(f"timing {args.program}"):
        rows, timeline = crossover(trace, parse_types(args.args), read_machine(args.hardware))
    if not timeline.spans:
        raise _empty(timeline.name)
    sends = any(row.sent_bytes for row in rows)
    if args.html is not None:
        heads = ["last dim", "kernel", "collective", "compute", "one after the other", "ratio"]
        cells: list[list[Cell]] = []
        for row in rows:
            times = row.kernel_seconds, row.collective_seconds, row.compute_seconds, row.apart_seconds
            cells.append([row.size, *((time_text(t), t) for t in times), round(row.ratio, 3)])
        parts = [timeline_part(timeline.chart())]
        if sends:
            parts.append(table_part("Beside computing, or after it", heads, cells))
        write_sheet(args.html, f"{timeline.name} on {timeline.topology.text}", parts, timeline.page_figures())
    if args.perfetto is not None:
        timeline.to_perfetto(args.perfetto)
    if args.json:
        print(json.dumps([row.facts() for row in rows], indent=2))
    else:
        print(timeline, *([crossover_text(rows, timeline)] if sends else []), sep="\n")
    return 0


def _empty(name: str) -> MeshwrightError:
    return MeshwrightError(
        f"{name} runs no step.",
        why="for arguments of these types its grid is empty",
        fix="--args of larger types: along each axis of the grid one block or more",
    )

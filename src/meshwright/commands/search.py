"""``meshwright search``: how to spread the training of a model over a machine."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from typing import Any

from meshwright.commands.machines import read_machine
from meshwright.core.sharding_text import read_integer
from meshwright.device.layered import GPT
from meshwright.device.search import SearchResult, grid_search
from meshwright.device.unrolled import MLP
from meshwright.errors import HardwareError, TextError
from meshwright.hardware.topology import Topology

# Layers, width and heads of the published models.
GPT2 = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}
_NAMED = ", ".join(GPT2)
_HEADINGS = ("data", "horizontal", "pipeline", "microbatches", "schedule", "zero", "recompute")


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Cost every way to spread a training step over a machine (data, horizontal and pipeline parallelism,"
        " microbatches, schedules, ZeRO, recomputation), and show the fastest that fit into memory."
    )
    parser.add_argument("--model", required=True,
                        help=f"mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS, or one of {_NAMED}")  # fmt: skip
    parser.add_argument("--batch", type=int, default=512, help="samples or sequences of a step (default: 512)")
    parser.add_argument("--devices", type=int, metavar="N", help="how many (default: all of the topology)")
    parser.add_argument("--topology", default="h100", metavar="MACHINE",
                        help="a chip ('h100'), or chips in a shape ('tpu v5p 4x4x4') (default: h100)")  # fmt: skip
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: 10)")
    parser.add_argument("--file", metavar="FILE.csv", help="keep the estimates there, and go on from those it has")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if nothing fits into the memory of a chip."""
    for name in ("batch", "devices", "top"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise TextError(f"--{name} is {value}.", why="it is a number from 1", fix=f"--{name} 8")
    model, machine = read_model(args.model, args.batch), _topology(args.topology, args.devices)
    try:
        found = grid_search(
            model, machine, args.batch, devices=args.devices or machine.size, path=args.file, progress=_progress
        )
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    if not len(found):
        raise TextError(
            f"No strategy puts {args.model} on {args.devices or machine.size} devices.",
            why=f"degrees must divide the batch of {args.batch}, the layers, and the width or heads of the model",
            fix="another --devices or --batch, such as powers of two",
        )
    if args.json:
        print(json.dumps(facts(found, machine, args), indent=2))
    else:
        print(table(found, args.top))
    return 0 if found.best is not None else 1


def read_model(text: str, batch: int) -> MLP | GPT:
    """A model by its name or its sizes.

    >>> read_model("mlp:16x8192", 64), read_model("gpt2", 64).parameters
    (MLP(layers=16, dim=8192, batch=64), 123532032)
    """
    if text in GPT2:
        return GPT(*GPT2[text])
    match = re.fullmatch(r"(mlp|gpt):([0-9]+(?:x[0-9]+)*)", text, re.ASCII)
    sizes = [read_integer(size) for size in match[2].split("x")] if match else []
    wanted = {"mlp": 2, "gpt": 3}.get(match[1], 0) if match else 0
    if not sizes or len(sizes) != wanted or not all(sizes):
        raise TextError(
            f"{text!r} is not a model.",
            why=f"a model is mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS with sizes from 1, or one of {_NAMED}",
            fix="--model mlp:16x8192",
        )
    numbers = [size for size in sizes if size is not None]
    return MLP(numbers[0], numbers[1], batch) if wanted == 2 else GPT(*numbers)


def _topology(text: str, devices: int | None) -> Topology:
    found = read_machine(text)
    if isinstance(found, Topology):
        if devices is not None and devices > found.size:
            raise HardwareError(
                f"{found.text} has {found.size} chips, not {devices}.",
                why="each device is a chip",
                fix=f"--devices {found.size}",
            )
        return found
    if devices is None:
        raise TextError(
            f"How many chips {found.name} is to have is not said.",
            why="neither --devices nor a shape in --topology is given",
            fix=f"--devices 64, or --topology '{found.name} 64'",
        )
    return Topology(found, devices)


def _progress(done: int, count: int) -> None:
    if sys.stderr.isatty() and (done % 16 == 0 or done == count):
        filled = 40 * done // count
        print(f"\r\033[K{'█' * filled}{'░' * (40 - filled)} {done} of {count}", end="", file=sys.stderr, flush=True)


def table(found: SearchResult, top: int) -> str:
    """The fastest as a table, and a line about all."""
    rows: list[tuple[str, ...]] = [(*_HEADINGS, "ms per step", "samples/s", "GB", "idle")]
    for e in found.estimates[:top]:
        s = e.strategy
        schedule = "" if s.pipeline == 1 else f"{s.schedule} {s.chunks}" if s.chunks > 1 else s.schedule
        rows.append(
            (
                *(str(n) for n in (s.data, s.horizontal, s.pipeline, s.microbatches)),
                schedule,
                str(s.zero),
                "yes" if s.recompute else "no",
                f"{e.seconds * 1e3:.4g}",
                f"{e.samples_per_s:.4g}",
                f"{e.peak_bytes / 1e9:.3g}" + ("" if e.fits else " does not fit"),
                f"{e.bubble_fraction:.0%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]
    fitting = sum(e.fits for e in found.estimates)
    return "\n".join([*lines, "", f"{len(found)} strategies, {fitting} fit, {len(found.pareto)} on the front"])


def facts(found: SearchResult, machine: Topology, args: argparse.Namespace) -> dict[str, Any]:
    """A search as JSON has it."""
    return {
        "model": args.model,
        "batch": args.batch,
        "hardware": machine.text,
        "devices": args.devices or machine.size,
        "strategies": len(found),
        "best": asdict(found.best) if found.best is not None else None,
        "fastest": [asdict(e) for e in found.estimates[: args.top]],
        "pareto": [asdict(e) for e in found.pareto],
    }

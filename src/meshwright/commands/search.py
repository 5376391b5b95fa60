"""``meshwright search``: how to spread the training of a model over a machine."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.commands.assumptions import assumptions
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, read_machine
from meshwright.commands.models import NAMED, model_of_file, read_model
from meshwright.errors import HardwareError, TextError
from meshwright.hardware.topology import Topology
from meshwright.search.strategies import MOST_WORKERS, Model, SearchResult, grid_search, strategies
from meshwright.search.strategy import facts_of

_HEADINGS = ("data", "tensor", "pipeline", "microbatches", "schedule", "zero", "recompute")
STOPPED = 130  # the exit code of what Ctrl-C ends


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Cost every way to spread a training step over a machine (data, tensor and pipeline parallelism,"
        " microbatches, schedules, ZeRO, recomputation), and show the fastest that fit into memory."
    )
    parser.epilog = "Exit code 1: nothing fits into the memory of a chip. " + assumptions(modes=False)
    parser.add_argument("program", nargs="?", metavar="FILE.py[:NAME]",
                        help="a Python file with a model: NAME, else `model`, else Config(). A model is a dist.GPT or "
                        "dist.MLP, a configuration of init, make_batch and train_step, or a function that returns "
                        "(step, params, batch)")  # fmt: skip
    parser.add_argument("--model", help=f"instead: mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS, or one of {NAMED}")
    parser.add_argument("--config", metavar="FIELDS", help="fields of the file's configuration: layers=24,dim=1024")
    parser.add_argument("--batch", type=int, default=512, help="samples or sequences of a step (default: 512)")
    parser.add_argument("--chips", type=int, metavar="N",
                        help="how many (default: all of a machine with a shape)")  # fmt: skip
    parser.add_argument("--hardware", "--chip", dest="hardware", default="h100", metavar="MACHINE",
                        help="a chip ('h100'), or chips in a shape ('tpu v5p 4x4x4') (default: h100)")  # fmt: skip
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: 10)")
    parser.add_argument("--file", metavar="FILE.csv",
                        help="keep estimates there (JSON by line in a .json), and go on from those it has")  # fmt: skip
    parser.add_argument("--prune", action="store_true", help="leave out what does not fit, or cannot be best")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core for long searches)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if nothing fits into the memory of a chip."""
    for name in ("batch", "chips", "top", "workers"):
        check_number(args, name)
    if args.workers is not None and args.workers > MOST_WORKERS:
        raise TextError(
            f"--workers is {args.workers}.",
            why=f"each is a process, and up to {MOST_WORKERS} are started",
            fix="--workers 8",
        )
    machine, model = read_chips(args.hardware, args.chips), _model(args)
    bar = _Bar()
    try:
        with as_typed(), _warnings_said():
            found = grid_search(
                model,
                machine,
                args.batch,
                devices=args.chips,
                path=args.file,
                prune=args.prune,
                progress=bar,
                workers=args.workers,
            )
    except KeyboardInterrupt:
        bar.clear()
        done = f"Stopped after {bar.done:,} of {bar.count:,} strategies." if bar.count else "Stopped before the first."
        kept = (
            f" What is done is in {args.file}; the same command goes on from there." if args.file and bar.done else ""
        )
        print(done + kept, file=sys.stderr)
        return STOPPED
    finally:
        bar.clear()
    if args.prune and not len(found) and next(strategies(model, args.chips or machine.size, args.batch), None):
        print("No strategy fits into the memory of a chip; without --prune they are listed.", file=sys.stderr)
        return 1
    if not len(found):
        raise TextError(
            f"No strategy puts {args.program or args.model} on {args.chips or machine.size} devices.",
            why=f"degrees must divide the batch of {args.batch}, the layers, and the width or heads of the model",
            fix="another --chips or --batch, such as powers of two",
        )
    if args.json:
        print(json.dumps(facts(found, machine, args), indent=2))
    else:
        print(table(found, args.top))
        if args.chips is not None and args.chips < machine.size:
            print(f"{machine.size - args.chips:,} of {machine.size:,} chips do nothing: --chips is {args.chips:,}")
    return 0 if found.best is not None else 1


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Print what is warned of as a line of its own: whoever typed a command wrote no line of code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *where: print(f"{message}.", file=sys.stderr)  # type: ignore[assignment]
        yield


def _model(args: argparse.Namespace) -> Model:
    if (args.program is None) == (args.model is None):
        raise TextError(
            "One model is searched for.",
            why="FILE.py and --model are both given" if args.program else "neither FILE.py nor --model is given",
            fix="meshwright search examples/gpt.py --chips 64 --hardware h100",
        )
    if args.model is not None:
        if args.config is not None:
            raise TextError("--config is for a FILE.py.", why="--model has its sizes in its name", fix="leave it out")
        return read_model(args.model, args.batch)
    return model_of_file(args.program, args.config)


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self) -> None:
        self.done = self.count = 0

    def __call__(self, done: int, count: int) -> None:
        self.done, self.count = done, count
        if sys.stderr.isatty() and (done % 16 == 0 or done == count):
            filled = 40 * done // count
            bar = f"{'█' * filled}{'░' * (40 - filled)} {done:,} of {count:,}"
            print(f"\r\033[K{bar}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def read_chips(text: str, devices: int | None) -> Topology:
    """The machine that ``--hardware`` and ``--chips`` name."""
    found = read_machine(text)
    if isinstance(found, Topology):
        if devices is not None and devices > found.size:
            raise HardwareError(
                f"{found.text} has {found.size} chips, not {devices}.",
                why="each device is a chip",
                fix=f"--chips {found.size}",
            )
        return found
    if devices is None:
        raise TextError(
            f"How many chips {found.name} is to have is not said.",
            why="neither --chips nor a shape in --hardware is given",
            fix=f"--chips 64, or --hardware '{found.name} 64'",
        )
    with as_typed():
        return Topology(found, devices)


def table(found: SearchResult, top: int) -> str:
    """The fastest as a table, and a line about all."""
    rows: list[tuple[str, ...]] = [(*_HEADINGS, "ms per step", "samples/s", "GB", "idle")]
    for e in found.estimates[:top]:
        s = e.strategy
        schedule = "" if s.pipeline == 1 else f"{s.schedule} {s.chunks}" if s.chunks > 1 else s.schedule
        rows.append(
            (
                *(str(n) for n in (s.data, s.tensor, s.pipeline, s.microbatches)),
                schedule,
                str(s.zero),
                s.recompute,
                f"{e.seconds * 1e3:.4g}",
                f"{e.samples_per_s:.4g}",
                f"{e.peak_bytes_per_device / 1e9:.3g}" + ("" if e.fits else " does not fit"),
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
        "model": args.program or args.model,
        "batch": args.batch,
        "hardware": machine.text,
        "devices": args.chips or machine.size,
        "idle_chips": machine.size - (args.chips or machine.size),
        "strategies": len(found),
        "best": facts_of(found.best) if found.best is not None else None,
        "fastest": [facts_of(e) for e in found.estimates[: args.top]],
        "pareto": [facts_of(e) for e in found.pareto],
    }

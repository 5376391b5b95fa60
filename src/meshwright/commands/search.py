"""``meshwright search``: how to spread the training of a model over a machine."""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.gantt import timeline_part
from meshwright.chart.page import Cell, Figure, Part, table_part, text_part, write_sheet
from meshwright.commands.assumptions import assumptions
from meshwright.commands.files import check_folder
from meshwright.commands.fixes import as_typed
from meshwright.commands.machines import check_number, read_machine
from meshwright.commands.models import NAMED, model_of_file, read_model
from meshwright.errors import HardwareError, TextError
from meshwright.hardware.roofline import MODES
from meshwright.hardware.topology import Topology
from meshwright.search.explained import compare_chart
from meshwright.search.explained_strategies import compared, strategy_name
from meshwright.search.result import SearchResult
from meshwright.search.strategies import MOST_WORKERS, Model, grid_search
from meshwright.search.strategy import Estimate, facts_of
from meshwright.search.traced import Traced
from meshwright.search.transformer_plan import transformer_of
from meshwright.simulate.pipelines import SCHEDULES
from meshwright.simulate.transformer.strategy import ELSEWHERE, RECOMPUTE, Strategy

BATCH = 512  # samples, or sequences, if nothing is said
MOST_BATCH = 1 << 32
STOPPED = 130  # the exit code of what Ctrl-C ends
FIRST_SECONDS, LINE_SECONDS, BAR_SECONDS = 2.0, 10.0, 0.2  # until something is said, and between
_ALWAYS = ("schedule",)
_DEGREES = ("tensor", "pipeline", "context", "expert", "microbatches", "microbatch", "chunks")


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Find the fastest way to spread a training step over a machine that fits into its memory: data, tensor,"
        " pipeline, context and expert parallelism, microbatches, schedules, ZeRO, recomputation."
    )
    parser.epilog = "Exit code 1: nothing fits into the memory of a chip. " + assumptions()
    parser.add_argument("program", nargs="?", metavar="FILE.py[:NAME]",
                        help="a Python file with a model: NAME, else `model`, else Config(). A model is a dist.GPT, "
                        "dist.MLP or TransformerShape, a configuration of init, make_batch and train_step, or a "
                        "function that returns (step, params, batch)")  # fmt: skip
    parser.add_argument("--model", "--transformer", dest="model",
                        help="instead: mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS, the sizes of a transformer "
                        f"(layers=80,width=8192,…), or one of {NAMED}")  # fmt: skip
    parser.add_argument("--config", metavar="FIELDS", help="fields of the file's configuration: layers=24,dim=1024")
    parser.add_argument("--batch", type=int,
                        help="samples or sequences of a step (default: of FILE.py's own step as many as it has, else "
                        f"{BATCH})")  # fmt: skip
    parser.add_argument("--sequence", type=int, metavar="N",
                        help="tokens of a sequence of a transformer (default: 2048; of GPT-2, 1024)")  # fmt: skip
    parser.add_argument("--chips", type=int, metavar="N",
                        help="how many (default: all of a machine with a shape)")  # fmt: skip
    parser.add_argument("--hardware", "--chip", dest="hardware", default="h100", metavar="MACHINE",
                        help="a chip ('h100'), or chips in a shape ('tpu v5p 4x4x4') (default: h100)")  # fmt: skip
    parser.add_argument("--memory", type=float, metavar="GB", help="of a chip (default: what it has)")
    parser.add_argument("--mode", default="exact", choices=MODES, help="how times are reckoned (default: exact)")
    for name in _DEGREES:
        said = {"microbatch": "sizes of a microbatch", "microbatches": "counts of microbatches"}
        parser.add_argument(f"--{name}", metavar="N,N,…", help=f"only these {said.get(name, f'degrees of {name}')}")
    parser.add_argument("--zero", metavar="N,N,…", help="only these of 0, 1, 2, 3")
    parser.add_argument("--recompute", metavar="WORDS", help=f"only these of {', '.join(RECOMPUTE)}")
    parser.add_argument("--schedules", metavar="WORDS", help=f"only these of {', '.join(SCHEDULES)}")
    parser.add_argument("--no-flash", action="store_true", help="attention as several kernels, with its scores written")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: 10)")
    parser.add_argument("--file", metavar="FILE.csv",
                        help="keep estimates there (JSON by line in a .json), and go on from those it has")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="simulate what bounds rule out, too")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core for long searches)")
    parser.add_argument("--explain", action="store_true",
                        help="say what bounds the best strategy of a transformer or of FILE.py, what others lose, and "
                        "what would make another best")  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="write the answer to FILE as a page, too")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 if nothing fits into the memory of a chip."""
    _check(args)
    machine, model, space = read_chips(args.hardware, args.chips), _model(args), _space(args)
    memory = None if args.memory is None else args.memory * 1e9
    watch = _SearchWatch()
    try:
        with as_typed(), _warnings_said():
            found = grid_search(
                model,
                machine,
                args.batch,
                devices=args.chips,
                mode=args.mode,
                sequence=args.sequence,
                memory_bytes=memory,
                path=args.file,
                prune=not args.all,
                top=args.top,
                progress=watch.progress,
                better=watch.better,
                workers=args.workers,
                **space,
            )
    except KeyboardInterrupt:
        watch.clear()
        print(watch.stopped(args.file), file=sys.stderr)
        return STOPPED
    finally:
        watch.clear()
    if not len(found):
        raise TextError(
            f"No strategy puts {args.program or args.model} on {args.chips or machine.size} devices.",
            why=f"degrees must divide the batch of {args.batch}, the layers, and the width or heads of the model",
            fix="another --chips or --batch, such as powers of two",
        )
    searched = Searched(found, model, machine, args)
    if args.html is not None:
        searched.write(args.html)
    print(json.dumps(searched.facts(), indent=2) if args.json else searched.text())
    if args.explain and not args.json and found.best is not None:
        print(f"\n{found.explain()}")
    return 0 if found.best is not None else 1


def _check(args: argparse.Namespace) -> None:
    check_folder(args.html)
    for name in ("batch", "chips", "top", "workers", "sequence"):
        check_number(args, name)
    if args.batch is not None and args.batch > MOST_BATCH:
        raise TextError(f"--batch is {args.batch}.", why=f"it is a number from 1 to {MOST_BATCH}", fix="--batch 512")
    if args.memory is not None and not 0 < args.memory < 1e12:
        raise TextError(f"--memory is {args.memory:g}.", why="it is a number of GB above 0", fix="--memory 80")
    if args.workers is not None and args.workers > MOST_WORKERS:
        raise TextError(
            f"--workers is {args.workers}.",
            why=f"each is a process, and up to {MOST_WORKERS} are started",
            fix="--workers 8",
        )


def _space(args: argparse.Namespace) -> dict[str, Any]:
    """What the options leave of the strategies."""
    found: dict[str, Any] = {"flash": not args.no_flash}
    for name in (*_DEGREES, "zero"):
        if getattr(args, name) is not None:
            found[name] = [_number(name, word) for word in getattr(args, name).split(",")]
    for name, known in (("recompute", RECOMPUTE), ("schedules", tuple(SCHEDULES))):
        if getattr(args, name) is not None:
            words = [ELSEWHERE.get(word.strip(), word.strip()) for word in getattr(args, name).split(",")]
            wrong = [word for word in words if word not in known]
            if wrong:
                raise TextError(
                    f"--{name} has {wrong[0]!r}.",
                    why=f"it is of {', '.join(known)}",
                    fix=f"--{name} {','.join(known[:2])}",
                )
            found[name] = words
    return found


def _number(name: str, word: str) -> int:
    if not word.strip().isdecimal() or not int(word) >= (name != "zero") or (name == "zero" and int(word) > 3):
        why = "it is of 0, 1, 2, 3" if name == "zero" else "it has numbers from 1"
        raise TextError(
            f"--{name} has {word.strip()!r}.", why=why, fix=f"--{name} {'0,1' if name == 'zero' else '1,2'}"
        )
    return int(word)


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
        args.batch = args.batch or BATCH
        model: Model = read_model(args.model, args.batch)
    else:
        model, own = model_of_file(args.program, args.config)
        args.batch = args.batch or own or BATCH
    if args.explain and not isinstance(model, Traced) and transformer_of(model) is None:
        raise TextError(
            "--explain is of a transformer, or of a traced step.",
            why="an MLP by its sizes is not known by its parts",
            fix="leave it out, or --model llama3-70b, or FILE.py",
        )
    if args.sequence is not None and transformer_of(model) is None:
        raise TextError(
            "--sequence is of a transformer.",
            why="an MLP has no sequences, and a step that is traced has its own",
            fix="leave it out, or --model llama3-70b",
        )
    return model


class _SearchWatch:
    """What is said of a search that goes on: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.done = self.count = 0
        self.best: Estimate | None = None
        self.start = monotonic()
        self.due = self.start + FIRST_SECONDS
        self.shown = False

    def better(self, found: Estimate) -> None:
        self.best = found

    def progress(self, done: int, count: int) -> None:
        self.done, self.count = done, count
        now = monotonic()
        if now < self.due and done < count:
            return
        if sys.stderr.isatty():
            self.due, self.shown = now + BAR_SECONDS, True
            filled = 30 * done // count
            bar = f"{'█' * filled}{'░' * (30 - filled)} {done:,} of {count:,}{self._best(', ')}"
            print(f"\r\033[K{bar[:110]}", end="", file=sys.stderr, flush=True)
        elif now >= self.due:
            self.due = now + LINE_SECONDS
            print(f"{done:,} of {count:,} strategies{self._best('; ')}", file=sys.stderr, flush=True)

    def _best(self, before: str) -> str:
        return f"{before}best so far {_seconds(self.best)}: {self.best.strategy}" if self.best is not None else ""

    def stopped(self, path: str | None) -> str:
        """What is said when it is stopped."""
        if not self.count:
            return "Stopped before the first."
        kept = f" What is done is in {path}; the same command goes on from there." if path and self.done else ""
        return f"Stopped after {self.done:,} of {self.count:,} strategies.{kept}"

    def clear(self) -> None:
        if self.shown and sys.stderr.isatty():
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
    try:
        with as_typed():
            return Topology(found, devices)
    except HardwareError as error:
        error.fix = re.sub(rf"--hardware '{re.escape(found.name)} (\d+)'", r"--chips \1", error.fix)
        raise


class Searched:
    """A search and what it was asked, as text and as JSON."""

    def __init__(self, found: SearchResult, model: Model, machine: Topology, args: argparse.Namespace) -> None:
        self.found, self.machine, self.args = found, machine, args
        self.name, self.batch = args.program or args.model, args.batch
        self.chips = args.chips or machine.size
        sizes = transformer_of(model, args.sequence)
        self.sequence = sizes[1] if sizes is not None else None
        self.parameters = sizes[0].parameters if sizes is not None else getattr(model, "parameters", None)
        self.memory = machine.chip.hbm_bytes if args.memory is None else args.memory * 1e9

    def header(self) -> str:
        """What was searched for, and what is assumed."""
        size = f", {self.parameters / 1e9:.3g} B parameters" if isinstance(self.parameters, int) else ""
        tokens = ""
        if self.sequence is not None:
            tokens = f" sequences of {self.sequence:,} tokens, {self.batch * self.sequence:,} tokens in all"
        rates = {"exact": "peak rates", "asymptotic": "peak rates, large groups"}.get(self.args.mode, "measured rates")
        return (
            f"{self.name}{size}; a step of {self.batch:,}{tokens or ' samples'}\n"
            f"on {self.chips:,} chips of {self.machine.text}, {self.memory / 1e9:.4g} GB each; {rates}, "
            "transfers beside compute (docs/assumptions.md)"
        )

    def text(self) -> str:
        """A header, the fastest as a table, and a line about all."""
        shown = self.found[: self.args.top]
        rows = [self._row(e) for e in shown]
        headings = [name for name in rows[0] if any(row[name] for row in rows) or name in _ALWAYS]
        cells = [headings, *([row[name] for name in headings] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([self.header(), "", *lines, "", *self._end()])

    def _end(self) -> list[str]:
        found = self.found
        fitting = sum(e.fits for e in found)
        if self.args.all:
            count = f"{found.considered:,} strategies, {fitting:,} fit"
        else:
            count = f"{found.considered:,} strategies, {found.simulated:,} simulated, bounds rule out the others"
        lines = [f"{count}; {len(found.pareto):,} on the front of time and memory"]
        if found.best is None:
            least = min(e.peak_bytes_per_device for e in found)
            lines = [f"{found.considered:,} strategies, none fits: the least needs {size_text(least)} a chip"]
        if self.chips < self.machine.size:
            idle = self.machine.size - self.chips
            lines.append(f"{idle:,} of {self.machine.size:,} chips do nothing: --chips is {self.chips:,}")
        return lines

    def _row(self, e: Estimate) -> dict[str, str]:
        s = e.strategy
        schedule = "" if s.pipeline == 1 else f"{s.schedule} {s.chunks}" if s.chunks > 1 else s.schedule
        return {
            "data": str(s.data),
            "tensor": str(s.tensor),
            "pipeline": str(s.pipeline),
            "context": str(s.context) if s.context > 1 else "",
            "expert": str(s.expert) if s.expert > 1 else "",
            "microbatches": f"{s.microbatches} of {self.size(s)}",
            "schedule": schedule,
            "zero": str(s.zero),
            "recompute": s.recompute,
            "sequence parallel": "yes" if s.sequence_parallel else "",
            "ms per step": f"{e.seconds * 1e3:.4g}",
            "samples/s": f"{e.samples_per_s:.4g}",
            "GB": f"{e.peak_bytes_per_device / 1e9:.3g}" + ("" if e.fits else " does not fit"),
            "idle": f"{e.bubble_fraction:.0%}",
        }

    def size(self, s: Strategy) -> int:
        """Sequences or samples of a microbatch."""
        return int(self.batch) // (s.data * s.expert * s.microbatches)

    def write(self, path: str) -> None:
        """The answer as a page: where the time of the fastest goes, and all that was found."""
        found, best = self.found, self.found.best
        figures: list[Figure] = []
        parts: list[Part] = []
        if best is not None:
            figures = [
                ("a step", time_text(best.seconds), strategy_name(best.strategy)),
                ("samples", f"{best.samples_per_s:.4g}/s", f"of {self.batch:,} in a step"),
                ("memory", size_text(best.peak_bytes_per_device), f"of {size_text(self.memory)} of a chip"),
                ("strategies", f"{found.considered:,}", f"{found.simulated:,} simulated"),
            ]
        rows = compared(found.estimates, found.asked) if found.asked is not None else []
        if rows:
            parts.append(timeline_part(compare_chart("Seconds of a step", rows)))
        front = set(found.pareto)
        cells = [{**self._row(e), "front": "yes" if e in front else ""} for e in found]
        heads = [name for name in cells[0] if any(row[name] for row in cells)]
        parts.append(table_part("Strategies", heads, [[_cell(row[name]) for name in heads] for row in cells]))
        texts = [self.header(), *self._end()]
        parts.append(text_part("", "\n".join(texts + (["", found.explain()] if self.args.explain and best else []))))
        write_sheet(path, f"{self.name} on {self.chips:,} chips of {self.machine.text}", parts, figures)

    def facts(self) -> dict[str, Any]:
        """A search as JSON has it."""
        found, best = self.found, self.found.best
        return {
            "model": self.name,
            "parameters": self.parameters,
            "batch": self.batch,
            "sequence": self.sequence,
            "hardware": self.machine.text,
            "mode": self.args.mode,
            "memory_bytes": self.memory,
            "devices": self.chips,
            "idle_chips": self.machine.size - self.chips,
            "strategies": found.considered,
            "simulated": found.simulated,
            "best": self._facts(best) if best is not None else None,
            "fastest": [self._facts(e) for e in found[: self.args.top]],
            "pareto": [self._facts(e) for e in found.pareto],
            **({"explanation": found.explain()} if self.args.explain and best is not None else {}),
        }

    def _facts(self, e: Estimate) -> dict[str, Any]:
        return {**facts_of(e), "microbatch": self.size(e.strategy)}


def _cell(text: str) -> Cell:
    """What is shown, sorted by its first number if it begins with one."""
    number = re.match(r"[0-9.]+(e[+-]?\d+)?", text)
    return (text, float(number[0])) if number else text


def _seconds(found: Estimate | None) -> str:
    return time_text(found.seconds) if found is not None else ""

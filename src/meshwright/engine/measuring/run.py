"""The run: every case timed, its record kept, whatever happens to the others."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from math import ceil, prod
from typing import Any

import numpy as np

from meshwright.core.files import write_whole
from meshwright.engine.measuring.cases import ITEM, SCALES, Case, Unsupported, cases, operands, random_cases
from meshwright.engine.measuring.with_jax import Jax
from meshwright.engine.measuring.with_numpy import Numpy
from meshwright.engine.measuring.with_torch import Torch
from meshwright.engine.measuring.work import work

FORMAT = 1
BACKENDS: dict[str, Callable[[bool], Any]] = {"jax": Jax, "torch": Torch, "numpy": Numpy}


def available() -> str:
    """The best framework that is there: jax, torch or numpy."""
    return next((name for name in ("jax", "torch") if importlib.util.find_spec(name)), "numpy")


# Measuring.


class Budget:
    """Seconds that a whole run may take."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.perf_counter(), seconds

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.start


def timed(
    call: Callable[[int], Any], wait: Callable[[Any], None], repeats: int, length: float
) -> tuple[list[float], int]:
    """Seconds per call in each repetition; a repetition queues enough calls to last about ``length`` seconds."""

    def seconds(number: int) -> float:
        start = time.perf_counter()
        for index in range(number):
            out = call(index)
        wait(out)
        return (time.perf_counter() - start) / number

    first = seconds(1)
    once = min(first, seconds(2))
    number = max(1, min(400, ceil(length / max(once, 1e-7))))
    seconds(max(1, number // 2))  # clocks rise, allocators warm up
    return [seconds(number) for _ in range(repeats)], number


def roughly(kernels: Iterable[dict[str, Any]]) -> float:
    """About how many seconds kernels take on an accelerator: to know how many of them to time together."""
    total = 0.0
    for one in kernels:
        flops = one.get("flops", 0) + 2 * prod(one.get(name, 0) for name in ("m", "k", "n")) * one.get("batch", 1)
        sides = ("images", "side", "side", "kernel", "kernel", "in", "out")
        flops += 2 * prod(one.get(name, 0) for name in sides)
        moved = one.get("read", 0) + one.get("written", 0)
        total += one["count"] * (2e-6 + flops / 4e14 + moved / 4e12)
    return total


def measure_case(backend: Any, case: Case, repeats: int, length: float) -> dict[str, Any]:
    """The record of one case."""
    facts: dict[str, Any] = {}
    if case.part == "step":
        function, state, batch = backend.step(case)
        function, facts = backend.compiled(function, state, *batch)
        box = [state]
        del state

        def call(index: int) -> Any:
            box[0], value = function(box[0], *batch)
            return value

        times, number = timed(call, backend.wait, repeats, 5 * length)
        if backend.on_accelerator:
            try:
                facts["kernels"] = backend.kernels(lambda: [call(0) for _ in range(2)])
                facts["kernels_steps"] = 2
            except Exception as error:
                facts["kernels_error"] = repr(error)[:300]
    else:
        function, shapes = backend.function(case), operands(case)
        size = sum(prod(shape) * (4 if dtype.startswith("below") else ITEM[dtype]) for shape, dtype in shapes)
        # Inputs rotate, so that they come from memory and not from a cache that still holds them.
        sets = max(4, min(24, ceil(2.5e8 / size))) if backend.on_accelerator else max(1, min(8, ceil(1e8 / size)))
        if case.op == "scatter":
            sets = 1  # several in one program would share the zeros they add to
        inputs = [
            [backend.array(shape, dtype, 31 * i + j) for j, (shape, dtype) in enumerate(shapes)] for i in range(sets)
        ]
        if case.op.startswith("all_"):
            inputs = [[backend.spread(array, case.sizes["devices"]) for array in one] for one in inputs]
        together = 1
        if backend.name == "jax" and backend.on_accelerator and case.op != "nothing" and not case.op.startswith("all_"):
            # Many in one program, so that the host's calls do not count.
            rounds = max(3, min(64, ceil(4e-3 / (sets * roughly(work(case, "jax"))))))
            looped, together = backend.repeated(case, rounds), sets * rounds
            backend.wait(looped(inputs))
            with suppress(Exception):
                facts["kernels"] = backend.kernels(lambda: looped(inputs))
            function, inputs, sets = looped, [[inputs]], 1
        results: list[Any] = [None] * min(sets, 4)

        def call(index: int) -> Any:
            out = results[index % len(results)] = function(*inputs[index % len(inputs)])
            return out

        times, number = timed(call, backend.wait, repeats, length)
        times = [seconds / together for seconds in times]
        facts |= {"together": together}
    return {
        **asdict(case), "name": case.name, "seconds": times, "calls": number, **facts, "work": work(case, backend.name),
    }  # fmt: skip


def measure(
    framework: str,
    *,
    quick: bool = False,
    size: str = "",
    budget: float = 330.0,
    draw: int = 0,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda raw: None,
) -> dict[str, Any]:
    """Measure every case and return the raw measurements; ``save`` is given them as they grow."""
    clock = Budget(budget)
    backend = BACKENDS[framework](quick)
    level = size or ("quick" if quick else "accelerator" if backend.on_accelerator else "cpu")
    scale = SCALES[level]
    raw: dict[str, Any] = {
        "format": FORMAT,
        "framework": framework,
        "machine": {
            **backend.facts, "host": platform.machine(), "system": platform.system(), "cores": os.cpu_count(),
            "python": platform.python_version(), "numpy": np.__version__,
        },
        "sizes": level,
        "when": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "measurements": [],
        "failed": [],
    }  # fmt: skip
    todo = random_cases(scale, draw, seed) if draw else [*cases(scale), *backend.collectives(scale)]
    if framework == "numpy":  # what is bf16 elsewhere is f32 here, once
        plain = (Case(case.part, case.op, "f32", case.sizes) for case in todo if case.part != "step")
        todo = list({case.name: case for case in reversed(list(plain))}.values())[::-1]
    repeats, length = (3, 0.002) if quick else (8, 0.02)
    saved = 0.0
    if backend.on_accelerator:  # clocks rise with load
        with suppress(Exception):
            measure_case(backend, cases(scale)[-2], 3, 0.2)
    for number, case in enumerate(todo, 1):
        start = time.perf_counter()
        if clock.spent > budget:
            raw["failed"].append({**asdict(case), "why": "no time left"})
            continue
        try:
            large = case.op == "matmul" and prod(case.sizes.values()) > 3e10  # long enough for clocks to fall
            with limited(150 if case.part == "step" else 60):
                record = measure_case(backend, case, repeats, length * (2.5 if large else 1))
            raw["measurements"].append(record)
            best = sorted(record["seconds"])[len(record["seconds"]) // 2]
            said = f"{best * 1e6:12.1f} µs"
        except Unsupported as error:
            raw["failed"].append({**asdict(case), "why": f"unsupported: {error}"})
            said = f"skipped: {error}"
        except (Exception, TimeoutError) as error:
            raw["failed"].append({**asdict(case), "why": repr(error)[:500]})
            said = f"failed: {repr(error)[:150]}"
        say(
            f"{number:3}/{len(todo)} {clock.spent:6.1f} s (+{time.perf_counter() - start:4.1f})  {case.name:<60} {said}"
        )
        if clock.spent - saved > 2:
            save(raw)
            saved = clock.spent
    raw["took_seconds"] = clock.spent
    save(raw)
    return raw


class limited:
    """Raises TimeoutError in the body after some seconds, where the system can."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        try:
            self.before = signal.signal(signal.SIGALRM, self._stop)
            signal.alarm(self.seconds)
        except (ValueError, AttributeError):  # not the main thread, or no such signal
            self.before = None

    def _stop(self, *unused: object) -> None:
        raise TimeoutError(f"took more than {self.seconds} s")

    def __exit__(self, *unused: object) -> None:
        if self.before is not None:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, self.before)


def raw_text(raw: dict[str, Any]) -> str:
    """The text of a file of measurements: one a line."""
    lists = ("measurements", "failed")
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in raw.items() if key not in lists]
    for key in lists:
        parts.append(f' "{key}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in raw.get(key, [])) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Measure, or describe the work of a file's measurements anew."""
    parser = argparse.ArgumentParser(description="Measure the machine at hand; raw times go to a JSON file.")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the measurements go")
    parser.add_argument("--framework", choices=sorted(BACKENDS), default=available())
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a test of this script, not of the machine")
    parser.add_argument("--size", choices=sorted(SCALES), default="", help="sizes for what (default: by the device)")
    parser.add_argument("--budget", type=float, default=330.0, metavar="SECONDS", help="time for the whole run")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N ops of random kinds and sizes instead")
    parser.add_argument("--seed", type=int, default=0, help="which random ops")
    parser.add_argument("--describe", metavar="RAW", help="only write RAW's measurements with their work listed anew")
    args = parser.parse_args()
    if args.describe:
        with open(args.describe, encoding="utf-8") as file:
            raw = json.load(file)
        for row in raw["measurements"]:
            case = Case(row["part"], row["op"], row["dtype"], row["sizes"])
            row["work"] = work(case, raw["framework"])
        write_whole(args.out, raw_text(raw))
        return 0
    raw = measure(
        args.framework,
        quick=args.quick,
        size=args.size,
        budget=args.budget,
        draw=args.random,
        seed=args.seed,
        say=lambda line: print(line, flush=True),
        save=lambda raw: write_whole(args.out, raw_text(raw)),
    )
    failed = [row for row in raw["failed"] if not row["why"].startswith("unsupported")]
    print(f"{len(raw['measurements'])} measured, {len(raw['failed'])} not, in {raw['took_seconds']:.0f} s: {args.out}")
    return 1 if failed else 0

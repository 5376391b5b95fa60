"""Long comparisons, in pieces that can be stopped and taken up again.

    python -m tests.oracle.sweep passes --modules 20000 --jobs 2 --into passes.jsonl
    python -m tests.oracle.sweep orders --modules 10000 --into orders.jsonl
    python -m tests.oracle.sweep local --modules 2200 --into local.jsonl

A line of the file is what came of the modules of some seeds; those that are in it are not run again. ``--jobs`` runs
that many processes, ``--seconds`` begins nothing more after some time. An error is a difference of its seed. The end
of the output is the sum of the whole file. The exit code is 1 if anything differs without a reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jaxlib

from tests.oracle.each_pass import all_compared
from tests.oracle.local_runs import run
from tests.oracle.test_order_free import results

CHUNK, ORDERS, FIRST = 25, 5, 1000


def passes(seeds: range, share: float) -> dict[str, Any]:
    """Every pass, or each with some chance, on modules, beside Shardy's."""
    found = all_compared(seeds, share)
    reasons = sum((one.reasons for one in found), Counter[str]())
    return {
        "modules": sum(one.passes > 0 for one in found),
        "compared": sum(one.passes for one in found),
        "reasons": dict(reasons),
        "differences": [line for one in found for line in one.differences],
    }


def orders(seeds: range, share: float) -> dict[str, Any]:
    """``-mw-propagate`` on programs in several orders, and the bytes of its shardings beside Shardy's."""
    found = {seed: results(seed, ORDERS) for seed in seeds}
    finite = [(ours, theirs) for _, ours, theirs in found.values() if max(ours, theirs) < float("inf")]
    return {
        "modules": len(found),
        "compared": len(found) * ORDERS,
        "bytes": sum(ours for ours, _ in finite),
        "bytes of Shardy": sum(theirs for _, theirs in finite),
        "differences": [f"seed {seed}: {count} results" for seed, (count, _, _) in found.items() if count > 1],
    }


def local(seeds: range, share: float) -> dict[str, Any]:
    """Modules after ``-sdy-convert-global-to-local`` on eight devices, beside the whole ones on one."""
    found = {seed: run(seed) for seed in seeds}
    return {
        "modules": len(found),
        "compared": sum(wrong is not None for wrong in found.values()),
        "differences": [f"seed {seed}, {wrong}" for seed, wrong in found.items() if wrong],
    }


SWEEPS: dict[str, Callable[[range, float], dict[str, Any]]] = {"passes": passes, "orders": orders, "local": local}


def piece(sweep: str, seeds: range, share: float, end: float) -> dict[str, Any] | None:
    """What came of some seeds; None if it is too late to begin."""
    if time.time() > end:
        return None
    return {"first": seeds.start, "jaxlib": jaxlib.__version__, **compared(SWEEPS[sweep], seeds, share)}


def compared(sweep: Callable[[range, float], dict[str, Any]], seeds: range, share: float) -> dict[str, Any]:
    """What a sweep finds. An error is a difference, too: that of its seed, by which the others are not lost."""
    try:
        return sweep(seeds, share)
    except Exception as error:
        if len(seeds) == 1:
            return {"modules": 1, "differences": [f"seed {seeds[0]}, {type(error).__name__}: {error}"]}
    return total([compared(sweep, range(seed, seed + 1), share) for seed in seeds])


def pieces(sweep: str, seeds: list[range], share: float, jobs: int, end: float) -> Iterator[dict[str, Any] | None]:
    """The same for many, in several processes, in the order in which they are done."""
    if jobs == 1:
        yield from (piece(sweep, some, share, end) for some in seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(piece, sweep, some, share, end) for some in seeds]):
            yield future.result()


def total(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of lines of a file, or of what came of some seeds."""
    found: dict[str, Any] = {"differences": []}
    for line in lines:
        for key, value in line.items():
            if key == "reasons":
                found[key] = dict(Counter(found.get(key, {})) + Counter(value))
            elif key == "differences":
                found[key] += value
            elif key not in ("first", "jaxlib"):
                found[key] = found.get(key, 0) + value
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sweep", choices=SWEEPS)
    parser.add_argument("--modules", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of passes, the chance that a module goes through each"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which nothing more is begun")
    parser.add_argument("--into", type=Path, required=True, help="the file that has what was found")
    options = parser.parse_args()
    until = time.time() + options.seconds
    known = options.into.read_text().splitlines() if options.into.exists() else []
    done = {json.loads(line)["first"] for line in known}
    end = options.first + options.modules
    seeds = [range(n, min(n + CHUNK, end)) for n in range(options.first, end, CHUNK) if n not in done]
    with options.into.open("a") as file:
        for found in pieces(options.sweep, seeds, options.share, options.jobs, until):
            if found is not None:
                file.write(json.dumps(found) + "\n")
                file.flush()
    lines = [json.loads(line) for line in options.into.read_text().splitlines()]
    summed = {"jaxlib": sorted({line["jaxlib"] for line in lines}), **total(lines)}
    print(json.dumps(summed, indent=2))
    return 1 if summed["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())

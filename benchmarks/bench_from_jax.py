"""A train step of JAX read, laid out and partitioned here, beside JAX's own trace, lowering and compilation.

python benchmarks/bench_from_jax.py [--layers 32] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from time import perf_counter
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
from bench_partition import LAYOUTS, train_step
from hlo_bytes import moved_bytes
from timing import Measured, Row, report, row

import meshwright as mw
from meshwright.interop.jax import from_jax

BAR = 0.3


def timed(lower: Any, arguments: Any) -> tuple[Any, float]:
    """A step compiled, and the seconds that it took."""
    start = perf_counter()
    return lower(*arguments).compile(), perf_counter() - start


def both(layout: str, layers: int) -> tuple[Any, float, Any, float]:
    """A step compiled here and by JAX, each with its seconds."""
    ours, theirs = train_step(LAYOUTS[layout], layers, jax_too=True)
    assert theirs is not None
    read = from_jax(partial(theirs.function, config=theirs.config))
    mine, seconds = timed(mw.jit(read, out_shardings=ours.outs).lower, ours.arguments)
    jitted = jax.jit(partial(theirs.function, config=theirs.config), out_shardings=theirs.outs)
    other, their_seconds = timed(jitted.lower, theirs.arguments)
    return mine, seconds, other, their_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[Row] = []
    both(next(iter(LAYOUTS)), 2)  # what is loaded and traced once is loaded, on both sides
    for name in LAYOUTS:
        mine, seconds, other, their_seconds = both(name, asked.layers)
        moved = sum(one.total_bytes * one.times for one in mine.collectives) / moved_bytes(other.as_text(), 8)[0]
        text = f"{name}, {asked.layers} layers ({moved:.2f} of the bytes)"
        rows.append(row(text, Measured(seconds, their_seconds), BAR))
    return report(rows, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())

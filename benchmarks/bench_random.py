"""Drawing 4M random numbers: Meshwright on NumPy against jax.random on the same CPU.

    python benchmarks/bench_random.py [--json]

The numbers are the same, bit for bit; that is checked first. A normal sample costs 30 fused multiply-adds besides the
bits, which NumPy has not and which take four passes each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from timing import Row, compare, report, row

import meshwright as mw

SIZE = 4 * 1024 * 1024
BARS = {"bits": 2.0, "uniform": 2.0, "bernoulli": 2.0, "normal": 2.0, "gumbel": 4.0}


def draw(random: Any, name: str, key: Any) -> Any:
    if name == "bernoulli":
        return random.bernoulli(key, 0.3, (SIZE,))
    return getattr(random, name)(key, (SIZE,))


def rows() -> Iterator[Row]:
    jax.config.update("jax_platforms", "cpu")
    our_key, their_key = mw.random.key(0), jax.random.key(0)
    for name, bar in BARS.items():
        ours = partial(draw, mw.random, name, our_key)
        theirs = partial(draw, jax.random, name, their_key)
        np.testing.assert_array_equal(np.asarray(ours()), np.asarray(theirs()))
        measured = compare(ours, lambda theirs=theirs: theirs().block_until_ready(), repeats=9)
        yield row(f"{name} ({SIZE >> 20}M,)", measured, bar)


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:], size=SIZE))

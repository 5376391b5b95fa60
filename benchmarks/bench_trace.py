"""Trace and differentiate a 32-layer transformer train step, in units of ``jax.make_jaxpr`` on the same text.

python benchmarks/bench_trace.py [--layers 32] [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import jax
import numpy as np
from timing import compare, report, row

import meshwright as mw

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from twins import load

BAR = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32, help="layers of the transformer")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    ours, theirs = load("transformer"), load("transformer", "jax")
    config, their_config = ours.Config(layers=options.layers), theirs.Config(layers=options.layers)
    params, batch = theirs.init(jax.random.key(0), their_config), theirs.make_batch(jax.random.key(1), their_config)
    my_params, my_batch = mw.tree.map(np.asarray, params), np.asarray(batch)

    def trace_ours() -> object:
        return mw.make_program(lambda p, b: ours.train_step(p, b, config))(my_params, my_batch)

    def trace_theirs() -> object:
        return jax.make_jaxpr(lambda p, b: theirs.train_step(p, b, their_config))(params, batch)

    measured = compare(trace_ours, trace_theirs, options.repeats)
    name = f"trace and grad, {options.layers} layers"
    return report([row(name, measured, BAR)], as_json=options.json, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())

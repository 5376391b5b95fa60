"""A train step of a 4-layer transformer with d=512 on the NumPy engine, in units of single-device JAX on the CPU.

python benchmarks/bench_train_step.py [--batch 4] [--length 256] [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import jax
import numpy as np
from timing import compare, report, row

import meshwright as mw
import meshwright.numpy as mnp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from twins import load

BAR = 1.5
SIZES = {"vocab": 1024, "dim": 512, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 1408}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    ours, theirs = load("transformer"), load("transformer", "jax")
    config, their_config = ours.Config(**SIZES), theirs.Config(**SIZES)
    params = theirs.init(jax.random.key(0), their_config)
    batch = theirs.make_batch(jax.random.key(1), their_config, options.batch, options.length + 1)
    my_params = mw.tree.map(lambda x: mnp.asarray(np.asarray(x)), params)
    my_batch = mnp.asarray(np.asarray(batch))
    my_step = mw.jit(ours.train_step, static_argnames="config")
    their_step = jax.jit(theirs.train_step, static_argnames="config")
    mine, expected = my_step(my_params, my_batch, config=config)[0], their_step(params, batch, config=their_config)[0]
    np.testing.assert_allclose(float(mine), float(expected), rtol=1e-4)

    measured = compare(
        lambda: my_step(my_params, my_batch, config=config),
        lambda: jax.block_until_ready(their_step(params, batch, config=their_config)),
        options.repeats,
    )
    name = f"train step, d=512, 4 layers, {options.batch}x{options.length} tokens"
    return report([row(name, measured, BAR)], as_json=options.json, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())

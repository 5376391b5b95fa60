"""The partitioner beside XLA's: bytes and collectives of products and of a train step, and time to compile.

python benchmarks/bench_partition.py [--layers 32] [--sample 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import sys
from itertools import product
from time import perf_counter
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from hlo_bytes import moved_bytes
from timing import Measured, print_rows, row

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.sharding import enumerate_shardings

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from twins import load

REGIMES = {"64³": (64, 64, 64), "long rows": (512, 64, 64), "long sum": (64, 2048, 64)}
COMPILE_BAR = 0.2
DEVICES = 8
SPLIT = {
    "wq": (None, None, "model"), "wk": (None, None, "model"), "wv": (None, None, "model"), "wo": (None, "model"),
    "gate": (None, None, "model"), "up": (None, None, "model"), "down": (None, "model"),
}  # fmt: skip


def products(sample: int) -> list[dict[str, Any]]:
    """Products of matrices in random layouts on (2, 4): our bytes per device and XLA's."""
    rng = random.Random(0)
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    their_mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    every = [s.spec for s in enumerate_shardings(mesh, 2, compound=True)]
    triples = list(product(every, repeat=3))
    found = []
    for name, (rows, inner, columns) in REGIMES.items():
        ours, theirs, more = 0, 0, 0
        chosen = rng.sample(triples, min(sample, len(triples)))
        for a, b, c in chosen:
            x = mw.ShapeDtypeStruct((rows, inner), "float32", sharding=mw.NamedSharding(mesh, a))
            y = mw.ShapeDtypeStruct((inner, columns), "float32", sharding=mw.NamedSharding(mesh, b))
            out = mw.NamedSharding(mesh, c)
            compiled = mw.jit(mnp.matmul, out_shardings=out).lower(x, y).compile()
            mine = sum(one.total_bytes for one in compiled.collectives)
            place = lambda spec: jax.NamedSharding(their_mesh, jax.P(*spec))
            given = [jax.ShapeDtypeStruct(s.shape, jnp.float32, sharding=place(p)) for s, p in ((x, a), (y, b))]
            text = jax.jit(jnp.matmul, out_shardings=place(c)).lower(*given).compile().as_text()
            other, _ = moved_bytes(text, DEVICES)
            ours, theirs, more = ours + mine, theirs + other, more + (mine > other)
        found.append({"regime": name, "pairs": len(chosen), "ratio": ours / max(theirs, 1), "more than XLA": more})
    return found


def transformer(layers: int) -> dict[str, Any]:
    """A train step with parameters and batch laid out, the rest found: bytes, collectives, seconds to compile."""
    mine, theirs = load("transformer"), load("transformer", "jax")
    sizes = {"vocab": 512, "dim": 256, "layers": layers, "heads": 8, "kv_heads": 8, "hidden": 1024}
    config, their_config = mine.Config(**sizes), theirs.Config(**sizes)
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    their_mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shapes = mw.eval_shape(lambda key: mine.init(key, config), mw.random.key(0))

    def struct(make: Any, named: Any, spec: Any, on: Any) -> Any:
        place = lambda name, s: make(s.shape, s.dtype, sharding=named(on, spec(*SPLIT.get(name, ()))))
        layers_ = {name: place(name, s) for name, s in shapes["layers"].items()}
        tokens = make((8, 129), np.int32, sharding=named(on, spec("data")))
        return {"embed": place("", shapes["embed"]), "layers": layers_, "norm": place("", shapes["norm"])}, tokens

    ours = struct(mw.ShapeDtypeStruct, mw.NamedSharding, mw.P, mesh)
    others = struct(jax.ShapeDtypeStruct, jax.NamedSharding, jax.P, their_mesh)
    step = mw.jit(mine.train_step, static_argnames="config")
    start = perf_counter()
    compiled = step.lower(*ours, config=config).compile()
    our_seconds = perf_counter() - start
    start = perf_counter()
    text = jax.jit(theirs.train_step, static_argnames="config").lower(*others, config=their_config).compile().as_text()
    their_seconds = perf_counter() - start
    their_bytes, their_collectives = moved_bytes(text, DEVICES)
    return {
        "layers": layers,
        "our bytes": sum(c.total_bytes * c.times for c in compiled.collectives),
        "XLA's bytes": their_bytes,
        "our collectives": sum(c.times for c in compiled.collectives),
        "XLA's collectives": their_collectives,
        "our seconds": our_seconds,
        "JAX's seconds": their_seconds,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32, help="layers of the transformer")
    parser.add_argument("--sample", type=int, default=60, help="products per regime")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    found = products(options.sample)
    whole = transformer(options.layers)
    if options.json:
        print(json.dumps({"products": found, "transformer": whole}, indent=2))
    else:
        for one in found:
            print(
                ", ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in one.items()
                )
            )
        for key, value in whole.items():
            print(f"{key:>20}  {value:,.2f}" if isinstance(value, float) else f"{key:>20}  {value:,}")
        print_rows(
            [
                row(
                    "trace, grad, propagate, partition",
                    Measured(whole["our seconds"], whole["JAX's seconds"]),
                    COMPILE_BAR,
                )
            ]
        )
    fewer = whole["our bytes"] <= whole["XLA's bytes"] and whole["our collectives"] <= whole["XLA's collectives"]
    quick = whole["our seconds"] <= COMPILE_BAR * whole["JAX's seconds"]
    return 0 if fewer and quick and not any(one["more than XLA"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

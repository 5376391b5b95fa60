"""The partitioner beside XLA's: bytes and collectives of products and of train steps, and time to compile, also for
many devices beside 8.

python benchmarks/bench_partition.py [--layers 32] [--sample 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
from dataclasses import asdict
from itertools import product
from time import perf_counter, process_time
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from hlo_bytes import moved_bytes
from timing import Measured, Row, print_rows, row

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.sharding import enumerate_shardings

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from twins import load

REGIMES = {"64³": (64, 64, 64), "long rows": (512, 64, 64), "long sum": (64, 2048, 64)}
COMPILE_BAR = 0.2
DEVICES_BAR = 1.1
DEVICES = 8
MANY_DEVICES = (512, 16384)
TOKENS = (8, 129)  # of each 8 devices
MODEL = {"vocab": 512, "dim": 256, "heads": 8, "kv_heads": 8, "hidden": 1024}
_COLUMNS, _ROWS = (None, None, "model"), (None, "model")
_IN = (None, "data")


class Layout(NamedTuple):
    """Axes of a mesh of 8 devices, and the axes of each parameter; layers are stacked along their first dim."""

    mesh: dict[str, int]
    split: dict[str, tuple[str | None, ...]]


LAYOUTS = {
    "tensor parallel": Layout(
        {"data": 2, "model": 4},
        dict.fromkeys(("wq", "wk", "wv", "gate", "up"), _COLUMNS) | dict.fromkeys(("wo", "down"), _ROWS),
    ),
    "fully sharded": Layout(
        {"data": 8},
        dict.fromkeys(("wq", "wk", "wv", "gate", "up", "embed"), _IN)
        | {"wo": (None, None, None, "data"), "down": (None, None, "data")},
    ),
    "both": Layout(
        {"data": 2, "model": 4},
        dict.fromkeys(("wq", "wk", "wv", "gate", "up"), (None, "data", "model"))
        | {"wo": (None, "model", None, "data"), "down": (None, "model", "data"), "embed": _IN},
    ),
}


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


class Step(NamedTuple):
    """A train step of the transformer, laid out: the function, and its arguments without contents."""

    function: Any
    arguments: tuple[Any, Any]
    config: Any
    outs: Any


def train_step(layout: Layout, layers: int, times: int = 1, jax_too: bool = False) -> tuple[Step, Step | None]:
    """The step on ``times`` 8 devices, and JAX's on 8."""
    shapes: Any = None

    def made(package: str, lib: Any, mesh: Any) -> Step:
        nonlocal shapes
        model = load("transformer", package)
        config = model.Config(**MODEL, layers=layers)
        shapes = shapes or mw.eval_shape(lambda key: model.init(key, config), mw.random.key(0))
        on = lambda *spec: lib.NamedSharding(mesh, lib.P(*spec))
        place = lambda name, s: lib.ShapeDtypeStruct(s.shape, s.dtype, sharding=on(*layout.split.get(name, ())))
        parameters = {name: place(name, shapes[name]) for name in ("embed", "norm")}
        parameters["layers"] = {name: place(name, s) for name, s in shapes["layers"].items()}
        tokens = lib.ShapeDtypeStruct((TOKENS[0] * times, TOKENS[1]), np.int32, sharding=on("data"))
        outs = None, lib.tree.map(lambda s: s.sharding, parameters)
        return Step(model.train_step, (parameters, tokens), config, outs)

    sizes = {name: size * (times if name == "data" else 1) for name, size in layout.mesh.items()}
    ours = made("meshwright", mw, mw.make_mesh(tuple(sizes.values()), tuple(sizes)))
    if not jax_too:
        return ours, None
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    return ours, made("jax", jax, jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=auto))


def compiled(step: Step, lib: Any) -> tuple[Any, float]:
    """A step compiled, and the seconds that it took to trace, differentiate and compile it."""
    start = perf_counter()
    jitted = lib.jit(step.function, static_argnames="config", out_shardings=step.outs)
    return jitted.lower(*step.arguments, config=step.config).compile(), perf_counter() - start


def transformer(name: str, layers: int) -> dict[str, Any]:
    """Parameters and batch are laid out, the rest is found: bytes, collectives, seconds to compile."""
    ours, theirs = train_step(LAYOUTS[name], layers, jax_too=True)
    mine, our_seconds = compiled(ours, mw)
    other, their_seconds = compiled(theirs, jax)  # type: ignore[arg-type]
    their_bytes, their_collectives = moved_bytes(other.as_text(), DEVICES)
    return {
        "layout": name,
        "our bytes": sum(c.total_bytes * c.times for c in mine.collectives),
        "XLA's bytes": their_bytes,
        "our collectives": sum(c.times for c in mine.collectives),
        "XLA's collectives": their_collectives,
        "our seconds": our_seconds,
        "JAX's seconds": their_seconds,
    }  # fmt: skip


def many_devices(layers: int, rounds: int = 3) -> list[Row]:
    """The tensor parallel step on more devices beside 8: the least of some rounds, each in a new process, in turn.

    One thread does all the work, so that the processor's seconds are what it takes.
    """
    least: dict[int, float] = {}
    for _, devices in product(range(rounds), (DEVICES, *MANY_DEVICES)):
        command = [sys.executable, __file__, "--layers", str(layers), "--devices", str(devices)]
        took = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        least[devices] = min(took, least.get(devices, took))
    return [
        row(f"{devices:,} devices beside {DEVICES}", Measured(least[devices], least[DEVICES]), DEVICES_BAR)
        for devices in MANY_DEVICES
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32, help="layers of the transformer")
    parser.add_argument("--sample", type=int, default=60, help="products per regime")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--devices", type=int, help="only print the processor's seconds to compile for so many devices")
    options = parser.parse_args()
    if options.devices:
        step, _ = train_step(LAYOUTS["tensor parallel"], options.layers, options.devices // DEVICES)
        start = process_time()
        compiled(step, mw)
        print(process_time() - start)
        return 0
    found = products(options.sample)
    steps = [transformer(name, options.layers) for name in LAYOUTS]
    rows = [
        row(f"trace to program, {one['layout']}", Measured(one["our seconds"], one["JAX's seconds"]), COMPILE_BAR)
        for one in steps
    ]
    rows += many_devices(options.layers)
    if options.json:
        times = [asdict(one) for one in rows]
        print(json.dumps({"products": found, "transformer": steps, "seconds": times}, indent=2))
    else:
        for one in [*found, *steps]:
            shown = [
                f"{key} {value:,.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in one.items()
            ]
            print(", ".join(shown))
        print_rows(rows)
    fewer = all(
        one["our bytes"] <= one["XLA's bytes"] and one["our collectives"] <= one["XLA's collectives"] for one in steps
    )
    quick = all(one.passed for one in rows)
    return 0 if fewer and quick and not any(one["more than XLA"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

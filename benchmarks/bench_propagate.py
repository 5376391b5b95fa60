"""Sharding propagation (the whole pipeline) on transformer gradients, in units of Shardy's own, which is C++.

python benchmarks/bench_propagate.py [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache
from time import process_time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir, passmanager
from timing import Measured, report, row

from meshwright.interop.shardy.problem_reader import read_problem
from meshwright.interop.stablehlo.context import context, parse_module
from meshwright.propagate.problem import FactorRule, Problem
from meshwright.propagate.project import Shape
from meshwright.propagate.run import PIPELINES, run

PIPELINE = "sdy-propagation-pipeline"
FIRST_BAR, REPEATED_BAR = 8.0, 3.0
WIDTH, HEADS, HIDDEN = 64, 4, 256
SPECS = {"q": P("data", "model"), "k": P("data", "model"), "v": P("data", "model"), "o": P("model"),
         "up": P("data", "model"), "down": P("model", "data")}  # fmt: skip


def layer(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k) / 4.0)
    x = x + jnp.einsum("bhst,bthk,hkd->bsd", scores, v, w["o"])
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def module_text(layers: int) -> str:
    """The gradient of a transformer of some layers, its parameters and batch sharded."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    size = WIDTH // HEADS
    shapes = dict.fromkeys("qkv", (WIDTH, HEADS, size))
    shapes |= {"o": (HEADS, size, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    weights = [{name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()} for _ in range(layers)]
    shardings = [{name: NamedSharding(mesh, spec) for name, spec in SPECS.items()} for _ in range(layers)]

    def loss(weights: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for w in weights:
            x = layer(x, w)
        return jnp.mean(x**2)

    x = jax.ShapeDtypeStruct((8, 32, WIDTH), "float32")
    step = jax.jit(jax.value_and_grad(loss), in_shardings=(shardings, NamedSharding(mesh, P("data"))))
    return step.lower(weights, x).as_text()


def forget() -> None:
    """Make the next run the first one."""
    Shape._interned.clear()
    for rule in FactorRule._interned.values():
        rule.cache.clear()


def measure(text: str, repeats: int) -> tuple[Measured, Measured]:
    """The least CPU time of each side, without and with reading the module, which is where our rules are made."""
    module = parse_module(text)
    problem = read_problem(module)
    ours = min(_ours(problem) for _ in range(repeats))
    reading = min(_timed(lambda: read_problem(module)) for _ in range(repeats))
    theirs = min(_theirs(text) for _ in range(repeats))
    return Measured(ours, theirs), Measured(ours + reading, theirs)


def _timed(job: Callable[[], object]) -> float:
    start = process_time()
    job()
    return process_time() - start


def _ours(problem: Problem) -> float:
    forget()
    return _timed(lambda: run(problem, passes()))


def spelled(name: str) -> str:
    """A pass as a pass manager wants it: some are run on each function."""
    on_functions = (
        "sdy-constant-or-scalar-merger", "sdy-sink-data-flow-edges", "sdy-sink-func-data-flow-edges",
        "sdy-sharding-constraint-to-reshard", "sdy-verify-unreduced-axes",
    )  # fmt: skip
    return f"func.func({name})" if name in on_functions else name


@cache
def passes() -> tuple[str, ...]:
    """The passes of the pipeline that the installed Shardy has, too."""
    found = []
    with context():
        for name in PIPELINES[PIPELINE]:
            try:
                passmanager.PassManager.parse(f"builtin.module({spelled(name)})")
            except ValueError:
                continue
            found.append(name)
    return tuple(found)


def _theirs(text: str) -> float:
    with context():
        module = ir.Module.parse(text)
        manager = passmanager.PassManager.parse(f"builtin.module({','.join(map(spelled, passes()))})")
        return _timed(lambda: manager.run(module.operation))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side; the fastest counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = []
    for layers, bar in ((1, FIRST_BAR), (4, FIRST_BAR), (40, REPEATED_BAR)):
        text = module_text(layers)
        alone, with_reading = measure(text, options.repeats)
        what = f"{layers} layers, {text.count(' = stablehlo.')} ops"
        rows.append(row(f"propagate, {what}", alone, bar))
        rows.append(row(f"read and propagate, {what}", with_reading, bar))
    return report(rows, as_json=options.json, peer="shardy", repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())

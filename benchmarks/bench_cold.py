"""The first compile in a process beside JAX's: a train step of each of three models on 2 × 4 devices.

Parameters are split along their last dim over one axis and batches over the other. Each round starts a process of its
own for either side; what is timed is lowering and compiling, imports and the description of arguments are not.

python benchmarks/bench_cold.py [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
from statistics import median
from time import perf_counter
from typing import Any

from timing import Measured, Row, report, row

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from twins import load

MODELS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "mlp": ({"inputs": 64, "dim": 256, "layers": 2, "outputs": 64}, {"batch": 16}),
    "transformer": (
        {"vocab": 512, "dim": 256, "layers": 2, "heads": 8, "kv_heads": 8, "hidden": 1024},
        {"batch": 8, "length": 129},
    ),
    "convnet": ({}, {"batch": 8}),
}
BAR = 1.0


def compile_once(package: str, name: str) -> float:
    """The seconds of the first compile in this process."""
    lib = __import__(package)
    model = load(name, package)
    options, sizes = MODELS[name]
    config = model.Config(**options)
    auto = {"axis_types": (lib.sharding.AxisType.Auto,) * 2} if package == "jax" else {}
    mesh = lib.make_mesh((2, 4), ("data", "model"), **auto)

    def placed(x: Any, *spec: Any) -> Any:
        return lib.ShapeDtypeStruct(x.shape, x.dtype, sharding=lib.NamedSharding(mesh, lib.P(*spec)))

    def split(x: Any) -> Any:
        return placed(x, *[None] * (x.ndim - 1), "model") if x.ndim > 1 and x.shape[-1] % 4 == 0 else placed(x)

    described = lib.eval_shape(lambda key: model.init(key, config), lib.random.key(0))
    batch = lib.eval_shape(lambda key: model.make_batch(key, config, **sizes), lib.random.key(0))
    parameters = lib.tree.map(split, described)
    results = lib.tree.map(lambda x: x.sharding, parameters)
    step = lib.jit(model.train_step, static_argnames="config", out_shardings=(None, results))
    start = perf_counter()
    step.lower(parameters, lib.tree.map(lambda x: placed(x, "data"), batch), config=config).compile()
    return perf_counter() - start


def in_a_process(package: str, name: str) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", package, name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("PACKAGE", "MODEL"), help="compile once, and print the seconds")
    given = parser.parse_args()
    if given.one:
        print(compile_once(*given.one))
        return 0
    rows: list[Row] = []
    for name in MODELS:
        pairs = [(in_a_process("meshwright", name), in_a_process("jax", name)) for _ in range(given.rounds)]
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        rows.append(row(f"first compile: {name}", Measured(ours, theirs), BAR))
    return report(rows, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())

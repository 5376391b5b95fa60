"""What XLA reserves for the train steps of the examples, on whatever device JAX finds: raw data for the tests.

python benchmarks/xla_memory.py --out benchmarks/data/xla_memory_h200.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import jax

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from twins import load

MODELS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("mlp", {}, {}),
    ("mlp", {"dim": 256, "layers": 6}, {"batch": 128}),
    ("mlp", {"dim": 2048, "layers": 8}, {"batch": 4096}),
    ("transformer", {}, {}),
    ("transformer", {"dim": 64, "hidden": 128, "layers": 3}, {"batch": 8, "length": 48}),
    ("transformer", {"dim": 1024, "hidden": 4096, "layers": 4, "heads": 16, "kv_heads": 8, "vocab": 8192},
     {"batch": 8, "length": 513}),
    ("convnet", {}, {}),
    ("convnet", {"channels": 16}, {"batch": 16}),
    ("convnet", {"channels": 64, "size": 64}, {"batch": 64}),
    ("moe", {}, {}),
    ("moe", {"dim": 32, "hidden": 64}, {"batch": 32}),
    ("moe", {"dim": 1024, "hidden": 4096, "experts": 8, "capacity": 1024}, {"batch": 4096}),
]  # fmt: skip
VARIANTS = [(scan, checkpoint) for scan in (False, True) for checkpoint in (False, True)]


def measure(name: str, config: dict[str, Any], batch: dict[str, int]) -> dict[str, int]:
    module = load(name, "jax")
    settings = module.Config(**config)
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), settings))
    rows = jax.eval_shape(lambda: module.make_batch(jax.random.key(1), settings, **batch))
    found = jax.jit(lambda p, b: module.train_step(p, b, settings)).lower(params, rows).compile().memory_analysis()
    parts = ("argument", "output", "temp", "alias")
    return {f"{part}_bytes": int(getattr(found, f"{part}_size_in_bytes")) for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    cases = []
    for name, config, batch in MODELS:
        for scan, checkpoint in VARIANTS:
            whole = {**config, "scan": scan, "checkpoint": checkpoint}
            cases.append({"model": name, "config": whole, "batch": batch, **measure(name, whole, batch)})
            print(cases[-1], flush=True)
    device = jax.devices()[0]
    about = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
    pathlib.Path(out).write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()

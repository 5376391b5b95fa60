"""Bytes that resharding moves, beside XLA's: every pair of shardings (or a sample), each against the lower bound.

The lower bound is what each device lacks of its target shard. XLA is given the identity with the two shardings, and
what it moves is read from the collectives of the compiled module. Exit status 0 if no plan is above the bound or above
XLA's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean
from time import perf_counter
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16 " + os.environ.get("XLA_FLAGS", "")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # XLA warns of each array that it replicates for want of a better way

import jax
import numpy as np
from hlo_bytes import moved_bytes

import meshwright as mw
from meshwright.sharding.space import enumerate_shardings

CASES = (((2, 2), 1), ((2, 2), 2), ((2, 4), 1), ((2, 4), 2), ((2, 4), 3), ((2, 3), 2), ((4, 4), 2), ((2, 2, 2), 2),
         ((2, 2, 2), 3))  # fmt: skip
SIZE = 48


@dataclass(frozen=True)
class Row:
    """One mesh and rank: shares of communicating pairs above the bound, and ratios to it."""

    mesh: str
    dims: int
    pairs: int
    ours_above: float
    ours_mean: float
    ours_worst: float
    xla_above: float
    xla_mean: float
    xla_worst: float
    ours_collectives: float
    xla_collectives: float
    ours_plan_ms: float
    xla_compile_ms: float
    above_xla: int

    @property
    def passed(self) -> bool:
        """Whether no plan is above the bound or above XLA's."""
        return self.ours_above == 0 and self.above_xla == 0


def measure(sizes: tuple[int, ...], dims: int, sample: int, rng: random.Random) -> Row:
    """Both sides on the pairs of one mesh and rank."""
    names = ("x", "y", "z")[: len(sizes)]
    mesh = mw.make_mesh(sizes, names)
    theirs = jax.sharding.Mesh(np.array(jax.devices()[: mesh.size]).reshape(sizes), names)
    shape = (SIZE,) * dims
    every = enumerate_shardings(mesh, dims, compound=True)
    pairs = list(product(every, every))
    plans = []
    start = perf_counter()
    for one, other in pairs:
        plans.append(mw.plan_reshard(shape, "f32", one, other))
    planned = (perf_counter() - start) / len(pairs)
    moving = [plan for plan in plans if plan.total_lower_bound_bytes]
    ours = [plan.total_bytes / plan.total_lower_bound_bytes for plan in moving]
    chosen = rng.sample(range(len(pairs)), min(sample, len(pairs)))
    chosen = [index for index in chosen if plans[index].total_lower_bound_bytes]
    ratios, counts, worse, compiled = [], [], 0, 0.0
    for index in chosen:
        (one, other), plan = pairs[index], plans[index]
        start = perf_counter()
        text = _compiled(theirs, shape, one, other)
        compiled += perf_counter() - start
        total, count = moved_bytes(text, mesh.size)
        ratios.append(total / plan.total_lower_bound_bytes)
        counts.append(count)
        worse += plan.total_bytes > total
    return Row(
        "x".join(map(str, sizes)),
        dims,
        len(moving),
        fmean(ratio > 1 for ratio in ours),
        fmean(ours),
        max(ours),
        fmean(ratio > 1.0001 for ratio in ratios),
        fmean(ratios),
        max(ratios),
        fmean(plan.num_collectives for plan in moving),
        fmean(counts),
        planned * 1e3,
        compiled / len(chosen) * 1e3,
        worse,
    )


def _compiled(mesh: Any, shape: tuple[int, ...], one: mw.NamedSharding, other: mw.NamedSharding) -> str:
    sides = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*side.spec)) for side in (one, other)]
    identity = jax.jit(lambda x: x, in_shardings=sides[0], out_shardings=sides[1])
    return str(identity.lower(jax.ShapeDtypeStruct(shape, np.float32)).compile().as_text())


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="pairs given to XLA for each mesh (default: 60)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = random.Random(0)
    rows = [measure(sizes, dims, args.sample, rng) for sizes, dims in CASES]
    if args.json:
        print(json.dumps({"peer": "xla", "rows": [asdict(row) for row in rows]}, indent=2))
        return 0 if all(row.passed for row in rows) else 1
    print("bytes received in all, as a ratio to the lower bound; pairs that must communicate")
    print(
        f"{'mesh':6} dims {'pairs':>6}  {'meshwright':^31}  {'XLA (sample)':^31}  {'collectives':>11}  plan / compile"
    )
    for r in rows:
        ours = f"{r.ours_above:5.0%} above, mean {r.ours_mean:.2f}, max {r.ours_worst:4.1f}"
        xla = f"{r.xla_above:5.0%} above, mean {r.xla_mean:.2f}, max {r.xla_worst:4.1f}"
        times = f"{r.ours_plan_ms:.2f} / {r.xla_compile_ms:.0f} ms"
        counts = f"{r.ours_collectives:.1f} / {r.xla_collectives:.1f}"
        missed = "" if r.passed else "  MISSED"
        print(f"{r.mesh:6} {r.dims:4} {r.pairs:6}  {ours:31}  {xla:31}  {counts:11}  {times}{missed}")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

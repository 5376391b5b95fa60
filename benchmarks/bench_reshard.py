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
import re
import sys
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from statistics import fmean
from time import perf_counter
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16 " + os.environ.get("XLA_FLAGS", "")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # XLA warns of each array that it replicates for want of a better way

import jax
import numpy as np

import meshwright as mw
from meshwright.core.sharding_space import enumerate_shardings

CASES = (((2, 2), 1), ((2, 2), 2), ((2, 4), 1), ((2, 4), 2), ((2, 4), 3), ((2, 3), 2), ((4, 4), 2), ((2, 2, 2), 2),
         ((2, 2, 2), 3))  # fmt: skip
SIZE = 48
ITEM = 4

_KINDS = "all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute"
_RESULT = re.compile(rf"= (.*?) ({_KINDS})\(")
_STARTED = re.compile(rf" ({_KINDS}|ragged-all-to-all|collective-broadcast)-start\(| ragged-all-to-all\(")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


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


def moved_bytes(text: str, devices: int) -> tuple[int, int]:
    """Bytes that all devices receive in a compiled module, and its number of collectives."""
    total, count = 0.0, 0
    for line in text.splitlines():
        if _STARTED.search(line):
            raise ValueError(f"a collective in an unknown form: {line.strip()}")
        found = _RESULT.search(line)
        if found is None:
            continue
        size = ITEM * sum(prod(map(int, filter(None, s.split(",")))) for s in _SHAPE.findall(found[1]))
        count += 1
        kind = found[2]
        if kind == "collective-permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", line.split("source_target_pairs=")[1])
            total += size * sum(one != other for one, other in pairs)
            continue
        group = _group(line)
        share = {"all-gather": (group - 1) / group, "all-to-all": (group - 1) / group,
                 "all-reduce": 2 * (group - 1) / group, "reduce-scatter": group - 1}[kind]  # fmt: skip
        total += devices * size * share
    return round(total), count


def _group(line: str) -> int:
    """The size of the groups of a collective: ``[4,2]<=[8]``, ``{{0,1},{2,3}}`` or ``mesh['a'=2,'b'=4] {'b':(1)2}``."""
    text = line.split("replica_groups=")[1]
    if iota := re.match(r"\[(\d+),(\d+)\]", text):
        return int(iota[2])
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    named = re.match(r"mesh\[(.*?)\][^{]*\{(.*?)\}", text)
    if named is None:
        raise ValueError(f"replica groups in an unknown form: {text}")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    used = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
    return prod(int(part or sizes[axis]) for axis, part in used)


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

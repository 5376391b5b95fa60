"""Costing training steps of an MLP (16 layers of 8192) on 16 to 100,000 devices, and searching for the best.

    python benchmarks/bench_device_programs.py [--json]

The peer is DistIR. It does not run on current Pythons, so that its side is a recorded number, measured on one core:
transform, types and simulation of one configuration, and 0.6 configurations per second in a search. Ours is the fastest
of several runs. DistIR's own latency for a row of its table is checked first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from timing import Measured, Row, report, row, seconds

from meshwright import dist, hardware

# data, horizontal, pipeline, microbatches; DistIR's seconds; the bar on the ratio.
CONFIGURATIONS = (
    ((4, 2, 2, 16), 1.6, 1 / 50),
    ((16, 4, 4, 16), 16.0, 1 / 500),
    ((32, 8, 4, 16), 55.0, 1 / 1000),
)
HUGE = (3125, 8, 4, 16)
THEIR_SEARCH_PER_S = 0.6


def cost(degrees: tuple[int, int, int, int]) -> float:
    data, horizontal, pipeline, microbatches = degrees
    mlp = dist.MLP(layers=16, dim=8192, batch=data * microbatches * 16)
    step = mlp.unrolled(data, horizontal, pipeline, microbatches, fold=True)
    return dist.simulate(step, assumptions=dist.DistIR(), events=False).seconds


def check() -> None:
    step = dist.MLP(8, 512, 256).unrolled(2, 2, 2, 8)
    found = dist.simulate(step, assumptions=dist.DistIR()).seconds
    assert abs(found / 0.00370690878375 - 1) < 1e-6


def rows() -> Iterator[Row]:
    check()
    for degrees, theirs, bar in CONFIGURATIONS:
        ours = min(seconds(lambda degrees=degrees: cost(degrees)) for _ in range(5))
        name = "x".join(map(str, degrees[:3]))
        yield row(f"{name}, {degrees[3]} microbatches", Measured(ours, theirs), bar)
    ours = min(seconds(lambda: cost(HUGE)) for _ in range(3))
    yield row("100,000 devices, against 2 s", Measured(ours, 2.0), 1.0)
    for devices in (16, 64, 256, 1024):
        topology = hardware.Topology("h100", devices)
        for name, model in (("MLP", dist.MLP(16, 8192, 4096)), ("GPT", dist.GPT(layers=24, dim=2048, heads=16))):
            count = len(dist.grid_search(model, topology, 4096))
            taken = min(seconds(lambda m=model, t=topology: dist.grid_search(m, t, 4096)) for _ in range(3))
            measured = Measured(taken / count, 1 / THEIR_SEARCH_PER_S)
            yield row(f"search, {name}, {devices} devices, each of {count}", measured, THEIR_SEARCH_PER_S / 200)


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:], peer="DistIR"))

"""Costing training steps of an MLP (16 layers of 8192) and of GPT-2 on 16 to 100,000 devices; searching for the best.

    python benchmarks/bench_device_programs.py [--json]

The peer is DistIR. It does not run on current Pythons, so that its side is a recorded number, measured on one core:
transform, types and simulation of one configuration of the MLP, and 0.6 configurations per second in a search; at 64
devices, where there is none, it is the number for 16. GPT-2 is held to the numbers of the MLP, which are smaller than
those of DistIR for a model of its kind; tracing and planning are in its time. Ours is the CPU time of the fastest of
several runs. DistIR's own latency for a row of its table is checked first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time

from timing import Measured, Row, report, row

import meshwright as mw
from meshwright import dist, hardware

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import gpt

# Devices; data, horizontal, pipeline, microbatches; DistIR's seconds; the bar on the ratio.
CONFIGURATIONS = (
    (16, (4, 2, 2, 16), 1.6, 1 / 50),
    (64, (8, 4, 2, 16), 1.6, 1 / 50),
    (256, (16, 4, 4, 16), 16.0, 1 / 500),
    (1024, (32, 8, 4, 16), 55.0, 1 / 1000),
)
HUGE = (3125, 8, 4, 16)
THEIR_SEARCH_PER_S = 0.6


def taken(job: Callable[[], object], times: int = 3) -> float:
    """CPU seconds of the fastest of several runs."""

    def once() -> float:
        start = process_time()
        job()
        return process_time() - start

    return min(once() for _ in range(times))


def gpt2() -> dist.Traced:
    """The train step of examples/gpt.py, traced."""
    params = mw.eval_shape(lambda key: gpt.init(key, gpt.model), mw.random.key(0))
    batch = mw.eval_shape(lambda key: gpt.make_batch(key, gpt.model, batch=8), mw.random.key(1))
    return dist.traced(partial(gpt.train_step, config=gpt.model), params, batch)


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
    for devices, degrees, theirs, bar in CONFIGURATIONS:
        ours = taken(partial(cost, degrees), 7)
        name = "x".join(map(str, degrees[:3]))
        yield row(f"MLP, {devices} devices: {name}, {degrees[3]} microbatches", Measured(ours, theirs), bar)
    for devices, _, theirs, bar in CONFIGURATIONS:
        topology = hardware.Topology("h100", devices)
        count = len(dist.grid_search(gpt2(), topology, 4096))
        ours = taken(lambda t=topology: dist.grid_search(gpt2(), t, 4096), 1) / count
        yield row(f"GPT-2 as traced, {devices} devices, each of {count}", Measured(ours, theirs), bar)
    yield row("100,000 devices, against 2 s", Measured(taken(partial(cost, HUGE)), 2.0), 1.0)
    for devices, *_ in CONFIGURATIONS:
        topology = hardware.Topology("h100", devices)
        models = (
            ("MLP", dist.MLP(16, 8192, 4096)),
            ("GPT", dist.GPT(layers=24, dim=2048, heads=16)),
            ("GPT-2", gpt2()),
        )
        for name, model in models:
            count = len(dist.grid_search(model, topology, 4096))
            ours = taken(lambda m=model, t=topology: dist.grid_search(m, t, 4096), 2)
            measured = Measured(ours / count, 1 / THEIR_SEARCH_PER_S)
            yield row(f"search, {name}, {devices} devices, each of {count}", measured, THEIR_SEARCH_PER_S / 200)


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:], peer="DistIR"))

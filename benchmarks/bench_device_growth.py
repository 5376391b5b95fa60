"""How transforms and simulations of device programs grow with layers and with devices: the ratio to less of it.

    python benchmarks/bench_device_growth.py [--json]

The peer of each row is the same work with fewer layers or devices, measured in the same run. Work that is linear in
layers has a ratio of 2. With devices it does not grow: from 1,024 to a million the ratio is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from time import process_time
from typing import Any

from timing import Measured, Row, report, row

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware

BATCH = {"x": 0, "y": 0}
TRANSFORMS: dict[str, tuple[Callable[[dist.Function], dist.Function], float]] = {
    "data parallel": (lambda fn: dist.data_parallel(fn, BATCH), 2.6),
    "horizontal parallel": (lambda fn: dist.horizontal_parallel(fn, BATCH), 2.6),
    "zero": (lambda fn: dist.zero(fn, BATCH, 3), 2.6),
    "pipeline parallel": (lambda fn: dist.pipeline_parallel(fn, 4, 8, "1f1b", BATCH), 2.6),
}


@cache
def step(layers: int, batch: int = 64) -> dist.Function:
    """A training step of an MLP, traced."""
    weights = [mw.ShapeDtypeStruct((64, 64), "float32")] * layers
    x = mw.ShapeDtypeStruct((batch, 64), "float32")

    def loss(ws: Any, x: Any, y: Any) -> Any:
        for w in ws:
            x = mnp.maximum(x @ w, 0)
        return mnp.mean((x - y) ** 2)

    def train(ws: Any, x: Any, y: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(ws, x, y)
        return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    names = [*(f"w{n}" for n in range(layers)), "x", "y"]
    return dist.from_program(mw.make_program(train)(weights, x, x), names)


def taken(job: Callable[[], object]) -> float:
    """CPU seconds of the faster of two runs."""
    found = []
    for _ in range(2):
        start = process_time()
        job()
        found.append(process_time() - start)
    return min(found)


def simulated(fn: dist.Function, devices: int) -> None:
    topology = hardware.Topology("h100", max(8, devices))
    device_map = dist.DeviceMap.grid(devices // 8, 8) if devices > 8 else range(1, devices + 1)
    dist.simulate(fn, device_map, topology, steady=True, events=False)


def rows() -> Iterator[Row]:
    for name, (transform, bar) in TRANSFORMS.items():
        times = [taken(partial(transform, step(layers))) for layers in (64, 128)]
        yield row(f"{name}, 64 to 128 layers", Measured(times[1], times[0]), bar)
        programs = [transform(step(layers)) for layers in (64, 128)]
        times = [taken(partial(simulated, fn, 4)) for fn in programs]
        yield row(f"simulation of it, {name}", Measured(times[1], times[0]), 2.6)
    fn = dist.horizontal_parallel(dist.data_parallel(step(4, 1 << 20), BATCH), BATCH, ["d"])
    times = [taken(partial(simulated, fn, count)) for count in (1 << 10, 1 << 20)]
    yield row(f"{1 << 10:,} to {1 << 20:,} devices", Measured(times[1], times[0]), 1.5)


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:], peer="less of it"))

"""Search over strategies: data × horizontal × pipeline degrees, microbatches, schedule, zero, recomputation.

A strategy is costed from the work of its layers on one device of each stage: devices that do the same are costed once,
so that the time of a search does not depend on how many there are.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import astuple, dataclass, fields
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from meshwright.device.layered import Layer, Layered, Pointwise, Product, Work, layered
from meshwright.device.on_topology import OnTopology
from meshwright.device.schedule import SCHEDULES, Schedule, Task
from meshwright.device.unrolled import MLP, alternating
from meshwright.errors import ShapeError
from meshwright.hardware.topology import Topology


class Costs(Protocol):
    """What the work of a layer costs, for tensors of ``itemsize`` bytes per element."""

    blocking: bool

    def product_seconds(self, m: int, k: int, n: int, batch: int, itemsize: int) -> float: ...
    def pointwise_seconds(self, count: int, operands: int, itemsize: int) -> float: ...
    def group_seconds(self, kind: str, nbytes: float, count: int, stride: int) -> float: ...
    def hop_seconds(self, nbytes: float, stride: int) -> float: ...
    def join_seconds(self) -> float: ...


@dataclass(frozen=True)
class Strategy:
    """How a training step is spread; stages of 1F1B with several chunks are interleaved."""

    data: int = 1
    horizontal: int = 1
    pipeline: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 0
    recompute: bool = False

    @property
    def devices(self) -> int:
        return self.data * self.horizontal * self.pipeline


@dataclass(frozen=True)
class Estimate:
    """What a strategy costs: time of a step, the most memory a device needs, samples per second, the idle part."""

    strategy: Strategy
    seconds: float
    peak_bytes: int
    samples_per_s: float
    bubble_fraction: float
    fits: bool


def estimate(
    model: MLP | Layered,
    strategy: Strategy,
    batch: int,
    costs: Costs,
    *,
    itemsize: int = 4,
    state_bytes: int = 0,
    memory_bytes: float | None = None,
) -> Estimate:
    """The time and memory of one training step.

    >>> from meshwright import dist
    >>> found = dist.estimate(dist.MLP(8, 512, 256), dist.Strategy(), 256, dist.DistIR())
    >>> f"{found.seconds:.9g}"
    '0.000715033748'
    """
    plan = _Plan(layered(model), strategy, batch, costs, itemsize, state_bytes)
    peak = plan.peak_bytes()
    seconds, bubble = plan.seconds()
    fits = memory_bytes is None or peak <= memory_bytes
    return Estimate(strategy, seconds, peak, batch / seconds, bubble, fits)


@lru_cache(maxsize=4096)
def _schedule(name: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    if name == "interleaved":
        return SCHEDULES[name](devices, microbatches, chunks)
    return SCHEDULES[name](devices, microbatches)


@lru_cache(maxsize=4096)
def _peaks(name: str, devices: int, microbatches: int, chunks: int) -> tuple[int, ...]:
    return _schedule(name, devices, microbatches, chunks).run().peak_activations


class _Plan:
    def __init__(
        self, model: Layered, strategy: Strategy, batch: int, costs: Costs, itemsize: int, state_bytes: int
    ) -> None:
        self.model, self.strategy, self.costs = model, strategy, costs
        self.itemsize, self.state_bytes = itemsize, state_bytes
        self.batch = batch
        self.check()
        self.rows = batch // strategy.data // strategy.microbatches
        self.stages = strategy.pipeline * strategy.chunks
        self.per_stage = model.layers // self.stages
        kinds = {model.kind(n): model.layer(n, self.rows, strategy.horizontal) for n in range(min(2, model.layers))}
        self.layers = [kinds[model.kind(n)] for n in range(model.layers)]
        self.head = model.head(self.rows, strategy.horizontal)
        self.known: dict[Work, float] = {}

    def check(self) -> None:
        s = self.strategy
        for what, size, parts in (
            ("batch", self.batch, s.data * s.microbatches),
            ("number of layers", self.model.layers, s.pipeline * s.chunks),
        ):
            if parts < 1 or size % parts:
                raise ShapeError(
                    f"The {what} {size} does not divide into {parts} equal parts.",
                    why=f"the strategy is {s}",
                    fix=f"a {what} that is a multiple of {parts}",
                )
        if not self.model.divides(s.horizontal):
            raise ShapeError(
                f"The model does not divide among {s.horizontal} devices.",
                why=f"the strategy is {s}",
                fix="horizontal=1, or a degree that divides its width and heads",
            )
        if s.schedule not in SCHEDULES:
            raise ShapeError(
                f"There is no schedule {s.schedule!r}.",
                why=f"the schedules are {', '.join(SCHEDULES)}",
                fix='schedule="1f1b"',
            )

    # Times

    def cost(self, work: Work) -> float:
        found = self.known.get(work)
        if found is None:
            s = self.strategy
            if isinstance(work, Product):
                found = self.costs.product_seconds(work.m, work.k, work.n, work.batch, self.itemsize)
            elif isinstance(work, Pointwise):
                found = self.costs.pointwise_seconds(work.size, work.operands, self.itemsize)
            else:
                found = self.costs.group_seconds("allreduce", work.size * self.itemsize, s.horizontal, 1)
            self.known[work] = found
        return found

    def total(self, work: Iterable[Work]) -> float:
        return sum(map(self.cost, work))

    def stage_layers(self, stage: int) -> list[Layer]:
        found = self.layers[stage * self.per_stage : (stage + 1) * self.per_stage]
        return [*found, self.head] if stage == self.stages - 1 else found

    def task_seconds(self) -> list[dict[str, float]]:
        """Per stage, the time of each phase of a microbatch after the first; ``join`` is what the first has not."""
        found = []
        adds = {n: self.costs.pointwise_seconds(n, 2, self.itemsize) for layer in self.layers for n in layer.parameters}
        for stage in range(self.stages):
            layers = self.stage_layers(stage)
            forward = sum(self.total(layer.forward) for layer in layers)
            backward = sum(self.total(layer.backward) for layer in layers)
            weights = sum(self.total(layer.weights) for layer in layers)
            if self.strategy.recompute:
                backward += sum(self.total(layer.forward) for layer in layers)
            add = sum(adds.get(n, 0.0) for layer in layers for n in layer.parameters)
            join = self.costs.join_seconds()
            found.append(
                {
                    "F": forward + (join if stage == self.stages - 1 else 0.0),
                    "B": backward + (join if stage == 0 else 0.0),
                    "W": weights + add,
                    "F first": forward,
                    "B first": backward,
                    "W first": weights,
                }
            )
        return found

    def seconds(self) -> tuple[float, float]:
        tasks = self.task_seconds()
        clock: Sequence[float] = self.blocking_clock(tasks) if self.costs.blocking else self.overlapped_clock(tasks)
        busy = self.busy(tasks)
        ends = []
        for device in range(self.strategy.pipeline):
            stages = range(device, self.stages, self.strategy.pipeline)
            parameters = [n for stage in stages for layer in self.stage_layers(stage) for n in layer.parameters]
            ends.append(clock[device] + self.reduce_seconds(parameters) + self.update_seconds(parameters))
        total = max(ends)
        return total, max(0.0, 1 - sum(busy) / len(busy) / total)

    def busy(self, tasks: Sequence[dict[str, float]]) -> list[float]:
        k = self.strategy.microbatches
        found = []
        for device in range(self.strategy.pipeline):
            stages = range(device, self.stages, self.strategy.pipeline)
            per = sum((k - 1) * tasks[s][p] + tasks[s][f"{p} first"] for s in stages for p in "FBW")
            found.append(per)
        return found

    def stride(self) -> int:
        """How far apart the devices of neighbouring stages are: horizontal groups stand together, then replicas."""
        return self.strategy.horizontal * self.strategy.data

    def overlapped_clock(self, tasks: Sequence[dict[str, float]]) -> tuple[float, ...]:
        s = self.strategy
        nbytes = self.model.boundary(self.rows) * self.itemsize
        hop = self.costs.hop_seconds(nbytes, self.stride()) if s.pipeline > 1 else 0.0
        times = tuple(tuple(t[p] for p in ("F", "B", "W", "F first", "B first", "W first")) for t in tasks)
        return _overlapped(times, hop, s.schedule, s.pipeline, s.microbatches, s.chunks)

    def blocking_clock(self, tasks: Sequence[dict[str, float]]) -> Sequence[float]:
        """Steps in which forward and backward take turns; sends at the end of each step stop both ends."""
        s = self.strategy
        hop = self.costs.hop_seconds(self.model.boundary(self.rows) * self.itemsize, self.stride())
        clock = [0.0] * s.pipeline
        for step in _steps(s.pipeline, s.microbatches):
            for stage, (phase, k, _) in step:
                suffix = " first" if k == 0 else ""
                times = tasks[stage]
                clock[stage] += times[phase + suffix] + (times["W" + suffix] if phase == "B" else 0.0)
            for stage, (phase, _, _) in step:
                target = stage + 1 if phase == "F" else stage - 1
                if 0 <= target < s.pipeline:
                    clock[stage] = clock[target] = max(clock[stage], clock[target]) + hop
        return clock

    def reduce_seconds(self, parameters: Sequence[int]) -> float:
        """Gradients over replicas: one sum per parameter, or its halves where updates are split."""
        s = self.strategy
        if s.data == 1:
            return 0.0
        if self.costs.blocking:
            return sum(
                self.costs.group_seconds("allreduce", n * self.itemsize, s.data, s.horizontal) for n in parameters
            )
        nbytes = sum(parameters) * self.itemsize
        group = partial(self.costs.group_seconds, nbytes=nbytes, count=s.data, stride=s.horizontal)
        if not s.zero:
            return group("allreduce")
        return group("reduce_scatter") + (2 if s.zero == 3 else 1) * group("allgather")

    def update_seconds(self, parameters: Sequence[int]) -> float:
        if self.costs.blocking:
            return self.costs.pointwise_seconds(parameters[-1], 2, self.itemsize) if parameters else 0.0
        share = self.strategy.data if self.strategy.zero else 1
        return self.costs.pointwise_seconds(sum(parameters) // share, 3, self.itemsize)

    # Memory

    def peak_bytes(self) -> int:
        """Parameters, gradients, optimizer states and the activations in flight, on the device that needs most."""
        s = self.strategy
        flight = _peaks(s.schedule, s.pipeline, s.microbatches, s.chunks)
        parts = [s.data if s.zero >= level else 1 for level in (3, 2, 1)]
        worst = 0
        for device in range(s.pipeline):
            stages = range(device, self.stages, s.pipeline)
            layers = [layer for stage in stages for layer in self.stage_layers(stage)]
            count = sum(n for layer in layers for n in layer.parameters)
            fixed = count * self.itemsize // parts[0] + count * self.itemsize // parts[1]
            fixed += count * self.state_bytes // parts[2]
            boundary = self.model.boundary(self.rows)
            kept = sum(layer.kept for layer in layers) + boundary * s.chunks
            once = 0
            if s.recompute:
                once, kept = max((layer.kept for layer in layers), default=0), boundary * len(layers)
            worst = max(worst, fixed + (flight[device] * kept // s.chunks + once) * self.itemsize)
        return worst


@lru_cache(maxsize=4096)
def _overlapped(
    times: tuple[tuple[float, ...], ...], hop: float, name: str, devices: int, microbatches: int, chunks: int
) -> tuple[float, ...]:
    """When each device is done with its tasks, if messages take ``hop`` and nobody waits to send them."""
    schedule = _schedule(name, devices, microbatches, chunks)
    split = name == "zb-h1"
    last = devices * chunks - 1
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    clock = [0.0] * devices
    at = [0] * devices
    left = sum(map(len, schedule.orders))
    while left:
        for device, order in enumerate(schedule.orders):
            while at[device] < len(order):
                phase, k, chunk = order[at[device]]
                stage = chunk * devices + device
                known: float | None = 0.0
                if phase == "F":
                    known = forward.get((stage - 1, k)) if stage else -hop
                elif phase == "B":
                    known = backward.get((stage + 1, k)) if stage < last else -hop
                if known is None:
                    break
                cost = times[stage]
                first = 0 if k else 3
                if phase == "F":
                    end = forward[stage, k] = max(clock[device], known + hop) + cost[first]
                elif phase == "B":
                    end = max(clock[device], known + hop) + cost[first + 1] + (0.0 if split else cost[first + 2])
                    backward[stage, k] = end
                else:
                    end = clock[device] + cost[first + 2]
                clock[device] = end
                at[device] += 1
                left -= 1
    return tuple(clock)


@lru_cache(maxsize=1024)
def _steps(stages: int, microbatches: int) -> list[list[tuple[int, Task]]]:
    return alternating(stages, microbatches)


# The search


def strategies(
    model: MLP | Layered,
    devices: int,
    batch: int,
    *,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = ("1f1b",),
    chunks: Sequence[int] = (2,),
    zero: Sequence[int] = (0,),
    recompute: Sequence[bool] = (False,),
) -> Iterator[Strategy]:
    """Every strategy on exactly so many devices whose degrees divide the model and the batch.

    >>> from meshwright import dist
    >>> [(s.data, s.horizontal, s.pipeline) for s in dist.strategies(dist.MLP(8, 512, 256), 2, 256, microbatches=[1])]
    [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    """
    found = layered(model)
    counts = microbatches or [2**n for n in range(8)]
    for data in _divisors(devices):
        for horizontal in _divisors(devices // data):
            pipeline = devices // data // horizontal
            if batch % data or not found.divides(horizontal) or found.layers % pipeline:
                continue
            if horizontal > 1 and isinstance(model, MLP) and (model.layers // pipeline) % 2:
                continue
            for k in counts if pipeline > 1 else [k for k in counts if k == min(counts)]:
                if batch // data % k:
                    continue
                for schedule in schedules if pipeline > 1 else schedules[:1]:
                    for v in chunks if schedule == "interleaved" else (1,):
                        if found.layers % (pipeline * v) or (v > 1 and k % pipeline):
                            continue
                        for z in zero if data > 1 else (0,):
                            for again in recompute:
                                yield Strategy(data, horizontal, pipeline, k, schedule, v, z, again)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@dataclass(frozen=True)
class SearchResult:
    """What a search found, the best that fits first."""

    estimates: tuple[Estimate, ...]

    @property
    def best(self) -> Estimate | None:
        """The fastest that fits into memory."""
        return next((e for e in self.estimates if e.fits), None)

    @property
    def pareto(self) -> tuple[Estimate, ...]:
        """Those no other beats both in samples per second and in memory."""
        found: list[Estimate] = []
        for e in sorted(self.estimates, key=lambda e: (-e.samples_per_s, e.peak_bytes)):
            if not found or e.peak_bytes < found[-1].peak_bytes:
                found.append(e)
        return tuple(found)

    def __len__(self) -> int:
        return len(self.estimates)


def grid_search(
    model: MLP | Layered,
    topology: Topology | None = None,
    batch: int | None = None,
    *,
    devices: int | None = None,
    costs: Costs | None = None,
    itemsize: int = 2,
    state_bytes: int = 12,
    memory_bytes: float | None = None,
    executor: Executor | None = None,
    path: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = ("1f1b", "interleaved", "zb-h1"),
    chunks: Sequence[int] = (2,),
    zero: Sequence[int] = (0, 1, 2, 3),
    recompute: Sequence[bool] = (False, True),
) -> SearchResult:
    """Cost every strategy on a machine, and sort them: those that fit into memory first, the fastest first.

    ``executor`` is any of `concurrent.futures`, or what behaves like one. With ``path``, estimates are kept in a CSV
    file, and those it has already, of the same model and machine, are not computed again. ``progress`` is called with
    how many are done, and of how many.

    >>> from meshwright import dist, hardware
    >>> found = dist.grid_search(dist.GPT(layers=12, dim=768, heads=12), hardware.Topology("h100", 8), batch=64)
    >>> found.best.strategy.devices, found.best.fits, len(found.pareto) > 1
    (8, True, True)
    """
    if costs is None:
        if topology is None:
            raise ShapeError(
                "There is no machine to search on.",
                why="neither a topology nor costs are given",
                fix='dist.grid_search(model, mw.hardware.Topology("h100", 64), batch=512)',
            )
        costs = OnTopology(topology)
    if batch is None:
        batch = model.batch if isinstance(model, MLP) else 0
    count = devices or (topology.size if topology is not None else 0)
    if batch < 1 or count < 1:
        raise ShapeError(
            "A search needs a batch and devices.", why=f"batch={batch}, devices={count}", fix="batch=512, devices=64"
        )
    if memory_bytes is None and topology is not None:
        memory_bytes = topology.chip.hbm_bytes
    options = {
        "microbatches": microbatches,
        "schedules": schedules,
        "chunks": chunks,
        "zero": zero,
        "recompute": recompute,
    }
    wanted = list(strategies(model, count, batch, **options))  # type: ignore[arg-type]
    case = _case(costs, count, itemsize, model, batch, topology, state_bytes, memory_bytes) if path is not None else ""
    known = _read(path, case) if path is not None else {}
    todo = [s for s in wanted if s not in known]
    one = partial(
        estimate, model, batch=batch, costs=costs, itemsize=itemsize, state_bytes=state_bytes, memory_bytes=memory_bytes
    )
    made = executor.map(one, todo, chunksize=16) if executor is not None else map(one, todo)
    done = []
    for n, found in enumerate(made):
        done.append(found)
        if progress is not None:
            progress(n + 1, len(todo))
    if path is not None:
        _append(path, case, done)
    every = done + [known[s] for s in wanted if s in known]
    return SearchResult(tuple(sorted(every, key=lambda e: (not e.fits, e.seconds, e.peak_bytes))))


_NAMES = [f.name for f in fields(Strategy)]
_NUMBERS = ["seconds", "peak_bytes", "samples_per_s", "bubble_fraction", "fits"]


def _case(costs: Costs, count: int, itemsize: int, *given: object) -> str:
    """What estimates in a file depend on; costs, which are code, are told apart by what they say of some work."""
    said = (
        costs.product_seconds(512, 1024, 2048, 3, itemsize),
        costs.pointwise_seconds(3 << 20, 2, itemsize),
        count > 1 and (costs.group_seconds("allreduce", 3e8, 2, 1), costs.hop_seconds(3e8, 1)),
        costs.join_seconds(),
    )
    return sha256(repr((type(costs).__name__, costs.blocking, itemsize, said, given)).encode()).hexdigest()[:16]


def _append(path: str | Path, case: str, estimates: Sequence[Estimate]) -> None:
    new = not Path(path).exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow([*_NAMES, *_NUMBERS, "case"])
        for e in estimates:
            numbers = [getattr(e, name) for name in _NUMBERS]
            writer.writerow([*astuple(e.strategy), *numbers, case])


def _read(path: str | Path, case: str) -> dict[Strategy, Estimate]:
    if not Path(path).exists():
        return {}
    found = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if list(row) != [*_NAMES, *_NUMBERS, "case"] or None in row.values():
                raise ShapeError(
                    f"{path} is not a file of estimates.",
                    why=f"its columns are {', '.join(map(str, row))}",
                    fix="another path, or delete the file",
                )
            if row["case"] != case:
                continue
            strategy = Strategy(
                int(row["data"]),
                int(row["horizontal"]),
                int(row["pipeline"]),
                int(row["microbatches"]),
                row["schedule"],
                int(row["chunks"]),
                int(row["zero"]),
                row["recompute"] == "True",
            )
            found[strategy] = Estimate(
                strategy,
                float(row["seconds"]),
                int(row["peak_bytes"]),
                float(row["samples_per_s"]),
                float(row["bubble_fraction"]),
                row["fits"] == "True",
            )
    return found

"""Search over strategies: data × horizontal × pipeline degrees, microbatches, schedule, zero, recomputation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from itertools import product
from math import gcd, isqrt
from typing import Any

from meshwright.errors import ShapeError
from meshwright.hardware.arguments import Check, checked, flag, function, having, one_of, path, sequence, whole
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.estimates import EstimateFile
from meshwright.search.layered import GPT, Layered, layered
from meshwright.search.layered_plan import MOST_LAYERS, LayeredPlan
from meshwright.search.strategy import Costs, Estimate
from meshwright.search.traced import Traced
from meshwright.search.traced_plan import TracedPlan
from meshwright.search.transformer_plan import TransformerPlan, dtypes_of, fits_on, transformer_of
from meshwright.search.unrolled import MLP
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import SCHEDULES
from meshwright.simulate.transformer.arguments import STEP
from meshwright.simulate.transformer.strategy import ZERO, Strategy, recomputed

Model = MLP | GPT | TransformerShape | Layered | Traced
MANY = 20_000  # strategies, from which on starting processes pays
CHUNK = 16  # strategies that a process is given at once
MOST_WORKERS = 1024
MOST_DEVICES = 10**12
_count = partial(sequence, whole, least=1)
_STEP: dict[str, Check] = {
    **STEP,
    "costs": partial(having, "product_seconds", "costs", 'dist.OnTopology(mw.hardware.Topology("h100", 8))'),
    "itemsize": whole,
    "state_bytes": partial(whole, least=0),
}
_SPACE: dict[str, Check] = {
    **STEP,
    **dict.fromkeys(("microbatches", "chunks", "context", "expert"), _count),
    "schedules": partial(sequence, partial(one_of, tuple(SCHEDULES)), least=1),
    "zero": partial(sequence, partial(one_of, ZERO), least=1),
    "recompute": partial(sequence, recomputed, least=1),
    "sequence_parallel": partial(sequence, flag, least=1),
}


@checked("a step", **_STEP)
def estimate(
    model: Model,
    strategy: Strategy,
    batch: int,
    costs: Costs,
    *,
    itemsize: int | None = None,
    state_bytes: int | None = None,
    memory_bytes: float | None = None,
    sequence: int | None = None,
) -> Estimate:
    """The time and memory of one training step.

    Of a transformer (`GPT`, `hardware.TransformerShape` with sequences of ``sequence`` tokens) it is what
    `simulate.transformer.train` says; parameters have 2 bytes and the optimizer 12 for each. Of others, 4 and none.

    >>> from meshwright import dist
    >>> found = dist.estimate(dist.MLP(8, 512, 256), dist.Strategy(), 256, dist.DistIR())
    >>> f"{found.seconds:.9g}"
    '0.000715033748'
    """
    plan = _plan(model, strategy, batch, costs, itemsize, state_bytes, sequence)
    peak = plan.peak_bytes()
    seconds, bubble = plan.seconds()
    if memory_bytes is None and isinstance(plan, TransformerPlan):
        memory_bytes = plan.topology.chip.hbm_bytes
    fits = memory_bytes is None or peak <= memory_bytes
    return Estimate(strategy, seconds, peak, batch / seconds, bubble, fits)


def _plan(
    model: Model,
    strategy: Strategy,
    batch: int,
    costs: Costs,
    itemsize: int | None,
    state_bytes: int | None,
    sequence: int | None,
) -> LayeredPlan | TracedPlan | TransformerPlan:
    found = transformer_of(model, sequence)
    if found is not None:
        return TransformerPlan(found, strategy, batch, costs, dtypes_of(itemsize, state_bytes))
    if isinstance(model, Traced):
        return TracedPlan(model, strategy, batch, costs, state_bytes or 0)
    return LayeredPlan(layered(model), strategy, batch, costs, itemsize or 4, state_bytes or 0)  # type: ignore[arg-type]


class _Pruned:
    """Estimates of what can still be best: it fits, and nothing found so far beats it in time and memory both."""

    def __init__(self, model: Model, batch: int, costs: Costs, most: float | None, **options: int | None) -> None:
        self.given = model, batch, costs
        self.options = options
        self.most = most
        self.front: list[Estimate] = []

    def __call__(self, strategy: Strategy) -> Estimate | None:
        model, batch, costs = self.given
        plan = _plan(model, strategy, batch, costs, **self.options)
        peak = plan.peak_bytes()
        if self.most is not None and peak > self.most:
            return None
        near = [e for e in self.front if e.peak_bytes_per_device <= peak]
        if near and plan.least_seconds() > min(e.seconds for e in near):
            return None
        seconds, bubble = plan.seconds()
        found = Estimate(strategy, seconds, peak, batch / seconds, bubble, True)
        if not any(e.seconds <= seconds for e in near):
            self.front = [e for e in self.front if e.seconds < seconds or e.peak_bytes_per_device < peak] + [found]
        return found


@checked("a search", **_SPACE)
def strategies(
    model: Model,
    devices: int,
    batch: int,
    *,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = ("1f1b",),
    chunks: Sequence[int] = (2,),
    zero: Sequence[int] = (0,),
    recompute: Sequence[str | bool] = (False,),
    sequence: int | None = None,
    context: Sequence[int] = (1,),
    expert: Sequence[int] = (1,),
    sequence_parallel: Sequence[bool] = (False,),
) -> Iterator[Strategy]:
    """Every strategy on exactly so many devices whose degrees divide the model and the batch.

    ``context``, ``expert`` and ``sequence_parallel`` are of transformers.

    >>> from meshwright import dist
    >>> [(s.data, s.tensor, s.pipeline) for s in dist.strategies(dist.MLP(8, 512, 256), 2, 256, microbatches=[1])]
    [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    """
    counts = microbatches or [2**n for n in range(8)]
    sizes = transformer_of(model, sequence)
    if sizes is None:
        possible = _possible(model)
        for part in _grid(_stages_of(model), devices, batch, counts, schedules, chunks, zero, recompute):
            if possible(part):
                yield part
        return
    for c, e in product(context, expert):
        if devices % (c * e):
            continue
        left = devices // (c * e)
        for part in _grid(sizes[0].layers, left, batch, counts, schedules, chunks, zero, recompute, c * e > 1):
            for parallel in sequence_parallel if part.tensor > 1 else (False,):
                found = replace(part, context=c, expert=e, sequence_parallel=parallel)
                even = sizes[0].layers % (found.pipeline * found.chunks) == 0
                if even and fits_on(sizes[0], found, batch, sizes[1]):
                    yield found


def _grid(
    most: int,
    devices: int,
    batch: int,
    counts: Sequence[int],
    schedules: Sequence[str],
    chunks: Sequence[int],
    zero: Sequence[int],
    recompute: Sequence[str | bool],
    replicas: bool = False,
) -> Iterator[Strategy]:
    """Every strategy on so many devices with at most so many stages, whatever the model."""
    for data in _divisors(gcd(devices, batch)):
        left = devices // data
        for tensor in [left // n for n in range(min(most, MOST_LAYERS, left), 0, -1) if left % n == 0]:
            pipeline = left // tensor
            for k in counts if pipeline > 1 else [k for k in counts if k == min(counts)]:
                if batch // data % k:
                    continue
                for schedule in schedules if pipeline > 1 else schedules[:1]:
                    for v in chunks if schedule == "interleaved" else (1,):
                        if v > 1 and k % pipeline:
                            continue
                        for z in zero if data > 1 or replicas else (0,):
                            for again in recompute:
                                yield Strategy(data, tensor, pipeline, k, schedule, v, z, again)


def _stages_of(model: Any) -> int:
    return model.most_stages if isinstance(model, Traced) else layered(model).layers


def _possible(model: Any) -> Callable[[Strategy], bool]:
    """Whether a strategy's degrees divide a model that is not a transformer."""
    found = model if isinstance(model, Traced) else layered(model)

    @cache
    def divides(data: int, tensor: int, pipeline: int, stages: int) -> bool:
        if data > 1 and isinstance(found, Traced) and found.whole:
            return False
        if not _has_stages(found, pipeline) or not _has_stages(found, stages) or not found.divides(tensor):
            return False
        return not (tensor > 1 and isinstance(model, MLP) and (model.layers // pipeline) % 2)

    return lambda s: divides(s.data, s.tensor, s.pipeline, s.pipeline * s.chunks)


def _has_stages(model: Traced | Layered, stages: int) -> bool:
    return stages <= model.most_stages if isinstance(model, Traced) else model.layers % stages == 0


def _divisors(n: int) -> list[int]:
    if n > MOST_DEVICES:
        raise ShapeError(
            f"The parts that {n} has are not looked for.",
            why=f"it is what the number of devices and the batch have in common, and at most {MOST_DEVICES}",
            fix="fewer devices, or a smaller batch",
        )
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


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
        for e in sorted(self.estimates, key=lambda e: (-e.samples_per_s, e.peak_bytes_per_device)):
            if not found or e.peak_bytes_per_device < found[-1].peak_bytes_per_device:
                found.append(e)
        return tuple(found)

    def __len__(self) -> int:
        return len(self.estimates)


@checked(
    "a search",
    executor=partial(having, "map", "an executor", "concurrent.futures.ThreadPoolExecutor()"),
    path=path,
    progress=function,
    **(_STEP | _SPACE),
)
def grid_search(
    model: Model,
    topology: Topology | None = None,
    batch: int | None = None,
    *,
    devices: int | None = None,
    costs: Costs | None = None,
    itemsize: int = 2,
    mode: str = "exact",
    sequence: int | None = None,
    state_bytes: int | None = None,
    memory_bytes: float | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    path: str | os.PathLike[str] | None = None,
    prune: bool = False,
    progress: Callable[[int, int], None] | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = ("1f1b", "interleaved", "zb-h1"),
    chunks: Sequence[int] = (2,),
    zero: Sequence[int] = (0, 1, 2, 3),
    recompute: Sequence[str | bool] = (False, True),
    context: Sequence[int] = (1,),
    expert: Sequence[int] = (1,),
    sequence_parallel: Sequence[bool] = (False,),
) -> SearchResult:
    """Cost every strategy on a machine, and sort them: those that fit into memory first, the fastest first.

    ``executor`` is any of `concurrent.futures`, or what behaves like one; without, a long search takes ``workers``
    processes of this machine, one per core. With ``path``, estimates are kept in a file (CSV, or JSON by line if its
    name ends in .json) as they are made, and those it has already, of the same model and machine, are not computed
    again. ``progress`` is called with how many are done, and of how many. ``state_bytes`` is what the optimizer keeps
    for each parameter, 12 by default; a traced step has what it keeps among its inputs. ``mode`` is that of `simulate`.
    ``prune`` leaves out what does not fit into memory and, by a bound on its time, much of what cannot be best or on
    the front; the rest is the same.

    >>> from meshwright import dist, hardware
    >>> model, machine = dist.GPT(layers=12, dim=768, heads=12), hardware.Topology("h100", 8)
    >>> found = dist.grid_search(model, machine, batch=64, microbatches=[4], zero=[0, 1])
    >>> found.best.strategy.devices, found.best.fits, len(found.pareto) > 1
    (8, True, True)
    """
    costs = _costs_on(topology, mode) if costs is None else costs
    if batch is None:
        batch = model.batch if isinstance(model, MLP) else 0
    count = devices or (topology.size if topology is not None else 0)
    if batch < 1 or count < 1:
        raise ShapeError(
            "A search needs a batch and devices.", why=f"batch={batch}, devices={count}", fix="batch=512, devices=64"
        )
    if workers is not None and workers > MOST_WORKERS:
        raise ShapeError(
            f"workers is {workers}.",
            why=f"each is a process, and up to {MOST_WORKERS} are started",
            fix="workers=8",
        )
    if memory_bytes is None and topology is not None:
        memory_bytes = topology.chip.hbm_bytes
    options = {
        "microbatches": microbatches,
        "schedules": schedules,
        "chunks": chunks,
        "zero": zero,
        "recompute": recompute,
        "sequence": sequence,
        "context": context,
        "expert": expert,
        "sequence_parallel": sequence_parallel,
    }
    if state_bytes is None:
        state_bytes = 0 if isinstance(model, Traced) else 12
    wanted = list(strategies(model, count, batch, **options))  # type: ignore[arg-type]
    sizes: dict[str, Any] = {"itemsize": itemsize, "state_bytes": state_bytes, "sequence": sequence}
    one: Callable[[Strategy], Estimate | None] = partial(
        estimate, model, batch=batch, costs=costs, memory_bytes=memory_bytes, **sizes
    )
    if prune:
        one = _Pruned(model, batch, costs, memory_bytes, **sizes)
    kept = None
    if path is not None:
        given = (model, batch, topology, state_bytes, memory_bytes, sequence)
        kept = EstimateFile(path, _case(costs, count, itemsize, *given))
    known = kept.known if kept is not None else {}
    todo = [s for s in wanted if s not in known]
    with _executor(executor, workers, len(todo)) as pool:
        every = _estimated(one, todo, pool, kept, progress) + [known[s] for s in wanted if s in known]
    return SearchResult(tuple(sorted(every, key=lambda e: (not e.fits, e.seconds, e.peak_bytes_per_device))))


def _costs_on(topology: Topology | None, mode: str) -> Costs:
    if topology is None:
        raise ShapeError(
            "There is no machine to search on.",
            why="neither a topology nor costs are given",
            fix='dist.grid_search(model, mw.hardware.Topology("h100", 64), batch=512)',
        )
    return OnTopology(topology, mode=mode)


def _estimated(
    one: Callable[[Strategy], Estimate | None],
    todo: Sequence[Strategy],
    pool: Executor | None,
    kept: EstimateFile | None,
    progress: Callable[[int, int], None] | None,
) -> list[Estimate]:
    """The estimates of strategies by an executor, written to a file as they are made."""
    done: list[Estimate] = []
    try:
        made = pool.map(one, todo, chunksize=CHUNK) if pool is not None else map(one, todo)
        for n, found in enumerate(made):
            if found is not None:
                done.append(found)
                if kept is not None:
                    kept.add(found)
            if progress is not None:
                progress(n + 1, len(todo))
    finally:
        if kept is not None:
            kept.close()
    return done


@contextmanager
def _executor(given: Executor | None, workers: int | None, count: int) -> Iterator[Executor | None]:
    """The executor to use: the one given, processes of this machine for a long search, or none."""
    if workers is None:
        workers = (os.cpu_count() or 1) if count >= MANY else 1
    workers = min(workers, -(-count // CHUNK))
    if given is not None or workers < 2:
        yield given
        return
    with ProcessPoolExecutor(workers) as pool:
        yield pool


def _case(costs: Costs, count: int, itemsize: int, *given: object) -> str:
    """What estimates in a file depend on; costs, which are code, are told apart by what they say of some work."""
    said = (
        costs.product_seconds(512, 1024, 2048, 3, itemsize),
        costs.pointwise_seconds(3 << 20, 2, itemsize),
        count > 1 and (costs.group_seconds("allreduce", 3e8, 2, 1), costs.hop_seconds(3e8, 1)),
        costs.join_seconds(),
    )
    return sha256(repr((type(costs).__name__, costs.blocking, itemsize, said, given)).encode()).hexdigest()[:16]

"""Search over strategies: the fastest that fit into memory, of all that divide a model, a batch and a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

from meshwright.errors import HardwareError, ShapeError
from meshwright.hardware.arguments import Check, checked, flag, function, having, one_of, path, refused, sequence, whole
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.bounds import bounds_for
from meshwright.search.estimates import EstimateFile
from meshwright.search.explained_strategies import SearchedFor
from meshwright.search.layered import GPT, Layered, layered
from meshwright.search.layered_plan import LayeredPlan
from meshwright.search.pruned import CHUNK, WHOLE_GROUP, BoundedStrategy, Estimator, Standing, estimates
from meshwright.search.result import SearchResult, promised
from meshwright.search.space import SearchSpace
from meshwright.search.strategy import Costs, Estimate, Least
from meshwright.search.traced import Traced
from meshwright.search.traced_bounds import TracedBounds
from meshwright.search.traced_plan import TracedPlan
from meshwright.search.transformer_plan import TransformerPlan, dtypes_of, transformer_of
from meshwright.search.unrolled import MLP
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import SCHEDULES
from meshwright.simulate.transformer.arguments import STEP
from meshwright.simulate.transformer.strategy import ZERO, Strategy, recomputed

Model = MLP | GPT | TransformerShape | Layered | Traced
MOST_WORKERS = 1024
_count = partial(sequence, whole, least=1)
_STEP: dict[str, Check] = {
    **STEP,
    "costs": partial(having, "product_seconds", "costs", 'dist.OnTopology(mw.hardware.Topology("h100", 8))'),
    "itemsize": whole,
    "state_bytes": partial(whole, least=0),
}
_SPACE: dict[str, Check] = {
    **STEP,
    **dict.fromkeys(("microbatches", "microbatch", "chunks", "context", "expert", "tensor", "pipeline"), _count),
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


@dataclass(frozen=True)
class _Planner:
    """What the plans of one search have in common."""

    model: Any
    batch: int
    costs: Any
    itemsize: int
    state_bytes: int
    sequence: int | None

    def __call__(self, strategy: Strategy) -> LayeredPlan | TracedPlan | TransformerPlan:
        return _plan(self.model, strategy, self.batch, self.costs, self.itemsize, self.state_bytes, self.sequence)

    def candidates(self, wanted: Sequence[Strategy], known: Mapping[Strategy, Least]) -> list[BoundedStrategy]:
        """Strategies with bounds on what they take; those whose mesh does not lie on the machine are left out."""
        sizes = transformer_of(self.model, self.sequence)
        if sizes is None or not isinstance(self.costs, OnTopology):
            least_of = self.traced_bounds(wanted)
            return [BoundedStrategy(s, *(known.get(s) or least_of(s)), self.shared(s)) for s in wanted]
        bounds = bounds_for(sizes, self.batch, self.costs, dtypes_of(self.itemsize, self.state_bytes))
        found = []
        for s in wanted:
            try:
                least = known.get(s) or bounds.of(s)
            except HardwareError:
                continue
            shared = (s.tensor, s.context, s.expert, s.sequence_parallel, s.recompute, bounds.rows(s))
            found.append(BoundedStrategy(s, *least, shared))
        return found

    def traced_bounds(self, wanted: Sequence[Strategy]) -> Callable[[Strategy], Least]:
        """Bounds on what strategies of a traced step take; of other models there are none."""
        model = self.model
        if not wanted or not isinstance(model, Traced) or not isinstance(self.costs, OnTopology) or not model.separable:
            return lambda s: Least(0.0, 0)
        most = max(self.batch // (s.data * s.microbatches) for s in wanted)
        return TracedBounds(model, self.batch, self.costs, self.state_bytes, most).of

    def shared(self, s: Strategy) -> tuple[int, ...]:
        """What strategies have alike that share the program of a device."""
        return (
            (s.tensor, self.batch // (s.data * s.microbatches))
            if isinstance(self.model, Traced)
            else (s.tensor, s.data)
        )


@checked("a search", **_SPACE)
def strategies(
    model: Model,
    devices: int,
    batch: int,
    *,
    sequence: int | None = None,
    microbatches: Sequence[int] | None = None,
    microbatch: Sequence[int] | None = None,
    schedules: Sequence[str] | None = None,
    chunks: Sequence[int] | None = None,
    zero: Sequence[int] | None = None,
    recompute: Sequence[str | bool] | None = None,
    context: Sequence[int] | None = None,
    expert: Sequence[int] | None = None,
    sequence_parallel: Sequence[bool] | None = None,
    tensor: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    flash: bool = True,
) -> Iterator[Strategy]:
    """Every strategy on exactly so many devices whose degrees divide the model and the batch.

    What is not given is all that the model allows: every size of a ``microbatch`` that divides a replica's share of the
    batch (``microbatches`` are counts of them), with a pipeline and without; schedules 1f1b, interleaved (up to 8
    chunks on a device) and zb-h1; zero 0 to 3; recomputation of nothing, of all but matmuls, or of layers. Of
    transformers also ``sequence_parallel``, ``context`` where each device keeps 4,096 positions or more, and ``expert``
    of a mixture of experts; with ``flash=False`` attention stores its scores, and may recompute them alone.

    >>> from meshwright import dist
    >>> only = {"microbatches": [1], "zero": [0], "recompute": ["none"], "schedules": ["1f1b"]}
    >>> [(s.data, s.tensor, s.pipeline) for s in dist.strategies(dist.MLP(8, 512, 256), 2, 256, **only)]
    [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    """
    space = SearchSpace(
        microbatches, microbatch, schedules, chunks, zero, recompute, context, expert, sequence_parallel, tensor,
        pipeline, flash,
    )  # fmt: skip
    return space.of(model, devices, batch, sequence)


def _pool(name: str, value: Any, of: str) -> Any:
    """Something that runs functions elsewhere."""
    if not isinstance(value, type) and (hasattr(value, "submit") or hasattr(value, "map")):
        return value
    example = "concurrent.futures.ThreadPoolExecutor()"
    raise refused(name, value, of, "it is an executor, with a method submit or map", example)


@checked(
    "a search",
    strategies,
    executor=_pool,
    path=path,
    progress=function,
    better=function,
    top=whole,
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
    executor: Any = None,
    workers: int | None = None,
    path: str | os.PathLike[str] | None = None,
    prune: bool = True,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
    better: Callable[[Estimate], None] | None = None,
    **space: Any,
) -> SearchResult:
    """The fastest of all `strategies` on a machine that fit into its memory; ``space`` says which are looked at.

    What is found is the ``top`` fastest that fit, and the front: those that nothing beats in both time and memory, up
    to twice the time of the fastest. Bounds rule the others out before they are simulated; what is found is the same
    as without. With ``prune=False`` all are simulated and returned, those that fit first, the fastest first. If nothing
    fits, it is the ``top`` that need the least memory.

    ``executor`` is any of `concurrent.futures`, or what has a `submit` or a `map` like it; without, a search that takes
    long has a process per core, or ``workers``. With ``path``, estimates are kept in a file (CSV, or JSON by line if
    its name ends in .json) as they are made, and those it has already, of the same model and machine, are not made
    again. ``progress`` is called with how many are done, and of how many; ``better`` with each estimate that is the
    best so far. ``state_bytes`` is what the optimizer keeps for each parameter, 12 by default; a traced step has what
    it keeps among its inputs. ``mode`` is that of `simulate`.

    >>> from meshwright import dist, hardware
    >>> model, machine = dist.GPT(layers=12, dim=768, heads=12), hardware.Topology("h100", 8)
    >>> found = dist.grid_search(model, machine, batch=64, microbatches=[4], zero=[0, 1], recompute=["none"])
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
    if isinstance(model, Traced):
        model = model.at(batch)  # here and not in other processes, which do not have the function
    if memory_bytes is None and topology is not None:
        memory_bytes = topology.chip.hbm_bytes
    if state_bytes is None:
        state_bytes = 0 if isinstance(model, Traced) else 12
    planner = _Planner(model, batch, costs, itemsize, state_bytes, sequence)
    wanted = list(strategies(model, count, batch, sequence=sequence, **space))
    kept = None
    if path is not None:
        given = (model, batch, topology, state_bytes, memory_bytes, sequence)
        kept = EstimateFile(path, _case(costs, count, itemsize, *given))
    told = _Told(kept, progress, better)
    make = Estimator(planner, batch, memory_bytes, WHOLE_GROUP if isinstance(model, Traced) else CHUNK)
    standing = Standing(memory_bytes, top) if prune else None
    try:
        todo = planner.candidates(told.unknown(wanted, standing), kept.least if kept is not None else {})
        for candidate, one in estimates(make, todo, standing, executor, workers):
            told.take(candidate, one)
        if prune and not any(e.fits for e in told.found):
            for candidate in sorted(todo, key=lambda c: c.nbytes)[:top]:
                told.take(candidate, make.one(candidate, None))
    finally:
        if kept is not None:
            kept.close()
    asked = None
    if isinstance(costs, OnTopology) and (isinstance(model, Traced) or transformer_of(model, sequence) is not None):
        dtypes, overlap = dtypes_of(itemsize, state_bytes), "loops" if costs.overlap else "none"
        options = {"itemsize": itemsize, "state_bytes": state_bytes, "sequence": sequence, "workers": workers, **space}
        again = partial(_searched_again, model, count, (costs.overlap, costs.mode), options)
        plan = partial(_traced_plan, model, state_bytes) if isinstance(model, Traced) else None
        of = (model, costs.topology, batch, sequence, dtypes, costs.mode, overlap, memory_bytes)
        asked = SearchedFor(*of, again=again, plan=plan)
    return replace(promised(told.found, wanted, top if prune else None), asked=asked)


def _traced_plan(model: Traced, state_bytes: int, strategy: Strategy, batch: int, costs: Costs) -> TracedPlan:
    return TracedPlan(model, strategy, batch, costs, state_bytes)


def _searched_again(
    model: Model, devices: int, kind: tuple[bool, str], options: dict[str, Any], on: Topology, batch: int, memory: float
) -> SearchResult:
    """A search on another machine, with another batch and memory."""
    overlap, mode = kind
    costs = OnTopology(on, overlap=overlap, mode=mode)
    return grid_search(model, on, batch, devices=devices, costs=costs, memory_bytes=memory, top=1, **options)


class _Told:
    """What a search has found, and whom it tells: a file, and those who watch."""

    def __init__(
        self,
        kept: EstimateFile | None,
        progress: Callable[[int, int], None] | None,
        better: Callable[[Estimate], None] | None,
    ) -> None:
        self.kept, self.progress, self.better = kept, progress, better
        self.found: list[Estimate] = []
        self.best: Estimate | None = None
        self.done = self.count = 0

    def unknown(self, wanted: Sequence[Strategy], standing: Standing | None) -> list[Strategy]:
        """Take over what the file has; the strategies that it does not have."""
        known = self.kept.known if self.kept is not None else {}
        for strategy in wanted:
            if strategy in known:
                self._add(known[strategy])
                if standing is not None:
                    standing.add(known[strategy])
        left = [s for s in wanted if s not in known]
        self.count = len(left)
        return left

    def take(self, candidate: BoundedStrategy, one: Estimate | Least) -> None:
        """Take note of an estimate, or of the bound that rules a strategy out."""
        if isinstance(one, Estimate):
            self._add(one)
            if self.kept is not None:
                self.kept.add(one)
        elif self.kept is not None and one != (candidate.seconds, candidate.nbytes):
            self.kept.rule_out(candidate.strategy, one)
        self.done = min(self.done + 1, self.count)
        if self.progress is not None:
            self.progress(self.done, self.count)

    def _add(self, one: Estimate) -> None:
        self.found.append(one)
        if one.fits and (self.best is None or one.seconds < self.best.seconds):
            self.best = one
            if self.better is not None:
                self.better(one)


def _costs_on(topology: Topology | None, mode: str) -> Costs:
    if topology is None:
        raise ShapeError(
            "There is no machine to search on.",
            why="neither a topology nor costs are given",
            fix='dist.grid_search(model, mw.hardware.Topology("h100", 64), batch=512)',
        )
    return OnTopology(topology, mode=mode)


def _case(costs: Costs, count: int, itemsize: int, *given: object) -> str:
    """What estimates in a file depend on; costs, which are code, are told apart by what they say of some work."""
    said = (
        costs.product_seconds(512, 1024, 2048, 3, itemsize),
        costs.pointwise_seconds(3 << 20, 2, itemsize),
        count > 1 and (costs.group_seconds("allreduce", 3e8, 2, 1), costs.hop_seconds(3e8, 1)),
        costs.join_seconds(),
    )
    known = (type(costs).__name__, getattr(costs, "key", None), costs.blocking, itemsize, said, given)
    return sha256(repr(known).encode()).hexdigest()[:16]

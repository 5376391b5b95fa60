"""What a strategy costs for a model of layers: devices that do the same are costed once.

The time of a search does not depend on how many devices there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from meshwright.errors import ShapeError
from meshwright.search.clocks import overlapped, steps_of
from meshwright.search.layered import Layer, Layered, LayerMatmul, Pointwise, Work
from meshwright.search.strategy import Costs, check_batch, check_parts
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.transformer.strategy import Strategy

MOST_LAYERS = 1 << 12
RECOMPUTED = ("none", "full")  # what layers may compute again


class LayeredPlan:
    """A model of layers under a strategy: the work of one device of each stage."""

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
        kinds = {model.kind(n): model.layer(n, self.rows, strategy.tensor) for n in range(min(2, model.layers))}
        self.layers = [kinds[model.kind(n)] for n in range(model.layers)]
        self.head = model.head(self.rows, strategy.tensor)
        self.known: dict[Work, float] = {}

    def check(self) -> None:
        s = self.strategy
        check_batch(s, self.batch, RECOMPUTED)
        if self.model.layers > MOST_LAYERS:
            raise ShapeError(
                f"A model of {self.model.layers} layers is not costed.",
                why=f"layers are listed, up to {MOST_LAYERS}",
                fix=f"layers={MOST_LAYERS}",
            )
        check_parts("number of layers", self.model.layers, s.pipeline * s.chunks, s)
        if not self.model.divides(s.tensor):
            raise ShapeError(
                f"The model does not divide among {s.tensor} devices.",
                why=f"the strategy is {s}",
                fix="tensor=1, or a degree that divides its width and heads",
            )

    # Times

    def cost(self, work: Work) -> float:
        found = self.known.get(work)
        if found is None:
            s = self.strategy
            if isinstance(work, LayerMatmul):
                found = self.costs.product_seconds(work.m, work.k, work.n, work.batch, self.itemsize)
            elif isinstance(work, Pointwise):
                found = self.costs.pointwise_seconds(work.size, work.operands, self.itemsize)
            else:
                found = self.costs.group_seconds("allreduce", work.size * self.itemsize, s.tensor, 1)
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
        kinds = {id(layer): layer for layer in (*self.layers, self.head)}  # few, of which there are many
        times = {
            name: tuple(map(self.total, (layer.forward, layer.backward, layer.weights)))
            for name, layer in kinds.items()
        }
        sizes = {n for layer in kinds.values() if layer is not self.head for n in layer.parameters}
        adds = {n: self.costs.pointwise_seconds(n, 2, self.itemsize) for n in sizes}
        for stage in range(self.stages):
            layers = self.stage_layers(stage)
            forward, backward, weights = (sum(times[id(layer)][phase] for layer in layers) for phase in range(3))
            if self.strategy.recompute != "none":
                backward += sum(times[id(layer)][0] for layer in layers)
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

    def least_seconds(self) -> float:
        """A bound on the time: the work of the device that has most, without a wait."""
        return max(self.busy(self.task_seconds()))

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
        return self.strategy.tensor * self.strategy.data

    def overlapped_clock(self, tasks: Sequence[dict[str, float]]) -> tuple[float, ...]:
        s = self.strategy
        nbytes = self.model.boundary(self.rows) * self.itemsize
        hop = self.costs.hop_seconds(nbytes, self.stride()) if s.pipeline > 1 else 0.0
        times = tuple(tuple(t[p] for p in ("F", "B", "W", "F first", "B first", "W first")) for t in tasks)
        hops = ((hop,) * self.stages,) * 2
        return overlapped(times, hops, s.schedule, s.pipeline, s.microbatches, s.chunks)

    def blocking_clock(self, tasks: Sequence[dict[str, float]]) -> Sequence[float]:
        """Steps in which forward and backward take turns; sends at the end of each step stop both ends.

        The stages of a device do their part of a step one after the other.
        """
        s = self.strategy
        hop = self.costs.hop_seconds(self.model.boundary(self.rows) * self.itemsize, self.stride())
        clock = [0.0] * s.pipeline
        for step in steps_of(self.stages, s.microbatches):
            for stage, (phase, k, _) in step:
                suffix = " first" if k == 0 else ""
                times = tasks[stage]
                clock[stage % s.pipeline] += times[phase + suffix] + (times["W" + suffix] if phase == "B" else 0.0)
            for stage, (phase, _, _) in step:
                target = stage + 1 if phase == "F" else stage - 1
                if 0 <= target < self.stages and s.pipeline > 1:
                    one, other = stage % s.pipeline, target % s.pipeline
                    clock[one] = clock[other] = max(clock[one], clock[other]) + hop
        return clock

    def reduce_seconds(self, parameters: Sequence[int]) -> float:
        """Gradients over replicas: one sum per parameter, or its halves where updates are split."""
        s = self.strategy
        if s.data == 1:
            return 0.0
        if self.costs.blocking:
            return sum(self.costs.group_seconds("allreduce", n * self.itemsize, s.data, s.tensor) for n in parameters)
        nbytes = sum(parameters) * self.itemsize
        group = partial(self.costs.group_seconds, nbytes=nbytes, count=s.data, stride=s.tensor)
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
        flight = peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)
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
            if s.recompute != "none":
                once, kept = max((layer.kept for layer in layers), default=0), boundary * len(layers)
            worst = max(worst, fixed + (flight[device] * kept // s.chunks + once) * self.itemsize)
        return worst

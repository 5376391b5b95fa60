"""What a strategy costs for a traced training step."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from meshwright.device.function import DeviceValue
from meshwright.device.spread import COPY
from meshwright.device.tensor_ops import tensor_of
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.search.clocks import overlapped
from meshwright.search.strategy import Costs, check_batch
from meshwright.search.traced import BACKWARD, FORWARD, SEGMENTS, SHARED, TAIL, WEIGHTS, StageOfEqns, Traced
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.transformer.strategy import Strategy


class StageBytes(NamedTuple):
    """The bytes each stage has: parameters, gradients, states of the optimizer; and activations of a microbatch.

    ``sums`` are what is added up over the batch, gradients and others.
    ``kept`` are activations that the backward pass reads, ``inputs`` those that enter the segments of a stage, ``once``
    what the longest equation, or the segment that is computed again, needs besides.
    """

    parameters: np.ndarray
    gradients: np.ndarray
    sums: np.ndarray
    states: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    once: np.ndarray
    again: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


class TracedPlan:
    """A traced step under a strategy."""

    def __init__(self, model: Traced, strategy: Strategy, batch: int, costs: Costs, state_bytes: int) -> None:
        self.model, self.strategy, self.batch, self.costs = model, strategy, batch, costs
        self.state_bytes = state_bytes
        self.stages = strategy.pipeline * strategy.chunks
        self.check()
        self.rows = batch // strategy.data // strategy.microbatches
        self.segments = -(-SEGMENTS // self.stages) if strategy.recompute != "none" else 1
        self.cut = model.cut(self.stages, self.segments)

    def check(self) -> None:
        s, model = self.strategy, self.model
        check_batch(s, self.batch)
        if not hasattr(self.costs, "work"):
            raise MeshwrightError(
                "A traced step is costed on a topology.",
                why=f"{type(self.costs).__name__} does not say what the work of an equation costs",
                fix='dist.grid_search(model, mw.hardware.Topology("h100", 64), batch=512)',
            )
        if not model.divides(s.tensor):
            raise ShapeError(
                f"The model does not divide among {s.tensor} devices.",
                why=f"no product has a dim that is a multiple of {s.tensor} and not the batch",
                fix="tensor=1, or a degree that divides its width",
            )
        if s.data > 1 and model.whole:
            raise ShapeError(
                "The model needs its whole batch on one device.",
                why="an equation puts the samples together",
                fix="data=1",
            )
        if self.stages > model.most_stages or (s.microbatches > 1 and not model.separable):
            why = f"it has {model.most_stages} products" if model.separable else "its microbatches need each other"
            raise ShapeError(f"The model has no {self.stages} stages.", why=why, fix="pipeline=1, microbatches=1")

    # Times

    def equation_seconds(self) -> np.ndarray:
        """The time of each equation on a device, with what the horizontal group says to each other after it."""
        model, costs, horizontal = self.model, self.costs, self.strategy.tensor
        key = ("seconds", getattr(costs, "key", id(costs)), self.rows, horizontal)
        if key not in model.known:
            groups, firsts = model.stage_groups(horizontal)
            work = [model.work(n, self.rows, horizontal) for n in firsts]
            times = [costs.work(*one) if one[1] else 0.0 for one in work]  # type: ignore[attr-defined]
            found = [times[group] for group in groups]
            spread = model.spread(horizontal)
            assert spread is not None
            for n, op, value in spread.talks:
                shape = model.shape(value, self.rows, horizontal, COPY)
                nbytes = float(np.prod(shape, dtype=np.int64)) * tensor_of(value).dtype.itemsize
                found[n] += costs.group_seconds(op, nbytes, horizontal, 1)
            model.known[key] = np.array(found), costs  # costs stay alive as long as their number stands for them
        seconds: np.ndarray = model.known[key][0]
        return seconds

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Sums over the equations of each stage and phase."""
        where = self.cut.stage * 5 + self.cut.phase
        return np.bincount(where, weights, minlength=5 * self.stages).reshape(self.stages, 5)

    def least_seconds(self) -> float:
        """A bound on the time: the work of the device that has most, without a wait."""
        s = self.strategy
        phases = self.sums(self.equation_seconds())
        work = s.microbatches * phases[:, [FORWARD, BACKWARD, WEIGHTS]].sum(1)
        return float(max(work[device :: s.pipeline].sum() for device in range(s.pipeline)))

    def seconds(self) -> tuple[float, float]:
        s, costs = self.strategy, self.costs
        phases = self.sums(self.equation_seconds())
        held = self.held()
        if s.recompute != "none":
            phases[:, BACKWARD] += phases[:, FORWARD]
        adds = [costs.pointwise_seconds(int(n) // 4, 2, 4) if n else 0.0 for n in held.gradients]
        times = tuple(
            (
                float(p[FORWARD]),
                float(p[BACKWARD]),
                float(p[WEIGHTS]) + add,
                float(p[FORWARD]),
                float(p[BACKWARD]),
                float(p[WEIGHTS]),
            )
            for p, add in zip(phases, adds, strict=True)
        )
        stride = s.tensor * s.data
        hops = tuple(
            tuple(costs.hop_seconds(float(n), stride) if n and s.pipeline > 1 else 0.0 for n in crossing)
            for crossing in (held.forward, held.backward)
        )
        clock = overlapped(times, hops, s.schedule, s.pipeline, s.microbatches, s.chunks)
        ends, busy = [], []
        share = s.data if s.zero else 1
        for device in range(s.pipeline):
            mine = range(device, self.stages, s.pipeline)
            once = sum(float(phases[stage, SHARED]) + float(phases[stage, TAIL]) / share for stage in mine)
            ends.append(clock[device] + once + self.reduce_seconds(sum(int(held.sums[stage]) for stage in mine)))
            work = sum((s.microbatches - 1) * sum(times[g][:3]) + sum(times[g][3:]) for g in mine)
            busy.append(work + once)
        total = max(ends)
        return total, max(0.0, 1 - sum(busy) / len(busy) / total)

    def reduce_seconds(self, nbytes: int) -> float:
        """Gradients over replicas: one sum, or its halves where updates are split."""
        s = self.strategy
        if s.data == 1 or not nbytes:
            return 0.0
        group = partial(self.costs.group_seconds, nbytes=float(nbytes), count=s.data, stride=s.tensor)
        if not s.zero:
            return group("allreduce")
        return group("reduce_scatter") + (2 if s.zero == 3 else 1) * group("allgather")

    # Memory

    def held(self) -> StageBytes:
        model = self.model
        key = ("held", self.stages, self.segments, self.rows, self.strategy.tensor)
        if key not in model.known:
            whose = ("holders", self.stages, self.segments)
            if whose not in model.known:
                model.known[whose] = _Holders(model, self.cut, self.stages)
            model.known[key] = model.known[whose].held(model.nbytes(self.rows, self.strategy.tensor))
        found: StageBytes = model.known[key]
        return found

    def peak_bytes(self) -> int:
        """Parameters, gradients, states and the activations in flight, on the device that needs most."""
        s, held = self.strategy, self.held()
        flight = peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)
        parts = [s.data if s.zero >= level else 1 for level in (3, 2, 1)]
        worst = 0
        for device in range(s.pipeline):
            mine = list(range(device, self.stages, s.pipeline))
            weights, gradients, states, kept, inputs = (
                int(array[mine].sum())
                for array in (held.parameters, held.gradients, held.states, held.kept, held.inputs)
            )
            once, again = int(held.once[mine].max()), int(held.again[mine].max())
            states += weights * self.state_bytes // 4
            fixed = weights // parts[0] + gradients // parts[1] + states // parts[2]
            if s.recompute != "none":
                kept, once = inputs, again
            worst = max(worst, fixed + flight[device] * kept // s.chunks + once)
        return worst


class _Holders:
    """Who holds each value, from who makes and who reads it."""

    def __init__(self, model: Traced, cut: StageOfEqns, stages: int) -> None:
        self.model, self.cut, self.stages = model, cut, stages
        self.places: dict[str, dict[tuple[int, int], None]] = {name: {} for name in (*StageBytes._fields, "segment")}
        self.segments = int(cut.segment.max()) + 1
        batch = {v for v in model.function.inputs if v.name in model.batch}
        for n, eqn in enumerate(model.function.eqns):
            for v in eqn.values:
                maker = model.number.get(v)
                of_batch = v in batch or (maker is not None and model.kinds[maker] == "micro")
                if of_batch and model.kinds[n] == "micro":
                    self.activation(n, v, maker)
                elif model.kinds[n] == "micro":
                    self.put("parameters", int(cut.stage[n]), v)
                elif model.kinds[n] == "tail" and maker is None:
                    self.put("states", int(cut.stage[n]), v)
        for v in model.sums:
            n = model.number.get(v, 0)
            self.put("sums", int(cut.stage[n]), v)
            if cut.phase[n] != FORWARD:
                self.put("gradients", int(cut.stage[n]), v)
        for place in self.places["parameters"]:
            self.places["states"].pop(place, None)
        micro = [n for n, kind in enumerate(model.kinds) if kind == "micro"]
        values, eqns = model.values, model.function.eqns
        pairs = {(n, values[v]): None for n in micro for v in (*eqns[n].values, *eqns[n].outputs)}
        self.used = np.array(list(pairs), int).reshape(-1, 2)

    def put(self, what: str, where: int, value: DeviceValue) -> None:
        self.places[what][where, self.model.values[value]] = None

    def activation(self, n: int, v: DeviceValue, maker: int | None) -> None:
        """A value of a microbatch is read: it was sent to the stage, or kept there from the forward pass."""
        stage, phase, segment = self.cut
        here, made = int(stage[n]), 0 if maker is None else int(stage[maker])
        if phase[n] == FORWARD:
            for boundary in range(made, here):
                self.put("forward", boundary, v)
            if maker is None or segment[maker] != segment[n]:
                self.put("inputs", here, v)
        elif maker is None or phase[maker] == FORWARD:
            self.put("kept", here, v)
            if maker is not None:
                self.put("segment", int(segment[maker]), v)
        else:
            for boundary in range(here, made):
                self.put("backward", boundary, v)

    def held(self, nbytes: np.ndarray) -> StageBytes:
        """The bytes of each stage, where those of each value are these."""
        found = {name: self.sum(name, nbytes, self.stages) for name in StageBytes._fields}
        sizes = np.bincount(self.used[:, 0], nbytes[self.used[:, 1]], minlength=len(self.cut.stage))
        np.maximum.at(found["once"], self.cut.stage, sizes)
        forward = self.cut.phase == FORWARD
        owner = np.zeros(self.segments, int)
        owner[self.cut.segment[forward]] = self.cut.stage[forward]
        np.maximum.at(found["again"], owner, self.sum("segment", nbytes, self.segments))
        found["again"] += found["once"]
        return StageBytes(**found)

    def sum(self, what: str, nbytes: np.ndarray, count: int) -> np.ndarray:
        pairs = np.array(list(self.places[what]), int).reshape(-1, 2)
        return np.bincount(pairs[:, 0], nbytes[pairs[:, 1]], minlength=count)

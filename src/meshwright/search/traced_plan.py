"""What a strategy costs for a traced training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar, cast

import numpy as np

from meshwright.errors import MeshwrightError, ShapeError
from meshwright.partition.combine import LARGEST_BYTES
from meshwright.search.clocks import overlapped
from meshwright.search.step_units import BACKWARD, FORWARD, SHARED, TAIL, WEIGHTS
from meshwright.search.strategy import Costs, Least, check_batch
from meshwright.search.traced import Traced
from meshwright.search.traced_bounds import TracedBounds
from meshwright.search.traced_on import StepOnMachine
from meshwright.search.unit_stages import StageSums, UnitSequence, sequence_of, sums_of
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.transformer.strategy import Strategy

T = TypeVar("T")
RECOMPUTED = ("none", "matmuls", "offload", "full")  # what a step may compute again; attention is one kernel


class TracedPlan:
    """A traced step under a strategy."""

    def __init__(self, model: Traced, strategy: Strategy, batch: int, costs: Costs, state_bytes: int) -> None:
        self.strategy, self.batch = strategy, batch
        self.state_bytes = state_bytes
        self.stages = strategy.pipeline * strategy.chunks
        if not isinstance(costs, OnTopology):
            raise MeshwrightError(
                "A traced step is costed on a topology.",
                why=f"{type(costs).__name__} does not say what the work of an equation costs",
                fix='dist.grid_search(model, mw.hardware.Topology("h100", 64), batch=512)',
            )
        self.costs = costs
        check_batch(strategy, batch, RECOMPUTED)
        self.model = model.at(batch)
        self.check()
        self.rows = batch // strategy.data // strategy.microbatches
        self.alone = strategy.data == strategy.microbatches == strategy.pipeline == 1

    def check(self) -> None:
        s, model = self.strategy, self.model
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

    # The units, and stages of them

    @cached_property
    def on(self) -> StepOnMachine:
        return self.model.on(self.costs, self.rows, self.strategy.tensor, not self.alone)

    @cached_property
    def sequence(self) -> UnitSequence:
        return self._known("sequence", lambda: sequence_of(self.on.units, self.on.exposed))

    @cached_property
    def sums(self) -> StageSums:
        return self._known(("sums", self.stages), lambda: sums_of(self.sequence, self.stages))

    def _known(self, what: object, make: Callable[[], T], shared: bool = False) -> T:
        """What strategies have alike that give a device the same program; or, shared, split it as often."""
        own = (self.batch, self.state_bytes) if shared else (self.rows, self.alone)
        key = (what, self.costs.key, self.strategy.tensor, *own)
        known = self.model.known
        if key not in known:
            known[key] = make()
        return cast(T, known[key])

    def mine(self, device: int) -> list[int]:
        """The stages of a device."""
        return list(range(device, self.stages, self.strategy.pipeline))

    # Times

    def bounds(self) -> Iterator[Least]:
        """Bounds that are had before the program of a device is read; and before memory is looked at, and the schedule
        of a pipeline played."""
        s = self.strategy
        if s.tensor > 1 and self.model.separable and not self.model.is_read(self.costs, self.rows, s.tensor):
            for rows in (1, self.batch):
                yield self._known(("bounds", rows), partial(self._bounds, rows), shared=True).of(s)
        yield Least(self.least_seconds(), 0)

    def _bounds(self, rows: int) -> TracedBounds:
        return TracedBounds(self.model, self.batch, self.costs, self.state_bytes, rows, self.strategy.tensor)

    def least_seconds(self) -> float:
        """A bound on the time: each device starts when the first microbatch can have come to it, then works without a
        wait, and those before it go back through their last; then it sums, updates and gathers."""
        s, sums = self.strategy, self.sums
        if not self.model.separable or s.pipeline == 1:
            return self._seconds[0]
        after = self.of_devices(sums.seconds[:, TAIL]) / (s.data if s.zero else 1)
        if s.zero < 2 and s.data > 1:
            summed = self.groups("reduce_scatter" if s.zero else "allreduce", self.of_devices(sums.nbytes["gradients"]))
            after = np.maximum(after, summed - self.of_devices(sums.seconds[:, [BACKWARD, WEIGHTS]].sum(1)))
        if s.zero in (1, 2):
            after = np.maximum(after, self.groups("allgather", self.of_devices(sums.nbytes["parameters"])))
        return float((self._least_clock() + after + self.of_devices(sums.seconds[:, SHARED])).max())

    def _least_clock(self) -> np.ndarray:
        """When each device is done with its microbatches, at least."""
        s, times = self.strategy, self.times
        work = (s.microbatches - 1) * times[:, :3] + times[:, 3:]
        forward, backward, weights, *_ = times[: s.pipeline].T  # of the first stage of each device
        least = np.cumsum(forward) - forward + self.of_devices(work.sum(1))
        split = s.schedule == "zb-h1"  # weights may come after what others wait for
        back = backward if split else backward + np.minimum(weights, times[: s.pipeline, 5])
        before = np.cumsum(back) - back
        last = least - (self.of_devices(work[:, 2]) if split else 0.0) + before
        found: np.ndarray = np.maximum(least, np.maximum.accumulate(last[::-1])[::-1] - before)
        return found

    def of_devices(self, of_stages: np.ndarray) -> np.ndarray:
        """Sums over the stages of each device."""
        found: np.ndarray = of_stages.reshape(self.strategy.chunks, self.strategy.pipeline).sum(0)
        return found

    def seconds(self) -> tuple[float, float]:
        return self._seconds

    @cached_property
    def _seconds(self) -> tuple[float, float]:
        s, sums, times = self.strategy, self.sums, self.times
        if not self.model.separable and s.recompute == "none":
            once = float(sums.seconds.sum())
            return once + self.group("allreduce", self.on.units.summed), 0.0
        clock: Sequence[float]
        if s.pipeline == 1:
            clock = (float((s.microbatches - 1) * times[0, :3].sum() + times[0, 3:].sum()),)
            return self._ended(self._ends(clock)), 0.0
        stride = s.tensor * s.data
        sent = [self.costs.hop_seconds(float(n), stride) if stage else 0.0 for stage, n in enumerate(sums.entering)]
        hops = (*sent[1:], 0.0), (*sent[1:], 0.0)
        clock = overlapped(tuple(map(tuple, times.tolist())), hops, s.schedule, s.pipeline, s.microbatches, s.chunks)
        ends = self._ends(clock)
        work = (s.microbatches - 1) * times[:, :3].sum() + times[:, 3:].sum()
        busy = (work + float(ends.sum()) - sum(clock)) / s.pipeline
        total = self._ended(ends)
        return total, max(0.0, 1 - busy / total)

    def _ends(self, clock: Sequence[float]) -> np.ndarray:
        """When each device has updated its parameters, if it is done with microbatches then."""
        done = [self.finished(device, at) for device, at in enumerate(clock)]
        found: np.ndarray = np.array(done) + self.of_devices(self.sums.seconds[:, SHARED])
        return found

    def _ended(self, ends: np.ndarray) -> float:
        s, total = self.strategy, float(ends.max())
        if s.on_host:
            moved = 2 * s.microbatches * float(self.of_devices(self.sums.inputs).max())
            total = max(total, moved / self.costs.topology.chip.memory_bytes_per_s("pcie"))
        return total

    @cached_property
    def times(self) -> np.ndarray:
        """The seconds of a microbatch in each stage: forward, backward, weights; and so of the first, whose gradients
        are not added to others."""
        s, sums = self.strategy, self.sums
        forward, backward, weights = (sums.seconds[:, phase] for phase in (FORWARD, BACKWARD, WEIGHTS))
        backward = backward + (sums.cheap if s.recompute == "matmuls" else forward if s.keeps_inputs else 0.0)
        gradients, parameters = sums.nbytes["gradients"], sums.nbytes["parameters"]
        gathered = self.groups("allgather", parameters) if s.zero == 3 else 0.0
        taken = self.groups("reduce_scatter", gradients) if s.zero >= 2 else 0.0
        forward = np.maximum(forward, gathered)
        weights = np.maximum(weights, gathered + taken - backward)
        added = gradients / (s.data if s.zero >= 2 else 1)
        add = _each(lambda n: self.costs.pointwise_seconds(int(n) // 4, 2, 4), added) if s.microbatches > 1 else 0.0
        return np.stack([forward, backward, weights + add, forward, backward, weights], 1)

    def finished(self, device: int, clock: float) -> float:
        """When a device has summed the gradients of its units over replicas, and updated their parameters."""
        s, steps = self.strategy, self.sequence
        cuts = self.sums.cuts
        units = np.concatenate([np.arange(cuts[stage], cuts[stage + 1]) for stage in self.mine(device)])[::-1]
        found = self._finished(steps, units, clock)
        if s.pipeline > 1 or s.data == 1:
            return found
        one_by_one = found + self.late
        return min(one_by_one, self._finished(steps, units, clock, together=True)) if s.zero < 2 else one_by_one

    @property
    def late(self) -> float:
        """How much later sums are done that are taken one by one, than sums of all at once in parts."""
        on, s = self.on, self.strategy
        if on.loops:
            return 0.0

        def make() -> float:
            steps = sequence_of(on.short, on.exposed)
            once = float(steps.seconds.sum() - steps.seconds[:, TAIL].sum())
            by_all = self._finished(steps, np.arange(len(steps.starts))[::-1], once, 0)
            return on.summed(self.costs, s.data, s.tensor).seconds - by_all

        return float(self._known(("late", s.data), make))

    def _finished(
        self, steps: UnitSequence, units: np.ndarray, clock: float, zero: int | None = None, together: bool = False
    ) -> float:
        zero = self.strategy.zero if zero is None else zero
        back = steps.seconds[units][:, [BACKWARD, WEIGHTS]].sum(1)
        update = steps.seconds[units, TAIL] / (self.strategy.data if zero else 1)
        there = clock - float(back.sum()) + np.cumsum(back)
        if zero < 2:
            kind, nbytes = "reduce_scatter" if zero else "allreduce", steps.nbytes["gradients"][units]
            there = self._together(kind, there, nbytes) if together else _in_turn(there, self.spread(kind, nbytes))
        done = _in_turn(np.maximum(there, clock), update)
        if zero in (1, 2):
            done = _in_turn(done, self.spread("allgather", steps.nbytes["parameters"][units]))
        return float(done[-1])

    def _together(self, kind: str, there: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """When the gradients of units are summed, as many at once as the program of a mesh takes together."""
        bucket = buckets_of(nbytes)
        ready = np.zeros(bucket[-1] + 1)
        np.maximum.at(ready, bucket, there)
        found: np.ndarray = _in_turn(ready, self.groups(kind, np.bincount(bucket, nbytes)))[bucket]
        return found

    def spread(self, kind: str, nbytes: np.ndarray) -> np.ndarray:
        """The seconds of a collective of all, shared out by the bytes of each."""
        total = float(nbytes.sum())
        return nbytes * (self.group(kind, total) / total if total else 0.0)

    def group(self, kind: str, nbytes: float) -> float:
        """A collective over replicas."""
        s = self.strategy
        return self.costs.group_seconds(kind, nbytes, s.data, s.tensor) if s.data > 1 and nbytes else 0.0

    def groups(self, kind: str, nbytes: np.ndarray) -> np.ndarray:
        """A collective over replicas, for each of some."""
        return _each(lambda n: self.group(kind, n), nbytes)

    # Memory

    def peak_bytes(self) -> int:
        return self._peak_bytes

    @cached_property
    def _peak_bytes(self) -> int:
        """What the device needs that needs most."""
        return int(max(sum(held) for held in zip(*self._held.values(), strict=True)))

    def memory_by_kind(self) -> dict[str, int]:
        """What the device holds that needs most, by what it is."""
        totals = [sum(held) for held in zip(*self._held.values(), strict=True)]
        most = totals.index(max(totals))
        found = {kind: int(held[most]) for kind, held in self._held.items()}
        return found | {"activations": found["activations"] + self._peak_bytes - sum(found.values())}  # what is rounded

    @cached_property
    def _held(self) -> dict[str, list[float]]:
        """Parameters, states, the batch, gradients, and the activations in flight, on each device."""
        s, sums = self.strategy, self.sums
        flight = np.array(peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks))
        parts = [s.data if s.zero >= level else 1 for level in (3, 2, 1)]
        beside = self.on.summed(self.costs, s.data, s.tensor).beside
        most = float(max(sums.transient.max(), sums.updated.max()))
        real = max(0.0, most + min(0.0, beside)) / most if most else 1.0  # not all of it is there at once
        held = {name: self.of_devices(array) for name, array in sums.nbytes.items()}
        states = held["states"] + held["parameters"] * self.state_bytes / 4
        gradients = held["gradients"] / parts[1]
        fixed = {"parameters": held["parameters"] / parts[0], "optimizer": states / parts[2]}
        fixed["batch"] = np.full(s.pipeline, self.on.batch_bytes)
        transient = np.maximum(sums.transient, sums.updated / parts[2])  # a replica updates its part
        once, again = (x.reshape(s.chunks, s.pipeline).max(0) for x in (transient * real, sums.again))
        if s.recompute == "matmuls":
            kept = held["matmuls"]
        elif s.keeps_inputs:
            kept = self.of_devices(sums.inputs) * (not s.on_host)
        else:
            kept, again = held["kept"], np.zeros(s.pipeline)
        activations = flight * kept / s.chunks + once + again
        summed = np.zeros(s.pipeline)
        if s.pipeline > 1 or s.microbatches > 1:
            summed = gradients
        elif again.any():  # gradients take the place of activations
            activations = np.maximum(activations, gradients + once)
        else:
            peak = kept + most + beside
            activations = np.maximum(peak - (held["gradients"] - gradients), np.minimum(peak, kept))
        found = {**fixed, "gradients": summed, "activations": activations}
        return {kind: list(map(float, held)) for kind, held in found.items()}


def _each(seconds: Callable[[float], float], nbytes: np.ndarray) -> np.ndarray:
    """A function of bytes, once for those that are equal; of none it is nothing."""
    known = {n: seconds(n) if n else 0.0 for n in set(nbytes.tolist())}
    return np.array([known[n] for n in nbytes.tolist()])


def buckets_of(nbytes: np.ndarray) -> np.ndarray:
    """Numbers of runs of neighbours that come to no more bytes than one collective has, or are one.

    >>> buckets_of(np.array([3e7, 1e6, 2e6, 9e7, 1e6])).tolist()
    [0, 0, 0, 1, 2]
    """
    found, number, held = [], 0, 0.0
    for n in nbytes.tolist():
        if held and n and held + n > LARGEST_BYTES:
            number, held = number + 1, 0.0
        held += n
        found.append(number)
    return np.array(found)


def _in_turn(there: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """When each of some tasks is done that run one after the other, each from when what it needs is there."""
    done = np.cumsum(lengths)
    found: np.ndarray = np.maximum.accumulate(there - (done - lengths)) + done
    return found

"""The least time and memory that a traced step can take under a strategy, from a reading of it with other samples.

With more samples a kernel takes no less time, and no more for each; and of so many devices that share it none does less
than its part. So the step as it was read with some samples and on some devices bounds others: with more samples it
takes no less, with fewer no less for each, and a device of a pipeline that has most no less than the mean. Sums of
gradients begin when the backward pass of the last microbatch does.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.search.step_units import BACKWARD, FORWARD, SHARED, TAIL, WEIGHTS
from meshwright.search.strategy import Least
from meshwright.search.traced import Traced
from meshwright.search.unit_stages import sequence_of, sums_of
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.transformer.strategy import Strategy

CERTAIN = 0.9  # of what is counted: split, a step may fuse and keep a little less than its part of the whole


class TracedBounds:
    """Bounds for strategies of a step, from how it is with so many samples, split over as many devices or fewer."""

    def __init__(
        self, model: Traced, batch: int, costs: OnTopology, state_bytes: int, rows: int, tensor: int = 1
    ) -> None:
        self.batch, self.costs, self.rows, self.tensor = batch, costs, rows, tensor
        on = model.on(costs, rows, tensor, True)
        sums = sums_of(sequence_of(on.units, on.exposed), 1)
        self.seconds_of = [float(x) for x in sums.seconds[0]]
        self.nbytes_of = {name: float(array[0]) for name, array in sums.nbytes.items()}
        self.nbytes_of["states"] += self.nbytes_of["parameters"] * state_bytes / 4
        self.inputs, self.again = float(sums.inputs[0]), float(sums.again[0])
        beside = min(0.0, on.summed(costs, 1, tensor).beside)
        self.once = max(0.0, float(sums.transient.max()) + beside)  # what one task has and no other

    def of(self, s: Strategy) -> Least:
        """The least of a strategy."""
        return Least(CERTAIN * self.seconds(s), int(CERTAIN * self.nbytes(s)))

    def parts(self, s: Strategy) -> float:
        """Devices that share what was read of one."""
        return s.tensor // self.tensor * s.pipeline

    def share(self, s: Strategy) -> float:
        """What a device does for a microbatch, of what was read."""
        return min(1.0, self.batch / (s.data * s.microbatches) / self.rows) / self.parts(s)

    def group(self, s: Strategy, kind: str, nbytes: float) -> float:
        """A collective over replicas."""
        return self.costs.group_seconds(kind, nbytes, s.data, s.tensor) if s.data > 1 and nbytes else 0.0

    def seconds(self, s: Strategy) -> float:
        share, parts = self.share(s), self.parts(s)
        forward = share * self.seconds_of[FORWARD]
        back = share * (self.seconds_of[BACKWARD] + self.seconds_of[WEIGHTS])
        again = forward if s.keeps_inputs else 0.0  # and what is not of matmuls, which may be less in another split
        gradients, parameters = (self.nbytes_of[name] / parts for name in ("gradients", "parameters"))
        each = forward + back + again
        update = self.seconds_of[TAIL] / parts / (s.data if s.zero else 1)
        if s.zero >= 2:
            gathered = self.group(s, "allgather", parameters) if s.zero == 3 else 0.0
            each = max(each, 2 * gathered + self.group(s, "reduce_scatter", gradients))
            after = update
        else:
            after = max(update, self.group(s, "reduce_scatter" if s.zero else "allreduce", gradients) - back)
        if s.zero in (1, 2):
            after = max(after, self.group(s, "allgather", parameters))
        return s.microbatches * each + after + self.seconds_of[SHARED] / parts

    def nbytes(self, s: Strategy) -> float:
        share, held = self.share(s), {name: n / self.parts(s) for name, n in self.nbytes_of.items()}
        parts = [s.data if s.zero >= level else 1 for level in (3, 2, 1)]
        fixed = held["parameters"] / parts[0] + held["states"] / parts[2]
        whole = share * s.pipeline  # of all stages
        if s.recompute == "matmuls":  # split in another way, which more samples may call for, less is kept
            kept = 0.0
        elif s.keeps_inputs:
            kept = whole * self.inputs * (not s.on_host)
        else:
            kept = whole * self.nbytes_of["kept"]
        once = whole * self.once  # on one of the devices
        again = whole * self.again if s.keeps_inputs or s.recompute == "matmuls" else 0.0
        gradients = held["gradients"] / parts[1]
        if s.pipeline > 1:
            alive = _alive(s)
            # The mean of all devices, and the mean in which each has the same activations.
            even = kept / sum(1 / n for n in alive)
            return max(fixed + gradients + min(alive) * kept / s.pipeline, even, once, again)
        if s.microbatches > 1:
            return fixed + gradients + kept + once + again
        if again:
            return fixed + max(kept + once + again, gradients + once)
        return fixed + max(kept, kept + once - (held["gradients"] - gradients))


def _alive(s: Strategy) -> Sequence[float]:
    """How many microbatches are under way on each device."""
    return [n / s.chunks for n in peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)]

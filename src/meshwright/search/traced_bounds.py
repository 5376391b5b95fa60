"""The least time and memory that a traced step can take under a strategy, from one reading of it on one device.

With more samples a kernel takes no more time for each, and of so many devices that share it none does less than its
part. So the step with the most samples that any strategy gives a device bounds all of them: a sample takes no less than
there, and a device of a pipeline that has most no less than the mean. Sums of gradients begin when the backward pass of
the last microbatch does.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.search.step_units import BACKWARD, FORWARD, SHARED, TAIL, WEIGHTS
from meshwright.search.strategy import Least
from meshwright.search.traced import Traced
from meshwright.search.traced_plan import sequence_of, sums_of
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.transformer.strategy import Strategy

CERTAIN = 0.9  # of what is counted: split, a step may fuse and keep a little less than its part of the whole


class TracedBounds:
    """Bounds for strategies of a step, with the most samples that one of them gives a device."""

    def __init__(self, model: Traced, batch: int, costs: OnTopology, state_bytes: int, rows: int) -> None:
        self.batch, self.costs, self.rows = batch, costs, rows
        on = model.on(costs, rows, 1, True)
        sums = sums_of(sequence_of(on.units, on.exposed), 1)
        self.seconds_of = [float(x) for x in sums.seconds[0]]
        self.cheap = float(sums.cheap[0])
        self.nbytes_of = {name: float(array[0]) for name, array in sums.nbytes.items()}
        self.nbytes_of["states"] += self.nbytes_of["parameters"] * state_bytes / 4
        self.inputs, self.again = float(sums.inputs[0]), float(sums.again[0])

    def of(self, s: Strategy) -> Least:
        """The least of a strategy."""
        return Least(CERTAIN * self.seconds(s), int(CERTAIN * self.nbytes(s)))

    def share(self, s: Strategy) -> float:
        """What a device does for a microbatch, of what was read."""
        return self.batch / (s.data * s.microbatches) / self.rows / (s.tensor * s.pipeline)

    def group(self, s: Strategy, kind: str, nbytes: float) -> float:
        """A collective over replicas."""
        return self.costs.group_seconds(kind, nbytes, s.data, s.tensor) if s.data > 1 and nbytes else 0.0

    def seconds(self, s: Strategy) -> float:
        share, parts = self.share(s), s.tensor * s.pipeline
        forward = share * self.seconds_of[FORWARD]
        back = share * (self.seconds_of[BACKWARD] + self.seconds_of[WEIGHTS])
        again = share * self.cheap if s.recompute == "matmuls" else forward if s.keeps_inputs else 0.0
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
        share, held = self.share(s), {name: n / (s.tensor * s.pipeline) for name, n in self.nbytes_of.items()}
        parts = [s.data if s.zero >= level else 1 for level in (3, 2, 1)]
        fixed = held["parameters"] / parts[0] + held["states"] / parts[2]
        whole = share * s.tensor * s.pipeline / s.tensor  # of all stages
        if s.recompute == "matmuls":
            kept = whole * self.nbytes_of["matmuls"]
        elif s.keeps_inputs:
            kept = whole * self.inputs * (not s.on_host)
        else:
            kept = whole * self.nbytes_of["kept"]
        if s.pipeline == 1 and s.microbatches == 1:
            return fixed + max(kept, held["gradients"] / parts[1] if s.recompute != "none" else 0.0)
        fixed += held["gradients"] / parts[1]
        alive = _alive(s)
        # The mean of all devices, and the mean in which each has the same activations.
        return max(fixed + min(alive) * kept / s.pipeline, kept / sum(1 / n for n in alive))


def _alive(s: Strategy) -> Sequence[float]:
    """How many microbatches are under way on each device."""
    return [n / s.chunks for n in peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)]

"""The least time and memory that a transformer can take under a strategy, before its step is put together.

Time: matmuls run at the chip's rate; the sums of tensor parallelism stand between a layer's matmuls, forward, and those
of the cotangent, backward. A device does its layers for every microbatch; the last one of a pipeline begins when the
first microbatch has come through the stages before it, and after its last the cotangents go back through them. With
zero from 2 on, links carry the gradients of layers and tables for every microbatch, and with 3 their parameters.

Memory: what a device holds of parameters, gradients and the optimizer's state, and what layers keep of the microbatches
that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from meshwright.core.program import Program
from meshwright.hardware.collectives import collective_cost
from meshwright.hardware.machines import for_mesh, machine_for
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.strategy import Least
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.pipelines import peak_activations
from meshwright.simulate.tasks import TaskBlock, spoken
from meshwright.simulate.transformer import regions
from meshwright.simulate.transformer.player import Player, player
from meshwright.simulate.transformer.program import stage_layers
from meshwright.simulate.transformer.step import nbytes, state_bytes
from meshwright.simulate.transformer.step_program import StepDtypes, StepRegions
from meshwright.simulate.transformer.strategy import Strategy

PASSES = 8  # how often the logits are read or written for the loss and its gradient, at least
CERTAIN = 0.9  # of the bytes counted: of some small models a little less is held at the peak
COPIES = 2.5  # of the logits that are there at once, at least: as products have them, in float32, their gradient


class _LayerTimes(NamedTuple):
    """Bounds on a layer's forward and backward of a microbatch, on what the stage before waits for, and on the head."""

    forward: float
    backward: float
    waited: float
    head: float


class StepBounds:
    """Bounds for the strategies of a transformer on a machine."""

    def __init__(self, model: tuple[TransformerShape, int], batch: int, costs: OnTopology, dtypes: StepDtypes) -> None:
        (self.shape, self.sequence), self.batch, self.dtypes = model, batch, dtypes
        self.on, self.mode, chip = costs.topology, costs.mode, costs.topology.chip
        self.flops_per_s = chip.flops_per_s(dtypes.parameters)
        self.bytes_per_s = chip.memory_bytes_per_s()
        self.overlap = "loops" if costs.overlap else "none"
        self.iterations: dict[object, tuple[Program, float]] = {}
        self.topology = cache(self._topology)
        self.layer = cache(self._layer)
        self.state = cache(self._state)
        self.kept = cache(self._kept)
        self.shared = cache(self._shared)

    def of(self, s: Strategy) -> Least:
        """The least of a strategy."""
        return Least(self.seconds(s), int(CERTAIN * self.nbytes(s)))

    # Time

    def closer(self, s: Strategy) -> float:
        """The least seconds by the kernels and collectives of a layer, which are traced for it."""
        times = self.layer(s.mesh_sizes, self.rows(s), s.recompute, s.sequence_parallel)
        step = StepRegions(self.shape, s, self.batch, self.sequence, self.dtypes)
        on = player(self.topology(s.mesh_sizes), self.shape, s, self.mode, self.overlap)
        adds = s.microbatches > 1 and s.zero < 2  # from 2 on, parts of gradients are added up
        gradients = step.gradients if adds else self.dtypes.parameters
        forward = regions.forward_body(*step.traced, 0, min(s.data, 2))
        backward = regions.backward_body(*step.traced, 0, min(s.data, 2), gradients, adds, False)
        return self.seconds(s, times._replace(
            forward=max(times.forward, self.iteration(on, forward)),
            backward=max(times.backward, self.iteration(on, backward)),
        ))  # fmt: skip

    def iteration(self, on: Player, body: Program) -> float:
        """The least time of a loop's iteration: of the part that is busiest, and from carry to carry."""
        key = (id(body), on.key, tuple((axis, *on.places[axis]) for axis in sorted(spoken(body))))
        if key not in self.iterations:
            self.iterations[key] = body, _iteration(on.block(body), body)
        return self.iterations[key][1]

    def rows(self, s: Strategy) -> int:
        """Sequences of a microbatch."""
        return self.batch // (s.data * s.expert * s.microbatches)

    def seconds(self, s: Strategy, times: _LayerTimes | None = None) -> float:
        """The least seconds, by what a layer takes at least."""
        if times is None:
            times = self.layer(s.mesh_sizes, self.rows(s), s.recompute, s.sequence_parallel)
        stages = s.pipeline * s.chunks
        layers = stage_layers(self.shape.layers, stages) or [0]
        each = times.forward + times.backward
        most, last = max(layers), layers[-1]
        least = s.microbatches * s.chunks * most * each if last == most else 0.0
        if s.pipeline > 1:
            waited = times.waited if s.schedule == "zb-h1" else times.backward
            through = (s.pipeline - 1) * min(layers[0], most) * (times.forward + waited)
            mine = sum(layers[s.pipeline - 1 :: s.pipeline]) * (times.forward + waited) + times.head
            least = max(least, s.microbatches * mine + through)
            if s.schedule == "zb-h1":
                least = max(least, s.microbatches * (last * each + times.head))
        else:
            least += s.microbatches * times.head
        if s.zero > 1:
            layer, table = self.shared(s.mesh_sizes, s.zero)
            carried = s.chunks * min(layers) * layer + (table if s.pipeline == 1 else 0.0)
            least = max(least, s.microbatches * carried)
        state = self.state(s.data if s.zero else 1, s.tensor, s.context, s.expert, s.zero, min(s.microbatches, 2))
        tables = 0
        if s.pipeline == 1:
            tables = state.tables(True, True)
            if s.microbatches > 1 and s.zero < 2:  # the gradient of a table is read and written for each
                grown = 8 * (s.microbatches - 1) * (self.shape.vocab // s.tensor) * self.shape.width
                least += grown / self.bytes_per_s
        share = state.optimizer / max(1, state.optimizer + state.parameters)
        updated = 2 * (s.chunks * min(layers) * state.optimizer + share * tables)
        return least + updated / self.bytes_per_s

    def _topology(self, mesh: tuple[int, ...]) -> Topology:
        strategy = _on(mesh)
        return machine_for(machine_of(self.on, strategy), strategy.mesh, "strategy")

    def _layer(self, mesh: tuple[int, ...], rows: int, recompute: str, sequence_parallel: bool) -> _LayerTimes:
        _, tensor, _, context, _ = mesh
        shape, positions = self.shape, self.sequence / context
        matmuls = (shape.matmul_parameters - shape.vocab * shape.width) / shape.layers
        seen = 2 * shape.heads * shape.head_dim * self.sequence / 2  # of scores, and of what they weigh
        forward = 2 * rows * positions * (matmuls + seen) / tensor / self.flops_per_s
        head = 3 * 2 * rows * positions * shape.width * shape.vocab / tensor / self.flops_per_s
        head += PASSES * self.logits(rows, context, tensor) / self.bytes_per_s
        sums = 0.0
        if tensor > 1:
            size = rows * self.sequence // context * shape.width * 2
            kinds = ("all_gather", "reduce_scatter") if sequence_parallel else ("all_reduce",)
            sums = 2 * sum(collective_cost(k, size, self.topology(mesh), ("tensor",), self.mode).seconds for k in kinds)
        again = recompute not in ("none", "attention", "matmuls")
        waited = forward + sums
        backward = max((2 + again) * forward, waited, (1 + again) * sums)
        return _LayerTimes(forward + sums, backward, waited, head)

    def _shared(self, mesh: tuple[int, ...], zero: int) -> tuple[float, float]:
        """Of a microbatch: the gradient of a layer scattered, and its parameters gathered forward and backward; and
        those of tables, which are gathered once."""
        data, tensor, _, context, expert = mesh
        if context > 1 or expert > 1 or data == 1:
            return 0.0, 0.0
        matrices = self.shape.attention_parameters + self.shape.mlp_parameters
        tables = (1 if self.shape.tied else 2) * self.shape.vocab * self.shape.width
        kinds = ("reduce_scatter", "all_gather", "all_gather")[: 2 * zero - 3]

        def seconds(parameters: float, kinds: Sequence[str]) -> float:
            on, size = self.topology(mesh), parameters / tensor * 2
            return sum(collective_cost(kind, size, on, ("data",), self.mode).bandwidth_seconds for kind in kinds)

        return seconds(matrices / self.shape.layers, kinds), seconds(tables, kinds[:2])

    # Memory

    def nbytes(self, s: Strategy) -> int:
        rows = self.rows(s)
        state = self.state(s.data if s.zero else 1, s.tensor, s.context, s.expert, s.zero, min(s.microbatches, 2))
        kept = 0 if s.on_host else self.kept(s.tensor, s.context, s.expert, s.sequence_parallel, s.recompute, rows)
        logits = int(COPIES * self.logits(rows, s.context, s.tensor))
        layers = stage_layers(self.shape.layers, s.pipeline * s.chunks) or [0]
        if s.pipeline == 1:
            held, activations = state.held(layers[0], True, True), kept * layers[0]
            if s.microbatches > 1:  # gradients of those before are there all the time
                return held + activations + logits + state.gradients * layers[0]
            if s.zero == 1:  # those of a layer are shared out at once
                state = self.state(s.data, s.tensor, s.context, s.expert, 2, 1)
            return held + max(state.gradients * layers[0], activations + logits)
        alive = peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)
        found = 0
        for device in (0, s.pipeline - 1):
            count = sum(layers[device :: s.pipeline])
            held = state.held(count, device == 0, device > 0) + state.gradients * count
            found = max(found, held + alive[device] * count * kept // s.chunks + (logits if device else 0))
        return found

    def logits(self, rows: int, context: int, tensor: int) -> int:
        """Bytes of a device's logits of a microbatch, with two for each."""
        return 2 * rows * (self.sequence // context) * (self.shape.vocab // tensor)

    def _state(self, data: int, tensor: int, context: int, expert: int, zero: int, microbatches: int) -> _HeldBytes:
        strategy = Strategy(data, tensor, 1, microbatches, zero=zero, context=context, expert=expert)
        step = StepRegions(self.shape, strategy, data * expert * microbatches, self.sequence, self.dtypes)
        layer, *ends = (state_bytes(step, 1, *where) for where in ((False, False), (True, False), (False, True)))
        parameters, optimizer = layer["parameters"], layer["optimizer"]
        first, last = (one["parameters"] + one["optimizer"] - parameters - optimizer for one in ends)
        return _HeldBytes(parameters, optimizer, layer["gradients"], first, last, self.shape.tied)

    def _kept(self, tensor: int, context: int, expert: int, positions: bool, recompute: str, rows: int) -> int:
        """What a layer keeps of a microbatch; of a dense one, for each row as much."""
        traced = rows if self.shape.experts > 1 else 1
        if traced != rows:
            return rows * self.kept(tensor, context, expert, positions, recompute, traced)
        s = Strategy(2, tensor, recompute=recompute, sequence_parallel=positions, context=context, expert=expert)
        split = regions.layer_split(*regions.traced_as(self.shape, s), traced, self.sequence, self.dtypes.parameters)
        return nbytes(split.residuals)


def _iteration(block: TaskBlock, body: Program) -> float:
    carry, after = body.inputs[0], [0.0] * len(block.tasks)
    busy: dict[str, float] = {}
    for number, task in enumerate(block.tasks):
        for unit in task.cost.units:
            busy[unit] = busy.get(unit, 0.0) + task.cost.seconds
        before = [after[n] for n in task.after if after[n]]
        if before or carry in task.reads:
            after[number] = max(before, default=0.0) + task.cost.seconds
    root = block.kernels.stored(block.program.outputs[0])
    chain = after[block.makers[root]] if root in block.makers else 0.0  # type: ignore[index]
    return max(chain, *busy.values())


class _HeldBytes(NamedTuple):
    """What a device holds for a layer, and of tables if it is first or last."""

    parameters: int
    optimizer: int
    gradients: int
    first: int
    last: int
    tied: bool

    def held(self, layers: int, first: bool, last: bool) -> int:
        """Parameters and the optimizer's state."""
        return layers * (self.parameters + self.optimizer) + self.tables(first, last)

    def tables(self, first: bool, last: bool) -> int:
        """Those of embeddings and the head; tied, they are there once."""
        once = first and last and self.tied
        return max(self.first, self.last) if once else first * self.first + last * self.last


def machine_of(topology: Topology, strategy: Strategy) -> Topology:
    """The machine itself if the strategy takes all of it, else one with as many of its chips."""
    return topology if strategy.devices == topology.size else for_mesh(topology.chip, strategy.mesh)


def bounds_for(model: tuple[TransformerShape, int], batch: int, costs: OnTopology, dtypes: StepDtypes) -> StepBounds:
    """The bounds of a search, which all its strategies share."""
    return _kept_bounds(model, batch, _ByKey(costs), dtypes)


class _ByKey:
    """Costs that are equal to those with the same key."""

    def __init__(self, costs: OnTopology) -> None:
        self.costs = costs

    def __hash__(self) -> int:
        return hash(self.costs.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and self.costs.key == other.costs.key


@lru_cache(maxsize=4)
def _kept_bounds(model: tuple[TransformerShape, int], batch: int, costs: _ByKey, dtypes: StepDtypes) -> StepBounds:
    return StepBounds(model, batch, costs.costs, dtypes)


def _on(mesh: tuple[int, ...]) -> Strategy:
    data, tensor, pipeline, context, expert = mesh
    return Strategy(data, tensor, pipeline, 1, "gpipe", context=context, expert=expert)

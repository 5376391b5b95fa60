"""A train step of a transformer under a strategy, on a machine: the one answer that everything public gives.

Without a pipeline it is the simulation of the step's program (`step_program`). With one, each stage runs the programs
of its layers, with the embedding in the first and the head and loss in the last, microbatch by microbatch in the order
of the schedule; what a stage takes for a microbatch is what the simulation of these programs says, a message to the
next stage what the links take. At the end of its last microbatch a stage sums gradients over replicas, beside its
backward, and updates its parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from meshwright.core import tree
from meshwright.core.program import Program
from meshwright.core.trace import run
from meshwright.core.types import TensorType
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.collectives import collective_cost, shift_of
from meshwright.hardware.transformer import TransformerShape
from meshwright.simulate.machine import COMPUTE, TaskCost
from meshwright.simulate.memory import Alive, MemoryUse, memory
from meshwright.simulate.pipelines import PipelineTask, Starts, TaskTime, peak_activations, schedule_of
from meshwright.simulate.schedule import BlockSchedule, Event, order_of
from meshwright.simulate.simulation import Simulation, block_leaves
from meshwright.simulate.tasks import Task, TaskBlock
from meshwright.simulate.transformer import program as model
from meshwright.simulate.transformer import regions
from meshwright.simulate.transformer.player import Hardware, Player, player
from meshwright.simulate.transformer.step_program import StepDtypes, StepRegions, step_program
from meshwright.simulate.transformer.strategy import Strategy
from meshwright.transform.simplify import dce

KINDS = ("parameters", "optimizer", "gradients", "activations", "other")


@dataclass(frozen=True)
class StepSimulation(Simulation):
    """A train step on a machine, seen from the device that is busy longest.

    ``parts`` add up to ``seconds``: compute, the waits for collectives by axis, bubble, optimizer. ``memory_by_kind``
    adds up to the peak.
    """

    shape: TransformerShape
    strategy: Strategy
    tokens: int
    sequence: int
    dtype: str
    bubble_fraction: float
    parts: dict[str, float]
    memory_by_kind: dict[str, int]
    executed_flops: float

    @property
    def mfu(self) -> float:
        """The share of the chips' peak rate that the model's FLOPs reach: nothing counts that is computed twice.

        Attention counts to the positions before where it is one kernel, which computes no others, else to all.
        """
        seen = (self.sequence + 1) // 2 if self.strategy.flash else self.sequence
        flops = self.shape.train_flops(self.tokens, seen)
        peak = self.strategy.devices * self.topology.chip.flops_per_s(self.dtype)
        return flops / peak / self.seconds if self.seconds else 0.0

    @property
    def idle_seconds(self) -> float:
        """Time in which the device has nothing to do: it waits for microbatches of other stages."""
        return self.parts["bubble"]

    @property
    def hfu(self) -> float:
        """The share of the chips' peak rate that what all devices execute reaches, computed twice or not."""
        peak = self.strategy.devices * self.topology.chip.flops_per_s(self.dtype)
        return self.executed_flops / peak / self.seconds if self.seconds else 0.0


def train_step(
    shape: TransformerShape,
    hardware: Hardware,
    strategy: Strategy,
    batch: int,
    sequence: int,
    *,
    dtypes: StepDtypes = StepDtypes(),  # noqa: B008 - it is frozen
    mode: str = "exact",
    overlap: str = "loops",
) -> StepSimulation:
    """One train step on ``batch`` sequences."""
    found = step_totals(shape, hardware, strategy, batch, sequence, dtypes=dtypes, mode=mode, overlap=overlap)
    return found.simulation


class StepTotals:
    """The numbers of a train step that a search compares; each is found when it is asked for."""

    def __init__(self, step: _WholeStep | _PipelinedStep) -> None:
        self._step = step

    @cached_property
    def simulation(self) -> StepSimulation:
        return self._step.result()

    @property
    def peak_bytes(self) -> int:
        return self._step.use.peak_bytes

    @property
    def least_seconds(self) -> float:
        """The work of the device that has most, without a wait."""
        return max(self._step.busy)

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of a step, and the part of them in which devices wait for microbatches."""
        return self._step.total[0], self._step.bubble_fraction


def step_totals(
    shape: TransformerShape,
    hardware: Hardware,
    strategy: Strategy,
    batch: int,
    sequence: int,
    *,
    dtypes: StepDtypes = StepDtypes(),  # noqa: B008 - it is frozen
    mode: str = "exact",
    overlap: str = "loops",
) -> StepTotals:
    """The numbers of `train_step`, without its timeline."""
    model.check(shape, strategy, batch, sequence)
    on = player(hardware, shape, strategy, mode, overlap)
    step = StepRegions(shape, strategy, batch, sequence, dtypes)
    return StepTotals(_WholeStep(step, batch, on) if strategy.pipeline == 1 else _PipelinedStep(step, batch, on))


def step_memory(
    shape: TransformerShape, strategy: Strategy, batch: int, sequence: int, dtypes: StepDtypes
) -> MemoryUse:
    """What a device holds in a train step, whatever the machine."""
    if strategy.pipeline == 1:
        program, _ = step_program(shape, strategy, batch, sequence, dtypes)
        return memory(program, donated=[True] * (len(program.inputs) - 1) + [False], flash=strategy.flash)
    model.check(shape, strategy, batch, sequence)
    return _Stages(StepRegions(shape, strategy, batch, sequence, dtypes)).use


# Without a pipeline: the program


class _WholeStep:
    """The program of a step on a machine."""

    bubble_fraction = 0.0

    def __init__(self, step: StepRegions, batch: int, on: Player) -> None:
        self.step, self.batch, self.on = step, batch, on

    @cached_property
    def block(self) -> TaskBlock:
        step = self.step
        program, _ = step_program(step.shape, step.strategy, self.batch, step.sequence, step.dtypes)
        found = self.on.block(program)
        self.on.reader.known.pop(id(program))  # it does not come again, unlike the layers in it
        return found

    @cached_property
    def schedule(self) -> BlockSchedule:
        found = self.on.scheduler.schedule(self.block)
        self.on.scheduler.blocks.pop(id(self.block))
        return found

    @property
    def busy(self) -> list[float]:
        return [self.schedule.seconds]

    @property
    def total(self) -> tuple[float]:
        return (self.schedule.seconds,)

    @cached_property
    def use(self) -> MemoryUse:
        block = self.block
        donated = [True] * (len(block.program.inputs) - 1) + [False]
        order = order_of(block, self.schedule.starts)
        return memory(block.program, donated=donated, kernels=block.kernels, order=order, flash=block.flash)

    def result(self) -> StepSimulation:
        step, on, block, schedule, use = self.step, self.on, self.block, self.schedule, self.use
        shape, strategy, sequence, layers = step.shape, step.strategy, step.sequence, step.shape.layers
        optimizer = sum(times * _compute(on.block(one)) for one, times in updates(step, layers, True, True))
        kinds = state_bytes(step, layers, True, True)
        kinds["activations"] = residual_bytes(step, layers, True, True)
        kinds = _up_to(kinds, use.peak_bytes)
        return StepSimulation(
            schedule.seconds, schedule.events, use, on.machine.topology, on.machine.axes, tuple(on.machine.notes),
            block, on.machine, shape, strategy, self.batch * sequence, sequence, dtype_name(step.dtypes.parameters),
            0.0, _parts(block, schedule.seconds, optimizer, 0.0), kinds, strategy.devices * _product_flops(block),
        )  # fmt: skip


def _up_to(kinds: dict[str, int], peak: int) -> dict[str, int]:
    """Bytes by kind that add up to a peak: what is released before it is taken from activations, then gradients."""
    kinds["other"] = peak - sum(kinds.values())
    for name in ("activations", "gradients"):
        less = min(kinds[name], max(0, -kinds["other"]))
        kinds[name] -= less
        kinds["other"] += less
    return {name: kinds[name] for name in KINDS}


def _parts(block: TaskBlock, seconds: float, optimizer: float, bubble: float) -> dict[str, float]:
    """Where the time goes; the time that is neither compute nor bubble is shared out by the length of collectives."""
    compute, axes = 0.0, dict[str, float]()
    for task, times in block_leaves(block, 1):
        if COMPUTE in task.cost.units:
            compute += times * task.cost.seconds
        elif task.cost.axes:
            name = ",".join(dict.fromkeys(axis.split(":")[0] for axis in task.cost.axes))
            axes[name] = axes.get(name, 0.0) + times * task.cost.seconds
    exposed, total = max(0.0, seconds - bubble - compute), sum(axes.values())
    waits = {name: exposed * one / total for name, one in axes.items()} if total else {}
    rest = seconds - sum(waits.values()) - bubble - optimizer
    return {"compute": rest, **waits, "bubble": bubble, "optimizer": optimizer}


def _product_flops(block: TaskBlock) -> float:
    """FLOPs of the matmuls of a device."""
    return sum(times * task.cost.matmul_flops for task, times in block_leaves(block, 1))


# Memory


def nbytes(types: Any) -> int:
    return sum(t.nbytes for t in tree.leaves(types))


def _tables(found: Mapping[str, Any], first: bool, last: bool, tied: bool) -> dict[str, Any]:
    """Of a tree of parameters, those of one stage: embeddings are in the first, the head in the last."""
    names = {"layers"} | ({"embed"} if first or (last and tied) else set()) | ({"norm", "head"} if last else set())
    return {name: one for name, one in found.items() if name in names}


def state_bytes(step: StepRegions, layers: int, first: bool, last: bool) -> dict[str, int]:
    """What a device holds of parameters, the optimizer's state and gradients, with so many layers."""
    tied = step.shape.tied
    held = [nbytes(_tables(one, first, last, tied)) for one in step.state(layers)]
    return {
        "parameters": held[0],
        "optimizer": sum(held[1:]),
        "gradients": nbytes(_tables(step.sums(layers), first, last, tied)),
    }


def residual_bytes(step: StepRegions, layers: int, first: bool, last: bool) -> int:
    """What a microbatch leaves behind on a stage until its backward."""
    found = 0 if step.strategy.on_host else layers * nbytes(step.layer.residuals)
    found += nbytes(step.embed.residuals) if first else 0
    return found + (nbytes(step.head.residuals) if last else 0)


_TRANSIENTS: OrderedDict[Any, tuple[Program, int]] = OrderedDict()


def _transient(program: Program, counted: Sequence[TensorType], donated: Sequence[bool], flash: bool) -> int:
    """The peak of a program beyond what is counted elsewhere."""
    key = (id(program), nbytes(list(counted)), flash)
    if key not in _TRANSIENTS:
        _TRANSIENTS[key] = program, max(0, memory(program, donated=donated, flash=flash).peak_bytes - key[1])
        if len(_TRANSIENTS) > 1 << 12:
            _TRANSIENTS.popitem(last=False)
    return _TRANSIENTS[key][1]


# The programs at the ends of a pipeline


@lru_cache(maxsize=2048)
def edge_program(key: tuple[Any, ...], which: str, adds: bool = False, last: bool = False) -> Program:
    """The embedding or the head on one microbatch, forward or backward, on tables as they are held."""
    step = StepRegions(*key)
    s, zero = step.strategy, step.strategy.zero
    held = regions.table_type(step.shape, s, step.dtypes.parameters, zero == 3)
    sums = step.sums(1)
    scale = step.head.forward.inputs[0].type

    def collected(name: str, g: Any, so_far: Sequence[Any]) -> Any:
        return regions.collected(name, g, so_far[0] if adds else None, s, step.gradients, last)

    def embed(table: Any, tokens: Any) -> list[Any]:
        return run(step.embed.forward, [model.whole("embed", table, s), tokens])

    def head(scale: Any, table: Any, *given: Any) -> list[Any]:
        return run(step.head.forward, [scale, model.whole("head", table, s), *given])

    def head_back(scale: Any, table: Any, *given: Any) -> list[Any]:
        count = len(step.head.residuals) + 1
        dx, a, b = run(step.head.backward, [scale, model.whole("head", table, s), *given[:count]])
        rest = given[count:]
        return [dx, collected("norm", a, rest[:1]), collected("head", b, rest[1:])]

    def embed_back(table: Any, *given: Any) -> list[Any]:
        count = len(step.embed.residuals) + 1
        (g,) = run(step.embed.backward, [model.whole("embed", table, s), *given[:count]])
        return [collected("embed", g, given[count:])]

    ends = {
        "embed F": (embed, [held, step.embed.forward.inputs[1].type], []),
        "head F": (head, [scale, held, *step.head.forward.in_types[2:]], []),
        "head B": (
            head_back,
            [scale, held, *step.head.residuals, step.head.backward.inputs[-1].type],
            [sums["norm"], sums["embed"]],
        ),
        "embed B": (embed_back, [held, *step.embed.residuals, step.embed.backward.inputs[-1].type], [sums["embed"]]),
    }
    function: Any
    function, types, so_far = ends[which]
    return regions.local(function, [*types, *(so_far if adds else [])], s, step.kv)


@lru_cache(maxsize=1024)
def update_program(key: tuple[Any, ...], which: str) -> Program:
    """The optimizer on the parameters of one layer, or on a table."""
    step = StepRegions(*key)
    held = [one["layers"] if which == "layer" else {"embed": one["embed"]} for one in step.state(0)]
    done = step.tree(0, step.gradients, step.strategy.zero > 0)  # gradients come as the sums over replicas left them
    leaves, structure = tree.flatten((held, done["layers"] if which == "layer" else {"embed": done["embed"]}))

    def update(*flat: Any) -> list[Any]:
        state, found = tree.unflatten(structure, flat)
        return [
            new for n in sorted(found) for new in step.adam(n, state[0][n], found[n], [one[n] for one in state[1:]])
        ]

    return regions.local(update, leaves, step.strategy, step.kv)


def updates(step: StepRegions, layers: int, first: bool, last: bool) -> list[tuple[Program, int]]:
    """The optimizer on the parameters of a stage, as programs and how often each runs."""
    s = step.strategy
    count = min(s.microbatches, 2)
    part = Strategy(s.data, s.tensor, 1, count, zero=s.zero, context=s.context, expert=s.expert)
    key = (replace(step.shape, layers=1), part, s.data * s.expert * count, s.context, step.dtypes)
    tables = 1 if step.shape.tied and (first or last) else first + last
    return [(update_program(key, "layer"), layers), *([(update_program(key, "table"), tables)] if tables else [])]


# With a pipeline: stages on a clock


class _StageTime(NamedTuple):
    """Seconds of a microbatch in a stage; W is the part of backward that nobody waits for."""

    forward: float
    backward: float
    weights: float
    last_weights: float


class _Stages:
    """The stages of a step: their layers, and the memory of their devices."""

    def __init__(self, step: StepRegions) -> None:
        self.step, self.strategy = step, step.strategy
        self.stages = self.strategy.pipeline * self.strategy.chunks
        layers = model.stage_layers(step.shape.layers, self.stages)
        assert layers is not None  # it was checked
        self.layers = layers
        self.adds = self.strategy.microbatches > 1

    def ends(self, stage: int) -> tuple[bool, bool]:
        """Whether a stage is the first, and whether it is the last."""
        return stage == 0, stage == self.stages - 1

    def edge(self, which: str, adds: bool = False, last: bool = False) -> Program:
        """The program of the embedding or the head."""
        forward = which.endswith("F")
        return edge_program(self.step.key(3 if forward else 2, last and not forward), which, adds, last)

    def mine(self, device: int) -> list[int]:
        """The stages of a device."""
        return list(range(device, self.stages, self.strategy.pipeline))

    def transients(self) -> dict[str, int]:
        """The peak of each program of a stage beyond state, gradients and residuals."""
        step, flash = self.step, self.step.flash
        adds, w = self.adds, len(step.names)
        forward, backward = step.forward, step.backward(adds, True)
        made = [t for t, kept in zip(step.layer.residuals, step.layer.kept, strict=True) if not kept]
        # Of those on the host, the one that is on its way is here.
        held, kept = forward.in_types[1:], () if step.strategy.on_host else step.layer.residuals
        sums = [t.with_(shape=t.shape[1:]) for t in tree.leaves(step.sums(1)["layers"])]
        loose = [True, *[False] * w, *[True] * (len(backward.inputs) - w - 1)]
        found = {
            "F": _transient(forward, [*held, *made], [False] * len(forward.inputs), flash),
            "B": _transient(backward, [*held, *kept, *sums], loose, flash),
        }
        table = [step.sums(1)["embed"]]
        for name, residuals, weights in (("head", step.head.residuals, 2), ("embed", step.embed.residuals, 1)):
            ahead, back = self.edge(f"{name} F"), self.edge(f"{name} B", adds, True)
            counted = ahead.in_types[:weights]
            found[f"{name} F"] = _transient(ahead, [*counted, *residuals], [False] * len(ahead.inputs), flash)
            loose = [False] * weights + [True] * (len(back.inputs) - weights)
            found[f"{name} B"] = _transient(back, [*counted, *residuals, *table], loose, flash)
        return found

    @property
    def use(self) -> MemoryUse:
        return self.memory[0]

    @cached_property
    def memory(self) -> tuple[MemoryUse, dict[str, int]]:
        """What the device that needs most holds, and by kind."""
        s, step = self.strategy, self.step
        alive = peak_activations(s.schedule, s.pipeline, s.microbatches, s.chunks)
        transients = self.transients()
        best: dict[str, int] = {}
        held: dict[tuple[int, bool, bool], dict[str, int]] = {}
        there = 0
        for device in range(s.pipeline):
            stages = self.mine(device)
            first, last = 0 in stages, self.stages - 1 in stages
            which = sum(self.layers[n] for n in stages), first, last
            kinds = dict(held.get(which) or held.setdefault(which, state_bytes(step, *which)))
            kept = sum(residual_bytes(step, self.layers[n], *self.ends(n)) for n in stages)
            kinds["activations"] = alive[device] * kept // s.chunks
            inputs = sum(self.layers[n] for n in stages) * nbytes(step.layer.residuals)
            there = max(there, alive[device] * inputs // s.chunks if s.on_host else 0)
            names = ["F", "B", *(["embed F", "embed B"] if first else []), *(["head F", "head B"] if last else [])]
            kinds["other"] = max(transients[name] for name in names)
            best = max(best, kinds, key=lambda one: sum(one.values()))
        arguments = best["parameters"] + best["optimizer"]
        shown = sorted((Alive(name, size, None) for name, size in best.items()), key=lambda one: -one.nbytes)
        peak = sum(best.values())
        use = MemoryUse(peak, arguments, arguments, 0, peak - arguments, tuple(shown), None, (peak,), arguments)
        use = replace(use, host_bytes=there)
        return use, {name: best[name] for name in KINDS}


_Part = tuple[Program, int | None]


class _PipelinedStep(_Stages):
    """The stages of a step on a machine."""

    def __init__(self, step: StepRegions, batch: int, on: Player) -> None:
        super().__init__(step)
        self.batch, self.on = batch, on

    def forward(self, stage: int) -> list[_Part]:
        """The programs of a stage for a microbatch, forward, and how many layers each is for."""
        first, last = self.ends(stage)
        found: list[_Part] = [(self.edge("embed F"), None)] if first else []
        found.append((self.step.forward, self.layers[stage]))
        return [*found, (self.edge("head F"), None)] if last else found

    def backward(self, stage: int, adds: bool, finishes: bool) -> list[_Part]:
        """The programs of a stage for a microbatch, backward."""
        first, last = self.ends(stage)
        found: list[_Part] = [(self.edge("head B", adds, finishes), None)] if last else []
        found.append((self.step.backward(adds, finishes), self.layers[stage]))
        return [*found, (self.edge("embed B", adds, finishes), None)] if first else found

    def seconds(self, parts: Sequence[_Part]) -> float:
        return sum(self.on.seconds(program, length) for program, length in parts)

    def stage_time(self, stage: int) -> _StageTime:
        forward = self.seconds(self.forward(stage))
        last = self.seconds(self.backward(stage, self.adds, True))
        usual = self.seconds(self.backward(stage, True, False)) if self.adds else last
        waited = usual
        if self.strategy.schedule == "zb-h1":
            parts: list[_Part] = [(inputs_alone(self.step.traced), self.layers[stage])]
            parts += [(self.edge("head B", self.adds, not self.adds), None)] if self.ends(stage)[1] else []
            waited = min(usual, self.seconds(parts))
        return _StageTime(forward, waited, usual - waited, max(0.0, last - waited))

    @cached_property
    def times(self) -> list[_StageTime]:
        """What a microbatch takes in each stage."""
        kinds: dict[tuple[bool, bool, int], _StageTime] = {}
        found = []
        for stage in range(self.stages):
            kind = (*self.ends(stage), self.layers[stage])
            if kind not in kinds:
                kinds[kind] = self.stage_time(stage)
            found.append(kinds[kind])
        return found

    def played(self) -> tuple[tuple[float, ...], Starts]:
        s, times = self.strategy, self.times
        hop, final, split = self.hop_seconds(), s.microbatches - 1, s.schedule == "zb-h1"

        def time(phase: str, k: int, stage: int) -> TaskTime:
            t, waits = times[stage], self.send_wait if self.is_sent(phase, stage) else 0.0
            if phase == "F":
                return TaskTime(t.forward + waits, t.forward + hop)
            weights = t.last_weights if k == final else t.weights
            if split:
                length = t.backward if phase == "B" else weights
                return TaskTime(length + waits, length + hop)
            # The stage before waits for its cotangents, not for sums over replicas.
            return TaskTime(t.backward + weights + waits, t.backward + t.weights + hop)

        self.time_of = time
        return schedule_of(s.schedule, s.pipeline, s.microbatches, s.chunks).play(time)

    def is_sent(self, phase: str, stage: int) -> bool:
        """Whether another stage waits for what a task makes."""
        return phase != "W" and not self.ends(stage)[phase == "F"]

    def hop_seconds(self) -> float:
        """A microbatch's activations from one stage to the next.

        Where tensor-parallel devices have copies of them, each may send a part, which the receivers then gather.
        """
        s, sent = self.strategy, self.step.layer.forward.out_types[0].nbytes
        if s.tensor == 1 or s.sequence_parallel:
            return self.shift_seconds(sent)
        machine = self.on.machine
        axes = tuple(axis for axis in machine.axes if axis.split(":")[0] == "tensor")
        gather = collective_cost("all_gather", sent, machine.topology, axes, machine.mode).seconds
        return min(self.shift_seconds(sent), self.shift_seconds(sent / s.tensor) + gather)

    def shift_seconds(self, sent: float) -> float:
        """So many bytes from every stage to the next."""
        s, machine = self.strategy, self.on.machine
        ring = tuple((n, (n + 1) % s.pipeline) for n in range(s.pipeline))
        shift = shift_of(ring, (s.pipeline,))
        volume = s.pipeline * sent
        return collective_cost("permute", volume, machine.topology, ("pipeline",), machine.mode, shift=shift).seconds

    @cached_property
    def send_wait(self) -> float:
        """What a stage waits for a message that it sends: nothing where transfers run beside work."""
        return self.hop_seconds() if self.on.scheduler.overlap == "none" else 0.0

    def update(self, device: int) -> list[tuple[Program, int]]:
        """The optimizer on a device."""
        stages = self.mine(device)
        layers = sum(self.layers[stage] for stage in stages)
        return updates(self.step, layers, 0 in stages, self.stages - 1 in stages)

    @cached_property
    def updates(self) -> list[float]:
        """Seconds of the optimizer on each device."""
        found = [self.update(device) for device in range(self.strategy.pipeline)]
        return [sum(times * self.on.seconds(one) for one, times in programs) for programs in found]

    @cached_property
    def busy(self) -> list[float]:
        """Seconds that each device has something to do."""
        s = self.strategy
        final, found = s.microbatches - 1, []
        for device in range(s.pipeline):
            stages = [self.times[stage] for stage in self.mine(device)]
            each = sum(t.forward + t.backward + t.weights for t in stages)
            last = sum(t.forward + t.backward + t.last_weights for t in stages)
            waits = self.sent(device) * self.send_wait
            found.append(final * each + last + waits + self.updates[device])
        return found

    @cached_property
    def total(self) -> tuple[float, tuple[float, ...], Starts]:
        """Seconds of the step, when each device is done with its microbatches, and when each task starts."""
        s = self.strategy
        clock, starts = self.played()
        tied = self.hop_of_tables() if self.step.shape.tied else 0.0  # two stages have the table, and sum its gradient
        ends = [end + more for end, more in zip(clock, self.updates, strict=True)]
        return max(*ends, ends[0] + tied, ends[s.pipeline - 1] + tied), clock, starts

    @property
    def bubble_fraction(self) -> float:
        return max(0.0, 1 - sum(self.busy) / len(self.busy) / self.total[0])

    def result(self) -> StepSimulation:
        s, step, on = self.strategy, self.step, self.on
        total, clock, starts = self.total
        busiest = max(range(s.pipeline), key=lambda d: self.busy[d])
        block = self.tasks(busiest)
        events = self.events(busiest, starts, clock[busiest], block.tasks[-1])
        optimizer = sum(times * _compute(on.block(one)) for one, times in self.update(busiest))
        use, kinds = self.memory
        executed = sum(_product_flops(self.tasks(device)) for device in range(s.pipeline))
        bubble = total - self.busy[busiest]
        with_sends = self.block([*self.sends(busiest), *block.tasks])
        # Where a stage does not wait for what it sends, the bubble has it.
        parts = _parts(with_sends if self.send_wait else block, total, optimizer, bubble)
        block = with_sends
        return StepSimulation(
            total, events, use, on.machine.topology, on.machine.axes, tuple(on.machine.notes), block, on.machine,
            step.shape, s, self.batch * step.sequence, step.sequence, dtype_name(step.dtypes.parameters),
            self.bubble_fraction, parts, kinds, s.devices // s.pipeline * executed,
        )  # fmt: skip

    def hop_of_tables(self) -> float:
        s, machine = self.strategy, self.on.machine
        sent = s.pipeline * self.step.sums(1)["embed"].nbytes
        return collective_cost("permute", sent, machine.topology, ("pipeline",), machine.mode, shift=1).seconds

    def tasks(self, device: int) -> TaskBlock:
        """What a device does, as loops over microbatches, and the optimizer at the end."""
        on, count = self.on, self.strategy.microbatches
        found: list[Task] = []
        for stage in self.mine(device):
            groups = [(self.forward(stage), count), (self.backward(stage, self.adds, True), 1)]
            groups += [(self.backward(stage, True, False), count - 1)] if self.adds else []
            found += [
                _as_task(on.block(program), times * (length or 1), f"stage {stage}")
                for group, times in groups
                for program, length in group
            ]
        ends = [_as_task(on.block(one), times, "optimizer") for one, times in self.update(device)]
        return self.block([*found, _as_task(self.block(ends), 1, "optimizer")])

    def block(self, tasks: list[Task]) -> TaskBlock:
        one = self.on.block(self.step.forward)
        return TaskBlock(one.program, one.kernels, tasks)

    @cached_property
    def send(self) -> Task:
        """A microbatch's activations, or their gradient, on the way to another stage."""
        links, sent = self.on.machine.links(("pipeline",)), float(self.step.layer.forward.out_types[0].nbytes)
        cost = TaskCost(self.hop_seconds(), links, "bandwidth", axes=("pipeline",), moved=sent)
        return Task("permute pipeline", "send", None, cost)

    def sends(self, device: int) -> list[Task]:
        """All that a device sends to the stages after its own and before."""
        return [_as_task(self.block([self.send]), self.sent(device), "messages")]

    def sent(self, device: int) -> int:
        """How many messages a device sends."""
        return self.strategy.microbatches * sum(self.is_sent(phase, n) for n in self.mine(device) for phase in "FB")

    def events(self, device: int, starts: Starts, clock: float, optimizer: Task) -> tuple[Event, ...]:
        """The tasks of a device on the clock, the messages they send, and the optimizer."""
        found = [
            event for (where, task), at in starts.items() if where == device for event in self.event(device, task, at)
        ]
        return (*found, Event(replace(optimizer, op="optimizer"), clock, self.updates[device], rest=optimizer.times))

    def event(self, device: int, task: PipelineTask, start: float) -> list[Event]:
        """A stage's task, and the message it sends: as soon as its last value is there, beside sums over replicas."""
        stage = task.chunk * self.strategy.pipeline + device
        time = self.time_of(task.phase, task.microbatch, stage)
        done = _as_task(self.work(task.phase, stage, task.microbatch == self.strategy.microbatches - 1), 1, str(task))
        is_sent = self.is_sent(task.phase, stage)
        alone = time.seconds - (self.send_wait if is_sent else 0.0)
        found = [Event(replace(done, op=f"stage {task.phase}"), start, alone, rest=1)]
        if is_sent:
            sent = replace(self.send, name=f"send {task}")
            found.append(Event(sent, start + time.arrives - sent.cost.seconds, sent.cost.seconds))
        return found

    def work(self, phase: str, stage: int, final: bool) -> TaskBlock:
        """What a stage does for a microbatch; of a backward in two parts, the second is taken to compute alone."""
        if phase == "W":
            t = self.times[stage]
            cost = TaskCost(t.last_weights if final else t.weights, (COMPUTE,), "compute")
            return self.block([Task("weights", "stage", None, cost)])
        parts = self.forward(stage) if phase == "F" else self.backward(stage, self.adds, final or not self.adds)
        if self.strategy.schedule == "zb-h1" and phase == "B":
            parts = [(inputs_alone(self.step.traced), self.layers[stage])]
        return self.block([_as_task(self.on.block(program), length or 1, "layers") for program, length in parts])


@lru_cache(maxsize=512)
def inputs_alone(traced: tuple[Any, ...]) -> Program:
    """Of a layer's backward, what the stage before waits for: the cotangent of its input, on whole parameters."""
    backward = regions.layer_split(*traced).backward
    *given, cotangent = backward.inputs
    return dce(Program((cotangent, *given), backward.eqns, backward.outputs[:1], backward.constants))


def _compute(block: TaskBlock) -> float:
    return sum(task.cost.seconds for task in block.tasks if COMPUTE in task.cost.units)


def _as_task(block: TaskBlock, times: int, name: str) -> Task:
    """A block that runs so many times."""
    return Task(name, "stage", None, TaskCost(0.0, (COMPUTE,), "loop"), body=block, times=times)

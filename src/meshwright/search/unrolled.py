"""The training step of an MLP written out on a data × pipeline × horizontal tree of devices, op by op.

This is the program that transforms nested as D∘P∘H describe, with activations, gradients and parameters kept where
they are made: each layer's product and relu on its own device, a sum over the horizontal group after every second layer
(and, going back, before it), sends between stages at the end of each step of the schedule, gradients added up over
microbatches, summed over the data-parallel group, and one update per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from meshwright.core.dtypes import FLOAT32, INT32
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys
from meshwright.device.types import Device, Tensor
from meshwright.errors import ShapeError
from meshwright.hardware.arguments import checked_fields
from meshwright.simulate.pipelines import PipelineTask, check_counts


def alternating(stages: int, microbatches: int) -> list[list[tuple[int, PipelineTask]]]:
    """Steps in which every stage that has work does some, forward and backward in turn; a list of (stage, task)."""
    check_counts("1f1b", stages, microbatches)
    ready: dict[str, list[list[int]]] = {phase: [[] for _ in range(stages)] for phase in "FB"}  # heaps
    ready["F"][0] = list(range(microbatches))
    last: list[str] = [""] * stages
    steps = []
    left = 2 * stages * microbatches
    while left:
        step = []
        for stage in range(stages):
            turns = "BF" if last[stage] == "F" else "FB"
            phase = next((phase for phase in turns if ready[phase][stage]), None)
            if phase is not None:
                last[stage] = phase
                step.append((stage, PipelineTask(phase, heappop(ready[phase][stage]))))
        for stage, task in step:
            left -= 1
            if task.phase == "F" and stage + 1 < stages:
                heappush(ready["F"][stage + 1], task.microbatch)
            elif task.phase == "F":
                heappush(ready["B"][stage], task.microbatch)
            elif stage:
                heappush(ready["B"][stage - 1], task.microbatch)
        steps.append(step)
    return steps


@checked_fields("a model")
@dataclass(frozen=True)
class MLP:
    """A chain of equally wide layers with relu, trained on squared error.

    >>> from meshwright import dist
    >>> fn = dist.MLP(layers=4, dim=8, batch=8).unrolled(data=2, horizontal=1, pipeline=2, microbatches=2)
    >>> sorted({v.type.device.base for eqn in fn.eqns for v in eqn.outputs})
    [1, 2, 3, 4]
    """

    layers: int
    dim: int
    batch: int

    def check(self, data: int, horizontal: int, pipeline: int, microbatches: int) -> None:
        """Refuse degrees that do not divide what they split."""
        degrees = {"data": data, "horizontal": horizontal, "pipeline": pipeline, "microbatches": microbatches}
        for name, degree in degrees.items():
            if not isinstance(degree, int) or degree < 1:
                raise ShapeError(f"{name} is {degree!r}.", why="it is a whole number from 1", fix=f"{name}=2")
        for what, size, parts in (
            ("batch", self.batch, data * microbatches),
            ("width", self.dim, horizontal),
            ("number of layers", self.layers, pipeline),
        ):
            if size % parts:
                raise ShapeError(
                    f"The {what} {size} does not divide into {parts} equal parts.",
                    why=", ".join(f"{name}={degree}" for name, degree in degrees.items()),
                    fix=f"a {what} that is a multiple of {parts}",
                )
        if horizontal > 1 and (self.layers // pipeline) % 2:
            raise ShapeError(
                f"{self.layers // pipeline} layers per stage are no pairs.",
                why="horizontal parallelism splits the columns of one layer and the rows of the next",
                fix=f"layers={2 * pipeline}",
            )

    def unrolled(
        self, data: int = 1, horizontal: int = 1, pipeline: int = 1, microbatches: int = 1, *, fold: bool = False
    ) -> Function:
        """The step on devices 1 … data·horizontal·pipeline, stages of one group side by side.

        With ``fold``, the first device of each group stands for all, and collectives name their ``members``.
        """
        self.check(data, horizontal, pipeline, microbatches)
        return _LayerWriter(self, data, horizontal, pipeline, microbatches, fold).write()


class _LayerWriter:
    def __init__(self, mlp: MLP, data: int, horizontal: int, pipeline: int, microbatches: int, fold: bool) -> None:
        self.mlp, self.D, self.H, self.P, self.K = mlp, data, horizontal, pipeline, microbatches
        self.replicas, self.shards = (range(1), range(1)) if fold else (range(data), range(horizontal))
        self.rows = mlp.batch // data // microbatches
        self.per_stage = mlp.layers // pipeline
        self.eqns: list[DeviceEqn] = []
        self.inputs: list[DeviceValue] = []
        self.env: dict[tuple[object, ...], DeviceValue] = {}
        self.types: dict[tuple[object, tuple[int, ...]], Tensor] = {}
        self.devices = {
            (i, j, stage): Device(1 + (i * horizontal + j) * pipeline + stage)
            for i in self.replicas
            for j in self.shards
            for stage in range(pipeline)
        }

    def device(self, i: int, j: int, stage: int) -> Device:
        return self.devices[i, j, stage]

    def number(self, i: int, j: int, stage: int) -> int:
        return 1 + (i * self.H + j) * self.P + stage

    def typed(self, device: Device, shape: tuple[int, ...]) -> Tensor:
        found = self.types.get((device.base, shape))
        if found is None:
            found = self.types[device.base, shape] = Tensor(shape, device, FLOAT32)
        return found

    def weight_shape(self, layer: int) -> tuple[int, int]:
        part = self.mlp.dim // self.H
        return (self.mlp.dim, part) if layer % 2 == 0 else (part, self.mlp.dim)

    def emit(
        self,
        op: str,
        inputs: Sequence[DeviceValue],
        shapes: Sequence[tuple[Device, tuple[int, ...]]],
        name: str,
        **attributes: object,
    ) -> list[DeviceValue]:
        outs = [DeviceValue(f"{name}_{device.base}", self.typed(device, shape)) for device, shape in shapes]
        self.eqns.append(DeviceEqn(op, tuple(inputs), tuple(outs), attributes))
        return outs

    def write(self) -> Function:
        steps = alternating(self.P, self.K)
        self.declare()
        for i in self.replicas:
            for step in steps:
                for stage, task in step:
                    (self.forward if task.phase == "F" else self.backward)(i, stage, task.microbatch)
                for stage, task in step:
                    self.forward_on(i, stage, task)
        self.update()
        outputs = [v for key, v in self.env.items() if key[0] in ("new", "loss", "dx")]
        return Function("mlp_step", tuple(self.inputs), tuple(self.eqns), tuple(outputs))

    def declare(self) -> None:
        def declare(
            key: tuple[object, ...], name: str, shape: tuple[int, ...], device: Device, dtype: object = FLOAT32
        ) -> None:
            value = DeviceValue(f"{name}_{device}", Tensor(shape, device, dtype))  # type: ignore[arg-type]
            self.env[key] = value
            self.inputs.append(value)

        for i in self.replicas:
            for j in self.shards:
                for layer in range(self.mlp.layers):
                    at = self.device(i, j, layer // self.per_stage)
                    declare(("w", i, j, layer), f"w{layer}", self.weight_shape(layer), at)
                for k in range(self.K):
                    shape = (self.rows, self.mlp.dim)
                    declare(("act", i, j, -1, k), f"x{k}", shape, self.device(i, j, 0))
                    declare(("z", i, j, k), f"z{k}", shape, self.device(i, j, self.P - 1))
                declare(("n", i, j), "n", (), self.device(i, j, self.P - 1), INT32)

    def layers(self, stage: int) -> range:
        return range(stage * self.per_stage, (stage + 1) * self.per_stage)

    def group(self, i: int, stage: int) -> list[Device]:
        return [self.device(i, j, stage) for j in self.shards]

    def sum_over_group(
        self, parts: Sequence[DeviceValue], i: int, stage: int, shape: tuple[int, ...], name: str
    ) -> list[DeviceValue]:
        members = [self.number(i, j, stage) for j in range(self.H)]
        made = [(d, shape) for d in self.group(i, stage)]
        return self.emit("allreduce", parts, made, name, **_members(parts, members))

    def forward(self, i: int, stage: int, k: int) -> None:
        for layer in self.layers(stage):
            width = self.weight_shape(layer)[1]
            shape = (self.rows, width)
            made = []
            for j, at in enumerate(self.group(i, stage)):
                x, w = self.env["act", i, j, layer - 1, k], self.env["w", i, j, layer]
                made += self.emit("MatMul", (x, w), [(at, shape)], f"a{layer}.{k}")
            if self.H > 1 and layer % 2:
                made = self.sum_over_group(made, i, stage, shape, f"a{layer}.{k}")
            for j, at in enumerate(self.group(i, stage)):
                self.env["pre", i, j, layer, k] = made[j]
                self.env["act", i, j, layer, k] = self.emit("Relu", (made[j],), [(at, shape)], f"r{layer}.{k}")[0]
        if stage == self.P - 1:
            shape = (self.rows, self.mlp.dim)
            for j, at in enumerate(self.group(i, stage)):
                operands = (self.env["act", i, j, self.mlp.layers - 1, k], self.env["z", i, j, k], self.env["n", i, j])
                loss = self.emit("Loss", operands, [(at, shape)], f"loss.{k}")[0]
                self.join(("loss", i, j), loss, k, at)
            for j, at in enumerate(self.group(i, stage)):
                operands = (self.env["act", i, j, self.mlp.layers - 1, k], self.env["z", i, j, k], self.env["n", i, j])
                self.env["grad", i, j, self.mlp.layers, k] = self.emit("LossGrad", operands, [(at, shape)], f"dl.{k}")[
                    0
                ]

    def backward(self, i: int, stage: int, k: int) -> None:
        for layer in reversed(self.layers(stage)):
            rows, columns = self.weight_shape(layer)
            devices = self.group(i, stage)
            inner = []
            for j, at in enumerate(devices):
                operands = (self.env["pre", i, j, layer, k], self.env["grad", i, j, layer + 1, k])
                inner += self.emit("ReluGrad", operands, [(at, (self.rows, columns))], f"da{layer}.{k}")
            outs = []
            for j, at in enumerate(devices):
                x, w = self.env["act", i, j, layer - 1, k], self.env["w", i, j, layer]
                shapes = [(at, (self.rows, rows)), (at, (rows, columns))]
                outs.append(self.emit("MatMulGrad", (x, w, inner[j]), shapes, f"d{layer}.{k}"))
            sent = [dx for dx, _ in outs]
            if self.H > 1 and layer % 2 == 0:
                sent = self.sum_over_group(sent, i, stage, (self.rows, rows), f"dx{layer}.{k}")
            for j, at in enumerate(devices):
                if layer:
                    self.env["grad", i, j, layer, k] = sent[j]
                else:
                    self.join(("dx", i, j), sent[j], k, at)
                self.add(("dw", i, j, layer), outs[j][1], at)

    def join(self, key: tuple[object, ...], value: DeviceValue, k: int, at: Device) -> None:
        before = self.env.get(key)
        if before is not None:
            shape = ((k + 1) * self.rows, self.mlp.dim)
            value = self.emit("concatenate", (before, value), [(at, shape)], str(key[0]), dim=0)[0]
        self.env[key] = value

    def add(self, key: tuple[object, ...], value: DeviceValue, at: Device) -> None:
        before = self.env.get(key)
        if before is not None:
            assert isinstance(value.type, Tensor)
            shape = tuple(n for n in value.type.shape if isinstance(n, int))
            value = self.emit("add", (before, value), [(at, shape)], "dw")[0]
        self.env[key] = value

    def forward_on(self, i: int, stage: int, task: PipelineTask) -> None:
        """Send what the neighbouring stage goes on with."""
        k = task.microbatch
        shape = (self.rows, self.mlp.dim)
        edge = (stage + 1) * self.per_stage - 1 if task.phase == "F" else stage * self.per_stage
        kind, target = ("act", stage + 1) if task.phase == "F" else ("grad", stage - 1)
        if not 0 <= target < self.P:
            return
        for j in self.shards:
            at = self.device(i, j, target)
            x = self.env[kind, i, j, edge, k]
            self.env[kind, i, j, edge, k] = self.emit("send", (x,), [(at, shape)], x.name, to_device=at)[0]

    def update(self) -> None:
        for layer in range(self.mlp.layers):
            stage = layer // self.per_stage
            shape = self.weight_shape(layer)
            for j in self.shards if self.D > 1 else ():
                group = [(self.device(i, j, stage), shape) for i in self.replicas]
                parts = [self.env["dw", i, j, layer] for i in self.replicas]
                members = [self.number(i, j, stage) for i in range(self.D)]
                summed = self.emit("allreduce", parts, group, f"dw{layer}", **_members(parts, members))
                for i in self.replicas:
                    self.env["dw", i, j, layer] = summed[i]
        for i in self.replicas:
            for j in self.shards:
                for stage in range(self.P):
                    layers = self.layers(stage)
                    at = self.device(i, j, stage)
                    operands = [self.env["w", i, j, n] for n in layers] + [self.env["dw", i, j, n] for n in layers]
                    new = self.emit("SGDOptimizer", operands, [(at, self.weight_shape(n)) for n in layers], "w")
                    for n, value in zip(layers, new, strict=True):
                        self.env["new", i, j, n] = value


def _members(parts: Sequence[DeviceValue], members: Sequence[int]) -> dict[str, object]:
    """The members of a collective, where one operand stands for all."""
    return {"members": Keys(members)} if len(members) > len(parts) else {}

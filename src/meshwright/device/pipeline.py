"""Pipeline parallelism: stages on the devices of one level, microbatches through them in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product

from meshwright.device.classes import Classes, Place
from meshwright.device.dims import divide
from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.schedule import PipelineTask, Schedule
from meshwright.device.spread import COPY, SpreadSharding, SpreadStep, Version
from meshwright.device.stages import Stages
from meshwright.device.tensor_ops import tensor_of
from meshwright.device.transforms import (
    Batch,
    Keys,
    at_level,
    fresh_variable,
    home_of,
    named_classes,
    plain_keys,
    scattered_classes,
)
from meshwright.device.types import Device, Tensor, Tuple
from meshwright.device.typing import in_steps
from meshwright.device.writer import DeviceBody
from meshwright.errors import DeviceError, ShapeError

_ADD = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul", "or": "or", "and": "and"}


@takes_program
def pipeline_parallel(
    fn: Function,
    stages: int | Sequence[str],
    microbatches: int = 1,
    schedule: str | Schedule = "1f1b",
    batch: Batch | None = None,
    device_keys: Keys = (),
    *,
    chunks: int = 1,
) -> Function:
    """Run stages of the program on devices of their own, and microbatches through them.

    ``stages`` is how many devices there are, cut by cost, or the names of the values that end a stage. ``schedule`` is
    the order of the tasks on each device: "gpipe", "1f1b", "interleaved" (with ``chunks`` stages per device), "zb-h1",
    or a `Schedule` of your own. ``batch`` names batch dims, as for `data_parallel`; a forward program with one dim that
    every result carries needs none. In a training program, the first output without dims is the loss: what comes after
    it goes back through the stages.

    >>> from meshwright import dist
    >>> inputs = "a: Tensor[(F, H), 0], b: Tensor[(H, C), 0], x: Tensor[(B, F), 0]"
    >>> fn = dist.parse(f"def f({inputs}): h = MatMul(x, a) y = MatMul(h, b) return y")
    >>> spread = dist.pipeline_parallel(fn, stages=2, microbatches=2)
    >>> [str(eqn.attributes["to_device"]) for eqn in spread.eqns if eqn.op == "send"]
    ['device_map.0', 'device_map.0', 'device_map.1', 'device_map.1', 'device_map.0', 'device_map.1']
    """
    fn = in_steps(fn)
    classes = Classes(fn)
    homes: dict[str, int] = {}
    if not isinstance(microbatches, int) or microbatches < 1:
        raise ShapeError(
            "A pipeline has one microbatch at least.", why=f"microbatches={microbatches!r}", fix="microbatches=4"
        )

    def change(body: Function, depth: int) -> Function:
        if microbatches == 1:
            split: frozenset[Place] = frozenset()
        elif batch is not None:
            split = named_classes(fn, [body], classes, batch, microbatches, "microbatches")
        else:
            split = _found_batch(fn, body, classes)
        found = Stages(body, classes, split, stages, microbatches, schedule, chunks, homes)
        _check_fan_out(fn, found.devices, len(device_keys))
        return _Pipeline(found, keys, depth).write()

    keys = plain_keys(device_keys)
    return at_level(fn, keys, change)


def _found_batch(fn: Function, body: Function, classes: Classes) -> frozenset[Place]:
    """The batch where it is plain: what an enclosing level scatters, or the one dim that every result carries."""
    taken = scattered_classes(fn, classes)
    inputs = [(v, d) for v in body.inputs for d in range(len(tensor_of(v).shape))]
    here = {classes.root(p) for p in inputs} & taken
    found = []
    for root in {classes.root(p): None for p in inputs}:
        carried = all(
            any(classes.root((v, d)) == root for d in range(len(tensor_of(v).shape)))
            for eqn in body.eqns
            for v in eqn.outputs
        )
        if carried:
            found.append(root)
    if len(found) == 1:
        return frozenset(found)
    if len(here) == 1:
        return frozenset(here)
    raise ShapeError(
        "The pipeline cannot tell which dim is the batch.",
        why=f"{len(found)} dims are carried by every result",
        fix=f"pipeline_parallel(fn, …, batch={{{fn.inputs[-1].name!r}: 0}})",
    )


def _check_fan_out(fn: Function, devices: int, level: int) -> None:
    found = fn.device_map.fan_out(level) if fn.device_map is not None else None
    if found is not None and found != devices:
        raise DeviceError(
            f"A pipeline of {devices} stages does not fit {found} devices.",
            why=f"the device map {fn.device_map} has {found} devices on this level",
            fix=f"stages={found}",
        )


@dataclass(frozen=True, eq=False)
class _Job:
    """The equations of one task: a phase of a stage."""

    phase: str
    stage: int
    steps: tuple[SpreadStep, ...]


class _Pipeline:
    """Writes the equations of a pipeline in the order of its schedule."""

    def __init__(self, stages: Stages, keys: Sequence[int | str], depth: int) -> None:
        self.stages, self.body, self.plan, self.planner = stages, stages.body, stages.plan, stages.planner
        self.count, self.schedule, self.keys = stages.count, stages.schedule, keys
        self.variable = fresh_variable(keys, depth)
        self.home = Device(self.body.variable) if self.body.variable is not None else home_of(self.body)
        self.eqns: list[DeviceEqn] = []
        self.where: dict[tuple[Version, int | None, Device], DeviceValue] = {}
        self.made: dict[tuple[Version, int | None], tuple[DeviceValue, Device]] = {}
        self.sums: dict[Version, DeviceValue] = {}
        self.bodies: dict[_Job, tuple[Function, list[Version], list[Version]]] = {}
        self.returned = frozenset(self.body.outputs)
        self.converted = frozenset(conversion.source for conversion in self.plan.conversions)
        self.readers: dict[Version, list[SpreadStep]] = {}
        for step in self.plan.steps:
            for v in step.operands:
                if not isinstance(v, Number):
                    self.readers.setdefault(v, []).append(step)
        self.maker = {v[0]: step for step in reversed(stages.micro) for v in step.results}

    def device(self, stage: int) -> Device:
        place = stage % self.stages.devices
        return Device(self.keys[-1] if self.keys else "device_map", sub=place)

    def write(self) -> Function:
        steps: dict[tuple[str, int], list[SpreadStep]] = {}
        for step in self.stages.micro:
            steps.setdefault((self.stages.phase_of[step], self.stages.stage_of[step]), []).append(step)
        places = product("FBW", range(self.stages.stages))
        jobs = {place: _Job(*place, tuple(steps.get(place, ()))) for place in places}
        for stage, shared in self.stages.before:
            self.call(_Job("S", stage, tuple(shared)), None)
        self.run(jobs)
        for stage, tail in self.stages.after:
            self.call(_Job("T", stage, tuple(tail)), None)
        outputs = tuple(self.output(v) for v in self.body.outputs)
        return self.body.with_(eqns=tuple(self.eqns), outputs=outputs)

    def run(self, jobs: Mapping[tuple[str, int], _Job]) -> None:
        orders = self.schedule.orders
        at = [0] * len(orders)
        left = sum(map(len, orders))
        while left:
            moved = False
            for device, order in enumerate(orders):
                if at[device] == len(order):
                    continue
                task = order[at[device]]
                job = jobs[task.phase, self.schedule.stage(device, task)]
                if self.missing(job, task.microbatch) is not None:
                    continue
                if job.steps:
                    self.call(job, task.microbatch)
                at[device] += 1
                left -= 1
                moved = True
            if not moved:
                raise self.stuck(jobs, at)

    def missing(self, job: _Job, k: int) -> Version | None:
        """What a job waits for, None if it can run."""
        inside = {v for s in job.steps for v in s.results}
        for step in job.steps:
            for v in step.operands:
                if not isinstance(v, Number) and v not in inside and v in self.plan.made and not self.exists(v, k):
                    return v
        return None

    def exists(self, version: Version, k: int) -> bool:
        return (version, k) in self.made or (version, None) in self.made

    def stuck(self, jobs: Mapping[tuple[str, int], _Job], at: Sequence[int]) -> DeviceError:
        lines = []
        for device, order in enumerate(self.schedule.orders):
            if at[device] < len(order):
                task = order[at[device]]
                missing = self.missing(jobs[task.phase, self.schedule.stage(device, task)], task.microbatch)
                maker = next(s for s in self.stages.micro if missing in s.results)
                stage = self.stages.stage_of[maker]
                wanted = PipelineTask(self.stages.phase_of[maker], task.microbatch, stage // self.stages.devices)
                lines.append(f"device {device}: {task} waits for {wanted} of device {stage % self.stages.devices}")
        return DeviceError(
            f"The schedule {self.schedule.name} waits for itself.",
            why="\n".join(lines),
            fix="run each task after what it waits for; schedule='1f1b' is in order",
        )

    def local(self, version: Version, device: Device) -> Tensor:
        value, layout = version
        found = tensor_of(value).on(device)
        if layout.kind == "part":
            return found.resized(layout.dim, divide(found.shape[layout.dim], self.count))
        return found

    def fetch(self, version: Version, k: int | None, device: Device) -> DeviceValue:
        """A version on a device: sent there once."""
        if (version, k) not in self.made:
            k = None if (version, None) in self.made else k
        if (version, k) not in self.made:
            k = self.source(version, k)
        found = self.where.get((version, k, device))
        if found is not None:
            return found
        value, at = self.made[version, k]
        if at != device:
            sent = DeviceValue(
                f"{value.name}_to_{device.sub if device.sub is not None else device}", self.local(version, device)
            )
            self.eqns.append(DeviceEqn("send", (value,), (sent,), {"to_device": device}))
            value = sent
        self.where[version, k, device] = value
        return value

    def source(self, version: Version, k: int | None) -> int | None:
        """Bring into being a version of an input, or a part of what is computed once."""
        value, layout = version
        if layout.kind == "copy" and value in self.planner.inputs:
            self.made[version, None] = (value, self.home)
            return None
        if layout.kind == "copy":  # the sum over all microbatches
            found = self.sums[value, self.planner.original[value]]
            self.made[version, None] = (found, self.device_of(value))
            return None
        assert layout.kind == "part" and k is not None
        if (version, -1) not in self.made:
            if value in self.planner.inputs:
                whole, at = value, self.home
            else:
                whole, at = self.made[(value, COPY), None]
            parts = DeviceValue(f"{value.name}_parts", Tuple((self.local(version, at),) * self.count))
            self.eqns.append(DeviceEqn("split", (whole,), (parts,), {"dim": layout.dim, "parts": self.count}))
            self.made[version, -1] = (parts, at)
        parts, at = self.made[version, -1]
        item = DeviceValue(f"{value.name}_{k}", self.local(version, at))
        self.eqns.append(DeviceEqn("item", (parts,), (item,), {"index": k}))
        self.made[version, k] = (item, at)
        return k

    def device_of(self, value: DeviceValue) -> Device:
        return self.device(self.stages.stage_of[self.maker[value]])

    def call(self, job: _Job, k: int | None) -> None:
        function, inputs, outputs = self.function(job)
        device = self.device(job.stage)
        operands = tuple(self.fetch(v, k, device) for v in inputs)
        suffix = "" if k is None else f"_{k}"
        made = tuple(DeviceValue(f"{v[0].name}{suffix}", self.local(v, device)) for v in outputs)
        self.eqns.append(DeviceEqn("call", operands, made, {}, function))
        for version, value in zip(outputs, made, strict=True):
            self.made[version, k] = (value, device)
            if version[1].kind == "summand" and k is not None:
                self.accumulate(version, value, device)

    def accumulate(self, version: Version, value: DeviceValue, device: Device) -> None:
        before = self.sums.get(version)
        if before is None:
            self.sums[version] = value
            return
        total = DeviceValue(f"{version[0].name}_sum", self.local(version, device))
        self.eqns.append(DeviceEqn(_ADD[version[1].how], (before, value), (total,)))
        self.sums[version] = total

    def function(self, job: _Job) -> tuple[Function, list[Version], list[Version]]:
        if job in self.bodies:
            return self.bodies[job]
        made = DeviceBody(job.steps, self.local, Device(self.variable))
        if not made.inputs:
            made.take((self.body.inputs[0], COPY))
        inside = set(map(id, job.steps))
        outputs = [v for step in job.steps for v in step.results if self.leaves(v, inside)]
        results = tuple(made.values[v] for v in outputs)
        function = Function("", tuple(made.inputs.values()), made.eqns, results, None, self.variable)
        self.bodies[job] = function, list(made.inputs), outputs
        return self.bodies[job]

    def leaves(self, version: Version, inside: Set[int]) -> bool:
        """Whether a version is read outside of some steps, which are given by their ids."""
        if version[0] in self.returned or version in self.converted:
            return True
        return any(id(step) not in inside for step in self.readers.get(version, ()))

    def output(self, value: DeviceValue) -> DeviceValue:
        layout: SpreadSharding | None = self.planner.original.get(value)
        if value in self.planner.inputs:
            return value
        assert layout is not None
        whole = DeviceValue(f"{value.name}_out", tensor_of(value).on(self.home))
        if layout.kind == "part":
            items = tuple(self.made[(value, layout), k][0] for k in range(self.count))
            self.eqns.append(DeviceEqn("gather", items, (whole,), {"dim": layout.dim, "to_device": self.home}))
            return whole
        if layout.kind == "summand":
            found = self.sums[value, layout]
        elif ((value, layout), None) in self.made:
            found = self.made[(value, layout), None][0]
        else:
            found = self.made[(value, layout), 0][0]
        self.eqns.append(DeviceEqn("send", (found,), (whole,), {"to_device": self.home}))
        return whole

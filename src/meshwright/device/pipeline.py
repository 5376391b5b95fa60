"""Pipeline parallelism: stages on the devices of one level, microbatches through them in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.device.classes import Classes, Place, signatures, tensor_of
from meshwright.device.dims import divide
from meshwright.device.function import Eqn, Function, Number, Operand, Value
from meshwright.device.phases import (
    cut_by_cost,
    cut_by_names,
    forward_equations,
    place_backward,
)
from meshwright.device.schedule import SCHEDULES, Schedule, Task, forward_only
from meshwright.device.spread import COPY, Layout, Planner, Step, Version
from meshwright.device.tensor_ops import localize
from meshwright.device.transforms import Batch, Keys, at_level, home_of, named_classes, scattered_classes
from meshwright.device.types import Device, Tensor, Tuple
from meshwright.device.typing import typed
from meshwright.errors import DeviceError, ShapeError

_ADD = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul", "or": "or", "and": "and"}


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
    fn = typed(fn)
    classes = Classes(fn)
    if not isinstance(microbatches, int) or microbatches < 1:
        raise ShapeError(
            "A pipeline has one microbatch at least.", why=f"microbatches={microbatches!r}", fix="microbatches=4"
        )

    def change(body: Function, depth: int) -> Function:
        if microbatches == 1:
            split: frozenset[Place] = frozenset()
        elif batch is not None:
            split = named_classes(fn, [body], classes, batch, microbatches)
        else:
            split = _found_batch(fn, body, classes)
        return _Pipeline(body, classes, split, stages, microbatches, schedule, chunks, device_keys, depth, fn).write()

    return at_level(fn, device_keys, change)


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


@dataclass(frozen=True)
class _Job:
    """The equations of one task: a phase of a stage."""

    phase: str
    stage: int
    steps: tuple[Step, ...]


class _Pipeline:
    def __init__(
        self,
        body: Function,
        classes: Classes,
        split: frozenset[Place],
        stages: int | Sequence[str],
        microbatches: int,
        schedule: str | Schedule,
        chunks: int,
        keys: Keys,
        depth: int,
        fn: Function,
    ) -> None:
        self.body, self.count, self.keys = body, microbatches, keys
        self.variable = "d" * (depth + 1)
        self.home = Device(body.variable) if body.variable is not None else home_of(body)
        self.planner = Planner(body, classes, split, microbatches)
        self.plan = self.planner.plan
        devices = stages if isinstance(stages, int) else len(stages) + 1
        if isinstance(schedule, Schedule):
            devices, chunks = schedule.devices, schedule.chunks
        if devices < 1 or chunks < 1:
            raise ShapeError(
                "A pipeline has one stage at least.", why=f"stages={stages!r}, chunks={chunks}", fix="stages=2"
            )
        self.check_fan_out(fn, devices, depth)
        self.devices, self.stages = devices, devices * chunks
        self.micro, self.shared, self.tail = self.sorted_steps()
        self.stage_of, forward = self.placed(stages)
        trains = len(forward) < len(self.micro)
        self.schedule = self.made_schedule(schedule, devices, chunks, trains)
        self.phase_of = self.phases(forward)
        self.eqns: list[Eqn] = []
        self.where: dict[tuple[Version, int | None, Device], Value] = {}
        self.made: dict[tuple[Version, int | None], tuple[Value, Device]] = {}
        self.sums: dict[Version, Value] = {}
        self.bodies: dict[_Job, tuple[Function, list[Version], list[Version]]] = {}

    def check_fan_out(self, fn: Function, devices: int, depth: int) -> None:
        if fn.device_map is None:
            return
        found = fn.device_map.fan_out(len(self.keys))
        if found is not None and found != devices:
            raise DeviceError(
                f"A pipeline of {devices} stages does not fit {found} devices.",
                why=f"the device map {fn.device_map} has {found} devices on this level",
                fix=f"stages={found}",
            )

    # What runs when and where

    def sorted_steps(self) -> tuple[list[Step], list[Step], list[Step]]:
        """Steps of each microbatch, steps done once before, and steps done once after all microbatches."""
        micro, shared, tail = [], [], []
        for c in self.plan.conversions:
            if c.op in ("allgather", "reduce_scatter"):
                raise self.not_separable(c.source[0])
        for step in self.plan.steps:
            layouts = [v[1] for v in (*step.operands, *step.results) if not isinstance(v, Number)]
            if step.depth > 0:
                if any(layout.kind != "copy" for layout in layouts):
                    raise self.not_separable(step.eqn.outputs[0])
                tail.append(step)
            elif all(layout.kind == "copy" for layout in layouts):
                shared.append(step)
            else:
                micro.append(step)
        return micro, shared, tail

    def not_separable(self, value: Value) -> ShapeError:
        return ShapeError(
            f"{value.name} needs the whole batch.",
            why="microbatches run one after the other; an equation in their midst depends on all of them",
            fix="microbatches=1",
        )

    def placed(self, stages: int | Sequence[str]) -> tuple[dict[Step, int], list[Eqn]]:
        by_eqn = {step.eqn: step for step in self.micro}
        eqns = [step.eqn for step in self.micro]
        if not eqns:  # a single microbatch: everything is done once, in order
            by_eqn = {step.eqn: step for step in self.shared}
            eqns = [step.eqn for step in self.shared]
            self.micro, self.shared = self.shared, []
        forward = forward_equations(self.body, eqns)
        if not forward:
            raise ShapeError(
                "The program has no equations to put on stages.", why="it returns its inputs", fix="stages=1"
            )
        cut = (
            cut_by_names(self.body, forward, stages)
            if not isinstance(stages, int)
            else cut_by_cost(forward, self.stages if self.body.variable is None else min(self.stages, len(forward)))
        )
        known = set(forward)
        backward = [eqn for eqn in eqns if eqn not in known]
        found = {**cut, **place_backward(cut, backward, self.body.inputs, self.stages)}
        return {by_eqn[eqn]: stage for eqn, stage in found.items()}, forward

    def made_schedule(self, schedule: str | Schedule, devices: int, chunks: int, trains: bool) -> Schedule:
        if isinstance(schedule, Schedule):
            if schedule.microbatches != self.count:
                raise ShapeError(
                    f"The schedule has {schedule.microbatches} microbatches, the pipeline {self.count}.",
                    why="a schedule lists a task for each microbatch",
                    fix=f"microbatches={schedule.microbatches}",
                )
            return schedule
        if schedule not in SCHEDULES:
            raise ShapeError(
                f"There is no schedule {schedule!r}.",
                why=f"the schedules are {', '.join(SCHEDULES)}",
                fix='schedule="1f1b", or a dist.Schedule of your own',
            )
        if not trains:
            return forward_only(devices, self.count, chunks)
        if schedule == "interleaved":
            return SCHEDULES[schedule](devices, self.count, chunks)
        if chunks != 1:
            raise ShapeError(
                f"The schedule {schedule} has one chunk per device.",
                why=f"chunks={chunks}",
                fix='schedule="interleaved"',
            )
        return SCHEDULES[schedule](devices, self.count)

    def phases(self, forward: Sequence[Eqn]) -> dict[Step, str]:
        """F, B and (where the schedule tells them apart) W, for what no other stage waits for."""
        known = set(forward)
        found: dict[Step, str] = {}
        splits = any(task.phase == "W" for order in self.schedule.orders for task in order)
        feeds: dict[Value, list[Step]] = {}
        for step in self.micro:
            for v in step.eqn.values:
                feeds.setdefault(v, []).append(step)
        for step in reversed(self.micro):
            if step.eqn in known:
                found[step] = "F"
                continue
            after = [s for v in step.eqn.outputs for s in feeds.get(v, ())]
            waited = any(self.stage_of[s] != self.stage_of[step] or found[s] == "B" for s in after)
            found[step] = "B" if waited or not splits else "W"
        return found

    def device(self, stage: int) -> Device:
        place = stage % self.devices
        return Device(self.keys[-1] if self.keys else "device_map", sub=place)

    # Writing

    def write(self) -> Function:
        jobs: dict[tuple[str, int], _Job] = {}
        for phase in "FBW":
            for stage in range(self.stages):
                steps = tuple(s for s in self.micro if self.phase_of[s] == phase and self.stage_of[s] == stage)
                jobs[phase, stage] = _Job(phase, stage, steps)
        self.setup()
        self.run(jobs)
        self.finish()
        outputs = tuple(self.output(v) for v in self.body.outputs)
        return self.body.with_(eqns=tuple(self.eqns), outputs=outputs)

    def setup(self) -> None:
        """What is computed once, before the microbatches: on the stage that needs it first."""
        first: dict[Value, int] = {}
        for step in self.micro:
            for v in step.eqn.values:
                first.setdefault(v, self.stage_of[step])
        groups: list[tuple[int, list[Step]]] = []
        stages: dict[Step, int] = {}
        for step in reversed(self.shared):
            stage = min((first[v] for v in step.eqn.outputs if v in first), default=0)
            stages[step] = stage
            for v in step.eqn.values:
                first[v] = min(first.get(v, stage), stage)
        for step in self.shared:
            if not groups or groups[-1][0] != stages[step]:
                groups.append((stages[step], []))
            groups[-1][1].append(step)
        for stage, steps in groups:
            self.call(_Job("S", stage, tuple(steps)), None)

    def run(self, jobs: Mapping[tuple[str, int], _Job]) -> None:
        orders = self.schedule.orders
        at = [0] * len(orders)
        left = sum(map(len, orders))
        done: set[tuple[int, Task]] = set()
        while left:
            moved = False
            for device, order in enumerate(orders):
                if at[device] == len(order):
                    continue
                task = order[at[device]]
                job = jobs[task.phase, self.schedule.stage(device, task)]
                if not self.ready(job, task.microbatch):
                    continue
                if job.steps:
                    self.call(job, task.microbatch)
                done.add((device, task))
                at[device] += 1
                left -= 1
                moved = True
            if not moved:
                raise self.stuck(jobs, at)

    def ready(self, job: _Job, k: int) -> bool:
        inside = {v for s in job.steps for v in s.results}
        for step in job.steps:
            for v in step.operands:
                if not isinstance(v, Number) and v not in inside and v in self.plan.made and not self.exists(v, k):
                    return False
        return True

    def exists(self, version: Version, k: int) -> bool:
        return (version, k) in self.made or (version, None) in self.made

    def stuck(self, jobs: Mapping[tuple[str, int], _Job], at: Sequence[int]) -> DeviceError:
        lines = []
        for device, order in enumerate(self.schedule.orders):
            if at[device] < len(order):
                task = order[at[device]]
                job = jobs[task.phase, self.schedule.stage(device, task)]
                inside = {v for s in job.steps for v in s.results}
                missing = next(
                    v
                    for s in job.steps
                    for v in s.operands
                    if not isinstance(v, Number)
                    and v not in inside
                    and v in self.plan.made
                    and not self.exists(v, task.microbatch)
                )
                maker = next(s for s in self.micro if missing in s.results)
                stage = self.stage_of[maker]
                wanted = Task(self.phase_of[maker], task.microbatch, stage // self.devices)
                lines.append(f"device {device}: {task} waits for {wanted} of device {stage % self.devices}")
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

    def fetch(self, version: Version, k: int | None, device: Device) -> Value:
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
            sent = Value(
                f"{value.name}_to_{device.sub if device.sub is not None else device}", self.local(version, device)
            )
            self.eqns.append(Eqn("send", (value,), (sent,), {"to_device": device}))
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
            parts = Value(f"{value.name}_parts", Tuple((self.local(version, at),) * self.count))
            self.eqns.append(Eqn("split", (whole,), (parts,), {"dim": layout.dim, "parts": self.count}))
            self.made[version, -1] = (parts, at)
        parts, at = self.made[version, -1]
        item = Value(f"{value.name}_{k}", self.local(version, at))
        self.eqns.append(Eqn("item", (parts,), (item,), {"index": k}))
        self.made[version, k] = (item, at)
        return k

    def device_of(self, value: Value) -> Device:
        step = next(s for s in self.micro if any(v[0] is value for v in s.results))
        return self.device(self.stage_of[step])

    def call(self, job: _Job, k: int | None) -> None:
        function, inputs, outputs = self.function(job)
        device = self.device(job.stage)
        operands = tuple(self.fetch(v, k, device) for v in inputs)
        suffix = "" if k is None else f"_{k}"
        made = tuple(Value(f"{v[0].name}{suffix}", self.local(v, device)) for v in outputs)
        self.eqns.append(Eqn("call", operands, made, {}, function))
        for version, value in zip(outputs, made, strict=True):
            self.made[version, k] = (value, device)
            if version[1].kind == "summand" and k is not None:
                self.accumulate(version, value, device)

    def accumulate(self, version: Version, value: Value, device: Device) -> None:
        before = self.sums.get(version)
        if before is None:
            self.sums[version] = value
            return
        total = Value(f"{version[0].name}_sum", self.local(version, device))
        self.eqns.append(Eqn(_ADD[version[1].how], (before, value), (total,)))
        self.sums[version] = total

    def function(self, job: _Job) -> tuple[Function, list[Version], list[Version]]:
        if job in self.bodies:
            return self.bodies[job]
        device = Device(self.variable)
        inner: dict[Version, Value] = {}
        inputs: dict[Version, Value] = {}
        eqns = []
        for step in job.steps:
            operands: list[Operand] = []
            for v in step.operands:
                if isinstance(v, Number):
                    operands.append(v)
                    continue
                if v not in inner:
                    inner[v] = inputs[v] = Value(v[0].name, self.local(v, device))
                operands.append(inner[v])
            results = []
            for v in step.results:
                inner[v] = Value(v[0].name, self.local(v, device))
                results.append(inner[v])
            given: dict[str, Any] = {key: x for key, x in step.eqn.attributes.items() if key != "device"}
            kept = {"device": device} if "device" in step.eqn.attributes else {}
            layouts = [v[1] for v in (*step.operands, *step.results) if not isinstance(v, Number)]
            if step.eqn.op != "constant" and any(layout != COPY for layout in layouts):
                given = dict(localize(step.eqn.op, given, signatures(operands), signatures(results)))
            eqns.append(Eqn(step.eqn.op, tuple(operands), tuple(results), {**given, **kept}))
        if not inputs:
            carrier = (self.body.inputs[0], COPY)
            inputs[carrier] = Value(carrier[0].name, self.local(carrier, device))
        outputs = [v for step in job.steps for v in step.results if self.leaves(v, job)]
        made = Function("", tuple(inputs.values()), tuple(eqns), tuple(inner[v] for v in outputs), None, self.variable)
        self.bodies[job] = made, list(inputs), outputs
        return self.bodies[job]

    def leaves(self, version: Version, job: _Job) -> bool:
        if version[0] in self.body.outputs or any(c.source == version for c in self.plan.conversions):
            return True
        inside = set(job.steps)
        return any(version in s.operands for s in self.plan.steps if s not in inside)

    def finish(self) -> None:
        """What is done once after all microbatches, on the stage that holds what it needs."""
        groups: list[tuple[int, list[Step]]] = []
        at: dict[Value, int] = {}
        for step in self.micro:
            stage = self.stage_of[step]
            for v in step.eqn.values:
                if v in self.planner.inputs:
                    at.setdefault(v, stage)
            at.update(dict.fromkeys(step.eqn.outputs, stage))
        for step in self.tail:
            stages = [at[v] for v in step.eqn.values if v in at]
            stage = min(stages, default=0)
            at.update(dict.fromkeys(step.eqn.outputs, stage))
            group = next((g for g in reversed(groups) if g[0] == stage), None)
            if group is None or groups[-1] is not group:
                # Updates of different stages do not depend on each other: one call per stage serves them all.
                later = (
                    {v for _, steps in groups[groups.index(group) + 1 :] for s in steps for v in s.eqn.outputs}
                    if group
                    else set()
                )
                if group is None or any(v in later for v in step.eqn.values):
                    group = (stage, [])
                    groups.append(group)
            group[1].append(step)
        for stage, steps in groups:
            self.call(_Job("T", stage, tuple(steps)), None)

    def output(self, value: Value) -> Value:
        layout: Layout | None = self.planner.original.get(value)
        if value in self.planner.inputs:
            return value
        assert layout is not None
        whole = Value(f"{value.name}_out", tensor_of(value).on(self.home))
        if layout.kind == "part":
            items = tuple(self.made[(value, layout), k][0] for k in range(self.count))
            self.eqns.append(Eqn("gather", items, (whole,), {"dim": layout.dim, "to_device": self.home}))
            return whole
        if layout.kind == "summand":
            found = self.sums[value, layout]
        elif ((value, layout), None) in self.made:
            found = self.made[(value, layout), None][0]
        else:
            found = self.made[(value, layout), 0][0]
        self.eqns.append(Eqn("send", (found,), (whole,), {"to_device": self.home}))
        return whole

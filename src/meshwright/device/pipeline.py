"""Pipeline parallelism: stages on the devices of one level, microbatches through them in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.device.classes import Classes, Place, places
from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.spread import COPY, SpreadStep, Version
from meshwright.device.stages import Stages
from meshwright.device.tensor_ops import tensor_of
from meshwright.device.transforms import (
    Batch,
    Keys,
    at_level,
    fresh_variable,
    named_classes,
    plain_keys,
    scattered_classes,
)
from meshwright.device.types import Device, Tuple
from meshwright.device.typing import in_steps
from meshwright.device.writer import DeviceBody, home_of
from meshwright.errors import DeviceError, ShapeError
from meshwright.simulate.pipelines import Schedule

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
            split = named_classes(fn, batch, [body], classes, microbatches, "microbatches")
        else:
            split = _found_batch(fn, body, classes)
        found = Stages(body, classes, split, stages, microbatches, schedule, chunks, homes)
        _check_fan_out(fn, found.devices, len(device_keys))
        return _Pipeline(found, keys, depth).write()

    keys = plain_keys(device_keys)
    return at_level(fn, keys, change)


def _found_batch(fn: Function, body: Function, classes: Classes) -> frozenset[Place]:
    """The batch where it is plain: what an enclosing level scatters, or the one dim that every result carries."""
    roots = dict.fromkeys(classes.root(place) for place in places(body.inputs))
    here = scattered_classes(fn, classes).intersection(roots)
    carried = [{classes.root(place) for place in places([v])} for eqn in body.eqns for v in eqn.outputs]
    found = [root for root in roots if all(root in one for one in carried)]
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


class _Job(NamedTuple):
    """The steps of one task as a function, what it takes and gives, and the device that it runs on."""

    function: Function
    inputs: tuple[Version, ...]
    outputs: tuple[Version, ...]
    device: Device


class _Pipeline:
    """Writes a pipeline: values by version and microbatch, and where they are.

    The microbatch of what is done once is None.
    """

    def __init__(self, stages: Stages, keys: Sequence[int | str], depth: int) -> None:
        self.stages, self.planner, self.body = stages, stages.planner, stages.body
        self.count, self.keys, self.variable = stages.count, keys, fresh_variable(keys, depth)
        self.home = home_of(self.body)
        self.eqns: list[DeviceEqn] = []
        self.where: dict[tuple[Version, int | None, Device], DeviceValue] = {}
        self.made: dict[tuple[Version, int | None], tuple[DeviceValue, Device]] = {}
        self.parts: dict[Version, tuple[DeviceValue, Device]] = {}
        self.sums: dict[Version, DeviceValue] = {}
        self.kept = {(v, self.planner.original.get(v, COPY)) for v in self.body.outputs}
        self.kept.update(conversion.source for conversion in self.planner.conversions)
        self.readers: dict[Version, list[SpreadStep]] = {}
        for step in self.planner.steps:
            for v in step.read:
                self.readers.setdefault(v, []).append(step)

    def device(self, stage: int) -> Device:
        return Device(self.keys[-1] if self.keys else "device_map", sub=stage % self.stages.devices)

    def write(self) -> Function:
        jobs = {(phase, stage): self.job(steps, stage) for (phase, stage), steps in self.stages.jobs.items()}
        for stage, shared in self.stages.before:
            self.call(self.job(shared, stage), None)
        for device, task in self.stages.schedule.in_order("schedule='1f1b'"):
            job = jobs.get((task.phase, self.stages.schedule.stage(device, task)))
            if job is not None:
                self.call(job, task.microbatch)
        for stage, tail in self.stages.after:
            self.call(self.job(tail, stage), None)
        outputs = tuple(self.output(v) for v in self.body.outputs)
        return self.body.with_(eqns=tuple(self.eqns), outputs=outputs)

    def job(self, steps: Sequence[SpreadStep], stage: int) -> _Job:
        """Some steps as a function, which is called for every microbatch."""
        made = DeviceBody(self.planner, steps, self.variable)
        if not made.inputs:
            made.take((self.body.inputs[0], COPY))
        inside = set(map(id, steps))
        outputs = [
            v
            for step in steps
            for v in step.results
            if v in self.kept or any(id(reader) not in inside for reader in self.readers.get(v, ()))
        ]
        return _Job(made.function(outputs), tuple(made.inputs), tuple(outputs), self.device(stage))

    def call(self, job: _Job, k: int | None) -> None:
        operands = tuple(self.fetch(v, k, job.device) for v in job.inputs)
        suffix = "" if k is None else f"_{k}"
        made = tuple(DeviceValue(f"{v[0].name}{suffix}", self.planner.local(v, job.device)) for v in job.outputs)
        self.eqns.append(DeviceEqn("call", operands, made, {}, job.function))
        for version, value in zip(job.outputs, made, strict=True):
            self.made[version, k] = (value, job.device)
            if version[1].kind == "summand" and k is not None:
                self.accumulate(version, value, job.device)

    def accumulate(self, version: Version, value: DeviceValue, device: Device) -> None:
        """Add the summand of a microbatch to those before; the sum is where they are made."""
        (summed, layout), before = version, self.sums.get(version)
        if before is not None:
            value, added = DeviceValue(f"{summed.name}_sum", self.planner.local(version, device)), value
            self.eqns.append(DeviceEqn(_ADD[layout.how], (before, added), (value,)))
        self.sums[version] = value
        self.made[(summed, COPY), None] = (value, device)

    def fetch(self, version: Version, k: int | None, device: Device) -> DeviceValue:
        """A version on a device: sent there once."""
        if (version, k) not in self.made and (version, None) not in self.made:
            self.begin(version, k)
        k = k if (version, k) in self.made else None
        found = self.where.get((version, k, device))
        if found is None:
            found, at = self.made[version, k]
            if at != device:
                place = device.sub if device.sub is not None else device
                sent = DeviceValue(f"{found.name}_to_{place}", self.planner.local(version, device))
                self.eqns.append(DeviceEqn("send", (found,), (sent,), {"to_device": device}))
                found = sent
            self.where[version, k, device] = found
        return found

    def begin(self, version: Version, k: int | None) -> None:
        """Bring into being a version of an input, or a part of what is computed once."""
        value, layout = version
        whole = (value, self.home) if value in self.planner.inputs else self.made[(value, COPY), None]
        if layout.kind == "copy":
            self.made[version, None] = whole
            return
        assert k is not None
        if version not in self.parts:
            parts = DeviceValue(f"{value.name}_parts", Tuple((self.planner.local(version, whole[1]),) * self.count))
            self.eqns.append(DeviceEqn("split", (whole[0],), (parts,), {"dim": layout.dim, "parts": self.count}))
            self.parts[version] = (parts, whole[1])
        parts, at = self.parts[version]
        item = DeviceValue(f"{value.name}_{k}", self.planner.local(version, at))
        self.eqns.append(DeviceEqn("item", (parts,), (item,), {"index": k}))
        self.made[version, k] = (item, at)

    def output(self, value: DeviceValue) -> DeviceValue:
        if value in self.planner.inputs:
            return value
        layout = self.planner.original[value]
        whole = DeviceValue(f"{value.name}_out", tensor_of(value).on(self.home))
        if layout.kind == "part":
            items = tuple(self.made[(value, layout), k][0] for k in range(self.count))
            self.eqns.append(DeviceEqn("gather", items, (whole,), {"dim": layout.dim, "to_device": self.home}))
            return whole
        found = self.made.get(((value, COPY), None)) or self.made[(value, layout), 0]
        self.eqns.append(DeviceEqn("send", found[:1], (whole,), {"to_device": self.home}))
        return whole

"""What of a pipeline runs where, and when: stages, phases, and what is done once before and after the microbatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from meshwright.device.classes import Classes, Place
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.phases import ancestors, cut_by_cost, cut_by_names, forward_equations, place_backward
from meshwright.device.spread import Planner, SpreadStep
from meshwright.errors import ShapeError
from meshwright.simulate.pipelines import (
    SCHEDULES,
    PipelineTask,
    Schedule,
    check_chunks,
    forward_only,
    not_once,
    schedule_of,
)

MOST_WRITTEN = 1 << 14  # tasks of a pipeline
Groups = list[tuple[int, list[SpreadStep]]]  # steps done in one call, with their stage


class Stages:
    """The steps of a body on the stages of a pipeline.

    ``micro`` are the steps of each microbatch, ``jobs`` the same by phase and stage; ``before`` and ``after`` are done
    once, on a stage each. ``homes`` are the stages of values by name, as other bodies of the level have them: a
    body that the batch does not enter, such as an update, runs where its parameters are.
    """

    def __init__(
        self,
        body: Function,
        classes: Classes,
        split: frozenset[Place],
        stages: int | Sequence[str],
        microbatches: int,
        schedule: str | Schedule,
        chunks: int,
        homes: dict[str, int],
    ) -> None:
        self.body, self.count = body, microbatches
        self.planner = Planner(body, classes, split, microbatches)
        devices = stages if isinstance(stages, int) else len(stages) + 1
        if isinstance(schedule, Schedule):
            if schedule.devices != devices:
                raise ShapeError(
                    f"The schedule {schedule.name} is for {schedule.devices} devices, the pipeline has {devices}.",
                    why="a schedule lists the tasks of each device",
                    fix=f"stages={schedule.devices}",
                )
            chunks = schedule.chunks
        if devices < 1 or chunks < 1:
            raise ShapeError(
                "A pipeline has one stage at least.", why=f"stages={stages!r}, chunks={chunks}", fix="stages=2"
            )
        if devices * chunks * microbatches > MOST_WRITTEN:
            raise ShapeError(
                f"A pipeline of {devices * chunks * microbatches} tasks is not written out.",
                why=f"stages={devices * chunks}, microbatches={microbatches}; up to {MOST_WRITTEN} are",
                fix=f"microbatches={max(1, MOST_WRITTEN // (devices * chunks))}, or fewer stages",
            )
        self.devices, self.stages = devices, devices * chunks
        self.micro, self.shared, self.tail = self.sorted_steps()
        self.stage_of: dict[SpreadStep, int] = {}
        forward: list[DeviceEqn] = []
        if not self.micro and homes and microbatches > 1:
            self.shared, self.tail = [], list(self.planner.steps)
            self.schedule = forward_only(devices, 0)
        else:
            self.stage_of, forward = self.placed(stages)
            self.schedule = self.made_schedule(schedule, devices, chunks, len(forward) < len(self.micro), microbatches)
        self.jobs = self.sorted_jobs(forward)
        self.after = self.groups(self.tail, self.tail_stages(homes))
        self.before = self.groups(self.shared, _by_use(self.shared, self.stage_of))
        homes.update({v.name: stage for v, stage in self.at.items()})

    def sorted_steps(self) -> tuple[list[SpreadStep], list[SpreadStep], list[SpreadStep]]:
        """Steps of each microbatch, steps done once before, and steps done once after all microbatches."""
        steps = self.planner.steps
        mixed = [c.source[0] for c in self.planner.conversions if c.op in ("allgather", "reduce_scatter")]
        mixed += [step.eqn.outputs[0] for step in steps if step.depth > 0 and not step.whole]
        if mixed:
            raise ShapeError(
                f"{mixed[0].name} needs the whole batch.",
                why="microbatches run one after the other; an equation in their midst depends on all of them",
                fix="microbatches=1",
            )
        micro = [step for step in steps if not step.whole]
        shared = [step for step in steps if step.whole and step.depth == 0]
        if micro:  # what no microbatch needs waits for the end
            needed = ancestors(self.body, [v for step in micro for v in step.eqn.values])
            shared = [step for step in shared if step.eqn in needed]
        known = {*micro, *shared}
        return micro, shared, [step for step in steps if step not in known]

    def placed(self, stages: int | Sequence[str]) -> tuple[dict[SpreadStep, int], list[DeviceEqn]]:
        """The stages of the steps of each microbatch, and the equations of the forward pass."""
        if not self.micro:  # nothing depends on the batch: everything is done once, in order
            self.micro, self.shared, self.count = self.shared, [], 1
        eqns = [step.eqn for step in self.micro]
        forward = forward_equations(self.body, eqns)
        if not forward:
            raise ShapeError(
                "The program has no equations to put on stages.", why="it returns its inputs", fix="stages=1"
            )
        if isinstance(stages, int):
            found = cut_by_cost(forward, self.stages if self.body.variable is None else min(self.stages, len(forward)))
        else:
            found = cut_by_names(self.body, forward, stages)
        found |= place_backward(found, [eqn for eqn in eqns if eqn not in found], self.stages)
        return {step: found[step.eqn] for step in self.micro}, forward

    def made_schedule(self, schedule: str | Schedule, devices: int, chunks: int, trains: bool, given: int) -> Schedule:
        if self.count != given:
            once = tuple(PipelineTask("F", 0, c) for c in range(chunks))
            back = tuple(PipelineTask("B", 0, c) for c in reversed(range(chunks))) if trains else ()
            return Schedule("once", (once + back,) * devices, chunks)
        if isinstance(schedule, Schedule):
            if schedule.microbatches != self.count:
                raise ShapeError(
                    f"The schedule has {schedule.microbatches} microbatches, the pipeline {self.count}.",
                    why="a schedule lists a task for each microbatch",
                    fix=f"microbatches={schedule.microbatches}",
                )
            _check_complete(schedule, trains)
            return schedule
        if schedule not in SCHEDULES:
            raise ShapeError(
                f"There is no schedule {schedule!r}.",
                why=f"the schedules are {', '.join(SCHEDULES)}",
                fix='schedule="1f1b", or a dist.Schedule of your own',
            )
        if not trains:
            return forward_only(devices, self.count, chunks)
        check_chunks(schedule, chunks)
        return schedule_of(schedule, devices, self.count, chunks)

    def sorted_jobs(self, forward: Sequence[DeviceEqn]) -> dict[tuple[str, int], list[SpreadStep]]:
        """The steps of each phase and stage: F, B and (where the schedule has it) W, what no other stage waits for."""
        known = set(forward)
        found: dict[tuple[str, int], list[SpreadStep]] = {}
        splits = any(task.phase == "W" for order in self.schedule.orders for task in order)
        waited: dict[DeviceValue, set[int]] = {}  # the stages that read a value, and -1 for a backward step
        for step in reversed(self.micro):
            stage = self.stage_of[step]
            others = set().union(*(waited.get(v, ()) for v in step.eqn.outputs)) - {stage}
            phase = "F" if step.eqn in known else "B" if others or not splits else "W"
            found.setdefault((phase, stage), []).append(step)
            for v in step.eqn.values:
                waited.setdefault(v, set()).update([stage, -1] if phase == "B" else [stage])
        return {place: steps[::-1] for place, steps in found.items()}

    # What is done once

    def tail_stages(self, homes: dict[str, int]) -> dict[SpreadStep, int]:
        """Steps after the microbatches run where a value is that they need, or where they are needed."""
        at = self.at = {v: homes[v.name] for v in self.body.inputs if v.name in homes}
        for step in self.micro:
            stage = self.stage_of[step]
            for v in self.planner.inputs.intersection(step.eqn.values):
                at.setdefault(v, stage)
            at.update(dict.fromkeys(step.eqn.outputs, stage))
        found: dict[SpreadStep, int] = {}
        for step in self.tail:
            known = [at[v] for v in step.eqn.values if v in at]
            if known:
                found[step] = min(known)
                at.update(dict.fromkeys(step.eqn.outputs, found[step]))
        return _by_use(self.tail, found)

    def groups(self, steps: Iterable[SpreadStep], stages: dict[SpreadStep, int]) -> Groups:
        """Steps of one stage in one call, as far as they do not wait for others in between."""
        groups: Groups = []
        last: dict[int, int] = {}  # the last group of each stage
        made: dict[DeviceValue, int] = {}  # the group of each value
        for step in steps:
            stage = stages[step]
            number = last.get(stage, -1)
            if number < 0 or any(made.get(v, -1) > number for v in step.eqn.values):
                number = last[stage] = len(groups)
                groups.append((stage, []))
            groups[number][1].append(step)
            made.update(dict.fromkeys(step.eqn.outputs, number))
        return groups


def _check_complete(schedule: Schedule, trains: bool) -> None:
    """Refuse a schedule that leaves out a task or runs one twice."""
    splits = any(task.phase == "W" for order in schedule.orders for task in order)
    phases = "F" if not trains else "FBW" if splits else "FB"
    for device, order in enumerate(schedule.orders):
        counts = Counter(order)
        for place in product(phases, range(schedule.microbatches), range(schedule.chunks)):
            task = PipelineTask(*place)
            if counts[task] != 1:
                raise not_once(ShapeError, schedule, task, counts[task], device)


def _by_use(steps: Sequence[SpreadStep], known: Mapping[SpreadStep, int]) -> dict[SpreadStep, int]:
    """The stages that are known, and for other steps the first that reads what they make."""
    found = dict(known)
    first: dict[DeviceValue, int] = {}
    for step, stage in known.items():
        first.update({v: min(first.get(v, stage), stage) for v in step.eqn.values})
    for step in reversed(steps):
        if step not in found:
            stage = found[step] = min((first[v] for v in step.eqn.outputs if v in first), default=0)
            first.update({v: min(first.get(v, stage), stage) for v in step.eqn.values})
    return found

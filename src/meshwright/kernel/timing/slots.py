"""A kernel in slots of time: in one slot a core computes once, and one block of each operand is copied.

So the picture of a pipeline is that of its order alone: what is fetched, computed, written and sent at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.kernel.run.tasks import KernelTask, state
from meshwright.kernel.run.transfers import Transfer
from meshwright.kernel.timing.clock import Clock, counts_nothing

COMPUTE = "compute"


class Work(NamedTuple):
    """What a core does in a slot: in which lane, and on what."""

    device: int
    core: int
    lane: str
    slot: int
    label: str


@dataclass(frozen=True)
class Slots:
    """One run of a kernel in slots."""

    name: str
    mesh: dict[str, int]
    works: tuple[Work, ...]

    @property
    def count(self) -> int:
        """How many slots it takes."""
        return max([work.slot for work in self.works], default=-1) + 1

    def cores(self) -> list[tuple[int, int]]:
        """The devices and cores that do something."""
        return sorted({(work.device, work.core) for work in self.works})

    def lanes(self, device: int, core: int = 0) -> list[str]:
        """The lanes of a core: what comes, what is computed, what goes, what is sent, each in order of use."""
        mine = [work.lane for work in self.works if (work.device, work.core) == (device, core)]
        return sorted(dict.fromkeys(mine), key=_rank)

    def overlapped(self, device: int, core: int = 0) -> tuple[int, int]:
        """In how many slots of a core something is copied, and in how many of these it computes as well."""
        mine = [work for work in self.works if (work.device, work.core) == (device, core)]
        copying = {work.slot for work in mine if work.lane != COMPUTE}
        return len(copying), len(copying & {work.slot for work in mine if work.lane == COMPUTE})


def _rank(lane: str) -> int:
    kinds = (lane.endswith(" in"), lane == COMPUTE, lane.endswith(" out"), not lane.startswith("to "))
    return kinds.index(True) if any(kinds) else len(kinds)


class SlotClock(Clock):
    """Time in slots, without numbers: floats are neither computed nor moved."""

    runs = True
    dry = True

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.free: dict[tuple[int, int, str], int] = {}  # the first slot in which a lane has nothing to do
        self.doing: dict[int, tuple[float, str]] = {}  # by task, the most work since it last waited, and its name

    def finish(self, copy: Transfer, now: float) -> float:
        """When a copy started now is over: after one slot, in which its lane does nothing else."""
        task, src, dst = copy.starter, copy.src, copy.dst
        if copy.device != task.device or copy.core != task.core:
            away = "" if copy.core == task.core else f" core {copy.core}"
            lane, label = f"to device {copy.device}{away}", src.text
        elif not src.buffer.addressable and dst.buffer.addressable:
            lane, label = f"{src.buffer.label} in", src.part or "all"
        elif not dst.buffer.addressable and src.buffer.addressable:
            lane, label = f"{dst.buffer.label} out", dst.part or "all"
        else:
            lane, label = f"{src.buffer.label} → {dst.buffer.label}", src.part or "all"
        place = (task.device, task.core, lane)
        slot = max(int(now), self.free.get(place, 0))
        self.free[place] = slot + 1
        self.works.append(Work(*place, slot, label))
        return slot + 1

    def charge_compute(self, task: KernelTask) -> None:
        """What the task has computed since it last waited, copied or signalled takes a slot."""
        doing = self.doing.pop(task.entity, None)
        if doing is not None:
            self.works.append(Work(task.device, task.core, COMPUTE, int(task.time), doing[1]))
            task.time += 1

    def signal(self, task: KernelTask, device: int) -> float:
        """When a signal comes: at once."""
        return task.time

    def watch(self, op: Any, operands: Any, types: Any, params: Any) -> Any:
        """Note that something is computed, in which step of which grid."""
        task = state.task
        results = types if types.__class__ is tuple else (types,)
        if task is None or counts_nothing(operands, results):
            return None
        flops = op.cost([x.type for x in operands], results, params).flops
        steps = [str(at[0] if len(at) == 1 else at) for at, whole in task.grids if any(n > 1 for n in whole)]
        self.doing[task.entity] = max(self.doing.get(task.entity, (-1.0, "")), (flops, " ".join(steps) or op.name))
        return self.left_out(types)

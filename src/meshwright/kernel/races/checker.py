"""The check for races of one buffer: each access is compared with the last ones before it."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.source import Source
from meshwright.kernel.races.accesses import UNDEFINED, AccessMap, BufferRegion, WholeBuffer
from meshwright.kernel.races.history import Access, History, Race
from meshwright.kernel.races.poison import CarriedValue, PoisonOrigin
from meshwright.kernel.run.faults import UninitializedError
from meshwright.kernel.run.memory import Buffer, select_elements

if TYPE_CHECKING:
    from meshwright.kernel.run.tasks import KernelTask
    from meshwright.kernel.run.transfers import Transfer

_EVENT_BITS = 40
_EVENT_MASK = (1 << _EVENT_BITS) - 1
_COPY = 1 << 61  # a write by a copy: the rest of the number is the copy's number
_INITIAL = 1 << _EVENT_BITS  # written before the kernel started


class AccessChecker:
    """Who last wrote and read each part of a buffer."""

    __slots__ = ("access_map", "buffer", "history", "poison", "was_read")

    def __init__(self, history: History, buffer: Buffer, initialized: bool) -> None:
        self.history = history
        self.buffer = buffer
        # The read that gave no value that what is stored here depends on, and the line of the store.
        self.poison: tuple[PoisonOrigin | CarriedValue, Source | None] | None = None
        self.access_map = AccessMap(buffer.data.shape, _INITIAL if initialized else 0)
        self.was_read = False

    # Accesses of tasks

    def read_by_task(self, task: KernelTask, region: BufferRegion) -> Any:
        """A load; which of the elements have no value, where that is so: True, or a mask."""
        self.was_read = True
        source = task.source()
        cell = self.access_map.only(region)
        if cell is not None and cell.write and not cell.write & UNDEFINED:
            self._after_write(task, cell.write, "reads", task, source)
            cell.reads[task.entity] = self.history.event(task, source)
            return True if task.steps and self._carried(task, cell.write) else None
        undefined = False
        carried = []
        for value in self.access_map.written(region):
            if value == 0 or value & UNDEFINED:
                undefined = undefined or not self._coming(task, region, source)
            if value and not (value & UNDEFINED and undefined):
                self._after_write(task, value, "reads", task, source)
                if task.steps and not value & UNDEFINED and self._carried(task, value):
                    carried.append(value)
        self.access_map.read(region, task.entity, self.history.event(task, source))
        return self.access_map.undefined(region, carried) if undefined or carried else None

    def write_by_task(self, task: KernelTask, region: BufferRegion, undefined: Any = None) -> None:
        """A store; of what has no value, where ``undefined``."""
        source = task.source()
        cell = self.access_map.only(region) if undefined is None else None
        if cell is not None:
            self._after_write(task, cell.write, "writes", task, source)
            if cell.copies or cell.reads:
                self._after_reads(task, region, task.entity, source)
            cell.write = (task.entity + 1) << _EVENT_BITS | self.history.event(task, source)
            return
        for value in self.access_map.written(region):
            self._after_write(task, value, "writes", task, source)
        self._after_reads(task, region, task.entity, source)
        self.access_map.write(region, (task.entity + 1) << _EVENT_BITS | self.history.event(task, source), undefined)

    def clear(self, task: KernelTask, region: BufferRegion) -> None:
        """Memory gets another use: what it holds has no value there."""
        self.write_by_task(task, region)
        self.access_map.write(region, (task.entity + 1) << _EVENT_BITS | int(task.clock[task.entity]), True)

    def origin(self, task: KernelTask, region: BufferRegion, undefined: Any) -> PoisonOrigin | CarriedValue:
        """What is said of a read of memory that nothing was written to; of what a store has put there, of that read."""
        if self.poison is not None:
            return self.poison[0]
        for value in self.access_map.written(region) if task.steps else ():
            if not value & UNDEFINED and self._carried(task, value):
                return self._carried_value(task, value)
        total = select_elements(self.buffer.data, region.path).size
        count = int(undefined.sum()) if isinstance(undefined, np.ndarray) else total
        return PoisonOrigin(task.name, count, total, self.buffer.label, task.source())

    def _carried(self, task: KernelTask, value: int) -> bool:
        """Whether another step along a parallel axis of the grid has written what a task reads."""
        if value & _COPY or (value >> _EVENT_BITS) - 1 != task.entity:
            return False
        before = bisect_right(task.steps, value & _EVENT_MASK, key=itemgetter(0)) - 1
        return before >= 0 and task.steps[before][1] != task.steps[-1][1]

    def _carried_value(self, task: KernelTask, value: int) -> CarriedValue:
        """What is said of such a read."""
        before = bisect_right(task.steps, value & _EVENT_MASK, key=itemgetter(0)) - 1
        axis, there, now = next(
            (axis, a, b)
            for axis, a, b in zip(task.machine.parallel, task.steps[before][1], task.steps[-1][1], strict=True)
            if a != b
        )
        line = self.history.events[task.entity][value & _EVENT_MASK]
        return CarriedValue(self.buffer.label, axis, there, now, line, task.source())

    def require_defined(self, name: str, home: Source | None, alone: bool) -> None:
        """Refuse a result of which some elements were never written, or hold what depends on memory nobody wrote.

        One that the kernel itself reads is room to work in, if it has another result: of it a part may stay as it was.
        """
        whole = WholeBuffer(self.buffer.data.shape)
        if not any(value == 0 or value & UNDEFINED for value in self.access_map.written(whole)):
            return
        undefined = self.access_map.undefined(whole)
        size = self.buffer.data.size
        count = int(undefined.sum()) if isinstance(undefined, np.ndarray) else size
        if self.poison is not None:
            origin, line = self.poison
            raise origin.error(
                f"\nand {count} of the {size} elements of {self.buffer.label}, a result, depend on them"
                + (f":\n{line.show()}" if line else "")
            )
        if self.was_read and count < size and not alone:
            return
        raise UninitializedError(
            f"{'All' if count == size else f'{count} of the {size}'} elements of {self.buffer.label}, "
            f"a result of {name}, are never written.",
            where=home.show() if home else "",
            why="what they hold when the kernel ends is arbitrary",
            fix="store to all of it, in some step of the grid; or make the result smaller: out_shape;\n"
            "or let an operand say what the rest holds: input_output_aliases={0: 0}",
        )

    def _coming(self, task: KernelTask, region: BufferRegion, source: Source | None) -> bool:
        """Whether a copy under way will write what a task reads: that is a race, lost this time."""
        for copy in task.machine.pending.values():
            if copy.lands_in(self.buffer) and self.access_map.overlap(region, copy.dst):
                self._race(copy, "writes", copy.source, task, "reads", source, copy)
                return True
        return False

    # Accesses of copies

    def read_by_copy(self, copy: Transfer, region: BufferRegion) -> Any:
        """The source of a copy; which of its elements have no value, where that is so."""
        self.was_read = True
        cell = self.access_map.only(region)
        if cell is not None and cell.write and not cell.write & UNDEFINED:
            self._after_write(copy, cell.write, "reads", copy, copy.source)
            for number in [n for n, other in cell.copies.items() if self.history.knows_read(copy, other)]:
                del cell.copies[number]
            cell.copies[copy.number] = copy
            return None
        undefined = False
        for value in self.access_map.written(region):
            undefined = undefined or value == 0 or value & UNDEFINED != 0
            self._after_write(copy, value, "reads", copy, copy.source)
        # Whoever comes after this read comes after those that it comes after.
        self.access_map.end_reads(
            region, [other for other in self.access_map.reading(region) if self.history.knows_read(copy, other)]
        )
        self.access_map.start_read(region, copy)
        if not undefined:
            return None
        found = self.access_map.undefined(region)
        size = copy.src.data.size
        missing = int(found.sum()) if isinstance(found, np.ndarray) else size
        if copy.device != copy.starter.device:
            raise UninitializedError(
                f"{copy.starter.name} sends memory that nothing was written to.",
                where=copy.source.show() if copy.source else "",
                why=f"{missing} of the {size} elements of {self.buffer.label} it sends have no value yet"
                + (f"\n{self.poison[0].error('').where}" if self.poison else ""),
                fix="store to it first, or wait for the copy that fills it",
            )
        first = PoisonOrigin(copy.starter.name, missing, size, self.buffer.label, copy.source)
        copy.poison = self.poison or (None if copy.pipelined else (first, None))
        return found

    def write_by_copy(self, copy: Transfer, region: BufferRegion, undefined: Any) -> None:
        """The destination of a copy."""
        cell = self.access_map.only(region)
        if cell is not None and undefined is None:
            self._after_write(copy, cell.write, "writes", copy, copy.source)
            if cell.reads or cell.copies:
                self._after_reads(copy, region, -1, copy.source)
            cell.write = _COPY | copy.number
            return
        for value in self.access_map.written(region):
            self._after_write(copy, value, "writes", copy, copy.source)
        self._after_reads(copy, region, -1, copy.source)
        self.access_map.write(region, _COPY | copy.number, undefined)
        if undefined is not None and undefined is not False:
            self.poison = self.poison or copy.poison

    def fill(self, region: BufferRegion) -> None:
        """Padding: elements that have no value of the operand's."""
        self.access_map.write(region, _INITIAL, True)

    # Order

    def _after_write(self, who: Any, value: int, verb: str, actor: Any, source: Source | None) -> None:
        """Require that the last write, as marked by ``value``, happened before what ``who`` does."""
        value &= ~UNDEFINED
        if value & _COPY:
            copy = self.history.copies[value & ~_COPY]
            over = copy.write_over
            known = over is not None and who.clock[over[0]] >= over[1]
            if copy is not who and not known and not (verb == "writes" and self.history.follows(who, copy)):
                self._race(copy, "writes", copy.source, actor, verb, source, copy)
        elif value:
            entity, number = (value >> _EVENT_BITS) - 1, value & _EVENT_MASK
            if who.clock[entity] < number:
                at = self.history.events[entity][number]
                self._race(self.history.tasks[entity], "writes", at, actor, verb, source, None)

    def _after_reads(self, who: Any, region: BufferRegion, own: int, source: Source | None) -> None:
        """Require that all reads happened before what ``who`` writes; ``own`` reads come before in any case."""
        for entity, last in self.access_map.last_reads(region):
            if entity != own and last > who.clock[entity]:
                at = self.history.events[entity][last]
                self._race(self.history.tasks[entity], "reads", at, who, "writes", source, None)
        over = []
        for copy in self.access_map.reading(region):
            if copy is who or self.history.knows_read(who, copy):
                over.append(copy)
            else:
                self._race(copy, "reads", copy.source, who, "writes", source, copy)
        self.access_map.end_reads(region, over)

    def _race(
        self, first: Any, did: str, at: Source | None, second: Any, does: str, source: Source | None, copy: Any
    ) -> None:
        """Keep a race, once for each pair of lines; ``first`` and ``second`` are tasks or copies."""
        key = frozenset((at, source))
        races = self.history.races
        if key in races:
            return
        device = self.history.tasks[0].machine.device_name(self.buffer.device, self.buffer.core)
        why = "no signal, wait or barrier orders the two" if copy is None else copy.never_proved_over(did)
        accesses = Access(first.name, did, at), Access(second.name, does, source)
        races[key] = Race(self.buffer.label, device, *accesses, why, copy)

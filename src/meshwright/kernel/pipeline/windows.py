"""Windows: the buffers through which a pipeline sees one operand, a block at a time.

Blocks are numbered as they come: block ``n`` of a window lives in slot ``n mod count``. Four counters say how far it
is: ``started`` and ``arrived`` for blocks fetched, ``opened`` and the list ``leaving`` for blocks written back.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.source import Source, here
from meshwright.kernel.language.refs import Ref, as_view
from meshwright.kernel.language.semaphores import Semaphore, SemaphoreRef
from meshwright.kernel.pipeline.blocks import OperandBlocks
from meshwright.kernel.run.faults import KernelError, UnfinishedCopyError
from meshwright.kernel.run.memory import fill_poison
from meshwright.kernel.run.tasks import KernelTask
from meshwright.kernel.run.transfers import Transfer


def _part(ref: Ref, index: tuple[Any, ...]) -> Ref:
    index = as_view(ref.data, index)
    return Ref(ref.buffer, ref.data[index], (*ref.path, index))


class Origin(NamedTuple):
    """Where a block in a window came from: its region, who had written it, and the line of the fetch."""

    block: Ref
    writers: Any
    line: Source | None


class Window:
    """The buffers of one operand. ``slots`` is memory of shape (count, *block), ``semaphores`` one for each slot."""

    __slots__ = (
        "arrived", "blocks", "comes", "count", "last", "leaving", "lookahead", "nbytes", "opened", "origins", "outside",
        "ref", "semaphores", "slots", "started", "target", "there", "views",
    )  # fmt: skip

    def __init__(self, slots: Ref, semaphores: SemaphoreRef, comes: bool = False) -> None:
        self.count = slots.shape[0]
        self.slots = [_part(slots, (n,)) for n in range(self.count)]  # the buffer of each slot, in the operand's rank
        slots.buffer.landing = []
        self.views = self.slots  # and as the kernel sees it
        self.semaphores: list[Semaphore] = list(semaphores)
        self.nbytes = slots.data.nbytes // self.count
        self.lookahead = False
        self.comes = comes  # of an output: whether its blocks are fetched, too
        self.reset()

    def reset(self) -> None:
        """Start anew, with nothing under way."""
        self.started = self.arrived = self.opened = self.target = 0
        self.there: set[int] = set()  # blocks that are in their slots, and not yet asked for
        self.leaving: list[tuple[int, tuple[Any, ...]]] = []  # block numbers and indices whose copy out is under way
        self.last: tuple[Any, ...] | None = None  # the index of the last block of the previous run
        # Of what is in each slot, an `Origin`: the region it came from, who had written it, and the line of the fetch.
        self.origins: list[tuple[Ref, Any, Source | None] | None] = [None] * self.count

    def bind(self, ref: Ref, blocks: OperandBlocks) -> None:
        """Say which memory the window is on."""
        self.ref = ref
        self.blocks = blocks
        self.outside: dict[tuple[Any, ...], Ref] = {}  # the blocks in the operand
        kept: tuple[Any, ...] = blocks.kept
        if 0 in kept:
            if len(kept) == kept.count(0):
                kept = (*kept, Ellipsis)
            self.views = [_part(slot, kept) for slot in self.slots]

    def _parts(self, number: int, index: tuple[Any, ...], incoming: bool) -> tuple[Ref, Ref]:
        """The block in the operand and in its slot, both cut to what lies inside the operand."""
        inside = (self.blocks.cut.get(index) or self.blocks.parts(index))[1]
        slot = self.slots[number % self.count]
        if inside is not None and incoming:
            slot.buffer.fill_unwritten()
            fill_poison(slot.data)
            if slot.buffer.accesses is not None:
                slot.buffer.accesses.fill(slot)
        return self.block(index), slot if inside is None else _part(slot, inside)

    def block(self, index: tuple[Any, ...]) -> Ref:
        """A block in the operand, cut to what lies inside it."""
        found = self.outside.get(index)
        if found is None:
            found = self.outside[index] = _part(self.ref, self.blocks.parts(index)[0])
        return found

    @property
    def origin(self) -> Origin | None:
        """Where the block that was fetched last came from."""
        found = self.origins[(self.arrived - 1) % self.count] if self.arrived else None
        return None if found is None else Origin(*found)

    @staticmethod
    def written(block: Ref) -> Any:
        """Who last wrote a block, where races are looked for."""
        accesses = block.buffer.accesses
        return None if accesses is None else frozenset(accesses.access_map.written(block))

    def carry(self, index: tuple[Any, ...], line: Source | None) -> None:
        """Say that the last slot now holds what is being written to a block."""
        self.origins[(self.arrived - 1) % self.count] = Origin(self.block(index), None, line)

    def _nbytes(self, index: tuple[Any, ...]) -> int:
        """The bytes of a block, without what lies outside the operand."""
        if self.blocks.gathers:
            rows = (prod(part.stop - part.start for part in outer) for outer, _ in self.blocks.rows(index))
            return int(self.ref.data.itemsize * sum(rows))
        outside, inside = self.blocks.parts(index)
        if inside is None:
            return self.nbytes
        return int(self.ref.data.itemsize * prod(part.stop - part.start for part in outside))

    def _start(self, task: KernelTask, source: Ref, target: Ref, number: int, line: Source | None) -> None:
        copy = Transfer(task, source, target, task.device, task.core, False, line)
        copy.pipelined = True
        task.machine.start(copy, None, self.semaphores[number % self.count])

    def _start_rows(
        self, task: KernelTask, number: int, index: tuple[Any, ...], line: Source | None, incoming: bool
    ) -> None:
        """Start the copies of a block whose elements are named: one for each box of it."""
        slot = self.slots[number % self.count]
        self.origins[number % self.count] = None
        if incoming:
            slot.buffer.fill_unwritten()
            fill_poison(slot.data)
            if slot.buffer.accesses is not None:
                slot.buffer.accesses.fill(slot)
        for outer, inner in self.blocks.rows(index):
            outside, inside = _part(self.ref, outer), _part(slot, inner)
            self._start(task, *((outside, inside) if incoming else (inside, outside)), number, line)

    def _wait(self, task: KernelTask, number: int, index: tuple[Any, ...], why: str) -> None:
        task.machine.wait(task, self.semaphores[number % self.count], self._nbytes(index), why)

    # Blocks that come

    def fetch(self, task: KernelTask, index: tuple[Any, ...], line: Source | None, own: bool = False) -> None:
        """Start to copy a block into the next slot; one for the run's ``own`` steps is there at once if it can be."""
        number = self.started
        self.started += 1
        if self.blocks.gathers:
            self._start_rows(task, number, index, line, True)
            return
        outside, inside = self._parts(number, index, True)
        writers = None if outside.buffer.accesses is None else self.written(outside)
        self.origins[number % self.count] = (outside, writers, line)
        if own and task.machine.copy_now(outside, inside):
            self.there.add(number)
        else:
            self._start(task, outside, inside, number, line)

    def take(self, task: KernelTask) -> None:
        """Go on from a block that is in the next slot."""
        self.there.add(self.started)
        self.origins[self.started % self.count] = None
        self.started += 1

    def await_fetch(self, task: KernelTask, index: tuple[Any, ...]) -> None:
        """Wait for the next block, which becomes the current one."""
        self.arrived += 1
        if self.arrived - 1 in self.there:
            self.there.remove(self.arrived - 1)
        else:
            self._wait(task, self.arrived - 1, index, "waits for a block of the pipeline")

    @property
    def current(self) -> Ref:
        """The block that was fetched last, as the kernel sees it."""
        if not self.arrived:
            raise KernelError(
                f"A pipeline uses a block of {self.blocks.label} that was never fetched.",
                where=here(),
                why="its prologue skips the first copy, and nothing was fetched before",
                fix="skip the copy only where an earlier run has prefetched it, and pass init_allocations in the first",
            )
        return self.views[(self.arrived - 1) % self.count]

    @property
    def last_arrived(self) -> Ref:
        """The block that was fetched last, in the operand's rank."""
        return self.slots[(self.arrived - 1) % self.count]

    # Blocks that go

    def open(self, task: KernelTask) -> None:
        """Take the next slot for a new block, once what left from it is gone."""
        number = self.opened
        self.opened += 1
        self.await_before(task, number - self.count + 1)
        slot = self.slots[number % self.count]
        if slot.buffer.accesses is not None and number >= self.count and not self.comes:
            slot.buffer.accesses.clear(task, slot)

    def leave(self, task: KernelTask, index: tuple[Any, ...], line: Source | None) -> None:
        """Start to copy the current block out."""
        number = self.opened - 1
        self.leaving.append((number, index))
        if self.blocks.gathers:
            self._require_landed(task, self.slots[number % self.count])
            self._start_rows(task, number, index, line, False)
            return
        outside, inside = self._parts(number, index, False)
        self._require_landed(task, inside)
        self._start(task, inside, outside, number, line)

    def _require_landed(self, task: KernelTask, slot: Ref) -> None:
        """Refuse to write back a block that a copy of the body has still to write; looked for, it is a race."""
        landing = slot.buffer.landing if task.machine.history is None else None
        for copy in landing or ():
            if copy.number in task.machine.pending and np.may_share_memory(copy.dst.data, slot.data):
                raise UnfinishedCopyError(
                    f"{copy.name[0].upper()}{copy.name[1:]} to {slot.buffer.label} is not waited for in its grid step.",
                    where=copy.source.show() if copy.source else "",
                    why="the block is written to main memory when its steps are over, with or without what is copied",
                    fix="copy.wait() in the body; for a copy that a later kernel waits for, the whole output in its "
                    "own memory:\nout_specs=pl.BlockSpec(memory_space=pltpu.VMEM)",
                )
        if landing:
            landing.clear()

    def await_leave(self, task: KernelTask) -> None:
        """Wait for the oldest copy out."""
        self._wait(task, *self.leaving.pop(0), "waits for a block of the pipeline to be written")

    def await_before(self, task: KernelTask, number: int) -> None:
        """Wait for the copies out of the blocks before ``number``."""
        while self.leaving and self.leaving[0][0] < number:
            self.await_leave(task)

    def await_left(self, task: KernelTask, index: tuple[Any, ...] | None = None) -> None:
        """Wait for copies out: all of them, or up to the last of one block."""
        while self.leaving and (index is None or any(at == index for _, at in self.leaving)):
            self.await_leave(task)

    @property
    def last_opened(self) -> Ref:
        """The block being written, in the operand's rank."""
        return self.slots[(self.opened - 1) % self.count]

    @property
    def open_view(self) -> Ref:
        """The block being written, as the kernel sees it."""
        return self.views[(self.opened - 1) % self.count]


def add_into(target: Ref, other: Ref, task: KernelTask) -> None:
    """``target += other`` in memory, as the pipeline does it when it accumulates."""
    undefined: Any = None
    for ref in (other, target):
        if ref.buffer.unfilled is not None:
            ref.buffer.before_read(ref.box)
        if ref.buffer.accesses is not None:
            found = ref.buffer.accesses.read_by_task(task, ref)
            undefined = found if undefined is None else undefined if found is None else undefined | found
    if target.buffer.accesses is not None:
        target.buffer.accesses.write_by_task(task, target, undefined)
    if task.machine.clock.dry:
        return
    with np.errstate(all="ignore"):
        target.data[...] += other.data


def copy_into(target: Ref, other: Ref, task: KernelTask) -> None:
    """``target = other`` between buffers of the pipeline."""
    if other.buffer.unfilled is not None:
        other.buffer.before_read(other.box)
    if target.buffer.unfilled is not None:
        target.buffer.before_write(target.box)
    if other.buffer.accesses is not None and target.buffer.accesses is not None:
        target.buffer.accesses.write_by_task(task, target, other.buffer.accesses.read_by_task(task, other))
    if not task.machine.clock.dry:
        target.data[...] = other.data

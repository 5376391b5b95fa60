"""Operands of a pipeline: which block of it each step works on, and where the body finds it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from meshwright.core.source import Source, here
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.spaces import MemorySpace
from meshwright.kernel.pipeline.blocks import BlockSpec, OperandBlocks, blocks_of
from meshwright.kernel.pipeline.windows import Window
from meshwright.kernel.run.faults import KernelError, StaleError
from meshwright.kernel.run.tasks import KernelTask

if TYPE_CHECKING:
    from meshwright.kernel.pipeline.pipelines import Pipeline


class BlockIndices:
    """What an index map says of the steps so far; operands with the same one ask it once."""

    __slots__ = ("blocks", "changed", "indices", "parents", "pipeline", "steps", "task")

    def __init__(self, pipeline: Pipeline, task: KernelTask, blocks: OperandBlocks) -> None:
        self.pipeline = pipeline
        self.task = task
        self.blocks = blocks
        self.parents = list(task.grids)
        self.steps = pipeline.walk()
        self.indices: list[tuple[Any, ...]] = []  # the block of each step
        self.changed: list[bool] = []  # and whether it is another than the one before

    def reach(self, step: int) -> None:
        """Ask the index map up to a step."""
        while len(self.indices) <= step:
            # An index map is a part of the parent, as callbacks are; it is asked too often for a context.
            at = next(self.steps)
            grids, self.task.grids = self.task.grids, self.parents or [(at, self.pipeline.whole)]
            try:
                found = self.blocks.index((*at, *self.pipeline.scalars))
            finally:
                self.task.grids = grids
            self.changed.append(not self.indices or found != self.indices[-1])
            self.indices.append(found)


class PipelineOperand:
    """One operand in one run: its window, or a view of its own memory where there is none."""

    __slots__ = ("blocks", "changed", "indices", "pipeline", "prefetched", "ref", "shared", "task", "visited", "window")

    def __init__(
        self,
        pipeline: Pipeline,
        task: KernelTask,
        window: Window | None,
        ref: Ref,
        spec: BlockSpec,
        label: str,
        maps: dict[Any, BlockIndices],
    ) -> None:
        self.pipeline = pipeline
        self.task = task
        self.ref = ref
        self.blocks = blocks_of(spec, ref.shape, label)
        key = (id(self.blocks.index_map), len(self.blocks.dims))
        self.shared = maps.get(key) or maps.setdefault(key, BlockIndices(pipeline, task, self.blocks))
        self.indices, self.changed = self.shared.indices, self.shared.changed
        self.visited: set[tuple[Any, ...]] = set()
        self.window = window
        self.prefetched = 0 if window is None or spec.pipeline_mode is None else spec.pipeline_mode.prefetched_count
        wanted = spec.memory_space or MemorySpace.VMEM
        if window is None and wanted.addressable and ref.memory_space not in (wanted, MemorySpace.SEMAPHORE):
            raise KernelError(
                f"{label[0].upper()}{label[1:]} is in {ref.memory_space.name}, and no buffer is allocated for it.",
                where=here(),
                why=f"the allocations are for an operand in {wanted.name}, which needs none",
                fix=f"make_allocations(pltpu.{ref.memory_space.name}({ref.shape}, '{ref.dtype.name}'), …) for it",
            )
        if window is not None:
            self._require_slots(window)
            window.bind(ref, self.blocks)
            if task.machine.tiles and window.slots[0].memory_space is MemorySpace.VMEM:
                self.blocks.require_tiles(ref.dtype)
            window.lookahead = spec.pipeline_mode is not None and spec.pipeline_mode.use_lookahead

    def _require_slots(self, window: Window) -> None:
        """Refuse buffers that were made for other blocks."""
        slot, ref = window.slots[0], self.ref
        if slot.shape != self.blocks.sizes or slot.dtype != ref.dtype:
            raise KernelError(
                f"The buffers of {self.blocks.label} hold {slot.dtype.name}{list(slot.shape)}, "
                f"its blocks are {ref.dtype.name}{list(self.blocks.sizes)}.",
                where=here(),
                why=f"the operand is {ref.dtype.name}{list(ref.shape)} in {ref.memory_space.name}; "
                "the allocations were made for another one",
                fix=f"make_allocations(pltpu.{ref.memory_space.name}({ref.shape}, '{ref.dtype.name}'), …) for it",
            )

    def require_held(self, new: bool, line: Source | None) -> None:
        """Refuse a window that holds a block of other memory than the first step works on, or an old one of it."""
        window = self.window
        assert window is not None
        held = window.origin
        if held is None:
            return
        own = window.block(self.index(0))
        what = f"The window of {self.blocks.label} holds {held.block.text} at the start of a run on {own.text}."
        why = f"it was fetched at {held.line.show()}" if held.line else "it was fetched before"
        if not held.block.same(own):
            why += "" if new else f"\nand is not fetched again: the block index stays {self.index(0)}"
        elif not new and held.writers is not None and held.writers != window.written(own):
            what = f"The window of {self.blocks.label} holds what {own.text} was before it was written again."
            why += f"\nand is not fetched again: the block index stays {self.index(0)}"
        else:
            return
        raise StaleError(
            what,
            where=line.show() if line else "",
            why=why,
            fix="prefetch what the next run works on, with True for the operand in force_copy,\n"
            "and True in the second part of what the prologue returns: it waits for that",
        )

    def index(self, step: int) -> tuple[Any, ...]:
        """The block that a step works on."""
        if len(self.indices) <= step:
            self.shared.reach(step)
        return self.indices[step]

    def changes(self, step: int) -> bool:
        """Whether a step works on another block than the one before."""
        try:
            return self.changed[step]
        except IndexError:
            self.shared.reach(step)
            return self.changed[step]

    def require_new(self, step: int) -> None:
        """Refuse to come back to a block of an output that was left: what was written is no longer in its window."""
        index = self.index(step)
        if index in self.visited:
            at = next(itertools.islice(self.pipeline.walk(), step, None))
            raise KernelError(
                f"Block {index} of {self.blocks.label} is written again after another one.",
                where=self.blocks.where(),
                why=f"grid step {at} comes back to it, and the copy that wrote it the first "
                "time may still be under way",
                fix="let all steps of a block follow each other: put the axes that the index map does not use last",
            )
        self.visited.add(index)

    def direct(self, step: int) -> Ref:
        """The block in the operand's own memory."""
        if self.blocks.whole or self.ref.memory_space is MemorySpace.SEMAPHORE:
            return self.ref
        if self.blocks.gathers:
            raise KernelError(
                f"A block of {self.blocks.label} is of elements that are named, and it has no buffer.",
                where=self.blocks.where(),
                why="they are copied to one, as they do not lie side by side in the operand",
                fix="leave memory_space out of the BlockSpec, so that the blocks come to VMEM",
            )
        outside, inside = self.blocks.parts(self.index(step))
        if inside is not None:
            raise KernelError(
                f"Block {self.index(step)} of {self.blocks.label} reaches beyond it, and it has no buffer.",
                where=self.blocks.where(),
                why=f"the operand has shape {self.ref.shape}, its blocks {self.blocks.sizes}; "
                "the body works on the operand's own memory, which is smaller there",
                fix="blocks that divide the operand",
            )
        cut = tuple(part if kept else part.start for part, kept in zip(outside, self.blocks.kept, strict=True))
        return self.ref.at[cut]

"""Scratch memory of pipelines: what to make for an operand, and the window over what was made."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.core.source import here
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import SemaphoreRef
from meshwright.kernel.language.spaces import MemorySpace, MemoryType, Semaphores, SemaphoreType
from meshwright.kernel.pipeline.blocks import BlockSpec, Buffered, blocks_of
from meshwright.kernel.pipeline.windows import Window
from meshwright.kernel.run.faults import KernelError


class Allocation(NamedTuple):
    """Scratch memory of one operand of a pipeline: its slots and a semaphore for each."""

    slots: Any
    semaphores: Any


class BufferedRef(Allocation):
    """The window of one operand, to be made by ``run_scoped`` or as scratch memory, and passed among ``allocations``.

    >>> spec = BlockSpec((8, 128), lambda i: (i, 0))
    >>> BufferedRef.input(spec, "float32", buffer_count=3).slots.shape
    (3, 8, 128)
    """

    __slots__ = ()

    @classmethod
    def input(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2) -> BufferedRef:
        """Blocks that come."""
        return _buffered(cls, spec, dtype_or_type, buffer_count)

    @classmethod
    def output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2) -> BufferedRef:
        """Blocks that go."""
        return _buffered(cls, spec, dtype_or_type, buffer_count)

    @classmethod
    def input_output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2) -> BufferedRef:
        """Blocks of an output that come before the body runs, and go after it: it may add to them."""
        return _buffered(_InputOutput, spec, dtype_or_type, buffer_count)


class _InputOutput(BufferedRef):
    __slots__ = ()


def _buffered(kind: type[BufferedRef], spec: BlockSpec, dtype_or_type: Any, count: int) -> BufferedRef:
    made = allocation(spec.replace(pipeline_mode=Buffered(count)), dtype_or_type)
    if made is None:
        raise KernelError(
            f"A BufferedRef is asked for {spec}.",
            where=here(),
            why="the body works on that memory itself",
            fix="None in its place among the allocations",
        )
    return kind(*made)


def allocation(spec: BlockSpec, operand: Any, accumulates: bool = False) -> Allocation | None:
    """Slots and semaphores for one operand; none where the kernel works on the operand's own memory.

    An output that ``accumulates`` always has slots: what the body stores is added to what is in the output. So has one
    with blocks that reach beyond it.
    """
    operand = _typed(operand)
    space = getattr(operand, "memory_space", None) or getattr(operand, "space", MemorySpace.ANY)
    wanted = spec.memory_space or MemorySpace.VMEM
    if not wanted.addressable or space is MemorySpace.SEMAPHORE:
        if accumulates:
            raise KernelError(
                f"should_accumulate_out names an output with {spec}.",
                where=here(),
                why="its body works on that memory itself, so there is no block to add",
                fix="pl.BlockSpec((8, 128), lambda i, j: (i, j)) for it, or False in should_accumulate_out",
            )
        return None
    shape = tuple(operand.shape)
    if spec.block_shape is not None and len(shape) != len(spec.block_shape):
        shape = tuple(1 if n is None else 1 << 62 for n in spec.block_shape)
    blocks = blocks_of(spec, shape, "an operand")
    if space is wanted and not accumulates and blocks.fit:
        return None
    sizes = blocks.sizes
    mode = spec.pipeline_mode or Buffered(2)
    count = 1 if spec.index_map is None and spec.pipeline_mode is None else mode.buffer_count
    return Allocation(MemoryType(wanted, (count, *sizes), operand.dtype), Semaphores(SemaphoreType.DMA, (count,)))


def _typed(operand: Any) -> Any:
    """An operand's type: something with a shape and a dtype, or a dtype alone, of an operand in main memory."""
    if hasattr(operand, "shape") and hasattr(operand, "dtype") and not isinstance(operand, type):
        return operand
    if getattr(operand, "memory_space", None) is MemorySpace.SEMAPHORE:
        return operand
    try:
        return MemorySpace.ANY((), operand)
    except TypeError:
        raise KernelError(
            f"Buffers are asked for with {operand!r}.",
            where=here(),
            why="they are for an operand of a dtype, in a memory space",
            fix="pltpu.ANY((), mnp.float32), or mnp.float32",
        ) from None


def window_of(allocation: Any) -> Window | None:
    """The window over what was made for an operand."""
    if allocation is None:
        return None
    slots, semaphores = getattr(allocation, "slots", None), getattr(allocation, "semaphores", None)
    if not (isinstance(slots, Ref) and isinstance(semaphores, SemaphoreRef)):
        shown = str(slots) if isinstance(slots, MemoryType) else repr(allocation)
        raise KernelError(
            f"A pipeline is given {shown} as the memory of an operand.",
            where=here(),
            why="its windows are scratch memory of the parent, made before the pipeline runs",
            fix="scratch_shapes=[make_allocations(pltpu.ANY((), mnp.float32), …)], and the ref of it as allocations=",
        )
    return Window(slots, semaphores, isinstance(allocation, _InputOutput))

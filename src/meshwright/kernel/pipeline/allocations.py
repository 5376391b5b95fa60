"""Scratch memory of pipelines: what to make for an operand, and the window over what was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import optree

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import SemaphoreRef
from meshwright.kernel.language.spaces import BufferType, MemorySpace, MemoryType, Semaphores, SemaphoreType, memory_of
from meshwright.kernel.pipeline.blocks import BlockSpec, Buffered, blocks_of
from meshwright.kernel.pipeline.windows import Window
from meshwright.kernel.run.faults import KernelError


@dataclass(frozen=True, eq=False)
class BufferedRef:
    """The window of one operand of a pipeline: its slots, and a semaphore for each.

    It is made by ``run_scoped`` or as scratch memory, and passed among ``allocations``.

    >>> spec = BlockSpec((8, 128), lambda i: (i, 0))
    >>> BufferedRef.input(spec, "float32", buffer_count=3).window_ref.shape
    (3, 8, 128)
    """

    spec: BlockSpec
    buffer_type: BufferType
    window_ref: Any  # memory to allocate, then a ref to it; None: to be said by with_window_ref
    sem_recvs: Any = None  # of blocks that come
    sem_sends: Any = None  # of blocks that go
    tiling: Any = None  # how memory is laid out, which changes no number
    is_trivial_windowing: bool = False  # whether there is one block, all of the operand
    has_allocated_buffer: bool = True
    prefetched_count: int = 0
    output_wait_read_only: bool = False

    @classmethod
    def create(
        cls,
        spec: BlockSpec,
        dtype_or_type: Any,
        buffer_type: BufferType,
        buffer_count: int = 2,
        *,
        tiling: Any = None,
        prefetched_count: int = 0,
        use_lookahead: bool = False,
        grid_rank: int | None = None,
        source_memory_space: Any = None,
        is_trivial_windowing: bool = False,
    ) -> BufferedRef:
        """The window for blocks that come, that go, or both."""
        mode = Buffered(buffer_count, use_lookahead=use_lookahead, prefetched_count=prefetched_count)
        made = allocation(spec.replace(pipeline_mode=mode), dtype_or_type, buffer_type)
        if made is None:
            raise KernelError(
                f"A BufferedRef is asked for {spec}.",
                where=here(),
                why="the body works on that memory itself",
                fix="None in its place among the allocations",
            )
        return replace(made, tiling=tiling)

    @classmethod
    def input(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Blocks that come."""
        return cls.create(spec, dtype_or_type, BufferType.INPUT, buffer_count, **options)

    @classmethod
    def output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Blocks that go."""
        return cls.create(spec, dtype_or_type, BufferType.OUTPUT, buffer_count, **options)

    @classmethod
    def input_output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Blocks of an output that come before the body runs, and go after it: it may add to them."""
        return cls.create(spec, dtype_or_type, BufferType.INPUT_OUTPUT, buffer_count, **options)

    @property
    def semaphores(self) -> Any:
        """A semaphore for each slot."""
        return self.sem_recvs if self.sem_recvs is not None else self.sem_sends

    @property
    def buffer_count(self) -> int:
        """How many slots it has."""
        return int(self.semaphores.shape[0])

    def with_window_ref(self, window_ref: Any) -> BufferedRef:
        """The same over other slots, which hold the blocks that are there before the pipeline starts."""
        if isinstance(window_ref, Ref) and len(window_ref.shape) == 1:
            window_ref = window_ref.reshape(self.buffer_count, -1)  # slots of one dim lie one after the other
        return replace(self, window_ref=window_ref)

    def with_spec(self, spec: BlockSpec) -> BufferedRef:
        """The same for blocks of another spec."""
        return replace(self, spec=spec)


def _parts(x: Any) -> Any:
    return (x.window_ref, x.sem_recvs, x.sem_sends), x


def _of_parts(x: Any, parts: Any) -> Any:
    window_ref, sem_recvs, sem_sends = parts
    return replace(x, window_ref=window_ref, sem_recvs=sem_recvs, sem_sends=sem_sends)


_register: Any = optree.register_pytree_node
_register(BufferedRef, _parts, _of_parts, namespace=tree.NAMESPACE)


def allocation(spec: BlockSpec, operand: Any, kind: BufferType, accumulates: bool = False) -> BufferedRef | None:
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
    comes, goes = kind is not BufferType.OUTPUT, kind is not BufferType.INPUT
    semaphores = Semaphores(SemaphoreType.DMA, (count,))
    return BufferedRef(
        spec,
        kind,
        None if mode.prefetched_count else memory_of(wanted, (count, *sizes), operand.dtype),
        semaphores if comes else None,
        None if comes and goes else semaphores if goes else None,
        is_trivial_windowing=blocks.whole,
        prefetched_count=mode.prefetched_count,
    )


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


def window_of(allocation: Any, spec: BlockSpec) -> Window | None:
    """The window over what was made for an operand."""
    if allocation is None:
        return None
    slots, semaphores = getattr(allocation, "window_ref", None), getattr(allocation, "semaphores", None)
    count = getattr(allocation, "prefetched_count", 0)
    if slots is None and count:
        raise KernelError(
            f"The window of {spec} has no memory.",
            where=here(),
            why=f"prefetched_count={count}: as many blocks are in it before the pipeline starts",
            fix="allocations=(allocation.with_window_ref(ref), …), where the ref holds them, in slots of a block each",
        )
    if not (isinstance(slots, Ref) and isinstance(semaphores, SemaphoreRef)):
        shown = str(slots) if isinstance(slots, MemoryType) else repr(allocation)
        raise KernelError(
            f"A pipeline is given {shown} as the memory of an operand.",
            where=here(),
            why="its windows are scratch memory of the parent, made before the pipeline runs",
            fix="scratch_shapes=[make_allocations(pltpu.ANY((), mnp.float32), …)], and the ref of it as allocations=",
        )
    return Window(slots, semaphores, allocation.buffer_type is BufferType.INPUT_OUTPUT)

"""Memory spaces and kinds of semaphores, and the types that scratch memory is asked for with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from operator import index
from typing import Any

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.kernel.run.faults import KernelError


@dataclass(frozen=True)
class MemoryType:
    """Memory to allocate: ``VMEM((8, 128), mnp.float32)``."""

    space: MemorySpace
    shape: tuple[int, ...]
    dtype: DType

    @property
    def memory_space(self) -> MemorySpace:
        return self.space

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.space.name}({self.shape}, {self.dtype.name})"


def _sizes(shape: Any, fix: str) -> tuple[int, ...]:
    """The sizes of an allocation."""
    try:
        sizes = tuple(map(index, (shape,) if hasattr(shape, "__index__") else shape))
    except TypeError:
        sizes = (-1,)
    if any(n < 0 for n in sizes):
        raise KernelError(
            f"Memory of a kernel cannot have the shape {shape!r}.",
            where=here(),
            why="a shape is a tuple of whole numbers from 0",
            fix=fix,
        )
    return sizes


class MemorySpace(Enum):
    """Where memory is. ``ANY`` is main memory, which only copies reach; compute reads and writes VMEM and SMEM.

    >>> print(MemorySpace.VMEM((8, 128), "float32"))
    VMEM((8, 128), float32)
    """

    ANY = "any"
    HBM = "hbm"
    VMEM = "vmem"
    SMEM = "smem"
    CMEM = "cmem"
    SEMAPHORE = "semaphore"
    HOST = "host"
    VMEM_SHARED = "vmem_shared"

    def __call__(self, shape: Sequence[int], dtype: Any) -> MemoryType:
        return MemoryType(self, _sizes(shape, f"pltpu.{self.name}((8, 128), mnp.float32)"), dtypes.as_dtype(dtype))

    @property
    def addressable(self) -> bool:
        """Whether loads and stores reach it."""
        return self not in (MemorySpace.ANY, MemorySpace.HBM, MemorySpace.HOST)

    def from_type(self, ty: Any) -> MemoryType:
        """Memory for an array of a shape and a dtype."""
        return self(ty.shape, ty.dtype)


@dataclass(frozen=True)
class Semaphores:
    """An array of semaphores to allocate: ``SemaphoreType.DMA((2,))``."""

    kind: SemaphoreType
    shape: tuple[int, ...] = ()


class SemaphoreType(Enum):
    """Kinds of semaphores: counted by signals (regular, barrier), or by the bytes of copies (DMA).

    >>> SemaphoreType.DMA((2,))
    Semaphores(kind=<SemaphoreType.DMA: 'DMA'>, shape=(2,))
    """

    REGULAR = "regular"
    DMA = "DMA"
    BARRIER = "barrier"

    @property
    def count_dtype(self) -> DType:
        """The dtype of its counts where they go from one kernel to the next: it says which kind they are of."""
        return dtypes.INT32 if self is SemaphoreType.DMA else dtypes.UINT32

    @classmethod
    def of_counts(cls, dtype: DType) -> SemaphoreType:
        """The kind of semaphores whose counts have a dtype."""
        return cls.DMA if dtype == dtypes.INT32 else cls.REGULAR

    def __call__(self, shape: Sequence[int] = ()) -> Semaphores:
        return Semaphores(self, _sizes(shape, f"pltpu.SemaphoreType.{self.name}((2,))"))


class GridDimensionSemantics(Enum):
    """How the steps along a grid axis depend on each other; a string does as well."""

    PARALLEL = "parallel"
    CORE_PARALLEL = "core_parallel"
    SUBCORE_PARALLEL = "subcore_parallel"
    ARBITRARY = "arbitrary"


class SideEffectType(Enum):
    """What a kernel does beside its results: a fact for compilers; here every kernel runs where it is called."""

    PURE = "pure"
    DATAFLOW_SIDE_EFFECTING = "dataflow_side_effecting"
    SIDE_EFFECTING = "side_effecting"


class BufferType(Enum):
    """What an operand is to a pipeline."""

    INPUT = 1
    OUTPUT = 2
    INPUT_OUTPUT = 3
    MANUAL = 4


SEMANTICS = tuple(one.value for one in GridDimensionSemantics)


def semantics(one: Any) -> Any:
    """The name of what an axis is said to be."""
    return one.value if isinstance(one, GridDimensionSemantics) else one


class DeviceIdType(Enum):
    """How a device is named: by mesh coordinates (a tuple or a dict), or by its number."""

    MESH = "mesh"
    LOGICAL = "logical"

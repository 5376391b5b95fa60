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
from meshwright.core.types import TensorType
from meshwright.kernel.run.faults import KernelError
from meshwright.numpy.dtypes import extended


@dataclass(frozen=True)
class MemoryType:
    """Memory to allocate, for an array of a type in a space: ``VMEM((8, 128), mnp.float32)``."""

    inner_aval: Any
    memory_space: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inner_aval.shape)

    @property
    def dtype(self) -> DType:
        return dtypes.as_dtype(self.inner_aval.dtype)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.memory_space.name}({self.shape}, {self.dtype.name})"


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
        return memory_of(self, _sizes(shape, f"pltpu.{self.name}((8, 128), mnp.float32)"), dtypes.as_dtype(dtype))

    __hash__ = object.__hash__  # there is one object of each

    def __init__(self, value: str) -> None:
        self.addressable = value not in ("any", "hbm", "host")  # whether loads and stores reach it
        self.of_core = self.addressable  # whether each core has memory of its own there

    def from_type(self, ty: Any) -> MemoryType:
        """Memory for an array of a shape and a dtype."""
        return self(ty.shape, ty.dtype)


def memory_of(space: Any, shape: tuple[int, ...], dtype: DType) -> MemoryType:
    """Memory in a space, of a shape and a dtype."""
    return MemoryType(TensorType(shape, dtype), space)


@dataclass(frozen=True)
class ACC:
    """Where a matrix unit of a core sums products: ``ACC(0)((256, 256), mnp.float32)``.

    ``pltpu.matmul_acc_lhs`` adds to it, ``pltpu.matmul_pop`` takes the sum and leaves zero; nothing else reaches it.
    """

    mxu_id: int

    addressable = False
    of_core = True
    name = "ACC"

    def __call__(self, shape: Sequence[int], dtype: Any) -> MemoryType:
        return memory_of(self, _sizes(shape, "pltpu.ACC(0)((256, 256), mnp.float32)"), dtypes.as_dtype(dtype))


class semaphore_dtype(extended):
    """What semaphores hold; it has no values."""


class semaphore(semaphore_dtype):
    """What a regular semaphore holds: ``mnp.issubdtype(sem.dtype, pl.semaphore)``."""


class barrier_semaphore(semaphore_dtype):
    """What a barrier semaphore holds."""


class dma_semaphore(semaphore_dtype):
    """What a semaphore of copies holds: ``mnp.issubdtype(sem.dtype, pltpu.dma_semaphore)``."""


@dataclass(frozen=True)
class Semaphores:
    """An array of semaphores to allocate: ``SemaphoreType.DMA((2,))``."""

    kind: SemaphoreType
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> type[semaphore_dtype]:
        return self.kind.dtype


class SemaphoreType(Enum):
    """Kinds of semaphores: counted by signals (regular, barrier), or by the bytes of copies (DMA).

    >>> SemaphoreType.DMA((2,))
    Semaphores(kind=<SemaphoreType.DMA: 'DMA'>, shape=(2,))
    """

    REGULAR = "regular"
    DMA = "DMA"
    BARRIER = "barrier"

    @property
    def dtype(self) -> type[semaphore_dtype]:
        """What a semaphore of this kind holds."""
        return {"regular": semaphore, "DMA": dma_semaphore, "barrier": barrier_semaphore}[self.value]

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

"""``meshwright.pallas.tpu`` (``pltpu``): memories, copies, semaphores and pipelines of a chip."""

from __future__ import annotations

from meshwright.kernel.call import CompilerParams
from meshwright.kernel.language.body import run_scoped, trace
from meshwright.kernel.language.copies import (
    async_copy,
    async_remote_copy,
    device_id,
    get_barrier_semaphore,
    make_async_copy,
    make_async_remote_copy,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
    sync_copy,
)
from meshwright.kernel.language.cores import TensorCoreMesh, create_tensorcore_mesh
from meshwright.kernel.language.spaces import DeviceIdType, GridDimensionSemantics, MemorySpace, SemaphoreType
from meshwright.kernel.pipeline.allocations import BufferedRef
from meshwright.kernel.pipeline.arguments import (
    PipelineAllocations,
    PipelineBuffers,
    PipelineCallbackArgs,
    PipelinePrefetchArgs,
    PipelineRefs,
)
from meshwright.kernel.pipeline.blocks import PrefetchScalarGridSpec
from meshwright.kernel.pipeline.emitting import emit_pipeline, emit_pipeline_with_allocations
from meshwright.kernel.run.faults import (
    AlignmentError,
    BarrierError,
    BoundsError,
    CapacityError,
    CopyError,
    DeadlockError,
    DeviceIdError,
    EndlessError,
    KernelError,
    RaceError,
    ScopeError,
    SemaphoreError,
    StaleError,
    UnfinishedCopyError,
    UninitializedError,
)

TPUMemorySpace = MemorySpace
TPUCompilerParams = CompilerParams
ANY = MemorySpace.ANY
HBM = MemorySpace.HBM
VMEM = MemorySpace.VMEM
SMEM = MemorySpace.SMEM
CMEM = MemorySpace.CMEM
SEMAPHORE = MemorySpace.SEMAPHORE
ARBITRARY = GridDimensionSemantics.ARBITRARY
PARALLEL = GridDimensionSemantics.PARALLEL

__all__ = [
    "ANY",
    "ARBITRARY",
    "CMEM",
    "HBM",
    "PARALLEL",
    "SEMAPHORE",
    "SMEM",
    "VMEM",
    "AlignmentError",
    "BarrierError",
    "BoundsError",
    "BufferedRef",
    "CapacityError",
    "CompilerParams",
    "CopyError",
    "DeadlockError",
    "DeviceIdError",
    "DeviceIdType",
    "EndlessError",
    "GridDimensionSemantics",
    "KernelError",
    "MemorySpace",
    "PipelineAllocations",
    "PipelineBuffers",
    "PipelineCallbackArgs",
    "PipelinePrefetchArgs",
    "PipelineRefs",
    "PrefetchScalarGridSpec",
    "RaceError",
    "ScopeError",
    "SemaphoreError",
    "SemaphoreType",
    "StaleError",
    "TPUCompilerParams",
    "TPUMemorySpace",
    "TensorCoreMesh",
    "UnfinishedCopyError",
    "UninitializedError",
    "async_copy",
    "async_remote_copy",
    "create_tensorcore_mesh",
    "device_id",
    "emit_pipeline",
    "emit_pipeline_with_allocations",
    "get_barrier_semaphore",
    "make_async_copy",
    "make_async_remote_copy",
    "run_scoped",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "sync_copy",
    "trace",
]

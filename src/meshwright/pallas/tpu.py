"""``meshwright.pallas.tpu`` (``pltpu``): memories, copies, semaphores and pipelines of a chip."""

from __future__ import annotations

from meshwright.kernel.call import CompilerParams
from meshwright.kernel.interpret import (
    InterpretParams,
    force_tpu_interpret_mode,
    reset_tpu_interpret_mode_state,
    set_tpu_interpret_mode,
)
from meshwright.kernel.language.body import annotate, has_memory_space, run_scoped, touch, trace, trace_value
from meshwright.kernel.language.body import load_whole as load
from meshwright.kernel.language.body import store_whole as store
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
from meshwright.kernel.language.cores import (
    TensorCoreMesh,
    core_barrier,
    create_tensorcore_mesh,
    run_on_first_core,
)
from meshwright.kernel.language.mxu import (
    matmul_acc_lhs,
    matmul_lhs_fifo,
    matmul_pop,
    matmul_pop_fifo,
    matmul_push_rhs,
)
from meshwright.kernel.language.prng import (
    prng_random_bits,
    prng_seed,
    sample_block,
    stateful_bernoulli,
    stateful_bits,
    stateful_normal,
    stateful_uniform,
    to_pallas_key,
)
from meshwright.kernel.language.spaces import (
    ACC,
    BufferType,
    DeviceIdType,
    GridDimensionSemantics,
    MemorySpace,
    SemaphoreType,
    SideEffectType,
    dma_semaphore,
)
from meshwright.kernel.language.tpu_info import (
    ChipVersion,
    CoreType,
    Tiling,
    TpuInfo,
    get_tpu_info,
    get_tpu_info_for_chip,
    is_tpu_device,
)
from meshwright.kernel.language.values import (
    bitcast,
    conv,
    einshape,
    join_bits,
    pack_elementwise,
    pack_fp6,
    reciprocal,
    roll,
    split_bits,
    stochastic_round,
    unpack_elementwise,
    unpack_fp6,
    with_memory_space_constraint,
)
from meshwright.kernel.pipeline.allocations import BufferedRef
from meshwright.kernel.pipeline.arguments import (
    PipelineAllocations,
    PipelineBuffers,
    PipelineCallbackArgs,
    PipelinePrefetchArgs,
    PipelineRefs,
    PipelineStep,
)
from meshwright.kernel.pipeline.blocks import PrefetchScalarGridSpec
from meshwright.kernel.pipeline.emitting import (
    emit_pipeline,
    emit_pipeline_with_allocations,
    emit_pipeline_with_async_prefetch,
)
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
VMEM_SHARED = MemorySpace.VMEM_SHARED
ARBITRARY = GridDimensionSemantics.ARBITRARY
PARALLEL = GridDimensionSemantics.PARALLEL
CORE_PARALLEL = GridDimensionSemantics.CORE_PARALLEL
SUBCORE_PARALLEL = GridDimensionSemantics.SUBCORE_PARALLEL
BufferedRefBase = BufferedRef
LoweringException = KernelError

__all__ = [
    "ACC",
    "ANY",
    "ARBITRARY",
    "CMEM",
    "CORE_PARALLEL",
    "HBM",
    "PARALLEL",
    "SEMAPHORE",
    "SMEM",
    "SUBCORE_PARALLEL",
    "VMEM",
    "VMEM_SHARED",
    "AlignmentError",
    "BarrierError",
    "BoundsError",
    "BufferType",
    "BufferedRef",
    "BufferedRefBase",
    "CapacityError",
    "ChipVersion",
    "CompilerParams",
    "CopyError",
    "CoreType",
    "DeadlockError",
    "DeviceIdError",
    "DeviceIdType",
    "EndlessError",
    "GridDimensionSemantics",
    "InterpretParams",
    "KernelError",
    "LoweringException",
    "MemorySpace",
    "PipelineAllocations",
    "PipelineBuffers",
    "PipelineCallbackArgs",
    "PipelinePrefetchArgs",
    "PipelineRefs",
    "PipelineStep",
    "PrefetchScalarGridSpec",
    "RaceError",
    "ScopeError",
    "SemaphoreError",
    "SemaphoreType",
    "SideEffectType",
    "StaleError",
    "TPUCompilerParams",
    "TPUMemorySpace",
    "TensorCoreMesh",
    "Tiling",
    "TpuInfo",
    "UnfinishedCopyError",
    "UninitializedError",
    "annotate",
    "async_copy",
    "async_remote_copy",
    "bitcast",
    "conv",
    "core_barrier",
    "create_tensorcore_mesh",
    "device_id",
    "dma_semaphore",
    "einshape",
    "emit_pipeline",
    "emit_pipeline_with_allocations",
    "emit_pipeline_with_async_prefetch",
    "force_tpu_interpret_mode",
    "get_barrier_semaphore",
    "get_tpu_info",
    "get_tpu_info_for_chip",
    "has_memory_space",
    "is_tpu_device",
    "join_bits",
    "load",
    "make_async_copy",
    "make_async_remote_copy",
    "matmul_acc_lhs",
    "matmul_lhs_fifo",
    "matmul_pop",
    "matmul_pop_fifo",
    "matmul_push_rhs",
    "pack_elementwise",
    "pack_fp6",
    "prng_random_bits",
    "prng_seed",
    "reciprocal",
    "reset_tpu_interpret_mode_state",
    "roll",
    "run_on_first_core",
    "run_scoped",
    "sample_block",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "set_tpu_interpret_mode",
    "split_bits",
    "stateful_bernoulli",
    "stateful_bits",
    "stateful_normal",
    "stateful_uniform",
    "stochastic_round",
    "store",
    "sync_copy",
    "to_pallas_key",
    "touch",
    "trace",
    "trace_value",
    "unpack_elementwise",
    "unpack_fp6",
    "with_memory_space_constraint",
]

"""``meshwright.pallas`` (``pl``): kernels on blocks of memory, in the names of ``jax.experimental.pallas``.

>>> import meshwright as mw, meshwright.numpy as mnp
>>> from meshwright import pallas as pl
>>> def add(x_ref, y_ref, out_ref):
...     out_ref[...] = x_ref[...] + y_ref[...]
>>> pl.pallas_call(add, out_shape=mw.ShapeDtypeStruct((2,), mnp.int32))(mnp.array([1, 2]), mnp.array([3, 4]))
Array([4, 6], dtype=int32)
"""

from __future__ import annotations

from meshwright.interop.pallas_stablehlo import lower_as_mlir, pallas_export_experimental
from meshwright.kernel.call import CompilerParams, Debug
from meshwright.kernel.calling import pallas_call
from meshwright.kernel.estimate import CostEstimate, estimate_cost
from meshwright.kernel.language.body import (
    cdiv,
    debug_check,
    debug_print,
    delay,
    enable_debug_checks,
    enable_poison_buffers,
    loop,
    multiple_of,
    num_programs,
    program_id,
    run_scoped,
    select_ref,
    when,
    with_scoped,
)
from meshwright.kernel.language.body import masked_load as load
from meshwright.kernel.language.body import masked_store as store
from meshwright.kernel.language.copies import (
    get_barrier_semaphore,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
)
from meshwright.kernel.language.indexing import Slice, ds
from meshwright.kernel.language.spaces import DeviceIdType, MemorySpace, semaphore
from meshwright.kernel.language.spaces import MemoryType as MemoryRef
from meshwright.kernel.language.values import (
    align_to,
    broadcast_to,
    next_power_of_2,
    reciprocal,
    strides_from_shape,
)
from meshwright.kernel.pipeline.blocks import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Buffered,
    Element,
    GridSpec,
    Indirect,
    RevisitMode,
    Squeezed,
    no_block_spec,
    squeezed,
)
from meshwright.kernel.state import (
    core_map,
    empty,
    empty_like,
    empty_ref,
    empty_ref_like,
    freeze,
    kernel,
    new_ref,
    run_state,
)

ANY = MemorySpace.ANY
HBM = MemorySpace.HBM
HOST = MemorySpace.HOST
dslice = ds

__all__ = [
    "ANY",
    "HBM",
    "HOST",
    "BlockDim",
    "BlockSpec",
    "Blocked",
    "BoundedSlice",
    "Buffered",
    "CompilerParams",
    "CostEstimate",
    "Debug",
    "DeviceIdType",
    "Element",
    "GridSpec",
    "Indirect",
    "MemoryRef",
    "MemorySpace",
    "RevisitMode",
    "Slice",
    "Squeezed",
    "align_to",
    "broadcast_to",
    "cdiv",
    "core_map",
    "debug_check",
    "debug_print",
    "delay",
    "ds",
    "dslice",
    "empty",
    "empty_like",
    "empty_ref",
    "empty_ref_like",
    "enable_debug_checks",
    "enable_poison_buffers",
    "estimate_cost",
    "freeze",
    "get_barrier_semaphore",
    "kernel",
    "load",
    "loop",
    "lower_as_mlir",
    "multiple_of",
    "new_ref",
    "next_power_of_2",
    "no_block_spec",
    "num_programs",
    "pallas_call",
    "pallas_export_experimental",
    "program_id",
    "reciprocal",
    "run_scoped",
    "run_state",
    "select_ref",
    "semaphore",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "squeezed",
    "store",
    "strides_from_shape",
    "when",
    "with_scoped",
]

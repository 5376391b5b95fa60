"""``meshwright.pallas`` (``pl``): kernels on blocks of memory, in the names of ``jax.experimental.pallas``.

>>> import meshwright as mw, meshwright.numpy as mnp
>>> from meshwright import pallas as pl
>>> def add(x_ref, y_ref, out_ref):
...     out_ref[...] = x_ref[...] + y_ref[...]
>>> pl.pallas_call(add, out_shape=mw.ShapeDtypeStruct((2,), mnp.int32))(mnp.array([1, 2]), mnp.array([3, 4]))
Array([4, 6], dtype=int32)
"""

from __future__ import annotations

from meshwright.interop import pallas_stablehlo as _pallas_stablehlo  # noqa: F401  (how engine xla has kernels)
from meshwright.kernel.call import Debug
from meshwright.kernel.calling import pallas_call
from meshwright.kernel.language.body import (
    cdiv,
    debug_check,
    debug_print,
    delay,
    enable_debug_checks,
    loop,
    multiple_of,
    num_programs,
    program_id,
    run_scoped,
    when,
)
from meshwright.kernel.language.body import masked_load as load
from meshwright.kernel.language.body import masked_store as store
from meshwright.kernel.language.copies import semaphore_read, semaphore_signal, semaphore_wait
from meshwright.kernel.language.cores import kernel
from meshwright.kernel.language.indexing import ds
from meshwright.kernel.language.spaces import DeviceIdType, MemorySpace
from meshwright.kernel.pipeline.blocks import (
    Blocked,
    BlockSpec,
    BoundedSlice,
    Buffered,
    Element,
    GridSpec,
    Squeezed,
    no_block_spec,
    squeezed,
)

ANY = MemorySpace.ANY
HBM = MemorySpace.HBM
dslice = ds

__all__ = [
    "ANY",
    "HBM",
    "BlockSpec",
    "Blocked",
    "BoundedSlice",
    "Buffered",
    "Debug",
    "DeviceIdType",
    "Element",
    "GridSpec",
    "MemorySpace",
    "Squeezed",
    "cdiv",
    "debug_check",
    "debug_print",
    "delay",
    "ds",
    "dslice",
    "enable_debug_checks",
    "kernel",
    "load",
    "loop",
    "multiple_of",
    "no_block_spec",
    "num_programs",
    "pallas_call",
    "program_id",
    "run_scoped",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "squeezed",
    "store",
    "when",
]

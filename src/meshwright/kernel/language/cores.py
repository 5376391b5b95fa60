"""Kernels that say for themselves which core does what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.kernel.calling import pallas_call
from meshwright.kernel.language.spaces import MemorySpace
from meshwright.kernel.pipeline.blocks import BlockSpec


@dataclass(frozen=True)
class TensorCoreMesh:
    """The cores of a device, along an axis of their own: ``lax.axis_index("core")`` says which one it is."""

    axis_name: str
    num_cores: int


def create_tensorcore_mesh(axis_name: str, *, num_cores: int = 1) -> TensorCoreMesh:
    """Name the cores of a device.

    >>> create_tensorcore_mesh("core", num_cores=2)
    TensorCoreMesh(axis_name='core', num_cores=2)
    """
    return TensorCoreMesh(axis_name, num_cores)


def kernel(
    body: Callable[..., Any],
    out_shape: Any = None,
    *,
    mesh: TensorCoreMesh,
    scratch_shapes: Any = (),
    compiler_params: Any = None,
    debug: Any = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """A function of arrays that runs ``body`` once on every core of a mesh, on refs to main memory.

    Main memory is the device's; scratch memory and semaphores are each core's own.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl, lax
    >>> from meshwright.pallas import tpu as pltpu
    >>> def double(x_ref, out_ref, block):
    ...     row = lax.axis_index("core")
    ...     pltpu.sync_copy(x_ref.at[row], block)
    ...     block[...] *= 2
    ...     pltpu.sync_copy(block, out_ref.at[row])
    >>> f = pl.kernel(double, mw.ShapeDtypeStruct((2, 3), mnp.float32), scratch_shapes=[pltpu.VMEM((3,), mnp.float32)],
    ...               mesh=pltpu.create_tensorcore_mesh("core", num_cores=2))
    >>> f(mnp.arange(6.0).reshape(2, 3))
    Array([[ 0.,  2.,  4.],
           [ 6.,  8., 10.]], dtype=float32)
    """
    whole = BlockSpec(memory_space=MemorySpace.ANY)
    return pallas_call(
        body,
        out_shape,
        in_specs=whole,
        out_specs=whole,
        scratch_shapes=scratch_shapes,
        compiler_params=compiler_params,
        debug=debug,
        name=name,
        core_mesh=(mesh.axis_name, mesh.num_cores),
    )

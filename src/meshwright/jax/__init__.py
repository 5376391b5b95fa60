"""JAX's names with JAX's defaults: ``import meshwright.jax as jax``. `meshwright run-jax` runs a script whose own
``import jax`` means this.

Where the names of Meshwright have defaults of their own, the functions here have JAX's: gathers and scatters are not
tiled, the axes of ``make_mesh`` are Explicit.

>>> import meshwright.jax as jax
>>> import meshwright.jax.numpy as jnp
>>> float(jax.jit(jax.grad(lambda x: jnp.sum(x**2)))(jnp.ones(3))[0])
2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from meshwright.ad_checkpoint import checkpoint_policies
from meshwright.api.callback import pure_callback
from meshwright.api.custom import custom_jvp, custom_vjp
from meshwright.api.grad import jvp, linearize
from meshwright.api.jacobian import hessian, jacfwd, jacrev
from meshwright.api.pmap import pmap, smap
from meshwright.api.shard_map import shard_map
from meshwright.arrays.device_put import device_get, device_put
from meshwright.arrays.from_parts import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from meshwright.arrays.shards import Shard
from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.compile.jit import disable_jit
from meshwright.core.source import named_scope
from meshwright.core.trace import Value as Array  # traced values are instances of it, too
from meshwright.jax import ad_checkpoint as ad_checkpoint
from meshwright.jax import api_util as api_util
from meshwright.jax import config as _config
from meshwright.jax import core as core
from meshwright.jax import custom_derivatives as custom_derivatives
from meshwright.jax import debug as debug
from meshwright.jax import dlpack as dlpack
from meshwright.jax import dtypes as dtypes
from meshwright.jax import errors as errors
from meshwright.jax import experimental as experimental
from meshwright.jax import extend as extend
from meshwright.jax import flatten_util as flatten_util
from meshwright.jax import image as image
from meshwright.jax import interpreters as interpreters
from meshwright.jax import lax as lax
from meshwright.jax import monitoring as monitoring
from meshwright.jax import nn as nn
from meshwright.jax import numpy as numpy
from meshwright.jax import ops as ops
from meshwright.jax import profiler as profiler
from meshwright.jax import random as random
from meshwright.jax import ref as ref
from meshwright.jax import scipy as scipy
from meshwright.jax import sharding as sharding
from meshwright.jax import stages as stages
from meshwright.jax import tree as tree
from meshwright.jax import tree_util as tree_util
from meshwright.jax import typing as typing
from meshwright.jax import version as version
from meshwright.jax.api import (
    checkpoint,
    closure_convert,
    copy_to_host_async,
    custom_gradient,
    ensure_compile_time_eval,
    eval_shape,
    fwd_and_bwd,
    grad,
    jacobian,
    jit,
    linear_transpose,
    live_arrays,
    make_jaxpr,
    named_call,
    reshard,
    typeof,
    value_and_grad,
    vjp,
    vmap,
)
from meshwright.jax.devices import (
    default_backend,
    device_count,
    devices,
    local_device_count,
    local_devices,
    process_count,
    process_index,
    process_indices,
)
from meshwright.jax.devices import first as _first
from meshwright.jax.dtypes import float0
from meshwright.jax.environment import print_environment_info
from meshwright.jax.refs import Ref, ds, empty_ref, free_ref, freeze, memory, new_ref
from meshwright.jax.sharding import get_abstract_mesh, get_mesh, use_abstract_mesh
from meshwright.jax.version import __version__ as __version__
from meshwright.jax.version import __version_info__ as __version_info__
from meshwright.sharding.device import Device
from meshwright.sharding.mesh import AxisType, Mesh, set_mesh
from meshwright.sharding.mesh import make_mesh as _make_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.single_device import default_device as _default_device
from meshwright.sharding.spec import P

config = _config.config
remat = checkpoint

enable_x64 = _config.setting("enable_x64")
debug_nans = _config.setting("debug_nans")
debug_infs = _config.setting("debug_infs")
debug_key_reuse = _config.setting("debug_key_reuse")
default_matmul_precision = _config.setting("default_matmul_precision")
default_prng_impl = _config.setting("default_prng_impl")
numpy_dtype_promotion = _config.setting("numpy_dtype_promotion")
numpy_rank_promotion = _config.setting("numpy_rank_promotion")
threefry_partitionable = _config.setting("threefry_partitionable")
legacy_prng_key = _config.setting("legacy_prng_key")
log_compiles = _config.setting("log_compiles")
explain_cache_misses = _config.setting("explain_cache_misses")
enable_checks = _config.setting("enable_checks")
enable_custom_prng = _config.setting("enable_custom_prng")
check_tracer_leaks = _config.setting("check_tracer_leaks")
checking_leaks = _config.setting("checking_leaks")
allow_f16_reductions = _config.setting("allow_f16_reductions")
array_garbage_collection_guard = _config.setting("array_garbage_collection_guard")
transfer_guard = _config.setting("transfer_guard")
transfer_guard_host_to_device = _config.setting("transfer_guard_host_to_device")
transfer_guard_device_to_host = _config.setting("transfer_guard_device_to_host")
transfer_guard_device_to_device = _config.setting("transfer_guard_device_to_device")
thread_guard = _config.setting("thread_guard")
auto_pcast = _config.setting("auto_pcast")
no_execution = _config.setting("no_execution")
no_tracing = _config.setting("no_tracing")
remove_size_one_mesh_axis_from_type = _config.setting("remove_size_one_mesh_axis_from_type")
softmax_custom_jvp = _config.setting("softmax_custom_jvp")
jax2tf_associative_scan_reductions = _config.setting("jax2tf_associative_scan_reductions")
host_count, host_id, host_ids = process_count, process_index, process_indices


def make_mesh(
    axis_shapes: Sequence[int] = (),
    axis_names: Sequence[str] = (),
    axis_types: Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Device] | None = None,
    axis_sizes: Sequence[int] | None = None,
) -> Mesh:
    """A mesh whose axes are Explicit unless told otherwise, over the first of the devices; ``axis_sizes`` is what jax
    0.12 calls ``axis_shapes``.

    >>> make_mesh((2, 4), ("x", "y")).axis_types
    (Explicit, Explicit)
    """
    axis_shapes = axis_shapes if axis_sizes is None else axis_sizes
    types = (AxisType.Explicit,) * len(axis_names) if axis_types is None else axis_types
    count = 1
    for size in axis_shapes:
        count *= size
    return _make_mesh(axis_shapes, axis_names, types, devices=_first(count, devices))


def default_device(new_val: Any) -> AbstractContextManager[None]:
    """``mw.default_device``.

    >>> with default_device(devices()[0]):
    ...     x = numpy.ones(2)
    """
    return _default_device(new_val)


def block_until_ready(x: Any) -> Any:
    """``x``, whose arrays are computed.

    >>> block_until_ready(1.0)
    1.0
    """
    return x


def clear_caches() -> None:
    """Nothing: what was compiled is kept by the function it was compiled for."""


def effects_barrier() -> None:
    """Wait for callbacks: they have run when a function returns."""


__all__ = [
    "Array",
    "Device",
    "NamedSharding",
    "P",
    "Ref",
    "ShapeDtypeStruct",
    "Shard",
    "block_until_ready",
    "checkpoint",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "config",
    "copy_to_host_async",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "default_backend",
    "default_device",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "ds",
    "effects_barrier",
    "empty_ref",
    "ensure_compile_time_eval",
    "eval_shape",
    "float0",
    "free_ref",
    "freeze",
    "fwd_and_bwd",
    "get_abstract_mesh",
    "get_mesh",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "linear_transpose",
    "linearize",
    "live_arrays",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_jaxpr",
    "make_mesh",
    "memory",
    "named_call",
    "named_scope",
    "new_ref",
    "pmap",
    "print_environment_info",
    "process_count",
    "process_index",
    "process_indices",
    "pure_callback",
    "remat",
    "reshard",
    "set_mesh",
    "shard_map",
    "smap",
    "typeof",
    "use_abstract_mesh",
    "value_and_grad",
    "vjp",
    "vmap",
]

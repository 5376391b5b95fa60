"""Meshwright: programs that run on many devices."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshwright import numpy, tree
from meshwright.core.dtypes import config
from meshwright.core.program import Program
from meshwright.core.text import parse_program
from meshwright.core.trace import Array
from meshwright.errors import MeshwrightError
from meshwright.frontend.batching import vmap
from meshwright.frontend.custom import checkpoint, custom_jvp, custom_vjp
from meshwright.frontend.derivatives import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from meshwright.frontend.jacobian import hessian, jacfwd, jacobian, jacrev
from meshwright.frontend.jit import jit
from meshwright.frontend.tracing import ShapeDtypeStruct, eval_shape, make_program, typeof
from meshwright.ops import every as _every_op  # noqa: F401  (fills the registry)

if TYPE_CHECKING:
    from meshwright import debug, dist, hardware, interop, lax, nn, pallas, random, sharding, testing
    from meshwright.core.device_sharding import default_device
    from meshwright.core.mesh import AbstractMesh, AxisType, Mesh, devices, get_mesh, make_mesh, set_mesh
    from meshwright.core.partition_spec import P, PartitionSpec
    from meshwright.core.sharding import NamedSharding
    from meshwright.frontend.loading import load
    from meshwright.frontend.partitioning import check_partitioned, no_implicit_comms
    from meshwright.frontend.placing import device_get, device_put
    from meshwright.frontend.resharding import reshard
    from meshwright.frontend.saving import save
    from meshwright.frontend.shard_map import shard_map, shmap
    from meshwright.hardware.matmul_plan import plan_matmul
    from meshwright.partition.overlap import Overlap
    from meshwright.partition.reshard import plan_reshard
    from meshwright.simulate.spmd import simulate

remat = checkpoint

# Names that need not be there to start, and the modules they come from; a module comes from itself.
_ON_FIRST_USE = {
    **{
        name: f"meshwright.{name}"
        for name in ("debug", "dist", "hardware", "interop", "lax", "nn", "pallas", "random", "sharding", "testing")
    },
    "simulate": "meshwright.simulate",
    **dict.fromkeys(
        ("AbstractMesh", "AxisType", "Mesh", "devices", "get_mesh", "make_mesh", "set_mesh"), "meshwright.core.mesh"
    ),
    **dict.fromkeys(("P", "PartitionSpec"), "meshwright.core.partition_spec"),
    "NamedSharding": "meshwright.core.sharding",
    "default_device": "meshwright.core.device_sharding",
    **dict.fromkeys(("device_get", "device_put"), "meshwright.frontend.placing"),
    "load": "meshwright.frontend.loading",
    **dict.fromkeys(("check_partitioned", "no_implicit_comms"), "meshwright.frontend.partitioning"),
    "reshard": "meshwright.frontend.resharding",
    "save": "meshwright.frontend.saving",
    "plan_matmul": "meshwright.hardware.matmul_plan",
    "Overlap": "meshwright.partition.overlap",
    "plan_reshard": "meshwright.partition.reshard",
    **dict.fromkeys(("shard_map", "shmap"), "meshwright.frontend.shard_map"),
}


def __getattr__(name: str) -> Any:
    source = _ON_FIRST_USE.get(name)
    if source is None:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    module = import_module(source)
    value = globals()[name] = module if source == f"meshwright.{name}" else getattr(module, name)
    return value


__all__ = [
    "AbstractMesh",
    "Array",
    "AxisType",
    "Mesh",
    "MeshwrightError",
    "NamedSharding",
    "Overlap",
    "P",
    "PartitionSpec",
    "Program",
    "ShapeDtypeStruct",
    "check_partitioned",
    "checkpoint",
    "config",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "default_device",
    "device_get",
    "device_put",
    "devices",
    "dist",
    "eval_shape",
    "get_mesh",
    "grad",
    "hardware",
    "hessian",
    "interop",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "load",
    "make_mesh",
    "make_program",
    "nn",
    "no_implicit_comms",
    "numpy",
    "pallas",
    "parse_program",
    "plan_matmul",
    "plan_reshard",
    "random",
    "remat",
    "reshard",
    "save",
    "set_mesh",
    "shard_map",
    "sharding",
    "shmap",
    "simulate",
    "testing",
    "tree",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
]

"""Meshwright: programs that run on many devices."""

from typing import TYPE_CHECKING

from meshwright import ad_checkpoint, numpy, tree
from meshwright.api.custom import checkpoint, checkpoint_name, custom_jvp, custom_vjp
from meshwright.api.grad import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from meshwright.api.jacobian import hessian, jacfwd, jacobian, jacrev
from meshwright.api.vmap import vmap
from meshwright.arrays.tracing import ShapeDtypeStruct, eval_shape, make_program, typeof
from meshwright.compile.engines import set_engine
from meshwright.compile.jit import jit
from meshwright.core.dtypes import config
from meshwright.core.first_use import on_first_use
from meshwright.core.program import Program
from meshwright.core.source import named_scope
from meshwright.core.text.parse import parse_program
from meshwright.errors import MeshwrightError
from meshwright.transform import every_op as _every_op  # noqa: F401  (fills the registry)
from meshwright.transform import policies as checkpoint_policies

if TYPE_CHECKING:
    from meshwright import debug, dist, distributed, hardware, interop, lax, nn, pallas, random, sharding, testing
    from meshwright.api.check_partitioned import check_partitioned
    from meshwright.api.microbatched import microbatched
    from meshwright.api.reshard import reshard
    from meshwright.api.shard_map import shard_map, shmap
    from meshwright.arrays.checkpoint.loading import load
    from meshwright.arrays.checkpoint.saving import save
    from meshwright.arrays.device_put import device_get, device_put
    from meshwright.compile.partitioning import no_implicit_comms
    from meshwright.partition.matmul.plan import plan_matmul
    from meshwright.partition.overlap.matmuls import Overlap
    from meshwright.partition.reshard.plan import plan_reshard
    from meshwright.search.layout.find import find_layout
    from meshwright.sharding.mesh import AbstractMesh, AxisType, Mesh, devices, get_mesh, make_mesh, set_mesh
    from meshwright.sharding.named import NamedSharding
    from meshwright.sharding.single_device import default_device
    from meshwright.sharding.spec import P, PartitionSpec
    from meshwright.simulate.spmd import simulate

if TYPE_CHECKING:
    from meshwright.core.trace import Value as Array  # what functions take and return while they are traced, too
else:
    from meshwright.core.trace import Array

remat = checkpoint

__getattr__ = on_first_use(
    "meshwright",
    {
        "meshwright.debug": [],
        "meshwright.dist": [],
        "meshwright.distributed": [],
        "meshwright.hardware": [],
        "meshwright.image": [],
        "meshwright.interop": [],
        "meshwright.lax": [],
        "meshwright.nn": [],
        "meshwright.pallas": [],
        "meshwright.random": [],
        "meshwright.scipy": [],
        "meshwright.sharding": [],
        "meshwright.simulate": [],
        "meshwright.testing": [],
        "meshwright.api.check_partitioned": ["check_partitioned"],
        "meshwright.arrays.checkpoint.loading": ["load"],
        "meshwright.compile.partitioning": ["no_implicit_comms"],
        "meshwright.arrays.device_put": ["device_get", "device_put"],
        "meshwright.api.microbatched": ["microbatched"],
        "meshwright.api.reshard": ["reshard"],
        "meshwright.arrays.checkpoint.saving": ["save"],
        "meshwright.api.shard_map": ["shard_map", "shmap"],
        "meshwright.partition.matmul.plan": ["plan_matmul"],
        "meshwright.partition.overlap.matmuls": ["Overlap"],
        "meshwright.partition.reshard.plan": ["plan_reshard"],
        "meshwright.sharding.mesh": [
            "AbstractMesh",
            "AxisType",
            "Mesh",
            "devices",
            "get_mesh",
            "make_mesh",
            "set_mesh",
        ],
        "meshwright.sharding.named": ["NamedSharding"],
        "meshwright.sharding.single_device": ["default_device"],
        "meshwright.sharding.spec": ["P", "PartitionSpec"],
        "meshwright.search.layout.find": ["find_layout"],
    },
    instead={  # names that JAX has
        "device_count": "len(mw.devices())",
        "enable_x64": "mw.config.update('enable_x64', True)",
        "experimental": "mw.shard_map, mw.make_mesh or mw.pallas",
        "local_device_count": "len(mw.devices())",
        "local_devices": "mw.devices()",
        "make_array_from_callback": "mw.device_put(x, sharding)",
        "make_jaxpr": "mw.make_program(f)(*args)",
        "pmap": "mw.shard_map, or mw.dist.pmap in a device program",
        "tree_map": "mw.tree.map",
        "tree_util": "mw.tree",
    },
)

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
    "ad_checkpoint",
    "check_partitioned",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "config",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "default_device",
    "device_get",
    "device_put",
    "devices",
    "dist",
    "distributed",
    "eval_shape",
    "find_layout",
    "get_mesh",
    "grad",
    "hardware",
    "hessian",
    "image",
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
    "microbatched",
    "named_scope",
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
    "scipy",
    "set_engine",
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

"""Functions between here and JAX: ``from_jax`` reads what JAX lowers, ``to_jax`` runs what was compiled here on XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from meshwright.compile.compiled import Compiled
from meshwright.core import tree
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.interop.mlir import load
from meshwright.interop.stablehlo.context import parse_module
from meshwright.interop.stablehlo.dumping import dump
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.regions.shard_map import MeshAxes
from meshwright.transform.stack import inline_calls


def _needed() -> None:
    if find_spec("jax") is None:
        raise MeshwrightError("JAX is not installed.", fix="pip install 'meshwright[jax]'")


def from_jax(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Program:
    """The program of a JAX function for arguments like these: arrays of either side, or ``ShapeDtypeStruct``s.

    Its inputs are the leaves of the arguments, its outputs those of the results. Shardings become constraints.

    >>> import jax.numpy as jnp, meshwright.numpy as mnp
    >>> print(from_jax(lambda x: jnp.sin(x) * 2, mnp.ones(3)).to_text(sources=False))
    program(a: f32[3]) {
      b: f32[3] = sin a
      c: f32[3] = broadcast_in_dim 2.0:f32 dims=() shape=(3,)
      d: f32[3] = mul b c
      return d
    }
    """
    _needed()
    import jax

    args, kwargs = tree.map(lambda x: np.asarray(x) if isinstance(x, Array) else x, (args, kwargs))
    return load(jax.jit(f, keep_unused=True).lower(*args, **kwargs).as_text())


def _laid_out(program: Program, placed: bool) -> tuple[MeshAxes, AbstractMesh | None, list[NamedSharding | None]]:
    """The mesh axes that a program runs over, and the shardings of its arguments and results: those of its shard_map if
    it was ``placed`` on a mesh, replicated ones if its user wrote a shard_map, none without."""
    types = [*program.in_types, *program.out_types]
    params = next((eqn.params for eqn in program.eqns if eqn.op.name == "shard_map"), None)
    if params is None:
        return (("device", 1),), None, [None] * len(types)
    on = AbstractMesh.of_parts(params["mesh"])
    specs = [*params["in_specs"], *params["out_specs"]] if placed else [PartitionSpec()] * len(types)
    shardings = [NamedSharding(on, spec.update(replicated=())) for spec in specs]
    return params["mesh"], on, [_even(s, t) for s, t in zip(shardings, types, strict=True)]


def _while_tracing() -> MeshwrightError:
    return MeshwrightError(
        "A function made by to_jax is called while JAX traces.",
        where=here(),
        why="it runs what is compiled already, on arrays; jax.jit, jax.grad and jax.vmap have none to give it",
        fix="call it outside of them; to differentiate: to_jax(mw.jit(mw.grad(f)).lower(*args).compile())",
    )


def to_jax(compiled: Compiled, devices: Sequence[Any] | None = None) -> Callable[..., Any]:
    """A function of JAX arrays that runs on XLA what was compiled here, with the collectives that were chosen here.

    ``devices`` are JAX's, in the order of the mesh; by default the first ones. Arguments are put where the compiled
    function wants them, and results are arrays of JAX. It is called from outside of ``jax.jit``.

    >>> import jax.numpy as jnp, meshwright as mw, meshwright.numpy as mnp
    >>> f = to_jax(mw.jit(lambda x: mnp.tanh(x).sum()).lower(mnp.ones(3)).compile())
    >>> print(f"{f(jnp.ones(3)):.4f}")
    2.2848
    """
    _needed()
    import jax

    if not isinstance(compiled, Compiled):
        raise MeshwrightError(
            f"to_jax is given a {type(compiled).__name__}.",
            where=here(),
            why="it runs what was compiled, for arguments that are known",
            fix="to_jax(mw.jit(f).lower(*args).compile())",
        )
    placed = compiled._executable.placed
    program = inline_calls(compiled.global_program, shard_maps=False) if placed is None else placed.program
    axes, on, ours = _laid_out(program, placed is not None)
    count = prod(size for _, size in axes)
    found = list(jax.devices() if devices is None else devices)[:count]
    if len(found) < count:
        raise MeshwrightError(
            f"The function was compiled for {count} devices, and JAX has {len(found)}.",
            where=here(),
            why="each device of the mesh runs its own part of the program",
            fix=f"a mesh of {len(found)}, or XLA_FLAGS=--xla_force_host_platform_device_count={count} for JAX on a CPU",
        )
    mesh = jax.sharding.Mesh(np.array(found).reshape([size for _, size in axes]), tuple(name for name, _ in axes))
    spec: Any = jax.sharding.PartitionSpec
    theirs = [jax.sharding.NamedSharding(mesh, spec(*(() if s is None else s.spec.partitions))) for s in ours]
    ins, outs = len(program.inputs), compiled._executable.out_tree
    loaded = _loaded(dump(program, mesh=on, in_shardings=ours[:ins], out_shardings=ours[ins:], name="main"), found)

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            raise _while_tracing()
        leaves = [x if hasattr(x, "dtype") else jax.numpy.asarray(x) for x in leaves]
        shapes = [(tuple(np.shape(x)), np.dtype(x.dtype)) for x in leaves]
        if in_tree != compiled._in_tree or shapes != [(t.shape, t.dtype) for t in program.in_types]:
            raise ShapeError(
                f"This compiled function cannot take ({', '.join(f'{d}{list(s)}' for s, d in shapes)}).",
                where=here(),
                why=f"it was compiled for ({', '.join(map(str, program.in_types))})",
                fix="to_jax(jitted.lower(*args).compile()) for these arguments",
            )
        values = [jax.device_put(x, s) for x, s in zip(leaves, theirs[:ins], strict=True)]
        parts = loaded.execute_sharded(values).disassemble_into_single_device_arrays()
        made = [
            jax.make_array_from_single_device_arrays(t.shape, sharding, list(blocks))
            for t, sharding, blocks in zip(program.out_types, theirs[ins:], parts, strict=True)
        ]
        return tree.unflatten(outs, made)

    return function


def _even(sharding: NamedSharding, t: TensorType) -> NamedSharding:
    """The sharding, if all blocks are of one size, as JAX wants them; otherwise all of the array everywhere."""
    if sharding.to_tensor_sharding(t.ndim).padded_shape(t.shape) == t.shape:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec())


def _loaded(text: str, devices: Sequence[Any]) -> Any:
    """The module compiled by XLA for these devices."""
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_partitions = build.num_partitions = len(devices)
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    numbers = np.array([[device.id for device in devices]])
    build.device_assignment = options.device_assignment = xla_client.DeviceAssignment.create(numbers)
    return devices[0].client.compile_and_load(parse_module(text), xla_client.DeviceList(tuple(devices)), options)

"""Programs on real devices, through XLA.

A program on a mesh is written as StableHLO, its per-device code as it is with every collective in its place, and given
to JAX as one op. That uses names that JAX makes public (``jit``, ``extend.core.Primitive``, ``interpreters.mlir``),
runs alone and under ``jax.jit`` next to other code, and leaves arrays on the devices between calls. jaxlib could be
called without JAX, but has no public interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.core.dtypes import KEY
from meshwright.core.facts import Structure
from meshwright.core.program import Program
from meshwright.core.source import here
from meshwright.core.trace import on_host
from meshwright.core.types import TensorType
from meshwright.engine.device_arrays import (
    Held,
    devices_numbered,
    held,
    mesh_of,
    needed,
    numbers_of,
    real_devices,
    require,
)
from meshwright.errors import MeshwrightError
from meshwright.interop.stablehlo.dumping import dump
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.stack import inline_calls
from meshwright.transform.turned import turn_matmuls

if TYPE_CHECKING:
    from meshwright.partition.partition import LocalProgram

WORDS = np.dtype(np.uint64)  # a random key on a device
MeshAxes = tuple[tuple[str, int], ...]


class XlaCode(NamedTuple):
    """A program as StableHLO, and the function that runs it on what arrays hold."""

    text: str
    function: Callable[..., tuple[Any, ...]]
    direct: Callable[..., Any] | None  # the same, if there is nothing to do before and after; an only result as it is
    from_host: Callable[[], Callable[..., Any]] | None  # makes what is as `direct`, also for arrays of NumPy


class XlaFunctions(NamedTuple):
    """The function that runs a program on arrays of either side, and that for arrays of JAX which are in place, if
    these are all that it takes, which returns an only result as it is. On one device ``from_host`` makes one that takes
    arrays of NumPy among them."""

    function: Callable[..., tuple[Any, ...]]
    direct: Callable[..., Any] | None
    from_host: Callable[[], Callable[..., Any]] | None


class OnDevices(NamedTuple):
    """A program as StableHLO, and where JAX has its arguments and results."""

    program: Program
    text: str
    mesh: Any
    shardings: tuple[Any, ...]
    weak: tuple[bool, ...]  # which results are weakly typed for JAX

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.shardings[: len(self.program.inputs)]

    @property
    def results(self) -> tuple[Any, ...]:
        return self.shardings[len(self.program.inputs) :]

    @property
    def wide(self) -> bool:
        """Whether it has numbers of 64 bits, which JAX has to be told to keep."""
        return any(t.dtype.itemsize == (16 if t.dtype.kind == "c" else 8) for t in _types(self.program))

    def inside(self, *values: Any) -> list[Any]:
        """The results while JAX traces something larger, which by this is on these devices."""
        import jax

        put: Any = jax.lax.with_sharding_constraint
        found = self.bind(*(put(x, s) for x, s in zip(values, self.arguments, strict=True)))
        return [put(x, s) for x, s in zip(found, self.results, strict=True)]

    def bind(self, *values: Any) -> list[Any]:
        """The results for values of JAX as this one op."""
        shapes = tuple(t.shape for t in self.program.in_types)
        types = tuple((t.shape, _dtype(t), w) for t, w in zip(self.program.out_types, self.weak, strict=True))
        found: list[Any] = _primitive().bind(*values, text=self.text, shapes=shapes, types=types)
        return found

    def bind_only(self, *values: Any) -> Any:
        """The only result."""
        (found,) = self.bind(*values)
        return found


def emit_xla(program: Program, placed: bool, donated: Sequence[bool] = (), device: int | None = None) -> XlaCode:
    """A program for real devices: what `engine.compile.emit` is for NumPy. ``device`` is the number of the one it is
    for, if somebody said which."""
    devices = None if device is None else devices_numbered([device], "The function was compiled for")
    found = on_devices(program, placed, devices)
    return XlaCode(found.text, *runner(found, donated))


def emit_local(local: LocalProgram, donated: Sequence[bool] = ()) -> XlaCode:
    """The program of one device of a mesh, on all of them: its arguments and results are as devices hold them."""
    needed()
    devices = devices_numbered(numbers_of(local.mesh), "The function was compiled for")
    found = on_devices(local.on_blocks, True, devices)
    entries = [held(one.sharding, one.type.shape) for one in local.entries]
    exits = [held(one.sharding, t.shape) for one, t in zip(local.exits, local.out_types, strict=True)]
    return XlaCode(found.text, *runner(found, donated, entries, exits))


def runner(
    found: OnDevices,
    donated: Sequence[bool] = (),
    entries: Sequence[Held] | None = None,
    exits: Sequence[Held] = (),
) -> XlaFunctions:
    """The function that runs a program on arrays of either side, which go where it wants them. ``entries`` and
    ``exits`` are how devices hold arguments and results, where that is not as whole arrays."""
    import jax

    numbers = tuple(n for n, given in enumerate(donated) if given)
    ins, outs = found.program.in_types, found.program.out_types
    only = len(outs) == 1  # of which JAX need not make a list
    called = jax.jit(
        found.bind_only if only else found.bind,
        in_shardings=found.arguments,
        out_shardings=found.results[0] if only else list(found.results),
        donate_argnums=numbers,
    )
    wanted = entries or [Held(t.shape, t.shape, s) for t, s in zip(ins, found.arguments, strict=True)]
    # Blocks that the program has in other groups than their array: the shapes of these.
    entering = {
        n: t.shape for n, (one, t) in enumerate(zip(wanted, ins, strict=True)) if not _same(one, t, found.arguments[n])
    }
    leaving = [n for n, (one, t) in enumerate(zip(exits, outs, strict=False)) if not _same(one, t, found.results[n])]

    @cache
    def from_host() -> Callable[..., Any]:
        """The same executable, called by the types that it is for: ``called`` would be compiled once more for arrays of
        NumPy, whose types have no mesh."""
        shape: Any = jax.ShapeDtypeStruct
        shapes = [shape(t.shape, _dtype(t), sharding=s) for t, s in zip(ins, found.arguments, strict=True)]
        return called.lower(*shapes).compile()  # type: ignore[no-any-return]

    # On several, JAX is faster at arrays that were put there.
    one_device = found.mesh.size == 1 and not found.mesh.is_multi_process and not entering

    def put(n: int, x: Any) -> Any:
        x = wanted[n].put(x)
        return wanted[n].regrouped(x, entering[n], found.arguments[n]) if n in entering else x

    def results(made: Any) -> tuple[Any, ...]:
        return (made,) if only else tuple(made)

    def run(*data: Any) -> tuple[Any, ...]:
        if not entering:
            call: Callable[..., Any] = called
            if np.ndarray in map(type, data):
                if one_device:
                    call = from_host()
                else:
                    data = tuple(put(n, x) if x.__class__ is np.ndarray else x for n, x in enumerate(data))
            with suppress(ValueError, TypeError):  # they are elsewhere, or padded
                return results(call(*data))
        return results(called(*(put(n, x) for n, x in enumerate(data))))

    def run_and_regroup(*data: Any) -> tuple[Any, ...]:
        results = list(run(*data))
        for n in leaving:
            results[n] = exits[n].regrouped(results[n], exits[n].padded, exits[n].sharding)
        return tuple(results)

    def run_wide(*data: Any) -> tuple[Any, ...]:
        with jax.enable_x64(True):
            return run_and_regroup(*data)

    def run_with_keys(*data: Any) -> tuple[Any, ...]:
        """Random keys stay here: JAX's arrays have no such elements, and numbers of 64 bits stand for them there."""
        made = run_wide(*(x.view(WORDS) if x.dtype == KEY else x for x in data))
        shapes = [one.shape for one in exits or outs]
        return tuple(
            on_host(x, shape).view(KEY) if t.dtype == KEY else x for x, t, shape in zip(made, outs, shapes, strict=True)
        )

    if any(t.dtype == KEY for t in _types(found.program)):
        return XlaFunctions(run_with_keys, None, None)
    if found.wide:
        return XlaFunctions(run_wide, None, None)
    if leaving:
        return XlaFunctions(run_and_regroup, None, None)
    return XlaFunctions(run, None if entering else called, from_host if one_device else None)


def _same(one: Held, t: TensorType, sharding: Any) -> bool:
    """Whether an array that is held so is an argument, or a result, as a program has it."""
    return one.padded == t.shape and one.sharding.is_equivalent_to(sharding, t.ndim)


def on_devices(program: Program, placed: bool, devices: Sequence[Any] | None = None) -> OnDevices:
    """A program for JAX's devices, by default the first ones; ``placed`` says that it was partitioned for a mesh."""
    needed()
    program = turn_matmuls(program if placed else inline_calls(program, shard_maps=False))
    axes, on, ours = _laid_out(program, placed)
    count = prod(size for _, size in axes)
    devices = real_devices(count, on is None) if devices is None else devices
    require(range(count), devices, "The function was compiled for")
    mesh = mesh_of(axes, devices)
    theirs = [_theirs(s, mesh) for s in ours]
    ins = len(program.inputs)
    text = dump(program, mesh=on, in_shardings=ours[:ins], out_shardings=ours[ins:], name="main")
    return OnDevices(program, text, mesh, tuple(theirs), (False,) * len(program.outputs))


def _theirs(sharding: NamedSharding | None, mesh: Any) -> Any:
    import jax

    spec: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(mesh, spec(*(() if sharding is None else sharding.spec.partitions)))


def _laid_out(program: Program, placed: bool) -> tuple[MeshAxes, AbstractMesh | None, list[NamedSharding | None]]:
    """The mesh axes that a program runs over, and the shardings of its arguments and results: those of its shard_map if
    it was ``placed`` on a mesh, replicated ones if its user wrote a shard_map, none without."""
    types = [*program.in_types, *program.out_types]
    params = next((eqn.params for eqn in program.eqns if eqn.op.structure is Structure.DEVICE), None)
    if params is None:
        return (("device", 1),), None, [None] * len(types)
    on = AbstractMesh.of_parts(params["mesh"])
    specs = [*params["in_specs"], *params["out_specs"]] if placed else [PartitionSpec()] * len(types)
    shardings = [NamedSharding(on, spec.update(replicated=())) for spec in specs]
    return params["mesh"], on, [_even(s, t) for s, t in zip(shardings, types, strict=True)]


def _even(sharding: NamedSharding, t: TensorType) -> NamedSharding:
    """The sharding, if all blocks are of one size, as JAX wants them; otherwise all of the array everywhere."""
    if sharding.to_tensor_sharding(t.ndim).padded_shape(t.shape) == t.shape:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec())


def _dtype(t: TensorType) -> Any:
    """What JAX has elements of a type as."""
    return WORDS if t.dtype == KEY else np.dtype(t.dtype)


def _types(program: Program) -> list[TensorType]:
    return [*program.in_types, *program.out_types]


@cache
def _primitive() -> Any:
    """The op of JAX that stands for a program of ours: a call of the function that the program is in StableHLO."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    primitive = Primitive("meshwright")
    primitive.multiple_results = True

    @primitive.def_abstract_eval  # type: ignore[untyped-decorator]
    def types_of(*operands: Any, text: str, shapes: Any, types: Any) -> list[Any]:
        if tuple(x.shape for x in operands) != shapes:
            raise ValueError(f"the program is for arrays of shapes {shapes}")
        # On the mesh of the operands, if they have one: a result is then an operand of the same type, and what takes it
        # is not compiled once more.
        mesh = next((x.sharding.mesh for x in operands if not x.sharding.mesh.empty), None)
        spec: Any = jax.sharding.PartitionSpec
        found = []
        for shape, dtype, weak in types:
            where = None if mesh is None else jax.sharding.NamedSharding(mesh, spec(*[None] * len(shape)))
            found.append(jax.core.ShapedArray(shape, dtype, weak_type=weak, sharding=where))
        return found

    def lower(context: Any, *operands: Any, text: str, shapes: Any, types: Any) -> Any:
        module = ir.Module.parse(text)
        main: Any = ir.SymbolTable(module.operation)["main"]
        made = list(main.type.results)
        around = context.module_context
        name = mlir.merge_mlir_modules(around.module, "meshwright", module, dst_symtab=around.symbol_table)
        return func.CallOp(made, ir.FlatSymbolRefAttr.get(name), operands).results

    mlir.register_lowering(primitive, lower)
    ad.primitive_jvps[primitive] = partial(_refuse, "differentiated", "mw.grad(f)")
    batching.primitive_batchers[primitive] = partial(_refuse, "batched", "mw.vmap(f)")
    return primitive


def _refuse(what: str, instead: str, *_: Any, **__: Any) -> Any:
    raise MeshwrightError(
        f"A program of Meshwright is not {what} by JAX.",
        where=here(),
        why="it is compiled: for JAX it is one op, of which only the code is known",
        fix=f"to_jax(mw.jit({instead}).lower(*args).compile())",
    )

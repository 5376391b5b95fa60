"""``pallas_call``: a function of arrays from a function of refs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from meshwright.arrays.tracing import leaf_value
from meshwright.core import dtypes, tree
from meshwright.core.program import Rule
from meshwright.core.source import here, user_source
from meshwright.core.trace import Array, Tracer, state
from meshwright.core.types import TensorType
from meshwright.kernel import operation
from meshwright.kernel.call import CompilerParams, Debug, KernelCall, Runner, check_grid, run_kernel
from meshwright.kernel.interpret import wanted
from meshwright.kernel.language.body import parameter_names
from meshwright.kernel.language.indexing import as_int
from meshwright.kernel.language.spaces import SEMANTICS, MemoryType, Semaphores, SemaphoreType, semantics
from meshwright.kernel.pipeline.blocks import BlockSpec, GridSpec
from meshwright.kernel.run.faults import KernelError
from meshwright.ops.collective import axis_index


@dataclass(frozen=True)
class Given:
    """What ``pallas_call`` was given."""

    kernel: Callable[..., Any]
    out_shape: Any
    spec: GridSpec
    aliases: dict[int, int]
    params: CompilerParams
    name: str | None


def pallas_call(
    kernel: Callable[..., Any],
    out_shape: Any = None,
    *,
    grid_spec: GridSpec | None = None,
    grid: Any = (),
    in_specs: Any = None,
    out_specs: Any = None,
    scratch_shapes: Any = (),
    input_output_aliases: Any = None,
    compiler_params: Any = None,
    mosaic_params: Any = None,
    debug: Debug | bool | None = None,
    interpret: Any = None,
    name: str | None = None,
    cost_estimate: Any = None,
    metadata: Any = None,
    core_mesh: tuple[str, int] | None = None,
) -> Callable[..., Any]:
    """A function of arrays that runs ``kernel`` on refs to them, once per grid step.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> def double(x_ref, out_ref):
    ...     out_ref[...] = x_ref[...] * 2
    >>> pl.pallas_call(double, out_shape=mw.ShapeDtypeStruct((3,), mnp.float32))(mnp.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    """
    spec = grid_spec or GridSpec(grid, in_specs, out_specs, scratch_shapes)
    many = isinstance(out_shape, tuple | list) or out_shape is None
    outs = list(out_shape or ()) if many else [out_shape]
    given_out_specs = spec.out_specs if many else [spec.out_specs]
    source = user_source()
    params = _compiler_params(compiler_params if compiler_params is not None else mosaic_params)
    shown = debug is True
    as_interpreted = wanted(interpret)
    checks = debug if isinstance(debug, Debug) else None if as_interpreted is None else as_interpreted.debug()
    if as_interpreted is not None and "parallel" in map(semantics, params.dimension_semantics or ()):
        params = replace(params, num_cores=max(params.num_cores, as_interpreted.num_cores_or_threads))
    grid_names, sizes_given = _named(spec.grid)

    given = Given(kernel, out_shape, spec, dict(input_output_aliases or {}), params, name)

    def call(*args: Any) -> Any:
        flat = [tree.flatten(arg) for arg in args]
        leaves = [leaf_value(x, f"argument {n} of the kernel") for n, (found, _) in enumerate(flat) for x in found]
        in_trees = tuple(structure for _, structure in flat)
        out_flat = [tree.flatten(out) for out in outs]
        out_leaves = [leaf for found, _ in out_flat for leaf in found]
        head = spec.num_scalar_prefetch
        sizes = _sizes(sizes_given)
        traced = [n for n in sizes if isinstance(n, Tracer)]
        built = KernelCall(
            kernel=kernel,
            name=str(name or getattr(kernel, "__name__", "kernel")),
            grid=tuple(None if isinstance(n, Tracer) else n for n in sizes),
            in_specs=tuple(_specs(spec.in_specs, in_trees[head:], "in_specs")),
            out_specs=tuple(map(_in_space, _specs(given_out_specs, [t for _, t in out_flat], "out_specs"), out_leaves)),
            labels=_labels(kernel, len(in_trees), len(out_flat)),
            out_types=tuple(map(_type, out_leaves)),
            out_axes=tuple(getattr(leaf, "vma", None) for leaf in out_leaves),
            out_semaphores=tuple(map(_semaphores, out_leaves)),
            in_trees=in_trees,
            out_trees=tuple(t for _, t in out_flat),
            scratch=spec.scratch_shapes if isinstance(spec.scratch_shapes, dict) else list(spec.scratch_shapes or ()),
            scalars=head,
            aliases=tuple(sorted(dict(input_output_aliases or {}).items())),
            params=params,
            debug=checks,
            cores=params.num_cores if core_mesh is None else core_mesh[1],
            grid_names=grid_names,
            core_axis="core" if core_mesh is None else core_mesh[0],
            source=source,
            given=given,
        )
        _check_aliases(built, leaves)
        _check_semantics(built)
        if shown:
            print(built.summary([leaf.type for leaf in leaves]))
        results = _apply(built, [*leaves, *traced])
        return _like_out_shape(out_shape, built.out_trees, results)

    call.given = given  # type: ignore[attr-defined]
    return call


def _compiler_params(given: Any) -> CompilerParams:
    return given if isinstance(given, CompilerParams) else CompilerParams(**_only_known(given or {}))


def _like_out_shape(out_shape: Any, trees: Sequence[tree.TreeDef], results: Sequence[Any]) -> Any:
    """Results in the containers that ``out_shape`` has; of a list of them a tuple, as JAX has it."""
    if out_shape is None:
        return None
    parts, at = [], 0
    for t in trees:
        parts.append(tree.unflatten(t, results[at : at + t.num_leaves]))
        at += t.num_leaves
    return tuple(parts) if isinstance(out_shape, tuple | list) else parts[0]


def _apply(call: KernelCall, leaves: list[Any]) -> list[Any]:
    if state.builder is None and all(leaf.__class__ is Array for leaf in leaves):
        found = run_kernel(call, {}, [[leaf.data for leaf in leaves]])[0]
        return [Array(np.asarray(data), t) for data, t in zip(found, call.out_types, strict=True)]
    manual = state.manual
    mesh = tuple(manual.axes.items()) if manual is not None else ()
    # Every call is a kernel of its own: its number keeps programs apart that differ in nothing else.
    call = _with_axes(call, leaves, dict(mesh))
    rule = Rule(f"{call.name}#{next(_serial)}", Runner(call))
    places = [axis_index(axes=(axis,), sizes=(size,)) for axis, size in mesh]
    return list(operation.pallas_call(*places, *leaves, kernel=rule, mesh=mesh, out=call.out_types, rows=()))


def _with_axes(call: KernelCall, leaves: list[Any], mesh: dict[str, int]) -> KernelCall:
    """The call with the mesh axes that its operands vary over, and its results: all of them unless it says which."""
    every = frozenset(mesh)
    for n, axes in enumerate(call.out_axes):
        if axes is not None and not axes <= every:
            raise KernelError(
                f"Result {n} of {call.name} is said to vary over {', '.join(map(repr, sorted(axes - every)))}.",
                where=here(),
                why=f"the kernel is called over the mesh axes {', '.join(map(repr, mesh)) or 'of no mesh'}",
                fix="vma={…} of axes of the shard_map around it",
            )
    out_axes = tuple(every if axes is None else axes for axes in call.out_axes)
    types = tuple(t.with_(varying=tuple(sorted(axes))) for t, axes in zip(call.out_types, out_axes, strict=True))
    in_axes = tuple(frozenset(leaf.type.varying) for leaf in leaves)
    return replace(call, in_axes=in_axes, out_axes=out_axes, out_types=types)


_serial = count()


def _labels(kernel: Callable[..., Any], inputs: int, outputs: int) -> tuple[str, ...]:
    """What the kernel calls its refs, where it names them one by one."""
    names = parameter_names(kernel)
    if len(names) < inputs + outputs:
        return (*(f"input {n}" for n in range(inputs)), *(f"output {n}" for n in range(outputs)))
    return tuple(names)


def _only_known(params: Any) -> dict[str, Any]:
    """Parameters of this machine; those of others say how a compiler works, not what a kernel computes."""
    if "mosaic" in params:
        params = params["mosaic"]
    return {name: value for name, value in params.items() if name in CompilerParams.__dataclass_fields__}


def _named(grid: Any) -> tuple[tuple[str | None, ...], Any]:
    """The names of a grid's axes, where they have some, and their sizes: ``(("rows", 4), 2)`` has the sizes 4, 2."""
    if not isinstance(grid, tuple | list) or not any(isinstance(n, tuple) for n in grid):
        return (), grid
    pairs = [n if isinstance(n, tuple) else (None, n) for n in grid]
    return tuple(name for name, _ in pairs), tuple(size for _, size in pairs)


def _sizes(grid: Any) -> tuple[Any, ...]:
    """The sizes of a grid; those that are traced are operands of the kernel."""
    if isinstance(grid, Array | np.ndarray) and grid.ndim == 1:
        grid = np.asarray(grid).tolist()
    given = grid if isinstance(grid, tuple | list) else (grid,)
    sizes = tuple(map(_size, given))
    for size in sizes:
        if isinstance(size, Tracer) and size.shape != ():
            raise KernelError(
                f"A size of the grid is an array of shape {size.shape}.",
                where=here(),
                why="along each axis there is one number of steps",
                fix="grid=(n[0],), an element of it",
            )
    check_grid([n for n in sizes if not isinstance(n, Tracer)])
    return sizes


def _size(n: Any) -> Any:
    """The number of steps along one axis: a number, or an array with one number in it."""
    if getattr(n, "shape", ()) != () and n.size == 1:
        n = n.reshape(())
    return n if isinstance(n, Tracer) else as_int(n)


def _semaphores(out: Any) -> Semaphores | None:
    return Semaphores(out) if isinstance(out, SemaphoreType) else out if isinstance(out, Semaphores) else None


def _type(out: Any) -> TensorType:
    semaphores = _semaphores(out)
    if semaphores is not None:
        return TensorType(semaphores.shape, semaphores.kind.count_dtype)
    if not (hasattr(out, "shape") and hasattr(out, "dtype")):
        raise KernelError(
            f"out_shape has {out!r} in it.",
            where=here(),
            why="each result needs a shape and a dtype",
            fix="out_shape=mw.ShapeDtypeStruct((8, 128), mnp.float32)",
        )
    return TensorType(tuple(int(n) for n in out.shape), dtypes.canonical(np.dtype(out.dtype)))


def _specs(specs: Any, trees: Any, what: str) -> list[BlockSpec]:
    """A spec per operand: given for each argument, for its leaves, or for none."""
    leaves = sum(t.num_leaves for t in trees)
    if specs is None:
        return [BlockSpec()] * leaves
    given = list(specs) if isinstance(specs, tuple | list) else [specs] * len(trees)
    if len(given) == 1 and given[0] is None:
        given *= len(trees)
    if len(given) != len(trees):
        raise KernelError(
            f"{what} has {len(given)} specs for {len(trees)} operands.",
            where=here(),
            why="there is one for each",
            fix=f"{what}=[pl.BlockSpec(…), …], one per operand",
        )
    out: list[BlockSpec] = []
    for spec, t in zip(given, trees, strict=True):
        one = BlockSpec() if spec is None else spec
        found = [one] * t.num_leaves if isinstance(one, BlockSpec) else tree.leaves(one)
        if len(found) != t.num_leaves or not all(isinstance(leaf, BlockSpec) for leaf in found):
            raise KernelError(
                f"{what} has {spec!r} for an operand of {t.num_leaves} {'array' if t.num_leaves == 1 else 'arrays'}.",
                where=here(),
                why="it is a BlockSpec for all of them, or a tree with one for each",
                fix="pl.BlockSpec((8, 128), lambda i, j: (i, j)), or None for all of the operand",
            )
        out += found
    return out


def _in_space(spec: BlockSpec, out: Any) -> BlockSpec:
    """The spec of a result that is asked for as memory: ``out_shape=pltpu.VMEM((8, 128), mnp.float32)``."""
    if not isinstance(out, MemoryType) or spec.memory_space is not None:
        return spec
    return BlockSpec(spec.block_shape, spec.index_map, memory_space=out.memory_space, pipeline_mode=spec.pipeline_mode)


def _check_semantics(call: KernelCall) -> None:
    if call.params.dimension_semantics is None:
        return
    names = [semantics(one) for one in call.params.dimension_semantics]
    if len(names) != len(call.grid) or not set(names) <= set(SEMANTICS):
        raise KernelError(
            f"dimension_semantics is {tuple(names)} for a grid of {len(call.grid)} axes.",
            where=here(),
            why=f"each axis is one of {', '.join(map(repr, SEMANTICS))}",
            fix=f"dimension_semantics={('arbitrary',) * len(call.grid)}",
        )


def _check_aliases(call: KernelCall, leaves: list[Any]) -> None:
    for source, target in call.aliases:
        if not (0 <= source < len(leaves) and 0 <= target < len(call.out_types)):
            raise KernelError(
                f"input_output_aliases names input {source} and output {target}.",
                where=here(),
                why=f"there are {len(leaves)} inputs and {len(call.out_types)} outputs",
                fix="input_output_aliases={0: 0}",
            )
        if [out for _, out in call.aliases].count(target) > 1:
            raise KernelError(
                f"input_output_aliases names output {target} twice.",
                where=here(),
                why="two inputs cannot be the same memory",
                fix="one input for each output: input_output_aliases={0: 0, 1: 1}",
            )
        given, wanted = leaves[source].type, call.out_types[target]
        if given.shape != wanted.shape or given.dtype != wanted.dtype:
            raise KernelError(
                f"Input {source}, {given}, and output {target}, {wanted}, cannot be the same memory.",
                where=here(),
                why="their shapes or dtypes differ",
                fix="an output of the input's shape and dtype",
            )

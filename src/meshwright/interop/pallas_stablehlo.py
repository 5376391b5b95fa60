"""Kernels in programs that are written as StableHLO: each is a function of the module, as JAX's Pallas lowers it.

On a TPU that is the compiled kernel, elsewhere what Pallas's interpreter does, step by step; that interpreter has no
copies between devices, and (stacked on one device) no names of axes. JAX lowers a kernel inside of a ``shard_map`` of
its own, whose body is what a device does: that becomes the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.arrays.tracing import make_program
from meshwright.core import dtypes, tree
from meshwright.core.axis_names import whole_axis
from meshwright.core.program import Eqn
from meshwright.core.source import here
from meshwright.core.trace import Tracer
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.pallas import to_jax
from meshwright.interop.stablehlo.by_jax import lowered, platform
from meshwright.interop.stablehlo.dumping import dump
from meshwright.interop.stablehlo.text import OPS, BodyText, Operand
from meshwright.kernel.call import KernelCall

MeshAxes = Sequence[tuple[str, int]]


def write_kernel(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
    """Write a call of a kernel, and the function that the kernel is."""
    p = eqn.params
    rule, mesh, rows = p["kernel"], p["mesh"], p["rows"]
    if rule.function is None:
        raise MeshwrightError(
            f"The kernel {rule.name!r} is not part of this program.",
            why="the program was read from text, which keeps the name of a kernel and not its Python code",
            fix="trace the function again with mw.make_program(f)(…)",
        )
    call: KernelCall = rule.function.call
    given = operands[len(mesh) :]  # after the device's coordinates, which JAX knows
    function = _on_leaves(call)
    for name, _ in reversed(rows):
        function = _vmapped(function, name)
    named = {name for name, _ in rows}
    around = _whole_axes(b.axes, mesh) if any(axis not in named for axis, _ in mesh) else ()
    text = _lowered(call, function, [t for _, t in given], around, prefix := f"kernel_{len(b.functions)}")
    b.functions.append(text)
    return b.op("func.call", given, results, f"callee = @{prefix}_main")


def _on_leaves(call: KernelCall) -> Callable[..., Any]:
    """The kernel by JAX, of arrays one by one; those after its operands are sizes of its grid."""
    count = sum(t.num_leaves for t in call.in_trees)

    def function(*leaves: Any) -> list[Any]:
        given, rest = call.given, list(leaves[count:])
        grid = given.spec.grid if isinstance(given.spec.grid, tuple | list) else (given.spec.grid,)
        grid = tuple(rest.pop(0) if isinstance(n, Tracer) else n for n in grid)
        args, at = [], 0
        for t in call.in_trees:
            args.append(tree.unflatten(t, leaves[at : at + t.num_leaves]))
            at += t.num_leaves
        kernel: Any = lambda: None
        kernel.given = replace(given, spec=replace(given.spec, grid=grid))
        return tree.leaves(to_jax(kernel, interpret=platform() != "tpu")(*args))

    return function


def _vmapped(function: Callable[..., Any], axis: str) -> Callable[..., Any]:
    import jax

    return jax.vmap(function, axis_name=axis or None)


def _whole_axes(axes: MeshAxes, mesh: MeshAxes) -> MeshAxes:
    """The axes of the program, with those of the kernel whole where the program has them in parts."""
    found: dict[str, int] = {}
    for name, size in axes:
        whole = whole_axis(name)
        if name not in dict(mesh) and whole in dict(mesh):
            found[whole] = dict(mesh)[whole]
        else:
            found[name] = size
    return tuple(found.items())


def _lowered(
    call: KernelCall, function: Callable[..., Any], types: Sequence[TensorType], axes: MeshAxes, prefix: str
) -> str:
    """The functions of a module that JAX lowers a kernel to, their names after a prefix; the first is ``main``."""
    import jax

    spec: Any = jax.sharding.PartitionSpec
    mapped: Any = function
    if axes:
        mesh: Any = jax.sharding.AbstractMesh(tuple(size for _, size in axes), tuple(name for name, _ in axes))
        mapped = jax.shard_map(function, mesh=mesh, in_specs=spec(), out_specs=spec(), check_vma=False)
    try:
        return lowered(mapped, types, prefix, dtypes.config.enable_x64)
    except Exception as error:
        said = f"{error.what} {error.why}" if isinstance(error, MeshwrightError) else str(error).split("\n")[0]
        raise MeshwrightError(
            f"The kernel {call.name!r} does not run through XLA on a {platform().upper()}.",
            where=call.source.show() if call.source else "",
            why=f"JAX's Pallas does not lower it: {said}",
            fix='engine="numpy", whose machine runs every kernel, with its copies between devices',
        ) from error


@contextmanager
def pallas_export_experimental(dynamic_shapes: bool) -> Iterator[None]:
    """Nothing, if ``dynamic_shapes`` is False: kernels are written out for the sizes they are given."""
    if dynamic_shapes:
        raise MeshwrightError(
            "A kernel is to be written out without its sizes.",
            where=here(),
            why="blocks and grids are counted when the kernel is written out",
            fix="pl.pallas_export_experimental(dynamic_shapes=False), once for each size",
        )
    yield


def lower_as_mlir(
    f: Callable[..., Any],
    *args: Any,
    dynamic_shapes: bool = False,
    device: Any = None,
    static_argnames: Any = (),
    platforms: Sequence[str] | None = None,
    **kwargs: Any,
) -> str:
    """A function as a module of StableHLO, its kernels lowered by JAX's Pallas for the platform that is there.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> def double(x_ref, out_ref):
    ...     out_ref[...] = x_ref[...] * 2
    >>> call = pl.pallas_call(double, mw.ShapeDtypeStruct((3,), mnp.float32))
    >>> print([line.strip() for line in pl.lower_as_mlir(call, mnp.zeros(3)).splitlines() if "@main(" in line])
    ['func.func @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {']
    """
    if platforms is not None and list(platforms) != [platform()]:
        raise MeshwrightError(
            f"A kernel is to be lowered for {', '.join(platforms)}.",
            where=here(),
            why=f"JAX lowers it here for {platform()}",
            fix=f"platforms=[{platform()!r}], or without platforms=",
        )
    names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    fixed = {name: kwargs.pop(name) for name in names if name in kwargs}
    with pallas_export_experimental(dynamic_shapes):
        return dump(make_program(partial(f, **fixed))(*args, **kwargs))


OPS["pallas_call"] = write_kernel

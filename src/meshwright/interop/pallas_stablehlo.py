"""Kernels in programs that are written as StableHLO: each is a function of the module, as JAX's Pallas lowers it.

On a TPU that is the compiled kernel, elsewhere what Pallas's interpreter does, step by step; that interpreter has no
copies between devices, and (stacked on one device) no names of axes. JAX lowers a kernel inside of a ``shard_map`` of
its own, whose body is what a device does: that becomes the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import dtypes, tree
from meshwright.core.axis_names import whole_axis
from meshwright.core.program import Eqn
from meshwright.core.trace import Tracer
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.pallas import to_jax
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
        return tree.leaves(to_jax(kernel, interpret=_platform() != "tpu")(*args))

    return function


def _vmapped(function: Callable[..., Any], axis: str) -> Callable[..., Any]:
    import jax

    return jax.vmap(function, axis_name=axis or None)


def _platform() -> str:
    import jax

    return str(jax.default_backend())


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
    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]  # type: ignore[no-untyped-call]
    try:
        with jax.enable_x64(dtypes.config.enable_x64):
            traced = jax.jit(mapped, keep_unused=True).trace(*structs)
            module = traced.lower(lowering_platforms=(_platform(),)).compiler_ir("stablehlo")
    except Exception as error:
        said = f"{error.what} {error.why}" if isinstance(error, MeshwrightError) else str(error).split("\n")[0]
        raise MeshwrightError(
            f"The kernel {call.name!r} does not run through XLA on a {_platform().upper()}.",
            where=call.source.show() if call.source else "",
            why=f"JAX's Pallas does not lower it: {said}",
            fix='engine="numpy", whose machine runs every kernel, with its copies between devices',
        ) from error
    return _as_functions(module, prefix)


def _as_functions(module: Any, prefix: str) -> str:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    with module.context, ir.Location.unknown():
        functions = [op for op in module.body.operations if op.operation.name == "func.func"]
        main = next(op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main")
        whole = next((op for op in main.entry_block.operations if op.operation.name == "sdy.manual_computation"), None)
        if whole is not None:
            body = whole.operation.regions[0].blocks[0]
            kind = ir.FunctionType.get(
                [x.type for x in body.arguments], [x.type for x in body.operations[len(body.operations) - 1].operands]
            )
            with ir.InsertionPoint(module.body):
                inner: Any = func.FuncOp("inner", kind)
            entry = inner.add_entry_block()
            for old, new in zip(body.arguments, entry.arguments, strict=True):
                old.replace_all_uses_with(new)
            for op in list(body.operations)[:-1]:
                entry.append(op)
            with ir.InsertionPoint(entry):
                func.ReturnOp(list(body.operations[0].operands))
            functions = [op for op in functions if op is not main]
            main.operation.erase()
            ir.SymbolTable.set_symbol_name(inner.operation, "main")
            functions.append(inner)
        for op in functions:
            name = ir.StringAttr(op.attributes["sym_name"]).value
            ir.SymbolTable.replace_all_symbol_uses(name, f"{prefix}_{name}", module.operation)
            ir.SymbolTable.set_symbol_name(op.operation, f"{prefix}_{name}")
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
        return "\n".join(str(op) for op in functions)


OPS["pallas_call"] = write_kernel

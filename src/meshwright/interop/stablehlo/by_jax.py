"""Ops that StableHLO has no op for and JAX lowers for each platform: factorizations, by LAPACK or what a GPU has.

Each becomes a function of the module, which holds what JAX lowers its own function to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.stablehlo.text import OPS, BodyText, Operand, Write


def platform() -> str:
    """What JAX lowers for: the platform of its devices."""
    import jax

    return str(jax.default_backend())


def lowered(function: Callable[..., Any], types: Sequence[TensorType], prefix: str, wide: bool) -> str:
    """The functions of a module that JAX lowers a function to, their names after a prefix; the first is ``main``."""
    import jax

    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]  # type: ignore[no-untyped-call]
    with jax.enable_x64(wide):
        traced = jax.jit(function, keep_unused=True).trace(*structs)
        module = traced.lower(lowering_platforms=(platform(),)).compiler_ir("stablehlo")
    return _as_functions(module, prefix)


def _as_functions(module: Any, prefix: str) -> str:
    """The functions of a module as private ones; of a ``shard_map`` around all of it, the body is what is kept."""
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


def _linalg(function: Callable[..., Any]) -> Write:
    """An op that is a function of JAX's ``lax.linalg``, which is given first."""

    def write(b: BodyText, eqn: Eqn, operands: list[Operand], results: list[TensorType]) -> list[str]:
        import jax

        name = eqn.op.name
        call = lambda *xs: function(jax.lax.linalg, *xs, **eqn.params)
        try:
            text = lowered(call, [t for _, t in operands], prefix := f"{name}_{len(b.functions)}", wide=True)
        except NotImplementedError as error:
            raise MeshwrightError(
                f"{name} does not run through XLA on a {platform().upper()}.",
                where=eqn.source.show() if eqn.source is not None else "",
                why=f"JAX does not lower it: {str(error).splitlines()[0]}",
                fix='engine="numpy" for the function that it is in',
            ) from error
        b.functions.append(text)
        return b.op("func.call", operands, results, f"callee = @{prefix}_main")

    return write


def _svd(linalg: Any, x: Any, full: bool, vectors: bool) -> Any:
    found = linalg.svd(x, full_matrices=full, compute_uv=vectors)
    return [found[1], found[0], found[2]] if vectors else [found]


OPS.update(
    lu=_linalg(lambda linalg, x: linalg.lu(x)),
    qr=_linalg(lambda linalg, x, full: linalg.qr(x, full_matrices=full)),
    eigh=_linalg(lambda linalg, x: linalg.eigh(x)),
    svd=_linalg(_svd),
    eig=_linalg(lambda linalg, x: linalg.eig(x, compute_left_eigenvectors=False)),
)

"""MLIR through jaxlib's bindings: one context, modules read from text, attributes and types as Python values.

Nothing here is imported before it is asked for: jaxlib is an extra.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from meshwright.core.dtypes import KEY, DType
from meshwright.core.types import TensorType
from meshwright.errors import WITH_JAX, MeshwrightError, TextError
from meshwright.interop.stablehlo.bounds import check_text
from meshwright.sharding.text_sdy import pointing

if TYPE_CHECKING:
    from jaxlib.mlir import ir


@cache
def context() -> Any:
    """The context all modules live in, with the dialects they may use."""
    if find_spec("jaxlib") is None:
        raise MeshwrightError("MLIR is read and written by jaxlib, which is not installed.", fix=WITH_JAX)
    try:
        from jax._src.interpreters.mlir import make_ir_context
    except ModuleNotFoundError:  # where `import jax` means this package, as in `meshwright run-jax`
        found = _context_of_jaxlib()
    else:
        found = make_ir_context()
    found.allow_unregistered_dialects = True
    return found


def _context_of_jaxlib() -> Any:
    """A context as JAX makes them, made without JAX."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, mpmd, sdy, stablehlo

    found = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    found.append_dialect_registry(registry)
    found.load_all_available_dialects()
    for dialect in (sdy, mpmd, chlo, stablehlo):
        dialect.register_dialect(found)
    mhlo.register_mhlo_dialect(found)
    return found


def parse_module(text: str, file: str = "") -> ir.Module:
    """Read a module; an error tells file, line and column, and shows the line."""
    within = context()  # which says what to install
    check_text(text, file)
    from jaxlib.mlir import ir

    with within:
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as error:
            raise _parse_error(error, text, file) from None


def plain_module(text: str, allow_unregistered: bool) -> ir.Module:
    """Read a module as MLIR's own tools do: an error is MLIR's; an op of an unknown dialect is one unless allowed."""
    within = context()
    check_text(text, "")
    from jaxlib.mlir import ir

    with within:
        within.allow_unregistered_dialects = allow_unregistered
        try:
            return ir.Module.parse(text)
        finally:
            within.allow_unregistered_dialects = True


def verify_module(module: Any, when: str) -> None:
    """Refuse a module that breaks a rule of its dialects: what a pass printed could not be read again."""
    from jaxlib.mlir import ir

    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise _not_valid(error, when) from None


def run_mlir(pipeline: str, module: Any, when: str) -> None:
    """Run passes of MLIR's own on a module; refuse it if what they make breaks a rule of its dialects."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    with context():
        try:
            PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        except ir.MLIRError as error:
            if "canonicalize" not in pipeline:
                raise _not_valid(error, when) from None
            why = "equal constants became one, and so did their shardings: only sdy.constant stays apart"
            raise _not_valid(error, when, why, "-sdy-constant-or-scalar-splitter before") from None


def _not_valid(error: Any, when: str, why: str = "", fix: str = "") -> MeshwrightError:
    first = error.error_diagnostics[0] if error.error_diagnostics else None
    message = first.message if first else str(error)
    where = str(first.location) if first else ""
    return MeshwrightError(f"The module is not valid {when}: {message}", where=where, why=why, fix=fix)


def _parse_error(error: Any, text: str, file: str) -> TextError:
    first = error.error_diagnostics[0] if error.error_diagnostics else None
    message = first.message if first else str(error)
    where = re.search(r'"[^"]*":(\d+):(\d+)', str(first.location if first else error))
    if where is None:
        return TextError(f"The module cannot be read: {message}", where=file)
    line, column = int(where[1]), int(where[2])
    lines = text.splitlines(keepends=True)
    at = min(sum(map(len, lines[: line - 1])) + column - 1, len(text))
    shown = pointing(text, at)
    return TextError(
        f"The module cannot be read: {message}",
        where=f"{file or 'line'}:{line}:{column}",
        why=f"this is there:\n{shown}",
    )


# Types

_FLOATS: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz, "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "f8E3M4": ml_dtypes.float8_e3m4,
}  # fmt: skip
ELEMENTS: dict[str, DType] = {
    "i1": np.dtype(bool),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(kind) for name, kind in _FLOATS.items()},
    "i2": np.dtype(ml_dtypes.int2),
    "ui2": np.dtype(ml_dtypes.uint2),
    "i4": np.dtype(ml_dtypes.int4),
    "ui4": np.dtype(ml_dtypes.uint4),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}
SPELLINGS: dict[DType, str] = {dtype: name for name, dtype in ELEMENTS.items()}
SPELLINGS[KEY] = "ui64"  # the two words of a key as one number
_NO_NUMBER = np.dtype(np.void)  # an element type that nothing is known about


class Types:
    """The types of a module, each read once. ``shape`` is None for what is no tensor of static shape."""

    def __init__(self) -> None:
        self._known: dict[Any, TensorType | None] = {}

    def __call__(self, type: Any) -> TensorType | None:
        """The type of a tensor, its element type ``void`` if NumPy has none such; None for a token and the like."""
        found = self._known.get(type, self)
        if found is self:
            found = self._known[type] = _tensor_type(type)
        return found  # type: ignore[return-value]


def _tensor_type(type: Any) -> TensorType | None:
    from jaxlib.mlir import ir

    if not isinstance(type, ir.RankedTensorType) or not type.has_static_shape:
        return None
    return TensorType(tuple(type.shape), ELEMENTS.get(str(type.element_type), _NO_NUMBER))


def type_text(type: TensorType) -> str:
    """A type as MLIR writes it.

    >>> type_text(TensorType((8, 4), np.dtype("float32")))
    'tensor<8x4xf32>'
    """
    return f"tensor<{''.join(f'{n}x' for n in type.shape)}{SPELLINGS[type.dtype]}>"


# Attributes


def integers(attribute: Any) -> tuple[int, ...]:
    """``array<i64: 1, 2>``."""
    from jaxlib.mlir import ir

    return tuple(ir.DenseI64ArrayAttr(attribute))


def integer(attribute: Any) -> int:
    """``3 : i64``."""
    from jaxlib.mlir import ir

    return int(ir.IntegerAttr(attribute).value)


def boolean(attribute: Any) -> bool:
    """``true``."""
    from jaxlib.mlir import ir

    return bool(ir.BoolAttr(attribute).value)


def string(attribute: Any) -> str:
    """``"text"``."""
    from jaxlib.mlir import ir

    return str(ir.StringAttr(attribute).value)


def pairs(attribute: Any) -> tuple[tuple[int, int], ...]:
    """``dense<[[0, 1], [2, 3]]>``, as for padding."""
    from jaxlib.mlir import ir

    flat = [int(n) for n in ir.DenseIntElementsAttr(attribute)]  # type: ignore[attr-defined]
    if ir.DenseElementsAttr(attribute).is_splat:
        flat = flat[:1] * ir.ShapedType(attribute.type).get_dim_size(0) * 2
    return tuple((flat[i], flat[i + 1]) for i in range(0, len(flat), 2))


def keyword(attribute: Any) -> str:
    """The word of an enumeration: ``LT`` of ``#stablehlo<comparison_direction LT>``."""
    return str(attribute).removesuffix(">").rsplit(" ", 1)[-1].rsplit("<", 1)[-1]


def defaulted(numbers: Sequence[int] | None, rank: int, value: int = 1) -> tuple[int, ...]:
    """The numbers given, or ``value`` for each dim."""
    return tuple(numbers) if numbers is not None else (value,) * rank
